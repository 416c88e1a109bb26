from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest

from predbayes.errors import ExperimentError
from predbayes_lab.records import Record
from predbayes_lab.rendering import (
    render,
    to_csv,
    to_markdown,
)
from predbayes_lab.statistics import Summary, compare, over_rows, summarise
from predbayes_lab.tables import (
    Entry,
    Table,
    averaged,
    best_table,
    build_table,
    cell_label,
    latest,
    overlap_of,
)


def record(method, seed, dataset="bike", key=None, **scores) -> Record:
    return Record(
        key=key or f"{method}-{seed}-{dataset}",
        experiment="study",
        cell={"data.name": dataset},
        method=method,
        seed=seed,
        scores=scores,
    )


@pytest.fixture
def records():
    """Two methods; beta is better by about .1 on bike, and not run on air with seed 1 or 2."""
    bike = {"fedavg": (0.50, 0.52, 0.54), "beta": (0.40, 0.41, 0.45)}
    found = [record(m, s, nll=v[s]) for m, v in bike.items() for s in range(3)]
    return [*found, record("beta", 0, "air", nll=1.25)]


def test_averaged_has_one_record_for_each_seed():
    drawn = [
        replace(record("beta", seed, nll=nll), cell={"labels": 50, "draw": draw})
        for seed, values in enumerate([(0.4, 0.6), (0.8, 0.8)])
        for draw, nll in enumerate(values)
    ]
    found = averaged(drawn, "draw")
    assert [(r.seed, r.cell) for r in found] == [(0, {"labels": 50}), (1, {"labels": 50})]
    summary = build_table(found, "nll").entries["beta", "labels=50"].summary
    assert summary.mean == pytest.approx(0.65)
    # The spread between seeds, not that of four draws.
    assert summary.standard_error == pytest.approx(0.15)


class TestBuild:
    def test_entries_are_means_over_seeds(self, records):
        table = build_table(records, "nll")
        assert (table.rows, table.columns) == (("fedavg", "beta"), ("bike", "air"))
        summary = table.entries["beta", "bike"].summary
        assert summary.mean == pytest.approx(0.42)
        assert summary.standard_error == pytest.approx(np.std([0.4, 0.41, 0.45], ddof=1) / 3**0.5)
        assert ("fedavg", "air") not in table.entries
        assert table.entries["beta", "bike"].comparison is None

    def test_of_equal_runs_the_last_counts(self, records):
        again = [*records, record("beta", 1, key="later", nll=0.95)]
        assert build_table(again, "nll").entries["beta", "bike"].summary.mean == pytest.approx(0.6)
        assert [r.key for r in latest(again)].count("later") == 1
        assert len(latest(again)) == len(records)

    def test_a_setting_that_came_later_parts_no_seeds(self, records):
        of_then, of_now = (
            {"reference": {"fraction": 0.2}},
            {"reference": {"fraction": 0.2, "draw": 0}},
        )
        mixed = [replace(r, config=of_then if r.seed == 0 else of_now) for r in records]
        assert len(latest(mixed)) == len(records)
        chosen = [replace(r, config={"reference": {"draw": r.seed}}) for r in records]
        assert {r.seed for r in latest(chosen) if r.method == "fedavg"} == {2}

    def test_comparisons_are_those_of_the_statistics(self, records):
        table = build_table(records, "nll", against="fedavg")
        expected = compare(
            {"fedavg": {0: 0.50, 1: 0.52, 2: 0.54}, "beta": {0: 0.40, 1: 0.41, 2: 0.45}}, "fedavg"
        )
        assert table.entries["beta", "bike"].comparison == expected["beta"]
        assert table.entries["fedavg", "bike"].comparison is None
        assert table.entries["beta", "air"].comparison is None  # no baseline there

    def test_columns_are_chosen_and_ordered(self, records):
        assert build_table(records, "nll", columns=["air", "bike"]).columns == ("air", "bike")
        only = build_table(records, "nll", columns=["air"])
        assert (only.rows, only.columns) == (("beta",), ("air",))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"metric": "nl"}, "no metric 'nl'; did you mean 'nll'"),
            ({"metric": "nll", "against": "bta"}, "no method 'bta'; did you mean 'beta'"),
            ({"metric": "nll", "columns": ["bikes"]}, "no column 'bikes'; did you mean 'bike'"),
        ],
    )
    def test_unknown_names_are_refused(self, records, arguments, message):
        with pytest.raises(ExperimentError, match=message):
            build_table(records, **arguments)

    def test_no_records_are_refused(self):
        with pytest.raises(ExperimentError, match="run the experiment first"):
            build_table([], "nll")


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        ({"partition.heterogeneity": 0.9, "data.name": "mnist"}, "mnist, heterogeneity=0.9"),
        ({"server.lr": 0.1, "client.lr": 0.2}, "server.lr=0.1, client.lr=0.2"),
        ({}, "all"),
    ],
)
def test_a_cell_is_named_by_the_last_parts_of_its_axes(cell, label):
    assert cell_label(cell) == label


