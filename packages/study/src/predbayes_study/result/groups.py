r"""The model by groups of rows, such as women and men: without small cells, also by subtraction.

Groups of one column add up to all rows, whose number, and of two classes whose number of events,
are known. So a group that is left out because it is small would follow from the others. What may be
told of a table of groups and classes is decided as a whole:

    small      a group that has rows, but fewer than `least`, or fewer than `min_cell` of a class
    hidden     the small ones and, as long as those are one alone, have fewer rows than `least`
               together, or fewer than `min_cell` of a class together, the smallest of the others

Then each hidden count lies anywhere between 0 and a sum of at least `min_cell`, whatever is told of
other groups (`tests/study/attacks/test_hidden_groups.py` asks a solver). Two groupings of one
column
would tell more, and a plan must not have them.

Differences between groups are looked for where they mean something for a person: whether events
come as often as stated, and whether they are told apart as well as elsewhere (AUROC); without an
event, whether the NLL is that of the other rows. The NLL of times to an event grows with how long
rows were seen; of those it is whether events come as often as hazards say of the time that rows
were seen. So many looks find something by chance alone; what is said allows for that (Holm,
1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Predictive
from predbayes.predictive.metrics import nll_rows
from predbayes.predictive.risk import Risks as RowRisks
from predbayes.predictive.risk import auroc_error
from predbayes_study.plan.grouping import ELSEWHERE, Grouping
from predbayes_study.plan.schema import Number, Plan
from predbayes_study.result.schema import GroupScores
from predbayes_study.result.scoring import score
from predbayes_study.tasks import task_of

FEWEST_ROWS_OF_GROUP = 30
ALPHA = 0.05
"""Rate at which some difference is named though there is none, over all looks."""

_NEAR = 1e-6  # of a scale, by which float32 may miss the begin of a range
_OF_EVENT = ("auroc", "slope", "observed_expected")
"""Of a group, where there is an event: losses differ with how common it is."""


@dataclass(frozen=True, slots=True)
class Look:
    """One comparison of a group: what differs if it does, and how improbable that is by chance."""

    what: str
    p_value: float


def least_rows(plan: Plan) -> int:
    """Return the number of rows below which a group is not told of."""
    return max(FEWEST_ROWS_OF_GROUP, plan.rules.min_cell)


def membership(plan: Plan, grouping: Grouping, inputs: Tensor) -> Tensor:
    """Return the group of each row, (N,), by the network's inputs; the last is none of these."""
    column, start = plan.columns[grouping.column], plan.blocks[grouping.column].start
    num = len(grouping.names)
    if not isinstance(column, Number):
        words = inputs[:, start : start + num]
        return torch.where(words.amax(1) > 0.5, words.argmax(1), num)
    assert column.centre is not None
    assert column.scale is not None
    values = inputs[:, start].double() * column.scale + column.centre
    near = _NEAR * column.scale
    starts = torch.tensor(grouping.starts, dtype=torch.float64)
    place = torch.bucketize(values + near, starts, right=True) - 1
    outside = place < 0
    if grouping.end is not None:
        outside |= values > grouping.end + near
    if column.missing == "flag":
        outside |= inputs[:, start + 1] > 0.5
    return torch.where(outside, num, place)


def shown(counts: Tensor, min_cell: int, least: int) -> list[bool]:
    """Say which groups may be told of, from rows by group and class, (G, C); see the module."""
    rows = counts.sum(1)
    there = rows > 0
    hidden = there & ((rows < least) | (counts < min_cell).any(1))

    def is_safe() -> bool:
        together = counts[hidden].sum(0)
        enough = bool((together >= min_cell).all()) and int(together.sum()) >= least
        return not bool(hidden.any()) or (int(hidden.sum()) > 1 and enough)

    while not is_safe():
        left = torch.where(there & ~hidden, rows, torch.iinfo(torch.long).max)
        if not bool((there & ~hidden).any()):
            break
        hidden[int(left.argmin())] = True
    return (there & ~hidden).tolist()


