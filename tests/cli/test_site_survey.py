"""`predbayes site survey`: from a draft of a plan to a file that somebody approved."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from predbayes.errors import PlanError, PredbayesError, StudyError
from predbayes.exchange.signing import SigningKey
from predbayes.study.tables.surveyfile import read_survey
from tests.cli.test_site_train import done, run, told
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
    survey, is_signed = read_survey(folder / "Split.survey")
    assert is_signed
    page = (folder / "Split.survey.html").read_text()
    for column in survey.columns.values():
        figures = getattr(column, "quantiles", None) or {**column.words, **column.unlisted}
        assert all(f"{value:,.6g}" in page for value in figures.values() if value is not None)
    assert survey.digest() in page
    assert "They are not told" in page  # sums of 350 rows


def test_sums_are_on_the_page_too(folder):
    table("Graz").to_csv(folder / "rows.csv", index=False)
    done(SURVEY)
    survey, page = read_survey(folder / "Split.survey").survey, folder / "Split.survey.html"
    assert survey.moments is not None
    text = page.read_text()
    for line in survey.moments.products:
        assert " ".join(f"{number:g}" for number in line) in text


def test_nothing_is_signed_before_somebody_approves(folder):
    (folder / "draft.toml").write_text(MANUAL)
    lines = done(SURVEY)
    approve = told(lines, "held back until it is approved")
    assert not (folder / "Split.survey").exists()
    page = (folder / "Split.survey.html").read_text()
    assert "Held back until approved: <code>predbayes site approve FILE --by NAME<" in page
    again = done(approve.replace("NAME", "'D. Schutz'"))
    assert again[-1] == "next: the same predbayes site survey again; it signs what was approved"
    assert done(SURVEY)[-1] == "hand over: Split.survey"
    assert read_survey(folder / "Split.survey").is_signed
    assert not (folder / "held-back-Split.survey").exists()


def test_an_approval_is_of_one_content(folder):
    (folder / "draft.toml").write_text(MANUAL)
    done(SURVEY)
    done("site approve held-back-Split.survey --by Schutz")
    table("Split", seed=1).to_csv(folder / "rows.csv", index=False)
    assert "held back" in done(SURVEY)[-1]


def test_what_was_revoked_is_held_back_whatever_the_plan_says(folder):
    done(SURVEY)
    done("site revoke Split.survey --by Schutz")
    assert "held back" in done(SURVEY)[-1]
    assert not (folder / "Split.survey").exists()


def test_with_the_officers_key_no_other_approval_counts(folder):
    (folder / "draft.toml").write_text(MANUAL)
    officer = SigningKey.generate()
    officer.save(folder / "officer.key")
    text = f'format = 1\nname = "Split"\nofficer = "predbayes-ed25519 {officer.public.hex}"\n'
    (folder / "site.toml").write_text(text)
    done(SURVEY)
    refused = run("site approve held-back-Split.survey --by Schutz")
    assert isinstance(refused.exception, StudyError)
    done("site approve held-back-Split.survey --by Schutz --key officer.key")
    assert done(SURVEY)[-1] == "hand over: Split.survey"


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


def test_a_policy_forbids_sums_alone(folder):
    table("Graz").to_csv(folder / "rows.csv", index=False)
    (folder / "site.toml").write_text('format = 1\nname = "Split"\n[policy]\nkinds = ["survey"]\n')
    done(SURVEY)
    assert read_survey(folder / "Split.survey").survey.moments is None


def test_site_toml_can_be_drafted_from_a_draft(folder):
    (folder / "site.toml").unlink()
    rows = table("Split").rename(columns={"age": "Alter (Jahre)"})
    rows.to_csv(folder / "rows.csv", index=False)
    lines = done("site survey draft.toml rows.csv --suggest --name Split")
    assert lines[0].endswith("site.toml: a draft; nothing in it is a guess")
    assert lines[-1].startswith("next: predbayes site survey draft.toml rows.csv")
    done(SURVEY)
    assert read_survey(folder / "Split.survey").survey.absent == ()


def test_it_is_in_the_audit_log_without_a_value(folder):
    done(SURVEY)
    last = json.loads((folder / "audit.jsonl").read_text().splitlines()[-1])
    assert last["act"] == "survey"
    assert last["what"]["survey"] == read_survey(folder / "Split.survey").survey.digest()


def test_refusals_are_one_line(folder):
    refused = run("site survey draft.toml rows.csv")
    assert str(refused.exception).startswith("say where the survey goes: --out FILE")
    (folder / "site.toml").unlink()
    assert "there is no site.toml" in str(run(SURVEY).exception)


def test_it_loads_no_torch(folder):
    code = (
        "import sys; from predbayes.cli.app import app\n"
        f"try: app({SURVEY.split()!r})\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert (folder / "Split.survey").exists()


@pytest.mark.parametrize("name", ["Split.key", "site.toml", "rows.csv"])
@pytest.mark.parametrize("draft", [DRAFT, MANUAL])
def test_it_overwrites_nothing_but_a_survey(folder, name, draft):
    (folder / "draft.toml").write_text(draft)
    before = (folder / name).read_bytes()
    found = run(f"site survey draft.toml rows.csv --out {name}")
    assert isinstance(found.exception, PredbayesError)
    assert "would overwrite" in str(found.exception)
    assert (folder / name).read_bytes() == before


def test_a_second_survey_takes_the_place_of_the_first(folder):
    done(SURVEY)
    assert done(SURVEY)[-1] == "hand over: Split.survey"


def test_where_plans_need_approval_so_do_surveys(folder):
    (folder / "site.toml").write_text('format = 1\nname = "Split"\n[policy]\nrelease = "manual"\n')
    told(done(SURVEY), "held back until it is approved")
    assert not (folder / "Split.survey").exists()
