"""A killed command leaves a study that it completes when it is run again.

The trials are made by `tests.study.faults.crash`, a process that forks. Whatever is killed, when
and how
often: before the command is run again, everything that was there before it is there; afterwards
ledger, files and names are those of a study that nobody disturbed, to the byte but for the clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

STEPS = ("init", "admit", "add", "withdraw", "delete", "finish")
COMMANDS = (*STEPS, "receipt")  # which takes no step


def trials(folder, *commands):
    done = subprocess.run(
        [sys.executable, "-m", "tests.study.faults.crash", str(folder), *commands],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def problems(found):
    return [line for line in found if line["problem"] is not None]


def count(found, **wanted):
    """How many trials were so, by command."""
    kept = (line for line in found if all(line[name] == value for name, value in wanted.items()))
    return Counter(line["command"] for line in kept)


@pytest.mark.parametrize(
    "commands",
    [("add",), pytest.param(COMMANDS, marks=pytest.mark.slow("a study for each operation"))],
)
def test_dying_before_any_operation_on_a_file_changes_nothing(tmp_path, commands):
    found = trials(tmp_path, *commands)
    assert problems(found) == []
    # As many as the steps of the command have at the least, each with its state before.
    least = {"init": 15, "admit": 3, "add": 12, "withdraw": 5, "finish": 17, "receipt": 4}
    least["delete"] = 9
    died = count(found, killed=True)
    assert all(died[command] >= least[command] for command in commands), died
    assert count(found, killed=False) == dict.fromkeys(commands, 1)  # the last is the whole
    assert count(found, killed=True, recorded=False).keys() == set(commands)
    assert count(found, killed=True, recorded=True).keys() == set(commands) & set(STEPS)


@pytest.mark.parametrize("name", ["notes.txt", "3", "old"])
def test_what_no_kill_left_is_not_cleared_away(tmp_path, name):
    from tests.study.world import make_world

    world = make_world(tmp_path / "world")
    study = world.begin("../study")
    mine = [study.folder / parent / name for parent in ("uploads", "results")]
    for path in mine:
        path.write_text("mine")
    study.add(world.file("Alpha"))
    study.withdraw("Alpha")
    assert all(path.read_text() == "mine" for path in mine)
    assert len(study.verify()) == 2
