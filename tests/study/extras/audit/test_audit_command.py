"""`predbayes site audit`: figures on the screen and in a file that stays, and what comes next."""

from __future__ import annotations

import json
import shlex

import pytest
from typer.testing import CliRunner

from predbayes_study.cli.app import app
from tests.study.world import make_world, own_table

AUDIT = "site audit kit rows.csv --out out --learner logistic-regression"
LEARNER = "[learner]\nname = 'any'\nholdout = 0.2\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    make_world(tmp_path, learner=LEARNER)
    (tmp_path / "rows.csv").write_text(own_table((tmp_path / "reference.csv").read_text()))
    (tmp_path / "site.toml").write_text('format = 1\nname = "Basel"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def done(line):
    result = CliRunner().invoke(app, shlex.split(line))
    assert result.exit_code == 0, result.exception
    return result.output


def test_it_tells_both_attackers_epsilon_and_lines_and_what_is_next(folder):
    told = done(AUDIT)
    assert "logistic-regression: 16 fits to halves of 64 people" in told
    assert "by what leaves" in told
    assert "by the model itself" in told
    assert "epsilon is at least" in told
    assert "most exposed: lines " in told
    assert "nothing has left this computer" in told
    found = json.loads((folder / "out" / "home" / "membership.json").read_bytes())
    assert len(found["lines"]) == 5
    done("site key Basel")
    train = told.splitlines()[-1].partition("predbayes ")[2].partition(";")[0]
    done(f"{train} --learner logistic-regression")
    assert "16 models of random halves" in (folder / "out" / "egress.html").read_text()
    upload = (folder / "out" / "Basel.safetensors").read_bytes()
    assert b"membership" not in upload
    assert "audit" in (folder / "audit.jsonl").read_text()


def test_a_limit_that_it_does_not_meet_is_told_at_once(folder):
    (folder / "site.toml").write_text(
        'format = 1\nname = "Basel"\n[policy]\nmax_membership_auc = 0.501\n'
    )
    assert "`site train` will refuse: the site's policy forbids it" in done(AUDIT)
