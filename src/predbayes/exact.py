"""Sums of tensors that are exact: the same bits in any order and grouping, and back again.

A number is written in digits of base 2^22, on one grid for all sums:

    x = sum_l d_l u_l + rest,    u_l = 2^(7 - 22 l),    |d_l| <= 2^21 but for the first

What is below half of the last unit is rounded away, for each summand alone. From then on digits are
added as integers, so nothing depends on who was added when, and what was added can be taken away
again. A product with a weight is exact too, because weights have digits on the same base:

    (d_l u_l) (e_j 2^(22 j)) = d_l e_j u_(l - j)

is a whole number of units of the same grid. Float64 adds up 2^8 such products without rounding,
so a weighted sum of many summands is a product of matrices.

Digits are *canonical* when they are carried over: each but the first from -2^21 to 2^21. Equal sums
have equal canonical digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
from torch import Tensor

from predbayes.errors import PoolError

_BITS = 22  # of a digit
_ZEROTH = 7  # exponent of the unit of digit 0
_WEIGHT_DIGITS = (1, 0, -1, -2)  # of units 2^22 to 2^-44
_ROUNDING = 1.5 * 2.0**52  # added and taken away again, it leaves a whole number
_MOST_WEIGHT, _LEAST_WEIGHT = 2.0**42, 2.0**-34  # which has an error of one in a thousand
_MOST_UNITS = 2.0**44  # of a summand, in the first digit
_FEW_DIGITS = 3  # which take less time than to find out which of them are zero
_BLOCK = 2**16  # numbers that are split at a time: few enough to stay in a processor's cache

MOST_AT_ONCE = 2**8
"""Summands whose digits, of 44 bits with weights, add up exactly in float64."""

_CARRY_AFTER = 2**9  # additions of 52 bits each
_MOST_DIGIT = 2**61  # that stays below 2^63 until it is looked at again


@dataclass(frozen=True, slots=True)
class Grid:
    """The digits that a sum has: from the first, which is the largest, to the last."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    @property
    def weighted(self) -> Grid:
        """The grid of sums of such numbers with weights."""
        return Grid(self.first - max(_WEIGHT_DIGITS), self.last - min(_WEIGHT_DIGITS))


@dataclass(slots=True, eq=False, repr=False)
class ExactSum:
    """A sum of tensors of one shape.

    Examples:
        >>> tenths = torch.full((10, 1), 0.1, dtype=torch.float64)
        >>> grid = Grid(0, 3)
        >>> one, other = (ExactSum.of(some, grid) for some in tenths.split(7))
        >>> bool((one.add_(other).digits == ExactSum.of(tenths, grid).digits).all())
        True
    """

    grid: Grid
    _digits: Tensor  # (digits, ...), int64
    _num_added: int = 0  # since digits were canonical
    _value: Tensor | None = None

    @classmethod
    def zero(cls, grid: Grid, shape: Sequence[int], device: torch.device | None = None) -> ExactSum:
        """Return the sum of nothing."""
        return cls(grid, torch.zeros(len(grid), *shape, dtype=torch.int64, device=device))

    @classmethod
    def of(cls, summands: Tensor, grid: Grid) -> ExactSum:
        """Add up tensors (K, ...)."""
        return cls.zero(grid, summands.shape[1:], summands.device).add_many_(summands)

    @classmethod
    def shown(cls, value: Tensor) -> ExactSum:
        """Return what has this value and no digits: it can be looked at, and not added."""
        return cls(Grid(0, -1), torch.zeros(0, *value.shape, dtype=torch.int64), 0, value)

    def add_many_(self, summands: Tensor, factors: Tensor | None = None) -> Self:
        """Add tensors (K, ...), each multiplied by factors that broadcast, or not."""
        sums: dict[int, Tensor] = {}
        for rows, digit, multiples in _split(summands, self.grid, factors):
            _at(sums, digit, self.shape)[rows] = multiples.sum(0)
        for digit, found in sums.items():
            self._add_digit(digit, found.view(self.shape))
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
        """Canonical digits, (digits, ...): equal for equal sums."""
        self._carry()
        return self._digits

    def value(self) -> Tensor:
        """Return the sum in float64."""
        if self._value is None:
            value = torch.zeros_like(self._digits[0], dtype=torch.float64)
            for digit, whole in reversed(list(zip(self.grid, self.digits, strict=True))):
                value.add_(whole, alpha=_unit(digit))
            self._value = value
        return self._value

    def _combine(self, other: ExactSum, sign: int) -> Self:
        if (self.grid, self.shape) != (other.grid, other.shape):
            raise PoolError("sums of different shapes or grids do not add")
        self._digits.add_(other.digits, alpha=sign)
        return self._changed()

    def _add_digit(self, digit: int, multiples: Tensor) -> None:
        """Add multiples of a digit's unit, in float64."""
        self._digits[digit - self.grid.first] += (multiples * (1 / _unit(digit))).to(torch.int64)

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


