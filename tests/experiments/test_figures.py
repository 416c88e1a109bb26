from __future__ import annotations

import sys

import numpy as np
import pytest

from predbayes.errors import ExperimentError, MissingPackageError
from predbayes.experiments.figures import (
    lines,
    pool_bins,
    reliability_diagrams,
    side_by_side,
)
from predbayes.experiments.records import Record

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


def curve(axes, index=0):
    """Positions and heights of one method's points."""
    return axes.containers[index].lines[0].get_xydata()


class TestLines:
    def test_one_panel_per_dataset_and_metric_one_line_per_method(self, records, tmp_path):
        figure = lines(records, ["nll", "ece"], X, tmp_path / "f.png")
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

    def test_points_are_means_in_the_order_of_the_axis(self, records, tmp_path):
        axes = lines(records, ["nll"], X, tmp_path / "f.png").axes[0]
        np.testing.assert_allclose(curve(axes), [[0, 1.1], [0.5, 1.6], [0.9, 2.0]])

    def test_bars_are_standard_errors(self, records, tmp_path):
        axes = lines(records, ["nll"], X, tmp_path / "f.png").axes[0]
        (bars,) = axes.containers[0].lines[2]
        low, high = bars.get_segments()[0][:, 1]
        assert (high - low) / 2 == pytest.approx(0.1 / 3**0.5)

    def test_a_method_looks_the_same_everywhere_and_like_no_other(self, records, tmp_path):
        records = [r for r in records if (r.method, r.cell["data.name"]) != ("beta", "mnist")]
        mnist, fashion = lines(records, ["nll"], X, tmp_path / "f.png").axes
        if mnist.get_title() != "mnist":
            mnist, fashion = fashion, mnist
        looks = {
            (a.get_title(), c.get_label()): (c.lines[0].get_color(), c.lines[0].get_marker())
            for a in (mnist, fashion)
            for c in a.containers
        }
        assert looks["mnist", "fedavg"] == looks["fashion", "fedavg"]
        assert all(
            a != b for a, b in zip(looks["fashion", "beta"], looks["mnist", "fedavg"], strict=True)
        )

    def test_seventy_methods_look_different(self, tmp_path):
        records = [record(f"m{i}", nll=1.0 + i) for i in range(70)]
        (axes,) = lines(records, ["nll"], X, tmp_path / "f.png").axes
        looks = {(c.lines[0].get_color(), c.lines[0].get_marker()) for c in axes.containers}
        assert len(looks) == 70

    def test_more_than_a_decade_is_logarithmic(self, records, tmp_path):
        nll, _, ece, _ = lines(records, ["nll", "ece"], X, tmp_path / "f.png").axes
        assert (nll.get_yscale(), ece.get_yscale()) == ("linear", "log")

    def test_values_that_are_not_positive_stay_linear(self, tmp_path):
        records = [record(h=h, nll=nll) for h, nll in ((0.0, -1.0), (0.5, 100.0))]
        (axes,) = lines(records, ["nll"], X, tmp_path / "f.png").axes
        assert axes.get_yscale() == "linear"

    @pytest.mark.parametrize("num_datasets", [1, 2, 5])
    def test_legend_covers_no_panel(self, num_datasets, tmp_path):
        names = [f"data{i}" for i in range(num_datasets)]
        methods = [f"method number {i}" for i in range(8)]
        records = [
            record(m, dataset=d, h=h, nll=1.0 + h)
            for m in methods
            for d in names
            for h in (0.0, 0.9)
        ]
        figure = lines(records, ["nll"], X, tmp_path / "f.png")
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == methods
        box = legend.get_window_extent()
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
        assert figure.bbox.containsx(box.x0)
        assert figure.bbox.containsx(box.x1)
        assert figure.bbox.containsy(box.y0)
        assert figure.bbox.containsy(box.y1)

    def test_at_most_four_columns_where_possible(self, tmp_path):
        records = [record(dataset=f"d{i}", nll=1.0, ece=0.1) for i in range(6)]
        for metrics, shape in ((["nll"], (2, 4)), (["nll", "ece"], (6, 2))):
            figure = lines(records, metrics, X, tmp_path / "f.png")
            assert figure.axes[0].get_gridspec().get_geometry() == shape

    def test_names_stand_side_by_side_without_a_line(self, records, tmp_path):
        axes = lines(records, ["nll"], "data.name", tmp_path / "f.png").axes[0]
        assert [t.get_text() for t in axes.get_xticklabels()] == ["mnist", "fashion"]
        assert axes.containers[0].lines[0].get_linestyle() == "None"
        assert axes.get_xlabel() == "dataset"

    def test_axis_over_decades_is_logarithmic(self, tmp_path):
        records = [record(h=n, nll=1.0) for n in (1, 10, 100)]
        (axes,) = lines(records, ["nll"], X, tmp_path / "f.png").axes
        assert axes.get_xscale() == "log"
        assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "10", "100"]

    def test_coverage_is_named_by_its_level(self, tmp_path):
        (axes,) = lines([record(coverage_95=0.9)], ["coverage_95"], X, tmp_path / "f.png").axes
        assert axes.get_ylabel() == "95 % coverage"

    def test_panels_without_data_are_left_out(self, tmp_path):
        records = [record(dataset="mnist", nll=1.0, ece=0.1), record(dataset="bike", nll=2.0)]
        figure = lines(records, ["nll", "ece"], X, tmp_path / "f.png")
        assert len(figure.axes) == 3

    def test_of_equal_runs_the_last_counts(self, tmp_path):
        records = [record(nll=1.0), record(nll=5.0)]
        (axes,) = lines(records, ["nll"], X, tmp_path / "f.png").axes
        np.testing.assert_allclose(curve(axes), [[0, 5.0]])

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


