"""What keeps an evaluation from telling of people: the rules that all of its statistics obey.

Anyone who has the model and knows people by their columns can ask which of them the sums are sums
of. Six digits over five rows answered: who, and each one's outcome. So what leaves is little
against what it could be about:

    rows       at least 30, and the plan's `min_cell`; for counts and groups at least 100
    digits     three, of S1 and of the spread S2 - S1^2 / n: about ten bits a number
    counts     none in a bin or a group is below `min_cell`
    alike      predictions of a row are clipped to those of at least four others

The last is against a model made to ask about one person: 1/2 for everyone else, and sure of
them.

No count below `min_cell` may follow from others either. An evaluation tells some rows exactly:
hits, also by confidence, events by risk, and those of groups. Each such table parts all rows into
`Cells`. A stretch of scores between two edges tells of few people if it is a union of cells but for
few rows. With `in` and `out` the rows of a cell inside the stretch and outside,

    rows by which the stretch differs from the nearest union of cells  =  sum of min(in, out),

so an edge that makes this less than `min_cell` is left out (`Edges`). None at all is fine where
every cell has `min_cell` rows: nothing new follows. For groups it is not: a model can be made such
that one outcome of one person decides between none and one.

Events by risk are bins of scores themselves. Then only unions inside the stretch, or around it, can
be subtracted, so the rows inside of all cells that an edge parts count together, and so do those
outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from predbayes.predictive.families import Predictive
from predbayes_study.plan.schema import Plan
from predbayes_study.tasks import task_of

FEWEST_ROWS = 30
"""Held-out rows of an evaluation, whatever the plan says; fewer can be told apart by their sums."""

FEWEST_COUNTED = 100
"""Held-out rows from which a site counts in bins and in groups."""

DIGITS = 3
ROUNDING = 0.005
"""Share by which rounding to `DIGITS` may change a number."""

SLACK = 0.006
"""Share by which it may change a sum of several, or a quotient."""

_FEWEST_ALIKE = 5
_FARTHEST = 5.0


def fewest_rows(plan: Plan) -> int:
    """Return the number of rows below which nothing is sent."""
    return max(FEWEST_ROWS, plan.rules.min_cell)


def rounded(value: float) -> float:
    """Return a number with as many digits as may leave a site."""
    return float(f"{value:.{DIGITS}g}")


def alike(plan: Plan, predictive: Predictive, targets: Tensor) -> Predictive:
    """Clip predictions of rows, so that no few of them stand out.

    The greatest probabilities of all rows, the second greatest and so on, the hazards of each
    interval, or the means and the variances, lie between the fifth least and the fifth greatest of
    them; if `min_cell` is above five, that, but at most a sixth of the rows at each end. No class
    has less than a hundredth of an equal share, so no row costs more than log(100 C) nats and a
    little; odds of hazards are bounded the same way; no mean is further from the rows' own than
    five of their standard deviations, which no plan can choose.
    """
    kth = max(1, min(max(_FEWEST_ALIKE, plan.rules.min_cell), len(predictive) // 6))
    clipped: Predictive = task_of(plan).clipped(predictive, targets, kth)
    return clipped


class Cells(NamedTuple):
    """Rows by the cells of one table that an evaluation tells."""

    place: Tensor  # (N,) the cell of each row
    of_groups: bool = False
    by_score: bool = False  # whether a cell's scores lie between two that are told


class Edges:
    """Says of edges between bins of scores whether they part rows too nearly as cells do."""

    def __init__(self, scores: Tensor, cells: Cells, min_cell: int) -> None:
        ordered = scores.double().sort(stable=True)
        kinds, sizes = torch.unique(cells.place, return_inverse=True, return_counts=True)[1:]
        rows = torch.nn.functional.one_hot(kinds[ordered.indices]).cumsum(0)
        self._scores = ordered.values
        self._below = torch.cat([torch.zeros_like(rows[:1]), rows])  # of each cell, (N + 1, G)
        may_equal = not cells.of_groups and int(sizes.min()) >= min_cell
        self._fewest, self._min_cell, self._by_score = int(may_equal), min_cell, cells.by_score

    def refuses(self, edges: Sequence[float]) -> bool:
        """Return whether a stretch from the lowest edge is nearly a union of cells."""
        ends = torch.tensor([*edges, math.inf], dtype=torch.float64)
        below = self._below[torch.searchsorted(self._scores, ends, right=True)]
        inside = below[1:] - below[:1]  # what is below the lowest edge is the rest of the last
        outside = self._below[-1] - inside
        if self._by_score:
            parted = (inside > 0) & (outside > 0)
            found = torch.stack([(inside * parted).sum(1), (outside * parted).sum(1)])
            return bool(((found > 0) & (found < self._min_cell)).any())
        apart = torch.minimum(inside, outside).sum(1)
        return bool(((apart >= self._fewest) & (apart < self._min_cell)).any())


def has_small_cell(plan: Plan, num_rows: int, shares: Mapping[str, float]) -> bool:
    """Return whether a share counts so few rows, or so few others, that it could point to people.

    Args:
        plan: The study's plan.
        num_rows: Rows of all sites.
        shares: Rows that each share counts, by measure.
    """
    cells = [cell for count in shares.values() for cell in (count, num_rows - count)]
    return any(0 < cell < plan.rules.min_cell for cell in cells)
