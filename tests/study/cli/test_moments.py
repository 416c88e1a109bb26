"""A study of sums, by commands alone: no reference row, no label, and one model of all rows."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from tests.study.cli.consortium import Consortium

ROWS = 900
PLAN = """
format = 1
name = "sums"
description = "for a test"
[target]
%(target)s
[columns]
age = { type = "number", unit = "years", centre = 60, scale = 10 }
marker = { type = "number", unit = "1", centre = 0, scale = 1 }
sex = { type = "category", categories = ["female", "male"], other = false }
[reference]
[learner]
name = "%(learner)s"
[moments]
features = 12
scales = [1, 2]
"""
CLASSES = 'name = "ill"\ntask = "classification"\nclasses = ["no", "yes"]'
NUMBER = 'name = "days"\ntask = "regression"\nunit = "days"\ncentre = 20\nscale = 8'


def patients(num_rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    age, marker = rng.normal(60, 10, num_rows).round(1), rng.normal(size=num_rows).round(3)
    sex = rng.choice(["female", "male"], num_rows)
    risk = (age - 60) / 10 + np.sin(2 * marker) + 0.5 * (sex == "male")
    ill = np.where(rng.logistic(size=num_rows) < 2 * risk, "yes", "no")
    days = (20 + 5 * risk + rng.normal(0, 3, num_rows)).round(2)
    return pd.DataFrame({"age": age, "marker": marker, "sex": sex, "ill": ill, "days": days})


def plan_text(*, regression=False):
    learner = "linear-regression" if regression else "logistic-regression"
    return PLAN % {"target": NUMBER if regression else CLASSES, "learner": learner}


@pytest.fixture
def runs(tmp_path):
    return Consortium(tmp_path)


@pytest.mark.parametrize(
    "regression", [False, pytest.param(True, marks=pytest.mark.slow("the journey once more"))]
)
def test_study_from_plan_to_an_adopted_model(runs, tmp_path, regression):
    sites = {name: patients(seed=number) for number, name in enumerate(("north", "south"))}
    runs.begin(plan_text(regression=regression))
    for site, table in sites.items():
        runs.join(site, table)
    runs("coordinator", "study", "finish")
    runs("coordinator", "study", "verify", "--rebuild")
    result = tmp_path / "coordinator" / "study" / "results" / "1"
    runs("south", "predict", result, "patients.csv", "--out", "predicted.csv")
    predicted = pd.read_csv(tmp_path / "south" / "predicted.csv")
    if regression:
        error = predicted["mean"] - sites["south"]["days"]
        assert float(error.std()) < 0.75 * float(sites["south"]["days"].std())
    else:
        assert float((predicted["predicted"] == sites["south"]["ill"]).mean()) > 0.75
    own = ("patients.csv", "--home", "out", "--out")
    runs("south", "site", "evaluate", result, *own, "sent.safetensors")
    runs("coordinator", "study", "add", tmp_path / "south" / "sent.safetensors")
    runs("south", "site", "adopt", result, *own, "adopted")
    runs("south", "predict", "adopted", "patients.csv", "--out", "own.csv")
    runs("coordinator", "study", "finish")
    told = json.loads((result.parent / "2" / "result.json").read_text())
    assert told["pool"]["method"] == "moments"
    assert told["at_sites"]["pooled"]["num_rows"] == 180


def test_a_site_with_too_few_rows_is_told_by_check_and_by_train(runs, tmp_path):
    runs.begin(plan_text())
    runs.join("north", patients())
    at = tmp_path / "north"
    patients(300).to_csv(at / "few.csv", index=False)
    kit = tmp_path / "coordinator" / "kit"
    told = runs("north", "site", "check", kit, "few.csv", code=2)
    assert "does not fit yet: 1 error" in told
    told = runs("north", "site", "train", kit, "few.csv", "--out", "other", code=2)
    assert "fewer than 340, which are moments.rows_per_feature = 20 for each of 17" in told
    assert told.count("\n") == 1
    assert "sums over your rows of products of 17 features" in runs(
        "north", "site", "check", kit, "patients.csv"
    )