def add_weighted_(totals: Sequence[ExactSum], summands: Tensor, weights: Tensor) -> None:
    """Add tensors (K, ...) to several sums, to each with weights of its own, (J, K)."""
    inner = Grid(
        totals[0].grid.first + max(_WEIGHT_DIGITS), totals[0].grid.last + min(_WEIGHT_DIGITS)
    )
    weight_digits, shape = _split_weights(weights), totals[0].shape
    sums: dict[tuple[int, int], Tensor] = {}
    for rows, digit, multiples in _split(summands, inner, None):
        flat = multiples.view(len(multiples), -1)
        for shift, factors in weight_digits.items():
            products = (factors @ flat).view(len(weights), *multiples.shape[1:])
            _at(sums, (digit, shift), shape, len(weights))[:, rows] = products
    for (digit, shift), found in sums.items():
        for total, product in zip(totals, found, strict=True):
            total._add_digit(digit - shift, product.view(shape))
    for total in totals:
        total._changed()


K = TypeVar("K")


def _at(sums: dict[K, Tensor], key: K, shape: Sequence[int], *leading: int) -> Tensor:
    """The sums of one digit, which begin at zero; a number has one row."""
    if key not in sums:
        sums[key] = torch.zeros(*leading, *(shape or (1,)), dtype=torch.float64)
    return sums[key]


def _split(
    summands: Tensor, grid: Grid, factors: Tensor | None
) -> Iterator[tuple[slice, int, Tensor]]:
    """Yield multiples of each unit that add up to the summands (K, ...), some rows at a time.

    Each is overwritten by the next: memory that is used again is much the quicker.
    """
    if len(summands) > MOST_AT_ONCE:
        raise PoolError(f"at most {MOST_AT_ONCE} summands are added at once")
    summands = summands if summands.ndim > 1 else summands.unsqueeze(1)
    num_rows = summands.shape[1]
    step = max(1, _BLOCK * num_rows // max(1, summands.numel()))
    rest = wholes = torch.empty(0, dtype=torch.float64)
    for start in range(0, num_rows, step):
        rows = slice(start, min(start + step, num_rows))
        some = summands[:, rows]
        if rest.shape != some.shape:
            rest, wholes = (torch.empty(some.shape, dtype=torch.float64) for _ in range(2))
        if factors is None:
            rest.copy_(some)
        else:
            torch.mul(some, factors[:, rows] if factors.shape[1] > 1 else factors, out=rest)
        largest = _largest(rest)
        if not largest < _MOST_UNITS * _unit(grid.first):
            raise PoolError(f"a number of {largest:.3g} is too large, or none, and cannot be added")
        for digit in grid:
            unit = _unit(digit)
            if 2 * largest < unit or not largest:
                continue
            torch.add(rest, _ROUNDING * unit, out=wholes)
            wholes.sub_(_ROUNDING * unit)
            rest.sub_(wholes)
            yield rows, digit, wholes
            largest = _largest(rest) if len(grid) > _FEW_DIGITS else unit


def _largest(values: Tensor) -> float:
    if not values.numel():
        return 0.0
    low, high = values.aminmax()
    return max(-float(low), float(high))  # not a number, if one is


def _unit(digit: int) -> float:
    return 2.0 ** (_ZEROTH - _BITS * digit)


def _split_weights(weights: Tensor) -> dict[int, Tensor]:
    """Return weights as a sum of multiples of units, by the power of 2^22; those of none lack."""
    if not bool(((weights >= _LEAST_WEIGHT) & (weights < _MOST_WEIGHT)).all()):
        raise PoolError(
            f"a site's weight is not from {_LEAST_WEIGHT:.2g} to {_MOST_WEIGHT:.2g}; weights are "
            "numbers of rows"
        )
    rest, found = weights, {}
    for shift in _WEIGHT_DIGITS:
        unit = 2.0 ** (_BITS * shift)
        part = (rest / unit).round() * unit
        rest = rest - part
        if bool(part.any()):
            found[shift] = part
    return found
