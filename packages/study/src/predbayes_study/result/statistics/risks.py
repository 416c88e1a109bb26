r"""Risks: counts of events and other rows by bins of the risk, for the event or for each class.

A site chooses its bins (`RiskBins.count`), of which none has fewer events or other rows than the
plan's `min_cell`; the plan's thresholds are edges of bins wherever that leaves enough on both
sides. So no count that leaves is small, and none follows from others by subtraction. Sums of risks
have three digits, and slope and intercept two decimals and a weight of two digits: over sites they
are averaged with these weights, one over the square of their standard errors.

Of several classes each is counted against the others, all of them or none: otherwise the one that
is left out would follow from the rest.

From such counts figures are known up to an error. Bins [a, b) of different sites may have different
edges. An event of bin i certainly has a higher risk than another row of bin j if a_i >= b_j, and
certainly not if a_j >= b_i. So with E events and O other rows

    sum_ij e_i o_j [a_i >= b_j]  <=  E O AUROC  <=  E O - sum_ij e_i o_j [a_j >= b_i]

and with K_i the number of events and F_i of others that may, or must, have at least the risk of an
event of bin i, its precision K / (K + F) has bounds in the same way. Each figure is the middle of
its bounds, its `error` half their distance, and its interval begins and ends with those of the
bounds. A threshold that is an edge of all bins has no error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from predbayes.errors import UploadError
from predbayes.predictive.estimate import Estimate, Z, share, wilson
from predbayes.predictive.risk import (
    AT_THRESHOLD,
    MOST_SLOPE,
    Decision,
    Risks,
    auroc_ends,
    observed_expected,
)
from predbayes_study.payloads.details import Evaluation, RiskSums, Weighted
from predbayes_study.plan.schema import Plan
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

MOST_BINS = 40
"""Of one site, but for those that thresholds add: no bin has less than a fortieth of its rows."""

GRID = tuple(round(1 / (1 + math.exp(-step / 8)), 6) for step in range(-48, 49))
"""Where bins may begin: every eighth of log odds from -6 to 6, as risks."""

_DECIMALS = 2  # of a slope
_MOST_CLASSES = 20
_MOST_WEIGHT = 1e9


@dataclass(frozen=True, slots=True)
class RiskBins:
    """Counts by bins of risk; several bins may overlap."""

    low: Tensor  # (B,), where each begins
    high: Tensor  # (B,), and ends
    events: Tensor  # (B,)
    others: Tensor  # (B,)
    expected: Tensor  # (B,), sums of risks

    @classmethod
    def count(
        cls, risks: Risks, min_cell: int, thresholds: Sequence[float] = ()
    ) -> RiskBins | None:
        """Count rows in as many bins as have enough events and others; None where no bin has.

        Thresholds are edges wherever that leaves enough on both sides; then what is between them
        is cut at the edges of `GRID`. No bin has fewer events or others than `min_cell`.
        """
        least = max(1, risks.num_rows // MOST_BINS)
        if not _is_enough(risks, torch.ones_like(risks.event), min_cell, 0):
            return None
        edges: list[float] = []
        for edge in (*thresholds, *GRID):
            num = least if edge not in thresholds else 0
            edges = _with_edge(risks, edges, edge, min_cell, num)
        return cls._of(risks, edges)

    @classmethod
    def _of(cls, risks: Risks, edges: Sequence[float]) -> RiskBins:
        ends = torch.tensor([0.0, *edges, 1.0], dtype=torch.float64)
        place = torch.bucketize(risks.risk, ends[1:-1], right=True)

        def total(values: Tensor) -> Tensor:
            return torch.bincount(place, values.double(), len(edges) + 1)

        high = ends[1:].clone()
        high[-1] = torch.inf  # a risk of 1 belongs to the last bin
        return cls(ends[:-1], high, total(risks.event), total(~risks.event), total(risks.risk))

    @classmethod
    def joined(cls, several: Sequence[RiskBins]) -> RiskBins:
        """Return the bins of several sites, side by side."""
        names = ("low", "high", "events", "others", "expected")
        return cls(*(torch.cat([getattr(one, name) for one in several]) for name in names))

    @property
    def num_events(self) -> int:
        """Events of all bins."""
        return int(self.events.sum())

    @property
    def num_rows(self) -> int:
        """Rows of all bins."""
        return self.num_events + int(self.others.sum())

    def auroc(self) -> Estimate:
        """Return the area under the ROC curve."""
        events, others = self.num_events, self.num_rows - self.num_events
        surely = (self.low.unsqueeze(1) >= self.high).double()  # of row i above row j
        least = float(self.events @ surely @ self.others) / (events * others)
        most = 1 - float(self.others @ surely @ self.events) / (events * others)
        return _between(least, most, lambda area: auroc_ends(area, events, others))

    def average_precision(self) -> Estimate:
        """Return the average precision."""
        above = (self.low.unsqueeze(1) >= self.high).double()
        maybe = (self.high.unsqueeze(1) > self.low).double()  # row i at least as high as row j
        most_events, least_others = maybe.T @ self.events, above.T @ self.others
        most = (self.events * most_events / (most_events + least_others)).sum()
        least_events, most_others = above.T @ self.events, maybe.T @ self.others
        # Of each bin the sum of r / (r + others) over r from before + 1 to before + events. Sites
        # state these counts: a sum over as many numbers would be theirs to make.
        first, last = least_events + most_others + 1, least_events + most_others + self.events + 1
        least = float((self.events - most_others * (last.digamma() - first.digamma())).sum())
        num = self.num_events

        def ends(value: float) -> tuple[float, float]:
            found = wilson(value, num)
            return found.low, found.high

        return _between(least / num, float(most) / num, ends)

    def observed_expected(self, slack: float = 0.0) -> Estimate:
        """Return events over the sum of risks, which may be off by a share of `slack`."""
        expected = float(self.expected.sum())
        return observed_expected(self.num_events, expected, self.num_rows, slack)

    def decisions(self, threshold: float) -> tuple[Decision, Decision]:
        """Return the worst and the best that treating rows of at least this risk can have done."""
        surely, maybe = self.low >= threshold, self.high > threshold

        def made(events: Tensor, others: Tensor) -> Decision:
            counts = float(self.events[events].sum()), float(self.others[others].sum())
            return Decision(threshold, *counts, self.num_events, self.num_rows)

        return made(surely, maybe), made(maybe, surely)

    def at(self, threshold: float) -> dict[str, Estimate]:
        """Return what there is for a threshold, by name, whichever rows are behind the counts.

        Of rows of which perhaps nobody is treated no PPV is told, and no NPV if perhaps everybody.
        """
        worst, best = (decision.figures() for decision in self.decisions(threshold))
        rows = self.events + self.others
        told = {
            "ppv": bool((rows[self.low >= threshold] > 0).any()),
            "npv": bool((rows[self.high <= threshold] > 0).any()),
        }
        return {
            name: _joined(worst[name], best[name])
            for name in AT_THRESHOLD
            if name in worst and name in best and told.get(name, True)
        }


def _between(least: float, most: float, ends: Callable[[float], tuple[float, float]]) -> Estimate:
    return Estimate((least + most) / 2, ends(least)[0], ends(most)[1], (most - least) / 2)


def _joined(worst: Estimate, best: Estimate) -> Estimate:
    middle, error = (worst.value + best.value) / 2, (best.value - worst.value) / 2
    return Estimate(middle, min(worst.low, best.low), max(worst.high, best.high), abs(error))


def _is_enough(risks: Risks, rows: Tensor, min_cell: int, least: int) -> bool:
    events = int((rows & risks.event).sum())
    others = int(rows.sum()) - events
    return events >= min_cell and others >= min_cell and events + others >= least


def _with_edge(
    risks: Risks, edges: list[float], edge: float, min_cell: int, least: int
) -> list[float]:
    """The edges and one more, if the bin that it cuts has enough rows on both sides."""
    if edge in edges:
        return edges
    start = max((e for e in edges if e < edge), default=0.0)
    end = min((e for e in edges if e > edge), default=2.0)
    inside = (risks.risk >= start) & (risks.risk < end)
    parts = inside & (risks.risk < edge), inside & (risks.risk >= edge)
    if not all(_is_enough(risks, part, min_cell, least) for part in parts):
        return edges
    return sorted([*edges, edge])


Counted = tuple[RiskSums, ...]
"""The event's, or each class's."""


class RiskCounts:
    """Counts by bins of the risk."""

    name = "risks"
    by_site = True

    def make(self, rows: HeldOutRows, beside: Evaluation, told: Sequence[Cells]) -> Counted | None:
        """Count each class; None where a site has too few rows of some kind."""
        plan = rows.plan
        few = len(rows.targets) < FEWEST_COUNTED or len(plan.event_indices) > _MOST_CLASSES
        if not plan.event_indices or few:
            return None
        found = []
        for index in plan.event_indices:
            risks = rows.risks(index)
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
        found = []
        for index, one in zip(rows.plan.event_indices, sent, strict=True):
            risks = rows.risks(index)
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
