"""The head of sums of moments: what sites that count add up to, and the model of it.

Sites send sums of moments of agreed features (`predbayes.learning.moments`) alone, or beside
predictions. They add up to the sums over all rows, whose head is one model of them. Alone it is the
model of the study (`study.result.summed`); beside predictions it is one more candidate of the pool
`auto`:

    predicted   sums of what sites predict, which are pooled
    moments     sums of moments of the sites that nothing was found against; no label has a part in
                their head, so that labelled rows say honestly how much of it to take

A site may send predictions alone, where its rows are too few for sums or its policy forbids them.

What a site's sums do is what becomes of the head without them. Where labels say that it is better
by more than chance, with a correction for the number of sites, they do harm. What else speaks
against sums is in `study.result.headscreen`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

from torch import Tensor

from predbayes.errors import UploadError
from predbayes.exchange.header import SUMS
from predbayes.exchange.upload import Upload
from predbayes.learning.moments import Moments, MomentsHead
from predbayes.predictive.families import Predictive
from predbayes.predictive.metrics import nll_rows
from predbayes.predictive.pooling import PredictiveSum
from predbayes.study.plan.models import summed_classes, summed_features
from predbayes.study.plan.schema import Plan
from predbayes.study.result.schema import Estimate
from predbayes.study.result.scoring import mean_estimate

Labelled = tuple[Tensor, Tensor]
"""Inputs with their targets."""

_HARM = 0.025  # probability that some harmless site of all is called harmful


def summed(plan: Plan, upload: Upload) -> Moments:
    """Return the sums of an upload; refuse what is not of the rows that it says."""
    found = Moments.from_arrays(summed_features(plan), summed_classes(plan), upload.arrays)
    told = upload.info.class_rows
    if found.num_rows != upload.info.num_rows:
        raise UploadError(
            f"its sums are over {found.num_rows:,} rows, and it states {upload.info.num_rows:,}"
        )
    # Beside predictions small counts of classes are not told.
    if found.class_rows != told and (plan.sums_alone or told is not None):
        raise UploadError("its sums are over other rows of each class than it states")
    asked = 0 if plan.moments is None else plan.moments.rows_per_feature * plan.num_summed
    if found.num_rows < asked:
        raise UploadError(
            f"its sums are over {found.num_rows:,} rows; moments.rows_per_feature of the plan asks "
            f"for {asked:,}, because fewer tell who is in them"
        )
    return found


def summed_beside(plan: Plan, upload: Upload, most_rows: float) -> Moments | None:
    """Return the sums beside an upload's predictions, if there are any.

    They count for no more than some rows, as predictions do: those of n rows times most / n, to the
    nearest whole number.
    """
    if SUMS not in upload.arrays:
        return None
    found = summed(plan, upload)
    if found.num_rows <= most_rows:
        return found
    share = most_rows / found.num_rows
    return Moments(found.features, found.num_classes, (found.sums.double() * share).round().long())


def fitted(total: Moments) -> MomentsHead:
    """Return the model of some sums; refuse one that has no finite weights."""
    try:
        head = total.head()
    except RuntimeError as error:  # of which torch makes those of linear algebra
        raise UploadError("no model can be fitted to its sums") from error
    found = (head.weights, head.spread, head.centre)
    if not all(bool(array.isfinite().all()) for array in found):
        raise UploadError("the model of its sums is not finite")
    return head


def without(total: Moments, part: Moments) -> Moments:
    """Return the sums over all rows but those of a part; they are exact."""
    return Moments(total.features, total.num_classes, total.sums - part.sums)


def influence(total: Moments, part: Moments, losses: Tensor, rows: Labelled) -> Estimate | None:
    """What the head loses without some sums, in NLL; None if there are no others.

    Args:
        total: All sums.
        part: Some of them.
        losses: NLL of the head of all, row by row.
        rows: Inputs and targets that it is judged by.
    """
    if part.num_rows == total.num_rows:
        return None
    others = fitted(without(total, part)).predict(rows[0])
    return mean_estimate(nll_rows(others, rows[1]) - losses)


def is_harm(found: Estimate, num_sites: int) -> bool:
    """Say whether it is below 0 by more than chance would give one of so many sites."""
    clearly = -NormalDist().inv_cdf(_HARM / num_sites)
    error = (found.high - found.low) / (2 * 1.96)
    return found.value < -clearly * error


@dataclass(slots=True)
class SumOfMoments:
    """What some sites' sums of moments add up to; nothing if none sent any."""

    total: Moments | None = None
    num_sites: int = 0

    def add_(self, part: Moments | None) -> None:
        """Add the sums of one site, if it sent any."""
        if part is None:
            return
        self.total = part if self.total is None else self.total.add_(part)
        self.num_sites += 1

    def without(self, part: Moments | None) -> SumOfMoments:
        """Return what is left without the sums of one site that is in it."""
        if part is None or self.total is None:
            return self
        if self.num_sites == 1:
            return SumOfMoments()
        return SumOfMoments(without(self.total, part), self.num_sites - 1)

    @property
    def num_rows(self) -> int:
        """The rows that were summed."""
        return 0 if self.total is None else self.total.num_rows

    def predict(self, inputs: Tensor) -> Predictive | None:
        """Return what the head predicts, if there are sums."""
        return None if self.total is None else fitted(self.total).predict(inputs)


@dataclass(frozen=True, slots=True)
class Total:
    """What the sites that count add up to."""

    predicted: PredictiveSum[Any]
    beside: SumOfMoments = field(default_factory=SumOfMoments)

    def __getitem__(self, rows: Tensor | slice) -> Total:
        """Return the same on some of the reference rows."""
        return replace(self, predicted=self.predicted[rows])
