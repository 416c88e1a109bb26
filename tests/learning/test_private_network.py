"""A network under differential privacy: proofs, as far as tests are any."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from predbayes.learning.accounting import Guarantee
from predbayes.learning.private import Descent, Noise, People, sensitivity
from predbayes.learning.private_network import Net, PrivateNetwork
from predbayes.seeding import generator
from tests.learning.test_private import CLIP, ROW, apart

FOUR = Guarantee(4.0, 1e-5, "replace-one", "person")
NET = Net(width=3, hidden=4, num_classes=3)
OTHERS = [([0.5, -1.0], 0), ([2.0, 0.1], 1), ([0.0, 0.0], 2)]


def told(rows, weights, coins=None):
    """The sum of a step, of three rows of two others and the rows of one person more."""
    inputs = torch.tensor([x for x, _ in OTHERS + rows], dtype=torch.float64)
    targets = np.array([y for _, y in OTHERS + rows])
    groups = torch.tensor([0, 1, 1] + [2] * len(rows))
    people = People.of(inputs, targets, 3, groups)
    if coins is not None:
        people = people.only(np.array(coins[: people.num]))
    return people.clipped_sum(NET.gradients, weights, CLIP)


class TestSensitivity:
    """The adversary chooses both tables, the weights and the coins."""

    @settings(max_examples=100, deadline=None)
    @given(
        mine=st.lists(ROW, min_size=1, max_size=5),
        instead=st.lists(ROW, max_size=5),
        weights=arrays(float, NET.num_weights, elements=st.floats(-1e3, 1e3)),
        coins=st.lists(st.booleans(), min_size=3, max_size=3),
    )
    def test_of_a_step(self, mine, instead, weights, coins):
        most = "replace-one" if instead else "add-or-remove"
        found = apart(told(mine, weights, coins), told(instead, weights, coins))
        assert found <= sensitivity(CLIP, most) if coins[2] else found == 0

    def test_the_bound_is_met(self):
        """So it is not stated too large, and gradients that are not clipped would be found."""
        weights = 5 * NET.start(Noise(b"k" * 32))
        one, other = ([([3.0, 3.0], label)] for label in (0, 1))
        alone = apart(told(one, weights), told([], weights))
        assert alone == pytest.approx(CLIP, rel=1e-6)
        assert CLIP < apart(told(one, weights), told(other, weights)) <= 2 * CLIP


class TestGradients:
    def test_are_each_rows_own(self):
        weights = np.random.default_rng(0).normal(size=NET.num_weights)
        features = np.random.default_rng(1).normal(size=(7, 3))
        wanted = np.eye(3)[np.arange(7) % 3]
        found = NET.gradients(weights, features, wanted)
        for row in range(7):
            leaf = torch.tensor(weights, requires_grad=True)
            logits = NET.logits(leaf, torch.tensor(features[row : row + 1]))
            torch.nn.functional.cross_entropy(logits, torch.tensor([row % 3])).backward()
            assert found[row] == pytest.approx(leaf.grad.numpy(), abs=1e-12)

    def test_of_somebody_are_the_mean_of_her_rows(self):
        weights = np.random.default_rng(0).normal(size=NET.num_weights)
        people = People.of(torch.randn(6, 2), np.arange(6) % 3, 3, torch.tensor([0, 0, 0, 1, 1, 2]))
        (found,) = people.means(NET.gradients, weights)
        of_rows = NET.gradients(weights, people.features, people.wanted)
        assert found[0] == pytest.approx(of_rows[:3].mean(0), abs=1e-12)
        assert len(found) == 3

    def test_are_in_memory_a_block_at_a_time(self, monkeypatch):
        monkeypatch.setattr("predbayes.learning.private._BLOCK", 2**16)
        net = Net(21, 32, 10)
        people = People.of(torch.randn(5000, 20), np.arange(5000) % 10, 10, None)
        tracemalloc.start()
        people.clipped_sum(net.gradients, net.start(Noise(b"k" * 32)), CLIP)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 0.1 * 8 * 5000 * net.num_weights  # of all gradients at once


class TestBatches:
    def test_have_each_person_with_the_stated_probability(self):
        people = People.of(torch.zeros(4000, 1), np.zeros(4000, dtype=int), 2, None)
        descent = Descent(1, 1.0, 1.0, 0.0, 0.0, 0.0, probability=0.2)
        sizes = [descent.batch(people, Noise(b"k" * 32), step).num for step in range(200)]
        # Of 800,000 coins the mean is within five deviations, which fails once in two million keys.
        assert abs(np.mean(sizes) - 800) < 5 * np.sqrt(4000 * 0.16 / 200)
        assert np.var(sizes) == pytest.approx(4000 * 0.16, rel=0.4)

    def test_have_all_rows_of_somebody_or_none(self):
        people = People.of(torch.arange(60.0)[:, None], np.arange(60) % 2, 2, torch.arange(60) // 3)
        some = people.only(np.arange(20) % 4 == 1)
        assert some.num == 5
        assert some.starts.tolist() == [0, 3, 6, 9, 12, 15]
        assert some.wanted[:3].tolist() == people.wanted[3:6].tolist()

    def test_may_be_empty_and_then_there_is_noise(self):
        people = People.of(torch.zeros(5, 2), np.zeros(5, dtype=int), 3, None)
        none = people.only(np.zeros(5, dtype=bool))
        assert not none.clipped_sum(NET.gradients, np.ones(NET.num_weights), CLIP).any()


class TestNoise:
    def test_of_a_step_has_the_stated_variance(self):
        """With one step and rate 1 the weights are the start and a noisy sum of hardly anything."""
        learner = PrivateNetwork(
            10, FOUR, b"k" * 32, probability=0.1, steps=1, rate=1.0, shrinkage=0.0, hidden=100,
            most_noise=np.inf,
        )  # fmt: skip
        rows = torch.zeros(100, 400), torch.arange(100) % 10
        model = learner.fit(rows, rng=generator(0))
        net, noise = model.net, Noise(b"k" * 32)
        counted = 100 + learner.count_deviation * noise.normals(1, "people")[0]
        moved = (model.weights.numpy() - net.start(noise))[: 400 * net.hidden]
        found = moved * 0.1 * max(counted, 2.0) * learner.clip
        # 40,000 numbers: the variance of a sample is within 2 % but once in 200 keys.
        assert found.var() == pytest.approx(learner.step_deviation**2, rel=0.02)

    def test_is_what_the_accountant_was_told(self):
        learner = PrivateNetwork(2, FOUR, clip=0.5)
        assert learner.step_deviation == 0.5 * learner.sampled.noise
        assert learner.count_deviation == pytest.approx(1 / learner.sampled.count_mu)
        assert (learner.sampled.probability, learner.sampled.steps) == (0.05, 300)

    def test_takes_smaller_steps_where_there_is_much_of_it(self):
        calm = Descent(100, 1.0, 4.0, 0.0, 2.0, 0.0, probability=0.1, most_noise=0.3)
        assert calm.scale(1e6) == 4.0 / (0.1 * 1e6)
        assert calm.scale(100.0) == pytest.approx(0.3 / (2.0 * 10))
        assert replace(calm, deviation=0.0).scale(100.0) == 4.0 / 10


class TestModel:
    @pytest.fixture
    def rows(self):
        rng = generator(1)
        inputs = torch.randn(3000, 2, generator=rng)
        return inputs, (inputs.prod(1) > 0).long()

    def test_learns_what_no_line_parts(self, rows):
        model = PrivateNetwork(2, FOUR, b"k" * 32).fit(rows, rng=generator(0))
        assert float(-model.predict(rows[0]).log_prob(rows[1]).mean()) < 0.5

    def test_noise_and_batches_are_the_secrets_and_not_the_seeds(self, rows):
        one, other = (PrivateNetwork(2, FOUR, key * 32, steps=5) for key in (b"k", b"l"))
        mine = one.fit(rows, rng=generator(0))
        assert mine.weights.equal(one.fit(rows, rng=generator(99)).weights)
        assert not mine.weights.equal(other.fit(rows, rng=generator(0)).weights)

    def test_somebody_with_all_rows_is_one(self, rows):
        people = torch.zeros(3000, dtype=torch.int64)
        learner = PrivateNetwork(2, None, probability=1.0, steps=2)
        assert learner.fit(rows, rng=generator(0), groups=people).people == 1
        by_rows = PrivateNetwork(2, replace(FOUR, unit="row"), b"k" * 32, steps=2)
        told = [by_rows.fit(rows, rng=generator(0), groups=one) for one in (people, None)]
        assert told[0].weights.equal(told[1].weights)

    def test_settings_have_noise_of_their_own(self):
        learner = PrivateNetwork(2, FOUR)
        changes = (
            {"steps": 301},
            {"clip": 3.0},
            {"probability": 0.2},
            {"hidden": 8},
            {"rate": 1.0},
        )
        assert len({replace(learner, **one).settings for one in ({}, *changes)}) == 6
        assert learner.settings == replace(learner, secret=b"k").settings


def _told_apart(deviation_share, runs=2000):
    """How far two tables are told apart at e^1: the empirical delta, and its standard error.

    One of 40 people has the gradient (1,) or (-1,), which is the worst pair; others have none.
    """
    learner = PrivateNetwork(2, GAME, probability=0.5, steps=2, clip=1.0)
    descent = Descent(
        2, 1.0, 1.0, 0.0, deviation_share * learner.step_deviation, learner.count_deviation, 0.5
    )
    found = []
    for sign in (1.0, -1.0):
        features = np.zeros((40, 1))
        features[7] = sign
        people = People(features, np.zeros((40, 1)), np.arange(41))
        for run in range(runs):
            noise = Noise(run.to_bytes(31, "big") + bytes([sign > 0]))
            weights, counted = descent.descend(people, np.zeros(1), lambda _, rows, __: rows, noise)
            found.append(-weights[0] * 0.5 * max(counted, 2.0))
    one, other = np.reshape(found, (2, runs))
    inside = [(one > at).mean() - np.e * (other > at).mean() for at in np.quantile(found, CUTS)]
    return max(inside), np.sqrt((1 + np.e**2) * 0.25 / runs)


GAME = Guarantee(1.0, 0.2, "replace-one", "person")  # of a delta that few runs can measure
CUTS = np.linspace(0.4, 0.95, 12)


def test_an_attacker_with_all_sums_finds_what_is_accounted_and_more_if_noise_is_missing():
    """The bound holds up to four standard errors, and it is no guess: half of it is reached."""
    found, error = _told_apart(1.0)
    assert 0.5 * GAME.delta < found < GAME.delta + 4 * error
    assert _told_apart(0.5)[0] > GAME.delta + 4 * error
