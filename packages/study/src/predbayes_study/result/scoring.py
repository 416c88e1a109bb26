"""How good a predictor is on the scored rows, with intervals, in the target's unit.

A measure (`predbayes.predictive.measures`) is a mean over rows, or the root of one, so its interval
is that of a mean (`Measure.interval`); a share of rows has Wilson's, which also holds where all or
none hit. What they cover is in docs/intervals.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from predbayes.predictive import measures
from predbayes.predictive.families import Predictive
from predbayes.predictive.measures import Measure
from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import ClassRisk, Scores
from predbayes_study.tasks import task_of

_NOTHING = "No miscalibration was found"
_IN_PART = "Calibration could be checked in part only,"


def measures_of(plan: Plan) -> list[Measure]:
    """Return the measures of the plan's task."""
    task = task_of(plan)
    return measures.row_measures(task.family, task.unit(plan))


def row_values(plan: Plan, predictive: Predictive, targets: Tensor) -> dict[str, Tensor]:
    """Return the values by row, (N,), of each measure of the plan's task, by name."""
    return measures.row_values(predictive, targets, task_of(plan).unit(plan))


def score(
    plan: Plan, predictive: Predictive, targets: Tensor, *, whole: bool = True
) -> Scores | None:
    """Return the measures of the plan's task; None where there is no row to score.

    Without the ``whole`` only means over rows: an AUROC takes nine tenths of the time.
    """
    if not len(targets):
        return None
    task = task_of(plan)
    values = row_values(plan, predictive, targets)
    estimates = {name: task.measure(name).estimate(rows) for name, rows in values.items()}
    if whole:
        unit = task.unit(plan)
        estimates |= measures.whole_values(predictive, targets, unit, compared=True)
    return Scores(num_rows=len(targets), metrics=estimates)


def verdict(
    plan: Plan,
    num_scored: int,
    shown: Any,
    cautions: Sequence[str] = (),
    risks: Sequence[ClassRisk] = (),
) -> tuple[bool, str]:
    """Say whether calibration can be judged, and what may be said about it.

    With cautions nothing is called sound that was not checked.
    """
    if not num_scored:
        return False, "Calibration cannot be judged: no row with a label was scored."
    least = plan.rules.min_labels_to_judge
    if shown is None or num_scored < least:
        return False, (
            f"Calibration cannot be judged: {num_scored:,} scored rows are fewer than the "
            f"{least:,} that the plan asks for."
        )
    nothing = _IN_PART if cautions else _NOTHING
    return task_of(plan).verdict(plan, shown, num_scored, nothing, risks)
