"""Independent answers that the tests compare with: closed forms, and slow obvious code."""

from __future__ import annotations

import numpy as np
import torch
from scipy import linalg, stats
from torch import Tensor

from predbayes.predictive.families import Categorical, Gaussian

FALSE_ALARM = 1e-5
"""Probability with which a statistical test of correct code may fail; seeds are fixed, so it will
not flicker, and a wrong law is off by far more."""


def random_categorical(rng: torch.Generator, num_rows=7, num_classes=4, scale=3.0) -> Categorical:
    logits = torch.randn(num_rows, num_classes, generator=rng, dtype=torch.float64)
    return Categorical.from_natural(scale * logits)


def random_gaussian(rng: torch.Generator, num_rows=7, num_classes=4, scale=3.0) -> Gaussian:
    mean = scale * torch.randn(num_rows, generator=rng, dtype=torch.float64)
    var = torch.rand(num_rows, generator=rng, dtype=torch.float64) * scale + 0.05
    return Gaussian(mean, var)


RANDOM = {Categorical: random_categorical, Gaussian: random_gaussian}


def random_targets(family: type, rng: torch.Generator, num_rows=7, num_classes=4) -> Tensor:
    if family is Categorical:
        return torch.randint(num_classes, (num_rows,), generator=rng)
    return 2 * torch.randn(num_rows, generator=rng, dtype=torch.float64)


def prior_for(family: type, num_classes: int = 4) -> Categorical | Gaussian:
    """A prior wider than the clients of `random_gaussian`, and a lopsided one for classes."""
    if family is Categorical:
        weights = torch.arange(1, num_classes + 1, dtype=torch.float64)
        return Categorical.from_moments(weights.unsqueeze(0))
    return Gaussian(torch.tensor([0.3]).double(), torch.tensor([9.0]).double())


class ExactGP:
    """GP regression with an RBF kernel (Paper: eq:gp_inference)."""

    def __init__(self, amplitude: float, length: float, noise_var: float) -> None:
        self.amplitude, self.length, self.noise_var = amplitude, length, noise_var

    def kernel(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        squared = (a[:, None] - b[None, :]) ** 2
        return self.amplitude * np.exp(-0.5 * squared / self.length**2)

    def predict(self, x: np.ndarray, y: np.ndarray, x_new: np.ndarray) -> Gaussian:
        factor = linalg.cho_factor(self.kernel(x, x) + self.noise_var * np.eye(len(x)))
        cross = self.kernel(x, x_new)
        mean = cross.T @ linalg.cho_solve(factor, y)
        explained = np.einsum("ij,ij->j", cross, linalg.cho_solve(factor, cross))
        var = self.noise_var + self.amplitude - explained
        return Gaussian(torch.from_numpy(mean), torch.from_numpy(var))

    def prior(self) -> Gaussian:
        var = torch.tensor([self.amplitude + self.noise_var], dtype=torch.float64)
        return Gaussian(torch.zeros(1, dtype=torch.float64), var)


def sghmc_law(
    precision: float, step_size: float, friction: float, noise_var: float
) -> tuple[np.ndarray, np.ndarray]:
    """Transition and stationary covariance of (theta, v) for U = precision theta^2 / 2."""
    pull = step_size * precision
    transition = np.array([[1 - pull, 1 - friction], [-pull, 1 - friction]])
    noise = noise_var * np.ones((2, 2))
    return transition, linalg.solve_discrete_lyapunov(transition, noise)


def assert_variance(values: np.ndarray, expected: float) -> None:
    """Chi-squared test that independent normals of mean zero have this variance."""
    statistic = float((values**2).sum() / expected)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(values))
    assert low < statistic < high, f"variance {values.var():.5f}, expected {expected:.5f}"
