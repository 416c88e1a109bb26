"""What a site sends is a summand: anything that adds to itself in place.

The coordinator keeps one running total, whatever the number of sites. Totals made apart add like
single summands, in any order, and there is no zero: without sites there is no result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from predbayes.errors import PoolError


class Summand(Protocol):
    """Anything that adds to itself in place, whatever a method sums."""

    def add_(self, other: Self) -> Self:
        """Add another summand to this one."""
        ...


S = TypeVar("S", bound=Summand)
T = TypeVar("T")


def fold(summands: Iterable[S]) -> S:
    """Add summands as they arrive, keeping one at a time; the first one becomes the total."""
    stream = iter(summands)
    total = next(stream, None)
    if total is None:
        raise PoolError("no client sent anything, so there is nothing to pool")
    for summand in stream:
        total.add_(summand)
    return total


class Collected(Generic[T]):
    """What every site sent, kept apart, for a method whose combination is no sum.

    Memory grows with the sites; such a method does not stream.
    """

    __slots__ = ("items",)

    def __init__(self, item: T) -> None:
        self.items = [item]

    def add_(self, other: Collected[T]) -> Self:
        """Keep the other's items, too."""
        self.items.extend(other.items)
        return self


class TensorSum:
    """Named tensors that add name by name, in float64.

    Examples:
        >>> one = TensorSum({"rows": torch.tensor(2.0), "weights": torch.tensor([2.0, 4.0])})
        >>> two = TensorSum({"rows": torch.tensor(1.0), "weights": torch.tensor([1.0, 8.0])})
        >>> total = one.add_(two)
        >>> (total["weights"] / total["rows"]).tolist()
        [1.0, 4.0]
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        # A copy: the accumulator must not share memory with what it was made of.
        self._values = {name: v.detach().to(torch.float64, copy=True) for name, v in values.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._values[name]

    def with_terms(self, values: Mapping[str, Tensor]) -> TensorSum:
        """The same sum with further names."""
        return TensorSum(self._values | dict(values))

    def add_(self, other: TensorSum) -> Self:
        """Add another sum of the same names and shapes to this one."""
        shapes, others = ({n: v.shape for n, v in s._values.items()} for s in (self, other))
        if shapes != others:
            raise PoolError("cannot add what sites sent: names or shapes of their arrays differ")
        for name, value in other._values.items():
            self._values[name] += value
        return self
