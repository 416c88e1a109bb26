"""Is a method the best of its table? One line per cell, by a rule that is fixed beforehand.

In each cell the method meets every rival: a paired difference over the seeds that both have, with
its 95 % interval and p-value (`predbayes_lab.statistics`). Shown is the *best* rival, that
of the lowest mean. With the margin as a part of a rival's mean, the method is

    level      if the upper end of every interval is at most the margin, and the lower end of the
               best rival's at least minus the margin: whatever the differences, they are small
    better     if every interval lies below zero: than all rivals, not than the best one alone
    worse      if some interval lies above zero, with p corrected for the number of rivals
    undecided  otherwise, and with one seed, which has no interval

and *not worse* if the upper end of every interval is at most the margin.

That the lowest of many rivals is beaten does not show that all are: another one may be unsteady,
and as good. Whoever claims to be better than all needs each of the tests, so the p-value of that
claim is the largest (an intersection-union test), that of the *hardest* rival. Whoever is found
worse than some of many was compared often, so that claim's p-value is the smallest, times their
number. A table of many cells says *by itself* of what Holm's correction for all of them does not
leave significant. That an interval contains zero shows nothing: it also does where there are too
few seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from predbayes.errors import ExperimentError
from predbayes_lab.decode import require_known
from predbayes_lab.records import Record
from predbayes_lab.rendering import markdown_grid
from predbayes_lab.statistics import Interval, holm, p_of_interval
from predbayes_lab.tables import (
    OVERLAP,
    SIGNIFICANT,
    Entry,
    Table,
    build_table,
    overlap_of,
)

Outcome = Literal["level", "better", "worse", "undecided"]

_WORDS = ("better", "better by itself", "level", "worse", "worse by itself", "undecided")

_ONE_SEED = "One seed has no interval over seeds."

_NEAR_ZERO = 0.02  # a mean of which a part says nothing

MARGIN = 0.01
"""Of a rival's mean: a smaller difference is none."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A method's comparison with one rival in one cell."""

    rival: str
    mean: float  # the method's
    rival_mean: float
    interval: Interval  # 95 %, of the method minus the rival; nan for one seed
    p_value: float  # of that difference, two-sided
    num: int  # seeds that both have

    @property
    def relative(self) -> float:
        """The difference of the means in parts of the rival's."""
        return (self.mean - self.rival_mean) / abs(self.rival_mean)

    @property
    def relative_interval(self) -> Interval:
        """The interval in parts of the rival's mean."""
        low, high = self.interval
        return low / abs(self.rival_mean), high / abs(self.rival_mean)

    @property
    def doubt(self) -> float:
        """The one-sided p-value of being better; 1 where nothing can be shown."""
        if math.isnan(self.p_value):
            return 1.0
        return self.p_value / 2 if self.mean < self.rival_mean else 1 - self.p_value / 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What its meetings say of a method in one cell."""

    cell: str
    meetings: tuple[Meeting, ...]  # at least one
    margin: float = MARGIN  # relative to a rival's mean

    @property
    def best(self) -> Meeting:
        """That with the rival of the lowest mean."""
        return min(self.meetings, key=lambda one: one.rival_mean)

    @property
    def hardest(self) -> Meeting:
        """That in which it is least sure that the method is better."""
        return max(self.meetings, key=lambda one: (one.doubt, -one.rival_mean))

    @property
    def leads(self) -> bool:
        """Whether the method's mean is below that of every rival."""
        return all(one.mean < one.rival_mean for one in self.meetings)

    @property
    def p_value(self) -> float:
        """Of being better than every rival if the method leads; else of being worse than some."""
        if self.leads:
            return self.hardest.p_value
        return self._p_worse

    @property
    def _p_worse(self) -> float:
        behind = [one.p_value for one in self.meetings if one.mean >= one.rival_mean]
        tests = [p for p in behind if not math.isnan(p)]
        return min(1.0, len(self.meetings) * min(tests)) if tests else math.nan

    @property
    def outcome(self) -> Outcome:
        """What the intervals show."""
        if self.not_worse and self.best.relative_interval[0] >= -self.margin:
            return "level"
        if all(one.interval[1] < 0 for one in self.meetings):
            return "better"
        return "worse" if not self.leads and self._p_worse < SIGNIFICANT else "undecided"

    @property
    def not_worse(self) -> bool:
        """Whether the intervals leave room for no more than the margin."""
        return all(one.relative_interval[1] <= self.margin for one in self.meetings)


def verdicts(
    records: Sequence[Record],
    method: str,
    *,
    metric: str = "nll",
    rivals: Sequence[str] | None = None,
    margin: float = MARGIN,
    losses: Path | None = None,
) -> list[Verdict]:
    """Compare a method with its rivals, cell by cell.

    Args:
        records: Of one experiment.
        method: The label to judge.
        metric: One of which less is better.
        rivals: Labels to judge it against; all others if None.
        margin: What counts as no difference, relative to a rival's mean.
        losses: Folder of the test rows' losses, for intervals over rows instead of seeds.
    """
    known = {record.method for record in records}
    require_known("method", (method, *(rivals or ())), known)
    there = {repr((record.cell, record.seed)) for record in records if record.method == method}
    shared = [record for record in records if repr((record.cell, record.seed)) in there]
    # Differences in this table are rival minus method.
    table = build_table(shared, metric, against=method, losses=losses)
    if table.aim != -math.inf:
        raise ExperimentError(f"a verdict is on a metric of which less is better, not {metric}")
    wanted = known - {method} if rivals is None else set(rivals)
    return [
        Verdict(cell, _meetings(table, method, wanted, cell), margin)
        for cell in table.columns
        if (method, cell) in table.entries
    ]