class TestReliability:
    @pytest.fixture
    def records(self):
        return [
            record(m, s, h=h, bins=bins([0, 30, 70], [0.0, 0.5, 0.9], [0.0, 0.4, 0.8]), nll=1.0)
            for m in ("beta", "fedavg", "mixture")
            for s in range(2)
            for h in (0.0, 0.9)
        ]

    def test_pooling_is_one_set_of_rows(self):
        first = bins([10, 0, 30], [0.2, 0.0, 0.9], [0.1, 0.0, 1.0])
        second = bins([30, 0, 10], [0.4, 0.0, 0.7], [0.3, 0.0, 0.6])
        pooled = pool_bins([record(bins=first), record(seed=1, bins=second)])
        assert pooled.count.tolist() == [40, 0, 40]
        np.testing.assert_allclose(pooled.confidence, [0.35, np.nan, 0.85])
        np.testing.assert_allclose(pooled.accuracy, [0.25, np.nan, 0.9])
        assert pooled.ece == pytest.approx((0.1 + 0.05) / 2)

    def test_nan_in_an_empty_bin_is_no_number(self):
        nan = float("nan")
        pooled = pool_bins([record(bins=bins([0, 4], [nan, 0.9], [nan, 1.0]))])
        assert pooled.ece == pytest.approx(0.1)

    def test_one_diagram_per_cell_and_method(self, records, tmp_path):
        figure = reliability_diagrams(records, tmp_path / "f.png", ["mixture", "beta"])
        uppers, lowers = figure.axes[::2], figure.axes[1::2]
        assert [a.get_title() for a in uppers] == [
            "mixture\nmnist, heterogeneity=0.0",
            "beta\nmnist, heterogeneity=0.0",
            "mixture\nmnist, heterogeneity=0.9",
            "beta\nmnist, heterogeneity=0.9",
        ]
        diagonal, points = uppers[0].lines
        np.testing.assert_allclose(diagonal.get_xydata(), [[0, 0], [1, 1]])
        np.testing.assert_allclose(points.get_xydata(), [[0.5, 0.4], [0.9, 0.8]])
        np.testing.assert_allclose([bar.get_height() for bar in lowers[0].patches], [0, 0.3, 0.7])

    def test_bars_stand_under_their_bins(self, records, tmp_path):
        upper, lower = reliability_diagrams(records, tmp_path / "f.png", ["beta"]).axes[:2]
        assert upper.get_position().x0 == pytest.approx(lower.get_position().x0)
        assert upper.get_position().x1 == pytest.approx(lower.get_position().x1)
        assert upper.get_xlim() == lower.get_xlim() == (0, 1)

    def test_all_methods_unless_told(self, records, tmp_path):
        assert len(reliability_diagrams(records, tmp_path / "f.png").axes) == 2 * 3 * 2

    def test_diagrams_without_data_are_left_out(self, records, tmp_path):
        figure = reliability_diagrams(
            [*records[:-1], record("new", bins=records[0].reliability)], tmp_path / "f.png"
        )
        assert len(figure.axes) == 2 * 7

    def test_unknown_methods_are_refused(self, records, tmp_path):
        with pytest.raises(ExperimentError, match="did you mean 'beta'"):
            reliability_diagrams(records, tmp_path / "f.png", ["bta"])

    def test_records_without_bins_are_refused(self, tmp_path):
        with pytest.raises(ExperimentError, match="no record has reliability bins"):
            reliability_diagrams([record(nll=1.0)], tmp_path / "f.png")

    @pytest.mark.parametrize("bad", [{"count": [1]}, bins([1, 2], [0.5, 0.5], [0.5, 0.5])])
    def test_bins_that_do_not_fit_are_refused(self, bad):
        with pytest.raises(ExperimentError, match="do not fit together"):
            pool_bins([record(bins=bins([1], [0.5], [0.5])), record(bins=bad)])


class TestFiles:
    @pytest.mark.parametrize("suffix", SIGNATURES)
    def test_suffix_decides_the_format(self, suffix, records, tmp_path):
        out = tmp_path / "new" / f"figure{suffix}"
        lines(records, ["nll"], X, out)
        assert out.read_bytes().startswith(SIGNATURES[suffix])
        assert out.stat().st_size > 4000

    @pytest.mark.parametrize("suffix", SIGNATURES)
    def test_equal_records_equal_bytes(self, suffix, records, tmp_path):
        for name in ("a", "b"):
            lines(records, ["nll"], X, tmp_path / f"{name}{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()

    @pytest.mark.parametrize("name", ["figure.jpeg", "figure"])
    def test_unknown_formats_are_refused(self, name, records, tmp_path):
        with pytest.raises(ExperimentError, match=r"ends in \.png, \.svg, \.pdf"):
            lines(records, ["nll"], X, tmp_path / name)
        with pytest.raises(ExperimentError, match=r"ends in \.png, \.svg, \.pdf"):
            reliability_diagrams(records, tmp_path / name)

    def test_without_matplotlib_the_extra_is_named(self, records, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(MissingPackageError, match=r"pip install '\.\[experiments\]'"):
            lines(records, ["nll"], X, tmp_path / "f.png")

    def test_global_settings_stay_as_they_were(self, records, tmp_path):
        import matplotlib as mpl

        before = dict(mpl.rcParams)
        lines(records, ["nll"], X, tmp_path / "f.pdf")
        assert dict(mpl.rcParams) == before
