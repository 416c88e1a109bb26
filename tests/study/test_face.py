"""The face of `predbayes.study`: five names, imported on first use, that take paths as text."""

from __future__ import annotations

import html
import re
import subprocess
import sys

import pandas as pd
import pytest

import predbayes.study
from predbayes.study import CalibratedModel, Kit, Plan, Study
from tests.study.world import make_world


def test_every_name_of_the_stub_is_there():
    assert sorted(predbayes.study.__all__) == [
        "CalibratedModel", "Kit", "Plan", "Study", "Training",
    ]  # fmt: skip
    for name in predbayes.study.__all__:
        assert getattr(predbayes.study, name).__name__ == name


def test_nothing_is_imported_before_it_is_used():
    code = "import sys, predbayes.study; sys.exit(bool({'torch', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    world = make_world(tmp_path_factory.mktemp("world"))
    study = world.begin()
    for site in ("Alpha", "Beta"):
        study.add(str(world.file(site)))
    study.finish()
    return world


def test_paths_may_be_text(finished, tmp_path):
    root = str(finished.root)
    assert Kit.load(f"{root}/kit").plan == Plan.load(f"{root}/kit/plan.toml")
    assert Study(f"{root}/study").verify() == []
    begun = Study.init(f"{tmp_path}/study", f"{root}/kit", f"{root}/kit-labels.json")
    assert begun == Study(tmp_path / "study")
    assert next(begun.add_all([f"{root}/Alpha.safetensors"])).reason.startswith("no admitted")
    model = CalibratedModel.load(f"{root}/study/results/1/model")
    model.save(f"{tmp_path}/copy")
    assert (tmp_path / "copy" / "model.json").exists()


def test_the_card_of_a_model_says_how_to_use_it(finished, monkeypatch):
    """As it stands there, with the model's folder under the name that the card gives it."""
    folder = finished.root / "study" / "results" / "1"
    code = re.findall(r"<pre>(.*?)</pre>", (folder / "model-card.html").read_text(), re.S)[-1]
    monkeypatch.chdir(folder)
    (folder / "model").rename("MODEL")
    table = pd.DataFrame({"x": [1.0, 2.0], "y": [0.5, None]})
    found = {"table": table}
    exec(html.unescape(code), found)
    assert len(found["predictions"]) == 2