def _meetings(table: Table, method: str, rivals: set[str], cell: str) -> tuple[Meeting, ...]:
    found = tuple(
        _meeting(name, entry)
        for name in table.rows
        if name in rivals and (entry := table.entries.get((name, cell)))
        if entry.comparison is not None and math.isfinite(entry.summary.mean)
    )
    if not found:
        raise ExperimentError(f"{cell}: {method} shares no seed with any rival")
    return found


def _meeting(rival: str, entry: Entry) -> Meeting:
    comparison = entry.comparison
    assert comparison is not None
    low, high = comparison.interval if entry.rows is None else entry.rows
    p = comparison.p_value if entry.rows is None else p_of_interval(entry.rows)
    mean = entry.summary.mean - comparison.difference  # over the seeds that both have
    return Meeting(rival, mean, entry.summary.mean, (-high, -low), p, comparison.num)


def to_markdown(judged: Sequence[Verdict], method: str, *, note: str = "") -> str:
    """Write a table with one line for each cell.

    Args:
        judged: The verdicts.
        method: On which method.
        note: A sentence to add, such as that of tables with overlapping test sets.
    """
    head = ["", method, "best rival", "its mean", "difference", "95 % interval"]
    head += ["hardest rival", "p", "Holm p", "verdict"]
    adjusted = holm([verdict.p_value for verdict in judged])
    body = markdown_grid(head, list(map(_line, judged, adjusted)))
    num = max(one.num for verdict in judged for one in verdict.meetings)
    return f"{body}\n\n{_legend(judged, method, num)}{' ' + note if note else ''}\n"


def _legend(judged: Sequence[Verdict], method: str, num: int) -> str:
    margin = f"{100 * judged[0].margin:g} %"
    seeds = "one seed" if num == 1 else f"{num} seeds, paired"
    near_zero = any(abs(verdict.best.rival_mean) < _NEAR_ZERO for verdict in judged)
    absolute = f"; as they are where that is within {_NEAR_ZERO:g} of 0" if near_zero else ""
    shown = f"{method} minus its best rival, in means over {seeds}, relative to the rival's"
    if num == 1:
        return f"Differences are {shown}{absolute}. {_ONE_SEED} {_rivals(judged)}"
    return (
        f"Differences are {shown}{absolute}. Better: than every rival, p against the hardest. "
        "Worse: than some, p times the number of rivals. *By itself*: not after Holm's correction "
        f"over these lines. Not worse: no rival is more than {margin} below, by every interval; "
        f"level: nor is the best one more than {margin} above. Not worse in "
        f"{sum(v.not_worse for v in judged)} of {len(judged)} lines. {_rivals(judged)}"
    )


def _rivals(judged: Sequence[Verdict]) -> str:
    names = dict.fromkeys(one.rival for verdict in judged for one in verdict.meetings)
    return f"Rivals: {'; '.join(names)}."


def note_on(records: Sequence[Record]) -> str:
    """Return the sentence that records with overlapping test sets need."""
    return OVERLAP if any(map(overlap_of, records)) else ""


def _p_text(p: float) -> str:
    return "" if math.isnan(p) else f"{p:.2g}"


def _line(verdict: Verdict, p_holm: float) -> list[str]:
    best = verdict.best
    return [
        verdict.cell,
        f"{best.mean:.4f}",
        best.rival,
        f"{best.rival_mean:.4f}",
        *_differences(best),
        verdict.hardest.rival if verdict.leads else "",
        _p_text(verdict.p_value),
        _p_text(p_holm),
        _said(verdict, p_holm),
    ]


def _said(verdict: Verdict, p_holm: float) -> str:
    word = _word(verdict, p_holm)
    if word == "undecided" and verdict.not_worse:
        return "undecided, not worse"
    small = abs(verdict.best.relative) < verdict.margin
    if word in ("level", "undecided") or not small:
        return word
    return f"{word}, by less than {100 * verdict.margin:g} %"


def _word(verdict: Verdict, p_holm: float) -> str:
    outcome = verdict.outcome
    alone = outcome in ("better", "worse") and p_holm > SIGNIFICANT
    return f"{outcome} by itself" if alone else outcome


def tally(judged: Sequence[Verdict]) -> dict[str, int]:
    """Count the lines of each verdict, those where the method leads and those of not worse."""
    adjusted = holm([verdict.p_value for verdict in judged])
    words = list(map(_word, judged, adjusted))
    return {word: words.count(word) for word in _WORDS} | {
        "lowest": sum(verdict.leads for verdict in judged),
        "not worse": sum(verdict.not_worse for verdict in judged),
    }


def _differences(meeting: Meeting) -> tuple[str, str]:
    """The difference and its interval, in percent where the rival's mean is a scale."""
    difference, (low, high) = meeting.relative, meeting.relative_interval
    scale, digits, unit = 100.0, 1, " %"
    if abs(meeting.rival_mean) < _NEAR_ZERO:
        scale, digits, unit = abs(meeting.rival_mean), 3, ""
    # What is a little below zero has a minus; zero has none.
    one, two, three = (f"{scale * v + 0.0:+.{digits}f}" for v in (difference, low, high))
    return f"{one}{unit}", "" if math.isnan(low) else f"{two} to {three}{unit}"
