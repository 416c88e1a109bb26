from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest
import torch

from predbayes.errors import DataError, PlanError
from predbayes_study.plan.schema import Category, Number, Plan
from predbayes_study.tables.coding import (
    Encoder,
    Examined,
    code_table,
    code_targets,
    encode,
    examine,
    target_problems,
)
from predbayes_study.tables.column import code_column
from predbayes_study.tables.problem import Kind, Problem
from predbayes_study.tables.reading import read_frame
from predbayes_study.tasks.numbers import untransform

PLAN = """
format = 1
name = "tables"

[target]
name = "outcome"
task = "classification"
classes = ["no", "1"]

[columns]
age = { type = "number", unit = "years", range = [18, 100], centre = 60.0, scale = 10.0 }
weight = { type = "number", missing = "impute", centre = 70.0, scale = 20.0 }
pressure = { type = "number", missing = "flag", optional = true, centre = 120.0, scale = 20.0 }
ward = { type = "category", categories = ["1", "2", "intensive care"], missing = "flag" }
sex = { type = "category", categories = ["f", "m"], other = false }

[reference]
"""
FULL = "age,weight,pressure,ward,sex,outcome\n60,70,120,1,f,no\n70,,,,m,1\n50,90,100,burns,m,\n"


def regression(**target):
    tables = Plan.loads(PLAN).model_dump()
    return Plan.model_validate(
        tables | {"target": {"name": "outcome", "task": "regression", **target}}
    )


@pytest.fixture
def frame(write):
    return read_frame(write(FULL))


def rows(num, **columns):
    given = {"age": 50, "weight": 70, "pressure": 120, "ward": "1", "sex": "f", **columns}
    return pd.DataFrame({k: v if isinstance(v, list) else [v] * num for k, v in given.items()})


class TestCodes:
    def test_are_numbers_and_indices_and_nan_where_missing(self, plan, frame):
        nan = torch.nan
        expected = [[60, 70, 120, 0, 0], [70, nan, nan, nan, 1], [50, 90, 100, 3, 1]]
        torch.testing.assert_close(
            code_table(plan, frame), torch.tensor(expected).double(), equal_nan=True
        )

    def test_do_not_depend_on_the_order_or_number_of_columns(self, plan, frame):
        names = list(frame.columns)
        random.Random(0).shuffle(names)
        shuffled, plain = (
            code_table(plan, table).nan_to_num(-9)
            for table in (frame[names].assign(extra="x"), frame)
        )
        assert torch.equal(shuffled, plain)

    @pytest.mark.parametrize(
        "ward",
        [1, 1.0, "1", " 1 ", "1.0", np.float32(1), np.int8(1)],
        ids=lambda ward: f"{type(ward).__name__} {ward}",
    )
    def test_an_integer_is_its_category_however_it_is_written(self, plan, ward):
        assert float(code_table(plan, rows(2, ward=[ward, ward]))[0, 3]) == 0
        words = ["Intensive care", "intensive care", "intensive  care"]  # match exactly
        assert code_table(plan, rows(3, ward=words))[:, 3].tolist() == [3, 2, 3]

    @pytest.mark.parametrize("dtype", ["Int64", "Float64", "float64", "string", "object"])
    def test_missing_is_missing_in_every_type_of_column(self, plan, dtype):
        text = dtype in ("string", "object")
        cells = pd.array(["1", None] if text else [1, None], dtype=dtype)
        codes = code_table(plan, rows(2).assign(weight=cells, ward=cells))
        assert codes[:, [1, 3]].nan_to_num(-1).tolist() == [[1, 0], [-1, -1]]

    @pytest.mark.parametrize(
        "cell", ["1,5", "1.000,5", "inf", "nan", "NA", "1_000", "1e999", "0x10", "١", "?", "1 2"]
    )
    def test_only_plain_numbers_are_numbers(self, plan, cell):
        (problem,) = examine(plan, rows(2, weight=["70", cell])).problems
        kind = Kind.COMMA if "," in cell else Kind.UNREADABLE
        assert problem == Problem(kind, "weight", (3,))

    @pytest.mark.parametrize(
        ("cell", "number"), [("1", 1), ("-1.5", -1.5), ("+.5", 0.5), ("2.", 2), ("1e-3", 1e-3)]
    )
    def test_numbers_are_read_to_the_last_bit(self, plan, cell, number):
        frame = rows(2, weight=[cell, "0.1234567890123456789"])
        assert code_table(plan, frame)[:, 1].tolist() == [number, 0.1234567890123456789]

    def test_clipping_takes_the_end_of_the_range_and_notes_it(self, plan):
        frame = rows(4, age=[17.9, 18, 100, 1e300])
        examined = examine(plan, frame, outside="clip")
        assert examined.codes[:, 0].tolist() == [18, 18, 100, 100]
        assert not examined.problems
        assert examined.oddities == (Problem(Kind.OUTSIDE, "age", (2, 5), "18 to 100"),)


