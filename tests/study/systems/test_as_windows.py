"""What a site runs needs nothing of POSIX: no lock, mode, signal, name, line ending or encoding."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from predbayes_study.coordinator.study import Study
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import PublicKey
from tests.study.world import SITES, World, make_world, own_table

# On Linux alone, where everything can be taken away; the other systems are themselves.
pytestmark = pytest.mark.slow("a site's commands, and a study's result, with POSIX taken away")

TABLE = "Łódź.csv"  # of which cp1252 has but one letter
LEARNER = "[learner]\nmin_steps = 200\nnum_epochs = 1\nholdout = 0.5\n"
TRAIN = ["site", "train", "kit", TABLE, "--out", "out"]
BEFORE = [
    ["--version"],
    ["plan", "check", "kit"],
    ["site", "verify", "kit"],
    ["site", "key", "Alpha"],
    ["site", "check", "kit", TABLE],
    ["site", "approve", "kit", "--by", "D. Schütz"],
    TRAIN,
    ["site", "approve", "out/held-back.safetensors", "--by", "D. Schütz"],
    TRAIN,
]
AFTER = [
    ["site", "verify", "kit", "Alpha.receipt", "out/held-back.safetensors"],
    ["site", "verify", "kit", "model"],
    ["site", "adopt", "model", TABLE, "--home", "out"],
    ["predict", "adopted", TABLE, "--out", "predicted.csv"],
    ["site", "delete", "out"],
]


def as_windows(folder: Path, commands: list[list[str]]) -> str:
    """Run commands in a folder as on Windows, and return what they print."""
    legacy = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("as_windows.py")],
        input=json.dumps(commands).encode(),
        cwd=folder,
        env=os.environ | legacy,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    told = done.stdout.decode("cp1252")
    assert done.returncode == 0, told
    return told


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    """A signed kit that asks for an approval, and four other sites in the study."""
    world = make_world(
        tmp_path_factory.mktemp("world"),
        upload='release = "manual"',
        learner=LEARNER,
        coordinator=CoordinatorKey.generate(),
    )
    world.begin(sites=())
    return world


@pytest.fixture(scope="module")
def site(world, tmp_path_factory) -> Path:
    """A site's folder: the kit, and a table whose name no cp1252 can tell."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(world.root / "study" / "kit", folder / "kit")
    rows = own_table((world.root / "reference.csv").read_text(encoding="utf-8"), 100)
    (folder / TABLE).write_bytes(rows.encode())
    (folder / "site.toml").write_bytes('# Szpital w Łodzi\nformat = 1\nname = "Alpha"\n'.encode())
    return folder


@pytest.fixture(scope="module")
def trained(site) -> str:
    return as_windows(site, BEFORE)


def test_a_site_trains_what_it_trains_elsewhere(site, trained, tmp_path):
    """With the same key, what is sealed and leaves has the same bytes."""
    assert "hand over: out" in trained
    again = tmp_path / "again"
    shutil.copytree(site, again, ignore=shutil.ignore_patterns("out", "*.jsonl", ".*"))
    for words in BEFORE[5:]:
        subprocess.run(
            [sys.executable, "-m", "predbayes_study", *words],
            cwd=again,
            check=True,
            capture_output=True,
        )
    here, there = (at / "out" / "held-back.safetensors" for at in (again, site))
    assert there.read_bytes() == here.read_bytes()


def test_a_study_takes_it_in_and_the_site_adopts_the_model(world, site, trained):
    study = Study(world.root / "study")
    study.admit("Alpha", PublicKey.load(site / "Alpha.pub"))
    for name in SITES[1:]:
        study.admit(name, world.key(name).public)
        study.add(world.file(name))
    assert study.add(site / "out" / "Alpha.sealed") is not None
    (site / "Alpha.receipt").write_bytes(study.receipt("Alpha"))
    study.finish()
    shutil.copytree(study.folder / "results" / "1" / "model", site / "model")
    told = as_windows(site, AFTER)
    assert "adopted" in told
    assert len((site / "predicted.csv").read_bytes().splitlines()) == 101
    assert not list((site / "out").rglob("*.safetensors"))  # they were deleted
