from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
import torch

from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical, Gaussian
from predbayes_study.kit.review import Review, check
from predbayes_study.payload import upload_bytes
from predbayes_study.plan.schema import Plan
from predbayes_study.trust.coordinator import CoordinatorKey

NUM_ROWS = 600
TODAY = datetime.date(2030, 6, 15)


def tables(**sections):
    """A plan without any fault, changed section by section."""
    whole = {
        "format": 1,
        "name": "ward",
        "description": "who is seen first",
        "target": {"name": "outcome", "task": "classification", "classes": ["ill", "well"]},
        "columns": {
            "pulse": {"type": "number", "unit": "1/min", "range": [0, 200]},
            "ward": {"type": "category", "categories": ["a", "b"]},
        },
        "reference": {
            "file": "rows.csv",
            "source": "us",
            "licence": "CC0",
            "legal_basis": "consent",
            "labelled": 200,
            "evaluate": 200,
            "unlabelled": 200,
        },
    }
    return {
        name: _changed(whole.get(name, {}), sections[name]) if name in sections else whole[name]
        for name in {**whole, **sections}
    }


def _changed(before, after):
    return before | after if isinstance(after, dict) else after


def regression(**target):
    given = {"unit": "days", "transform": "log"}
    return {"name": "stay", "task": "regression", "classes": None, **given, **target}


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "pulse": draw.uniform(40, 120, NUM_ROWS).round(1),
            "ward": draw.choice(["a", "b"], NUM_ROWS),
            "outcome": draw.choice(["ill", "well"], NUM_ROWS),
            "stay": draw.exponential(10, NUM_ROWS),
        }
    )
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path


@pytest.fixture
def edit(folder):
    """Change some columns of the reference rows."""

    def edited(**columns):
        frame = pd.read_csv(folder / "rows.csv").assign(**columns)
        frame.to_csv(folder / "rows.csv", index=False)

    return edited


def review(folder, **sections):
    return Review(Plan.model_validate(tables(**sections)), folder, today=TODAY)


@pytest.fixture
def found(folder):
    """The keys of the rules that find something of a severity."""

    def keys(severity, **sections):
        all_found = check(review(folder, **sections))
        assert all("\n" not in one.text for one in all_found)
        return [one.key for one in all_found if one.severity == severity]

    return keys


def counts(labelled, evaluate, unlabelled):
    return {"labelled": labelled, "evaluate": evaluate, "unlabelled": unlabelled}


def numbers(**target):
    return regression(**{"centre": 9.5, "scale": 8.0, **target})


WARD = {"type": "category", "categories": ["a", "b"], "optional": True}
WORDS = {"type": "category", "categories": ["a", "b", *(f"word {i}" for i in range(49))]}
BARE = counts(0, 0, 300)
KEY = CoordinatorKey.generate().public
SEALED = {
    "sealed": {"holders": [f"{KEY.signing.hex}{KEY.encryption}"]},
    "rules": {"quorum": 3},
}