@pytest.mark.parametrize(
    ("metric", "values", "best", "word"),
    [
        ("nll", {"a": 0.1, "b": 0.9, "c": 0.5}, {"a"}, "lowest"),
        ("ece", {"a": 0.1, "b": 0.9, "c": 0.5}, {"a"}, "lowest"),
        ("accuracy", {"a": 0.1, "b": 0.9, "c": 0.5}, {"b"}, "highest"),
        ("coverage_95", {"a": 1.0, "b": 0.94, "c": 0.8}, {"b"}, "nearest to 0.95"),
        ("regret", {"a": 1.0, "b": 2.0}, {"a"}, "lowest"),  # no measure: a loss
        ("nll", {"a": 0.1, "b": 0.1, "c": math.nan}, {"a", "b"}, "lowest"),
        ("nll", {"a": math.nan}, set(), "lowest"),
    ],
)
def test_best_is_lowest_highest_or_nearest_to_the_promised_coverage(metric, values, best, word):
    table = build_table([record(m, 0, **{metric: v}) for m, v in values.items()], metric)
    assert table.best("bike") == best
    assert word in table.legend()[0]


class TestVariants:
    def test_best_variant_per_cell_and_method(self):
        records = [
            record(f"fedavg[optimizer.lr={lr}]", seed, dataset, nll=value + 0.01 * seed)
            for dataset, by_lr in {
                "bike": {0.1: 0.5, 0.01: 0.7},
                "air": {0.1: 0.9, 0.01: 0.4},
            }.items()
            for lr, value in by_lr.items()
            for seed in range(2)
        ]
        table = best_table([*records, record("beta", 0, nll=0.3)], "nll")
        assert table.rows == ("fedavg", "beta")
        assert table.entries["fedavg", "bike"].variant == "optimizer.lr=0.1"
        assert table.entries["fedavg", "air"].variant == "optimizer.lr=0.01"
        assert table.entries["fedavg", "air"].summary.mean == pytest.approx(0.405)
        assert table.entries["beta", "bike"].variant == ""
        text = to_markdown(table)
        assert "(optimizer.lr=0.01)" in text
        assert "optimistic" in text

    def test_highest_accuracy_wins_and_nan_loses(self):
        values = {"a[x=1]": math.nan, "a[x=2]": 0.8, "a[x=3]": 0.9, "a[x=4]": math.nan}
        table = best_table([record(m, 0, accuracy=v) for m, v in values.items()], "accuracy")
        assert table.entries["a", "bike"].variant == "x=3"


class TestOverlap:
    """Test rows that each seed draws overlap with those of the others."""

    def drawn(self, records, name="bike", variant="default"):
        data = {"name": name, "variant": variant, "num_test": 100, "num_train": 400}
        return [replace(r, data=data) for r in records]

    @pytest.mark.parametrize(
        ("name", "variant", "ratio"),
        [
            ("bike", "default", 0.25),
            ("heart", "default", 0.25),
            ("bike", "released", 0.0),  # its test rows are the last ones of the table
            ("mnist", "default", 0.0),
        ],
    )
    def test_the_registry_says_where(self, name, variant, ratio, records):
        assert overlap_of(self.drawn(records, name, variant)[0]) == ratio

    def test_standard_errors_and_tests_allow_for_it(self, records):
        table = build_table(self.drawn(records), "nll", against="fedavg")
        entry = table.entries["beta", "bike"]
        assert entry.summary == summarise([0.40, 0.41, 0.45], 0.25)
        differences = [0.40 - 0.50, 0.41 - 0.52, 0.45 - 0.54]
        assert entry.comparison.interval == summarise(differences, 0.25).interval
        assert "Nadeau and Bengio" in to_markdown(table)
        assert "Nadeau" not in to_markdown(build_table(records, "nll", against="fedavg"))


class TestLosses:
    @pytest.fixture
    def folder(self, records, tmp_path):
        rng = np.random.default_rng(0)
        for r in records:
            shift = 0.1 if r.method == "fedavg" else 0.0
            np.save(tmp_path / f"{r.key}.npy", rng.normal(shift, 1, 50).astype(np.float32))
        return tmp_path

    def read(self, folder, method, seed):
        return np.load(folder / f"{method}-{seed}-bike.npy").astype(float)

    def test_interval_over_rows_is_that_of_the_statistics(self, records, folder):
        differences = [
            self.read(folder, "beta", s) - self.read(folder, "fedavg", s) for s in (0, 2)
        ]
        (folder / "beta-1-bike.npy").unlink()  # the seeds that both have count
        table = build_table(records, "nll", against="fedavg", losses=folder)
        assert table.entries["beta", "bike"].rows == over_rows(differences)
        assert "95 % over test rows" in to_markdown(table)

    def test_without_files_there_is_none(self, records, tmp_path):
        table = build_table(records, "nll", against="fedavg", losses=tmp_path)
        assert table.entries["beta", "bike"].rows is None
        assert "test rows" not in to_markdown(table)

    def test_other_rows_are_refused(self, records, folder):
        np.save(folder / "beta-0-bike.npy", np.zeros(49, np.float32))
        with pytest.raises(ExperimentError, match="49 and 50 rows with seed 0"):
            build_table(records, "nll", against="fedavg", losses=folder)


