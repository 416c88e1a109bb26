"""Sums of tensors that are exact: the same bits in any order and grouping, and back again.

A number is written in digits of base 2^15 on a grid that its sum has:

    x = sum_l d_l u_l + rest,      u_l = 2^(z - 15 l)

What is below half of the last unit is rounded away, for each summand alone. From then on digits are
added as integers, so nothing depends on who was added when, and what was added can be taken away
again. A product with a weight is exact too, because weights have digits on the same base:

    (d_l u_l) (e_j 2^(15 j)) = d_l e_j u_(l - j)

is a whole number of units of the same grid. Float64 adds up 2^5 products of 30 and 18 bits without
rounding, so that a weighted sum of many summands is a product of matrices; or 2^8 numbers of 45
bits. So digits of two or three places are split off at a time, and carried over later. How numbers
are split does not matter: what they were rounded to does.

Digits are *canonical* when they are carried over: each but the first from -2^14 to 2^14. Equal sums
have equal canonical digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from predbayes.errors import PoolError

_BITS = 15  # of a digit
_WEIGHTS = (3, 2, 1, 0, -1, -2)  # digits of a weight, of units 2^45 to 2^-30
_WEIGHT_BITS = 18  # of a digit of a weight; the first may take more than its place
_MOST_WEIGHT = 2.0**62
_ALONE, _WEIGHTED = 3, 2  # places of a digit that is split off, to be added alone or with weights
_ROUNDING = 1.5 * 2.0**52  # added and taken away again, it leaves a whole number
_BLOCK = 2**16  # numbers that are split at a time: few enough to stay in a processor's cache

MOST_AT_ONCE, MOST_WEIGHTED = 2**8, 2**5
"""Summands that add up exactly in float64, alone and with weights."""

_CARRY_AFTER = 2**9  # additions of 53 bits each
_MOST_DIGIT = 2**61  # that stays below 2^63 until it is looked at again


@dataclass(frozen=True, slots=True)
class Grid:
    """The places that a sum has: from the first, which is the largest, to the last."""

    zeroth: int  # exponent of the unit of place 0
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def unit(self, place: int) -> float:
        """What one of a digit is worth."""
        return 2.0 ** (self.zeroth - _BITS * place)

    @property
    def weighted(self) -> Grid:
        """The grid of sums of such numbers with weights."""
        return Grid(self.zeroth, self.first, self.last - min(_WEIGHTS))

    def places(self, largest: float, width: int, last: int) -> list[int]:
        """Return where digits of so many places are split off numbers no larger than this."""
        found = [last]
        # A digit of the greatest width may be half as large again: rounding, and p just above 1.
        while not largest <= 0.75 * 2.0 ** (_BITS * width) * self.unit(found[0]):
            found.insert(0, found[0] - width)
            if found[0] < self.first:
                raise PoolError(f"a number of {largest:.3g} is too large to be added, or none")
        return found


@dataclass(slots=True, eq=False, repr=False)
class ExactSum:
    """A sum of tensors of one shape.

    Examples:
        >>> tenths = torch.full((10, 1), 0.1, dtype=torch.float64)
        >>> grid = Grid(7, -1, 4)
        >>> one, other = (ExactSum.of(some, grid) for some in tenths.split(7))
        >>> bool((one.add_(other).digits == ExactSum.of(tenths, grid).digits).all())
        True
    """

    grid: Grid
    _digits: Tensor  # (places, ...), int64
    _num_added: int = 0  # since digits were canonical
    _value: Tensor | None = None

    @classmethod
    def zero(cls, grid: Grid, shape: Sequence[int]) -> ExactSum:
        """Return the sum of nothing."""
        return cls(grid, torch.zeros(len(grid), *shape, dtype=torch.int64))

    @classmethod
    def of(cls, summands: Tensor, grid: Grid) -> ExactSum:
        """Add up tensors (K, ...)."""
        return cls.zero(grid, summands.shape[1:]).add_many_(summands)

    @classmethod
    def shown(cls, value: Tensor) -> ExactSum:
        """Return what has this value and no digits: it can be looked at, and not added."""
        return cls(Grid(0, 0, -1), torch.zeros(0, *value.shape, dtype=torch.int64), 0, value)

    def add_many_(self, summands: Tensor, factors: Tensor | None = None) -> Self:
        """Add tensors (K, ...), each multiplied by factors that broadcast, or not."""
        sums: dict[int, Tensor] = {}
        for rows, place, multiples in _split(summands, self.grid, _ALONE, self.grid.last, factors):
            _at(sums, place, self.shape)[rows] = multiples.sum(0)
        for place, found in sums.items():
            self._add_at(place, found.view(self.shape), self.grid.last - place)
        return self._changed()

    def add_(self, other: ExactSum) -> Self:
        """Add another sum of the same shape."""
        return self._combine(other, 1)

    def take_away_(self, other: ExactSum) -> Self:
        """Take away what was added."""
        return self._combine(other, -1)

    def __getitem__(self, rows: slice | Tensor) -> ExactSum:
        """The sum restricted to some rows; slices share memory with this one."""
        return ExactSum(self.grid, self.digits[:, rows])

    def expand(self, shape: torch.Size) -> ExactSum:
        """Return the same sum at every row of a larger shape, to be added to others."""
        ones = (1,) * (len(shape) - len(self.shape))
        return ExactSum(self.grid, self.digits.view(-1, *ones, *self.shape).expand(-1, *shape))

    def clone(self) -> ExactSum:
        """Return the same sum in memory of its own."""
        return ExactSum(self.grid, self.digits.clone(), 0, self._value)

    @property
    def shape(self) -> torch.Size:
        """That of the tensors."""
        return self._digits.shape[1:]

    @property
    def digits(self) -> Tensor:
        """Canonical digits, (places, ...): equal for equal sums."""
        self._carry()
        return self._digits

    def value(self) -> Tensor:
        """Return the sum in float64."""
        if self._value is None:
            value = torch.zeros_like(self._digits[0], dtype=torch.float64)
            for index in range(len(self.grid) - 1, -1, -1):
                value.add_(self.digits[index], alpha=self.grid.unit(self.grid.first + index))
            self._value = value
        return self._value

    def _combine(self, other: ExactSum, sign: int) -> Self:
        if (self.grid, self.shape) != (other.grid, other.shape):
            raise PoolError("sums of different shapes or grids do not add")
        self._digits.add_(other.digits, alpha=sign)
        return self._changed()

    def _add_at(self, place: int, multiples: Tensor, above: int) -> None:
        """Add multiples of a place's unit, counted in units of so many places below it."""
        whole = (multiples * 2.0 ** (-_BITS * above)).to(torch.int64)
        self._digits[place - self.grid.first] += whole

    def _changed(self) -> Self:
        self._value = None
        self._num_added += 1
        if self._num_added >= _CARRY_AFTER:
            self._carry()
        return self

    def _carry(self) -> None:
        if not self._num_added:
            return
        for index in range(len(self.grid) - 1, 0, -1):
            over = (self._digits[index] + 2 ** (_BITS - 1)) >> _BITS
            self._digits[index - 1] += over
            self._digits[index] -= over << _BITS
        self._num_added = 0
        first = self._digits[0]
        if first.numel() and int(first.abs().amax()) >= _MOST_DIGIT:
            raise PoolError("the sum is larger than can be added exactly: check the row counts")


