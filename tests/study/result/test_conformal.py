"""Promised coverage: that it holds, that counts add up, and what MAPIE and crepes say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import generator
from predbayes_study.result.statistics.coverage import (
    ScoreBins,
)
from predbayes_study.tasks.classes import Classes, promised_sets
from predbayes_study.tasks.numbers import Numbers
from tests.core.oracles import FALSE_ALARM, random_categorical

ORACLE = json.loads(Path(__file__).with_name("conformal_oracle.json").read_text())
LEVELS = ("0.6", "0.8", "0.9", "0.95")


def exact(scores):
    """Bins so fine that every row has its own."""
    return ScoreBins.count(scores, sorted(set(scores.tolist())))


def drawn(name):
    return torch.tensor(ORACLE[name], dtype=torch.float64)


@pytest.mark.parametrize("level", LEVELS)
class TestOracles:
    def test_sets_of_classes_are_those_of_mapie(self, level):
        predictive = Categorical(drawn("probs").log())
        labels = torch.tensor(ORACLE["labels"][:100])
        scores = Classes().strangeness(predictive[:100], labels)
        inside = 1 - predictive[100:].moments() <= exact(scores).bound(float(level))
        assert inside.tolist() == ORACLE["sets"][level]

    def test_intervals_of_numbers_are_those_of_crepes(self, level):
        predictive = Gaussian(drawn("mean"), drawn("std").square())
        bound = exact(Numbers().strangeness(predictive[:100], drawn("numbers")[:100])).bound(
            float(level)
        )
        reach = bound * predictive.var[100:].sqrt()
        ends = torch.stack([predictive.mean[100:] - reach, predictive.mean[100:] + reach], 1)
        assert ends.numpy() == pytest.approx(np.array(ORACLE["ends"][level]), rel=1e-9)


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("num_sites", [1, 3])
def test_coverage_is_as_promised_and_little_more(level, num_sites):
    """A model that is wrong about its spread; 150 rows at each site, 100 draws."""
    rng, num_draws, num_new = generator(3, "coverage"), 100, 50
    hits = torch.zeros(num_draws, dtype=torch.float64)
    for draw in range(num_draws):
        bins = [
            ScoreBins.cut(2.5 * torch.randn(150, generator=rng).abs(), Numbers.grid, 5)
            for _ in range(num_sites)
        ]
        bound = ScoreBins.added(bins).bound(level)
        hits[draw] = (2.5 * torch.randn(num_new, generator=rng).abs() <= bound).double().mean()
    error = stats.norm.isf(FALSE_ALARM) * float(hits.std()) / math.sqrt(num_draws)
    rows = 150 * num_sites
    # Four rows of each site may share the bin of the bound, and the grid has a width, too.
    most = level + (4 * num_sites + 5 + 1) / rows + 0.015
    assert level - error <= float(hits.mean()) <= most + error


@pytest.mark.parametrize("grid", [Classes.grid, Numbers.grid])
@pytest.mark.parametrize("least", [5, 12])
class TestCut:
    def scores(self, seed=0, num=300):
        return torch.rand(num, generator=generator(seed, "scores"), dtype=torch.float64).square()

    def test_no_bin_is_small_and_every_row_is_in_one(self, grid, least):
        scores = self.scores()
        bins = ScoreBins.cut(scores, grid, least)
        assert min(bins.counts) >= least
        assert bins.num_rows == 300
        assert len(bins.counts) > 300 / least / 3
        assert bins == ScoreBins.count(scores, bins.edges)

    def test_a_bound_from_counts_is_never_below_that_of_the_rows(self, grid, least):
        parts = [self.scores(seed, 60 + 50 * seed) for seed in range(4)]
        together = exact(torch.cat(parts))
        added = ScoreBins.added([ScoreBins.cut(part, grid, least) for part in parts])
        assert added.num_rows == together.num_rows
        for level in torch.linspace(0.01, 0.99, 99).tolist():
            assert added.bound(level) >= together.bound(level)

    def test_few_rows_are_one_bin_that_promises_nothing(self, grid, least):
        bins = ScoreBins.cut(self.scores(num=2 * least - 1), grid, least)
        assert (bins.edges, bins.counts) == ((), (2 * least - 1,))
        assert bins.bound(0.5) == math.inf
        assert bins.most == 0


def test_too_few_rows_promise_nothing():
    """9 of 9 rows are 90 % of 10; 8 are not."""
    assert exact(torch.arange(1.0, 10.0)).bound(0.9) == 9
    assert exact(torch.arange(1.0, 9.0)).bound(0.9) == math.inf
    assert exact(torch.arange(1.0, 101.0)).bound(0.57) == 58  # of 101 rows


def test_how_many_rows_are_below_is_known_up_to_one_bin():
    bins = ScoreBins((0.2, 0.5), (10, 20, 30))
    assert bins.below(0.1) == (0, 10)
    assert bins.below(0.2) == (10, 10)
    assert bins.below(0.4) == (10, 30)
    assert bins.below(math.inf) == (60, 60)


def test_a_set_is_never_empty():
    predictive = random_categorical(generator(0, "sets"), num_rows=50)
    assert promised_sets(predictive, 0.0).sum(1).eq(1).all()
