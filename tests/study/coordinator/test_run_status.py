"""A run that is under way is seen by `study status`; one that was killed is not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from predbayes_study.coordinator.run_status import RUN_FILE, RunStatus, one_run
from predbayes_study.coordinator.status import status_of
from tests.study.commands import predbayes
from tests.study.world import make_world

RUN = RunStatus({"Alpha": "asked", "Beta": "in"}, 12.5)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world")).begin()


def test_a_run_is_seen_while_it_lasts(study):
    assert status_of(study).run is None
    with one_run(study.folder):
        RUN.save(study.folder)
        told = json.loads(json.dumps(asdict(status_of(study))))["run"]
        assert told["sites"] == {"Alpha": "asked", "Beta": "in"}
        assert told["seconds_left"] == 12.5
        assert study.verify() == []
    assert status_of(study).run is None


def test_while_a_run_makes_its_result_nobody_is_sent_to_make_one(study):
    made_by_hand = status_of(study).next
    with one_run(study.folder):
        RunStatus({"Alpha": "in", "Beta": "lost"}, 0.0, finishing=True).save(study.folder)
        assert status_of(study).next == "wait: the run makes the result"
        told = predbayes("study", "status", "--study", study.folder).out
    assert "a run is under way, its result is being made; not in: Beta (lost)" in told
    assert "deadline" not in told
    assert status_of(study).next == made_by_hand


def test_a_run_that_was_killed_is_not_seen(study):
    script = (
        "import os, signal, sys; from pathlib import Path; "
        "from predbayes_study.coordinator.run_status import RunStatus, one_run\n"
        "with one_run(Path(sys.argv[1])):\n"
        "    RunStatus({}, 1.0).save(Path(sys.argv[1]))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(study.folder)])
    assert killed.returncode == -9
    assert (study.folder / RUN_FILE).exists()
    assert status_of(study).run is None
    with one_run(study.folder):
        pass  # what it held is free
    assert not (study.folder / RUN_FILE).exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"sites": {}}',
        b"\xff",
        b"[" * 100_000,
        b'{"sites": {}, "seconds_left": 1.0, "host": "h", "pid": "x"}',
        b'{"sites": {"A": 3}, "seconds_left": 1.0, "host": "h", "pid": 1}',
    ],
)
def test_what_cannot_be_read_is_no_run(study, content):
    (study.folder / RUN_FILE).write_bytes(content)
    assert status_of(study).run is None
