"""Times to an event: the family, its sums, and how its predictions are scored."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from predbayes.errors import PoolError
from predbayes.exchange.upload import from_arrays, to_arrays
from predbayes.learning.likelihood import Hazards
from predbayes.predictive.families import Survival, at_risk, average
from predbayes.predictive.measures import MEASURES, row_values
from predbayes.predictive.pooling import LOG_POOL, PredictiveSum
from predbayes.predictive.survival import (
    KaplanMeier,
    brier_by_time,
    concordance_rows,
    integrated_brier_rows,
    kaplan_meier,
    num_supported,
    risk_gap_rows,
)
from predbayes.predictive.tuning import tune_weights
from tests.core.predictive.survival_oracle import FILE

NUM = 5


def outcomes(num_rows=400, seed=0):
    """Inputs, log odds of hazards, and targets with random censoring, none at the same time."""
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_rows, 3, generator=rng).double()
    log_odds = -1.5 + inputs[:, :1] - 0.5 * inputs[:, 1:2] + 0.2 * torch.arange(NUM)
    events = torch.rand(num_rows, NUM, generator=rng).double() < log_odds.sigmoid()
    first = torch.where(events.any(1), events.double().argmax(1), NUM)
    time = first + torch.rand(num_rows, generator=rng).double().clamp(0.01, 0.99)
    seen = 8 * torch.rand(num_rows, generator=rng).double()
    targets = torch.where((time <= seen) & (first < NUM), time, -seen.minimum(time).clamp(max=NUM))
    return inputs, log_odds, targets


class TestFamily:
    def test_moments_are_those_of_trials_one_after_another(self):
        log_odds = torch.randn(7, NUM).double()
        hazards, left = log_odds.sigmoid(), torch.ones(7).double()
        found = Survival(log_odds).moments()
        for j in range(NUM):
            torch.testing.assert_close(found[:, j], left * hazards[:, j])
            left = left * (1 - hazards[:, j])
        torch.testing.assert_close(found[:, -1], left)
        torch.testing.assert_close(Survival(log_odds).curve()[:, -1], left)

    def test_moments_and_natural_coordinates_are_inverse(self):
        log_odds = 3 * torch.randn(50, NUM).double()
        torch.testing.assert_close(
            Survival.from_moments(Survival(log_odds).moments()).log_odds, log_odds
        )

    def test_likelihood_is_that_of_the_intervals_that_were_seen(self):
        p = Survival(torch.randn(4, NUM).double())
        log_h, log_s = p.log_odds.sigmoid().log(), (-p.log_odds).sigmoid().log()
        targets = torch.tensor([2.3, -2.3, -2.6, -5.0]).double()
        expected = [
            log_s[0, :2].sum() + log_h[0, 2],
            log_s[1, :2].sum(),  # seen for less than half of the third
            log_s[2, :3].sum(),
            log_s[3].sum(),
        ]
        torch.testing.assert_close(p.log_prob(targets), torch.stack(expected))

    def test_a_mixture_is_that_of_the_distributions_of_the_interval(self):
        a, b = (Survival(torch.randn(6, NUM).double()) for _ in range(2))
        total = PredictiveSum.of(a, 30.0) + PredictiveSum.of(b, 10.0)
        expected = 0.75 * a.moments() + 0.25 * b.moments()
        torch.testing.assert_close(total.mixture().moments(), expected)
        torch.testing.assert_close(average([a, b]).moments(), 0.5 * a.moments() + 0.5 * b.moments())

    def test_a_log_pool_averages_log_odds_of_hazards(self):
        a, b = (Survival(torch.randn(6, NUM).double()) for _ in range(2))
        total = PredictiveSum.of(a, 30.0, terms=(LOG_POOL,)) + PredictiveSum.of(
            b, 10.0, terms=(LOG_POOL,)
        )
        torch.testing.assert_close(
            total.pool({"log_pool": 1.0}).log_odds, 0.75 * a.log_odds + 0.25 * b.log_odds
        )

    def test_tuning_is_a_logistic_regression_of_trials(self):
        _, log_odds, targets = outcomes()
        wrong = Survival(0.5 * log_odds + 0.7)
        total = PredictiveSum.of(wrong).with_component("one", Survival(torch.ones_like(log_odds)))
        tuned = tune_weights(
            total, targets, base="product", components=("product", "one"), prior_std=None
        )
        seen = at_risk(targets, NUM)
        happened = torch.zeros_like(log_odds)
        rows = (targets > 0).nonzero()[:, 0]
        happened[rows, targets[rows].ceil().long() - 1] = 1
        pooled = total.pool(tuned.weights).log_odds
        residual = (happened - pooled.sigmoid())[seen]
        # At the optimum residuals are orthogonal to both components.
        assert abs(float(residual.sum())) < 1e-6
        assert abs(float((residual * wrong.log_odds[seen]).sum())) < 1e-6
        assert tuned.nll == pytest.approx(
            float(-total.pool(tuned.weights).log_prob(targets).mean()), abs=1e-9
        )

    @pytest.mark.parametrize("wrong", [[0.0, 1.0], [6.0, 1.0], [float("nan"), 1.0]])
    def test_refuses_what_is_no_time_in_intervals(self, wrong):
        with pytest.raises(PoolError, match="in intervals"):
            Survival(torch.zeros(2, NUM)).log_prob(torch.tensor(wrong))

    def test_travels_as_log_odds(self):
        p = Survival(torch.randn(6, NUM))
        assert torch.equal(from_arrays(to_arrays(p)).log_odds, p.log_odds)


class TestLikelihood:
    def test_soft_targets_that_are_certain_are_hard_ones(self):
        outputs = torch.randn(3, NUM)
        certain = torch.tensor([[0, 0, 1.0, 0, 0, 0], [1.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1.0]])
        likelihood = Hazards(NUM)
        torch.testing.assert_close(
            likelihood.soft_loss(outputs, certain),
            likelihood.loss(outputs, torch.tensor([2.5, 0.5, -5.0])),
        )


@pytest.fixture(scope="module")
def told():
    """What scikit-survival says of some rows."""
    answers = json.loads(FILE.read_text()).items()
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in answers}


class TestMeasures:
    def test_c_index_is_that_of_scikit_survival(self, told):
        p = Survival(told["log_odds"])
        for name in ("", "tied_"):
            rows = concordance_rows(p, told["tied" if name else "targets"])
            assert float(rows.mean()) == pytest.approx(float(told[f"{name}c_index"]), abs=1e-9)

    def test_c_index_has_an_interval_that_covers(self):
        truth = float(concordance_rows(*_scored(4_000, 99)).mean())
        inside = 0
        for seed in range(200):
            rows = concordance_rows(*_scored(120, seed))
            low, high = MEASURES["c_index"].interval(
                float(rows.mean()), float(rows.std()) / len(rows) ** 0.5, len(rows)
            )
            inside += low <= truth <= high
        assert 180 <= inside <= 199

    def test_brier_score_is_that_of_scikit_survival(self, told):
        found = brier_by_time(Survival(told["log_odds"]), told["targets"]).mean(0)
        np.testing.assert_allclose(found[:-1], told["brier"], rtol=1e-9)

    def test_integrated_brier_is_the_area_over_time(self):
        _, log_odds, targets = outcomes(seed=1)
        p, ends = Survival(log_odds), (1.0, 3.0, 4.0, 8.0, 20.0)
        by_time = np.concatenate([[0], brier_by_time(p, targets).mean(0)])
        expected = np.trapezoid(by_time, [0, *ends]) / 20
        assert float(integrated_brier_rows(p, targets, ends).mean()) == pytest.approx(expected)

    def test_kaplan_meier_is_that_of_scikit_survival(self, told):
        found, times = kaplan_meier(told["tied"]), told["times"]
        np.testing.assert_allclose(found.at(times), told["shares"], rtol=1e-9)
        low, high = found.interval(times)
        known = told["shares"] < 1
        np.testing.assert_allclose(low[known], told["low"][known], rtol=1e-4)
        np.testing.assert_allclose(high[known], told["high"][known], rtol=1e-4)

    def test_intervals_where_the_formula_has_none(self):
        km = KaplanMeier.of(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, True, True]))
        low, high = km.interval(torch.tensor([0.5, 3.0]))
        assert high[0] == 1
        assert 0 < float(low[0]) < 1
        assert low[1] == 0
        assert 0 < float(high[1]) < 1

    def test_risk_gap_is_observed_by_kaplan_and_meier_less_expected(self):
        _, log_odds, targets = outcomes(seed=3)
        p = Survival(log_odds)
        observed = 1 - float(kaplan_meier(targets).at(torch.tensor([float(NUM)])))
        expected = float((1 - p.curve()[:, -1]).mean())
        assert float(risk_gap_rows(p, targets).mean()) == pytest.approx(observed - expected)

    def test_nothing_is_told_of_a_horizon_that_nobody_was_seen_to(self):
        # The truth, of rows that were all last seen in the first of three intervals.
        hazard, ends = 1 - np.exp(-0.4), 0.8 + 0.2 * torch.rand(300, generator=_rng(0)).double()
        times = -torch.rand(300, generator=_rng(1)).double().log() / 0.4
        targets = torch.where(times <= ends, times, -ends)
        p = Survival(torch.full((300, 3), float(np.log(hazard / (1 - hazard)))).double())
        assert num_supported(targets, 3) == 0
        assert row_values(p, targets).keys() == {"nll", "c_index"}
        later = torch.where(times <= 3, times, -3.0)
        assert num_supported(later, 3) == 3
        assert {"risk_gap", "integrated_brier"} <= row_values(p, later).keys()

    def test_nothing_is_told_of_a_horizon_that_few_rows_come_near(self):
        # The last one has the event, so the share that is seen stays above nothing.
        targets = torch.tensor([-0.4, -0.5, 0.6, -0.7, 0.8, 1.2, 1.9]).double()
        assert num_supported(targets, 3) == 1
        assert num_supported(targets.abs(), 3) == 3  # nobody was lost from sight

    def test_no_event_among_few_who_were_seen_says_little(self):
        targets = -torch.cat([torch.full((99,), 0.1), torch.tensor([3.0])])
        low, high = kaplan_meier(targets).interval(torch.tensor([0.05, 3.0, 4.0]))
        assert float(low[0]) == pytest.approx(0.05 ** (1 / 100))
        assert float(low[1]) == pytest.approx(0.05)
        assert float(low[2]) == 0
        assert high.tolist() == [1, 1, 1]

    def test_c_index_of_ten_events_or_more_has_an_interval_that_covers(self):
        truth = float(concordance_rows(*_rare(4_000, 99, 0.03)).mean())
        drawn = [_rare(100, seed, 0.03) for seed in range(300)]
        ends = [_interval("c_index", row_values(*one)) for one in drawn if (one[1] > 0).sum() >= 10]
        assert len(ends) > 150
        assert 0.92 <= np.mean([low <= truth <= high for low, high in ends]) < 1
        assert all(0 <= low < high <= 1 for low, high in ends)

    def test_risk_gap_of_few_events_is_not_too_sure(self):
        missed = 0
        for seed in range(400):
            p, targets = _rare(100, seed, 0.01)
            low, high = _interval("risk_gap", row_values(p, targets))
            missed += not low <= 0 <= high
        assert missed <= 0.06 * 400

    def test_risk_gap_without_an_event_has_a_width(self):
        p = Survival(torch.full((50, 3), -4.0))
        low, high = _interval("risk_gap", row_values(p, torch.full((50,), -3.0)))
        assert low < 0 < high


def _rng(seed):
    return torch.Generator().manual_seed(seed)


def _rare(num_rows, seed, rate):
    """The truth, and times of which few are of events by the end of three intervals."""
    rng = _rng(seed)
    log_odds = torch.randn(num_rows, generator=rng).double() + float(np.log(rate))
    times = torch.rand(num_rows, generator=rng).double().log() / (-log_odds).sigmoid().log()
    targets = torch.where(times <= 3, times.clamp_min(1e-4), -3.0)
    return Survival(log_odds[:, None].expand(-1, 3)), targets


def _interval(name, values):
    rows = values[name]
    error = float(rows.std()) / len(rows) ** 0.5
    return MEASURES[name].interval(float(rows.mean()), error, len(rows))


def _scored(num_rows, seed):
    _, log_odds, targets = outcomes(num_rows, seed)
    return Survival(log_odds), targets