GOLDEN = """\
### study: nll

|  | bike | air |
| --- | --- | --- |
| fedavg | 0.520 ± 0.012 | — |
| beta | **0.420 ± 0.015** | **1.250** (n=1) |

nll: mean ± standard error over 3 seeds, or n where given; bold: the lowest mean of a cell.

† not significantly different from fedavg at 0.05: two-sided t test of the differences paired by \
seed, Holm's correction over the methods of a cell.

#### Differences from fedavg

| cell | method | difference | 95 % interval | p | Holm p | pairs |
| --- | --- | --- | --- | --- | --- | --- |
| bike | beta | -0.100 | [-0.125, -0.075] | 0.0033 | 0.0033 | 3 |

Differences are method minus fedavg, paired by seed; interval and p: Student's t over seeds.
"""


class TestRendering:
    def test_markdown(self, records):
        assert to_markdown(build_table(records, "nll", against="fedavg")) == GOLDEN

    def test_csv_has_every_number_in_full(self, records):
        table = build_table(records, "nll", against="fedavg")
        lines = list(csv.DictReader(io.StringIO(to_csv(table))))
        assert [(x["cell"], x["method"]) for x in lines] == [
            ("bike", "fedavg"),
            ("bike", "beta"),
            ("air", "fedavg"),
            ("air", "beta"),
        ]
        beta, entry = lines[1], table.entries["beta", "bike"]
        assert float(beta["mean"]) == entry.summary.mean
        assert float(beta["standard_error"]) == entry.summary.standard_error
        assert (float(beta["low"]), float(beta["high"])) == entry.comparison.interval
        assert lines[2]["mean"] == lines[2]["num"] == ""

    def test_csv_holds_no_formula(self):
        entry = Entry(Summary(mean=-0.5, standard_error=0.1, num=3), variant="+cmd()")
        table = Table("t", "nll", 0.0, ("=cmd()",), ("@cell",), {("=cmd()", "@cell"): entry})
        (line,) = list(csv.reader(io.StringIO(to_csv(table))))[1:]
        assert not [cell for cell in line if cell.startswith(("=", "@", "+"))]
        assert "-0.5" in line

    @pytest.mark.parametrize("suffix", ["md", ".md", "csv"])
    def test_every_format_renders_a_table_with_gaps(self, suffix, records):
        diverged = record("beta", 1, "air", nll=math.nan)
        assert render(build_table([*records, diverged], "nll", against="beta"), suffix)

    def test_unknown_formats_are_refused(self, records):
        with pytest.raises(ExperimentError, match="'xlsx'; there is md, csv"):
            render(build_table(records, "nll"), ".xlsx")


class TestWhatMayStandInOneTable:
    def run(self, method="beta", seed=0, nll=1.0, error="", **config):
        scores = {"nll": nll} if error else {"nll": nll, "accuracy": 0.5}
        return Record(
            f"{method}{seed}{nll}", "trial", {}, method, seed, scores, config=config, error=error
        )

    def test_runs_of_one_setting_only_the_last_one(self):
        old = [self.run(seed=s, nll=9.0, lr=0.1) for s in range(10)]
        new = [self.run(seed=s, nll=1.0, lr=0.2) for s in range(3)]
        summary = build_table([*old, *new], "nll").entries["beta", "all"].summary
        assert (summary.mean, summary.num) == (1.0, 3)

    def test_validation_is_said_and_not_mixed_with_test(self):
        held = [self.run(seed=s, evaluate="validation") for s in range(2)]
        assert "validation split" in to_markdown(build_table(held, "nll"))
        with pytest.raises(ExperimentError, match="folders of their own"):
            build_table([*held, self.run("fedavg", evaluate="test")], "nll")

    @pytest.mark.parametrize("metric", ["nll", "accuracy"])
    def test_a_run_that_diverged_counts_in_every_metric(self, metric):
        records = [self.run(), self.run(seed=1, nll=math.nan, error="training diverged")]
        table = build_table(
            [*records, self.run("fedavg"), self.run("fedavg", 1)], metric, against="fedavg"
        )
        assert math.isnan(table.entries["beta", "all"].summary.mean)
        text = to_markdown(table)
        assert "| beta | diverged |" in text
        assert "†" not in text.split("\n")[4]
        assert "+nan" not in text

    def test_students_of_variants_are_apart_from_their_teachers(self):
        records = [
            self.run(f"beta[lr={lr}]{student}", seed, nll=lr + (0.0 if student else 0.5))
            for lr in (1.0, 2.0)
            for student in ("", " student")
            for seed in range(2)
        ]
        table = best_table(records, "nll")
        assert table.rows == ("beta", "beta student")
        assert table.entries["beta", "all"].variant == "lr=1.0"
        assert table.entries["beta student", "all"].summary.mean == 1.0
