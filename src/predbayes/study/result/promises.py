"""Promised coverage in a study: counts of scores from the sites, and the sets made from them.

The mathematics is in `predbayes.predictive.conformal`. A site counts the scores of its held-out
rows in bins of at least `min_cell` rows. Other sums of an evaluation are of clipped predictions;
here that would break the promise, and a row that is alike to no other shares its bin with others.

Counts by risk (`predbayes.study.result.risksums`) are of the same rows, in other bins; so are hits
and groups (`predbayes.study.result.apart`). No count below `min_cell` may follow from them by
subtraction. So either

    by class    each class has at least `ROWS_OF_CLASS` times `min_cell` rows: its bins are cut
                where those of its risk are, and divide them further
    in all      otherwise: of all classes together, with bins whose differences from counts by risk
                are none, or large enough

Of two classes a score of at most 1/2 is a hit. So a bin of risk around 1/2 is divided by no edge:
of its rows hits are known, and with an edge some of those would follow. Of more classes hits and
misses mix between 1/2 and 1 - 1/C; bins by class have no edge there that risks have not.

Only the first promises coverage class by class, which holds whatever the shares of the classes are.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from predbayes.errors import DataError, UploadError
from predbayes.exchange.header import Evaluation, RiskSums, ScoreCounts, UploadInfo
from predbayes.predictive.conformal import (
    CLASS_GRID,
    NUMBER_GRID,
    ScoreBins,
    credible_sets,
    promised_sets,
    score_rows,
)
from predbayes.predictive.families import Categorical, Gaussian, Predictive, Survival
from predbayes.study.plan.schema import Plan
from predbayes.study.result.apart import Apart, Cells, by_confidence, thinned
from predbayes.study.result.schema import Promise, ScoreSums
from predbayes.study.tables.coding import untransform

LEVELS = (0.8, 0.9, 0.95)
"""Coverages that a report shows."""

ROWS_OF_CLASS = 40
"""Bins of the least size that each class could fill: one of them, the last, promises nothing."""


# At a site


def score_counts(
    plan: Plan,
    predictive: Predictive,
    targets: Tensor,
    risks: Sequence[RiskSums] | None,
    told: Sequence[Cells] = (),
) -> tuple[ScoreCounts, ...] | None:
    """Count what a site may tell of the scores of its rows; None for times to an event.

    Args:
        plan: Of the study.
        predictive: Of the rows, as the model says it.
        targets: Of the rows.
        risks: What is told of the same rows by their risk.
        told: What else is told of them; of classes hits first.
    """
    if isinstance(predictive, Survival):
        return None
    scores = score_rows(cast("Categorical | Gaussian", predictive), targets)
    known = _of_risks(plan, risks or ())
    found = _by_class(plan, scores, targets, known, told) or [_in_all(plan, scores, known, told)]
    return tuple(ScoreCounts(edges=bins.edges, counts=bins.counts) for bins in found)


def _grid(plan: Plan) -> tuple[float, ...]:
    return CLASS_GRID if plan.classification else NUMBER_GRID


def _in_all(
    plan: Plan, scores: Tensor, known: Mapping[int, ScoreBins], told: Sequence[Cells]
) -> ScoreBins:
    least, grid = plan.rules.min_cell, _grid(plan)
    if plan.num_outputs == 2 and known:
        grid = _beside(grid, _around_half(known.values()), least)
    parted = [cells.without_misses if cells.exact else cells for cells in told]
    rules: list[Callable[[ScoreBins], bool]]
    rules = [Apart(scores, cells, least).refuses for cells in parted]
    hits = by_confidence(told[0], plan.num_outputs) if plan.classification and told else []
    for several in (list(known.values()), hits):
        tables = [{end: bins.below(end) for end in _ENDS} for bins in several]
        rules += [partial(_tells_few, tables, least)] if tables else []
    return ScoreBins.cut(scores, grid, least, refused=partial(_any, rules))


def _any(rules: Sequence[Callable[[ScoreBins], bool]], bins: ScoreBins) -> bool:
    return any(rule(bins) for rule in rules)


def _around_half(several: Iterable[ScoreBins]) -> tuple[float, float]:
    """Where the bins that have 1/2 inside begin and end."""
    low = high = 0.5
    for one in several:
        ends = (-math.inf, *one.edges, math.inf)
        if 0.5 not in ends:
            place = bisect_left(ends, 0.5)
            low, high = min(low, ends[place - 1]), max(high, ends[place])
    return low, high


def _beside(grid: Sequence[float], between: tuple[float, float], least: int) -> tuple[float, ...]:
    """The grid without what is between; of single rows everything may be told."""
    low, high = between
    return tuple(edge for edge in grid if least == 1 or not low < edge < high)


def _by_class(
    plan: Plan,
    scores: Tensor,
    targets: Tensor,
    known: Mapping[int, ScoreBins],
    told: Sequence[Cells],
) -> list[ScoreBins] | None:
    """Bins of each class; None where one has few rows, or they would not divide those of risks."""
    if not plan.classification:
        return None
    least, num = plan.rules.min_cell, plan.num_outputs
    rows = torch.bincount(targets.long(), minlength=num)
    if int(rows.min()) < ROWS_OF_CLASS * least:
        return None
    found: list[ScoreBins] = []
    fixed: list[tuple[float, ...]] = []
    for index in range(num):
        risk = known.get(index, ScoreBins((), (int(rows[index]),)))
        bins = _of_class(plan, scores, targets == index, risk, told)
        # Risks are of clipped predictions, which may put a row of about 1/2 elsewhere.
        if [bins.below(edge)[0] for edge in risk.edges] != [*accumulate(risk.counts)][:-1]:
            return None
        found.append(bins)
        fixed.append(risk.edges)
    return found if num == 2 or not told else thinned(found, fixed, told[0], least)


def _of_class(
    plan: Plan, scores: Tensor, rows: Tensor, risk: ScoreBins, told: Sequence[Cells]
) -> ScoreBins:
    least, num = plan.rules.min_cell, plan.num_outputs
    between = _around_half([risk]) if num == 2 else (0.5, 1 - 1 / num)
    # Hits are of all classes together; a group of rows is one in each of them.
    rules = [Apart(scores[rows], cells[rows], least).refuses for cells in told if not cells.exact]
    grid = _beside(CLASS_GRID, between, least)
    return ScoreBins.cut(scores[rows], grid, least, risk.edges, partial(_any, rules))


def _of_risks(plan: Plan, risks: Sequence[RiskSums]) -> dict[int, ScoreBins]:
    """What counts by risk say of the scores of each class."""
    found = {}
    for index, one in zip(plan.event_indices, risks, strict=False):
        edges = tuple(round(1 - edge, 6) for edge in reversed(one.edges))
        found[index] = ScoreBins(edges, one.events[::-1])
        if plan.num_outputs == 2:
            found[1 - index] = ScoreBins(one.edges, one.others)
    return found


_ENDS = (-math.inf, *CLASS_GRID, math.inf)


def _tells_few(
    tables: Sequence[Mapping[float, tuple[int, int]]], least: int, bins: ScoreBins
) -> bool:
    """Whether a stretch from the lowest edge, less what tables tell of it, is a small count."""
    ends, begin, num = (*bins.edges[1:], math.inf), bins.edges[0], 0
    stretches = [(-math.inf, begin, bins.counts[0])]
    for end, count in zip(ends, bins.counts[1:], strict=True):
        num += count
        stretches.append((begin, end, num))
    for low, high, num in stretches:
        inside = sum(max(0, table[high][0] - table[low][1]) for table in tables)
        around = sum(table[high][1] - table[low][0] for table in tables)
        if 0 < abs(num - inside) < least or 0 < abs(around - num) < least:
            return True
    return False


# At the coordinator


def check_scores(plan: Plan, evaluation: Evaluation, num_rows: int) -> None:
    """Refuse counts that no honest site can have found, or may have sent."""
    scores, risks = evaluation.scores or (), evaluation.risks
    sizes = {1, plan.num_outputs} if plan.classification else {1}
    if plan.survival or len(scores) not in sizes:
        raise UploadError("its counts of scores are not those of the plan")
    mirrored = (round(1 - threshold, 6) for threshold in plan.thresholds)
    allowed = {*_grid(plan), *plan.thresholds, *mirrored}
    for one in scores:
        if len(one.counts) != len(one.edges) + 1:
            raise UploadError("its counts of scores are not those of the plan")
        if list(one.edges) != sorted(set(one.edges)) or not set(one.edges) <= allowed:
            raise UploadError("its bins of scores have other edges than the plan allows")
        if min(one.counts) < plan.rules.min_cell:
            raise UploadError(f"a bin of scores has fewer than {plan.rules.min_cell} rows")
    if sum(sum(one.counts) for one in scores) != num_rows:
        raise UploadError("its counts of scores do not add up")
    for index, known in _of_risks(plan, risks or ()).items():
        if len(scores) > 1 and sum(scores[index].counts) != known.num_rows:
            raise UploadError("its counts of scores and of risks are not of the same rows")


def pooled_scores(plan: Plan, received: Sequence[UploadInfo]) -> tuple[ScoreSums, ...]:
    """Add the counts of sites: of all rows, then of each class if some site tells them apart."""
    told = [bins for info in received if (bins := _bins(info))]
    if not told:
        return ()
    by_class = [bins for bins in told if len(bins) > 1]
    found = [("", ScoreBins.added([one for bins in told for one in bins]))]
    for index, name in enumerate(plan.target.classes or ()) if by_class else ():
        found.append((name, ScoreBins.added([bins[index] for bins in by_class])))
    return tuple(ScoreSums(name=name, edges=b.edges, counts=b.counts) for name, b in found)


def _bins(info: UploadInfo) -> list[ScoreBins]:
    scores = (info.evaluation.scores if info.evaluation else None) or ()
    return [ScoreBins(one.edges, one.counts) for one in scores]


def promises(
    plan: Plan, predictive: Predictive, received: Sequence[UploadInfo]
) -> tuple[Promise, ...]:
    """Tell what sets or intervals of promised coverage are like, beside the model's own.

    Args:
        plan: Of the study.
        predictive: Of the reference rows.
        received: What sites sent.
    """
    told = {info.site: bins for info in received if (bins := _bins(info))}
    if not told or not len(predictive):  # sizes are means over reference rows; sums need none
        return ()
    pooled = ScoreBins.added([one for bins in told.values() for one in bins])
    return tuple(_promise(plan, predictive, told, level, pooled.bound(level)) for level in LEVELS)


def _promise(
    plan: Plan,
    predictive: Predictive,
    told: Mapping[str, Sequence[ScoreBins]],
    level: float,
    bound: float,
) -> Promise:
    own = _own_bound(plan, level)
    every = [one for bins in told.values() for one in bins]
    promised = math.isfinite(bound)
    return Promise(
        level=level,
        num_sites=len(told),
        size=_size(plan, predictive, bound) if promised else None,
        credible_size=_credible_size(plan, predictive, level),
        credible_covered=None if own is None else _share(every, own),
        covered={site: _share(bins, bound) for site, bins in sorted(told.items()) if promised},
    )


def _own_bound(plan: Plan, level: float) -> float | None:
    """The score up to which targets are in the model's own set; of several classes there is none.

    Of two classes the unlikely one is left out where the other has at least the level.
    """
    if plan.classification:
        return level if plan.num_outputs == 2 else None
    return statistics.NormalDist().inv_cdf((1 + level) / 2)


def _share(several: Sequence[ScoreBins], bound: float) -> tuple[float, float]:
    below, num_rows = [one.below(bound) for one in several], sum(one.num_rows for one in several)
    return sum(least for least, _ in below) / num_rows, sum(most for _, most in below) / num_rows


def _size(plan: Plan, predictive: Predictive, bound: float) -> float:
    if isinstance(predictive, Categorical):
        bounds = [bound] * plan.num_outputs
        return _mean(promised_sets(predictive, bounds).sum(1))
    low, high = _ends(plan, cast("Gaussian", predictive), bound)
    return _mean(high - low)


def _credible_size(plan: Plan, predictive: Predictive, level: float) -> float:
    if isinstance(predictive, Categorical):
        return _mean(credible_sets(predictive, level).sum(1))
    return _size(plan, predictive, statistics.NormalDist().inv_cdf((1 + level) / 2))


def _mean(sizes: Tensor) -> float:
    """In digits that are the same on every machine."""
    return float(f"{float(sizes.double().mean()):.4g}")


def _ends(plan: Plan, predictive: Gaussian, bound: float) -> tuple[Tensor, Tensor]:
    mean, reach = predictive.mean.double(), bound * predictive.var.double().sqrt()
    return untransform(plan, mean - reach), untransform(plan, mean + reach)


# For whoever predicts


def promised(
    plan: Plan,
    predictive: Predictive,
    sums: Sequence[ScoreSums],
    level: float,
    *,
    by_class: bool = False,
) -> dict[str, list[str] | Tensor]:
    """Return columns with sets or intervals of promised coverage; refuse where nothing is promised.

    Of a class ``set``, names with a bar between; of a number ``lower`` and ``upper``.

    Args:
        plan: Of the study.
        predictive: Of the rows to predict.
        sums: What sites' counts give.
        level: Coverage to promise.
        by_class: Whether to promise it for each class, whatever their shares are.
    """
    if not 0 < level < 1:
        raise DataError(f"--coverage must be between 0 and 1, not {level:g}")
    if plan.survival:
        raise DataError("--coverage: nothing is promised of times to an event")
    if not sums:
        raise DataError(
            "--coverage: nothing is promised, because no site has sent counts of scores; ask sites "
            "for `predbayes site evaluate --out`, add them and finish again"
        )
    if by_class and len(sums) == 1:
        raise DataError(
            "--by-class: nothing is promised by class, because no site has enough rows of each "
            "to tell classes apart"
        )
    bounds = [_bound(one, level) for one in (sums[1:] if by_class else sums[:1])]
    if isinstance(predictive, Categorical):
        names = plan.target.classes or ()
        inside = promised_sets(predictive, bounds if by_class else bounds * len(names)).tolist()
        words = [[n for n, is_in in zip(names, row, strict=True) if is_in] for row in inside]
        return {"set": [" | ".join(row) for row in words]}
    low, high = _ends(plan, cast("Gaussian", predictive), bounds[0])
    return {"lower": low, "upper": high}


def _bound(one: ScoreSums, level: float) -> float:
    bins = ScoreBins(one.edges, one.counts)
    bound = bins.bound(level)
    if math.isinf(bound):
        of = f" of {one.name!r}" if one.name else ""
        raise DataError(
            f"--coverage {level:g}: the {bins.num_rows:,} rows{of} that sites counted promise at "
            f"most {math.floor(1000 * bins.most) / 1000:g}"
        )
    return bound
