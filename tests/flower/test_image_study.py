"""The study of images over Flower: real SuperNodes over TLS, and a network of one's own."""

from __future__ import annotations

import pandas as pd
import pytest

from predbayes.flower.simulation import study_folder
from predbayes.study.coordinator.study import Study
from tests.flower.deployment import BIN, ROOT, deployed
from tests.flower.installed import install

EXAMPLE = ROOT / "examples" / "images"
SITES = ["Basel", "Genoa", "Leiden", "Porto", "Uppsala"]
ENDED = 900  # seconds in which a run has ended on the busiest machine
PREDICT = "import sys; from predbayes.cli.app import main; sys.argv[0] = 'predbayes'; main()"


def test_what_a_user_writes_is_short():
    """The network, and nothing else: the app is the study's, which brings no code."""
    lines = (EXAMPLE / "clothes" / "network.py").read_text().splitlines()
    assert len(lines) < 60
    assert "predbayes.flower.study_client:app" in (EXAMPLE / "pyproject.toml").read_text()


@pytest.mark.slow("a deployment that trains on images")
@pytest.mark.data
def test_the_example_runs_deployed_and_predicts_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(install(EXAMPLE, "clothes", tmp_path / "packages")))
    root = tmp_path / "clothes"
    with deployed(tmp_path / "deployment") as deployment:
        begin = f"from clothes.make import *; begin(Path({str(root)!r}), 150)"
        deployment.run_simulated(EXAMPLE, begin, root, len(SITES), ENDED)
        study = Study(study_folder(root))
        assert sorted(study.state().uploads) == SITES
        assert study.verify() == []
        later = root.with_name("clothes-images") / "later"
        result, out = study.folder / "results" / "1", tmp_path / "predicted.csv"
        asked = ["predict", result, later / "images", "--out", out, "--keep", "photo"]
        command = [BIN / "python", "-c", PREDICT, *asked, "--allow-network", "clothes"]
        assert deployment.start("predict", *command).wait(ENDED) == 0
    predicted = pd.read_csv(out).set_index("photo")["predicted"]
    truth = pd.read_csv(later / "rows.csv").set_index("photo")["label"]
    truth.index = truth.index.str.removeprefix("images/")
    assert (predicted == truth.loc[predicted.index]).mean() > 0.5  # of ten classes
