"""Rows dealt at random into parts, so that each is predicted by what never saw it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from predbayes.predictive.families import Predictive, joined

Folds = list[tuple[Tensor, Tensor]]
"""For each part the rows in it and all others, ascending."""

NUM_REPEATS = 2
"""How often rows are dealt into parts for a cross-fitted model, with other parts each time."""


def numbered(num_rows: int, groups: Tensor | None) -> Tensor:
    """Return the number of each row's group, from 0; without groups each row is one.

    Examples:
        >>> numbered(4, torch.tensor([7, 7, 3, 3])).tolist(), numbered(2, None).tolist()
        ([1, 1, 0, 0], [0, 1])
    """
    if groups is None:
        return torch.arange(num_rows)
    numbers: Tensor = torch.unique(groups, return_inverse=True)[1]
    return numbers


def folds(
    num_rows: int, num_folds: int, *, rng: torch.Generator, groups: Tensor | None = None
) -> Folds:
    """Deal rows at random into parts.

    Args:
        num_rows: How many there are.
        num_folds: How many parts; of fewer groups as many as there are groups.
        rng: Deals them.
        groups: (N,) rows with the same number, as those of one patient, stay together. If all have
            the same, rows are dealt one by one, for there is nobody else to learn from.

    Examples:
        >>> (one, others), _ = folds(5, 2, rng=torch.Generator().manual_seed(0))
        >>> sorted([*one.tolist(), *others.tolist()])
        [0, 1, 2, 3, 4]
        >>> of = torch.tensor([7, 7, 3, 3])
        >>> parts = folds(4, 2, rng=torch.Generator().manual_seed(0), groups=of)
        >>> sorted(one.tolist() for one, _ in parts)
        [[0, 1], [2, 3]]
    """
    units = numbered(num_rows, groups)
    num_units = int(units.max()) + 1 if num_rows else 0
    if num_units == 1:
        units, num_units = torch.arange(num_rows), num_rows
    if groups is not None:
        num_folds = min(num_folds, num_units)
    part = (torch.randperm(num_units, generator=rng) % num_folds)[units]
    return [
        ((part == index).nonzero()[:, 0], (part != index).nonzero()[:, 0])
        for index in range(num_folds)
    ]


def in_row_order(parts: Folds, predictives: Sequence[Predictive]) -> Predictive:
    """Put the predictives of the parts back into the order of the rows."""
    return joined(list(predictives))[torch.cat([out for out, _ in parts]).argsort()]