def add_weighted_(groups: Sequence[tuple[Sequence[ExactSum], Weights]], summands: Tensor) -> None:
    """Add tensors (K, ...) to groups of sums, to each with weights of its own.

    The sums are on a grid that is `weighted`: the tensors are rounded to that without weights, and
    split once for all groups, which takes longer than to add them.

    Args:
        groups: Sums with weights (J, K), or one sum with weights (1, K, B or 1, D or 1).
        summands: The tensors.
    """
    if len(summands) > MOST_WEIGHTED:
        raise PoolError(f"at most {MOST_WEIGHTED} summands are added at once with weights")
    grid, shape = groups[0][0][0].grid, groups[0][0][0].shape
    last, products = grid.last + min(_WEIGHTS), _products(groups)
    sums: dict[tuple[int, int], Tensor] = {}
    for rows, place, wholes in _split(summands, grid, _WEIGHTED, last):
        for index, product in enumerate(products):
            found = _at(sums, (index, place), (len(product.totals), *(shape or (1,))))
            found[:, rows] = product.of(wholes, rows)
    for (index, place), found in sums.items():
        for (total, shift), of_total in zip(products[index].totals, found, strict=True):
            if place - shift < grid.first:
                raise PoolError("a product is too large to be added: check the row counts")
            total._add_at(place - shift, of_total.view(shape), last - place + shift)
    for totals, _ in groups:
        for total in totals:
            total._changed()


class _Product(NamedTuple):
    """Sums over whole numbers (K, B, ...) with digits of weights, all at once."""

    totals: list[tuple[ExactSum, int]]  # what each of J sums belongs to, and the digit's shift
    weights: Tensor  # (J, K), or by row (B, J, K), or of one sum (1, K, B or 1, D)

    def of(self, wholes: Tensor, rows: slice) -> Tensor:
        """Return the sums over some of the rows, (J, ...)."""
        weights = self.weights
        if weights.ndim == 2:
            return (weights @ wholes.view(len(wholes), -1)).view(-1, *wholes.shape[1:])
        if weights.ndim == 3:
            return torch.bmm(weights[rows], wholes.transpose(0, 1)).transpose(0, 1)
        some = weights[0, :, rows] if weights.shape[2] > 1 else weights[0]
        shape = (1, *wholes.shape[1:])
        # Not as a product and its sum: that would be one more array as large as the numbers.
        found = np.einsum("kbd,kbd->bd", some.expand_as(wholes).numpy(), wholes.numpy())
        return torch.from_numpy(found).view(shape)


