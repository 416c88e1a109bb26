"""Noise of sites: how far one moves the sum, how much noise there is, and where it comes from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes.learning.accounting import delta_of
from predbayes.predictive.discrete import discrete_gaussian
from predbayes.predictive.families import Categorical
from predbayes.predictive.fixed import FixedPoint
from predbayes.predictive.sitenoise import EXPONENT, sensitivity, slack
from predbayes.predictive.words import centred, from_words, to_noisy_words
from predbayes.study.plan.schema import Sites

STATED = {"epsilon": 4.0, "delta": 1e-5, "unit": "site"}


def of(seed, rows, classes, sharpness):
    rng = torch.Generator().manual_seed(seed)
    return Categorical.from_natural(sharpness * torch.randn(rows, classes, generator=rng))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40), st.integers(2, 6), st.floats(0.05, 1), st.floats(0, 60), st.floats(0, 60),
    st.integers(0, 99),
)  # fmt: skip
def test_no_site_moves_the_sum_by_more_than_its_sensitivity(rows, classes, clip, one, other, seed):
    first, second = (
        centred(of(seed + k, rows, classes, sharp), clip) for k, sharp in enumerate((one, other))
    )
    least = 1 + 1e-9
    assert float(first.norm()) <= least * sensitivity("zero-out", rows, classes, clip)
    apart = float((first - second).norm())
    assert apart <= least * sensitivity("replace-one", rows, classes, clip)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_the_sensitivity_is_reached(adjacency):
    sure = Categorical((100.0 * torch.eye(2)[[0] * 9]).log_softmax(1))
    turned = Categorical(sure.log_probs.flip(1))
    moved = centred(sure, 1.0) - (centred(turned, 1.0) if adjacency == "replace-one" else 0)
    assert float(moved.norm()) == pytest.approx(sensitivity(adjacency, 9, 2, 1.0), rel=1e-6)


def test_rounding_makes_no_site_longer():
    form = FixedPoint(50, 4, -12.0, 100, 10, noise=1e-9, clip=0.3)
    words = to_noisy_words(form, of(1, 50, 4, 5.0)).double() * 2.0**EXPONENT
    assert float(words.norm()) <= 0.3 * math.sqrt(50) + 10 * 2.0**EXPONENT * math.sqrt(200)


@pytest.mark.parametrize("std", [0.7, 3.0, 2.1 * 2**30])
def test_its_variance_is_that_of_the_discrete_gaussian(std):
    drawn = discrete_gaussian(100_000, std).astype(float)
    around = np.arange(-40, 41) if std < 10 else None
    weights = None if around is None else np.exp(-(around**2) / (2 * std**2))
    expected = std**2 if weights is None else float((around**2 * weights).sum() / weights.sum())
    assert drawn.var() == pytest.approx(expected, rel=0.02)  # four standard errors are 0.018
    assert abs(drawn.mean()) < 5 * std / math.sqrt(1e5)


def test_small_numbers_have_their_probabilities():
    drawn = discrete_gaussian(200_000, 1.5)
    around = np.arange(-5, 6)
    weights = np.exp(-(np.arange(-40, 41) ** 2) / 4.5)
    expected = np.exp(-(around**2) / 4.5) / weights.sum()
    found = np.array([(drawn == n).mean() for n in around])
    assert np.abs(found - expected).max() < 0.006


@pytest.mark.parametrize("gone", [0, 40])
def test_with_drop_outs_there_is_at_least_the_noise_that_is_accounted(gone):
    """Of 100 sites 60 are counted on: also with 40 gone the sum has all of sigma."""
    stated = Sites(**STATED, adjacency="replace-one", honest=60)
    share = stated.share(200, 5, 100)
    form = FixedPoint(200, 5, -12.0, 100, 100, noise=share)
    says = of(3, 200, 5, 2.0)
    exact = (centred(says, 1.0) / 2.0**EXPONENT).trunc().long().reshape(-1)
    num = 100 - gone
    total = sum((to_noisy_words(form, says) for _ in range(num)), torch.zeros_like(exact))
    noise = (total - num * exact).double() * 2.0**EXPONENT
    sigma = share * math.sqrt(60)
    assert float(noise.std()) == pytest.approx(sigma * math.sqrt(num / 60), rel=0.09)
    moved = sensitivity("replace-one", 200, 5, 1.0)
    lost = slack(1000, 100)
    assert delta_of(moved / sigma, 4.0 - lost) <= 1e-5
    assert delta_of(moved / (0.99 * sigma), 4.0) > 1e-5


def test_noise_has_nothing_to_do_with_any_seed():
    form = FixedPoint(30, 3, -12.0, 100, 10, noise=1.0)
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        drawn.append(to_noisy_words(form, of(0, 30, 3, 1.0)))
    assert (drawn[0] != drawn[1]).all()


def test_the_opened_mixture_is_that_of_the_sites():
    form = FixedPoint(100, 3, -12.0, 1000, 400, noise=0.01)
    sites = [of(k, 100, 3, 1.0) for k in range(400)]
    total = from_words(form, sum(to_noisy_words(form, site) for site in sites), len(sites))
    mixture = torch.stack([site.moments() for site in sites]).mean(0)
    assert float((total.mixture().moments() - mixture).abs().max()) < 6 * 0.01 / 20


def test_a_promise_that_rounding_breaks_is_refused():
    stated = Sites(**STATED | {"epsilon": 0.01}, adjacency="zero-out", honest=2)
    with pytest.raises(ValueError, match="takes an epsilon"):
        stated.share(2000, 10, 10**8)
