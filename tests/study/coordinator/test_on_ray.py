"""A shard on Ray: any number of workers, dead ones and lost nodes give the same bits.

Ray starts twice in this file: once as a cluster of two nodes, once by the command.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from predbayes.exchange.coordinator import CoordinatorKey
from predbayes.exchange.upload import Upload
from predbayes.study.coordinator.on_ray import OnRay
from predbayes.study.coordinator.study import Study
from tests.cli.test_app import predbayes
from tests.study.coordinator.cluster import FOUND
from tests.study.world import make_world

ROOT = Path(__file__).parents[3]
NAMES = [f"Site {letter}" for letter in "ABCDEFGHIJ"]


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """A shard of ten sites, whose uploads were all sent twice."""
    root = tmp_path_factory.mktemp("ray")
    world = make_world(root / "world")
    CoordinatorKey.generate().save(root / "north.key")
    made = Study.shard(root / "north", "north", world.kit.folder, root / "north.key")
    made.admit_all({name: world.key(name).public for name in NAMES})
    files = [world.file(name) for name in NAMES]
    assert sum(answer is None for answer in made.add_all([*files, *files])) == len(NAMES)
    return made


@pytest.fixture(scope="module")
def expected(shard, tmp_path_factory):
    """The digest of its sum, made here."""
    return shard.sum(tmp_path_factory.mktemp("sum") / "n.sum").digest()


def python(*arguments) -> subprocess.CompletedProcess[str]:
    """A process of its own: Ray leaves threads and files behind."""
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.slow("nodes and workers start seven times, each of which imports torch")
def test_workers_that_die_and_nodes_that_go_change_no_bit(shard, expected, tmp_path):
    done = python("tests.study.coordinator.cluster", shard.folder, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / FOUND).read_text())
    assert {"died", "busy"} <= {path.name for path in tmp_path.iterdir()}
    assert found.pop("altered").startswith(f"the upload of {NAMES[0]} was altered")
    assert len(found) == 3
    assert found == dict.fromkeys(found, expected)


def test_the_command_gives_the_same_bits_and_does_what_is_missing(shard, expected, tmp_path):
    for path in (shard.folder / ".parts").glob("*"):
        path.unlink()
    out, options = tmp_path / "n.sum", ("--on", "ray", "--workers", "2")
    done = python("predbayes", "study", "sum", "--study", shard.folder, "--out", out, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert Upload.load(out).digest() == expected
    # All is there: Ray is not even looked for.
    assert shard.sum(tmp_path / "again.sum", fold=OnRay(address="nowhere:1")).digest() == expected


def test_another_engine_is_refused(shard):
    done = predbayes("study", "sum", "--study", shard.folder, "--on", "dask")
    assert done.returncode == 2
    assert done.stderr == "predbayes: --on takes ray or ray:ADDRESS, not dask\n"
