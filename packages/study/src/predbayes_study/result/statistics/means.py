"""Means over rows: for each measure the sum of its values and of their squares.

Every measure of a study is a mean over rows, or the root of one. So the sums of several sites add
up to those of all their rows, and carry intervals,

    mean = S1 / n,   mean +- t sqrt((S2 / n - mean^2) / (n - 1)),

and for shares Wilson's, which needs no squares. A new measure needs nothing here: it is an entry of
`predbayes.predictive.measures`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from predbayes.errors import UploadError
from predbayes.predictive.estimate import Estimate, share
from predbayes.predictive.measures import MEASURES, Measure
from predbayes_study.payloads.details import Evaluation, Sums
from predbayes_study.plan.schema import Plan
from predbayes_study.result.scoring import measures_of
from predbayes_study.result.statistics.disclosure import DIGITS, SLACK, Cells, rounded
from predbayes_study.result.statistics.statistic import HeldOutRows
from predbayes_study.tasks import task_of

_EXACT = 1e-9  # relative error of a computer's arithmetic

Means = Mapping[str, Sums]


class MeansOfRows:
    """Sums over rows of each measure."""

    name = "metrics"
    by_site = True

    def make(self, rows: HeldOutRows, beside: Evaluation, told: Sequence[Cells]) -> Means:
        """Sum up each measure."""
        return {name: sums_of(MEASURES[name], of) for name, of in sorted(rows.values.items())}

    def cells(self, rows: HeldOutRows, sent: Means) -> list[Cells]:
        """Return the rows that each share counts."""
        equal = task_of(rows.plan).by_class
        shares = [of for name, of in rows.values.items() if MEASURES[name].is_share]
        return [Cells(of.long(), may_equal=equal) for of in shares]

    def check(self, plan: Plan, sent: Means, beside: Evaluation, num_rows: int) -> None:
        """Refuse other measures than the task's, and impossible or too precise sums."""
        measures = {measure.name: measure for measure in measures_of(plan)}
        required = {name for name, m in measures.items() if m.is_told is None}
        if not required <= sent.keys() <= measures.keys():
            raise UploadError(f"its metrics are not {', '.join(sorted(measures))}")
        for name, sums in sent.items():
            if not is_possible(plan, measures[name], sums, num_rows):
                raise UploadError(f"its sums of {name} cannot be those of {num_rows:,} rows")
            if not is_rounded(measures[name], sums, num_rows):
                raise UploadError(
                    f"its sums of {name} have more than {DIGITS} digits, which may tell of single "
                    "rows; make it again with this version's `predbayes site evaluate`"
                )

    def pool(self, plan: Plan, several: Sequence[Means], num_rows: int) -> dict[str, Estimate]:
        """Estimate each measure that all sites have: rows of a site may not support one."""
        return {
            name: estimate_of([means[name] for means in several], plan, name, num_rows)
            for name in several[0]
            if all(name in means for means in several)
        }


def sums_of(measure: Measure, rows: Tensor) -> Sums:
    """Sum up the values of rows, (N,), with as many digits as may leave a site."""
    if measure.is_share:
        return Sums(total=float(rows.sum()))
    values = rows.double().tolist()
    # Exact sums, because those of floats would depend on the order of rows.
    exact = math.fsum(values)
    total, mean = rounded(exact), exact / len(values)
    spread = math.fsum((value - mean) ** 2 for value in values)
    return Sums(total=total, squares=total * total / len(values) + rounded(spread))


def is_rounded(measure: Measure, sums: Sums, num_rows: int) -> bool:
    """Return whether sums have no more digits than may leave a site."""
    if measure.is_share or sums.squares is None:
        return True
    spread = sums.squares - sums.total * sums.total / num_rows
    near = _EXACT * sums.squares  # which is all that is left of a spread of nothing
    return rounded(sums.total) == sums.total and abs(rounded(spread) - spread) <= near


def is_possible(plan: Plan, measure: Measure, sums: Sums, num_rows: int) -> bool:
    """Return whether some rows have such sums."""
    total, squares = sums.total, sums.squares
    if measure.is_share:
        return total == int(total) and 0 <= total <= num_rows and squares in (None, total)
    if squares is None:
        return False
    least, most = task_of(plan).measure(measure.name).bounds
    if not least <= total / num_rows <= most * (1 + SLACK):
        return False
    # Of values that are not negative none is above their sum; no sum over sites is infinite.
    largest = total if least >= 0 else num_rows * most
    if squares > (largest * (1 + SLACK)) ** 2:
        return False
    return squares * num_rows >= total * total * (1 - _EXACT)  # Cauchy and Schwarz


def estimate_of(several: Sequence[Sums], plan: Plan, name: str, num_rows: int) -> Estimate:
    """Return a measure and its interval from sums over the rows of several sites."""
    measure = task_of(plan).measure(name)
    total = math.fsum(sums.total for sums in several)
    if measure.is_share:
        return share(total, num_rows)
    mean = total / num_rows
    squares = math.fsum(sums.squares or 0.0 for sums in several)
    var = max(0.0, squares / num_rows - mean * mean)
    low, high = measure.interval(mean, math.sqrt(var / (num_rows - 1)), num_rows)
    return Estimate(float(measure.after(torch.tensor(mean, dtype=torch.float64))), low, high)
