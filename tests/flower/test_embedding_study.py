"""The study of embeddings over Flower, in simulation: twenty sites, 512 numbers for each row."""

from __future__ import annotations

import pytest

from predbayes.flower.simulation import study_folder
from predbayes.study.coordinator.study import Study
from tests.flower.deployment import BIN, ROOT
from tests.flower.simulated import simulated

EXAMPLE = ROOT / "examples" / "embeddings"
ENDED = 1200  # seconds in which a run has ended on the busiest machine


def test_what_a_user_writes_is_a_plan():
    """The app is the study's, which brings no code."""
    text = (EXAMPLE / "pyproject.toml").read_text()
    assert "predbayes.flower.study_server:app" in text
    assert len((EXAMPLE / "embedded" / "plan.toml").read_text().splitlines()) < 60


@pytest.mark.slow("a simulation that embeds images")
@pytest.mark.data
def test_the_example_runs_in_simulation(tmp_path, monkeypatch):
    root = tmp_path / "embedded"
    with simulated(tmp_path / "simulation", PYTHONPATH=str(EXAMPLE)) as simulation:
        begin = f"from embedded.make import *; begin(Path({str(root)!r}), 60, 50)"
        start = simulation.processes.start
        assert start("begin", BIN / "python", "-c", begin).wait(ENDED) == 0
        assert simulation.run(EXAMPLE, 20, simulation=root).wait(ENDED) == 0
    study = Study(study_folder(root))
    assert len(study.state().uploads) == 20
    assert study.verify() == []
