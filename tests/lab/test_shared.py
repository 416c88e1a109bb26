"""A shared fit is the fit that would have been made."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Learner, Network, OptimizerSettings, SGDLearner
from predbayes.learning.nets import mlp
from predbayes.posterior.samples import WeightSamples
from predbayes.seeding import generator
from predbayes_lab.shared import FitStore, Shared

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


class TestStore:
    """What is read from a disk is the fit that would have been made."""

    def stored(self, folder, rows=(), *, identity="one", learner=None):
        """A learner as another process would have it, and the one that it counts."""
        counting = Counting() if learner is None else learner
        return Shared(counting, rows, FitStore(folder, identity)), counting

    @pytest.mark.parametrize("known", [True, False], ids=["a site", "other rows"])
    def test_the_second_process_fits_nothing(self, rows, tmp_path, known):
        own = generator(1)
        expected = LEARNER.fit(rows, rng=own)
        for num_fits in (1, 0):
            shared, counting = self.stored(tmp_path, [rows] if known else [])
            rng = generator(1)
            fitted = shared.fit(rows, rng=rng)
            assert counting.num_fits == num_fits
            assert torch.equal(vector(fitted), vector(expected))
            assert list(fitted.samples.arrays()) == list(expected.samples.arrays())
            natural = fitted.predict(rows[0]).natural()
            assert torch.equal(natural, expected.predict(rows[0]).natural())
            assert torch.equal(rng.get_state(), own.get_state())
        assert len(list(tmp_path.iterdir())) == 1

    def test_whatever_else_differs_is_another_fit(self, rows, rng, tmp_path):
        self.stored(tmp_path)[0].fit(rows, rng=generator(1))
        start = WeightSamples.of(NETWORK.create(rng))
        moved, flipped = rows[0].clone(), rows[1].clone()
        moved[3, 1] += 1e-6
        flipped[0] = 1 - flipped[0]
        shared, counting = self.stored(tmp_path)
        shared.fit(rows, rng=generator(2))
        shared.fit(rows, rng=generator(1), start=start)
        shared.fit((moved, rows[1]), rng=generator(1))
        shared.fit((rows[0], flipped), rng=generator(1))
        other, counting_too = self.stored(tmp_path, identity="other settings or code")
        other.fit(rows, rng=generator(1))
        assert (counting.num_fits, counting_too.num_fits) == (4, 1)
        assert len(list(tmp_path.iterdir())) == 6

    @pytest.mark.parametrize("damage", [lambda b: b[:-5], lambda b: b"", lambda b: b[:-1] + b"?"])
    def test_a_damaged_file_is_not_trusted_but_made_anew(self, rows, tmp_path, damage):
        expected = vector(self.stored(tmp_path)[0].fit(rows, rng=generator(1)))
        (path,) = tmp_path.iterdir()
        path.write_bytes(damage(path.read_bytes()))
        for num_fits in (1, 0):
            shared, counting = self.stored(tmp_path)
            assert torch.equal(vector(shared.fit(rows, rng=generator(1))), expected)
            assert counting.num_fits == num_fits
            assert list(tmp_path.iterdir()) == [path]

    def test_predictors_that_are_more_than_weights_are_not_stored(self, rows, tmp_path):
        class Sharper(Counting):
            def fit(self, rows, *, rng):
                return replace(super().fit(rows, rng=rng), inverse_temperature=2.0)

        class Forest(Counting):
            def fit(self, rows, *, rng):
                return "a forest"

        class Bare(Learner):
            def fit(self, rows, *, rng):
                return "a forest"

        for learner in (Sharper(), Forest(), Bare()):
            self.stored(tmp_path, learner=learner)[0].fit(rows, rng=generator(1))
        assert list(tmp_path.iterdir()) == []
