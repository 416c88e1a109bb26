"""Promised coverage: counts of scores from the sites, and the sets and intervals made from them.

The mathematics is in `predbayes_study.result.conformal`. A site counts the scores of its held-out
rows in bins of at least `min_cell` rows. Other statistics are of clipped predictions; here that
would break the promise. Edges are left out that part rows too nearly as the other tables of the
evaluation do (`disclosure.Edges`). Of two classes a score below 1/2 is a hit, so no edge divides a
bin of risk around 1/2.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from torch import Tensor

from predbayes.errors import DataError, UploadError
from predbayes.predictive.families import Predictive
from predbayes_study.payloads.details import Evaluation, ScoreCounts
from predbayes_study.plan.schema import Plan
from predbayes_study.result.conformal import (
    ScoreBins,
)
from predbayes_study.result.schema import Coverage, ScoreSums
from predbayes_study.result.statistics.disclosure import Cells, Edges
from predbayes_study.result.statistics.statistic import HeldOutRows
from predbayes_study.tasks import task_of

LEVELS = (0.8, 0.9, 0.95)
"""Coverages that a report shows."""


class CountsOfScores:
    """Counts by bins of the score of conformal prediction; none for times to an event."""

    name = "scores"
    by_site = False

    def make(
        self, rows: HeldOutRows, beside: Evaluation, told: Sequence[Cells]
    ) -> ScoreCounts | None:
        """Count the scores of predictions as they are, not clipped."""
        plan, task, rules = rows.plan, task_of(rows.plan), list[Edges]()
        grid, least = task.grid, plan.rules.min_cell
        if not grid:
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
        own_bound = task.own_bound(level)
        if own_bound is not None:
            inside = bins.below(own_bound)
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
