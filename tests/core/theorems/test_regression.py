"""The paper's Table 1 for exact GP regression: who is calibrated where, and by how much not.

Idealised homogeneous: every site samples the whole input range. Idealised heterogeneous: sites
sit so far apart that the kernel between them is zero.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from predbayes.predictive.families import Gaussian
from predbayes.predictive.metrics import interval_coverage
from predbayes.predictive.pooling import PredictiveSum
from predbayes.summand import fold
from tests.core.oracles import ExactGP

NUM_SITES, NOISE_VAR = 5, 0.1
SIZES = (25, 100, 400, 1600)


def truth(x: np.ndarray) -> np.ndarray:
    return np.sin(4 * x)


GP = ExactGP(amplitude=1.0, length=0.3, noise_var=NOISE_VAR)
INSIDE = np.array([0.3, 0.5, 0.7])
"""Test inputs in the bounded region of the data; in the heterogeneous case near the first site."""


def pooled(gp: ExactGP, size: int, offsets: np.ndarray, x_new: np.ndarray = INSIDE):
    """Each site's exact posterior on noisy observations, summed with the prior divided out."""
    draw = np.random.default_rng(0)
    summands = []
    for offset in offsets:
        x = offset + draw.uniform(0, 1, size)
        y = truth(x) + np.sqrt(NOISE_VAR) * draw.standard_normal(size)
        summands.append(PredictiveSum.of(gp.predict(x, y, x_new), size, prior=gp.prior()))
    return fold(summands)


@functools.cache
def homogeneous(size: int):
    return pooled(GP, size, np.zeros(NUM_SITES))


@functools.cache
def heterogeneous(size: int):
    return pooled(GP, size, 100.0 * np.arange(NUM_SITES))


def approach(limit: float, values: list[float]) -> None:
    """Each value is nearer to the limit than the one before, and the last is near."""
    errors = [abs(value - limit) / limit for value in values]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01


class TestHomogeneous:
    def test_bcm_is_overconfident(self):
        """Theorem BCMHomogeneous: the variance goes to a limit below the noise variance."""
        prior_var = GP.amplitude + NOISE_VAR
        limit = 1 / (NUM_SITES / NOISE_VAR - (NUM_SITES - 1) / prior_var)
        variances = [float(homogeneous(size).product().var.mean()) for size in SIZES]
        assert limit < NOISE_VAR
        assert variances[-1] < NOISE_VAR
        approach(limit, variances)

    def test_bcm_underestimates_by_the_number_of_sites_under_a_vague_prior(self):
        """The factor m of Theorem 1 as the prior precision goes to zero."""
        factors = []
        for amplitude in (1.0, 10.0, 100.0, 1000.0):
            gp = ExactGP(amplitude, length=0.3, noise_var=NOISE_VAR)
            total = pooled(gp, 1600, np.zeros(NUM_SITES))
            factors.append(NOISE_VAR / float(total.product().var.mean()))
        assert factors == sorted(factors)
        assert factors[-1] == pytest.approx(NUM_SITES, rel=0.01)

    def test_mixture_is_calibrated(self):
        """Theorem MixtureHomogeneous: the variance goes to the noise variance."""
        variances = [float(homogeneous(size).mixture().var.mean()) for size in SIZES]
        approach(NOISE_VAR, variances)

    def test_coverage_tells_the_same(self):
        """95 % intervals on 20,000 new observations: the mixture covers 95 %, the product 64 %."""
        noise = np.random.default_rng(7)
        x_new = noise.uniform(0.1, 0.9, 20_000)
        y_new = truth(x_new) + np.sqrt(NOISE_VAR) * noise.standard_normal(len(x_new))
        total = pooled(GP, 400, np.zeros(NUM_SITES), x_new)
        targets = torch.from_numpy(y_new)
        assert interval_coverage(total.mixture(), targets) == pytest.approx(0.95, abs=0.01)
        assert interval_coverage(total.product(), targets) == pytest.approx(0.65, abs=0.02)


class TestHeterogeneous:
    def test_bcm_is_calibrated(self):
        """Theorem BCMHeterogeneous: far sites say the prior, which is divided out."""
        totals = [heterogeneous(size) for size in SIZES]
        approach(NOISE_VAR, [float(total.product().var.mean()) for total in totals])
        np.testing.assert_allclose(totals[-1].product().mean.numpy(), truth(INSIDE), atol=0.06)

    def test_mixture_is_underconfident(self):
        """Theorem MixtureHeterogeneous, with the excess that its proof bounds from below."""
        total = heterogeneous(1600)
        excess = GP.amplitude * (1 - 1 / NUM_SITES)
        assert bool((total.mixture().var > NOISE_VAR + excess).all())


def test_product_of_weight_posteriors_is_the_full_posterior():
    """Bayesian linear regression on orthogonal features, where every posterior is diagonal.

    The product of the sites' *weight* posteriors with the prior divided out n - 1 times is the
    posterior given all data, exactly: on weights no independence assumption is needed.
    """
    draw = np.random.default_rng(3)
    num_features, prior_prec, noise_var = 6, 0.7, 0.25
    prior = Gaussian(torch.zeros(1).double(), torch.full((1,), 1 / prior_prec).double())
    shards = []
    for _ in range(NUM_SITES):
        basis, _ = np.linalg.qr(draw.standard_normal((20, num_features)))
        x = basis * draw.uniform(0.5, 3.0, num_features)
        shards.append((x, draw.standard_normal(20)))

    def posterior(x: np.ndarray, y: np.ndarray) -> Gaussian:
        prec = x.T @ x / noise_var + prior_prec * np.eye(num_features)
        mean = np.linalg.solve(prec, x.T @ y / noise_var)
        var = np.diag(np.linalg.inv(prec)).copy()
        return Gaussian(torch.from_numpy(mean), torch.from_numpy(var))

    total = fold(PredictiveSum.of(posterior(x, y), prior=prior) for x, y in shards)
    full = posterior(*(np.concatenate(part) for part in zip(*shards, strict=True)))
    torch.testing.assert_close(total.product().mean, full.mean)
    torch.testing.assert_close(total.product().var, full.var)
