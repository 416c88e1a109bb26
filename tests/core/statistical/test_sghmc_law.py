"""The sampler has its exact law.

On U = lam theta^2 / 2 the discretised chain is linear, so (theta, v) is Gaussian at every step,
with a covariance that follows a recursion to the solution of a Lyapunov equation. Coordinates
are independent chains, so one run of a wide parameter is a large sample from that law.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import posteriors
import pytest
import torch
from scipy import stats
from torch import nn

from predbayes.learning.likelihood import FixedNoise
from predbayes.learning.local import Network, SGHMCLearner
from predbayes.posterior.cyclical import SamplerSettings
from predbayes.posterior.samples import effective_samples
from predbayes.posterior.sghmc import SGHMC
from predbayes.seeding import generator, isolated
from tests.core.oracles import FALSE_ALARM, assert_variance, sghmc_law


def test_bias_of_the_discretised_law_vanishes_linearly():
    """Stationary variances at precision 1, friction .1; halving h halves the bias."""
    variances = [sghmc_law(1.0, h, 0.1, 2 * 0.1 * h)[1][0, 0] for h in (0.1, 0.01, 0.001)]
    assert variances == pytest.approx([1.0270, 1.00264, 1.00026], abs=5e-5)


@pytest.mark.parametrize(
    ("precision", "step_size", "friction", "temperature", "num_rows"),
    [(1.0, 0.1, 0.1, 1.0, 1), (1.0, 0.5, 0.9, 1.0, 50), (4.0, 0.05, 0.3, 0.2, 7)],
)
def test_chain_has_the_stationary_law(precision, step_size, friction, temperature, num_rows):
    noise_var = 2 * friction * step_size * temperature / num_rows
    transition, stationary = sghmc_law(precision, step_size, friction, noise_var)
    num_steps, num_chains = 400, 100_000
    # From rest at zero the covariance after t steps is S - A^t S A'^t: stationary to rounding.
    left = np.linalg.matrix_power(transition, num_steps)
    assert np.abs(left @ stationary @ left.T).max() < 1e-6 * stationary[0, 0]

    theta = nn.Parameter(torch.zeros(num_chains, dtype=torch.float64))
    sampler = SGHMC(
        [theta],
        step_size=step_size,
        num_rows=num_rows,
        friction=friction,
        temperature=temperature,
        rng=generator(0, "law"),
    )
    for _ in range(num_steps):
        theta.grad = precision * theta.detach()
        sampler.step()
    assert_variance(theta.detach().numpy(), stationary[0, 0])
    assert_variance(sampler.state[theta]["momentum"].numpy(), stationary[1, 1])
    assert (
        stats.kstest(theta.detach().numpy() / np.sqrt(stationary[0, 0]), "norm").pvalue
        > FALSE_ALARM
    )


def test_temperature_one_is_the_bayes_posterior():
    """Mean of a normal with known variance: prior N(0, 2^2), 50 rows, unit noise."""
    rows = torch.randn(50, generator=generator(0, "rows"), dtype=torch.float64) + 1.5
    posterior_prec = 50 + 1 / 4
    posterior_mean = float(rows.sum()) / posterior_prec
    theta = nn.Parameter(torch.full((40_000,), posterior_mean, dtype=torch.float64))
    sampler = SGHMC(
        [theta], step_size=0.01, num_rows=50, friction=0.2, prior_std=2.0, rng=generator(0, "bayes")
    )
    for _ in range(600):
        theta.grad = theta.detach() - rows.mean()  # of the mean of (row - theta)^2 / 2
        sampler.step()
    draws = theta.detach().numpy() - posterior_mean
    bias = sghmc_law(1 + 1 / 200, 0.01, 0.2, 2 * 0.2 * 0.01 / 50)[1][0, 0] * posterior_prec
    assert bias == pytest.approx(1, abs=0.004)
    assert_variance(draws, bias / posterior_prec)
    assert abs(draws.mean()) < 4.5 * np.sqrt(1 / posterior_prec / len(draws))


def test_agrees_with_the_posteriors_package_on_a_gaussian():
    """Two independent implementations, one correlated target: the same marginals."""
    prec = torch.tensor([[2.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    cov = prec.inverse().numpy()
    num_chains, num_steps, lr, alpha = 10_000, 1200, 0.01, 1.5

    def energy(theta: torch.Tensor) -> torch.Tensor:
        return 0.5 * ((theta @ prec) * theta).sum()

    theta = nn.Parameter(torch.zeros(num_chains, 2, dtype=torch.float64))
    # With momentum m = v / lr the two recursions have friction lr alpha and step size lr^2.
    sampler = SGHMC(
        [theta], step_size=lr**2, num_rows=1, friction=lr * alpha, rng=generator(0, "ours")
    )
    for _ in range(num_steps):
        sampler.zero_grad()
        energy(theta).backward()
        sampler.step()
    ours = theta.detach().numpy()

    with isolated(generator(0, "theirs")):
        transform = posteriors.sgmcmc.sghmc.build(
            lambda params, batch: (-energy(params), torch.zeros(())), lr=lr, alpha=alpha
        )
        state = transform.init(torch.zeros(num_chains, 2, dtype=torch.float64))
        for _ in range(num_steps):
            state, _ = transform.update(state, None)
    theirs = state.params.numpy()

    for direction in np.array([[1, 0], [0, 1], [1, -1], [1, 1]]):
        spread = np.sqrt(direction @ cov @ direction)
        assert stats.ks_2samp(ours @ direction, theirs @ direction).pvalue > FALSE_ALARM
        assert stats.kstest(ours @ direction / spread, "norm").pvalue > FALSE_ALARM


NUM_COORDINATES, STEP_FLOOR = 40, 0.5
SAMPLER = SamplerSettings(
    num_epochs=3000, batch_size=64, step_size=0.1, friction=0.3, prior_std=1.0, num_cycles=2,
    samples_per_cycle=30, max_samples=60, exploration=0.2,
)  # fmt: skip


def spread_of_samples(settings):
    """Mean variance of the weights of a linear regression, in units of the exact posterior's.

    The columns are orthonormal, so that weights are independent given the rows: 64 rows of unit
    noise, a prior N(0, 1), so each has the posterior variance 1 / (64 + 1).
    """
    rng = generator(0, "floor")
    basis = torch.linalg.qr(torch.randn(64, NUM_COORDINATES, generator=rng)).Q * 8
    targets = basis @ torch.randn(NUM_COORDINATES, generator=rng) + torch.randn(64, generator=rng)
    network = Network(lambda: nn.Linear(NUM_COORDINATES, 1, bias=False), FixedNoise(1.0, 1.0))
    fitted = SGHMCLearner(network, settings).fit((basis, targets), rng=rng)
    weights = fitted.samples.parameters["weight"].double().flatten(1)
    exact = basis.T @ targets / 65
    return float((weights - exact).square().mean()) * 65, effective_samples(fitted.samples, 30)


def test_a_sampler_whose_step_does_not_vanish_has_the_posteriors_variance():
    """And is worth nearly all of its samples; with a step that vanishes it has neither."""
    law = sghmc_law(65 / 64, STEP_FLOOR * 0.1, 0.3, 2 * 0.3 * STEP_FLOOR * 0.1 / 64)[1][0, 0] * 65
    assert law == pytest.approx(1, abs=0.05)
    spread, effective = spread_of_samples(replace(SAMPLER, step_floor=STEP_FLOOR))
    assert spread == pytest.approx(law, abs=0.15)
    assert effective > 45
    _, vanishing = spread_of_samples(replace(SAMPLER, exploration=0.9))
    assert vanishing < 10
