from __future__ import annotations

import sys

import numpy as np
import pytest

from predbayes.errors import ExperimentError, MissingPackageError
from predbayes_lab.figures import (
    lines,
    side_by_side,
)
from predbayes_lab.records import Record

X = "partition.heterogeneity"
SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def record(method="beta", seed=0, dataset="mnist", h=0.0, bins=None, **scores) -> Record:
    cell = {"data.name": dataset, X: h}
    return Record("key", "study", cell, method, seed, scores, reliability=bins)


@pytest.fixture
def records():
    return [
        record(m, s, d, h, nll=1.0 + 0.1 * s + h + i, ece=0.01 * 30**i + 0.001 * s)
        for i, m in enumerate(("beta", "fedavg"))
        for s in range(3)
        for d in ("mnist", "fashion")
        for h in (0.9, 0.0, 0.5)
    ]


class TestLines:
    def test_one_panel_per_dataset_and_metric_one_line_per_method(self, records, tmp_path):
        figure = lines(records, ["nll", "ece"], X, tmp_path / "f.png")
        assert [axes.get_yscale() for axes in figure.axes] == [*2 * ["linear"], *2 * ["log"]]
        first, _, (bars,) = figure.axes[0].containers[0].lines
        np.testing.assert_allclose(first.get_xydata(), [[0, 1.1], [0.5, 1.6], [0.9, 2.0]])
        low, high = bars.get_segments()[0][:, 1]
        assert (high - low) / 2 == pytest.approx(0.1 / 3**0.5)  # the standard error
        titles = [(a.get_title(), a.get_ylabel()) for a in figure.axes]
        assert titles == [
            ("mnist", "NLL (nats per row)"),
            ("fashion", "NLL (nats per row)"),
            ("mnist", "ECE"),
            ("fashion", "ECE"),
        ]
        assert [len(a.containers) for a in figure.axes] == [2, 2, 2, 2]

    def test_panels_of_several_experiments_share_a_legend(self, records, tmp_path):
        first = [r for r in records if r.cell["data.name"] == "mnist"]
        second = [r for r in first if r.method == "beta"]
        figure = side_by_side(
            {"first": (first, X), "second": (second, X)},
            "nll",
            tmp_path / "f.png",
            ["fedavg", "beta"],
        )
        assert [axes.get_title() for axes in figure.axes] == ["first", "second"]
        assert [len(axes.containers) for axes in figure.axes] == [2, 1]
        (legend,) = figure.legends
        assert sorted(text.get_text() for text in legend.get_texts()) == ["beta", "fedavg"]

    @pytest.mark.parametrize(
        ("metrics", "x", "message"),
        [
            (["nl"], X, "did you mean 'nll'"),
            (["nll"], "partition.heterogenity", "no axis .* did you mean 'partition.hetero"),
            ([], X, "no metric was named"),
        ],
    )
    def test_unknown_names_are_refused(self, metrics, x, message, records, tmp_path):
        with pytest.raises(ExperimentError, match=message):
            lines(records, metrics, x, tmp_path / "f.png")


def bins(count, confidence, accuracy):
    return {"count": count, "confidence": confidence, "accuracy": accuracy}


class TestFiles:
    @pytest.mark.parametrize("suffix", SIGNATURES)
    def test_equal_records_equal_bytes_of_the_format_of_the_suffix(self, suffix, records, tmp_path):
        one, two = (tmp_path / "new" / f"{name}{suffix}" for name in ("a", "b"))
        for out in (one, two):
            lines(records, ["nll"], X, out)
        assert one.read_bytes() == two.read_bytes()
        assert one.read_bytes().startswith(SIGNATURES[suffix])

    @pytest.mark.parametrize("name", ["figure.jpeg", "figure"])
    def test_unknown_formats_are_refused(self, name, records, tmp_path):
        with pytest.raises(ExperimentError, match=r"ends in \.png, \.svg, \.pdf"):
            lines(records, ["nll"], X, tmp_path / name)

    def test_without_matplotlib_the_extra_is_named(self, records, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(MissingPackageError, match=r"packages/lab"):
            lines(records, ["nll"], X, tmp_path / "f.png")
