r"""The same figures from counts by bins of risk, and how far from those of the rows they may be.

Where rows may not be seen, events and other rows are counted in bins [a, b) of the risk. Bins of
different sites may have different edges. An event of bin i certainly has the higher risk than
another row of bin j if a_i >= b_j, and certainly not if a_j >= b_i. So

    sum_ij e_i o_j [a_i >= b_j]  <=  E O AUROC  <=  E O - sum_ij e_i o_j [a_j >= b_i]

and with K_i the number of events and F_i of others that may, or must, have at least the risk of an
event of bin i, its precision K / (K + F) lies between bounds likewise. Each figure is the middle of
its bounds, its `error` half their distance, and its interval begins and ends with those of the
bounds. A threshold that is an edge of all bins has no error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from predbayes.predictive.estimate import Estimate, wilson
from predbayes.predictive.risk import (
    AT_THRESHOLD,
    Decision,
    Risks,
    auroc_ends,
    observed_expected,
)

MOST_BINS = 40
"""Of one site, but for those that thresholds add: no bin has less than a fortieth of its rows."""

GRID = tuple(round(1 / (1 + math.exp(-step / 8)), 6) for step in range(-48, 49))
"""Where bins may begin: every eighth of log odds from -6 to 6, as risks."""


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
        least = sum(
            float((r / (r + others)).sum())
            for r, others in (
                (before + torch.arange(1, int(num) + 1), others)
                for before, num, others in zip(
                    least_events, self.events.tolist(), most_others, strict=True
                )
            )
        )
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
