"""`predbayes site survey`: from a draft of a plan to a file that somebody approved."""

from __future__ import annotations

import json

import pytest

from predbayes.errors import PlanError, PredbayesError
from predbayes.files import file_digest
from predbayes_study.extras.survey.surveyfile import read_survey
from predbayes_study.site.site import Site
from tests.study.commands import done, run, told
from tests.study.invented import DRAFT, table

SURVEY = "site survey draft.toml rows.csv --out Split.survey"
MANUAL = DRAFT.replace("[survey]", '[upload]\nrelease = "manual"\n[survey]')


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A site that has been sent the draft of a plan."""
    (tmp_path / "draft.toml").write_text(DRAFT)
    table("Split").to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "site.toml").write_text('format = 1\nname = "Split"\n')
    monkeypatch.chdir(tmp_path)
    done("site key Split")
    return tmp_path


def test_it_writes_a_signed_file_and_a_page_with_every_figure(folder):
    lines = done(SURVEY)
    assert lines[0] == "Split: at least 350 rows, 13 columns"
    assert lines[-1] == "hand over: Split.survey"
    assert done(SURVEY)[-1] == lines[-1]  # a second one takes its place
    survey, is_signed = read_survey(folder / "Split.survey")
    assert is_signed
    page = (folder / "Split.survey.html").read_text()
    for column in survey.columns.values():
        figures = getattr(column, "quantiles", None) or {**column.words, **column.unlisted}
        assert all(f"{value:,.6g}" in page for value in figures.values() if value is not None)
    assert survey.digest() in page
    assert survey.moments is None  # of 350 rows
    last = json.loads((folder / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["act"], last["what"]["survey"]) == ("survey", survey.digest())


def test_sums_are_on_the_page_too_unless_the_policy_forbids_them(folder):
    table("Graz").to_csv(folder / "rows.csv", index=False)
    done(SURVEY)
    survey, page = read_survey(folder / "Split.survey").survey, folder / "Split.survey.html"
    text = page.read_text()
    for line in survey.moments.products:
        assert " ".join(f"{number:g}" for number in line) in text
    (folder / "site.toml").write_text('format = 1\nname = "Split"\n[policy]\nkinds = ["survey"]\n')
    done(SURVEY)
    assert read_survey(folder / "Split.survey").survey.moments is None


@pytest.mark.parametrize("where", ["site.toml", "institution"])
def test_sums_that_no_audit_is_of_stay_under_a_limit_to_what_it_may_find(
    folder, where, monkeypatch
):
    table("Graz").to_csv(folder / "rows.csv", index=False)
    done(SURVEY)
    assert read_survey(folder / "Split.survey").survey.moments is not None
    if where == "site.toml":
        with (folder / "site.toml").open("a") as file:
            file.write("[policy]\nmax_membership_auc = 0.9\n")
    else:
        (folder / "policy.toml").write_text("max_membership_auc = 0.9\n")
        monkeypatch.setenv("PREDBAYES_POLICY", str(folder / "policy.toml"))
    done(SURVEY)
    assert read_survey(folder / "Split.survey").survey.moments is None


def test_no_survey_leaves_under_a_limit_to_epsilon(folder):
    done(SURVEY)
    with (folder / "site.toml").open("a") as file:
        file.write("[policy]\nmax_epsilon = 1.0\n")
    (folder / "other").mkdir()
    for line in (SURVEY, SURVEY.replace("Split.survey", "other/Split.survey")):
        with pytest.raises(PlanError, match=r"which has no noise, against max_epsilon = 1\.0"):
            raise run(line).exception
    assert not [*(folder / "other").iterdir()]


@pytest.mark.parametrize("floor", ["max_epsilon = 1.0", "max_membership_auc = 0.9"])
def test_nor_is_one_sent_that_was_signed_before_the_limit(folder, floor):
    table("Graz").to_csv(folder / "rows.csv", index=False)
    done(SURVEY)
    digest = file_digest(folder / "Split.survey")
    assert Site("site.toml").approvals.why_not_sent(digest) == ""
    with (folder / "site.toml").open("a") as file:
        file.write(f"[policy]\n{floor}\n")
    approvals = Site("site.toml").approvals
    assert "the site's policy forbids it" in approvals.why_not(approvals.released(digest))


def test_nothing_is_signed_before_somebody_approves(folder):
    (folder / "draft.toml").write_text(MANUAL)
    lines = done(SURVEY)
    approve = told(lines, "held back until it is approved")
    assert not (folder / "Split.survey").exists()
    again = done(approve.replace("NAME", "'D. Schutz'"))
    assert "predbayes site survey" in again[-1]
    assert done(SURVEY)[-1] == "hand over: Split.survey"
    assert read_survey(folder / "Split.survey").is_signed
    assert not (folder / "held-back-Split.survey").exists()
    table("Split", seed=1).to_csv(folder / "rows.csv", index=False)
    assert "held back" in done(SURVEY)[-1]  # an approval is of one content


def test_what_was_revoked_or_the_policy_wants_approved_is_held_back(folder):
    done(SURVEY)
    done("site revoke Split.survey --by Schutz")
    assert "held back" in done(SURVEY)[-1]
    assert not (folder / "Split.survey").exists()
    table("Split", seed=1).to_csv(folder / "rows.csv", index=False)
    assert done(SURVEY)[-1] == "hand over: Split.survey"
    for path in folder.glob("Split.survey*"):
        path.unlink()
    (folder / "site.toml").write_text('format = 1\nname = "Split"\n[policy]\nrelease = "manual"\n')
    assert "held back" in done(SURVEY)[-1]
    assert not (folder / "Split.survey").exists()


def test_a_policy_forbids_it_or_makes_it_coarser(folder):
    site = 'format = 1\nname = "Split"\n[policy]\n'
    (folder / "site.toml").write_text(f'{site}kinds = ["predictions"]\n')
    refused = run(SURVEY)
    assert isinstance(refused.exception, PlanError)
    assert "survey would leave" in str(refused.exception)
    (folder / "site.toml").write_text(f"{site}min_cell = 12\n")
    done(SURVEY)
    survey = read_survey(folder / "Split.survey").survey
    assert (survey.step, survey.rows) == (12, 348)


def test_site_toml_can_be_drafted_from_a_draft(folder):
    (folder / "site.toml").unlink()
    rows = table("Split").rename(columns={"age": "Alter (Jahre)"})
    rows.to_csv(folder / "rows.csv", index=False)
    lines = done("site survey draft.toml rows.csv --suggest --name Split")
    assert lines[0].endswith("site.toml: a draft; nothing in it is a guess")
    assert lines[-1].startswith("next: predbayes site survey draft.toml rows.csv")
    done(SURVEY)
    assert read_survey(folder / "Split.survey").survey.absent == ()


@pytest.mark.parametrize("draft", [DRAFT, MANUAL])
def test_it_overwrites_nothing_but_a_survey(folder, draft):
    (folder / "draft.toml").write_text(draft)
    for name in ("Split.key", "site.toml", "rows.csv"):
        before = (folder / name).read_bytes()
        found = run(f"site survey draft.toml rows.csv --out {name}")
        assert isinstance(found.exception, PredbayesError)
        assert "would overwrite" in str(found.exception)
        assert (folder / name).read_bytes() == before
