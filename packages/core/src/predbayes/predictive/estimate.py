"""A figure with its interval of 95%: the one form in which results, pages and records have it.

It needs no torch, because a study's status shows estimates without loading anything that trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Annotated

from pydantic import Field, FiniteFloat
from pydantic.dataclasses import dataclass

Z = 1.959963984540054
"""The 97.5% quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A finite figure and its interval of 95%."""

    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat
    # How far the value may be from what the rows themselves would give; 0 where rows gave it.
    error: Annotated[FiniteFloat, Field(exclude_if=lambda error: not error)] = 0.0


def share(hits: float, num: float) -> Estimate:
    """Return a share of rows with Wilson's interval."""
    return wilson(hits / num, num)


def wilson(value: float, num: float) -> Estimate:
    """Return a share of this many trials with Wilson's interval, which also holds for 0 and 1."""
    shrunk = 1 + Z * Z / num
    centre = (value + Z * Z / (2 * num)) / shrunk
    reach = Z / shrunk * math.sqrt(value * (1 - value) / num + (Z / (2 * num)) ** 2)
    # Numerics: at 0 and 1 the end is the value, not the value and a rounding error.
    low = 0.0 if value == 0 else max(0.0, centre - reach)
    return Estimate(value, low, 1.0 if value == 1 else min(1.0, centre + reach))


def mean_of(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return the mean of estimates, of their intervals' ends and of their errors; None of none."""
    num = len(estimates)
    if not num:
        return None
    columns = zip(*((e.value, e.low, e.high, e.error) for e in estimates), strict=True)
    return Estimate(*(math.fsum(column) / num for column in columns))


@cache  # thousands of sites may all have as many rows
def t_quantile(num_rows: int) -> float:
    """Return the 97.5% quantile of Student's distribution for the mean of this many rows."""
    import scipy  # which a study's status does not need

    return float(scipy.stats.t.ppf(0.975, num_rows - 1)) if num_rows > 1 else 0.0
