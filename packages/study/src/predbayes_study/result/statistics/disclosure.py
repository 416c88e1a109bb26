r"""What keeps an evaluation from revealing people: the rules that all of its statistics obey.

Anyone who has the model and knows people by their columns can ask which of them the sums are about.
The model can be made for that: it may say anything of anybody, so it can set one person apart. What
is exact can then be added and subtracted until that person is left. So what leaves is little
against what it could be about:

    rows       at least 30, and six times the plan's `min_cell`; for counts and groups at least 100
    digits     three, of S1 and of the spread S2 - S1^2 / n: about ten bits a number
    counts     none in a bin or a group is below `min_cell`
    alike      the same is said of at least k = max(5, `min_cell`) rows together

**Alike.** What the model says of a row is clipped to what it says of k - 1 others, and by it rows
are put into blocks of k to 2 k - 1. Each row counts with the middle of its block. Blocks do not
depend on outcomes, and none is in two groups that are told. With b the block of a row and y its
outcome, every statistic is

    F(number of rows with b and y, for all b and y),

so it stays the same, to the bit but for the rounding of floats, if two rows of a block exchange
their outcomes. Whatever is added or subtracted: which of at least k people has an outcome does not
follow, unless all of them have it.

Several classes would leave blocks too coarse, so each class c has blocks of its own, b_c, by its
probability and by whether it is the predicted one, and every number is

    F(number of rows with y = c and b_c; number of rows with b_c, for all c).

So a linear combination that depends on whether somebody has class c depends on it in the same way
for at least k rows. Blocks of different classes may differ in few rows: of a model that was made
for it, whether somebody is among the rows can follow from how many have which risk of two classes.

**Scores** have to be of predictions as they are, or promised coverage would not hold. Of classes an
edge between their bins is one that parts no block, whatever its outcomes are, so their counts are
of the same form. Which edges there are depends on predictions alone; if something else is said of
one person, that it is missing can reveal that the person is among the rows, and not the outcome. Of
numbers counts of scores are not of that form, and only what follows next holds of them.

No count below `min_cell` may follow from others by subtraction either. An evaluation reports some
rows exactly: hits, also by confidence, events by risk, and those of groups. Each such table parts
all rows into `Cells`. A stretch of scores between two edges is about few people if it is a union of
cells but for few rows. With `in` and `out` the rows of a cell inside the stretch and outside,

    rows by which the stretch differs from the nearest union of cells  =  sum of min(in, out),

so an edge that makes this less than `min_cell` is left out (`Edges`). None at all is fine where
every cell has `min_cell` rows: nothing new follows. For groups, and for numbers, it is not: a model
can be made such that one outcome of one person decides between none and one.

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

from predbayes_study.plan.schema import Plan

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
_FEWEST_BLOCKS = 6


def num_alike(plan: Plan) -> int:
    """Return of how many rows the same is said, at least."""
    return max(_FEWEST_ALIKE, plan.rules.min_cell)


def fewest_rows(plan: Plan) -> int:
    """Return the number of rows below which nothing is sent."""
    return max(FEWEST_ROWS, _FEWEST_BLOCKS * num_alike(plan))


def rounded(value: float) -> float:
    """Return a number with as many digits as may leave a site."""
    return float(f"{value:.{DIGITS}g}")


class Cells(NamedTuple):
    """Rows by the cells of one table that an evaluation tells."""

    place: Tensor  # (N,) the cell of each row
    may_equal: bool = True  # whether a stretch may be a union of cells
    by_score: bool = False  # whether a cell's scores lie between two that are told


class Edges:
    """Says of edges between bins of scores whether they part rows too nearly as cells do."""

    def __init__(self, scores: Tensor, cells: Cells, min_cell: int) -> None:
        ordered = scores.double().sort(stable=True)
        kinds, sizes = torch.unique(cells.place, return_inverse=True, return_counts=True)[1:]
        rows = torch.nn.functional.one_hot(kinds[ordered.indices]).cumsum(0)
        self._scores = ordered.values
        self._below = torch.cat([torch.zeros_like(rows[:1]), rows])  # of each cell, (N + 1, G)
        may_equal = cells.may_equal and int(sizes.min()) >= min_cell
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
