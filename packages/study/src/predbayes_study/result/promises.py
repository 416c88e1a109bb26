"""Promised coverage in a study: counts of scores from the sites, and the sets made from them.

The mathematics is in `predbayes_study.result.conformal`. A site counts the scores of its held-out
rows in bins of at least `min_cell` rows. Other sums of an evaluation are of clipped predictions;
here that would break the promise. So that no count below `min_cell` follows by subtraction, edges
are left out that part rows too nearly as the other tables of the evaluation do
(`predbayes_study.result.apart`). Of two classes a score below 1/2 is a hit, so a bin of risk around
1/2 is divided by no edge.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from typing import cast

from torch import Tensor

from predbayes.errors import DataError, UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.predictive.families import Categorical, Gaussian, Predictive, Survival
from predbayes_study.payloads.details import RiskSums, ScoreCounts, evaluation_of
from predbayes_study.plan.schema import Plan
from predbayes_study.result.apart import Apart, Cells
from predbayes_study.result.conformal import (
    CLASS_GRID,
    NUMBER_GRID,
    ScoreBins,
    promised_sets,
    score_rows,
)
from predbayes_study.result.schema import Promise, ScoreSums
from predbayes_study.tasks.numbers import untransform

LEVELS = (0.8, 0.9, 0.95)
"""Coverages that a report shows."""


def score_counts(
    plan: Plan,
    predictive: Predictive,
    targets: Tensor,
    risks: Sequence[RiskSums],
    told: Sequence[Cells] = (),
) -> ScoreCounts | None:
    """Count what a site may tell of the scores of its rows; None for times to an event.

    Args:
        plan: The study's plan.
        predictive: What the model says of the rows, not clipped.
        targets: Targets of the rows.
        risks: Counts by risk that are told of the same rows.
        told: Cells of every table that is told of them.
    """
    if isinstance(predictive, Survival):
        return None
    grid, least, rules = _grid(plan), plan.rules.min_cell, []
    scores = score_rows(cast("Categorical | Gaussian", predictive), targets)
    if least > 1:  # otherwise every row may be told of
        rules = [Apart(scores, cells, least) for cells in told]
        if plan.num_outputs == 2 and risks and 0.5 not in risks[0].edges:
            ends = (0.0, *risks[0].edges, 1.0)
            place = bisect_left(ends, 0.5)
            reach = max(0.5 - ends[place - 1], ends[place] - 0.5)
            grid = tuple(edge for edge in grid if abs(edge - 0.5) >= reach)
    bins = ScoreBins.cut(
        scores, grid, least, lambda edges: any(rule.refuses(edges) for rule in rules)
    )
    return ScoreCounts(edges=bins.edges, counts=bins.counts)


def _grid(plan: Plan) -> tuple[float, ...]:
    return CLASS_GRID if plan.classification else NUMBER_GRID


def check_scores(plan: Plan, scores: ScoreCounts, num_rows: int) -> None:
    """Refuse counts that no honest site can have found, or may have sent."""
    if plan.survival or len(scores.counts) != len(scores.edges) + 1:
        raise UploadError("its counts of scores are not those of the plan")
    if list(scores.edges) != sorted(set(scores.edges)) or not {*scores.edges} <= {*_grid(plan)}:
        raise UploadError("its bins of scores have other edges than the plan allows")
    if min(scores.counts) < plan.rules.min_cell:
        raise UploadError(f"a bin of scores has fewer than {plan.rules.min_cell} rows")
    if sum(scores.counts) != num_rows:
        raise UploadError("its counts of scores do not add up")


def pooled_scores(received: Sequence[UploadInfo]) -> ScoreSums | None:
    """Add the counts of sites; None where no site has sent any."""
    told = [evaluation_of(info).scores for info in received]
    several = [ScoreBins(one.edges, one.counts) for one in told if one is not None]
    if not several:
        return None
    bins = ScoreBins.added(several)
    return ScoreSums(num_sites=len(several), edges=bins.edges, counts=bins.counts)


def promises(plan: Plan, predictive: Predictive, sums: ScoreSums | None) -> tuple[Promise, ...]:
    """Return what sets or intervals of promised coverage are like on the reference rows."""
    if sums is None or not len(predictive):  # sizes are means over reference rows
        return ()
    bins, found = ScoreBins(sums.edges, sums.counts), []
    for level in LEVELS:
        bound, size, covered = bins.bound(level), None, None
        if math.isfinite(bound) and isinstance(predictive, Categorical):
            size = promised_sets(predictive, bound).sum(1)
        elif math.isfinite(bound):
            low, high = _ends(plan, cast("Gaussian", predictive), bound)
            size = high - low
        if not plan.classification:
            inside = bins.below(statistics.NormalDist().inv_cdf((1 + level) / 2))
            covered = inside[0] / bins.num_rows, inside[1] / bins.num_rows
        # Four digits are the same on every machine.
        mean = None if size is None else float(f"{float(size.double().mean()):.4g}")
        found.append(Promise(level=level, size=mean, credible_covered=covered))
    return tuple(found)


def _ends(plan: Plan, predictive: Gaussian, bound: float) -> tuple[Tensor, Tensor]:
    mean, reach = predictive.mean.double(), bound * predictive.var.double().sqrt()
    return untransform(plan, mean - reach), untransform(plan, mean + reach)


def promised(
    plan: Plan, predictive: Predictive, sums: ScoreSums | None, level: float
) -> dict[str, list[str] | Tensor]:
    """Return columns with sets or intervals of promised coverage; refuse where nothing is promised.

    Of a class ``set``, names with a bar between; of a number ``lower`` and ``upper``.

    Args:
        plan: The study's plan.
        predictive: What the model says of the rows to predict.
        sums: What sites' counts add up to.
        level: Coverage to promise, 0–1.
    """
    if not 0 < level < 1:
        raise DataError(f"--coverage must be between 0 and 1, not {level:g}")
    if plan.survival:
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
    if isinstance(predictive, Categorical):
        names = plan.target.classes or ()
        sets = promised_sets(predictive, bound).tolist()
        return {"set": [" | ".join(n for n, is_in in zip(names, row, strict=True) if is_in)
                        for row in sets]}  # fmt: skip
    low, high = _ends(plan, cast("Gaussian", predictive), bound)
    return {"lower": low, "upper": high}
