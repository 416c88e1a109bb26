"""Whole numbers of the discrete Gaussian distribution, from the system's randomness.

    P(n) = exp(-n^2 / (2 std^2)) / sum over all whole m of exp(-m^2 / (2 std^2))

They are drawn as Canonne, Kamath and Steinke (2020) do: n of the discrete Laplace distribution of
scale t = floor(std) + 1 is kept with probability exp(-(|n| - std^2 / t)^2 / (2 std^2)). Coins are
doubles; what that costs is accounted in `predbayes.predictive.sitenoise`.
"""

from __future__ import annotations

import math
import os

import numpy as np
from numpy.typing import NDArray

_TRIES = 1.4  # draws for one that is kept, and some more


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
