"""An audit finds what is there, nothing where nothing is, and never more epsilon than there is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.local import Learner
from predbayes.learning.named import CLASSIFIERS
from predbayes.seeding import generator
from predbayes_study.extras.audit.membership import (
    attack,
    auc,
    epsilon_bound,
    guesses,
    interval,
    scores,
    shadow_halves,
)
from predbayes_study.extras.audit.shadows import fit_shadows


def simulated(seed, effect, num_people=150):
    """Fits that say of each person a number, which is higher where trained on."""
    rng, coins = np.random.default_rng(seed), generator(seed, "coins")
    members = shadow_halves(num_people, 8, coins)
    strength = np.abs(rng.normal(effect, effect, num_people))
    values = rng.normal(size=members.shape) + 3 * rng.normal(size=num_people)
    return (values + strength * members)[..., None], members, coins


def table(num_rows, seed=0, num_columns=8):
    rng = generator(seed, "table")
    inputs = torch.randn(num_rows, num_columns, generator=rng)
    chance = (1.5 * inputs[:, 0] + inputs[:, 1] * inputs[:, 2]).sigmoid()
    return inputs, (torch.rand(num_rows, generator=rng) < chance).long()


def small_forest():
    return SklearnClassifier(CLASSIFIERS["random-forest"]().set_params(n_estimators=20), 2, 2)


class TestStatistics:
    def test_everybody_is_in_one_half_of_every_pair(self):
        members = shadow_halves(40, 8, generator(0, "coins"))
        assert (members[::2] ^ members[1::2]).all()
        assert members.sum(0).tolist() == [8] * 40

    def test_where_nothing_is_nothing_is_found(self):
        found = [attack(*simulated(seed, 0.0))[0] for seed in range(8)]
        assert np.mean([leak.auc for leak in found]) == pytest.approx(0.5, abs=0.01)

    @pytest.mark.parametrize("effect", [0.0, 0.5, 3.0])
    def test_the_null_is_near_a_half_however_much_there_is(self, effect):
        nulls = [attack(*simulated(seed, effect))[0].null for seed in range(5)]
        assert np.abs(np.array(nulls) - 0.5).max() < 0.02

    def test_a_score_that_knows_its_own_run_finds_what_is_not_there(self):
        """Why both halves of a pair are left out, and why the null is looked at."""
        values, members, _ = simulated(0, 0.0)
        numbers = values[..., 0]
        means = [np.where(members == who, numbers, np.nan) for who in (True, False)]
        inside, outside = (np.nanmean(one, 0) for one in means)
        careless = (numbers - (inside + outside) / 2) * (inside - outside)
        assert auc(careless, members) > 0.55
        assert auc(scores(values, members), members) == pytest.approx(0.5, abs=0.03)

    @pytest.mark.slow("a hundred audits")
    def test_intervals_cover_the_expected_auc(self):
        """Of 100 audits at least 90, where 95 are meant."""
        found = []
        for seed in range(100):
            values, members, rng = simulated(seed, 0.5, 80)
            ratios = scores(values, members)
            found.append((auc(ratios, members), *interval(ratios, members, rng)))
        aucs, low, high = np.array(found).T
        expected = aucs.mean()
        assert 0.6 < expected < 0.7
        assert ((low <= expected) & (expected <= high)).mean() >= 0.9


class TestEpsilon:
    @pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
    def test_randomised_response_has_no_more_than_its_own(self, epsilon):
        """Each person's coin is told with noise: that is epsilon-private, and no more."""
        bounds, chance = [], math.exp(epsilon) / (1 + math.exp(epsilon))
        for seed in range(200):
            rng = np.random.default_rng([seed, 1])
            members = shadow_halves(100, 8, generator(seed, "coins"))
            right = rng.random(members.shape) < chance
            values = np.where(right, members, ~members).astype(float)
            bounds.append(epsilon_bound(*guesses(values[..., None], members))[0])
        assert np.mean(np.array(bounds) > epsilon) <= 0.05  # the confidence is 95 %
        assert np.mean(bounds) >= 0.5 * epsilon  # it is no bound of nothing either

    def test_it_is_of_the_binomial_tail(self):
        bound, num, right = epsilon_bound([98], [100])
        assert (num, right) == (100, 98)
        chance = math.exp(bound) / (1 + math.exp(bound))
        rng = np.random.default_rng(0)
        assert (rng.binomial(100, chance, 200_000) >= 98).mean() == pytest.approx(0.05, abs=0.003)


@pytest.fixture(scope="module")
def reference():
    return table(100, seed=9)[0]


class TestShadows:
    def test_a_forest_tells_more_than_a_logistic_regression(self, reference):
        rows = table(120)
        people, found = torch.arange(120), {}
        for name, learner in {
            "forest": small_forest(),
            "logistic": SklearnClassifier(CLASSIFIERS["logistic-regression"](), 2, 2),
        }.items():
            shadows = fit_shadows(learner, rows, people, reference, rng=generator(0, name))
            found[name] = attack(shadows.at_target, shadows.members, generator(0, "attack"))[0]
        assert found["forest"].low > found["logistic"].high
        assert found["forest"].auc > 0.7
        assert found["forest"].epsilon > 0.5
        assert all(abs(leak.null - 0.5) < 0.02 for leak in found.values())

    def test_of_a_linear_model_reference_rows_tell_what_the_model_does(self, reference):
        """So that predictions were sent, and not weights, protects nobody there."""
        learner = SklearnClassifier(CLASSIFIERS["logistic-regression"](), 2, 2)
        shadows = fit_shadows(
            learner, table(60), torch.arange(60), reference, rng=generator(0, "linear")
        )
        apart = np.corrcoef(shadows.target.ravel(), shadows.reference.ravel())[0, 1]
        assert apart > 0.98

    def test_rows_of_a_person_are_in_the_same_halves(self, reference):
        seen = []

        class Spy(Learner):
            keeps_groups = True

            def fit(self, rows, *, rng, groups):
                seen.append(set(groups.tolist()))
                assert len(groups) == 3 * len(seen[-1])
                return SklearnClassifier(CLASSIFIERS["logistic-regression"](), 2, 1).fit(
                    rows, rng=rng
                )

        people = torch.arange(30).repeat(3)
        shadows = fit_shadows(
            Spy(), table(90), people, reference, num_pairs=3, rng=generator(0, "spy")
        )
        assert shadows.target.shape == (6, 30, 1)
        assert all(not one & other for one, other in zip(seen[::2], seen[1::2], strict=True))
