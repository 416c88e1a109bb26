"""The face of `predbayes_study`: six names, imported on first use, that take paths as text."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pandas as pd
import pytest

import predbayes_study
from predbayes_study import CalibratedModel, Kit, Plan, Study
from predbayes_study.coordinator.status import status_of
from tests.study.world import make_world

pytestmark = pytest.mark.usefixtures("quick_results")


def test_every_name_of_the_stub_is_there():
    assert sorted(predbayes_study.__all__) == [
        "CalibratedModel", "Kit", "Plan", "Site", "Study", "Training",
    ]  # fmt: skip
    for name in predbayes_study.__all__:
        assert getattr(predbayes_study, name).__name__ == name


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


def test_a_notebook_shows_a_study_and_its_result(finished):
    study = Study(finished.root / "study")
    shown = study._repr_html_()
    assert "small: 2 sites in, quorum 2" in shown
    assert "next: results/1/report.html" in shown
    assert len(re.findall("<tr>", shown)) == 1 + len(study.state().keys)
    found = study.result(1)
    told, nll = found._repr_html_(), found.student.scores.metrics["nll"]
    assert f"<td style='text-align:left'>{nll.value:.3f} ({nll.low:.3f} to " in told
    assert html.escape(found.verdict) in told
    assert re.findall(r"scope='row'[^>]*>([^<]+)", told) == ["model", "pool", "mixture"]


def test_nothing_in_a_study_breaks_out_of_what_a_notebook_shows(finished):
    study = Study(finished.root / "study")
    status = status_of(study)
    evil = "<img src=x onerror=alert(1)>"
    site = replace(status.sites[0], site=evil)
    made = replace(status.results[0], verdict=evil)
    shown = replace(status, study=evil, sites=(site,), results=(made,), next=evil)._repr_html_()
    shown += study.result(1).model_copy(update={"study": evil, "cautions": (evil,)})._repr_html_()
    assert "<img" not in shown
    assert shown.count("&lt;img") == 6


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
