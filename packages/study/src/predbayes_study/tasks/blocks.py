"""Blocks of rows of which the same is said: what an evaluation may reveal of predictions.

Why there are blocks is in `predbayes_study.result.statistics.disclosure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from predbayes.predictive.families import Predictive

P = TypeVar("P", bound=Predictive)


@dataclass(frozen=True, slots=True)
class Alike(Generic[P]):
    """Predictions as an evaluation may have them: each is that of its whole block."""

    predictive: P
    blocks: Tensor  # (N, C) of each class, or (N, 1)
    predicted: Tensor | None = None  # (N,) the class, where there are classes
    edges: tuple[float, ...] = ()  # of scores, which part no block


def within(columns: Tensor, kth: int) -> Tensor:
    """Clip each column to lie between its kth least and its kth greatest value."""
    ordered = columns.sort(dim=0).values
    return columns.clamp(ordered[kth - 1], ordered[-kth])


def blocks_of(columns: Tensor, least: int, apart: Tensor) -> Tensor:
    """Number blocks of `least` to twice as many rows, (N,), where columns (N, D) are alike.

    Rows are parted at the widest gap of a column that leaves a quarter of them, and `least`, on
    both sides, until no part can be parted. So who is alone between others goes with the nearer
    ones.

    Args:
        columns: What is said of each row; its units should mean as much in each column.
        least: Rows of a block.
        apart: Rows that may be in one block have the same number, (N,).
    """
    values = columns.double().numpy()
    found = np.zeros(len(values), dtype=np.int64)
    parts = [np.flatnonzero(apart.numpy() == number) for number in torch.unique(apart).tolist()]
    num_blocks = 0
    while parts:
        rows = parts.pop()
        if len(rows) < 2 * least:
            found[rows] = num_blocks
            num_blocks += 1
            continue
        first = max(least, len(rows) // 4)
        ways = []
        for column in values[rows].T:
            order = column.argsort(kind="stable")
            gaps = np.diff(column[order])[first - 1 : len(rows) - first]
            # Of equal gaps the one nearest the middle.
            middle = np.abs(np.arange(len(gaps)) - (len(gaps) - 1) / 2)
            place = int(np.lexsort((middle, -gaps))[0])
            ways.append((float(gaps[place]), rows[order], first + place))
        _, ordered, place = max(ways, key=lambda way: way[0])
        parts += [np.sort(ordered[:place]), np.sort(ordered[place:])]
    return torch.from_numpy(found)


def middles(columns: Tensor, blocks: Tensor) -> Tensor:
    """Return the median of each row's block, for each column of (N, D)."""
    order = blocks.argsort(stable=True)
    sizes = torch.bincount(blocks).tolist()
    parts = torch.split(columns.double()[order], sizes)
    medians = [part.quantile(0.5, dim=0) for part in parts]
    return torch.stack(medians)[blocks].to(columns.dtype)


def means(values: Tensor, blocks: Tensor) -> Tensor:
    """Return the mean of each row's block, (N,)."""
    sizes = torch.bincount(blocks)
    return (torch.bincount(blocks, values.double()) / sizes)[blocks]


def whole_edges(
    grid: Sequence[float], scores: Sequence[Tensor], apart: Sequence[Tensor], least: int
) -> tuple[tuple[float, ...], list[Tensor]]:
    """Choose edges that leave every cell none or `least` rows; return them and all cells.

    They are tried from far apart to near, so that few rows have some everywhere.

    Args:
        grid: Where edges may be, ascending.
        scores: For each kind of blocks the scores that must not part one, (N, K).
        apart: For each the cells that there are without any edge, (N,).
        least: Rows of a cell.
    """
    steps = [2**power for power in range(len(grid).bit_length(), -1, -1)]
    order = dict.fromkeys(place for step in steps for place in range(step // 2, len(grid), step))
    found, cells = list[float](), [cell.numpy() for cell in apart]
    values = [some.double().numpy() for some in scores]
    bits = [2 ** np.arange(some.shape[1]) for some in values]
    for place in order:
        parted = [
            cell * 2 * one[-1] + (some <= grid[place]) @ one
            for cell, some, one in zip(cells, values, bits, strict=True)
        ]
        counts = [np.bincount(cell) for cell in parted]
        if all(bool(((count == 0) | (count >= least)).all()) for count in counts):
            found.append(grid[place])
            if any(
                (count > 0).sum() > cell.max() + 1
                for count, cell in zip(counts, cells, strict=True)
            ):
                cells = [np.unique(cell, return_inverse=True)[1] for cell in parted]
    return tuple(sorted(found)), [torch.from_numpy(cell) for cell in cells]
