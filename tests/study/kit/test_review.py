from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
import torch

from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical, Gaussian
from predbayes_study.kit.review import Review, UnsoundPlanError, check, require_sound
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.sizes import upload_bytes
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


@pytest.fixture
def said(folder):
    def advice(severity, **sections):
        plan = Plan.model_validate(tables(**sections))
        found = check(plan, folder, today=TODAY)
        assert all("\n" not in one.text for one in found)
        return [one.text for one in found if one.severity == severity]

    return advice


def test_a_good_plan_needs_no_advice(folder):
    plan = Plan.model_validate(tables())
    assert check(plan, folder) == []


class TestProvenance:
    def test_what_is_empty_is_an_error_of_check_and_of_freeze(self, said, folder):
        reference = {"source": "", "legal_basis": " "}
        (text,) = said("error", reference=reference)
        assert "source, legal_basis" in text
        with pytest.raises(UnsoundPlanError) as refused:
            require_sound(Review(Plan.model_validate(tables(reference=reference)), folder))
        assert [one.text for one in refused.value.errors] == [text]

    def test_a_positive_skewed_target_wants_its_logarithm(self, said, edit):
        (text,) = said("warning", target=regression(transform="none"))
        assert "'stay' is positive and skewed" in text
        assert not said("warning", target=regression())
        edit(stay=lambda frame: 40 + frame["stay"])
        assert not said("warning", target=regression(transform="none"))