def class_counts(plan: Plan, group: Tensor, targets: Tensor, num_groups: int) -> Tensor:
    """Return rows by group and by whether the event came, (G, C): what is told is no finer."""
    events = task_of(plan).events(plan, targets)
    num_classes = 1 if events is None else 2
    place = group if events is None else 2 * group + events
    return torch.bincount(place, minlength=num_groups * num_classes).reshape(-1, num_classes)


@dataclass(frozen=True, slots=True)
class Counted:
    """In which group each row counts."""

    groups: tuple[Tensor, ...]  # by grouping, (N,); one more than the groups: in none
    apart: Tensor  # (N,) rows that all groupings count alike have one number


def counted_groups(plan: Plan, inputs: Tensor | None, num_rows: int, least: int) -> Counted:
    """Decide in which groups rows count, so that all groupings part them into large cells alone.

    Two groupings can be subtracted from each other, and so can a group and the rows of which a
    model says the same. Each grouping parts the cells of those before it. Rows of a cell that are
    in a group with fewer than `least` of its rows count in no group of this grouping; if these are
    fewer than `least` together, neither do the rows of the smallest other group.

    Args:
        plan: The study's plan.
        inputs: Of the rows; without them there are no groups.
        num_rows: Their number.
        least: Rows that a cell has.
    """
    apart = torch.zeros(num_rows, dtype=torch.int64)
    if inputs is None:
        return Counted((), apart)
    found = []
    for grouping in plan.groupings:
        group, num = membership(plan, grouping, inputs), len(grouping.names) + 1
        for cell in range(int(apart.max()) + 1):
            rows = (apart == cell).nonzero()[:, 0]
            sizes = torch.bincount(group[rows], minlength=num)
            small = (sizes > 0) & (sizes < least)
            while 0 < int(sizes[small].sum()) < least and bool(((sizes > 0) & ~small).any()):
                left = torch.where((sizes > 0) & ~small, sizes, len(rows) + 1)
                small[int(left.argmin())] = True
            group[rows[small[group[rows]]]] = num
        found.append(group)
        apart = torch.unique((num + 1) * apart + group, return_inverse=True)[1]
    return Counted(tuple(found), apart)


def told_groups(
    plan: Plan, counted: Counted, targets: Tensor
) -> Iterator[tuple[Grouping, list[Tensor | None]]]:
    """Yield each grouping of the plan, and the rows of each group; None where it is hidden."""
    for grouping, group in zip(plan.groupings, counted.groups, strict=True):
        num = len(grouping.names) + 1
        counts = class_counts(plan, group, targets, num + 1)
        may = shown(counts, plan.rules.min_cell, least_rows(plan))
        yield grouping, [(group == k).nonzero()[:, 0] if may[k] else None for k in range(num)]


def group_scores(
    plan: Plan, inputs: Tensor, predictive: Predictive, targets: Tensor
) -> tuple[tuple[GroupScores, ...], str]:
    """Tell how the model does in each of the plan's groups, and which differences are real."""
    found: list[GroupScores] = []
    looks: list[Look] = []
    counted = counted_groups(plan, inputs, len(targets), 1)  # of reference rows all may be told
    for grouping, members in told_groups(plan, counted, targets) if len(targets) else ():
        for name, rows in zip((*grouping.names, ELSEWHERE), members, strict=True):
            if rows is None:
                if name != ELSEWHERE:
                    found.append(GroupScores(column=grouping.column, name=name))
                continue
            found.append(_scores(plan, grouping.column, name, predictive[rows], targets[rows]))
            looks += _looks(plan, f"{grouping.column} {name}", predictive, targets, rows)
    return tuple(found), words_of(looks, len(found))


def _scores(
    plan: Plan, column: str, name: str, predictive: Predictive, targets: Tensor
) -> GroupScores:
    num_rows, task = len(targets), task_of(plan)
    rows = task.event_risks(plan, predictive, targets)
    if rows is None:
        scores = score(plan, predictive, targets)
        assert scores is not None  # a group that is told of has rows
        metrics = {of: scores.metrics[of] for of in task.of_groups if of in scores.metrics}
        return GroupScores(column=column, name=name, num_rows=num_rows, metrics=metrics)
    found = {of: getattr(rows, of)() for of in _OF_EVENT}
    return GroupScores(
        column=column,
        name=name,
        num_rows=num_rows,
        prevalence=rows.prevalence(),
        metrics={of: figure for of, figure in found.items() if figure is not None},
    )


