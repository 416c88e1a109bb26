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


def folds(num_rows: int, num_folds: int, *, rng: torch.Generator) -> Folds:
    """Deal rows at random into parts.

    Examples:
        >>> (one, others), _ = folds(5, 2, rng=torch.Generator().manual_seed(0))
        >>> sorted([*one.tolist(), *others.tolist()])
        [0, 1, 2, 3, 4]
    """
    part = torch.randperm(num_rows, generator=rng) % num_folds
    return [
        ((part == index).nonzero()[:, 0], (part != index).nonzero()[:, 0])
        for index in range(num_folds)
    ]


def in_row_order(parts: Folds, predictives: Sequence[Predictive]) -> Predictive:
    """Put the predictives of the parts back into the order of the rows."""
    return joined(list(predictives))[torch.cat([out for out, _ in parts]).argsort()]
