"""A study of the time to an event, by commands alone: from a table to an adopted model."""

from __future__ import annotations

import json
import random
import secrets

import numpy as np
import pandas as pd
import pytest

from predbayes_study import Plan
from predbayes_study.result.model import CalibratedModel
from tests.study.cli.consortium import Consortium

SITES = ("north", "south", "west")
WEST = 'died = { column = "dead", recode = { alive = "0", dead = "1" } }\n'


def patients(num_rows, seed, older=0.0):
    """Exponential times, twice as short for every ten years of age and for men."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60 + older, 10, num_rows).round(1)
    sex = rng.choice(["female", "male"], num_rows)
    marker = rng.normal(size=num_rows).round(3)
    hazard = 2 ** ((age - 60) / 10 + (sex == "male") + 0.5 * marker)
    time, seen = rng.exponential(1000 / hazard), rng.uniform(200, 3000, num_rows)
    died = np.where(time <= seen, "1", "0")
    days = np.minimum(time, seen).round()
    return pd.DataFrame({"age": age, "sex": sex, "marker": marker, "days": days, "died": died})


@pytest.mark.ci("a whole study, by commands")
def test_study_from_a_table_to_an_adopted_model(tmp_path, monkeypatch):
    # Which rows are scored is drawn with a secret salt; figures below are of one draw.
    monkeypatch.setattr(secrets, "token_bytes", random.Random(0).randbytes)
    run = Consortium(tmp_path)
    coordinator = run.home
    coordinator.mkdir()
    patients(420, 0).to_csv(coordinator / "reference.csv", index=False)
    columns = ("--target", "days", "--event", "died")
    run("coordinator", "plan", "new", "reference.csv", *columns)
    text = (coordinator / "plan.toml").read_text()
    for key in ("source", "licence", "legal_basis", "description"):
        text = text.replace(f'{key} = ""', f'{key} = "made for a test"', 1)
    # Quick ones: others are tried elsewhere.
    text = text.replace("[100, 100]", "[20]").replace('"auto" ', '"logistic-regression" ', 1)
    text = text.replace('own = "auto"', 'own = "logistic-regression"')
    text = text.replace('unit = "" ', 'unit = "days" ', 1)
    plan = Plan.loads(text)
    assert plan.target.times
    assert plan.target.event == "died"
    assert len(plan.target.times) >= 5
    run.begin(text)
    for number, site in enumerate(SITES):
        table = patients(160, 1 + number, older=4.0 * (number - 1))
        if site == "west":  # which has words of its own
            table = table.rename(columns={"died": "dead"})
            table["dead"] = table["dead"].map({"0": "alive", "1": "dead"})
        run.join(site, table, WEST if site == "west" else "")
        assert "fits the plan" in run(site, "site", "check", coordinator / "kit", "patients.csv")
    run("coordinator", "study", "finish")
    run("coordinator", "study", "verify")

    folder = coordinator / "study" / "results" / "1"
    result = json.loads((folder / "result.json").read_text())
    metrics = result["student"]["scores"]["metrics"]
    assert metrics["c_index"]["value"] > 0.65
    assert metrics["integrated_brier"]["value"] < 0.2
    assert len(result["curves"]["groups"]) == 3
    assert result["curves"]["brier"][-1]["value"] < result["curves"]["brier_of_all"][-1]
    page = (folder / "report.html").read_text()
    assert "C-index" in page
    assert "Kaplan" in page
    assert "without the event" in (folder / "model-card.html").read_text()

    run("coordinator", "predict", "study/results/1", "reference.csv", "--out", "predicted.csv")
    told = pd.read_csv(coordinator / "predicted.csv")
    curve = told[[f"survival_{time:g}" for time in plan.target.times]].to_numpy()
    assert (np.diff(curve, axis=1) <= 0).all()
    known = told["median"].notna().to_numpy()
    assert (known == (curve[:, -1] <= 0.5)).all()

    for site in SITES:
        own = (folder, "patients.csv", "--home", "out", "--out")
        assert "C-index" in run(site, "site", "adopt", *own, "adopted")
        assert CalibratedModel.load(tmp_path / site / "adopted").adjustment.kind == "hazard-shift"
        said = run(site, "site", "evaluate", *own, "sent.safetensors")
        assert "evaluation.metrics.c_index" in said
        run("coordinator", "study", "add", tmp_path / site / "sent.safetensors")
    run("coordinator", "study", "finish")
    again = json.loads((coordinator / "study" / "results" / "2" / "result.json").read_text())
    assert again["at_sites"]["pooled"]["num_rows"] == 96
    assert again["at_sites"]["pooled"]["metrics"]["c_index"]["value"] > 0.6
