"""Commands that only look or make a small file start at once: no torch, and about pandas' time.

Time is the processor's, the least of four runs, against a process that does nothing but import
pandas. The two take turns: a busy computer stretches both.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.study.world import SITES, make_world

HEAVY = ("torch", "scipy", "sklearn", "matplotlib")
MOST = 1.5  # times what `import pandas` takes
READS_A_TABLE = {"plan new": 2.5}  # which begins with importing pandas
PROBE = (
    "import sys\n"
    "from predbayes.cli.app import main\n"
    "try:\n    main()\n"
    "except SystemExit as done:\n    assert not done.code, done.code\n"
    f"found = [name for name in {HEAVY} if name in sys.modules]\n"
    "assert not found, found\n"
)
COMMANDS = {
    "help": ["--help"],
    "help of a group": ["study", "--help"],
    "version": ["--version"],
    "plan new": ["plan", "new", "reference.csv", "--target", "kind", "--out", "drafted.toml"],
    "study status": ["study", "status", "--study", "study"],
    "study status --json": ["study", "status", "--study", "study", "--json"],
    "study key": ["study", "key", "--out", "another"],
    "site key": ["site", "key", "Omega"],
}
SLIPS = {
    "plan check": ["plan", "check", "slip.toml"],
    "site check": ["site", "check", "kit", "rows.csv", "--site", "slip-site.toml"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    world = make_world(tmp_path_factory.mktemp("world"))
    study = world.begin()
    for site in SITES[:2]:
        study.add(world.file(site))
    study.finish()
    return world.root


def seconds(code: str, folder: Path, *arguments: str) -> float:
    """Processor time of a Python process; it must succeed."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    after = os.times()
    return after.children_user + after.children_system - before[2] - before[3]


def require_at_once(most: float, code: str, folder: Path, *arguments: str) -> None:
    """Refuse a command that takes more than ``most`` times what importing pandas takes."""
    took, pandas = [], []
    for _ in range(4):
        for made in ("drafted.toml", "another.key", "another.pub", "Omega.key", "Omega.pub"):
            (folder / made).unlink(missing_ok=True)
        pandas.append(seconds("import pandas", folder))
        took.append(seconds(code, folder, *arguments))
    assert min(took) < most * min(pandas), f"{took} against {pandas}"


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_in_a_text_is_told_without_arrays_and_at_once(name, folder):
    plan = (folder / "plan.toml").read_text()
    (folder / "slip.toml").write_text(plan.replace("[reference]", "[refrence]"))
    (folder / "slip-site.toml").write_text('format = 1\nname = "Basel"\n[colums]\n')
    probe = PROBE.replace("not done.code", "done.code == 2")
    require_at_once(MOST, probe, folder, *SLIPS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_it_starts_without_arrays_and_at_once(name, folder):
    require_at_once(READS_A_TABLE.get(name, MOST), PROBE, folder, *COMMANDS[name])
