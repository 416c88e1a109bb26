r"""Promised coverage: sets and intervals that hold the truth as often as they say.

A score says how strange a target is to a model: of a class :math:`1 - p_y`, of a number
:math:`|y - \mu| / \sigma`. If a new row is exchangeable with n rows that the model has not seen,

    P(its score <= the r-th smallest of theirs)  >=  r / (n + 1),

so all targets with at most that score are a set with coverage :math:`r / (n + 1)` (split conformal
prediction; Vovk et al., 2005). It needs only how many rows have at most each score: counts by bins,
which add up over sites. A row counts at the upper end of its bin. So a bound from counts is never
below that of the rows, and the promise holds.

Bins end on a grid that is the same everywhere, and none has fewer rows than may be told. They are
cut from the top, where bounds are. The last bin has no end, so its rows promise nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ScoreBins:
    """Rows by bins of their score: (-inf, edges[0]], ..., (edges[-1], inf)."""

    edges: tuple[float, ...]  # ascending
    counts: tuple[int, ...]  # one more

    @classmethod
    def cut(
        cls,
        scores: Tensor,
        grid: Sequence[float],
        least: int,
        refused: Callable[[Sequence[float]], bool] | None = None,
    ) -> ScoreBins:
        """Count scores, (N,), in as many bins as have enough rows.

        Args:
            scores: Of the rows.
            grid: Where bins may end, ascending.
            least: Rows that every bin has.
            refused: Whether bins with these edges may not be told.
        """
        edges: tuple[float, ...] = ()
        ends = torch.tensor(grid, dtype=torch.float64)
        below = torch.searchsorted(scores.double().sort().values, ends, right=True).tolist()
        left = len(scores)  # rows that are in no bin yet
        for edge, num in zip(reversed(grid), reversed(below), strict=True):
            if min(left - num, num) >= least and not (refused and refused((edge, *edges))):
                edges, left = (edge, *edges), num
        return cls.count(scores, edges)

    @classmethod
    def count(cls, scores: Tensor, edges: Sequence[float]) -> ScoreBins:
        """Count scores between given edges."""
        place = torch.bucketize(scores.double(), torch.tensor(edges, dtype=torch.float64))
        return cls(tuple(edges), tuple(torch.bincount(place, minlength=len(edges) + 1).tolist()))

    @classmethod
    def added(cls, several: Sequence[ScoreBins]) -> ScoreBins:
        """Add the counts of several sites, each at the upper end of its bin."""
        at: dict[float, int] = {math.inf: 0}
        for one in several:
            for edge, count in zip((*one.edges, math.inf), one.counts, strict=True):
                at[edge] = at.get(edge, 0) + count
        ends = sorted(at)
        return cls(tuple(ends[:-1]), tuple(at[end] for end in ends))

    @property
    def num_rows(self) -> int:
        """Rows of all bins."""
        return sum(self.counts)

    @property
    def most(self) -> float:
        """The largest coverage that they can promise."""
        return sum(self.counts[:-1]) / (self.num_rows + 1)

    def bound(self, level: float) -> float:
        """Return the largest score in a set of this coverage; infinite if none is promised."""
        rank, below = math.ceil(level * (self.num_rows + 1) - 1e-9), 0  # 1e-9: float arithmetic
        for edge, count in zip(self.edges, self.counts, strict=False):
            below += count
            if below >= rank:
                return edge
        return math.inf

    def below(self, score: float) -> tuple[int, int]:
        """Return how many rows at least, and at most, have no more than this score."""
        ends = (-math.inf, *self.edges, math.inf)
        least = sum(n for n, end in zip(self.counts, ends[1:], strict=True) if end <= score)
        most = sum(n for n, begin in zip(self.counts, ends[:-1], strict=True) if begin < score)
        return least, most
