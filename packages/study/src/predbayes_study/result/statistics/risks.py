r"""Risks: counts of events and other rows by bins of the risk, for the event or for each class.

A site chooses its bins (`RiskBins.count`), of which none has fewer events or other rows than the
plan's `min_cell`; the plan's thresholds are edges of bins wherever that leaves enough on both
sides. So no count that leaves is small, and none follows from others by subtraction. Sums of risks
have three digits, and slope and intercept two decimals and a weight of two digits: over sites they
are averaged with these weights, one over the square of their standard errors.

Of several classes each is counted against the others, all of them or none: otherwise the one that
is left out would follow from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch

from predbayes.errors import UploadError
from predbayes.predictive.estimate import Estimate, Z, share
from predbayes.predictive.families import Categorical
from predbayes.predictive.risk import MOST_SLOPE, Risks
from predbayes_study.payloads.details import Evaluation, RiskSums, Weighted
from predbayes_study.plan.schema import Plan
from predbayes_study.result.riskbins import GRID, RiskBins
from predbayes_study.result.schema import AtThreshold, Bin, ClassRisk
from predbayes_study.result.statistics.disclosure import (
    DIGITS,
    FEWEST_COUNTED,
    ROUNDING,
    Cells,
    rounded,
)
from predbayes_study.result.statistics.statistic import HeldOutRows
from predbayes_study.tasks.classes import counted_bin

_DECIMALS = 2  # of a slope
_MOST_CLASSES = 20
_MOST_WEIGHT = 1e9

Counted = tuple[RiskSums, ...]
"""The event's, or each class's."""


class RiskCounts:
    """Counts by bins of the risk."""

    name = "risks"
    by_site = True

    def make(self, rows: HeldOutRows, beside: Evaluation, told: Sequence[Cells]) -> Counted | None:
        """Count each class; None where a site has too few rows of some kind."""
        plan, predictive = rows.plan, cast("Categorical", rows.predictive)
        few = len(rows.targets) < FEWEST_COUNTED or len(plan.event_indices) > _MOST_CLASSES
        if not plan.event_indices or few:
            return None
        found = []
        for index in plan.event_indices:
            risks = Risks.of(predictive, rows.targets, index)
            bins = RiskBins.count(risks, plan.rules.min_cell, plan.thresholds)
            if bins is None:
                return None
            found.append(
                RiskSums(
                    edges=tuple(bins.low[1:].tolist()),
                    events=tuple(int(count) for count in bins.events),
                    others=tuple(int(count) for count in bins.others),
                    expected=tuple(rounded(risk) for risk in bins.expected.tolist()),
                    slope=_weighted(risks.slope()),
                    intercept=_weighted(risks.intercept()),
                )
            )
        return tuple(found)

    def cells(self, rows: HeldOutRows, sent: Counted) -> list[Cells]:
        """Return events by bin, for each class."""
        predictive = cast("Categorical", rows.predictive)
        found = []
        for index, one in zip(rows.plan.event_indices, sent, strict=True):
            risks = Risks.of(predictive, rows.targets, index)
            edges = torch.tensor(one.edges, dtype=torch.float64)
            place = torch.bucketize(risks.risk, edges, right=True)
            found.append(Cells(2 * place + risks.event.long(), by_score=True))
        return found

    def check(self, plan: Plan, sent: Counted, beside: Evaluation, num_rows: int) -> None:
        """Refuse other bins than the plan allows, small counts, and sums that no rows have."""
        if len(sent) != len(plan.event_indices) or num_rows < FEWEST_COUNTED:
            raise UploadError("its counts of risks are not those of the plan")
        if len(sent) > 1 and sum(sum(one.events) for one in sent) != num_rows:
            raise UploadError("its counts of risks do not add up")
        for one in sent:
            _check(plan, one, num_rows)

    def pool(self, plan: Plan, several: Sequence[Counted], num_rows: int) -> tuple[ClassRisk, ...]:
        """Return what the counts of several sites say together, class by class."""
        classes = plan.target.classes or ()
        return tuple(
            _class_risk(plan, classes[index], [risks[place] for risks in several])
            for place, index in enumerate(plan.event_indices if several else ())
        )


def _weighted(estimate: Estimate | None) -> Weighted | None:
    """Return an estimate with its precision; None where that is next to nothing, or unbounded."""
    if estimate is None or abs(estimate.value) > MOST_SLOPE:
        return None
    weight = (Z / max(estimate.high - estimate.value, 1e-4)) ** 2
    return Weighted(value=round(estimate.value, _DECIMALS), weight=float(f"{weight:.2g}"))


def _check(plan: Plan, one: RiskSums, num_rows: int) -> None:
    num = len(one.edges) + 1
    if {len(one.events), len(one.others), len(one.expected)} != {num}:
        raise UploadError("its counts of risks are not those of the plan")
    allowed = {*GRID, *plan.thresholds}
    if list(one.edges) != sorted(set(one.edges)) or not set(one.edges) <= allowed:
        raise UploadError("its bins of risk have other edges than the plan allows")
    if min(*one.events, *one.others) < plan.rules.min_cell:
        raise UploadError(f"a bin of risk has a count below {plan.rules.min_cell}")
    if sum(one.events) + sum(one.others) != num_rows:
        raise UploadError("its counts of risks do not add up")
    ends = (0.0, *one.edges, 1.0)
    for k, expected in enumerate(one.expected):
        count = one.events[k] + one.others[k]
        least, most = ends[k] * count * (1 - ROUNDING), ends[k + 1] * count * (1 + ROUNDING)
        if not least <= expected <= most:
            raise UploadError("its sums of risks are not of their bins")
        if rounded(expected) != expected:
            raise UploadError(f"its sums of risks have more than {DIGITS} digits")
    for weighted in (one.slope, one.intercept):
        if weighted is None:
            continue
        inside = abs(weighted.value) <= MOST_SLOPE and 0 < weighted.weight <= _MOST_WEIGHT
        if not inside or round(weighted.value, _DECIMALS) != weighted.value:
            raise UploadError("its slope or intercept cannot be those of rows")


def _as_bins(one: RiskSums) -> RiskBins:
    ends = [0.0, *one.edges, math.inf]
    columns = (ends[:-1], ends[1:], one.events, one.others, one.expected)
    return RiskBins(*(torch.tensor(column, dtype=torch.float64) for column in columns))


def _class_risk(plan: Plan, name: str, several: Sequence[RiskSums]) -> ClassRisk:
    bins = RiskBins.joined([_as_bins(one) for one in several])
    found = {
        "auroc": bins.auroc(),
        "average_precision": bins.average_precision(),
        "slope": _averaged([one.slope for one in several]),
        "intercept": _averaged([one.intercept for one in several]),
        "observed_expected": bins.observed_expected(ROUNDING),
    }
    return ClassRisk(
        name=name,
        num_rows=bins.num_rows,
        num_bins=len(bins.low),
        prevalence=share(bins.num_events, bins.num_rows),
        metrics={of: estimate for of, estimate in found.items() if estimate is not None},
        bins=_diagram(several),
        at=tuple(
            AtThreshold(threshold=t, metrics=bins.at(t), treat_all=bins.decisions(t)[0].treat_all())
            for t in plan.thresholds
        ),
    )


def _diagram(several: Sequence[RiskSums]) -> tuple[Bin, ...]:
    """The bins between the edges that all sites have in common."""
    common = set.intersection(*(set(one.edges) for one in several))
    sums = torch.zeros(len(common) + 1, 3, dtype=torch.float64)
    for one in several:
        starts = torch.tensor([0.0, *one.edges], dtype=torch.float64)
        edges = torch.tensor(sorted(common), dtype=torch.float64)
        place = torch.bucketize(starts, edges, right=True)
        columns = torch.tensor([one.events, one.others, one.expected], dtype=torch.float64)
        sums.index_add_(0, place, columns.T)
    return tuple(
        counted_bin(int(events + others), int(events), stated)
        for events, others, stated in sums.tolist()
    )


def _averaged(several: Sequence[Weighted | None]) -> Estimate | None:
    """The mean of sites' estimates; that of one site is off by its rounding at most."""
    known = [one for one in several if one is not None]
    if not known:
        return None
    weight = math.fsum(one.weight for one in known)
    value = math.fsum(one.weight * one.value for one in known) / weight
    error = 0.5 * 10**-_DECIMALS
    reach = Z / math.sqrt(weight) + error
    return Estimate(value, value - reach, value + reach, error)
