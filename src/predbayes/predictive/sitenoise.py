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

The noise is whole units of 2^-30: the discrete Gaussian (Canonne, Kamath and Steinke, 2020), drawn
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

This module needs no torch: a plan is checked by it.
"""

from __future__ import annotations

import math
import os
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Adjacency = Literal["replace-one", "zero-out"]

EXPONENT = -30  # of the unit
_LEAST_UNITS = 2.0**20  # of the deviation of a share
_COINS, _ROUNDING = 2.0**-44, 6 * 2.0**-40
_TRIES = 1.4  # draws for one that is kept, and some more


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


def discrete_gaussian(size: int, std: float) -> NDArray[np.int64]:
    """Draw whole numbers n with probabilities as exp(-n^2 / (2 std^2)), from the system."""
    scale, found = int(std) + 1, np.empty(0, dtype=np.int64)
    while len(found) < size:
        drawn = _laplace(math.ceil(_TRIES * 3 * (size - len(found))) + 16, scale)
        gamma = (np.abs(drawn) - std * std / scale) ** 2 / (2 * std * std)
        found = np.concatenate([found, drawn[_uniform(len(drawn)) < np.exp(-gamma)]])
    return found[:size]


def _laplace(tries: int, scale: int) -> NDArray[np.int64]:
    """Draw n with probabilities as exp(-|n| / scale); fewer than there are tries."""
    below = _words(tries)
    below = below[below < 2**63 // scale * scale] % scale
    below = below[_uniform(len(below)) < np.exp(-below / scale)]
    # P(V >= k) = e^-k; a uniform is above 0.
    whole = np.floor(-np.log(_uniform(len(below)))).astype(np.int64)
    size, negative = below + scale * whole, _uniform(len(below)) < 0.5
    kept = ~(negative & (size == 0))  # or zero would come twice
    signed: NDArray[np.int64] = np.where(negative, -size, size)[kept]
    return signed


def _words(size: int) -> NDArray[np.int64]:
    """Whole numbers of 63 bits of the system's randomness."""
    drawn = np.frombuffer(os.urandom(8 * size), dtype="<i8").astype(np.int64)
    return drawn & np.int64(2**63 - 1)


def _uniform(size: int) -> NDArray[np.float64]:
    """Numbers above 0 and up to 1, also small ones to the last bit of a double."""
    upper, lower = ((_words(size) >> 10).astype(np.float64) for _ in range(2))
    return upper * 2.0**-53 + (lower + 1) * 2.0**-106
