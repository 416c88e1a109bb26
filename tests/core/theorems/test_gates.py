"""What docs/gates.md states of gated pools, one test for each statement."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.gate import log_density_ratio
from predbayes.learning.local import GateLearner
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.pooling import PredictiveSum, gated
from predbayes.seeding import generator
from predbayes.summand import fold

SLACK = 1e-9


@st.composite
def worlds(draw, family=Categorical):
    """Sites with any densities at 30 inputs, any conditional laws, any numbers of rows."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    num_sites = draw(st.integers(1, 6))
    rows = [float(draw(st.integers(1, 1000))) for _ in range(num_sites)]
    densities = torch.randn(num_sites, 30, generator=rng, dtype=torch.float64).exp()
    reference = torch.randn(30, generator=rng, dtype=torch.float64).exp()
    if family is Categorical:
        shape = (num_sites, 30, draw(st.integers(2, 5)))
        logits = torch.randn(shape, generator=rng, dtype=torch.float64)
        laws = [Categorical.from_natural(site) for site in logits]
    else:
        means = torch.randn(num_sites, 30, generator=rng, dtype=torch.float64)
        laws = [Gaussian(mean, torch.full_like(mean, 0.5)) for mean in means]
    return rows, densities, reference, laws


def gated_pool(rows, gates, laws, coordinates="moments"):
    term = gated(1.0, coordinates)
    sites = zip(rows, gates, laws, strict=True)
    total = fold(PredictiveSum.of(law, n, gate=gate, terms=[term]) for n, gate, law in sites)
    return total.pool({term.name: 1.0})


def moments_of_all_rows(rows, densities, laws):
    """E[T(y) | x] of the density sum_k n_k p_k(x) p_k(y | x), without any gate."""
    joint = sum(
        n * density.unsqueeze(1) * law.moments().double()
        for n, density, law in zip(rows, densities, laws, strict=True)
    )
    mass = sum(n * density for n, density in zip(rows, densities, strict=True))
    return joint / mass.unsqueeze(1)


class TestPooledLaw:
    @given(worlds())
    def test_exact_gates_give_the_law_of_all_rows(self, world):
        rows, densities, reference, laws = world
        found = gated_pool(rows, (densities / reference).log(), laws)
        expected = moments_of_all_rows(rows, densities, laws)
        torch.testing.assert_close(found.moments().double(), expected, rtol=1e-6, atol=1e-9)

    @given(worlds(Gaussian))
    def test_and_for_numbers_its_mean_and_variance(self, world):
        rows, densities, reference, laws = world
        found = gated_pool(rows, (densities / reference).log(), laws)
        expected = moments_of_all_rows(rows, densities, laws)
        torch.testing.assert_close(found.moments().double(), expected, rtol=1e-6, atol=1e-9)

    @given(worlds(), st.integers(0, 2**32))
    def test_reference_rows_of_any_density_give_the_same_pool(self, world, seed):
        rows, densities, reference, laws = world
        rng = torch.Generator().manual_seed(seed)
        shifted = torch.randn(30, generator=rng, dtype=torch.float64).exp()
        first, second = (
            gated_pool(rows, (densities / density).log(), laws).moments()
            for density in (reference, shifted)
        )
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-9)

    @given(worlds(), st.integers(0, 100))
    def test_where_sites_are_alike_it_is_the_mixture(self, world, seed):
        """Sites that are alike have the same gate, whatever the reference rows are like."""
        rows, _, _, laws = world
        one = torch.randn(30, generator=generator(seed, "one gate"), dtype=torch.float64)
        gates = one.expand(len(rows), -1)
        mixture = fold(
            PredictiveSum.of(law, n) for n, law in zip(rows, laws, strict=True)
        ).mixture()
        found = gated_pool(rows, gates, laws)
        torch.testing.assert_close(found.moments(), mixture.moments(), rtol=1e-6, atol=1e-9)


class TestWrongGates:
    @given(worlds(), st.floats(0, 3), st.integers(0, 2**32))
    def test_cost_at_most_twice_their_error_in_nats(self, world, error, seed):
        rows, densities, reference, laws = world
        rng = torch.Generator().manual_seed(seed)
        gates = (densities / reference).log()
        wrong = gates + error * (2 * torch.rand(gates.shape, generator=rng).double() - 1)
        right, found = (gated_pool(rows, g, laws).log_probs.double() for g in (gates, wrong))
        # At every input and for every outcome, so for the mean NLL under any law.
        assert float((right - found).max()) <= 2 * error + SLACK

    @given(worlds(), st.integers(0, 2**32))
    def test_an_error_that_all_sites_share_costs_nothing(self, world, seed):
        rows, densities, reference, laws = world
        rng = torch.Generator().manual_seed(seed)
        gates = (densities / reference).log()
        shared = torch.randn(30, generator=rng, dtype=torch.float64)
        first, second = (gated_pool(rows, g, laws).moments() for g in (gates, gates + shared))
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-9)

    @given(worlds(), st.floats(0.1, 3))
    def test_bounds_cost_only_what_they_cut(self, world, bound):
        rows, densities, reference, laws = world
        gates = (densities / reference).log()
        cut = gates.clamp(-bound, bound)
        right, found = (gated_pool(rows, g, laws).log_probs.double() for g in (gates, cut))
        most = float((gates - cut).abs().max())
        assert float((right - found).max()) <= 2 * most + SLACK


class TestFewReferenceRows:
    def test_error_falls_with_the_root_of_their_number(self):
        sklearn = pytest.importorskip("sklearn.linear_model")
        logistic = GateLearner(SklearnClassifier(sklearn.LogisticRegression(C=1e4), 2, size=1))
        at = torch.randn(2000, 1, generator=generator(0, "at"))

        def error(num):
            squares = []
            for repeat in range(10):
                own = torch.randn(8000, 1, generator=generator(repeat, "own")) + 1
                contrast = torch.randn(num, 1, generator=generator(repeat, "contrast"))
                inputs = torch.cat([contrast, at])
                rng = generator(repeat, "gate")
                found = log_density_ratio(
                    logistic, (own, own[:, 0]), inputs, num_contrast=num, rng=rng
                )
                squares.append((found[num:] - (at[:, 0] - 0.5)).square().mean())
            return math.sqrt(float(torch.stack(squares).mean()))

        few, many = error(100), error(1600)
        assert few / many > 2  # 4 by the theory, less what own rows add
        assert many < 0.15
