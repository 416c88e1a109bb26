"""Learning under differential privacy: proofs, as far as tests are any."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from predbayes.errors import TrainingError
from predbayes.learning.guarantee import Guarantee
from predbayes.seeding import generator
from predbayes_study.extras.audit.membership import epsilon_bound, guesses, shadow_halves
from predbayes_study.extras.privacy.accounting import composed, mu_of
from predbayes_study.extras.privacy.private import (
    MECHANISM,
    Noise,
    People,
    PrivateLogistic,
    clipped_sum,
    logistic,
    scaled,
    sensitivity,
)

FOUR = Guarantee(4.0, 1e-5, "replace-one", "person")
ANY = st.floats(allow_nan=True, allow_infinity=True)
ROW = st.tuples(st.lists(ANY, min_size=2, max_size=2), st.integers(0, 2))
CLIP, GRID = 0.7, 2.0**-22


def apart(one, other):
    """The distance of two sums in grids."""
    return float(np.linalg.norm((one - other).astype(float))) * GRID * CLIP


def vectors(least=1):
    return arrays(float, st.tuples(st.integers(least, 4), st.just(3)), elements=ANY)


class TestSensitivity:
    """The adversary chooses both tables; what noise is added to moves no more than stated."""

    @settings(max_examples=150)
    @given(others=vectors(), one=vectors(), another=vectors())
    def test_of_any_vectors(self, others, one, another):
        with_one, with_another = np.vstack([others, one[:1]]), np.vstack([others, another[:1]])
        told = clipped_sum(with_one, CLIP, GRID)
        assert apart(told, clipped_sum(with_another, CLIP, GRID)) <= sensitivity(
            CLIP, "replace-one"
        )
        assert apart(told, clipped_sum(others, CLIP, GRID)) <= sensitivity(CLIP, "add-or-remove")

    @settings(max_examples=150)
    @given(
        mine=st.lists(ROW, min_size=1, max_size=6),
        instead=st.lists(ROW, max_size=6),
        weights=arrays(float, 9, elements=st.floats(-50, 50)),
    )
    def test_of_a_person_with_several_rows(self, mine, instead, weights):
        others = [([0.5, -1.0], 0), ([2.0, 0.1], 1), ([0.0, 0.0], 2)]

        def told(rows):
            inputs = torch.tensor([x for x, _ in others + rows], dtype=torch.float64)
            targets = np.array([y for _, y in others + rows])
            groups = torch.tensor([0, 1, 1] + [2] * len(rows))
            return People.of(inputs, targets, 3, groups).clipped_sum(weights, CLIP, GRID)

        most = "replace-one" if instead else "add-or-remove"
        assert apart(told(mine), told(instead)) <= sensitivity(CLIP, most)

    def test_the_bound_is_met(self):
        """So it is not stated too large, and a sum that is clipped at 2 C would be found."""
        there, back = np.array([[9.0, 0.0]]), np.array([[-9.0, 0.0]])
        assert apart(
            clipped_sum(there, CLIP, GRID), clipped_sum(back, CLIP, GRID)
        ) == pytest.approx(2 * CLIP, rel=1e-6)

    def test_blocks_change_nothing(self, monkeypatch):
        inputs = torch.randn(40, 3, generator=generator(0))
        targets = np.arange(40) % 2
        people = People.of(inputs, targets, 2, torch.arange(40) // 3)
        whole = people.clipped_sum(np.ones(8), CLIP, GRID)
        monkeypatch.setattr("predbayes_study.extras.privacy.private._BLOCK", 16)
        again = people.clipped_sum(np.ones(8), CLIP, GRID)
        assert np.abs(again - whole).max() <= people.num


class TestGradients:
    def test_of_somebody_are_the_mean_of_her_rows(self):
        weights = np.random.default_rng(0).normal(size=9)
        people = People.of(torch.randn(6, 2), np.arange(6) % 3, 3, torch.tensor([0, 0, 0, 1, 1, 2]))
        (found,) = people.means(weights)
        of_rows = logistic(weights, people.features, people.wanted)
        assert found[0] == pytest.approx(of_rows[:3].mean(0), abs=1e-12)
        assert len(found) == 3

    def test_are_in_memory_a_block_at_a_time(self, monkeypatch):
        monkeypatch.setattr("predbayes_study.extras.privacy.private._BLOCK", 2**14)
        people = People.of(torch.randn(20_000, 20), np.arange(20_000) % 10, 10, None)
        tracemalloc.start()
        people.clipped_sum(np.zeros(210), CLIP, GRID)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 0.1 * 8 * 20_000 * 210  # of all gradients at once


class TestNoise:
    def test_has_the_stated_variance(self):
        grid, spread = scaled(6.5)
        nothing = np.zeros(100_000, dtype=np.int64)
        told = Noise(b"k" * 32).noisy(nothing, spread, "variance") * grid
        assert told.var() == pytest.approx(6.5**2, rel=0.03)
        assert abs(told.mean()) < 0.1
        shares = [(np.abs(told) > z * 6.5).mean() for z in (1.0, 2.0, 3.0)]
        assert shares == pytest.approx([0.3173, 0.0455, 0.0027], rel=0.2)

    def test_is_whole_so_low_bits_tell_nothing(self):
        assert Noise(b"k" * 32).noisy(np.array([3]), 99).dtype == np.int64

    def test_is_other_noise_by_path_key_and_sum(self):
        one, nothing = Noise(b"k" * 32), np.zeros(50, dtype=np.int64)
        found = [one.noisy(nothing, 99, "step", number) for number in (0, 1)]
        found.append(Noise(b"l" * 32).noisy(nothing, 99, "step", 0))
        found.append(one.noisy(nothing + 1, 99, "step", 0) - 1)
        apart = np.corrcoef(found)[np.triu_indices(4, 1)]
        assert np.abs(apart).max() < 0.6
        assert (one.noisy(nothing, 99, "step", 0) == found[0]).all()

    def test_what_is_summed_is_that_of_the_mechanisms_number(self):
        """Other sums need another number, or two releases of one table would be taken for one."""
        inputs = torch.arange(24, dtype=torch.float64).reshape(8, 3).cos() * 2
        people = People.of(inputs, np.arange(8) % 2, 2, torch.arange(8) // 2)
        total = people.clipped_sum(np.linspace(-1, 1, 8), CLIP, 2.0**-22) * 2.0**-22
        known = {4: [-1.917346, -1.889398, -0.124346, -0.076447]}
        assert total[::2] == pytest.approx(known[MECHANISM], abs=1e-5)

    def test_of_half_a_million_people_is_refused(self):
        with pytest.raises(TrainingError, match="only noise would be left"):
            scaled(1e6)

    def test_is_as_large_as_the_promise_needs(self):
        learner = PrivateLogistic(3, FOUR)
        moved = sensitivity(learner.clip, "replace-one") / learner.step_deviation
        spent = composed([moved] * learner.steps + [1 / learner.count_deviation])
        assert spent == pytest.approx(mu_of(FOUR.epsilon, FOUR.delta), rel=1e-12)
        added = replace(learner, guarantee=replace(FOUR, adjacency="add-or-remove"))
        assert added.step_deviation == pytest.approx(learner.step_deviation / 2)

    def test_is_in_the_model_as_often_as_it_was_drawn(self):
        """With rate 1 and one step the weights are the noisy sum over the noisy count."""
        rows = torch.zeros(500, 1), torch.zeros(500, dtype=torch.int64)
        learner = PrivateLogistic(2, FOUR, steps=1)
        found = []
        for number in range(300):
            keyed = replace(learner, secret=number.to_bytes(32, "big"))
            model = keyed.fit(rows, rng=generator(0))
            found.append(model.weights[0] * model.people)
        spread = torch.stack(found).var() ** 0.5
        assert float(spread) == pytest.approx(learner.step_deviation, rel=0.1)


class TestModel:
    @pytest.fixture
    def rows(self):
        rng = generator(1)
        inputs = torch.randn(400, 3, generator=rng)
        return inputs, (inputs[:, 0] + 0.3 * torch.randn(400, generator=rng) > 0).long()

    def test_learns(self, rows):
        model = PrivateLogistic(2, FOUR, b"k" * 32).fit(rows, rng=generator(0))
        assert float(-model.predict(rows[0]).log_prob(rows[1]).mean()) < 0.45

    def test_noise_is_the_secrets_and_not_the_seeds(self, rows):
        one, other = (PrivateLogistic(2, FOUR, key * 32) for key in (b"k", b"l"))
        mine = one.fit(rows, rng=generator(0))
        assert mine.weights.equal(one.fit(rows, rng=generator(99)).weights)
        assert not mine.weights.equal(other.fit(rows, rng=generator(0)).weights)

    def test_people_in_any_order_are_the_same_sum(self, rows):
        order = torch.randperm(400, generator=generator(2))
        learner = PrivateLogistic(2, FOUR, b"k" * 32)
        mine = learner.fit(rows, rng=generator(0)).weights
        again = learner.fit((rows[0][order], rows[1][order]), rng=generator(0)).weights
        assert mine.equal(again)

    def test_of_rows_no_groups_are_asked_for(self, rows):
        learner = PrivateLogistic(2, replace(FOUR, unit="row"), b"k" * 32)
        alone = learner.fit(rows, rng=generator(0))
        together = learner.fit(rows, rng=generator(0), groups=torch.zeros(400, dtype=torch.int64))
        assert alone.weights.equal(together.weights)

    def test_somebody_with_all_rows_is_one(self, rows):
        people = torch.zeros(400, dtype=torch.int64)
        told = PrivateLogistic(2, FOUR, b"k" * 32).fit(rows, rng=generator(0), groups=people)
        whole = PrivateLogistic(2, None).fit(rows, rng=generator(0), groups=people)
        assert whole.people == 1
        assert abs(told.people - 1) < 30  # deviation 4.8

    @pytest.mark.parametrize("people", [2, 25, 400, 100_000])
    @pytest.mark.parametrize("classes", [2, 3, 10, 50])
    def test_noise_moves_no_weight_further_than_agreed(self, people, classes):
        """Steps are as long as classes ask for, or as noise of so many people allows."""
        learner = PrivateLogistic(classes, FOUR)
        added = learner.scale(people) * learner.step_deviation * math.sqrt(learner.steps)
        assert added <= learner.most_noise * (1 + 1e-12)
        whole = classes / 2 / people
        assert learner.scale(people) == whole or added == pytest.approx(learner.most_noise)
        assert PrivateLogistic(classes, None).scale(people) == whole

    def test_more_classes_have_more_and_longer_steps(self):
        two, ten = (PrivateLogistic(classes, FOUR) for classes in (2, 10))
        assert (two.steps, two.rate, ten.steps, ten.rate) == (20, 1.0, 45, 5.0)
        assert two.shrinkage * two.steps == ten.shrinkage * ten.steps == 0.5

    def test_ten_classes_are_learnt(self):
        """Centres of unit norm times four: a model of ten short steps has an NLL of 1.6."""
        rng = generator(2)
        centres = 4 * torch.nn.functional.normalize(torch.randn(10, 12, generator=rng), dim=1)
        targets = torch.randint(10, (4000,), generator=rng)
        inputs = (centres[targets] + torch.randn(4000, 12, generator=rng)) / 1.5
        model = PrivateLogistic(10, FOUR, b"k" * 32).fit((inputs[:3000], targets[:3000]), rng=rng)
        assert float(-model.predict(inputs[3000:]).log_prob(targets[3000:]).mean()) < 0.5

    def test_settings_have_noise_of_their_own(self):
        learner = PrivateLogistic(2, FOUR)
        assert learner.settings != replace(learner, steps=11).settings
        assert learner.settings == replace(learner, secret=b"k").settings


def _bounds(learner, runs):
    """The audit's lower bound on epsilon, of people each of whom has a direction of her own."""
    people = 24
    inputs, targets = 3 * torch.eye(people), torch.zeros(people, dtype=torch.int64)
    asked = torch.cat([inputs, torch.zeros(1, people)])
    for run in range(runs):
        rng = generator(run, "audit")
        members = shadow_halves(people, 3, rng)
        values = np.empty((*members.shape, 1))
        for number, inside in enumerate(members):
            kept = torch.from_numpy(inside)
            said = learner.fit((inputs[kept], targets[kept]), rng=rng).predict(asked).log_probs
            odds = said[:, 0] - said[:, 1]
            values[number, :, 0] = odds[:-1] - odds[-1]
        yield epsilon_bound(*guesses(values, members))[0]


def test_an_audit_never_finds_more_than_is_accounted_and_finds_where_noise_is_missing():
    promised = Guarantee(1.0, 1e-5, "add-or-remove", "row")
    assert max(_bounds(PrivateLogistic(2, promised, steps=2), 200)) <= promised.epsilon
    assert min(_bounds(PrivateLogistic(2, None, steps=2), 5)) > promised.epsilon
