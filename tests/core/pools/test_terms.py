"""Products that count a site by what it knows: closed forms, and that they fade without a jump."""

from __future__ import annotations

import math

import pytest
import torch

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.terms import gpoe, log_pool, rbcm
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.pooling import Contribution
from predbayes.seeding import generator
from predbayes.summand import fold
from tests.core.oracles import random_categorical

STANDARD = Gaussian(torch.zeros(1).double(), torch.ones(1).double())


def pooled(pool, predictives):
    numbers = isinstance(predictives[0], Gaussian)
    targets = torch.empty(0, dtype=torch.float32 if numbers else torch.long)
    reference = ReferenceRows(torch.zeros(len(predictives[0]), 1), targets)
    state = pool.init(reference)
    sites = [Contribution(f"site{k}", p, 10.0 * (k + 1)) for k, p in enumerate(predictives)]
    total = fold(pool.lift(state, site) for site in sites)
    return pool.finish(state, total, reference, rng=generator(0)).predictive


def gaussian(means, variances):
    return Gaussian(torch.tensor(means).double(), torch.tensor(variances).double())


def categorical(*rows):
    return Categorical.from_moments(torch.tensor(rows, dtype=torch.float64))


def test_the_robust_committee_of_gaussians_is_deisenroth_and_ngs():
    """beta_k = (log var_0 - log var_k) / 2, precision sum beta_k tau_k + (1 - sum beta_k) tau_0."""
    prior = gaussian([0.5], [4.0])
    sites = [gaussian([1.0, 2.0], [1.0, 0.1]), gaussian([-1.0, 3.0], [2.0, 3.9])]
    found = pooled(rbcm(prior), sites)
    for row in range(2):
        betas = [0.5 * math.log(4.0 / float(s.var[row])) for s in sites]
        rest = 1 - sum(betas)
        precision = sum(b / float(s.var[row]) for b, s in zip(betas, sites, strict=True)) + rest / 4
        shifted = sum(
            b * float(s.mean[row]) / float(s.var[row]) for b, s in zip(betas, sites, strict=True)
        )
        assert float(found.var[row]) == pytest.approx(1 / precision)
        assert float(found.mean[row]) == pytest.approx((shifted + rest * 0.5 / 4) / precision)


def test_the_generalised_product_of_gaussians_has_weights_that_sum_to_one():
    prior = gaussian([0.0], [4.0])
    one, other = gaussian([1.0], [1.0]), gaussian([-1.0], [2.0])
    found = pooled(gpoe(prior), [one, other])
    first, second = math.log(4.0), math.log(2.0)  # twice the information, which cancels
    share = first / (first + second)
    precision = share / 1.0 + (1 - share) / 2.0
    assert float(found.var) == pytest.approx(1 / precision)
    assert float(found.mean) == pytest.approx((share / 1.0 - (1 - share) / 2.0) / precision)
    alone = pooled(gpoe(prior), [one])
    assert float(alone.mean) == pytest.approx(1.0)
    assert float(alone.var) == pytest.approx(1.0)
    twice = pooled(gpoe(prior), [one, other, one, other])
    torch.testing.assert_close(twice.natural(), found.natural())


def test_of_classes_they_weigh_log_p_by_log_c_minus_entropy():
    sites = [categorical([0.7, 0.2, 0.1]), categorical([0.3, 0.3, 0.4])]
    known = [
        math.log(3) + sum(p * math.log(p) for p in site.moments()[0].tolist()) for site in sites
    ]
    logs = sum(i * site.log_probs for i, site in zip(known, sites, strict=True))
    torch.testing.assert_close(pooled(rbcm(), sites).log_probs, logs.log_softmax(-1))
    torch.testing.assert_close(pooled(gpoe(), sites).log_probs, (logs / sum(known)).log_softmax(-1))


def test_classes_may_have_a_prior_that_is_not_flat():
    prior, site = categorical([0.5, 0.3, 0.2]), categorical([0.8, 0.1, 0.1])
    known = float(prior.entropy() - site.entropy())
    expected = (1 - known) * prior.log_probs + known * site.log_probs
    torch.testing.assert_close(pooled(rbcm(prior), [site]).log_probs, expected.log_softmax(-1))


@pytest.mark.parametrize("make", [rbcm, gpoe], ids=["rbcm", "gpoe"])
def test_a_site_fades_out_without_a_jump_as_it_comes_to_know_nothing(make):
    """Beside one that knows something; where the paper's product moves by 1.5 at once."""
    knows = gaussian([0.0], [0.5])
    means = {}
    for variance in (0.9, 0.999, 0.9999, 1.0, 1.0001, 1.1):
        fading = gaussian([3.0], [variance])
        means[variance] = float(pooled(make(STANDARD), [knows, fading]).mean)
    assert abs(means[0.9] - means[1.0]) > 0.05
    assert means[0.999] == pytest.approx(means[1.0], abs=5e-3)
    assert means[0.9999] == pytest.approx(means[1.0001], abs=5e-4)
    assert means[1.0] == pytest.approx(0.0, abs=1e-6)
    assert means[1.1] == pytest.approx(means[1.0], abs=1e-6)


def test_the_robust_committee_is_never_less_certain_than_the_prior(rng):
    means = 5 * torch.randn(6, 200, generator=rng, dtype=torch.float64)
    variances = torch.rand(6, 200, generator=rng, dtype=torch.float64) * 3 + 1e-3
    found = pooled(rbcm(STANDARD), [Gaussian(m, v) for m, v in zip(means, variances, strict=True)])
    assert float(found.var.max()) <= 1 + 1e-12


@pytest.mark.parametrize("make", [rbcm, gpoe], ids=["rbcm", "gpoe"])
def test_who_knows_nothing_leaves_the_prior(make):
    flat = categorical([1.0, 1.0, 1.0])
    torch.testing.assert_close(pooled(make(), [flat, flat]).moments(), flat.moments())
    ignorant = gaussian([0.0], [1.0])
    found = pooled(make(STANDARD), [ignorant, ignorant])
    torch.testing.assert_close(found.var, torch.ones(1).double())


@pytest.mark.parametrize("prior", ["flat", "default"])  # without labels the default is flat
@pytest.mark.parametrize("make", [rbcm, gpoe], ids=["rbcm", "gpoe"])
def test_gaussians_need_a_prior(make, prior):
    with pytest.raises(TrainingError, match="relative to a prior"):
        pooled(make(prior), [gaussian([1.0], [1.0])])


def test_the_log_pool_is_the_mean_of_logarithms_by_rows(rng):
    first, second = (random_categorical(rng, 300) for _ in range(2))
    expected = (first.log_probs / 3 + 2 * second.log_probs / 3).log_softmax(-1)
    found = pooled(log_pool(), [first, second])
    torch.testing.assert_close(found.log_probs, expected)