class TestReferenceFile:
    @pytest.mark.parametrize(
        ("file", "text"),
        [("", "file is empty"), ("x.csv", "cannot read"), ("x.xls", "is not read; save")],
    )
    def test_a_file_that_cannot_be_read_is_an_error(self, said, file, text):
        (found,) = said("error", reference={"file": file})
        assert text in found

    def test_every_problem_of_the_table_is_an_error(self, said, edit):
        edit(pulse=[999.0] * 3 + [60.5] * (NUM_ROWS - 3), outcome=["dead"] + ["ill"] * 599)
        found = said("error", columns={"ward": {"type": "number"}, "age": {"type": "number"}})
        starts = ("pulse: 3 values", "ward: 600 values", "age: ", "outcome: 1 value")
        for text, start in zip(found, starts, strict=True):
            assert text.startswith(f"rows.csv: {start}")
        edit(pulse=60.5, ward=["c"] + ["a", "b"] * 299 + ["a"], outcome=["ill", "well"] * 300)
        assert any("ward: 1 value" in text for text in said("warning"))  # it becomes other

    def test_a_constant_column_teaches_nothing(self, said, edit):
        edit(pulse=61.5, ward="a")
        assert [text.partition(":")[0] for text in said("warning")] == ["pulse", "ward"]

    def test_cells_without_a_value_are_like_any_other(self, said, edit):
        columns = {
            "age": {"type": "number", "unit": "a", "range": [0, 120]},
            "ward": {"type": "category", "categories": ["a", "b"], "missing": "flag"},
        }
        twice = np.tile(np.random.default_rng(0).uniform(40, 120, (300, 2)).round(2), (2, 1))
        edit(ward=["a", None, "b", "a"] * 150, age=twice[:, 0])
        assert not said("warning", columns=columns)
        edit(pulse=twice[:, 1])
        (text,) = said("warning", columns=columns)
        assert text.startswith("reference: 300 of 600 rows have")

    @pytest.mark.parametrize("times", [2, 3])
    def test_copies_of_a_whole_table_of_few_columns(self, said, edit, times):
        draw = np.random.default_rng(0)
        once = [draw.integers(400, 900, 600 // times) / 10, draw.integers(1, 3, 600 // times)]
        pulse, ward = (np.tile(column, times) for column in once)
        edit(pulse=pulse, ward=np.array(["", "a", "b"])[ward])
        (text,) = said("warning")
        assert "have the same columns as an earlier one, more than chance explains" in text

    @pytest.mark.parametrize("num_values", [20, 200])
    def test_rows_of_few_columns_are_the_same_by_chance(self, said, edit, num_values):
        for seed in range(4):
            draw = np.random.default_rng(seed)
            pulse = draw.integers(0, num_values, 600)
            edit(pulse=40 + pulse / 10, ward=np.array(["a", "b"])[pulse % 2])
            assert not said("warning")
        names = [f"item {k}" for k in range(20)]  # nor if columns say nearly the same
        draw = np.random.default_rng(0)
        ill = draw.random(NUM_ROWS) < 0.3
        items = {name: (ill ^ (draw.random(NUM_ROWS) < 0.03)).astype(int) for name in names}
        edit(**items, pulse=draw.permutation(600) % 90)
        column = {"type": "number", "unit": "1", "range": [0, 1]}
        assert not said("warning", columns=dict.fromkeys(names, column))

    def test_a_class_without_a_row_and_one_with_few(self, said, edit):
        edit(outcome=["ill"] * 590 + ["well"] * 10)
        found = said("warning", target={"classes": ["ill", "well", "dead"]})
        assert len(found) == 2
        assert "10 rows have the label 'well', of which about 3 will be labelled" in found[0]
        assert "no row has the label 'dead'" in found[1]

    def test_there_must_be_as_many_labels_as_planned(self, said, edit):
        edit(outcome=["ill", "well"] * 199 + [None] * 202)
        (text,) = said("error")
        assert "400 rows" in text
        assert "398" in text
        without = {"labelled": 0, "evaluate": 0, "unlabelled": 600}
        assert said("error", reference=without, target={"name": "unknown"}) == []

    def test_a_target_of_one_value_is_an_error(self, said, edit):
        edit(outcome="ill", stay=3.25)
        (text,) = said("error")
        assert text.startswith("target: every label is 'ill'")
        without = {"labelled": 0, "evaluate": 0, "unlabelled": 600}
        assert said("error", reference=without) == []
        (text,) = said("error", target=regression())
        assert "'stay' is the same in every reference row" in text


def counts(labelled, evaluate, unlabelled):
    return {"labelled": labelled, "evaluate": evaluate, "unlabelled": unlabelled}


WARD = {"type": "category", "categories": ["a", "b"], "optional": True}
WORDS = {"type": "category", "categories": ["a", "b", *(f"word {i}" for i in range(49))]}


@pytest.mark.parametrize(
    ("severity", "text", "wrong", "right"),
    [
        ("error", "add up to 601 rows", {"reference": counts(200, 200, 201)}, {}),
        ("error", "add up to 601 rows", {"reference": counts(401, 200, 0)}, {}),
        ("warning", "1 of the 600 rows", {"reference": counts(200, 200, 199)}, {}),
        ("warning", "for pulse", {"columns": {"pulse": {"type": "number", "range": [0, 200]}}}, {}),
        ("warning", "the model card", {"description": " "}, {}),
        ("error", "there are no reference rows", {"reference": counts(0, 0, 0)}, {}),
        (
            "warning",
            "rows to distil from are few for 53 network inputs",
            {"columns": {"ward": WORDS}},
            {},
        ),
        ("warning", "ward: 51 categories", {"columns": {"ward": WORDS}}, {}),
        (
            "warning",
            "with 29 labelled rows",
            {"reference": counts(29, 200, 371)},
            {"reference": counts(29, 200, 371), "pool": {"method": "mixture"}},
        ),
        (
            "warning",
            "19 reference rows",  # from which no gate is learnt
            {"reference": counts(0, 0, 19), "gate": {}},
            {"reference": counts(0, 0, 20), "gate": {}},
        ),
        (
            "error",
            "beta",
            {"reference": counts(0, 200, 400), "pool": {"method": "beta"}},
            {"pool": {"method": "beta"}},
        ),
        # Calibration is judged on evaluate rows if there are any, else on labelled ones
        (
            "warning",
            "calibration",
            {"reference": counts(300, 99, 201)},
            {"reference": counts(300, 100, 200)},
        ),
        ("warning", "ECE of about 0.18", {"reference": counts(200, 25, 375)}, {}),
        (
            "error",
            "centre and scale come from labelled rows",
            {"reference": counts(0, 200, 400), "target": regression()},
            {"reference": counts(0, 200, 400), "target": regression(centre=9.5, scale=8.0)},
        ),
        (
            "error",
            "the deadline 2030-06-14",
            {"rules": {"deadline": TODAY - datetime.timedelta(days=1)}},
            {"rules": {"deadline": TODAY}},
        ),
        ("warning", "one site's model", {"rules": {"quorum": 1}}, {}),
        (
            "error",
            "did you mean 'logistic-regression'?",
            {"pool": {"own": "logistic-regresion"}},
            {"pool": {"own": "logistic-regression"}},
        ),
        ("error", "own", {"pool": {"own": "logistic-regression"}, "target": regression()}, {}),
        (
            "error",
            "holdout_reason",
            {"learner": {"holdout": 0.0}},
            {"learner": {"holdout": 0.0, "holdout_reason": "few rows"}},
        ),
        (
            "warning",
            "optional and imputed",
            {"columns": {"ward": WARD | {"missing": "impute"}}},
            {"columns": {"ward": WARD | {"missing": "flag"}}},
        ),
    ],
)
def test_advice_is_given_where_it_is_due(said, severity, text, wrong, right):
    assert any(text in found for found in said(severity, **wrong))
    assert not any(text in found for found in said(severity, **right))


@pytest.mark.parametrize("sealed", [False, True])
def test_gates_are_advised_where_a_plan_may_have_them(said, sealed):
    key = CoordinatorKey.generate().public
    holders = [f"{key.signing.hex}{key.encryption}"]
    sealing = {
        "sealed": {"minimum": 3, "holders": holders},
        "rules": {"max_weight": None, "quorum": 3},
    }
    advice = said("warning", reference=counts(0, 0, 300), **(sealing if sealed else {}))
    assert any("[gate]" in text for text in advice) is not sealed


class TestSizes:
    @pytest.mark.parametrize(
        ("labelled", "unlabelled", "few"), [(100, 99, True), (100, 100, False)]
    )
    def test_too_few_inputs_to_distil_from(self, said, labelled, unlabelled, few):
        reference = {"labelled": labelled, "unlabelled": unlabelled, "evaluate": 300}
        found = [t for t in said("warning", reference=reference) if "to distil from" in t]
        assert len(found) == few

    def test_predictions_are_as_large_as_their_upload(self):
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

    @pytest.mark.parametrize(
        ("num_rows", "max_bytes", "severity", "text"),
        [
            (6_000_000, 2_000_000_000, None, ""),
            (18_750_000, 2_000_000_000, "warning", "are 150 MB for each site, too much to mail"),
            (18_750_000, 100_000_000, "error", "are 150 MB for each site, above max_bytes"),
            (250_000_000, 9_000_000_000, "warning", "over Flower the coordinator needs"),
        ],
    )
    def test_messages_that_are_too_large(self, said, num_rows, max_bytes, severity, text):
        sections = {
            "reference": {"labelled": 300, "unlabelled": num_rows - 300},
            "upload": {"max_bytes": max_bytes},
        }
        found = [t for s in ("error", "warning") for t in said(s, **sections) if "upload:" in t]
        assert len(found) == (severity is not None)
        assert all(text in one for one in found)
        assert found == [t for t in said(severity or "error", **sections) if "upload:" in t]
