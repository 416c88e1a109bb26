"""Counts of scores beside other counts of the same rows: none that is small follows from them.

An evaluation tells some rows exactly: hits, also by confidence, events by risk, and those of
groups. Each such table parts all rows into cells. A stretch of scores between two edges tells of
few people if it is a union of cells but for few rows. With `in` and `out` the rows of a cell inside
the stretch and outside,

    rows by which the stretch differs from the nearest union of cells  =  sum of min(in, out),

so an edge that makes this less than `min_cell` is not told. None at all is fine where every cell
has `min_cell` rows: nothing new follows. For groups it is not: a model can be made such that one
outcome of one person decides between none and one.

Events by risk are bins of scores themselves. Then only unions inside the stretch, or around it, can
be subtracted, so the rows inside of all cells that an edge parts count together, and so do those
outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Cells(NamedTuple):
    """Rows by the cells of one table that is told."""

    place: Tensor  # (N,) the cell of each row
    of_groups: bool = False
    by_score: bool = False  # whether a cell's scores lie between two that are told


class Apart:
    """Says of edges whether they part scores too nearly as cells do."""

    def __init__(self, scores: Tensor, cells: Cells, least: int) -> None:
        ordered = scores.double().sort(stable=True)
        kinds, sizes = torch.unique(cells.place, return_inverse=True, return_counts=True)[1:]
        rows = torch.nn.functional.one_hot(kinds[ordered.indices]).cumsum(0)
        self._scores = ordered.values
        self._below = torch.cat([torch.zeros_like(rows[:1]), rows])  # of each cell, (N + 1, G)
        may_equal = not cells.of_groups and int(sizes.min()) >= least
        self._fewest, self._least, self._by_score = int(may_equal), least, cells.by_score

    def refuses(self, edges: Sequence[float]) -> bool:
        """Return whether a stretch from the lowest edge is nearly a union of cells."""
        ends = torch.tensor([*edges, math.inf], dtype=torch.float64)
        below = self._below[torch.searchsorted(self._scores, ends, right=True)]
        inside = below[1:] - below[:1]  # what is below the lowest edge is the rest of the last
        outside = self._below[-1] - inside
        if self._by_score:
            parted = (inside > 0) & (outside > 0)
            found = torch.stack([(inside * parted).sum(1), (outside * parted).sum(1)])
            return bool(((found > 0) & (found < self._least)).any())
        apart = torch.minimum(inside, outside).sum(1)
        return bool(((apart >= self._fewest) & (apart < self._least)).any())
