"""A shared fit is the fit that would have been made."""

from __future__ import annotations

import pytest
import torch

from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Learner, Network, OptimizerSettings, SGDLearner
from predbayes.learning.nets import mlp
from predbayes.posterior.samples import WeightSamples
from predbayes.seeding import generator
from predbayes_lab.shared import Shared

NETWORK = Network(lambda: mlp(2, 2, hidden=(4,)), Softmax(2))
LEARNER = SGDLearner(NETWORK, OptimizerSettings(num_epochs=2))


class Counting(Learner):
    """A learner that counts its fits."""

    def __init__(self):
        self.network, self.device, self.num_fits = NETWORK, "cpu", 0

    def fit(self, rows, *, rng, start=None, penalty=None):
        self.num_fits += 1
        return LEARNER.fit(rows, rng=rng, start=start, penalty=penalty)


@pytest.fixture
def rows(rng):
    return torch.randn(30, 2, generator=rng), torch.randint(2, (30,), generator=rng)


def vector(predictor):
    return predictor.samples.vectors()[0]


def test_the_second_fit_is_the_first_and_leaves_the_generator_where_it_would(rows):
    counting = Counting()
    shared = Shared(counting, [rows])
    own = generator(1)
    expected = vector(LEARNER.fit(rows, rng=own))
    for _ in range(2):
        rng = generator(1)
        assert torch.equal(vector(shared.fit(rows, rng=rng)), expected)
        assert torch.equal(rng.get_state(), own.get_state())
    assert counting.num_fits == 1


def test_another_state_start_or_site_is_another_fit(rows, rng):
    other = (rows[0].clone(), rows[1])
    start = WeightSamples.of(NETWORK.create(rng))
    counting = Counting()
    shared = Shared(counting, [rows, other])
    for again in range(2):
        shared.fit(rows, rng=generator(1))
        shared.fit(rows, rng=generator(2))
        shared.fit(rows, rng=generator(1), start=start)
        shared.fit(other, rng=generator(1))
        assert counting.num_fits == 4, again


def test_foreign_rows_and_penalties_are_not_kept(rows):
    counting = Counting()
    shared = Shared(counting, [])
    for _ in range(2):
        shared.fit(rows, rng=generator(1))
    assert counting.num_fits == 2
    shared = Shared(counting, [rows])
    for _ in range(2):
        shared.fit(rows, rng=generator(1), penalty=lambda module: None)
    assert counting.num_fits == 4