FINDS = [  # severity, key, a plan of which it is found, and one of which it is not
    ("error", "reference", {"reference": {"source": "", "legal_basis": " "}}, {}),
    ("error", "reference", {"reference": counts(200, 200, 201)}, {}),
    ("error", "reference", {"reference": counts(401, 200, 0)}, {}),
    ("warning", "reference", {"reference": counts(200, 200, 199)}, {}),
    ("error", "reference", {"reference": counts(0, 0, 0)}, {}),
    ("error", "reference.file", {"reference": {"file": ""}}, {}),
    ("error", "reference.file", {"reference": {"file": "x.csv"}}, {}),
    ("error", "reference.file", {"reference": {"file": "x.xls"}}, {}),
    (
        "warning",
        "reference.unlabelled",
        {"reference": counts(100, 300, 99)},
        {"reference": counts(100, 300, 100)},
    ),
    ("warning", "reference.unlabelled", {"columns": {"ward": WORDS}}, {}),
    ("warning", "columns", {"columns": {"ward": WORDS}}, {}),
    (
        "warning",
        "columns",
        {"columns": {"ward": WARD | {"missing": "impute"}}},
        {"columns": {"ward": WARD | {"missing": "flag"}}},
    ),
    ("warning", "unit", {"columns": {"pulse": {"type": "number", "range": [0, 200]}}}, {}),
    ("warning", "description", {"description": " "}, {}),
    (
        "warning",
        "pool.method",
        {"reference": counts(29, 200, 371)},
        {"reference": counts(29, 200, 371), "pool": {"method": "mixture"}},
    ),
    (
        "error",
        "pool.method",
        {"reference": counts(0, 200, 400), "pool": {"method": "beta"}},
        {"pool": {"method": "beta"}},
    ),
    ("warning", "gate", {"gate": {}, "pool": {"method": "mixture"}}, {"gate": {}}),
    (
        "warning",
        "gate",  # of so few rows none is learnt
        {"reference": counts(0, 0, 19), "gate": {}},
        {"reference": counts(0, 0, 20), "gate": {}},
    ),
    # It is advised where a plan may have one.
    ("warning", "gate", {"reference": BARE}, {"reference": BARE} | SEALED),
    # Calibration is judged on evaluate rows if there are any, else on labelled ones.
    (
        "warning",
        "rules.min_labels_to_judge",
        {"reference": counts(300, 99, 201)},
        {"reference": counts(300, 100, 200)},
    ),
    (
        "error",
        "target",
        {"reference": counts(0, 200, 400), "target": regression()},
        {"reference": counts(0, 200, 400), "target": numbers()},
    ),
    ("warning", "target", {"target": regression(transform="none")}, {"target": regression()}),
    (
        "error",
        "rules.deadline",
        {"rules": {"deadline": TODAY - datetime.timedelta(days=1)}},
        {"rules": {"deadline": TODAY}},
    ),
    ("warning", "rules.quorum", {"rules": {"quorum": 1}}, {}),
    (
        "error",
        "pool.own",
        {"pool": {"own": "logistic-regresion"}},
        {"pool": {"own": "logistic-regression"}},
    ),
    ("error", "pool.own", {"pool": {"own": "logistic-regression"}, "target": regression()}, {}),
    (
        "error",
        "learner.holdout",
        {"learner": {"holdout": 0.0}},
        {"learner": {"holdout": 0.0, "holdout_reason": "few rows"}},
    ),
    ("warning", "learner.holdout", {"learner": {"holdout": 0.0, "holdout_reason": "few"}}, {}),
    (
        "error",
        "upload.max_bytes",
        {"reference": counts(300, 0, 18_749_700), "upload": {"max_bytes": 100_000_000}},
        {"reference": counts(300, 0, 18_749_700)},
    ),
    (
        "warning",
        "upload",
        {"reference": counts(300, 0, 18_749_700)},
        {"reference": counts(300, 0, 5_999_700)},
    ),
    (
        "warning",
        "upload",
        {"reference": counts(300, 0, 250_000_000), "upload": {"max_bytes": 9_000_000_000}},
        {"reference": counts(300, 0, 250_000_000)},
    ),
]


def test_a_good_plan_needs_no_advice(folder):
    assert check(review(folder)) == []


@pytest.mark.parametrize(("severity", "key", "wrong", "right"), FINDS)
def test_a_rule_finds_what_it_is_for(found, severity, key, wrong, right):
    assert key in found(severity, **wrong)
    assert key not in found(severity, **right)


