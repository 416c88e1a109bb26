from __future__ import annotations

import string

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import PlanError
from predbayes_study.kit.draft import draft, round_outward
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.text import dump
from predbayes_study.tables.coding import examine, target_problems

NUM_ROWS = 400


@pytest.fixture
def table():
    """A table with one column of every kind, each cell as text."""
    draw = np.random.default_rng(0)
    rows = np.arange(NUM_ROWS)
    weight = draw.uniform(41.3, 118.7, NUM_ROWS).round(1).astype(str)
    pulse = draw.uniform(41.3, 118.7, NUM_ROWS).round(1).astype(str)
    return pd.DataFrame(
        {
            "row": (rows + 1).astype(str),
            "patient": [f"P{row:04d}" for row in rows],
            "weight": np.where(draw.random(NUM_ROWS) < 0.1, "", weight),
            "pulse": pulse,
            "smoker": draw.integers(0, 2, NUM_ROWS).astype(str),
            "ward": draw.choice(["W10", "W9", "W2"], NUM_ROWS),
            "street": draw.choice([f"street {i}" for i in range(40)], NUM_ROWS),
            "device": "A",
            "note": "",
            "grade": draw.integers(1, 6, NUM_ROWS).astype(str),
            "stay": draw.exponential(10, NUM_ROWS).round(2).astype(str),
            "outcome": draw.choice(["ill", "well"], NUM_ROWS),
        },
        dtype=object,
    )


def of(table, target="outcome", **options):
    return draft(table, name="ward", target=target, file="ward.csv", **options)


class TestColumns:
    def test_each_kind_is_recognised(self, table):
        columns = of(table).plan.columns
        assert list(columns) == ["weight", "pulse", "smoker", "ward", "grade", "stay"]
        kinds = {name: column.type for name, column in columns.items()}
        assert kinds["weight"] == kinds["pulse"] == kinds["grade"] == kinds["stay"] == "number"
        assert columns["smoker"].categories == ("0", "1")
        ward = columns["ward"]
        assert (ward.categories, ward.other) == (("W2", "W9", "W10"), True)
        assert [columns[name].missing for name in ("weight", "pulse")] == ["flag", "impute"]
        assert of(table).plan.target.classes == ("ill", "well")
        assert of(table, "stay").plan.target.task == "regression"

    def test_what_is_left_out_or_doubtful_is_said(self, table):
        table.loc[:19, "ward"] = "?"
        notes = of(table.rename(columns={"pulse": ""})).notes
        for column, why in (
            ("row", "numbers the rows"),
            ("patient", "words differ"),
            ("street", "40 different words"),
            ("device", "same in every row"),
            ("note", "no value"),
            ("a column without a name", ""),
        ):
            (note,) = [note for note in notes if note.startswith(f"{column}: left out")]
            assert why in note
        for doubt in ("grade: few whole numbers", "ward: '?' became a category"):
            assert any(note.startswith(doubt) for note in notes)

    def test_a_mark_for_missing_values_does_not_make_a_number_a_word(self, table):
        table.loc[:19, "pulse"] = "?"
        drafted = of(table)
        assert drafted.plan.columns["pulse"].type == "number"
        assert any(note.startswith("pulse: 20 cells are no numbers") for note in drafted.notes)

    def test_the_target_in_disguise_is_told(self, table):
        table["discharge"] = (table["stay"].astype(float) + 0.5).astype(str)
        notes = of(table, "stay").notes
        assert any(note.startswith("discharge: follows the target") for note in notes)
        assert not any(note.startswith("pulse: follows") for note in notes)


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        ((29, 77), (20, 80)),
        ((126, 564), (100, 600)),
        ((0.03, 0.97), (0, 1)),
        ((-2.6, 6.2), (-3, 7)),
        ((20, 80), (20, 80)),
        ((0.31, 0.34), (0.31, 0.34)),
        ((0.0, 5e-324), (0.0, 1e-307)),
    ],
)
def test_ends_of_a_range_are_round(seen, ends):
    assert round_outward(*map(float, seen)) == ends


class TestTarget:
    def test_few_whole_numbers_are_classes_in_order_and_doubted(self, table):
        table["grade"] = table["grade"].replace({"1": "10", "2": "2.0"})
        drafted = of(table, "grade")
        assert drafted.plan.target.classes == ("2", "3", "4", "5", "10")
        assert any(note.startswith("grade: taken for 5 classes") for note in drafted.notes)
        assert not target_problems(drafted.plan, table)

    def test_what_cannot_be_predicted_is_refused(self, table):
        for target, said in (
            ("device", "same in every row"),
            ("note", "no labels"),
            ("patient", "400 different words"),
            ("outcme", "did you mean 'outcome'?"),
        ):
            with pytest.raises(PlanError) as error:
                of(table, target)
            assert said in str(error.value)
        with pytest.raises(PlanError, match="'outcome' from: device"):
            of(table[["device", "outcome"]])
        with pytest.raises(PlanError, match="390 labelled and 20"):
            of(table, labelled=390, evaluate=20)


@pytest.mark.parametrize(
    ("num_rows", "given", "counts"),
    [
        (400, {}, (266, 114, 20)),  # three labels in ten are set aside
        # 100 rows are the fewest on which calibration is judged; 300 cross-fitted are better.
        (300, {}, (280, 0, 20)),
        (400, {"labelled": 50, "evaluate": 200}, (50, 200, 150)),
        (400, {"labelled": 50}, (50, 0, 350)),
    ],
)
def test_labels_are_divided_where_there_are_enough(table, num_rows, given, counts):
    table.loc[:19, "outcome"] = ""
    drafted = of(table[:num_rows], **given)
    reference = drafted.plan.reference
    assert (reference.labelled, reference.evaluate, reference.unlabelled) == counts
    assert any("cross-fitted" in note for note in drafted.notes) is (counts[1] == 0)


cells = st.one_of(
    st.just(""),
    st.sampled_from(
        ["0", "1", "2.5", "1e300", "1e3", "007", "1.0", "-1e300", "x", "y", "W10", "?", "3.0"]
    ),
    st.text(string.printable, max_size=3).map(str.strip),
)


@given(
    columns=st.lists(st.lists(cells, min_size=6, max_size=6), min_size=1, max_size=4),
    target=st.lists(st.sampled_from(["7", "7.0", "1e3", "b", ""]), min_size=6, max_size=6),
)
def test_a_draft_fits_its_table_or_says_why_not(columns, target):
    """The one thing it leaves to the user are cells in a column of numbers that are none."""
    frame = pd.DataFrame({f"c{i}": c for i, c in enumerate(columns)} | {"y": target}, dtype=object)
    try:
        drafted = draft(frame, name="x", target="y", file="x.csv")
    except PlanError:
        return  # no labels, or no column that is good for anything
    assert Plan.loads(dump(drafted.plan)) == drafted.plan
    told = {note.partition(":")[0] for note in drafted.notes if "no number" in note}
    problems = [*examine(drafted.plan, frame).problems, *target_problems(drafted.plan, frame)]
    assert {problem.column for problem in problems} <= told
