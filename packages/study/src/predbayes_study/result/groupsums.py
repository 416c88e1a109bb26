"""Groups of rows at the sites: sums and counts of those groups that may be told of.

Which these are is decided for the whole table (`predbayes_study.result.groups`), of at least
`FEWEST_ROWS_OF_GROUPS` rows. For an event a group has its rows, its events and the sum of its
risks; otherwise its rows and the sums of its NLL. All sums have three digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from predbayes.errors import UploadError
from predbayes.predictive.estimate import share
from predbayes.predictive.families import Categorical, Predictive
from predbayes.predictive.measures import MEASURES
from predbayes.predictive.metrics import nll_rows
from predbayes.predictive.risk import Risks as RowRisks
from predbayes.predictive.risk import observed_expected
from predbayes_study.payloads.details import GroupSums, RiskSums, Sums
from predbayes_study.plan.grouping import ELSEWHERE
from predbayes_study.plan.schema import Plan
from predbayes_study.result.apart import Cells
from predbayes_study.result.groups import least_rows, told_groups
from predbayes_study.result.schema import GroupScores
from predbayes_study.result.sums import (
    ROUNDING,
    estimate_of_sums,
    is_possible,
    is_rounded,
    rounded,
    sums_of,
)

FEWEST_ROWS_OF_GROUPS = 100

_NLL = MEASURES["nll"]


def group_sums(
    plan: Plan, inputs: Tensor, predictive: Predictive, targets: Tensor
) -> tuple[GroupSums, ...] | None:
    """Sum up what a site may tell of the plan's groups; None where that is nothing."""
    if len(targets) < FEWEST_ROWS_OF_GROUPS:
        return None
    found = [
        _sums(plan, grouping.column, name, predictive[rows], targets[rows])
        for grouping, members in told_groups(plan, inputs, targets)
        for name, rows in zip((*grouping.names, ELSEWHERE), members, strict=True)
        if rows is not None
    ]
    return tuple(found) or None


def group_cells(plan: Plan, inputs: Tensor, targets: Tensor) -> list[Cells]:
    """Return the rows that a table of groups tells of, with an event by class; one per grouping."""
    found = []
    for _, members in told_groups(plan, inputs, targets):
        place = torch.zeros(len(targets), dtype=torch.int64)  # in no group that is told of
        for number, rows in enumerate(members, 1):
            if rows is not None:
                place[rows] = number
        by_class = len(plan.event_indices) == 1
        found.append(Cells(2 * place + targets.long() if by_class else place, of_groups=True))
    return found


def _sums(plan: Plan, column: str, name: str, predictive: Predictive, targets: Tensor) -> GroupSums:
    if len(plan.event_indices) != 1:
        nll = sums_of(_NLL, nll_rows(predictive, targets))
        return GroupSums(column=column, name=name, rows=len(targets), nll=nll)
    assert isinstance(predictive, Categorical)
    risks = RowRisks.of(predictive, targets, plan.event_indices[0])
    return GroupSums(
        column=column,
        name=name,
        rows=len(targets),
        events=risks.num_events,
        expected=rounded(float(risks.risk.sum())),
    )


def check_groups(
    plan: Plan, groups: Sequence[GroupSums], risks: Sequence[RiskSums] | None, num_rows: int
) -> None:
    """Refuse groups that no honest site can have found, or may have sent."""
    known = {(g.column, name) for g in plan.groupings for name in (*g.names, ELSEWHERE)}
    named = [(one.column, one.name) for one in groups]
    if not set(named) <= known or len(set(named)) < len(named):
        raise UploadError("its groups are not those of the plan")
    if num_rows < FEWEST_ROWS_OF_GROUPS or any(one.rows < least_rows(plan) for one in groups):
        raise UploadError("a group has too few rows")
    events = sum(risks[0].events) if risks else 0
    for one in groups:
        if not (_is_of_event(plan, one) if len(plan.event_indices) == 1 else _is_of_nll(plan, one)):
            raise UploadError(f"its sums of {one.column} {one.name} cannot be those of its rows")
    for grouping in plan.groupings:
        told = [one for one in groups if one.column == grouping.column]
        if sum(one.rows for one in told) > num_rows or (
            risks and sum(one.events or 0 for one in told) > events
        ):
            raise UploadError(f"its groups of {grouping.column} do not add up")


def _is_of_event(plan: Plan, one: GroupSums) -> bool:
    if one.events is None or one.expected is None or one.nll is not None:
        return False
    enough = min(one.events, one.rows - one.events) >= plan.rules.min_cell
    inside = one.expected <= one.rows * (1 + ROUNDING)
    return enough and inside and rounded(one.expected) == one.expected


def _is_of_nll(plan: Plan, one: GroupSums) -> bool:
    if one.events is not None or one.expected is not None or one.nll is None:
        return False
    sums = one.nll
    return is_possible(plan, _NLL, sums, one.rows) and is_rounded(_NLL, sums, one.rows)


def pooled_groups(plan: Plan, several: Sequence[Sequence[GroupSums]]) -> tuple[GroupScores, ...]:
    """Tell what sites say of groups together, each of the sites that told of it."""
    found = []
    for grouping in plan.groupings:
        for name in (*grouping.names, ELSEWHERE):
            here = [
                one
                for groups in several
                for one in groups
                if (one.column, one.name) == (grouping.column, name)
            ]
            if here:
                found.append(_scores(plan, grouping.column, name, here))
    return tuple(found)


def _scores(plan: Plan, column: str, name: str, here: Sequence[GroupSums]) -> GroupScores:
    num_rows = sum(one.rows for one in here)
    nll = [one.nll for one in here if one.nll is not None]
    if nll:
        added = Sums(
            total=sum(sums.total for sums in nll), squares=sum(sums.squares or 0.0 for sums in nll)
        )
        nll_of = _NLL.of(classes=plan.classification)
        metrics = {"nll": estimate_of_sums(nll_of, added, num_rows)}
        return GroupScores(column=column, name=name, num_rows=num_rows, metrics=metrics)
    events = sum(one.events or 0 for one in here)
    expected = sum(one.expected or 0.0 for one in here)
    ratio = observed_expected(events, expected, num_rows, ROUNDING)
    return GroupScores(
        column=column,
        name=name,
        num_rows=num_rows,
        prevalence=share(events, num_rows),
        metrics={"observed_expected": ratio},
    )