def _products(groups: Sequence[tuple[Sequence[ExactSum], Weights]]) -> list[_Product]:
    """As few as can be: weights of summands and of rows are one matrix for each row."""
    lines: list[tuple[ExactSum, int, Tensor]] = []  # with weights (K, 1 or B)
    found: list[_Product] = []
    for totals, weights in groups:
        for shift, factors in weights.digits.items():
            if factors.ndim == 2:
                lines += [(t, shift, f.unsqueeze(1)) for t, f in zip(totals, factors, strict=True)]
            elif factors.shape[2] > 1 and factors.shape[3] == 1:
                lines.append((totals[0], shift, factors[0, :, :, 0]))
            else:
                found.append(_Product([(totals[0], shift)], factors))
    if lines:
        num_rows = max(line.shape[1] for _, _, line in lines)
        matrix = torch.stack([line.expand(-1, num_rows) for _, _, line in lines])  # (J, K, B)
        by_row = matrix[:, :, 0] if num_rows == 1 else matrix.permute(2, 0, 1).contiguous()
        found.append(_Product([(total, shift) for total, shift, _ in lines], by_row))
    return found


K = TypeVar("K")


def _at(sums: dict[K, Tensor], key: K, shape: Sequence[int]) -> Tensor:
    """The sums of one place, which is zero where rows have no digit; a number has one row."""
    if key not in sums:
        sums[key] = torch.zeros(shape or (1,), dtype=torch.float64)
    return sums[key]


def _split(
    summands: Tensor, grid: Grid, width: int, last: int, factors: Tensor | None = None
) -> Iterator[tuple[slice, int, Tensor]]:
    """Yield whole numbers of the last unit that add up to summands (K, ...), some rows at a time.

    They are multiples of the unit of a place. Each is overwritten by the next: memory that is used
    again is much the quicker.
    """
    if len(summands) > MOST_AT_ONCE:
        raise PoolError(f"at most {MOST_AT_ONCE} summands are added at once")
    summands = summands if summands.ndim > 1 else summands.unsqueeze(1)
    if summands.dtype is not torch.float32:
        summands = summands.double()
    num_rows, scale = summands.shape[1], 1 / grid.unit(last)
    step = max(1, _BLOCK * num_rows // max(1, summands.numel()))
    places = [] if factors is not None else grid.places(_largest(summands), width, last)
    rest = wholes = torch.empty(0, dtype=torch.float64)
    for start in range(0, num_rows, step):
        rows = slice(start, min(start + step, num_rows))
        some = summands[:, rows]
        if rest.shape != some.shape:
            rest, wholes = (torch.empty(some.shape, dtype=torch.float64) for _ in range(2))
        if places == [last]:
            # Numerics: exact in float32, too. The scale is a power of two, and what is too large to
            # have a fraction there has none.
            yield rows, last, wholes.copy_(torch.mul(some, scale).round_())
            continue
        if factors is None:
            rest.copy_(some)
        else:
            torch.mul(some, factors[:, rows] if factors.shape[1] > 1 else factors, out=rest)
        found = places or grid.places(_largest(rest), width, last)
        rest.mul_(scale)
        for place in found:
            shift = _ROUNDING * 2.0 ** (_BITS * (last - place))
            torch.add(rest, shift, out=wholes)
            wholes.sub_(shift)
            yield rows, place, wholes
            if place < last:
                rest.sub_(wholes)


def _largest(values: Tensor) -> float:
    if not values.numel():
        return 0.0
    low, high = values.aminmax()
    return max(-float(low), float(high))  # not a number, if one is


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights as a sum of multiples of 2^(15 j), by j; those that are all zero lack."""

    digits: dict[int, Tensor]  # (J, K), or (1, K, B or 1, D or 1)

    @classmethod
    def of(cls, weights: Tensor, least: float = 0.0) -> Weights:
        """Round weights, and split them; refuse those below the least."""
        largest = _largest(weights)
        if not largest <= _MOST_WEIGHT or not bool((weights >= least).all()):
            raise PoolError(
                f"a site's weight is not from {least:.2g} to {_MOST_WEIGHT:.2g}; weights are "
                "numbers of rows, or densities"
            )
        rest, found = weights, {}
        for shift in _WEIGHTS:
            unit = 2.0 ** (_BITS * shift)
            if shift > min(_WEIGHTS) and largest <= 2.0 ** (_WEIGHT_BITS - _BITS) * unit:
                continue  # the next digit holds all of it
            found[shift] = (rest / unit).round() * unit
            rest = rest - found[shift]
            largest = _largest(rest)
            if not largest:
                break
        return cls(found)

    def add_to_(self, totals: Sequence[ExactSum]) -> None:
        """Add them to sums of weights, on the grid `WEIGHTS`."""
        for shift, part in self.digits.items():
            for total, some in zip(totals, part, strict=True):
                total._add_at(-shift, some.sum(0).view(total.shape), shift)
        for total in totals:
            total._changed()


WEIGHTS = Grid(0, -max(_WEIGHTS), -min(_WEIGHTS))
"""The grid of sums of weights."""

LEAST_WEIGHT = 2.0**-20
"""A weight that is rounded by less than a thousandth."""
