"""`predbayes plan` as a user meets it, from a table to a kit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predbayes.errors import PlanError
from predbayes_study.kit.kit import Kit, Labels
from predbayes_study.plan.schema import Plan
from predbayes_study.trust.coordinator import CoordinatorKey, CoordinatorPublicKey
from tests.study.commands import invoke

NUM_ROWS = 400


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    pulse = draw.uniform(40, 120, NUM_ROWS).round(1)
    frame = pd.DataFrame(
        {
            "patient": [f"P{i}" for i in range(NUM_ROWS)],
            "pulse [/min]": pulse,
            "ward": draw.choice(["a", "b"], NUM_ROWS),
            "outcome": np.where(pulse + draw.normal(0, 20, NUM_ROWS) > 80, "ill", "well"),
        }
    )
    (tmp_path / "data").mkdir()
    frame.to_csv(tmp_path / "data" / "ward 7.csv", index=False)
    return tmp_path


def run(*arguments):
    return invoke("plan", *arguments)


def new(*arguments):
    return run("new", "data/ward 7.csv", "--target", "outcome", *arguments)


def fill_in(path):
    text = path.read_text()
    for key in ("source", "licence", "legal_basis"):
        text = text.replace(f'{key} = ""', f'{key} = "x"')
    path.write_text(text)


class TestNew:
    def test_it_drafts_a_plan_that_finds_its_rows_and_overwrites_nothing(self, folder):
        result = new()
        assert result.exit_code == 0, result.output
        plan = Plan.load(folder / "plan.toml")
        assert (plan.name, plan.reference.file) == ("ward 7", "data/ward 7.csv")
        assert list(plan.columns) == ["pulse [/min]", "ward"]
        assert "- patient: left out" in result.output
        assert "next: edit it, then predbayes plan check plan.toml" in result.output
        text = (folder / "plan.toml").read_text()
        assert isinstance(new().exception, PlanError)
        assert (folder / "plan.toml").read_text() == text

        (folder / "plans").mkdir()
        assert new("--out", "plans/a.toml", "--name", "Ward seven").exit_code == 0
        plan = Plan.load(folder / "plans" / "a.toml")
        assert (plan.name, plan.reference.file) == ("Ward seven", "../data/ward 7.csv")

    @pytest.mark.parametrize(
        ("told", "text"),
        [
            (["--classes", "no"], "classes"),
            (["--classes", "no,no"], "classes"),
            (["--classes", "no, "], "classes"),
            (["--classes", " "], "--classes no,yes"),
            (["--centre", "nan", "--scale", "4"], "centre"),
            (["--centre", "6", "--scale", "inf"], "scale"),
            (["--centre", "6", "--scale", "0"], "scale"),
        ],
    )
    def test_a_target_that_cannot_be_told_so_is_refused_in_one_line(self, folder, told, text):
        result = run("new", "data/ward 7.csv", "--target", "later", *told)
        assert isinstance(result.exception, PlanError), result.output
        assert text in str(result.exception)
        assert "\n" not in str(result.exception)
        assert not (folder / "plan.toml").exists()


class TestCheck:
    def test_warnings_are_shown_and_pass(self, folder):
        new()
        result = run("check", "plan.toml")
        assert "error: reference: " in result.output
        assert str(result.exception) == "plan.toml has 1 error"
        fill_in(folder / "plan.toml")
        result = run("check", "plan.toml")
        assert result.exit_code == 0, result.output
        assert "warning: unit: " in result.output
        assert "warning: description: " in result.output
        assert "next: predbayes plan freeze plan.toml --out KIT" in result.output

    def test_every_error_is_shown_and_fails(self, folder):
        new()
        path = folder / "plan.toml"
        text = path.read_text().replace("unlabelled = 0", "unlabelled = 5")
        path.write_text(text.replace('own = "auto"', 'own = "netwrk"'))
        result = run("check", "plan.toml")
        assert str(result.exception) == "plan.toml has 3 errors"
        assert "405 rows" in result.output
        assert "did you mean 'network'?" in result.output
        path.write_text(text.replace('{ type = "number", range = [', "{ range = [9"))
        assert "pulse [/min]" in str(run("check", "plan.toml").exception)  # no markup


class TestFreeze:
    def test_it_writes_the_kit_and_apart_from_it_the_labels(self, folder):
        new()
        fill_in(folder / "plan.toml")
        result = run("freeze", folder, "--out", "the kit", "--labels", "secret.json")
        assert result.exit_code == 0, result.output
        kit = Kit.load(folder / "the kit")
        assert kit.plan.coordinator is None
        Labels.load(folder / "secret.json", kit)
        assert "study init 'the kit' --labels secret.json" in result.output
        for output in (result.output, run("check", "the kit").output):
            assert f"fingerprint: {kit.fingerprint}" in output

        table = folder / "the kit" / "reference.csv"
        lines = table.read_text().splitlines()
        table.write_text("\n".join([lines[0], *lines[:0:-1]]))
        altered = run("check", "the kit")
        assert isinstance(altered.exception, PlanError)
        assert "fingerprint" not in altered.output

    def test_the_fingerprint_covers_the_coordinators_keys(self, folder):
        new()
        fill_in(folder / "plan.toml")
        study = invoke("study", "key")
        assert study.exit_code == 0, study.output
        public = CoordinatorPublicKey.load(folder / "coordinator.pub")
        assert CoordinatorKey.load(folder / "coordinator.key").public == public
        result = run("freeze", "plan.toml", "--out", "kit", "--key", "coordinator.pub")
        assert result.exit_code == 0, result.output
        kit = Kit.load(folder / "kit")
        assert kit.plan.coordinator == public
        for said in (study.output, result.output, run("check", "kit").output):
            assert public.fingerprint in said
        path = folder / "kit" / "plan.toml"
        other = CoordinatorKey.generate().public.encryption
        path.write_text(path.read_text().replace(public.encryption, other))
        assert Plan.load(path).fingerprint != kit.fingerprint

    @pytest.mark.parametrize(
        ("keys", "why"),
        [
            ('signing_key = "ab"', "64 hexadecimal digits"),
            (f'signing_key = "{"0" * 64}"\nencryption_key = "{"ab" * 32}"', "anybody could sign"),
            (f'encryption_key = "{"ab" * 32}"', "64 hexadecimal digits"),
            (f'signing_key = "{"ab" * 32}"\nencryption_key = "{"0" * 64}"', "1,216 bytes"),
        ],
    )
    def test_a_plan_with_half_a_key_is_refused(self, folder, keys, why):
        new()
        fill_in(folder / "plan.toml")
        run("freeze", "plan.toml", "--out", "kit")
        path = folder / "kit" / "plan.toml"
        path.write_text(path.read_text().rstrip() + f"\n{keys}\n")
        with pytest.raises(PlanError, match=why):
            Plan.load(path)

    def test_a_plan_with_errors_is_not_frozen(self, folder):
        new()
        result = run("freeze", "plan.toml", "--out", "kit")
        assert isinstance(result.exception, PlanError)
        assert str(result.exception) == "plan.toml has 1 error; nothing was written"
        assert "error: reference: fill in source, licence, legal_basis" in result.output
        assert not (folder / "kit").exists()
        assert not (folder / "kit-labels.json").exists()
