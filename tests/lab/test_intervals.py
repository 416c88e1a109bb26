"""Intervals over seeds, and over the test rows of an experiment, cover what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predbayes_lab.statistics import over_rows, summarise
from tests.core.statistical.test_intervals import TIMES, assert_covers


class TestOverSeeds:
    """`experiment table`, `experiment verdict`, `results/claims.json`."""

    @TIMES
    @pytest.mark.parametrize("num_seeds", [2, 3, 10])
    def test_a_mean_or_difference(self, num_seeds, times):
        draws = np.random.default_rng(num_seeds).normal(0.3, 1, (1500 * times, num_seeds))
        assert_covers([summarise(one).interval for one in draws], 0.3)

    @TIMES
    @pytest.mark.parametrize("num_seeds", [2, 10])
    def test_with_overlapping_test_sets(self, num_seeds, times):
        """Differences with the correlation that the correction assumes: tested / all rows."""
        rng, ratio = np.random.default_rng(num_seeds), 0.25
        rho = ratio / (1 + ratio)
        shared = rng.normal(size=(1500 * times, 1)) * math.sqrt(rho)
        draws = shared + rng.normal(size=(1500 * times, num_seeds)) * math.sqrt(1 - rho)
        assert_covers([summarise(one, ratio).interval for one in draws], 0.0)

    @TIMES
    def test_of_learners_that_are_trained_on_overlapping_rows(self, times):
        """Two ridge regressions on ten random splits of 100 rows; the truth is over all data."""
        rng = np.random.default_rng(0)
        truth = np.mean([_split_difference(_table(rng, 100), rng) for _ in range(4000)])
        found = []
        for _ in range(150 * times):
            table = _table(rng, 100)
            differences = [_split_difference(table, rng) for _ in range(10)]
            found.append(summarise(differences, 0.25).interval)
        # The correction is made for learners at large; for these it is a little wide.
        assert_covers(found, truth, most=0.05)

    @TIMES
    def test_over_test_rows(self, times):
        """Of the difference of two models' losses, 500 rows and three seeds with the same rows."""
        rng = np.random.default_rng(1)
        found = []
        for _ in range(600 * times):
            shared = rng.gamma(1.0, size=500) - 1.0
            found.append(over_rows([shared + rng.normal(0, 0.1, 500) for _ in range(3)]))
        assert_covers(found, 0.0)


def _table(rng, num_rows):
    x = rng.normal(size=(num_rows, 5))
    return x, x @ np.array([1.0, 0.5, 0.0, 0.0, -0.5]) + rng.normal(size=num_rows)


def _split_difference(table, rng, num_test=20):
    """Test error of a weak less that of a strong ridge penalty, on one random split."""
    x, y = table
    order = rng.permutation(len(y))
    test, train = order[:num_test], order[num_test:]
    gram, moment = x[train].T @ x[train], x[train].T @ y[train]
    errors = []
    for penalty in (0.1, 40.0):
        weights = np.linalg.solve(gram + penalty * np.eye(5), moment)
        errors.append(np.square(y[test] - x[test] @ weights).mean())
    return errors[0] - errors[1]
