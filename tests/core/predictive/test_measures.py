"""The table of measures: every entry is complete, and is the metric of its name."""

from __future__ import annotations

import pytest
import torch

from predbayes.predictive import metrics
from predbayes.predictive.families import FAMILIES, Categorical, Gaussian, Survival
from predbayes.predictive.measures import (
    MEASURES,
    STANDARD,
    row_measures,
    row_values,
    whole_values,
)
from predbayes.predictive.survival import (
    concordance_rows,
    integrated_brier_rows,
    risk_gap_rows,
)
from predbayes.seeding import generator


def draw(family):
    rng = generator(0, "measures")
    if family is Categorical:
        predictive = Categorical(torch.randn(200, 4, generator=rng).log_softmax(-1))
        return predictive, torch.randint(4, (200,), generator=rng)
    if family is Survival:
        times = 5 * torch.rand(200, generator=rng) + 1e-3
        seen = (torch.rand(200, generator=rng) < 0.6) & (times <= 4)
        times = times.clamp_max(4)
        return Survival(torch.randn(200, 4, generator=rng)), torch.where(seen, times, -times)
    mean, targets = torch.randn(2, 200, generator=rng)
    return Gaussian(mean, torch.full_like(mean, 0.7)), targets


METRICS = {
    "nll": metrics.nll,
    "accuracy": metrics.accuracy,
    "brier": metrics.brier,
    "rmse": metrics.rmse,
    "mae": lambda predictive, targets: float((predictive.mean - targets).double().abs().mean()),
    "crps": metrics.crps,
    "coverage_95": metrics.interval_coverage,
    "width_95": lambda predictive, _: metrics.interval_width(predictive),
    "c_index": lambda *scored: float(concordance_rows(*scored).mean()),
    "integrated_brier": lambda *scored: float(integrated_brier_rows(*scored).mean()),
    "risk_gap": lambda *scored: float(risk_gap_rows(*scored).mean()),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_measure_is_the_metric_of_its_name(family):
    predictive, targets = draw(family)
    values = row_values(predictive, targets)
    assert [*values] == [measure.name for measure in row_measures(family)]
    for name, rows in values.items():
        assert rows.shape == targets.shape
        assert rows.dtype == torch.float64
        assert MEASURES[name].value(rows) == METRICS[name](predictive, targets)


def test_every_measure_of_rows_is_of_some_family():
    names = {m.name for family in FAMILIES for m in row_measures(family)}
    assert names == METRICS.keys() == {m.name for m in MEASURES.values() if m.rows is not None}


def test_the_explained_share_is_that_of_scikit_learn():
    oracle = pytest.importorskip("sklearn.metrics")
    predictive, targets = draw(Gaussian)
    found = whole_values(predictive, targets)["r2"]
    expected = oracle.r2_score(targets.double(), predictive.mean.double())
    assert found.value == pytest.approx(expected, abs=1e-9)
    assert found.low < found.value < found.high < 1


def test_measures_of_all_rows_are_those_of_the_table():
    for family in FAMILIES:
        found = whole_values(*draw(family))
        whole = {m.name for m in MEASURES.values() if m.whole is not None and m.family is family}
        assert found.keys() == whole
        for name, figure in found.items():
            least, greatest = MEASURES[name].bounds
            assert least <= figure.low <= figure.value <= figure.high <= greatest


def test_values_keep_their_bounds():
    for family in FAMILIES:
        for name, rows in row_values(*draw(family)).items():
            least, greatest = MEASURES[name].bounds
            assert least <= float(rows.mean()) <= greatest
            assert not MEASURES[name].is_share or set(rows.tolist()) <= {0.0, 1.0}


def test_what_is_in_another_unit_only_exists_where_there_is_a_scale():
    class Transformed:
        scale = None
        errors = STANDARD.errors
        widths = STANDARD.widths

    names = {measure.name for measure in row_measures(Gaussian, Transformed())}
    assert names == {measure.name for measure in row_measures(Gaussian)} - {"crps"}
