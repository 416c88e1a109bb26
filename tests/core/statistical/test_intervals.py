"""Every interval that the software prints covers what it says: within two points of 95 %.

Each test draws data whose truth is known, makes the interval as the software does, and counts how
often the truth is inside. The fast version allows three standard errors of that count on top of the
two points; the thorough one, which is slow, repeats more often. docs/intervals.md lists the tests.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from predbayes.predictive import estimate, metrics
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.measures import MEASURES, mean_estimate, row_values, whole_values
from predbayes.predictive.risk import AT_THRESHOLD, Risks
from predbayes.seeding import generator

TIMES = pytest.mark.parametrize(
    "times",
    [
        pytest.param(1, id="fast"),
        pytest.param(10, id="thorough", marks=pytest.mark.slow("ten times the draws")),
    ],
)


def assert_covers(intervals, truth, *, nominal=0.95, least=-0.02, most=0.02):
    """The share of intervals that hold the truth is nominal, within two points and chance."""
    ends = np.array(intervals, dtype=float)
    share = ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean()
    chance = 3 * math.sqrt(nominal * (1 - nominal) / len(ends))
    above = (truth > ends[:, 1]).mean()
    print(f"{share:.1%} of {len(ends):,}; above {above:.1%}")  # noqa: T201 - pytest -rP shows it
    assert nominal + least - chance <= share <= min(1.0, nominal + most + chance), share


def classifier(num_rows, rng, miss=0.0):
    """Predictions between .5 and 1, right less often by ``miss``, and labels."""
    u = torch.rand(num_rows, generator=rng, dtype=torch.float64)
    top = 0.5 + 0.5 * u.sqrt()  # Beta(2, 1)
    labels = (torch.rand(num_rows, generator=rng, dtype=torch.float64) > top - miss).long()
    return Categorical.from_moments(torch.stack([top, 1 - top], -1)), labels


def regression(num_rows, rng):
    mean = torch.randn(num_rows, generator=rng, dtype=torch.float64)
    std = 0.5 + torch.rand(num_rows, generator=rng, dtype=torch.float64)
    noise = torch.randn(num_rows, generator=rng, dtype=torch.float64)
    return Gaussian(mean, std.square()), mean + std * noise


class TestOverRows:
    """Scores in reports, in `site evaluate`, in comparisons of `site adopt`, and influences."""

    @TIMES
    @pytest.mark.parametrize("num_rows", [20, 60, 300])
    @pytest.mark.parametrize(
        ("draw", "name"),
        [
            (classifier, "nll"),
            (classifier, "brier"),
            (regression, "nll"),
            (regression, "rmse"),
            (regression, "crps"),
        ],
        ids=["nll of classes", "brier", "nll of numbers", "rmse", "crps"],
    )
    def test_a_score(self, draw, name, num_rows, times):
        rng = generator(0, "score", name)
        measure = MEASURES[name].of(classes=draw is classifier)
        truth = measure.value(row_values(*draw(2_000_000, rng))[name])
        found = []
        for _ in range(600 * times):
            rows = row_values(*draw(num_rows, rng))[name]
            error = float(rows.std()) / math.sqrt(num_rows)
            found.append(measure.interval(float(rows.mean()), error, num_rows))
        assert_covers(found, truth)

    @TIMES
    @pytest.mark.parametrize("num_rows", [20, 100, 1000])
    @pytest.mark.parametrize("share", [0.5, 0.9])
    def test_a_share(self, share, num_rows, times):
        """Accuracy, and the coverage of predictions; hits are whole numbers, so not exactly."""
        hits = np.random.default_rng(num_rows).binomial(num_rows, share, 1000 * times)
        known = {n: estimate.share(int(n), num_rows) for n in set(hits)}
        assert_covers([(known[n].low, known[n].high) for n in hits], share, most=0.03)

    @TIMES
    @pytest.mark.parametrize("num_rows", [20, 100, 500])
    def test_a_paired_difference(self, num_rows, times):
        """NLL of one model minus that of another, as in `site adopt` and for a site's influence."""
        rng = generator(0, "difference")

        def draw(num):
            good, labels = classifier(num, rng)
            noise = 0.4 * torch.randn(num, 2, generator=rng, dtype=torch.float64)
            other = Categorical.from_natural(good.log_probs + noise)
            return metrics.nll_rows(good, labels) - metrics.nll_rows(other, labels)

        truth = float(draw(2_000_000).mean())
        found = [mean_estimate(draw(num_rows)) for _ in range(600 * times)]
        assert_covers([(one.low, one.high) for one in found], truth)


def stated(num_rows, rng, shift=-1.5, slope=0.8):
    """Risks that are too extreme, of an event in about a quarter of rows."""
    odds = shift + 1.3 * torch.randn(num_rows, generator=rng, dtype=torch.float64)
    event = torch.rand(num_rows, generator=rng, dtype=torch.float64) < (slope * odds).sigmoid()
    return Risks(odds, event)


