"""Groups of rows: sums and counts of those of the plan's groups that may be told of.

Which these are is decided for the whole table (`predbayes_study.result.groups`). For an event a
group has its rows, its events and the sum of its risks; otherwise its rows and the sums of its NLL.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from predbayes.errors import UploadError
from predbayes.predictive.estimate import share
from predbayes.predictive.measures import MEASURES
from predbayes.predictive.risk import observed_expected
from predbayes_study.payloads.details import Evaluation, GroupSums
from predbayes_study.plan.grouping import ELSEWHERE
from predbayes_study.plan.schema import Plan
from predbayes_study.result.groups import least_rows, told_groups
from predbayes_study.result.schema import GroupScores
from predbayes_study.result.statistics.disclosure import FEWEST_COUNTED, ROUNDING, Cells, rounded
from predbayes_study.result.statistics.means import estimate_of, is_possible, is_rounded, sums_of
from predbayes_study.result.statistics.statistic import HeldOutRows

_NLL = MEASURES["nll"]

Grouped = tuple[GroupSums, ...]


class GroupCounts:
    """Sums over groups of rows."""

    name = "groups"
    by_site = True

    def make(self, rows: HeldOutRows, beside: Evaluation, told: Sequence[Cells]) -> Grouped | None:
        """Sum up each group that may be told of; None where that is none."""
        plan = rows.plan
        too_few_events = len(plan.event_indices) == 1 and beside.risks is None
        if rows.inputs is None or too_few_events or len(rows.targets) < FEWEST_COUNTED:
            return None
        found = [
            _sums(rows, grouping.column, name, members)
            for grouping, groups in told_groups(plan, rows.groups, rows.targets)
            for name, members in zip((*grouping.names, ELSEWHERE), groups, strict=True)
            if members is not None
        ]
        return tuple(found) or None

    def cells(self, rows: HeldOutRows, sent: Grouped) -> list[Cells]:
        """Return the rows of groups, with an event by class; one table for each grouping."""
        found = []
        for _, groups in told_groups(rows.plan, rows.groups, rows.targets):
            place = torch.zeros(len(rows.targets), dtype=torch.int64)  # in none that is told of
            for number, members in enumerate(groups, 1):
                if members is not None:
                    place[members] = number
            if len(rows.plan.event_indices) == 1:
                place = 2 * place + rows.targets.long()
            found.append(Cells(place, may_equal=False))
        return found

    def check(self, plan: Plan, sent: Grouped, beside: Evaluation, num_rows: int) -> None:
        """Refuse unknown or small groups, and sums that no rows have."""
        known = {(g.column, name) for g in plan.groupings for name in (*g.names, ELSEWHERE)}
        named = [(one.column, one.name) for one in sent]
        if not set(named) <= known or len(set(named)) < len(named):
            raise UploadError("its groups are not those of the plan")
        if num_rows < FEWEST_COUNTED or any(one.rows < least_rows(plan) for one in sent):
            raise UploadError("a group has too few rows")
        is_possible_group = _is_of_event if len(plan.event_indices) == 1 else _is_of_nll
        for one in sent:
            if not is_possible_group(plan, one):
                raise UploadError(
                    f"its sums of {one.column} {one.name} cannot be those of its rows"
                )
        events = sum(beside.risks[0].events) if beside.risks else 0
        for grouping in plan.groupings:
            of_column = [one for one in sent if one.column == grouping.column]
            if sum(one.rows for one in of_column) > num_rows or (
                beside.risks and sum(one.events or 0 for one in of_column) > events
            ):
                raise UploadError(f"its groups of {grouping.column} do not add up")

    def pool(
        self, plan: Plan, several: Sequence[Grouped], num_rows: int
    ) -> tuple[GroupScores, ...]:
        """Return the scores of each group, over the sites that told of it."""
        found = []
        for grouping in plan.groupings:
            for name in (*grouping.names, ELSEWHERE):
                key = grouping.column, name
                here = [g for groups in several for g in groups if (g.column, g.name) == key]
                if here:
                    found.append(_scores(plan, *key, here))
        return tuple(found)


def _sums(rows: HeldOutRows, column: str, name: str, members: torch.Tensor) -> GroupSums:
    num_rows = len(members)
    if len(rows.plan.event_indices) != 1:
        nll = sums_of(_NLL, rows.values["nll"][members])
        return GroupSums(column=column, name=name, rows=num_rows, nll=nll)
    risks = rows.risks(rows.plan.event_indices[0])
    return GroupSums(
        column=column,
        name=name,
        rows=num_rows,
        events=int(risks.event[members].sum()),
        expected=rounded(float(risks.risk[members].sum())),
    )


def _is_of_event(plan: Plan, one: GroupSums) -> bool:
    if one.events is None or one.expected is None or one.nll is not None:
        return False
    enough = min(one.events, one.rows - one.events) >= plan.rules.min_cell
    inside = one.expected <= one.rows * (1 + ROUNDING)
    return enough and inside and rounded(one.expected) == one.expected


def _is_of_nll(plan: Plan, one: GroupSums) -> bool:
    if one.events is not None or one.expected is not None or one.nll is None:
        return False
    return is_possible(plan, _NLL, one.nll, one.rows) and is_rounded(_NLL, one.nll, one.rows)


def _scores(plan: Plan, column: str, name: str, here: Sequence[GroupSums]) -> GroupScores:
    num_rows = sum(one.rows for one in here)
    nll = [one.nll for one in here if one.nll is not None]
    if nll:
        metrics = {"nll": estimate_of(nll, plan, "nll", num_rows)}
        return GroupScores(column=column, name=name, num_rows=num_rows, metrics=metrics)
    events = sum(one.events or 0 for one in here)
    expected = sum(one.expected or 0.0 for one in here)
    return GroupScores(
        column=column,
        name=name,
        num_rows=num_rows,
        prevalence=share(events, num_rows),
        metrics={"observed_expected": observed_expected(events, expected, num_rows, ROUNDING)},
    )