class TestTable:
    def test_every_problem_is_told(self, folder, edit):
        edit(pulse=[999.0] * 3 + [60.5] * (NUM_ROWS - 3), outcome=["dead"] + ["ill"] * 599)
        columns = {"ward": {"type": "number"}, "age": {"type": "number"}}
        told = [one.text for one in check(review(folder, columns=columns)) if one.key == "table"]
        starts = ("pulse: 3 values", "ward: 600 values", "age: ", "outcome: 1 value")
        for text, start in zip(told, starts, strict=True):
            assert f"rows.csv: {start}" in text

    @pytest.mark.parametrize(
        ("columns", "severity", "keys"),
        [
            ({"pulse": 61.5, "ward": "a"}, "warning", ["columns", "columns"]),
            ({"ward": ["c"] + ["a", "b"] * 299 + ["a"]}, "warning", ["table"]),  # becomes other
            ({"outcome": ["ill", "well"] * 199 + [None] * 202}, "error", ["reference.labelled"]),
            ({"outcome": "ill"}, "error", ["target"]),
            ({"outcome": ["ill"] * 590 + ["well"] * 10}, "warning", ["target"]),
        ],
    )
    def test_a_rule_finds_what_it_is_for(self, found, edit, columns, severity, keys):
        edit(**columns)
        assert found(severity) == keys

    def test_without_labels_none_is_looked_for(self, found, edit):
        edit(outcome="ill")
        assert found("error", reference=counts(0, 0, 600)) == []
        assert found("error", reference=counts(0, 0, 600), target={"name": "unknown"}) == []

    def test_a_number_that_is_the_same_everywhere(self, found, edit):
        edit(stay=3.25)
        assert found("error", target=regression()) == ["target"]

    def test_cells_without_a_value_are_like_any_other(self, found, edit):
        columns = {
            "age": {"type": "number", "unit": "a", "range": [0, 120]},
            "ward": {"type": "category", "categories": ["a", "b"], "missing": "flag"},
        }
        twice = np.tile(np.random.default_rng(0).uniform(40, 120, (300, 2)).round(2), (2, 1))
        edit(ward=["a", None, "b", "a"] * 150, age=twice[:, 0])
        assert not found("warning", columns=columns)
        edit(pulse=twice[:, 1])
        assert found("warning", columns=columns) == ["reference"]

    @pytest.mark.parametrize("times", [2, 3])
    def test_copies_of_a_whole_table_of_few_columns(self, found, edit, times):
        draw = np.random.default_rng(0)
        once = [draw.integers(400, 900, 600 // times) / 10, draw.integers(1, 3, 600 // times)]
        pulse, ward = (np.tile(column, times) for column in once)
        edit(pulse=pulse, ward=np.array(["", "a", "b"])[ward])
        assert found("warning") == ["reference"]

    @pytest.mark.parametrize("num_values", [20, 200])
    def test_rows_of_few_columns_are_the_same_by_chance(self, found, edit, num_values):
        for seed in range(4):
            draw = np.random.default_rng(seed)
            pulse = draw.integers(0, num_values, 600)
            edit(pulse=40 + pulse / 10, ward=np.array(["a", "b"])[pulse % 2])
            assert not found("warning")
        names = [f"item {k}" for k in range(20)]  # nor if columns say nearly the same
        draw = np.random.default_rng(0)
        ill = draw.random(NUM_ROWS) < 0.3
        items = {name: (ill ^ (draw.random(NUM_ROWS) < 0.03)).astype(int) for name in names}
        edit(**items, pulse=draw.permutation(600) % 90)
        column = {"type": "number", "unit": "1", "range": [0, 1]}
        assert not found("warning", columns=dict.fromkeys(names, column))


def test_predictions_are_as_large_as_their_upload():
    probs = Categorical(torch.full((NUM_ROWS, 2), 0.5).log())
    for dtype in (torch.float32, torch.float16):
        precision = str(dtype).removeprefix("torch.")
        plan = Plan.model_validate(tables(upload={"precision": precision}))
        upload = Upload.of_predictions(probs, num_rows=9, dtype=dtype)
        assert upload_bytes(plan) == sum(array.nbytes for array in upload.arrays.values())
    plan = Plan.model_validate(tables(target=regression()))
    zeros, ones = torch.zeros(NUM_ROWS), torch.ones(NUM_ROWS)
    upload = Upload.of_predictions(Gaussian(zeros, ones, ones), num_rows=9)
    assert upload_bytes(plan) == sum(array.nbytes for array in upload.arrays.values())
