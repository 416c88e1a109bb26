"""`predbayes doctor` tells what a report of a problem needs, and nothing private."""

from __future__ import annotations

import platform
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import predbayes
from predbayes.posterior.sghmc import SGHMC
from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import PredictiveSum
from predbayes_study.cli.app import app
from predbayes_study.trust.signing import PublicKey

ROOT = Path(__file__).parents[3]


def told():
    return CliRunner().invoke(app, ["doctor"])


def test_versions_platform_extras_and_three_tests_that_pass():
    result = told()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"predbayes {predbayes.__version__}"
    assert lines[1].startswith(f"Python {platform.python_version()}")
    parts = [line.partition(" ")[0] for line in lines if line.startswith("predbayes")][1:]
    expected = ["predbayes", "predbayes-study", "predbayes-flower", "predbayes-lab"]
    assert [part for part in parts if "[" not in part] == expected
    for folder in ("core", "study"):
        path = ROOT / "packages" / folder / "pyproject.toml"
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        extras = {
            f"{project['name']}[{extra}]"
            for extra, asked in project["optional-dependencies"].items()
            if asked
        }
        assert extras <= set(parts)
    assert [line for line in lines if line.endswith(": as it should be")] == [
        "sampler: as it should be",
        "pool: as it should be",
        "signature: as it should be",
    ]


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "broken"),
    [
        ("sampler", SGHMC, "step", lambda self: None),
        ("pool", PredictiveSum, "mixture", lambda self: Categorical(torch.zeros(1, 2))),
        ("signature", PublicKey, "verifies", lambda *given: True),
    ],
)
def test_a_part_that_does_not_work_is_named(name, owner, attribute, broken, monkeypatch):
    monkeypatch.setattr(owner, attribute, broken)
    result = told()
    assert result.exit_code == 1
    wrong = [line for line in result.stdout.splitlines() if line.startswith(f"{name}: ")]
    assert len(wrong) == 1
    assert not wrong[0].endswith("as it should be")
    assert "please report these lines" in result.stderr
