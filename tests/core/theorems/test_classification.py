"""The paper's Table 1 for classification, under its three assumptions on the local models.

Near its own data a site predicts the true law p_T, elsewhere the uniform prior; the sites differ
in size.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import PredictiveSum
from predbayes.summand import fold

SLACK = 1e-9


@st.composite
def worlds(draw):
    """True laws at 20 inputs whose likeliest class is strictly likeliest, and site sizes."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    num_classes = draw(st.integers(2, 8))
    logits = torch.randn(20, num_classes, generator=rng, dtype=torch.float64)
    logits.scatter_add_(-1, logits.argmax(-1, keepdim=True), torch.full((20, 1), 0.2).double())
    sizes = [float(draw(st.integers(1, 1000))) for _ in range(draw(st.integers(2, 6)))]
    return Categorical.from_natural(logits), sizes


def of_top_class(predictive: Categorical, truth: Categorical) -> torch.Tensor:
    top = truth.log_probs.argmax(-1, keepdim=True)
    return predictive.moments().gather(-1, top).squeeze(-1)


def homogeneous(truth: Categorical, sizes: list[float]):
    return fold(PredictiveSum.of(truth, size) for size in sizes)


def heterogeneous(truth: Categorical, sizes: list[float]):
    """All test inputs are near the first site."""
    uniform = Categorical.from_natural(torch.zeros_like(truth.log_probs))
    near, *far = sizes
    return fold([PredictiveSum.of(truth, near), *(PredictiveSum.of(uniform, size) for size in far)])


@given(worlds())
def test_bcm_is_overconfident_on_homogeneous_data(world):
    """Theorem BCMHomoClass."""
    truth, sizes = world
    pool = homogeneous(truth, sizes).product()
    assert bool((of_top_class(pool, truth) > of_top_class(truth, truth)).all())


@given(worlds())
def test_bcm_is_calibrated_on_heterogeneous_data(world):
    """Theorem BCMHeteroClass."""
    truth, sizes = world
    pool = heterogeneous(truth, sizes).product()
    torch.testing.assert_close(pool.moments(), truth.moments())


@given(worlds())
def test_mixture_is_calibrated_on_homogeneous_data(world):
    """Theorem MixtureHomoClass."""
    truth, sizes = world
    torch.testing.assert_close(homogeneous(truth, sizes).mixture().moments(), truth.moments())


@given(worlds())
def test_mixture_is_underconfident_on_heterogeneous_data(world):
    """Theorem MixtureHeteroClass."""
    truth, sizes = world
    pool = heterogeneous(truth, sizes).mixture()
    assert bool((of_top_class(pool, truth) < of_top_class(truth, truth) - SLACK).all())
