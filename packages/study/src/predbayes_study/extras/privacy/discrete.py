"""Whole numbers of the discrete Gaussian distribution, exactly, of random words.

    P(n) = exp(-n^2 / (2 s^2)) / sum over all whole m of exp(-m^2 / (2 s^2)),    s whole

They are drawn as Canonne, Kamath and Steinke (2020) do: n of the discrete Laplace distribution of
scale s is kept with probability exp(-(|n| - s)^2 / (2 s^2)). A coin of probability exp(-a / b) with
a <= b is heads if, of coins of probability a / b, a / 2b, a / 3b, ..., the first that is tails has
an odd number. All of it is in whole numbers of 64 bits, many numbers at a time: no logarithm, no
float, and the same numbers on every computer. A try beyond 100 s is rejected, so squares fit into
64 bits; it would be kept once in 10^2000.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Words = Callable[[int], npt.NDArray[np.uint64]]
"""Returns so many further words of 64 random bits."""

MOST = 2**24
"""Scales are below it."""

_FURTHEST = 100  # scales from zero


def discrete_gaussian(size: int, scale: int, words: Words) -> Integers:
    """Draw independent whole numbers n with probabilities as exp(-n^2 / (2 scale^2))."""
    assert 0 < scale < MOST
    found = np.empty(0, dtype=np.int64)
    while len(found) < size:
        drawn = _laplace(3 * (size - len(found)) + 32, scale, words)
        kept = _coins((np.abs(drawn) - scale) ** 2, 2 * scale**2, words)
        found = np.concatenate([found, drawn[kept]])
    return found[:size]


def _laplace(tries: int, scale: int, words: Words) -> Integers:
    """Draw n with probabilities as exp(-|n| / scale); fewer than there are tries."""
    below = _uniform(tries, scale, words)
    below = below[_coins(below, scale, words)]
    whole, going = np.zeros_like(below), np.arange(len(below))
    while len(going):
        going = going[_coins(np.ones_like(going), 1, words)]
        whole[going] += 1
    sizes, negative = below + scale * whole, words(len(below)) % 2 == 1
    kept = ~(negative & (sizes == 0)) & (whole < _FURTHEST)  # or zero would come twice
    signed: Integers = np.where(negative, -sizes, sizes)[kept]
    return signed


def _coins(above: Integers, below: int, words: Words) -> npt.NDArray[np.bool_]:
    """Toss a coin of probability exp(-above / below) for each number."""
    whole, rest = np.divmod(above, below)
    heads, number = _short_coins(rest, below, words), 0
    while len(left := np.flatnonzero(heads & (whole > number))):
        heads[left] = _short_coins(np.full(len(left), below), below, words)
        number += 1
    return heads


def _short_coins(above: Integers, below: int, words: Words) -> npt.NDArray[np.bool_]:
    """Toss coins as `_coins`, of numbers up to `below`."""
    heads, going, number = np.zeros(len(above), dtype=bool), np.arange(len(above)), 1
    while len(going):
        tails = _uniform(len(going), below * number, words) >= above[going]
        heads[going[tails]] = number % 2 == 1
        going, number = going[~tails], number + 1
    return heads


def _uniform(size: int, bound: int, words: Words) -> Integers:
    """Draw whole numbers from 0 up to below the bound, each equally likely."""
    last = np.uint64(2**64 // bound * bound - 1)  # above it, small remainders would be likelier
    found = np.empty(0, dtype=np.uint64)
    while len(found) < size:
        drawn = words(size - len(found))
        found = np.concatenate([found, drawn[drawn <= last] % np.uint64(bound)])
    return found.astype(np.int64)
