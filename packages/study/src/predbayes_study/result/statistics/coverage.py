r"""Promised coverage: sets and intervals that hold the truth as often as they say.

A score says how strange a target is to a model: of a class :math:`1 - p_y`, of a number
:math:`|y - \mu| / \sigma`. If a new row is exchangeable with n rows that the model has not seen,

    P(its score <= the r-th smallest of theirs)  >=  r / (n + 1),

so all targets with at most that score are a set with coverage :math:`r / (n + 1)` (split conformal
prediction; Vovk et al., 2005). It needs only how many rows have at most each score: counts by bins,
which add up over sites. A row counts at the upper end of its bin. So a bound from counts is never
below that of the rows, and the promise holds.

Bins end on a grid that is the same everywhere, and none has fewer rows than `min_cell`. They are
cut from the top, where bounds are. The last bin has no end, so its rows promise nothing. Other
statistics are of the middles of blocks; here that would break the promise. So of classes no edge
parts a block, whatever its outcomes are (`Alike.edges`). Edges are left out, too, that part rows
too nearly as the other tables of the evaluation do (`disclosure.Edges`). Of two classes a score
below 1/2 is a hit, so no edge divides a bin of risk around 1/2.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from predbayes.errors import DataError, UploadError
from predbayes.predictive.families import Predictive
from predbayes_study.payloads.details import Evaluation, ScoreCounts
from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import Coverage, ScoreSums
from predbayes_study.result.statistics.disclosure import Cells, Edges
from predbayes_study.result.statistics.statistic import HeldOutRows
from predbayes_study.tasks import task_of

LEVELS = (0.8, 0.9, 0.95)
"""Coverages that a report shows."""


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


class CountsOfScores:
    """Counts by bins of the score of conformal prediction; none for times to an event."""

    name = "scores"
    by_site = False

    def make(
        self, rows: HeldOutRows, beside: Evaluation, told: Sequence[Cells]
    ) -> ScoreCounts | None:
        """Count the scores of predictions as they are, not those of blocks."""
        plan, task, rules = rows.plan, task_of(rows.plan), list[Edges]()
        grid, least = rows.said.edges or task.grid, plan.rules.min_cell
        if not task.grid:
            return None
        scores = task.strangeness(rows.unclipped, rows.targets)
        if least > 1:  # otherwise every row may be told of
            rules = [Edges(scores, cells, least) for cells in told]
            if plan.num_outputs == 2 and beside.risks and 0.5 not in beside.risks[0].edges:
                ends = (0.0, *beside.risks[0].edges, 1.0)
                place = bisect_left(ends, 0.5)
                reach = max(0.5 - ends[place - 1], ends[place] - 0.5)
                grid = tuple(edge for edge in grid if abs(edge - 0.5) >= reach)
        bins = ScoreBins.cut(
            scores, grid, least, lambda edges: any(rule.refuses(edges) for rule in rules)
        )
        return ScoreCounts(edges=bins.edges, counts=bins.counts)

    def cells(self, rows: HeldOutRows, sent: ScoreCounts) -> list[Cells]:
        """Return nothing: no statistic comes after this one."""
        return []

    def check(self, plan: Plan, sent: ScoreCounts, beside: Evaluation, num_rows: int) -> None:
        """Refuse other edges than the plan allows, and small counts."""
        grid = set(task_of(plan).grid)
        if not grid or len(sent.counts) != len(sent.edges) + 1:
            raise UploadError("its counts of scores are not those of the plan")
        if list(sent.edges) != sorted(set(sent.edges)) or not grid >= set(sent.edges):
            raise UploadError("its bins of scores have other edges than the plan allows")
        if min(sent.counts) < plan.rules.min_cell:
            raise UploadError(f"a bin of scores has fewer than {plan.rules.min_cell} rows")
        if sum(sent.counts) != num_rows:
            raise UploadError("its counts of scores do not add up")

    def pool(self, plan: Plan, several: Sequence[ScoreCounts], num_rows: int) -> ScoreSums | None:
        """Add the counts of sites."""
        return add_counts(several)


def add_counts(several: Iterable[ScoreCounts | None]) -> ScoreSums | None:
    """Add the counts of the sites that counted; None where none did."""
    counted = [ScoreBins(one.edges, one.counts) for one in several if one is not None]
    if not counted:
        return None
    bins = ScoreBins.added(counted)
    return ScoreSums(num_sites=len(counted), edges=bins.edges, counts=bins.counts)


def coverages(plan: Plan, predictive: Predictive, sums: ScoreSums | None) -> tuple[Coverage, ...]:
    """Return what sets or intervals of promised coverage are like on the reference rows."""
    if sums is None or not len(predictive):  # sizes are means over reference rows
        return ()
    task, bins, found = task_of(plan), ScoreBins(sums.edges, sums.counts), []
    for level in LEVELS:
        bound, size, covered = bins.bound(level), None, None
        if math.isfinite(bound):
            size = task.promised_size(plan, predictive, bound)
        if task.has_intervals:
            inside = bins.below(task.own_bound(level))
            covered = inside[0] / bins.num_rows, inside[1] / bins.num_rows
        # Four digits are the same on every machine.
        mean = None if size is None else float(f"{float(size.double().mean()):.4g}")
        found.append(Coverage(level=level, size=mean, credible_covered=covered))
    return tuple(found)


def promised(
    plan: Plan, predictive: Predictive, sums: ScoreSums | None, level: float
) -> dict[str, list[str] | Tensor]:
    """Return columns with sets or intervals of promised coverage; refuse where nothing is promised.

    A class has the column ``set``, names with a bar between; a number has ``lower`` and ``upper``.

    Args:
        plan: The study's plan.
        predictive: What the model says of the rows to predict.
        sums: What sites' counts add up to.
        level: Coverage to promise, 0–1.
    """
    if not 0 < level < 1:
        raise DataError(f"--coverage must be between 0 and 1, not {level:g}")
    if not task_of(plan).grid:
        raise DataError("--coverage: nothing is promised of times to an event")
    if sums is None:
        raise DataError(
            "--coverage: nothing is promised, because no site has sent counts of scores; ask sites "
            "for `predbayes site evaluate --out`, add them and finish again"
        )
    bins = ScoreBins(sums.edges, sums.counts)
    bound = bins.bound(level)
    if math.isinf(bound):
        raise DataError(
            f"--coverage {level:g}: the {bins.num_rows:,} rows that sites counted promise at most "
            f"{math.floor(1000 * bins.most) / 1000:g}"
        )
    return task_of(plan).promised(plan, predictive, bound)
