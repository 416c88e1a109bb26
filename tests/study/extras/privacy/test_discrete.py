"""Discrete Gaussian numbers: as likely as they should be, and as private as normal noise."""

from __future__ import annotations

import hashlib
import itertools
import math
from fractions import Fraction
from itertools import count

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_mechanism
from scipy.stats import chi2

from predbayes_study.extras.privacy import discrete
from predbayes_study.extras.privacy.accounting import delta_of
from predbayes_study.extras.privacy.discrete import MOST, discrete_gaussian
from predbayes_study.extras.privacy.private import scaled


def words_of(seed):
    tries = count()

    def words(num):
        content = hashlib.shake_256(f"{seed} {next(tries)}".encode()).digest(8 * num)
        return np.frombuffer(content, dtype="<u8").astype(np.uint64)

    return words


def probabilities(scale, span=40):
    m = np.arange(-span * scale, span * scale + 1)
    weights = np.exp(-(m.astype(float) ** 2) / (2 * scale**2))
    return m, weights / weights.sum()


@pytest.mark.parametrize("scale", [1, 2, 5, 19])
def test_each_number_is_as_likely_as_it_should_be(scale):
    """Chi squared; false alarm 1e-6 for each scale."""
    found = discrete_gaussian(200_000, scale, words_of(scale))
    m, expected = probabilities(scale)
    counts = np.bincount(found + 40 * scale, minlength=len(m))
    often = expected * len(found) >= 10
    values = (counts - expected * len(found))[often] ** 2 / (expected * len(found))[often]
    assert values.sum() < chi2.isf(1e-6, often.sum())
    assert counts[~often].sum() < 10 * (~often).sum()


def test_large_scales_have_their_variance_and_no_favourite_remainder():
    """Deviations of five standard errors: false alarm 6e-7 each."""
    scale, num = MOST - 1, 100_000
    found = discrete_gaussian(num, scale, words_of("large"))
    assert abs(found.mean()) < 5 * scale / math.sqrt(num)
    assert abs(found.var() / scale**2 - 1) < 5 * math.sqrt(2 / num)
    assert abs((found % 2).mean() - 0.5) < 5 * 0.5 / math.sqrt(num)


def test_coins_are_exact(monkeypatch):
    """All faces of the first three coins, each once: heads are the series of exp(-2 / 3)."""
    heads = 0
    for faces in itertools.product(range(3), range(6), range(9)):
        left = iter([*faces, 2])  # the fourth is tails: only the first three are looked at

        def face(size, bound, words, left=left):
            return np.array([next(left)])

        monkeypatch.setattr(discrete, "_uniform", face)
        heads += int(discrete._short_coins(np.array([2]), 3, words_of(0))[0])
    first, second, third = Fraction(2, 3), Fraction(2, 6), Fraction(2, 9)
    assert Fraction(heads, 3 * 6 * 9) == (1 - first) + first * second * (1 - third)


def test_coins_of_larger_numbers():
    """Five standard errors: false alarm 6e-7."""
    found, share = discrete._coins(np.full(200_000, 7), 3, words_of("coins")), math.exp(-7 / 3)
    assert abs(found.mean() - share) < 5 * math.sqrt(share / len(found))


def test_words_that_favour_small_remainders_are_not_used():
    last = 2**64 // 5 * 5
    given = iter([[last, last + 0, 7], [2**64 - 1, last - 1], [12]])
    found = discrete._uniform(3, 5, lambda num: np.array(next(given)[:num], dtype=np.uint64))
    assert found.tolist() == [2, 4, 2]


def test_the_same_words_are_the_same_numbers():
    one, again = (discrete_gaussian(500, 2**22 + 1, words_of("same")) for _ in range(2))
    assert (one == again).all()
    assert hashlib.sha256(one.astype("<i8").tobytes()).hexdigest()[:16] == "a7d6d9dca7c21e45"


@pytest.mark.parametrize("deviation", [1e-4, 0.3, 1.0, 9.7, 64.0, 3e4])
def test_a_scale_has_room_for_the_proof(deviation):
    grid, scale = scaled(deviation)
    assert math.frexp(grid)[0] == 0.5  # a power of two: multiples are exact
    assert scale < MOST
    assert (scale**2 - 100) * Fraction(grid) ** 2 > Fraction(deviation) ** 2
    assert scale * grid < deviation * (1 + 1e-6)


@pytest.mark.parametrize("centre", [0.0, 0.3, 0.5])
def test_it_is_a_normal_number_rounded_at_random(centre):
    """Scale^2 = 300: normal of variance 200, then discrete of variance 100 about it."""
    x, step = np.linspace(-400, 400, 160_001, retstep=True)
    normal = np.exp(-(x**2) / 400) / math.sqrt(400 * math.pi) * step
    m = np.arange(-90, 91)
    sums = np.exp(-((np.arange(-600, 601)[:, None] - x[None, ::800] - centre) ** 2) / 200).sum(0)
    assert np.ptp(sums) / sums.mean() < 1e-13  # the same about every number
    rounded = (np.exp(-((m[:, None] - x) ** 2) / 200) * normal).sum(1) / sums.mean()
    exact = np.exp(-(m**2) / 600)
    exact /= np.exp(-(np.arange(-1000, 1001) ** 2) / 600).sum()
    assert rounded == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("moved", [1, 8, 20])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0])
def test_it_promises_what_normal_noise_does(moved, epsilon):
    """The accountant of dp-accounting for discrete noise of this scale, and our closed form."""
    deviation = 20.0
    scale = math.hypot(deviation, 10)
    loss = privacy_loss_mechanism.DiscreteGaussianPrivacyLoss(scale, sensitivity=moved)
    assert loss.get_delta_for_epsilon(epsilon) <= delta_of(moved / deviation, epsilon) + 1e-12
    close = privacy_loss_mechanism.DiscreteGaussianPrivacyLoss(2000.0, sensitivity=100 * moved)
    told = close.get_delta_for_epsilon(epsilon)
    assert told == pytest.approx(delta_of(moved / 20, epsilon), rel=0.02, abs=1e-9)
