r"""Noise that every site adds to its words, so that their sum is differentially private for sites.

Under `privacy.sites` of a plan site k sends what it says of each of B reference rows as a vector
v_k of p - 1/C, over rows and C classes, shrunk to a Euclidean norm of at most clip sqrt(B), and
nothing else. Each adds a share of noise, so that nobody has to be trusted with all of it:

    sum_k v_k + sum_k g_k,      g_k ~ N(0, sigma^2 / honest),      sigma = Delta / mu(eps, delta)

If at least `honest` sites of an opened sum keep their noise to themselves, its variance is sigma^2
or more, whoever of the others dropped out or told the coordinator what they drew. Which sums are
neighbours is told by the adjacency:

    replace-one   one site has other rows, so any other v_k:     Delta = min(2 clip, sqrt 2) sqrt(B)
    zero-out      one site says nothing, 1/C of each class:      Delta = clip sqrt(B)

Two distributions are at most sqrt 2 apart, and one is at most sqrt(1 - 1/C) from uniform. That a
site takes part is known to everybody, and is not hidden.

The noise is whole units of 2^-30: the discrete Gaussian (`predbayes.predictive.discrete`), drawn
from the system's randomness and never from the plan's seed. Why the closed form of real Gaussian
noise (`predbayes.learning.accounting`) holds for it, up to a `slack` in epsilon, with s the
deviation of the sum in units, s_k of one share, and W numbers. Each step changes the probability of
a number by a factor of at most exp(+-r), as long as it is within 12 deviations of zero; that it is
not has a probability of 1e-32, which is nothing beside delta:

    sum of discrete Gaussians = discrete Gaussian     r about exp(-pi^2 s_k^2), which is 0 here
    discrete Gaussian = Gaussian, rounded             r = 6 / s^2, by the second derivative
    Gaussian, rounded = function of the Gaussian      because v_k is whole units itself
    coins are doubles, right to 50 bits or so         r = 2^-44 for a draw, of every site

    slack = 2 W (max_sites 2^-44 + 6 2^-40),          where each share has s_k >= 2^20 units

This module needs no arrays: a plan is checked by it.
"""

from __future__ import annotations

import math
from typing import Literal

Adjacency = Literal["replace-one", "zero-out"]

EXPONENT = -30  # of the unit
_LEAST_UNITS = 2.0**20  # of the deviation of a share
_COINS, _ROUNDING = 2.0**-44, 6 * 2.0**-40


def sensitivity(adjacency: Adjacency, num_rows: int, num_classes: int, clip: float) -> float:
    """Return by how much one site moves the sum, as a Euclidean norm.

    Examples:
        >>> round(sensitivity("replace-one", 100, 2, 1.0), 2), sensitivity("zero-out", 100, 2, 0.5)
        (14.14, 5.0)
    """
    reach = min(clip, math.sqrt(1 - 1 / num_classes))
    apart = min(2 * reach, math.sqrt(2)) if adjacency == "replace-one" else reach
    return apart * math.sqrt(num_rows)


def slack(num_numbers: int, max_sites: int) -> float:
    """Return how much of epsilon goes to whole units and to coins that are doubles."""
    return 2 * num_numbers * (max_sites * _COINS + _ROUNDING)


def is_fine(share: float) -> bool:
    """Whether the deviation of a share is so many units that the slack holds."""
    return share >= _LEAST_UNITS * 2.0**EXPONENT
