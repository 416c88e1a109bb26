"""`predbayes plan merge`: surveys in, a draft out."""

from __future__ import annotations

import json

import pytest

from predbayes.errors import PredbayesError, StudyError
from predbayes_study.plan.schema import Plan
from predbayes_study.trust.signing import SigningKey
from tests.study.commands import done, run, without
from tests.study.invented import DRAFT, survey_of, table

MERGE = "plan merge draft.toml Brno.survey Split.survey --out plan.toml"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A coordinator who has a draft and two surveys."""
    (tmp_path / "draft.toml").write_text(DRAFT)
    for name in ("Brno", "Split"):
        key = SigningKey.generate()
        key.public.save(tmp_path / f"{name}.pub", name)
        survey = survey_of(table(name), tmp_path, name, key=key)
        (tmp_path / f"{name}.survey").write_bytes(survey.file(key))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_writes_a_plan_that_can_be_read_and_compares_keys_if_it_has_them(folder):
    lines = done(MERGE)
    assert any(line.startswith("wrote plan.toml: by 2 sites and ") for line in lines)
    assert lines[-1] == "next: edit it, then predbayes plan check plan.toml"
    assert Plan.load(folder / "plan.toml").columns["age"].range is not None
    not_compared = "not compared with any key"
    assert sum(not_compared in line for line in lines) == 2
    other = MERGE.replace("plan.toml", "other.toml")
    refused = run(f"{other} --key Brno.pub")
    assert isinstance(refused.exception, StudyError)
    assert "Split.survey" in str(refused.exception)
    assert not any(not_compared in x for x in done(f"{other} --key Brno.pub --key Split.pub"))


def test_a_survey_and_its_merge_load_no_torch(folder):
    """In one process; and a column that a site lacks is a warning."""
    frame = table("Split", seed=3).drop(columns="pulse")
    frame.to_csv(folder / "rows.csv", index=False)
    (folder / "site.toml").write_text('format = 1\nname = "Graz"\n')
    done("site key Graz")
    survey = "site survey draft.toml rows.csv --out Graz.survey"
    merge = MERGE.replace("Brno", "Graz.survey Brno", 1)
    told = without(("torch",), [(line.split(), 0) for line in (survey, merge)])
    assert Plan.load(folder / "plan.toml").columns["pulse"].optional
    assert "warning: pulse: Graz " in told


def test_a_key_is_of_one_site(folder):
    """Three surveys by the holder of one key are no three sites."""
    key = SigningKey.generate()
    key.public.save(folder / "Graz.pub", "Graz")
    (folder / "Split.survey").write_bytes(
        survey_of(table("Split"), folder, "Split", key=key).file(key)
    )
    refused = run(f"{MERGE} --key Brno.pub --key Graz.pub")
    assert isinstance(refused.exception, StudyError)
    assert "of Split, but is signed with the key of Graz" in str(refused.exception)
    (folder / "Brno.survey").write_bytes(
        survey_of(table("Brno"), folder, "Brno", key=key).file(key)
    )
    key.public.save(folder / "Graz.pub")
    for given in ("", " --key Graz.pub"):
        assert "Brno and Split are signed with one key" in str(run(MERGE + given).exception)
    assert not (folder / "plan.toml").exists()


def test_what_was_held_back_or_is_there_already_is_refused(folder):
    done(MERGE)
    assert "plan.toml exists already" in str(run(MERGE).exception)
    survey = survey_of(table("Split"), folder, "Split")
    (folder / "Split.survey").write_bytes(survey.file(None))
    refused = run(MERGE.replace("plan.toml", "other.toml"))
    assert "Split.survey is not signed: it was held back at Split" in str(refused.exception)
    assert not (folder / "other.toml").exists()


@pytest.mark.parametrize("value", [1e100, 1e-300, 1e308])
def test_whatever_a_survey_says_is_a_plan_or_one_line(folder, value):
    """A signed file may say anything; it must not end in a traceback."""
    key = SigningKey.generate()
    survey = survey_of(table("Split"), folder, "Split", key=key)
    odd = survey.columns["age"].model_copy(
        update={"quantiles": {25: 1e-300, 50: value, 75: max(value, 1e99)}}
    )
    odd = survey.model_copy(update={"columns": {**survey.columns, "age": odd}})
    (folder / "Odd.survey").write_bytes(odd.file(key))
    found = run("plan merge draft.toml Odd.survey --out odd.toml")
    assert isinstance(found.exception, PredbayesError) or found.exit_code == 0


class TestWithRealRows:
    """A draft may have reference rows of its own; the drawn ones come behind them."""

    @staticmethod
    def begin(folder, counts):
        table("Graz", seed=9)[:80].to_csv(folder / "real.csv", index=False)
        rows = '[reference]\nfile = "real.csv"\nsource = "s"\nlicence = "l"\nlegal_basis = "b"\n'
        (folder / "draft.toml").write_text(DRAFT.replace("[reference]\n", f"{rows}{counts}\n"))
        for name in ("Brno", "Split"):
            key = SigningKey.generate()
            draft = Plan.load(folder / "draft.toml")
            survey = survey_of(table(name), folder, name, of=draft, key=key)
            (folder / f"{name}.survey").write_bytes(survey.file(key))

    def test_labels_stay_and_drawn_rows_have_none(self, folder):
        self.begin(folder, "labelled = 50\nunlabelled = 30")
        lines = done(f"{MERGE} --reference 200")
        assert "wrote plan-reference.csv: 280 rows, 200 of them synthetic" in lines
        reference = Plan.load(folder / "plan.toml").reference
        assert (reference.labelled, reference.unlabelled) == (50, 230)
        assert any("200 of 280 reference rows" in line for line in done("plan check plan.toml"))
        done("plan freeze plan.toml --out kit")
        labels = json.loads((folder / "kit-labels.json").read_text())
        assert len(labels["labelled"]["labels"]) == 50

    def test_counts_that_do_not_fit_the_file_are_named(self, folder):
        self.begin(folder, "labelled = 50")
        refused = run(f"{MERGE} --reference 200")
        assert isinstance(refused.exception, PredbayesError)
        assert "real.csv has 80 rows, but" in str(refused.exception)
        assert not (folder / "plan.toml").exists()
