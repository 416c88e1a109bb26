"""A command that dies while it has an upload open leaves nothing that can be read.

With `keep_sealed` uploads are encrypted on the coordinator's disk. What is decrypted for a command
is in memory alone, so a process that is killed leaves no file with it: neither in the folder of the
study nor where temporary files go.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from predbayes.exchange.coordinator import CoordinatorKey
from tests.study.world import make_world

DIES = """
import os, signal, sys
from predbayes.exchange.upload import Upload
from predbayes.study.coordinator.study import Study

def load(path, header=None):
    assert b"log_probs" in path.read_bytes()  # it is open
    os.kill(os.getpid(), signal.SIGKILL)

Upload.load = load
study = Study(sys.argv[1])
study.add(sys.argv[2]) if len(sys.argv) > 2 else study.finish()
"""


@pytest.fixture
def world(tmp_path):
    key = CoordinatorKey.generate()
    return make_world(tmp_path / "world", coordinator=key, upload="keep_sealed = true")


def dies(tmp_path, *arguments):
    private = tmp_path / "temporary"
    private.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", DIES, *map(str, arguments)],
        env={**os.environ, "TMPDIR": str(private)},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return private


def readable(*folders):
    """Files that have the name of an array in them."""
    paths = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [path for path in paths if b"log_probs" in path.read_bytes()]


def test_while_it_finishes(world, tmp_path):
    study = world.begin(sites=("Alpha", "Beta"))
    for site in ("Alpha", "Beta"):
        study.add(world.file(site))
    assert readable(study.folder) == []
    private = dies(tmp_path, study.folder)
    assert readable(private, study.folder) == []
    assert study.finish()[0].number == 1


@pytest.mark.slow("a process that is killed")
def test_while_it_takes_a_file_in(world, tmp_path):
    study = world.begin(sites=("Alpha", "Beta"))
    sealed = shutil.copy(world.file("Alpha"), tmp_path / "Alpha.sealed")
    private = dies(tmp_path, study.folder, sealed)
    assert readable(private, study.folder) == []
    assert study.add(sealed) is not None
