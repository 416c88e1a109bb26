from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal, kl_divergence

from predbayes.errors import PoolError
from predbayes.predictive.families import (
    LOG_PROB_FLOOR,
    VAR_FLOOR,
    Categorical,
    Gaussian,
    average,
)
from tests.core.oracles import RANDOM, random_categorical, random_gaussian, random_targets

FAMILIES = [Categorical, Gaussian]


def as_torch(predictive):
    if isinstance(predictive, Categorical):
        return TorchCategorical(logits=predictive.log_probs)
    return Normal(predictive.mean, predictive.var.sqrt())


@pytest.mark.parametrize("family", FAMILIES)
class TestEveryFamily:
    def test_natural_coordinates_round_trip(self, family, rng):
        p = RANDOM[family](rng)
        again = family.from_natural(p.natural())
        torch.testing.assert_close(again.natural(), p.natural())

    def test_moments_round_trip(self, family, rng):
        p = RANDOM[family](rng)
        torch.testing.assert_close(family.from_moments(p.moments()).moments(), p.moments())

    def test_log_prob_is_torchs(self, family, rng):
        p, y = RANDOM[family](rng), random_targets(family, rng)
        torch.testing.assert_close(p.log_prob(y), as_torch(p).log_prob(y))

    def test_kl_is_torchs_and_zero_to_itself(self, family, rng):
        p, q = RANDOM[family](rng), RANDOM[family](rng)
        torch.testing.assert_close(p.kl(q), kl_divergence(as_torch(p), as_torch(q)))
        torch.testing.assert_close(p.kl(p), torch.zeros(len(p)).double())

    def test_log_prob_is_inner_product_minus_log_partition(self, family, rng):
        p, y = RANDOM[family](rng), random_targets(family, rng)
        eta = p.natural()
        torch.testing.assert_close(family.inner(eta, y) - family.log_partition(eta), p.log_prob(y))

    def test_moments_are_the_gradient_of_the_log_partition(self, family, rng):
        eta = RANDOM[family](rng).natural().requires_grad_()
        (gradient,) = torch.autograd.grad(family.log_partition(eta).sum(), eta)
        torch.testing.assert_close(gradient, family.from_natural(eta).moments())

    def test_derivatives_along_directions_are_autograds(self, family, rng):
        eta = RANDOM[family](rng).natural()
        directions = torch.randn(3, *eta.shape, generator=rng, dtype=torch.float64) / 10

        def mean_partition(a):
            return family.log_partition(eta + torch.tensordot(a, directions, dims=1)).mean()

        at_zero = torch.zeros(3, dtype=torch.float64)
        slope, curvature = family.derivatives(eta, directions)
        torch.testing.assert_close(
            slope, torch.autograd.functional.jacobian(mean_partition, at_zero)
        )
        torch.testing.assert_close(
            curvature, torch.autograd.functional.hessian(mean_partition, at_zero)
        )

    def test_natural_domain(self, family, rng):
        eta = RANDOM[family](rng).natural()
        assert family.is_proper(eta)
        assert not family.is_proper(eta * math.nan)


def test_logits_are_defined_up_to_a_shift(rng):
    p = random_categorical(rng)
    shifted = Categorical.from_natural(p.natural() + 300.0)
    torch.testing.assert_close(shifted.log_probs, p.log_probs)


def test_entropy_is_torchs(rng):
    p = random_categorical(rng)
    torch.testing.assert_close(p.entropy(), as_torch(p).entropy())


