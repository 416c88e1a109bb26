r"""Risks at the sites: counts of events and other rows by bins of the risk, which add up.

A site counts in bins of its own (`RiskBins.count`), of which none has fewer events or other rows
than the plan's `min_cell`; the plan's thresholds are edges of bins wherever that leaves enough on
both sides. So no count that leaves is small, and none follows from others by subtraction. Sums of
risks have three digits, and slope and intercept two decimals and a weight of two digits: over sites
they are averaged with these weights, one over the square of their standard errors.

With that there are at least `FEWEST_ROWS_OF_RISKS` rows. Of several classes each is counted against
the others, all of them or none: else the one that is left out would follow from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.errors import UploadError
from predbayes.predictive.estimate import Estimate, Z, share
from predbayes.predictive.families import Categorical
from predbayes.predictive.risk import MOST_SLOPE
from predbayes.predictive.risk import Risks as RowRisks
from predbayes_study.payloads.details import RiskSums, Weighted
from predbayes_study.plan.schema import Plan
from predbayes_study.result.riskbins import GRID, RiskBins
from predbayes_study.result.schema import AtThreshold, ClassRisk, RiskBin
from predbayes_study.result.scoring import TAILS
from predbayes_study.result.sums import DIGITS, ROUNDING, rounded

FEWEST_ROWS_OF_RISKS = 100

_DECIMALS = 2  # of a slope
_MOST_CLASSES = 20
_MOST_WEIGHT = 1e9


def risk_sums(plan: Plan, predictive: Categorical, targets: Tensor) -> tuple[RiskSums, ...] | None:
    """Count what a site may tell of risks; None where it has too few rows of some kind."""
    indices = plan.event_indices
    if len(targets) < FEWEST_ROWS_OF_RISKS or len(indices) > _MOST_CLASSES:
        return None
    found: list[RiskSums] = []
    for index in indices:
        rows = RowRisks.of(predictive, targets, index)
        bins = RiskBins.count(rows, plan.rules.min_cell, plan.thresholds)
        if bins is None:
            return None
        found.append(_sums(rows, bins))
    return tuple(found)


def check_risks(plan: Plan, risks: Sequence[RiskSums], num_rows: int) -> None:
    """Refuse counts that no honest site can have found, or may have sent."""
    if len(risks) != len(plan.event_indices) or num_rows < FEWEST_ROWS_OF_RISKS:
        raise UploadError("its counts of risks are not those of the plan")
    if len(risks) > 1 and sum(sum(one.events) for one in risks) != num_rows:
        raise UploadError("its counts of risks do not add up")
    for one in risks:
        _check(plan, one, num_rows)


def site_risks(plan: Plan, risks: Sequence[RiskSums]) -> tuple[ClassRisk, ...]:
    """Tell what one site's counts say, class by class."""
    return pooled_risks(plan, [risks])


def pooled_risks(plan: Plan, several: Sequence[Sequence[RiskSums]]) -> tuple[ClassRisk, ...]:
    """Tell what the counts of several sites say together, class by class."""
    classes = plan.target.classes or ()
    if not several:
        return ()
    return tuple(
        _class_risk(plan, classes[index], [risks[place] for risks in several])
        for place, index in enumerate(plan.event_indices)
    )


def _sums(rows: RowRisks, bins: RiskBins) -> RiskSums:
    return RiskSums(
        edges=tuple(bins.low[1:].tolist()),
        events=tuple(int(count) for count in bins.events),
        others=tuple(int(count) for count in bins.others),
        expected=tuple(rounded(risk) for risk in bins.expected.tolist()),
        slope=_weighted(rows.slope()),
        intercept=_weighted(rows.intercept()),
    )


def _weighted(figure: Estimate | None) -> Weighted | None:
    """A figure with its precision; None where that is next to nothing, or beyond all bounds."""
    if figure is None or abs(figure.value) > MOST_SLOPE:
        return None
    weight = (Z / max(figure.high - figure.value, 1e-4)) ** 2
    return Weighted(value=round(figure.value, _DECIMALS), weight=float(f"{weight:.2g}"))


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
    for low, high, count, expected in _bins_of(one):
        least, most = low * count * (1 - ROUNDING), min(high, 1.0) * count * (1 + ROUNDING)
        if not least <= expected <= most:
            raise UploadError("its sums of risks are not of their bins")
        if rounded(expected) != expected:
            raise UploadError(f"its sums of risks have more than {DIGITS} digits")
    for weighted in (one.slope, one.intercept):
        if weighted is not None and not _is_weighted(weighted):
            raise UploadError("its slope or intercept cannot be those of rows")


def _is_weighted(one: Weighted) -> bool:
    inside = abs(one.value) <= MOST_SLOPE and 0 < one.weight <= _MOST_WEIGHT
    return inside and round(one.value, _DECIMALS) == one.value


def _bins_of(one: RiskSums) -> Iterator[tuple[float, float, int, float]]:
    ends = (0.0, *one.edges, math.inf)
    for k, expected in enumerate(one.expected):
        yield ends[k], ends[k + 1], one.events[k] + one.others[k], expected


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
        metrics={of: figure for of, figure in found.items() if figure is not None},
        bins=_diagram(several),
        at=tuple(
            AtThreshold(threshold=t, metrics=bins.at(t), treat_all=bins.decisions(t)[0].treat_all())
            for t in plan.thresholds
        ),
    )


def _diagram(several: Sequence[RiskSums]) -> tuple[RiskBin, ...]:
    """The bins between the edges that all sites have in common."""
    common = set.intersection(*(set(one.edges) for one in several))
    sums = torch.zeros(len(common) + 1, 3, dtype=torch.float64)
    for one in several:
        starts = torch.tensor([0.0, *one.edges], dtype=torch.float64)
        edges = torch.tensor(sorted(common), dtype=torch.float64)
        place = torch.bucketize(starts, edges, right=True)
        columns = torch.tensor([one.events, one.others, one.expected], dtype=torch.float64)
        sums.index_add_(0, place, columns.T)
    return tuple(_risk_bin(int(e), int(o), stated) for e, o, stated in sums.tolist())


def _averaged(several: Sequence[Weighted | None]) -> Estimate | None:
    """The mean of sites' estimates; that of one site is off by its rounding at the most."""
    known = [one for one in several if one is not None]
    if not known:
        return None
    weight = math.fsum(one.weight for one in known)
    value = math.fsum(one.weight * one.value for one in known) / weight
    error = 0.5 * 10**-_DECIMALS
    reach = Z / math.sqrt(weight) + error
    return Estimate(value, value - reach, value + reach, error)


def _risk_bin(events: int, others: int, expected: float) -> RiskBin:
    count = events + others
    risk = min(1.0, expected / count)
    low, high = scipy.stats.binom.ppf(TAILS, count, risk)
    return RiskBin(
        count=count,
        risk=risk,
        observed=events / count,
        null_low=float(low) / count,
        null_high=float(high) / count,
    )
