"""Metrics against other implementations, and calibration errors against their sampling law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scoringrules
import torch
import torchmetrics.functional.classification as tm
from scipy import stats

from predbayes.errors import PoolError
from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import generator
from tests.core.oracles import random_categorical, random_gaussian, random_targets


@pytest.fixture
def classes(rng):
    return random_categorical(rng, num_rows=500), random_targets(Categorical, rng, num_rows=500)


@pytest.fixture
def numbers(rng):
    return random_gaussian(rng, num_rows=500), random_targets(Gaussian, rng, num_rows=500)


def normal(predictive):
    return predictive.mean.numpy(), predictive.var.sqrt().numpy()


CLASS_ORACLES = {
    metrics.nll: lambda p, y: torch.nn.functional.cross_entropy(p.log_probs, y),
    metrics.accuracy: lambda p, y: tm.multiclass_accuracy(p.moments(), y, 4, average="micro"),
    metrics.brier: lambda p, y: (
        scoringrules.brier_score(np.eye(4)[y.numpy()], p.moments().numpy()).sum(-1).mean()
    ),
}
NUMBER_ORACLES = {
    metrics.nll: lambda p, y: scoringrules.logs_normal(y.numpy(), *normal(p)).mean(),
    metrics.crps: lambda p, y: scoringrules.crps_normal(y.numpy(), *normal(p)).mean(),
}


class TestAgainstOthers:
    @pytest.mark.parametrize("metric", CLASS_ORACLES)
    def test_scores_of_classes(self, metric, classes):
        assert metric(*classes) == pytest.approx(float(CLASS_ORACLES[metric](*classes)))

    @pytest.mark.parametrize("metric", NUMBER_ORACLES)
    def test_scores_of_numbers(self, metric, numbers):
        assert metric(*numbers) == pytest.approx(float(NUMBER_ORACLES[metric](*numbers)))

    def test_pit_is_the_normal_cdf(self, numbers):
        p, y = numbers
        expected = stats.norm.cdf(y.numpy(), *normal(p))
        np.testing.assert_allclose(metrics.pit(p, y).numpy(), expected, atol=1e-12)

    def test_intervals(self, numbers):
        p, y = numbers
        low, high = stats.norm.interval(0.9, *normal(p))
        inside = (low <= y.numpy()) & (y.numpy() <= high)
        assert metrics.interval_coverage(p, y, 0.9) == pytest.approx(inside.mean())
        assert metrics.interval_width(p, 0.9) == pytest.approx((high - low).mean())

    def test_ece(self, classes, rng):
        p, y = classes
        expected = tm.multiclass_calibration_error(p.moments(), y, 4, n_bins=15, norm="l1")
        assert metrics.ece(p, y, rng=rng).value == pytest.approx(float(expected), abs=1e-6)

    def test_no_interval_of_the_ece_is_beyond_what_a_share_can_be(self, rng):
        for num_rows, top in ((1, 0.9), (500, 1.0)):
            p = Categorical.from_moments(
                torch.tensor([[top, 1 - top]]).double().expand(num_rows, 2)
            )
            low, high = metrics.ece(p, torch.ones(num_rows, dtype=torch.int64), rng=rng).interval
            assert 0 <= low <= high <= 1


def slow_ece(confidence, correct, edges):
    """The definition, bin by bin."""
    total = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gap = abs(correct[inside].mean() - confidence[inside].mean())
            total += inside.mean() * gap
    return total


class TestCalibrationErrors:
    def test_adaptive_ece_has_equally_full_bins(self, classes, rng):
        p, y = classes
        confidence, label = (a.numpy() for a in p.moments().max(-1))
        order = np.argsort(confidence)
        hits = (label == y.numpy())[order]
        parts = zip(np.array_split(confidence[order], 10), np.array_split(hits, 10), strict=True)
        expected = sum(len(c) / 500 * abs(h.mean() - c.mean()) for c, h in parts)
        actual = metrics.ece(p, y, rng=rng, adaptive=True, num_bins=10)
        assert actual.value == pytest.approx(expected)

    def test_classwise_ece_is_the_mean_over_classes(self, classes, rng):
        p, y = classes
        edges = np.linspace(0, 1, 16)
        per_class = [slow_ece(p.moments()[:, c].numpy(), y.numpy() == c, edges) for c in range(4)]
        actual = metrics.classwise_ece(p, y, rng=rng, num_draws=20)
        assert actual.value == pytest.approx(np.mean(per_class))

    def test_certainty_belongs_to_the_last_bin(self, rng):
        """torchmetrics puts confidence 1 into a bin of its own (its issue 3510)."""
        p = Categorical(torch.tensor([[0.0, -80.0], [-0.02, -3.9]]).double())
        y = torch.tensor([0, 1])
        # One bin, one hit out of two, mean confidence about .99.
        expected = abs(0.5 - float(p.moments().max(-1).values.mean()))
        assert metrics.ece(p, y, rng=rng).value == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("num_rows", "median"), [(100, 0.086), (500, 0.040), (1000, 0.028), (10_000, 0.009)]
    )
    def test_null_value_is_that_of_a_calibrated_model(self, num_rows, median):
        """Medians for 15 bins and confidences between .5 and 1."""
        rng = generator(0, "null", num_rows)
        top = 0.5 + 0.5 * torch.rand(num_rows, generator=rng, dtype=torch.float64)
        p = Categorical.from_moments(torch.stack([top, 1 - top], -1))
        y = (torch.rand(num_rows, generator=rng) > top).long()
        error = metrics.ece(p, y, rng=rng)
        assert error.null == pytest.approx(median, rel=0.35)
        assert error.interval[0] <= error.null

    def test_equal_confidences_share_an_adaptive_bin(self, rng):
        """Confidence .9 and accuracy .9 is calibrated, in whatever order the rows come."""
        probs = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
        p = Categorical.from_moments(probs.expand(100, 2))
        y = (torch.arange(100) >= 90).long()
        assert metrics.ece(p, y, rng=rng, adaptive=True).value == pytest.approx(0, abs=1e-12)

    @pytest.mark.parametrize("metric", [metrics.ece, metrics.classwise_ece])
    def test_null_value_does_not_look_at_the_labels(self, metric, rng):
        """Sure and wrong half of the time: a large error, and the null of a calibrated model."""
        p = Categorical.from_moments(torch.tensor([[0.95, 0.05]]).double().expand(1000, 2))
        y = torch.arange(1000) % 2
        error = metric(p, y, rng=rng, num_draws=50)
        assert error.value == pytest.approx(0.45)
        assert error.null < 0.02

    def test_interval_is_of_the_true_error_which_the_value_overstates(self):
        """300 rows of confidence .5 to 1, right 5 points less often: values exceed .05."""
        rng = generator(0, "bias")
        values, middles = [], []
        for _ in range(50):
            top = 0.5 + 0.5 * torch.rand(300, generator=rng, dtype=torch.float64)
            p = Categorical.from_moments(torch.stack([top, 1 - top], -1))
            y = (torch.rand(300, generator=rng) > top - 0.05).long()
            error = metrics.ece(p, y, rng=rng, num_draws=50)
            values.append(error.value)
            middles.append(sum(error.interval) / 2)
        assert np.mean(values) > 0.06
        assert abs(np.mean(middles) - 0.05) < 0.008


class TestReliability:
    @pytest.mark.parametrize("num_bins", [1, 2, 15, 40])
    def test_its_weighted_mean_gap_is_the_ece(self, num_bins, classes, rng):
        p, y = classes
        bins = metrics.reliability(p, y, num_bins)
        triples = zip(bins.count, bins.confidence, bins.accuracy, strict=True)
        gap = sum(n * abs(a - c) for n, c, a in triples) / len(y)
        error = metrics.ece(p, y, rng=rng, num_bins=num_bins, num_draws=2)
        assert gap == pytest.approx(error.value, abs=1e-12)


@pytest.mark.parametrize("metric", [metrics.nll, metrics.accuracy, metrics.brier])
def test_labels_that_cannot_be_are_refused(metric, classes):
    """Columns, floats, and classes that the predictive does not have."""
    p, y = classes
    for bad in (y.unsqueeze(-1), y[:1], y.float(), y - 1, y + 1):
        with pytest.raises(PoolError):
            metric(p, bad)


@pytest.mark.parametrize(
    "metric", [metrics.interval_coverage, lambda p, y, n: metrics.interval_width(p, n)]
)
def test_levels_are_probabilities(metric, numbers):
    with pytest.raises(PoolError, match="between 0 and 1"):
        metric(*numbers, 95)


@pytest.mark.parametrize("metric", [metrics.nll, metrics.crps, metrics.rmse, metrics.pit])
def test_columns_of_targets_are_refused(metric, numbers):
    """(B, 1) against (B,) would score every prediction against every target."""
    p, y = numbers
    with pytest.raises(PoolError, match="one number per row"):
        metric(p, y.unsqueeze(-1))
