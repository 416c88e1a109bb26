"""What sampled batches spend, against closed forms and bounds that others wrote."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from predbayes.learning.accounting import Guarantee, epsilon_of, mu_of
from predbayes.learning.composition import Sampled, sampled_for, spent, total

DELTA = 1e-5
FOUR = Guarantee(4.0, DELTA, "replace-one", "person")
ADDED = replace(FOUR, adjacency="add-or-remove")


def batches(guarantee=ADDED, probability=0.1, noise=2.0, steps=100, count_mu=0.0):
    return Sampled(guarantee, probability, noise, steps, count_mu)


def epsilon(one, delta=DELTA):
    return spent([], [one], one.guarantee.adjacency, delta)


@pytest.mark.parametrize(("noise", "steps", "count_mu"), [(6.0, 10, 0.0), (20.0, 100, 0.3)])
@pytest.mark.parametrize(("guarantee", "moved"), [(ADDED, 1), (FOUR, 2)])
def test_with_everybody_in_each_batch_it_is_the_closed_form(
    guarantee, moved, noise, steps, count_mu
):
    one = batches(guarantee, 1.0, noise, steps, count_mu)
    mu = math.hypot(moved * math.sqrt(steps) / noise, count_mu)
    assert epsilon(one) == pytest.approx(epsilon_of(mu, DELTA), abs=0.01)
    assert epsilon(one) >= epsilon_of(mu, DELTA) - 1e-9  # rounded to the safe side


@pytest.mark.parametrize("guarantee", [ADDED, FOUR])
def test_it_grows_with_the_probability_and_the_steps_and_falls_with_the_noise(guarantee):
    grows = [epsilon(batches(guarantee, q)) for q in (0.01, 0.05, 0.2, 0.5, 0.9, 1.0)]
    assert grows == sorted(grows)
    assert len({*grows}) == len(grows)
    assert epsilon(batches(guarantee, steps=101)) > epsilon(batches(guarantee))
    assert epsilon(batches(guarantee, noise=2.1)) < epsilon(batches(guarantee))


def test_to_add_somebody_is_never_above_a_bound_by_renyi_divergences():
    for probability, steps in product((0.01, 0.1, 0.5), (10, 200)):
        event = PoissonSampledDpEvent(probability, GaussianDpEvent(2.0))
        accountant = RdpAccountant()
        accountant.compose(SelfComposedDpEvent(event, steps))
        found = epsilon(batches(ADDED, probability, 2.0, steps))
        assert 0.3 * accountant.get_epsilon(DELTA) < found <= accountant.get_epsilon(DELTA)


def test_to_replace_somebody_takes_more_than_to_add_one_and_less_than_sampling_of_none():
    for probability in (0.05, 0.3):
        added, replaced = (epsilon(batches(one, probability)) for one in (ADDED, FOUR))
        assert added < replaced < epsilon_of(2 * math.sqrt(100) / 2.0, DELTA)


def hockey_stick(one, other, probability, noise, order):
    """Of mixtures (1 - q) N(0) + q N(g) in the plane, by a sum over a fine grid."""
    axis = np.linspace(-10, 10, 201)
    x, y = np.meshgrid(axis, axis, indexing="ij")

    def density(mean):
        away = [stats.norm.pdf(a, m, noise) for a, m in zip((x, y), mean, strict=True)]
        return away[0] * away[1]

    p, q = (
        (1 - probability) * density((0, 0)) + probability * density(mean) for mean in (one, other)
    )
    return np.maximum(p - order * q, 0).sum() * (axis[1] - axis[0]) ** 2


def test_no_two_people_are_told_apart_better_than_opposite_ones():
    """The lemma of the module's docstring, for one step: directions and lengths are searched."""
    probability, noise = 0.3, 1.2
    one = (1.0, 0.0)
    for order in (1.0, 1.2, 2.0, 5.0):
        worst = hockey_stick(one, (-1.0, 0.0), probability, noise, order)
        accounted = batches(FOUR, probability, noise, 1)
        if worst > 1e-6:
            assert epsilon(accounted, worst) == pytest.approx(math.log(order), abs=5e-3)
        for angle, length in product(np.linspace(0, np.pi, 7), (0.0, 0.5, 1.0)):
            other = (length * math.cos(angle), length * math.sin(angle))
            assert hockey_stick(one, other, probability, noise, order) <= worst + 1e-9
            assert hockey_stick(other, one, probability, noise, order) <= worst + 1e-9


class TestNoise:
    @pytest.mark.parametrize("guarantee", [ADDED, FOUR, replace(FOUR, epsilon=1.0)])
    @pytest.mark.parametrize(("probability", "steps"), [(0.1, 100), (1.0, 10)])
    def test_is_the_least_that_keeps_the_promise(self, guarantee, probability, steps):
        count_mu = 0.2 * guarantee.mu
        found = sampled_for(guarantee, probability=probability, steps=steps, count_mu=count_mu)
        assert epsilon(found) <= guarantee.epsilon
        assert epsilon(replace(found, noise=0.99 * found.noise)) > guarantee.epsilon

    def test_of_everybody_is_that_of_the_closed_form(self):
        found = sampled_for(FOUR, probability=1.0, steps=10, count_mu=0.0)
        assert found.noise == pytest.approx(2 * math.sqrt(10) / FOUR.mu, rel=0.005)


class TestTotal:
    def kept(self, guarantee=FOUR):
        return sampled_for(guarantee, probability=0.1, steps=50, count_mu=0.2 * guarantee.mu)

    def test_of_one_is_within_its_promise(self):
        found = total([self.kept()], DELTA)
        assert 3.9 < found.epsilon <= 4.0
        assert replace(found, epsilon=4.0) == FOUR

    def test_of_several_is_below_their_sum_and_above_each(self):
        for others in ([self.kept()], [FOUR]):
            found = total([self.kept(), *others], DELTA)
            assert 4.0 < found.epsilon < 8.0
            assert (found.adjacency, found.unit) == ("replace-one", "person")

    def test_at_another_delta_is_not_the_promise_but_what_was_spent(self):
        assert total([self.kept()], 1e-7).epsilon > 4.5
        assert total([self.kept()], 1e-3).epsilon < 3.5

    def test_of_two_kinds_is_of_replaced_rows(self):
        found = total([self.kept(ADDED), FOUR], DELTA)
        assert (found.adjacency, found.unit) == ("replace-one", "row")
        as_replaced = replace(self.kept(ADDED), guarantee=FOUR)
        assert found.epsilon == pytest.approx(total([as_replaced, FOUR], DELTA).epsilon, abs=1e-6)
        assert found.epsilon > total([self.kept(), FOUR], DELTA).epsilon

    def test_a_gaussian_one_beside_it_is_doubled_if_it_was_of_who_is_added(self):
        found = total([self.kept(), ADDED], DELTA)
        other = Guarantee(epsilon_of(2 * mu_of(4.0, DELTA), DELTA), DELTA, "replace-one", "person")
        assert found.epsilon == pytest.approx(total([self.kept(), other], DELTA).epsilon, abs=1e-3)
