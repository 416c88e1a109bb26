"""A reliability diagram: rows, right answers and confidences, by bins of the confidence.

With two classes the risk says it all, and two diagrams of the same rows would say more than one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from predbayes.arrays import once_per_row
from predbayes.errors import UploadError
from predbayes.predictive.metrics import DIAGRAM_BINS, bin_of
from predbayes_study.payloads.details import BinSums, Evaluation
from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import Bin
from predbayes_study.result.statistics.disclosure import FEWEST_COUNTED, SLACK, Cells, rounded
from predbayes_study.result.statistics.statistic import HeldOutRows
from predbayes_study.tasks import task_of
from predbayes_study.tasks.classes import counted_bin


class ConfidenceBins:
    """Counts by bins of the confidence."""

    name = "bins"
    by_site = False

    def make(self, rows: HeldOutRows, beside: Evaluation, told: Sequence[Cells]) -> BinSums | None:
        """Count rows of several classes; None where a bin has few."""
        if not task_of(rows.plan).by_class or rows.plan.num_outputs == 2:
            return None
        stated = _stated(rows)
        place = bin_of(stated, DIAGRAM_BINS)
        counts, hits, sums = (
            torch.bincount(place, weights, DIAGRAM_BINS).tolist()
            for weights in (torch.ones_like(stated), rows.values["accuracy"], stated)
        )
        least = rows.plan.rules.min_cell
        if len(rows.targets) < FEWEST_COUNTED or any(0 < n < least for n in counts):
            return None
        return BinSums(
            rows=tuple(map(int, counts)),
            hits=tuple(map(int, hits)),
            confidence=tuple(map(rounded, sums)),
        )

    def cells(self, rows: HeldOutRows, sent: BinSums) -> list[Cells]:
        """Return hits by confidence."""
        return [Cells(rows.values["accuracy"].long() + 2 * bin_of(_stated(rows), DIAGRAM_BINS))]

    def check(self, plan: Plan, sent: BinSums, beside: Evaluation, num_rows: int) -> None:
        """Refuse small or impossible bins."""
        sizes = {len(sent.rows), len(sent.hits), len(sent.confidence)}
        if not task_of(plan).by_class or sizes != {DIAGRAM_BINS}:
            raise UploadError("its reliability bins are not those of the plan")
        if num_rows < FEWEST_COUNTED:
            raise UploadError(f"its reliability bins are of fewer rows than {FEWEST_COUNTED}")
        if any(0 < count < plan.rules.min_cell for count in sent.rows):
            raise UploadError(f"a reliability bin has fewer than {plan.rules.min_cell} rows")
        inside = all(
            hits <= rows and confidence <= rows * (1 + SLACK)
            for rows, hits, confidence in zip(sent.rows, sent.hits, sent.confidence, strict=True)
        )
        totals = sum(sent.rows), sum(sent.hits)
        if not inside or totals != (num_rows, beside.metrics["accuracy"].total):
            raise UploadError("its reliability bins do not add up")

    def pool(self, plan: Plan, several: Sequence[BinSums], num_rows: int) -> tuple[Bin, ...]:
        """Return the diagram of all sites that sent one, without its empty bins."""
        return tuple(
            counted_bin(count, hits, confidence)
            for count, hits, confidence in zip(
                (sum(column) for column in zip(*(bins.rows for bins in several), strict=True)),
                (sum(column) for column in zip(*(bins.hits for bins in several), strict=True)),
                map(math.fsum, zip(*(bins.confidence for bins in several), strict=True)),
                strict=True,
            )
            if count
        )


def _stated(rows: HeldOutRows) -> Tensor:
    """The probability of each row's predicted class, which other blocks' may exceed, (N,)."""
    assert rows.said.predicted is not None
    log_probs = rows.said.predictive.log_probs.double().gather(1, rows.said.predicted[:, None])
    return once_per_row(torch.exp, log_probs[:, 0])
