"""The example app builds, and runs unchanged in Flower's simulation and in a deployment."""

from __future__ import annotations

import zipfile

import pytest

from predbayes_flower.simulation import study_folder
from predbayes_study.coordinator.study import Study
from tests.flower.deployment import ROOT
from tests.flower.installed import install
from tests.flower.simulated import simulated
from tests.lab.data.publishers import write_hospitals

EXAMPLE = ROOT / "examples" / "flower-four-hospitals"
SITES = ["Budapest", "Cleveland", "Long Beach", "Zürich"]
NUM_INPUTS = 5 + 2 + 2 + 5 + 3 + 4 + 3  # numbers, their flags, and words with `other`
ENDED = 300  # seconds in which a run has ended on the busiest machine


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files as the publisher has them, with fewer rows."""
    root = tmp_path_factory.mktemp("data")
    write_hospitals(root, (120, 110, 60, 90))
    return root / "uci" / "heart"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return install(EXAMPLE, "four_hospitals", tmp_path_factory.mktemp("site-packages"))


@pytest.mark.slow("two simulations on Ray")
def test_the_example_builds_and_runs_in_simulation_and_goes_on(data, installed, tmp_path):
    root = tmp_path / "hospitals"
    with simulated(tmp_path / "simulation", PYTHONPATH=str(installed)) as simulation:
        assert simulation.flwr("build", "--app", EXAMPLE).wait(ENDED) == 0
        (bundle,) = simulation.processes.root.glob("*.fab")
        assert {"four_hospitals/task.py", "LICENSE"} <= set(zipfile.ZipFile(bundle).namelist())

        assert simulation.run(EXAMPLE, 4, simulation=root, data=data).wait(ENDED) == 0
        study = Study(study_folder(root))
        assert sorted(study.state().uploads) == SITES
        assert len(study.state().results) == 1
        layers = 16 * (NUM_INPUTS + 1) + 2 * (16 + 1)  # the module of task.py came back
        assert study.result(1).student.num_parameters == layers
        assert study.verify() == []
        before = study_folder(root).joinpath("ledger.jsonl").read_bytes()
        again = simulation.run(EXAMPLE, 4, simulation=root, data=data)
        assert again.wait(ENDED) == 0
        assert "result 1: " in again.text
        assert study_folder(root).joinpath("ledger.jsonl").read_bytes() == before