def _looks(
    plan: Plan, name: str, predictive: Predictive, targets: Tensor, rows: Tensor
) -> Iterator[Look]:
    others = torch.ones(len(targets), dtype=torch.bool)
    others[rows] = False
    task = task_of(plan)
    every = task.event_risks(plan, predictive, targets)
    expected = task.expected_events(predictive[rows], targets[rows])
    if every is not None:
        here = RowRisks(every.log_odds[rows], every.event[rows])
        var = float((here.risk * (1 - here.risk)).sum())
        yield calibration_look(name, here.num_events, float(here.risk.sum()), var)
        there = RowRisks(every.log_odds[others], every.event[others])
        if here.is_mixed and there.is_mixed:
            yield _area_look(name, here, there)
    elif expected is not None:
        yield calibration_look(name, int((targets[rows] > 0).sum()), expected, expected)
    elif int(others.sum()) > 1:
        losses = nll_rows(predictive, targets)
        found = scipy.stats.ttest_ind(losses[rows], losses[others], equal_var=False)
        worse = "higher" if float(losses[rows].mean() - losses[others].mean()) > 0 else "lower"
        yield Look(f"in {name} the NLL is {worse} than elsewhere", float(found.pvalue))


def calibration_look(name: str, num_events: int, expected: float, var: float) -> Look:
    """Look whether a group has as many events as its risks say."""
    z = (num_events - expected) / math.sqrt(max(var, 1e-12))
    side = "low" if z > 0 else "high"
    ratio = num_events / max(expected, 1e-12)
    what = f"in {name} the risks are too {side} (observed over expected {ratio:.2f})"
    return Look(what, float(2 * scipy.stats.norm.sf(abs(z))))


def _area_look(name: str, here: RowRisks, there: RowRisks) -> Look:
    areas: list[Estimate] = [area for area in (here.auroc(), there.auroc()) if area is not None]
    sizes = [(r.num_events, r.num_rows - r.num_events) for r in (here, there)]
    errors = [auroc_error(area.value, *size) for area, size in zip(areas, sizes, strict=True)]
    z = (areas[0].value - areas[1].value) / max(math.hypot(*errors), 1e-12)
    side = "better" if z > 0 else "less well"
    values = f"AUROC {areas[0].value:.2f} against {areas[1].value:.2f}"
    what = f"in {name} events are told apart {side} than elsewhere ({values})"
    return Look(what, float(2 * scipy.stats.norm.sf(abs(z))))


def num_real(p_values: Sequence[float]) -> int:
    """Return how many of ascending p-values are below `ALPHA` by Holm's method."""
    for place, p_value in enumerate(p_values):
        if not p_value <= ALPHA / (len(p_values) - place):
            return place
    return len(p_values)


def words_of(looks: Sequence[Look], num_groups: int) -> str:
    """Say which differences are larger than chance, allowing for how many were looked at."""
    if not looks:
        return "" if not num_groups else "Every group is too small to say anything about it."
    in_order = sorted(looks, key=lambda one: one.p_value)
    found = [look.what for look in in_order[: num_real([look.p_value for look in in_order])]]
    many = f"{len(looks)} comparisons" if len(looks) > 1 else "one comparison"
    if not found:
        return (
            f"No difference is larger than chance would give in {many}. Where groups are small a "
            "real one may stay unseen."
        )
    return (
        f"Larger than chance would give in {many}: {'; '.join(found)}. Why is not known from these "
        "figures: groups also differ in other ways."
    )


def pooled_looks(groups: Sequence[GroupScores]) -> list[Look]:
    """Look at events against risks, from what sites sent of their groups."""
    looks = []
    for one in groups:
        ratio = one.metrics.get("observed_expected")
        if one.num_rows is None or ratio is None or one.prevalence is None or not ratio.value:
            continue
        events = one.prevalence.value * one.num_rows
        expected = events / ratio.value
        # At most: risks that vary have less.
        var = expected * max(1 - expected / one.num_rows, 0.0)
        looks.append(calibration_look(f"{one.column} {one.name}", round(events), expected, var))
    return looks
