r"""Promised coverage: sets and intervals that hold the truth as often as they say.

A score says how strange a target is to a model: of a class :math:`1 - p_y`, of a number
:math:`|y - \mu| / \sigma`. If a new row is exchangeable with n rows that the model has not seen,

    P(its score <= the r-th least of theirs)  >=  r / (n + 1),

so all targets with at most that score are a set with coverage :math:`r / (n + 1)` (split conformal
prediction; Vovk et al., 2005). It needs no more of the rows than how many have at most each score:
counts by bins, which add up over sites. A row counts at the upper end of its bin. So a bound from
counts is never below that of the rows, the promise holds, and what is covered beyond it is no more
than what shares a bin with the bound.

Bins begin and end on a grid that everybody knows, and none has fewer rows than may be told of. They
are cut from the top, where bounds are. The last has no end: rows in it promise nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from predbayes.predictive.families import Categorical, Gaussian

CLASS_GRID = tuple(round(1 / (1 + math.exp(-step / 16)), 6) for step in range(-112, 113))
"""Ends of bins for classes: every sixteenth of log odds from -7 to 7."""

NUMBER_GRID = tuple(float(f"{math.exp(step / 50):.6g}") for step in range(-150, 351))
"""Ends of bins for numbers, two hundredths apart, from 0.05 to 1,097 standard deviations."""

_EXACT = 1e-9  # of what a computer's arithmetic may do


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
        cuts: Collection[float] = (),
        refused: Callable[[ScoreBins], bool] | None = None,
    ) -> ScoreBins:
        """Count scores, (N,), in as many bins as have enough rows.

        Args:
            scores: Of the rows.
            grid: Where bins may end, ascending.
            least: Rows that every bin has, but for what is between two cuts and has fewer.
            cuts: Where bins end in any case.
            refused: Of bins, whether they must not be told.
        """
        edges: tuple[float, ...] = ()
        ordered = scores.double().sort().values
        ends = sorted({*grid, *cuts}, reverse=True)
        below = dict(zip(ends, _at_most(ordered, ends), strict=True))
        left = len(scores)  # rows that are in no bin yet
        for edge, num in below.items():
            beneath = max((below[cut] for cut in cuts if cut < edge), default=0)
            few = edge not in cuts and min(left - num, num - beneath) < least
            if few or (refused is not None and refused(cls.count(scores, (edge, *edges)))):
                continue
            edges, left = (edge, *edges), num
        return cls.count(scores, edges)

    @classmethod
    def count(cls, scores: Tensor, edges: Sequence[float]) -> ScoreBins:
        """Count scores between given edges."""
        place = torch.bucketize(scores.double(), torch.tensor(edges, dtype=torch.float64))
        return cls(tuple(edges), tuple(torch.bincount(place, minlength=len(edges) + 1).tolist()))

    @classmethod
    def added(cls, several: Sequence[ScoreBins]) -> ScoreBins:
        """Add the counts of several sites or classes, each at the upper end of its bin."""
        at: dict[float, int] = {}
        for one in several:
            for edge, count in zip((*one.edges, math.inf), one.counts, strict=True):
                at[edge] = at.get(edge, 0) + count
        edges = sorted(at.keys() - {math.inf})
        return cls(tuple(edges), (*(at[edge] for edge in edges), at.get(math.inf, 0)))

    @property
    def num_rows(self) -> int:
        """Rows of all bins."""
        return sum(self.counts)

    @property
    def most(self) -> float:
        """The greatest coverage that they can promise."""
        return sum(self.counts[:-1]) / (self.num_rows + 1)

    def bound(self, level: float) -> float:
        """Return the greatest score in a set of this coverage; infinite if none is promised."""
        rank, below = math.ceil(level * (self.num_rows + 1) - _EXACT), 0
        for edge, count in zip(self.edges, self.counts, strict=False):
            below += count
            if below >= rank:
                return edge
        return math.inf

    def below(self, score: float) -> tuple[int, int]:
        """Return how many rows at the least, and at the most, have no more than this score."""
        ends = (-math.inf, *self.edges, math.inf)
        least = sum(n for n, end in zip(self.counts, ends[1:], strict=True) if end <= score)
        most = sum(n for n, begin in zip(self.counts, ends[:-1], strict=True) if begin < score)
        return least, most


def _at_most(ordered: Tensor, ends: Sequence[float]) -> list[int]:
    """How many of ascending scores are at most each of these."""
    bounds = torch.tensor(ends, dtype=torch.float64)
    counts: list[int] = torch.searchsorted(ordered, bounds, right=True).tolist()
    return counts


def class_scores(predictive: Categorical) -> Tensor:
    """Return the score of each class at each row, (N, C)."""
    return 1 - predictive.log_probs.double().softmax(1)


def score_rows(predictive: Categorical | Gaussian, targets: Tensor) -> Tensor:
    """Return the score of each row's target, (N,)."""
    if isinstance(predictive, Categorical):
        return class_scores(predictive).gather(1, targets.long().unsqueeze(1))[:, 0]
    return (targets.double() - predictive.mean.double()).abs() / predictive.var.double().sqrt()


def promised_sets(predictive: Categorical, bounds: Sequence[float]) -> Tensor:
    """Return which classes are in each row's set, (N, C), given the bound of each class.

    The likeliest always is, so that no set is empty; that covers more, if anything.
    """
    scores = class_scores(predictive)
    inside = scores <= torch.tensor(bounds, dtype=torch.float64)
    return inside.scatter(1, scores.argmin(1, keepdim=True), value=True)


def credible_sets(predictive: Categorical, level: float) -> Tensor:
    """Return the fewest classes that have this probability by the model itself, (N, C)."""
    ordered, places = (1 - class_scores(predictive)).sort(dim=1, descending=True, stable=True)
    inside = ordered.cumsum(1) - ordered < level
    return torch.zeros_like(inside).scatter(1, places, inside)
