"""Opening a kit or a model runs no code that it names: finding 1 of the security review.

The attack: `model.module` named `numpy.f2py.__main__:main`, whose import evaluates a hidden file of
the working directory. `plan check`, `site check` and `predict` ran it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from predbayes_study.kit.kit import FINGERPRINT_FILE
from predbayes_study.plan.schema import PLAN_FILE
from tests.study.world import World, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


CALLABLE = "numpy.f2py.__main__:main"
HIDDEN = "__import__('pathlib').Path('ran').touch()"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    """A study with one result."""
    world = make_world(tmp_path_factory.mktemp("study") / "world", method="mixture")
    study = world.begin(added=("Alpha", "Beta"))
    study.finish()
    (world.root / "rows.csv").write_bytes((world.kit.folder / "reference.csv").read_bytes())
    return world


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, as somebody who looks at what came in the mail would."""
    (folder / ".f2py_f2cmap").write_text(HIDDEN)
    command = [sys.executable, "-m", "predbayes_study", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert not (folder / "ran").exists()
    assert "Traceback" not in finished.stderr
    return finished


@pytest.fixture(scope="module")
def kit(tmp_path_factory) -> Path:
    """A kit whose plan names the callable."""
    kit = make_world(tmp_path_factory.mktemp("kit") / "world").kit.folder
    plan = (kit / PLAN_FILE).read_text().replace('module = ""', f'module = "{CALLABLE}"')
    (kit / PLAN_FILE).write_text(plan)
    (kit / FINGERPRINT_FILE).unlink()
    return kit


def test_looking_at_a_kit_runs_nothing(kit):
    finished = run(kit, "site", "check", ".", "reference.csv")
    assert finished.returncode == 2
    assert "model.module" in finished.stderr


@pytest.mark.parametrize(
    ("module", "frozen", "problem"),
    [
        (CALLABLE, True, "plan.model.module"),
        ("", False, "model.json has the draft of a plan"),
    ],
)
def test_a_model_runs_nothing(world, tmp_path, module, frozen, problem):
    model = world.root / "study" / "results" / "1" / "model"
    header = json.loads((model / "model.json").read_text())
    header["plan"]["model"]["module"] = module
    if not frozen:
        header["plan"]["frozen"] = None
    _sign(header)
    shutil.copy(model / "model.safetensors", tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(header))
    rows = world.root / "rows.csv"
    finished = run(tmp_path, "predict", ".", rows, "--out", "out.csv")
    assert finished.returncode == 2
    assert problem in finished.stderr


def _sign(header: dict) -> None:
    """Give the plan's digest as the software would: an attacker can."""
    from predbayes_study.plan.schema import Plan

    try:
        header["plan_digest"] = Plan.model_validate_json(json.dumps(header["plan"])).digest()
    except ValueError:
        header["plan_digest"] = "0" * 64