class TestProblems:
    def test_a_missing_column_is_one_problem_unless_optional(self, plan, frame):
        without = frame.drop(columns=["age", "pressure"])
        assert examine(plan, without).problems == (Problem(Kind.ABSENT, "age"),)
        assert bool(code_table(plan, without.assign(age=50))[:, 2].isnan().all())

    def test_an_optional_column_may_be_there_without_a_single_value(self, plan):
        optional = {
            **plan.columns,
            "age": plan.columns["age"].model_copy(update={"optional": True}),
        }
        plan = plan.model_copy(update={"columns": optional})
        assert not examine(plan, rows(3, age=["", "", ""])).problems
        assert examine(plan, rows(3, age=["", "50", ""])).problems[0].lines == (2, 4)

    def test_a_column_that_is_there_twice(self, plan, frame):
        twice = pd.concat([frame, frame[["age", "outcome"]]], axis=1)
        assert "age: several columns" in str(examine(plan, twice).problems[0])
        assert "outcome: several columns" in str(target_problems(plan, twice)[0])


class TestTargets:
    def test_classes_are_their_index_and_an_empty_label_is_nan(self, plan, frame):
        assert code_targets(plan, frame).nan_to_num(-1).tolist() == [0, 1, -1]
        typed = pd.DataFrame({"outcome": [1.0, np.nan]})
        assert code_targets(plan, typed).nan_to_num(-1).tolist() == [1, -1]

    @pytest.mark.parametrize("transform", ["none", "log"])
    @pytest.mark.parametrize("units", [{}, {"centre": 2.0, "scale": 3.0}])
    def test_untransform_is_the_inverse_and_monotone(self, transform, units):
        plan = regression(transform=transform, **units)
        values = [0.25, 1.0, 7.0, 1e3]
        coded = code_targets(plan, pd.DataFrame({"outcome": values}))
        torch.testing.assert_close(untransform(plan, coded), torch.tensor(values).double())
        assert bool((coded.diff() > 0).all())

    def test_a_logarithm_needs_positive_numbers(self):
        frame = pd.DataFrame({"outcome": ["1", "0", "-2", ""]})
        with pytest.raises(DataError, match=r"2 values not positive, .* \(lines 3, 4\)"):
            code_targets(regression(transform="log"), frame)
        assert not target_problems(regression(), frame)


class TestEncoder:
    def test_by_hand(self, plan, frame):
        expected = [
            [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
            [1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1],
            [-1, 1, -1, 0, 0, 0, 0, 1, 0, 0, 1],
        ]
        inputs = encode(plan, frame)
        assert inputs.dtype == torch.float32
        assert torch.equal(inputs, torch.tensor(expected).float())
        assert inputs.shape[1] == plan.num_inputs

    def test_arithmetic_is_in_float64(self, plan):
        columns = {"age": {"type": "number", "centre": 1e9, "scale": 1.0}}
        plan = Plan.model_validate(plan.model_dump() | {"columns": columns})
        assert encode(plan, pd.DataFrame({"age": ["1000000001"]})).item() == 1

    def test_a_plan_without_centres_cannot_encode_but_can_code(self, frame):
        draft = Plan.loads(PLAN.replace(", centre = 60.0, scale = 10.0", ""))
        assert code_table(draft, frame).shape == (3, 5)
        with pytest.raises(PlanError, match=r"age has no centre and scale yet: run .*freeze"):
            Encoder(draft)


class TestClipFew:
    """A site's own table: few values beyond a range are its rows, many are another unit."""

    COLUMN = Number(type="number", range=(0.0, 100.0), missing="impute")

    def coded(self, odd, num_odd):
        cells = pd.Series(["50"] * (200 - num_odd) + [odd] * num_odd)
        return code_column(self.COLUMN, cells, "clip few")

    def test_few_are_clipped_and_named(self):
        coded = self.coded("104", 10)
        assert not coded.faults[Kind.OUTSIDE].any()
        assert coded.oddities[Kind.OUTSIDE].sum() == 10
        assert coded.codes.max() == 100
        assert self.coded("104", 11).faults[Kind.OUTSIDE].sum() == 11  # many are errors

    @pytest.mark.parametrize("code", ["-9", "999", "-1"])
    def test_codes_for_missing_are_never_clipped(self, code):
        coded = self.coded(code, 1)
        assert coded.faults[Kind.OUTSIDE].sum() == 1
        assert coded.codes.min() < 0 or coded.codes.max() > 100

    @pytest.mark.parametrize(("num_odd", "wrong"), [(100, 0), (101, 101)])
    def test_a_category_unread_in_most_rows_is_an_error(self, num_odd, wrong):
        column = Category(type="category", categories=("a", "b"), missing="impute")
        cells = pd.Series(["a"] * (200 - num_odd) + ["A1"] * num_odd)
        faults = code_column(column, cells, "clip few").faults
        assert faults.get(Kind.UNLISTED, np.zeros(1)).sum() == wrong
        assert not code_column(column, cells, "clip").faults


def test_blocks_of_rows_are_encoded_as_one(plan):
    codes = torch.randn(20_000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Encoder(plan).in_blocks(Examined(codes, (), ())), Encoder(plan)(codes))


def test_what_differs_as_text_is_told_apart_though_it_is_equal(plan):
    """In a table of any types 1, 1.0 and True are equal, and the last is no number."""
    coded = code_column(plan.columns["weight"], pd.Series([1, True, 1.0, None], dtype=object))
    assert coded.codes.tolist()[0::2] == [1.0, 1.0]
    assert coded.faults[Kind.UNREADABLE].tolist() == [False, True, False, False]