def test_impossible_classes_do_not_poison_kl():
    p = Categorical(torch.tensor([[0.0, -math.inf]]))
    q = Categorical.from_moments(torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(p.kl(q), torch.tensor([math.log(2)]))


def test_the_floor_makes_every_class_possible():
    p = Categorical(torch.tensor([[0.0, -math.inf]])).bounded(LOG_PROB_FLOOR)
    assert p.log_probs.tolist() == [[0.0, LOG_PROB_FLOOR]]


def test_a_client_can_know_no_less_than_the_prior():
    """Where it knows less, it is the prior, mean and all: it moves nothing."""
    prior = Gaussian(torch.tensor([0.25]).double(), torch.ones(1).double())
    p = Gaussian(torch.full((3,), 5.0).double(), torch.tensor([0.0, 0.5, 7.0]).double())
    expert = p.bounded(LOG_PROB_FLOOR).informed(prior)
    assert expert.var.tolist() == [VAR_FLOOR, 0.5, 1.0]
    assert expert.mean.tolist() == [5.0, 5.0, 0.25]


def test_float32_moments_keep_small_variances():
    p = Gaussian(torch.tensor([1000.0]), torch.tensor([0.01]))
    assert float(Gaussian.from_moments(p.moments()).var) == pytest.approx(0.01, rel=1e-4)


def test_what_cannot_be_a_predictive_is_refused():
    with pytest.raises(PoolError, match="one row per input"):
        Categorical.from_moments(torch.ones(3))
    with pytest.raises(PoolError, match="from_moments"):
        Categorical(torch.tensor([[0.3, 0.7]])).bounded(LOG_PROB_FLOOR)
    with pytest.raises(PoolError, match="negative"):
        Gaussian(torch.zeros(2), torch.tensor([1.0, -1.0])).bounded(LOG_PROB_FLOOR)


def test_taking_rows_keeps_the_split_of_the_variance(rng):
    p = Gaussian(torch.zeros(3), torch.ones(3), torch.tensor([0.1, 0.2, 0.3]))
    assert p[torch.tensor([2])].epistemic_var.tolist() == [pytest.approx(0.3)]


def test_improper_gaussians_have_infinite_log_partition():
    eta = torch.tensor([[1.0, 0.5], [1.0, -0.5]])
    assert Gaussian.log_partition(eta).isinf().tolist() == [True, False]
    assert not Gaussian.is_proper(eta)


class TestAverage:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_its_moments_are_the_mean_of_the_moments(self, family, rng):
        models = [RANDOM[family](rng) for _ in range(5)]
        mean = sum(p.moments() for p in models) / 5
        torch.testing.assert_close(average(models).moments(), mean)

    def test_the_law_of_total_variance(self, rng):
        """The mean of the variances plus the variance of the means; of the epistemic parts, too."""
        models = [random_gaussian(rng) for _ in range(5)]
        models = [Gaussian(p.mean, p.var, p.var * (k + 1) / 10) for k, p in enumerate(models)]
        means, variances, parts = (
            torch.stack([getattr(p, name) for p in models])
            for name in ("mean", "var", "epistemic_var")
        )
        spread = ((means - means.mean(0)) ** 2).mean(0)
        averaged = average(models)
        torch.testing.assert_close(averaged.mean, means.mean(0))
        torch.testing.assert_close(averaged.var, variances.mean(0) + spread)
        torch.testing.assert_close(averaged.epistemic_var, parts.mean(0) + spread)
        noise = averaged.var - averaged.epistemic_var
        torch.testing.assert_close(noise, (variances - parts).mean(0))

    def test_impossible_classes_stay_impossible(self):
        sure, torn = (torch.tensor([row]).log() for row in ([1.0, 0.0, 0.0], [0.5, 0.5, 0.0]))
        averaged = average([Categorical(sure), Categorical(torn)])
        torch.testing.assert_close(averaged.moments(), torch.tensor([[0.75, 0.25, 0.0]]))

    def test_of_no_rows_has_no_rows(self, rng):
        for family in FAMILIES:
            p = RANDOM[family](rng)[:0]
            assert len(average([p, p])) == 0


def test_a_gaussian_has_a_spread_and_intervals():
    p = Gaussian(torch.tensor([1.0]), torch.tensor([4.0]))
    assert p.std.item() == 2
    low, high = p.interval(0.95)
    assert low.item() == pytest.approx(1 - 2 * 1.959964, abs=1e-5)
    assert high.item() == pytest.approx(1 + 2 * 1.959964, abs=1e-5)
    assert repr(p) == "Gaussian of 1 rows"
    with pytest.raises(PoolError, match="between 0 and 1"):
        p.interval(95)
