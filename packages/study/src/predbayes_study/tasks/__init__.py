"""What a study does differently for classes, numbers and times to an event: one file for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from predbayes.predictive.families import Predictive
from predbayes_study.plan.schema import Plan
from predbayes_study.tasks.classes import Classes, Intercept
from predbayes_study.tasks.numbers import Numbers, ShiftScale
from predbayes_study.tasks.task import Task
from predbayes_study.tasks.times import HazardShift, Times

TASKS: Mapping[str, Task[Any]] = {
    "classification": Classes(),
    "regression": Numbers(),
    "survival": Times(),
}
"""By the name that a plan has for it."""

_BY_FAMILY = {task.family: task for task in TASKS.values()}

AnyAdjustment = Annotated[Intercept | ShiftScale | HazardShift, Field(discriminator="kind")]
"""What a site that adopted a model changed."""


def task_of(plan: Plan) -> Task[Any]:
    """Return the task of a plan."""
    return TASKS[plan.target.task]


def task_for(predictive: Predictive) -> Task[Any]:
    """Return the task whose predictions are of this family."""
    return _BY_FAMILY[type(predictive)]
