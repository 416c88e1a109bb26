"""What must hold of every plan, as a table; a text of which it does not hold is no plan.

What is unwise, or wrong with files that a plan names, is found by `predbayes_study.kit.review`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from predbayes.errors import no_such
from predbayes.learning.named import AUTO
from predbayes_study.rules import Rule

if TYPE_CHECKING:
    from predbayes_study.plan.schema import Plan


def _both(plan: Plan) -> Iterator[str]:
    """Targets that are columns, too."""
    yield from (name for name in plan.outcomes if name in plan.columns)


def _no_file_names(plan: Plan) -> Iterator[str]:
    """Vectors of whose names no file can be called: others may have chosen them."""
    for name in plan.vectors:
        if not re.fullmatch(r"[^\W_][\w ()+.-]{0,63}", name) or name == "codes":
            yield name


def _unknown_learner(plan: Plan) -> Iterator[str]:
    limited = any(section.learners for section in plan.sections.values())
    known = (*(() if limited else ("any", AUTO)), *plan.learner_names)
    if plan.learner.name not in known:
        yield no_such(f"learner for a {plan.target.task}", plan.learner.name, known)


def _other_task(plan: Plan) -> Iterator[str]:
    for name, section in plan.sections.items():
        if section.tasks and plan.target.task not in section.tasks:
            yield f"a {plan.target.task} does not go together with [{name}]"


def _excluded(plan: Plan) -> Iterator[str]:
    """Sections, and keys that are not at their default, which another section excludes."""
    for name, section in plan.sections.items():
        stated = [key for key in section.excludes if _is_stated(plan, key)]
        if stated:
            yield f"with [{name}] leave {', '.join(stated)} out: they do not go together"


def _is_stated(plan: Plan, key: str) -> bool:
    part, _, name = key.partition(".")
    if not name:
        return part in plan.sections or getattr(plan, part, None) is not None
    section = getattr(plan, part)
    return bool(getattr(section, name) != type(section).model_fields[name].default)


def _wrong_event(plan: Plan) -> bool:
    event = "" if plan.measures is None else plan.measures.event
    classes = plan.target.classes or ()
    return bool(event) and (len(classes) != 2 or event not in classes)


def _wrong_groups(plan: Plan) -> Iterator[str]:
    try:
        names = [grouping.column for grouping in plan.groupings]
    except ValueError as error:
        yield str(error)
        return
    if len(set(names)) < len(names):  # two would tell what each of them hides
        yield "a column can be grouped in one way only"


def _unscaled(plan: Plan) -> Iterator[str]:
    if plan.frozen is None:
        return
    bare = [
        name
        for name, column in plan.columns.items()
        if column.is_scaled and (column.centre is None or column.scale is None)
    ]
    if "scale" in plan.target.allowed and (plan.target.centre is None or plan.target.scale is None):
        bare.append(plan.target.name)
    if bare:
        yield ", ".join(bare)


RULES = (
    Rule["Plan"]("columns", "error", _both, "the target {found!r} is also one of the columns"),
    Rule["Plan"](
        "columns",
        "error",
        _no_file_names,
        "{found!r} cannot be the name of a vector, of which files are called: use letters, digits, "
        "spaces and ()+.-_, and not 'codes'",
    ),
    Rule["Plan"]("learner.name", "error", _unknown_learner),
    Rule["Plan"]("target.task", "error", _other_task),
    Rule["Plan"]("plan", "error", _excluded),
    Rule["Plan"](
        "measures.thresholds",
        "error",
        lambda plan: bool(plan.thresholds) and not plan.target.classes,
        "are risks, which only a classification has",
    ),
    Rule["Plan"](
        "measures.event", "error", _wrong_event, "must be one of the two classes of the target"
    ),
    Rule["Plan"]("measures.groups", "error", _wrong_groups),
    Rule["Plan"](
        "frozen.network",
        "error",
        lambda plan: (
            plan.frozen is not None and bool(plan.model.module) != (plan.frozen.network is not None)
        ),
        "is not that of model.module",
    ),
    Rule["Plan"]("frozen", "error", _unscaled, "{found} have no centre and scale"),
    Rule["Plan"](
        "upload.encrypt",
        "error",
        lambda plan: bool(plan.frozen and plan.upload.encrypt) and plan.coordinator is None,
        "needs the coordinator's key: plan freeze --key",
    ),
)
