"""`predbayes site key`, `approve` and `train`: what a data manager is told to do next."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest

from predbayes.errors import DataError, KeyFileError, StudyError
from predbayes.exchange.upload import Upload
from predbayes_study.site.training import Training
from predbayes_study.store.audit import AuditLog
from tests.study.commands import done, run, told
from tests.study.messy import PLAN, messy_patients, write_kit
from tests.study.world import make_world, own_table

TRAIN = "site train kit rows.csv --out out"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A site with manual release, its table in the plan's terms."""
    make_world(tmp_path, upload='release = "manual"')
    table = own_table((tmp_path / "reference.csv").read_text())  # those with a label
    (tmp_path / "rows.csv").write_text(table)
    (tmp_path / "site.toml").write_text('format = 1\nname = "Basel"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestNext:
    def test_every_command_names_the_next_one_as_it_can_be_given(self, folder):
        done("site key Basel")
        approve_plan = told(done("site check kit rows.csv"), "next: ")
        assert approve_plan == "site approve kit --by NAME"
        done(approve_plan)
        train = told(done("site check kit rows.csv"), "next: ")
        assert train == TRAIN
        approve = told(done(train), "held back until it is approved: ")
        again = done(approve)
        assert again[-1] == "next: the same predbayes site train again; it signs what was approved"
        assert done(train)[-1] == "hand over: out/Basel.safetensors"
        said = done("site approve out/Basel.safetensors --by officer")
        assert said[0].startswith("was approved before: upload ")
        assert not any(line.startswith("next: ") for line in said)

    def test_a_site_file_elsewhere_is_in_the_next_command(self, folder):
        done("site key Basel --out .")
        (folder / "my site").mkdir()
        for name in ("site.toml", "Basel.key"):
            (folder / name).rename(folder / "my site" / name)
        there = "--site 'my site/site.toml'"
        done(told(done(f"site check kit rows.csv {there}"), "next: "))  # a yes to the plan
        assert told(done(f"site check kit rows.csv {there}"), "next: ") == f"{TRAIN} {there}"
        approve = told(done(f"{TRAIN} {there}"), "held back until it is approved: ")
        done(approve)
        assert done(f"{TRAIN} {there}")[-1] == "hand over: out/Basel.safetensors"


class TestOfficer:
    def test_a_signed_yes_counts_until_it_is_revoked(self, folder):
        done("site key Basel")
        done("site key officer")
        line = (folder / "officer.pub").read_text().splitlines()[0]
        (folder / "site.toml").write_text(f'format = 1\nname = "Basel"\nofficer = "{line}"\n')
        assert "give --key" in str(run("site approve kit --by officer").exception)
        done("site approve kit --by officer --key officer.key")
        done(TRAIN)
        held_back = "out/held-back.safetensors --by officer --key officer.key"
        done(f"site approve {held_back}")
        assert done(TRAIN)[-1] == "hand over: out/Basel.safetensors"
        assert done("site revoke out/Basel.safetensors --by officer")[0].startswith("revoked: upl")
        assert done(TRAIN)[-1].startswith("held back until it is approved")
        assert not (folder / "out" / "Basel.safetensors").exists()
        done("site revoke kit --by officer --key officer.key")
        assert "was revoked; a new one" in str(run(TRAIN).exception)


class TestSwapped:
    """Four of five patients here have what one of five has in the reference rows."""

    CHECK = "site check kit rows.csv"
    TRAIN = f"{TRAIN} --learner logistic-regression"

    @pytest.fixture
    def swapped(self, tmp_path, monkeypatch):
        classes = 'classes = ["no", "yes"]'
        write_kit(tmp_path, PLAN.replace(classes, f"{classes}\nshare = 0.2"))
        rows = messy_patients().sort_values("disease", ascending=False, ignore_index=True)
        rows[: 108 + 27].to_csv(tmp_path / "rows.csv", index=False)
        (tmp_path / "site.toml").write_text('format = 1\nname = "Basel"\n')
        monkeypatch.chdir(tmp_path)
        done("site key Basel")
        done("site approve kit --by officer")
        return tmp_path

    def test_it_is_refused_until_recoded_or_confirmed(self, swapped):
        doubt = "disease: 'yes' is about as frequent here as 'no' in the reference rows"
        checked = run(self.CHECK)
        assert str(checked.exception).startswith("rows.csv does not fit yet: 1 error")
        assert f"error: {doubt}" in checked.output
        error = run(self.TRAIN).exception
        assert isinstance(error, DataError)
        assert str(error).startswith(doubt)
        assert not (swapped / "out").exists()

        site = (swapped / "site.toml").read_text()
        for said, warned in (
            ('[target]\nrecode = { yes = "no", no = "yes" }\n', False),
            ("[target]\nconfirmed = true\n", True),
        ):
            (swapped / "site.toml").write_text(site + said)
            checked = "\n".join(done(self.CHECK))
            assert (f"warning: {doubt}" in checked) is warned
            assert done(f"{self.TRAIN.replace('--out out', f'--out {warned}')}")[-1].startswith(
                "held back"
            )
        (swapped / "site.toml").write_text(f"{site}[columns]\nage = {{ confirmed = true }}\n")
        assert "confirmed" in str(run(self.CHECK).exception)


class TestPassphrase:
    def test_it_is_asked_for_twice_and_then_needed(self, folder, monkeypatch):
        typed = "correct horse battery\n"
        result = run("site key Basel --passphrase", typed + typed)
        assert result.exit_code == 0, result.exception
        assert b"ENCRYPTED" in (folder / "Basel.key").read_bytes()
        assert typed.strip() not in result.output + (folder / "audit.jsonl").read_text()
        monkeypatch.setenv("PREDBAYES_PASSPHRASE", "short")
        assert isinstance(run("site key Genf --passphrase").exception, KeyFileError)
        assert not (folder / "Genf.key").exists()
        monkeypatch.delenv("PREDBAYES_PASSPHRASE")
        done("site approve kit --by officer")
        assert "Basel.key has a passphrase" in str(run(TRAIN).exception)
        monkeypatch.setenv("PREDBAYES_PASSPHRASE", "wrong horse battery")
        assert str(run(TRAIN).exception) == "that is not the passphrase of Basel.key"
        monkeypatch.setenv("PREDBAYES_PASSPHRASE", typed.strip())
        done(TRAIN)


class TestAudit:
    def lines(self, folder):
        found = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
        return [(line["act"], line["outcome"]) for line in found], found

    def test_every_act_and_refusal_is_a_line(self, folder):
        done("site key Basel")
        done("site check kit rows.csv")
        run(TRAIN)  # without an approval
        done("site approve kit --by officer")
        done(TRAIN)
        acts, lines = self.lines(folder)
        assert acts == [
            ("key", "done"),
            ("check", "done"),
            ("train", "begun"),
            ("train", "refused"),
            ("approve", "done"),
            ("train", "begun"),
            ("train", "done"),
        ]
        assert lines[3]["what"]["reason"].startswith("the plan asks for an approval")
        digest = Upload.load(folder / "out" / "held-back.safetensors").digest()
        assert lines[-1]["what"]["upload"] == digest
        assert lines[-1]["what"]["released"] is False
        assert AuditLog.at(folder).problems() == []

    def test_a_table_that_does_not_fit_is_told_without_a_cell_where_site_toml_says(self, folder):
        text = 'format = 1\nname = "Basel"\naudit = "logs/audit.jsonl"\n'
        (folder / "site.toml").write_text(text)
        (folder / "logs").mkdir()
        (folder / "rows.csv").write_text("x,y,kind\n1,2,Qanary\n")
        assert run("site check kit rows.csv").exit_code
        assert not (folder / "audit.jsonl").exists()
        (act,), (line,) = self.lines(folder / "logs")
        assert act == ("check", "done")
        assert line["what"]["errors"] > 0
        assert "Qanary" not in json.dumps(line)


class TestRefusals:
    def test_without_a_yes_to_this_plan_no_row_is_read(self, folder):
        done("site key Basel")
        make_world(folder / "other", upload='release = "manual"', evaluate=30)
        done("site approve other/kit --by officer")
        (folder / "rows.csv").write_text("nothing that could be read")
        error = run(TRAIN).exception
        assert isinstance(error, StudyError)
        assert "predbayes site approve kit" in str(error)
        assert not (folder / "out").exists()

    def test_without_a_key_or_a_site_file_it_says_how_to_make_one(self, folder):
        done("site approve kit --by officer")
        error = run(TRAIN).exception
        assert isinstance(error, KeyFileError)
        assert "predbayes site key Basel" in str(error)
        (folder / "site.toml").unlink()
        error = run(TRAIN).exception
        assert isinstance(error, StudyError)
        assert "predbayes site check" in str(error)

    def test_who_stops_training_is_told_that_it_goes_on(self, folder, monkeypatch):
        def interrupted(self, rows):
            raise KeyboardInterrupt

        done("site key Basel")
        done("site approve kit --by officer")
        monkeypatch.setattr(Training, "run", interrupted)
        result = run(TRAIN)
        assert result.exit_code == 130
        assert "the same command goes on" in result.output


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of a process's files")
def test_a_full_disk_is_one_line(folder):
    done("site key Basel")
    done("site approve kit --by officer")
    code = (
        "import resource, sys; from predbayes_study.cli.app import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); main()"
    )
    command = [sys.executable, "-c", code, *shlex.split(TRAIN)]
    # Whoever measures coverage would write a file, too, and complain.
    environment = {name: v for name, v in os.environ.items() if not name.startswith("COV")}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 2, found.stderr
    (line,) = found.stderr.splitlines()
    assert "File too large" in line
    assert [path.name for path in (folder / "out").rglob(".partial-*")] == []
    assert done(TRAIN)[-1].startswith("held back")  # with room again, the same command goes on


def test_what_training_left_is_deleted_and_that_is_on_record(folder):
    done("site key Basel")
    done("site approve kit --by officer")
    done(TRAIN)
    said = done("site delete out")
    assert "deleted: out/held-back.safetensors" in said
    assert "receipt: out/Basel.deletion" in said
    kept = sorted(path.name for path in (folder / "out").glob("[!.]*.*"))
    assert kept == ["Basel.deletion", "egress.html"]
    assert '"act":"delete","outcome":"done"' in (folder / "audit.jsonl").read_text()
