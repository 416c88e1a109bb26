"""Counts of scores beside other counts of the same rows: none that is small follows from them.

An evaluation tells some rows exactly: hits, also by confidence, and those of groups. Each such
table parts all rows into cells. A stretch of scores between two edges tells of few people if it is
a union of cells but for few rows. With `in` and `out` the rows of a cell inside the stretch and
outside,

    rows by which the stretch differs from the nearest union of cells  =  sum of min(in, out),

so an edge that makes this less than `min_cell` is not told. None at all is fine for hits: nothing
new follows. For groups it is not: a model can be made such that one outcome of one person decides
between none and one.

With counts by class stretches of several classes add up to rows of hits. What follows there is what
lies between a score up to which hits are known and the next edges of all classes (`thinned`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from predbayes.predictive.conformal import ScoreBins
from predbayes.predictive.families import Categorical
from predbayes.predictive.metrics import DIAGRAM_BINS, bin_of, confidences, hit_rows


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows by the cells of one table that is told."""

    place: Tensor  # (N,) the cell of each row
    exact: bool  # whether a stretch that is a union of cells may be told

    def __getitem__(self, rows: Tensor) -> Cells:
        return Cells(self.place[rows], self.exact)

    @property
    def without_misses(self) -> Cells:
        """The same with all misses in one cell; scores above hits' confidence part them anyway."""
        return Cells(torch.where(self.place % 2 == 1, self.place, 0), self.exact)


class Apart:
    """Says of edges whether they part scores too nearly as cells do."""

    def __init__(self, scores: Tensor, cells: Cells, least: int) -> None:
        ordered = scores.double().sort(stable=True)
        kinds = torch.unique(cells.place, return_inverse=True)[1]
        rows = torch.nn.functional.one_hot(kinds[ordered.indices]).cumsum(0)
        self._scores = ordered.values
        self._below = torch.cat([torch.zeros_like(rows[:1]), rows])  # of each cell, (N + 1, G)
        self._fewest, self._least = int(cells.exact), least

    def refuses(self, bins: ScoreBins) -> bool:
        """Whether a stretch from the lowest edge is nearly a union of cells."""
        ends = torch.tensor([*bins.edges, math.inf], dtype=torch.float64)
        below = self._below[torch.searchsorted(self._scores, ends, right=True)]
        inside = below[1:] - below[:1]  # what is below the lowest edge is the rest of the last
        apart = torch.minimum(inside, self._below[-1] - inside).sum(1)
        return bool(((apart >= self._fewest) & (apart < self._least)).any())


def hit_cells(predictive: Categorical, targets: Tensor, *, diagram: bool) -> Cells:
    """Return hits and misses, by confidence if a diagram is told."""
    hits = hit_rows(predictive, targets).long()
    place = bin_of(confidences(predictive), DIAGRAM_BINS) if diagram else torch.zeros_like(hits)
    return Cells(2 * place + hits, exact=True)


def by_confidence(cells: Cells, num_classes: int) -> list[ScoreBins]:
    """Return where the scores of hits and of misses of each confidence lie; nothing without it."""
    found = []
    for place in torch.unique(cells.place).tolist() if int(cells.place.max()) > 1 else ():
        rows = int((cells.place == place).sum())
        low, high = (place // 2 + end for end in (0, 1))
        least, most = max(low / DIAGRAM_BINS, 1 / num_classes), high / DIAGRAM_BINS
        if place % 2:
            found.append(ScoreBins((1 - most, 1 - least), (0, rows, 0)))
        else:
            found.append(ScoreBins((max(0.5, least, 1 - most),), (0, rows)))
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """How many rows have at most a score, of those that can have it, or of those that must."""

    score: float
    rows: int
    above: bool  # whether edges above it are compared


def thinned(
    found: Sequence[ScoreBins], fixed: Sequence[Sequence[float]], cells: Cells, least: int
) -> list[ScoreBins]:
    """Leave out edges of classes until none of them and of known hits differ by few rows.

    Args:
        found: Bins of each class.
        fixed: Edges of each class that are told elsewhere.
        cells: Hits and misses, of `hit_cells`.
        least: Rows that may be told of.
    """
    found = list(found)
    for known in _known(cells, len(found)):
        nearest = [_nearest(bins.edges, known) for bins in found]
        rows = sum(bins.below(edge)[0] for bins, edge in zip(found, nearest, strict=True))
        free = [
            index
            for index, edge in enumerate(nearest)
            if math.isfinite(edge) and edge not in fixed[index]
        ]
        if 0 < abs(rows - known.rows) < least and free:
            found[free[0]] = _without(found[free[0]], nearest[free[0]])
    return found


def _known(cells: Cells, num_classes: int) -> Iterator[_Known]:
    """What hits and misses by confidence say of scores; between 1/2 and 1 - 1/C they mix."""
    hits = torch.bincount(cells.place[cells.place % 2 == 1] // 2, minlength=DIAGRAM_BINS)
    misses = torch.bincount(cells.place[cells.place % 2 == 0] // 2, minlength=DIAGRAM_BINS)
    yield _Known(1 - 1 / num_classes, int(hits.sum()), above=True)
    yield _Known(0.5, int(hits.sum()), above=False)
    for j in range(DIAGRAM_BINS // 2, DIAGRAM_BINS):
        score, rows = j / DIAGRAM_BINS, int(hits[j:].sum())
        yield _Known(1 - score, rows, above=True)
        yield _Known(1 - score, rows, above=False)
        yield _Known(score, len(cells.place) - int(misses[j:].sum()), above=False)


def _nearest(edges: Sequence[float], known: _Known) -> float:
    if known.above:
        return (*edges, math.inf)[bisect_left(edges, known.score)]
    return (-math.inf, *edges)[bisect_right(edges, known.score)]


def _without(bins: ScoreBins, edge: float) -> ScoreBins:
    """The same with one edge less."""
    place = bins.edges.index(edge)
    merged = bins.counts[place] + bins.counts[place + 1]
    return ScoreBins(
        (*bins.edges[:place], *bins.edges[place + 1 :]),
        (*bins.counts[:place], merged, *bins.counts[place + 2 :]),
    )
