"""Where a site's terms lie in words of 64 bits, and why no sum of them can wrap.

A number x becomes a whole number of units, one word of 64 bits:

    word = round(x / 2^e)

The plan bounds every term: |x| <= m at one site, and at most n sites. The unit is the finest with

    n m / 2^e <= 2^62

so that sums of words are below 2^63 in size and are the sums of the numbers, rounded once at each
site. A unit above 2^-24 would show in a pool: such a plan is refused by the name of the term.

The terms of classes, with B reference rows, C classes, R rows that a site counts for at most and F
the size of the least log p, are 5 B C + B + 2 C + 1 numbers. `corrected` is the log pool less the
last but one of them, and what else the pools need are the rows and the number of sites.

A time to an event in J intervals has no classes. Log odds of its hazards are within F of 0, and its
moments are J + 1 probabilities, so its terms are 4 B J + 2 B + 1 numbers: natural, log pool and
entropy of each interval, moments, what a site knows at each row, and its rows.

This module needs no torch: a plan is checked by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from predbayes.errors import PoolError

_SUM_BITS = 62
_FINEST = -50  # exponent of a unit, which every exact sum can hold
_FINEST_WEIGHT = -30  # likewise of a weight
_COARSEST = -24
_SLACK = 0.01  # of a logarithm: what rounding may leave above zero

CLASS_ROWS, BASE_RATES, INFORMATION, ROWS = "class rows", "base rates", "information", "rows"


class Part(NamedTuple):
    """One array among the words."""

    name: str
    shape: tuple[int, ...]
    largest: float  # size of a number, at one site
    exponent: int  # of the unit

    @property
    def size(self) -> int:
        """How many words it takes."""
        return math.prod(self.shape)


@dataclass(frozen=True)  # without slots, where what is made once is kept
class FixedPoint:
    """The words of a study of classes, or of a time to an event.

    Args:
        num_rows: Reference rows.
        num_classes: Classes, or intervals.
        floor: Least log p with which a site enters.
        max_rows: Rows that a site counts for at most.
        max_sites: Sites of a sum at most.
        survival: Whether it is a time to an event.

    Examples:
        >>> FixedPoint(300, 2, -12.0, 100_000, 100).size
        3305
        >>> FixedPoint(300, 5, -12.0, 100_000, 100, survival=True).size
        6601
    """

    num_rows: int
    num_classes: int
    floor: float
    max_rows: int
    max_sites: int
    survival: bool = False

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every array, in its place; refuses what 64 bits cannot hold."""
        return tuple(self._parts())

    @property
    def size(self) -> int:
        """Words of one site."""
        return sum(part.size for part in self.parts)

    def _parts(self) -> Iterator[Part]:
        rows, classes, most = self.num_rows, self.num_classes, float(self.max_rows)
        least = _SLACK - self.floor + math.log1p(classes * math.exp(self.floor))
        known = math.log(classes) + _SLACK
        sure = 1.0 + _SLACK
        each = (rows, classes)
        if self.survival:
            yield from self._of_times()
            return
        yield self._part("natural", each, least)
        yield self._part("moments", each, most * sure)
        yield self._part("log_pool", each, most * least)
        yield self._part("entropy", each, known * least)
        yield self._part("class_mixture", each, most * sure)
        yield self._part(INFORMATION, (rows, 1), known, _FINEST_WEIGHT)
        yield self._part(CLASS_ROWS, (classes,), most * sure, _FINEST_WEIGHT)
        yield self._part(BASE_RATES, (classes,), most * math.log(most + classes))
        yield self._part(ROWS, (), most, _FINEST_WEIGHT)

    def _of_times(self) -> Iterator[Part]:
        rows, intervals, most = self.num_rows, self.num_classes, float(self.max_rows)
        far, known = _SLACK - self.floor, math.log(intervals + 1) + _SLACK
        each = (rows, intervals)
        yield self._part("natural", each, far)
        yield self._part("moments", (rows, intervals + 1), most * (1.0 + _SLACK))
        yield self._part("log_pool", each, most * far)
        yield self._part("entropy", each, known * far)
        yield self._part(INFORMATION, (rows, 1), known, _FINEST_WEIGHT)
        yield self._part(ROWS, (), most, _FINEST_WEIGHT)

    def _part(
        self,
        name: str,
        shape: tuple[int, ...],
        largest: float,
        finest: int = _FINEST,
    ) -> Part:
        exponent = max(finest, math.ceil(math.log2(self.max_sites * largest)) - _SUM_BITS)
        if exponent > _COARSEST:
            needed = exponent - _COARSEST + 64
            raise PoolError(
                f"the term {name!r} needs {needed} bits and a sealed sum has 64: lower max_rows = "
                f"{self.max_rows:,} or max_sites = {self.max_sites:,}"
            )
        return Part(name, shape, largest, exponent)