OF_RISKS = {
    name: getattr(Risks, name)
    for name in ("auroc", "average_precision", "slope", "intercept", "observed_expected")
} | {name: lambda risks, name=name: getattr(risks.decision(0.2), name)() for name in AT_THRESHOLD}


class TestRisks:
    """AUROC and the like in reports and model cards; those of evaluations reach farther."""

    @TIMES
    @pytest.mark.parametrize("num_rows", [100, 400])
    def test_a_figure_of_a_risk(self, num_rows, times):
        rng = generator(0, "risks", num_rows)
        everything = stated(1_000_000, rng)
        truth = {name: figure(everything).value for name, figure in OF_RISKS.items()}
        found = {name: [] for name in OF_RISKS}
        for _ in range(300 * times):
            risks = stated(num_rows, rng)
            for name, figure in OF_RISKS.items():
                one = figure(risks)
                found[name].append((one.low, one.high))
        for name, intervals in found.items():
            assert_covers(intervals, truth[name])

    @TIMES
    def test_an_explained_share(self, times):
        rng = generator(0, "r2")
        truth = whole_values(*regression(2_000_000, rng))["r2"].value
        found = [whole_values(*regression(200, rng))["r2"] for _ in range(500 * times)]
        assert_covers([(one.low, one.high) for one in found], truth)


def _tops(rng, num_rows, least, power):
    """Confidences from ``least`` to 1, the nearer to 1 the larger the power."""
    u = torch.rand(num_rows, generator=rng, dtype=torch.float64)
    return 1 - (1 - least) * u**power


def _shifted(change, *, least=None, power=1):
    """Rows of `classifier`, or as sure as `_tops`, and how often what is predicted is right."""

    def draw(num_rows, rng):
        if least is None:
            top = classifier(num_rows, rng)[0].moments()[:, 0]
        else:
            top = _tops(rng, num_rows, least, power)
        rate = change(top).clamp(0, 1)
        labels = (torch.rand(num_rows, generator=rng, dtype=torch.float64) > rate).long()
        return Categorical.from_moments(torch.stack([top, 1 - top], -1)), labels, rate

    return draw


MISCALIBRATIONS = {
    "calibrated": _shifted(lambda c: c),
    "overconfident": _shifted(lambda c: c - 0.05),
    "far overconfident": _shifted(lambda c: 0.5 + 0.4 * (c - 0.5)),
    "underconfident": _shifted(lambda c: c + 0.1 * (1 - c)),
    "wrong in one place": _shifted(lambda c: torch.where(c > 0.9, c - 0.1, c)),
    "of either sign": _shifted(lambda c: c + 0.06 * torch.sin(12 * c)),
    "sure, and calibrated": _shifted(lambda c: c, least=0.5, power=10),
    "sure, and overconfident": _shifted(lambda c: c - 0.02, least=0.5, power=10),
    "sure, and underconfident": _shifted(lambda c: c + 0.5 * (1 - c), least=0.5, power=10),
    "sure, and its logits too large by 1": _shifted(
        lambda c: torch.sigmoid(c.clamp(max=1 - 1e-9).logit() - 1), least=0.5, power=10
    ),
    "sure, and its logits too large by half": _shifted(
        lambda c: torch.sigmoid(c.clamp(max=1 - 1e-9).logit() / 1.5), least=0.5, power=10
    ),
    "surest, and calibrated": _shifted(lambda c: c, least=0.97),
    "surest, and overconfident": _shifted(lambda c: c - 0.02, least=0.97),
    "surest, and a little overconfident": _shifted(lambda c: c - 0.005, least=0.99),
}


class TestCalibrationError:
    """ECE in reports, model cards and `metrics.ece`; truth is the error of all rows there are."""

    @TIMES
    @pytest.mark.parametrize("name", MISCALIBRATIONS)
    def test_of_the_predicted_class(self, name, times):
        draw, rng = MISCALIBRATIONS[name], generator(0, "ece", name)
        predictive, _, rate = draw(2_000_000, rng)
        top = metrics.confidences(predictive)
        gaps = torch.bincount(metrics.bin_of(top, 15), rate - top).abs()
        truth = 0.0 if name.endswith("calibrated") else float(gaps.sum()) / len(top)
        found = []
        for _ in range(60 * times):
            predictive, labels, _ = draw(500, rng)
            found.append(metrics.ece(predictive, labels, rng=rng, num_draws=100).interval)
        # No construction covers every kind of error exactly: it is wide where errors are small.
        assert_covers(found, truth, most=0.05)


class TestPredictions:
    """`predict`, `predict_interval`: of a predictive that is right, at every level."""

    @pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
    def test_an_interval_of_a_row(self, level):
        predictive, targets = regression(20_000, generator(0, "rows"))
        low, high = predictive.interval(level)
        inside = ((low <= targets) & (targets <= high)).double().mean()
        assert float(inside) == pytest.approx(level, abs=0.02)
