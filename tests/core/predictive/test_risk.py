"""Figures of a risk are those of scikit-learn and of direct formulas; from counts they are near."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import binomtest

from predbayes.predictive.estimate import wilson
from predbayes.predictive.families import Categorical
from predbayes.predictive.risk import Decision, Risks, macro
from predbayes.seeding import generator

linear_model = pytest.importorskip("sklearn.linear_model")
oracle = pytest.importorskip("sklearn.metrics")

NEAR = pytest.approx
THRESHOLDS = (0.1, 0.2, 0.5)


def draw(seed=0, num_rows=400, ties=False, shift=-1.0, slope=0.7):
    """Risks that are too extreme, of an event that is not frequent."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(shift, 1.3, num_rows)
    if ties:
        odds = odds.round(1)
    event = rng.random(num_rows) < 1 / (1 + np.exp(-slope * odds))
    return Risks(torch.from_numpy(odds), torch.from_numpy(event))


def as_arrays(risks):
    return risks.event.numpy(), risks.risk.numpy(), risks.log_odds.numpy()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
class TestAgainstOracles:
    def test_auroc_and_average_precision_are_those_of_scikit_learn(self, seed, ties):
        risks = draw(seed, ties=ties)
        event, risk, _ = as_arrays(risks)
        assert risks.auroc().value == NEAR(oracle.roc_auc_score(event, risk), abs=1e-9)
        expected = oracle.average_precision_score(event, risk)
        assert risks.average_precision().value == NEAR(expected, abs=1e-9)

    def test_the_slope_is_that_of_a_logistic_regression(self, seed, ties):
        risks = draw(seed, ties=ties)
        event, _, odds = as_arrays(risks)
        fit = linear_model.LogisticRegression(
            C=np.inf, solver="newton-cholesky", tol=1e-14, max_iter=1000
        )
        fit.fit(odds[:, None], event)
        assert risks.slope().value == NEAR(float(fit.coef_[0, 0]), abs=1e-9)
        probs = fit.predict_proba(odds[:, None])[:, 1]
        design = np.stack([np.ones_like(odds), odds], 1)
        error = np.linalg.inv(design.T @ (design * (probs * (1 - probs))[:, None]))[1, 1] ** 0.5
        assert risks.slope().high - risks.slope().value == NEAR(1.959963984540054 * error)

    def test_the_intercept_makes_risks_right_on_average(self, seed, ties):
        risks = draw(seed, ties=ties)
        event, _, odds = as_arrays(risks)
        root = brentq(lambda a: (1 / (1 + np.exp(-odds - a)) - event).sum(), -9, 9, xtol=1e-13)
        assert risks.intercept().value == NEAR(root, abs=1e-9)

    def test_observed_over_expected(self, seed, ties):
        risks = draw(seed, ties=ties)
        event, risk, _ = as_arrays(risks)
        assert risks.observed_expected().value == NEAR(event.sum() / risk.sum(), abs=1e-9)

    @pytest.mark.parametrize("threshold", THRESHOLDS)
    def test_decisions_are_those_of_the_confusion_matrix(self, seed, ties, threshold):
        risks = draw(seed, ties=ties)
        event, risk, _ = as_arrays(risks)
        (tn, fp), (fn, tp) = oracle.confusion_matrix(event, risk >= threshold)
        found = {name: one.value for name, one in risks.decision(threshold).figures().items()}
        assert found == NEAR(
            {
                "sensitivity": tp / (tp + fn),
                "specificity": tn / (tn + fp),
                "ppv": tp / (tp + fp),
                "npv": tn / (tn + fn),
                # dcurves: tp_rate - threshold / (1 - threshold) * fp_rate, rates of all rows
                "net_benefit": tp / len(event) - threshold / (1 - threshold) * fp / len(event),
            },
            abs=1e-9,
        )
        prevalence = event.mean()
        everybody = prevalence - (1 - prevalence) * threshold / (1 - threshold)
        assert risks.decision(threshold).treat_all() == NEAR(everybody, abs=1e-9)


def test_the_net_benefits_interval_is_students_of_the_rows():
    risks = draw()
    event, risk, _ = as_arrays(risks)
    rows = (risk >= 0.2) * np.where(event, 1.0, -0.25)
    found = risks.decision(0.2).net_benefit()
    error = rows.std(ddof=1) / len(rows) ** 0.5
    assert (found.high - found.value) / error == NEAR(1.966, abs=1e-3)  # t of 399 degrees


def test_several_classes_are_each_against_the_others_and_their_mean():
    rng = generator(0, "classes")
    predictive = Categorical(torch.randn(300, 3, generator=rng).double().log_softmax(-1))
    targets = torch.multinomial(predictive.moments(), 1, generator=rng)[:, 0]
    found = macro(predictive, targets, Risks.auroc)
    expected = oracle.roc_auc_score(targets, predictive.moments(), multi_class="ovr")
    assert found.value == NEAR(expected, abs=1e-9)
    one = Risks.of(predictive, targets, 2)
    assert one.risk.numpy() == NEAR(predictive.moments()[:, 2].numpy(), abs=1e-12)
    assert macro(predictive, targets.clamp_max(1), Risks.auroc) is not None  # one class is absent


class TestUndefined:
    def test_without_events_or_others_little_can_be_said(self):
        for event in (torch.zeros(9), torch.ones(9)):
            risks = Risks(torch.linspace(-1, 1, 9).double(), event.bool())
            assert risks.auroc() is None
            assert risks.slope() is None
            assert risks.intercept() is None
        assert "sensitivity" not in Decision(0.1, 0, 3, 0, 9).figures()
        assert "ppv" not in Decision(0.9, 0, 0, 3, 9).figures()

    def test_separated_rows_have_no_slope_but_an_area_with_an_interval(self):
        odds = torch.linspace(-2, 2, 40).double()
        risks = Risks(odds, odds > 0)
        assert risks.slope() is None
        area = risks.auroc()
        assert (area.value, area.high) == (1.0, 1.0)
        assert 0.85 < area.low < 0.99

    @pytest.mark.parametrize("gap", [1.0, 3.0, 5.0, 8.0, 12.0, 20.0])
    def test_rows_that_are_separated_have_no_slope_however_sure_they_are(self, gap):
        """Where risks are next to 0 and 1 the fit stops early, with an interval of billions."""
        sides = torch.linspace(-gap - 6, -gap, 320), torch.linspace(gap, gap + 4, 32)
        odds = torch.cat(sides).double()
        assert Risks(odds, odds > 0).slope() is None


def test_wilsons_interval_is_that_of_scipy():
    for hits, num in ((0, 20), (7, 20), (20, 20)):
        ends = binomtest(hits, num).proportion_ci(method="wilson")
        found = wilson(hits / num, num)
        assert (found.low, found.high) == NEAR((ends.low, ends.high), abs=1e-12)
