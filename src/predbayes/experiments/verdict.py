"""Is a method the best of its table? One line per cell, by a rule that is fixed beforehand.

In each cell the method meets its best rival: of the other methods the one with the lowest mean,
over the seeds that both have. That rival is chosen by the scores it is judged on, so its mean is a
little too good: the rule errs against the method. With the 95 % interval of the paired difference
(`predbayes.experiments.statistics`), the margin being a part of the rival's mean, it is

    level      if the interval lies inside +- the margin: whatever the difference, it is small
    better     if the interval lies below zero
    worse      if the interval lies above zero
    undecided  otherwise, and with one seed, which has no interval

and *not worse* if the interval's upper end is at most the margin. A table of many cells says
*by itself* of what Holm's correction for all of them does not leave significant. That the
interval contains zero shows nothing: it also does where there are too few seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from predbayes.errors import ExperimentError
from predbayes.experiments.decode import require_known
from predbayes.experiments.records import Record
from predbayes.experiments.rendering import markdown_grid
from predbayes.experiments.statistics import Interval, holm
from predbayes.experiments.tables import OVERLAP, SIGNIFICANT, Table, build_table, loss, overlap_of

Outcome = Literal["level", "better", "worse", "undecided"]

_ABOUT_P = (
    "p: t test over seeds, of each line for itself; Holm p: the same, corrected for all lines here."
)
_ONE_SEED = "One seed has no interval over seeds."

_NEAR_ZERO = 0.02  # a mean of which a part says nothing

MARGIN = 0.01
"""Of a rival's mean: a smaller difference is none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A method's comparison with its best rival in one cell."""

    cell: str
    mean: float
    rival: str
    rival_mean: float
    interval: Interval  # 95 %, of the method minus the rival; nan for one seed
    p_value: float  # of the t test over seeds, two-sided, of this one comparison
    num: int  # seeds that both have
    margin: float = MARGIN  # relative to the rival's mean

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
    def outcome(self) -> Outcome:
        """What the interval shows."""
        low, high = self.relative_interval
        if -self.margin <= low and high <= self.margin:
            return "level"
        if high < 0:
            return "better"
        return "worse" if low > 0 else "undecided"

    @property
    def not_worse(self) -> bool:
        """Whether the interval leaves room for no more than the margin."""
        return self.relative_interval[1] <= self.margin


def verdicts(
    records: Sequence[Record],
    method: str,
    *,
    metric: str = "nll",
    rivals: Sequence[str] | None = None,
    margin: float = MARGIN,
    losses: Path | None = None,
) -> list[Verdict]:
    """Compare a method with its best rival, cell by cell.

    Args:
        records: Of one experiment.
        method: The label to judge.
        metric: One of which less is better.
        rivals: Labels to judge it against; all others if None.
        margin: What counts as no difference, relative to the rival's mean.
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
        _verdict(table, method, wanted, cell, margin)
        for cell in table.columns
        if (method, cell) in table.entries
    ]


def _verdict(table: Table, method: str, rivals: set[str], cell: str, margin: float) -> Verdict:
    compared = {
        name: entry
        for name in table.rows
        if name in rivals and (entry := table.entries.get((name, cell)))
        if entry.comparison is not None and math.isfinite(entry.summary.mean)
    }
    if not compared:
        raise ExperimentError(f"{cell}: {method} shares no seed with any rival")
    name, entry = min(compared.items(), key=lambda item: loss(item[1].summary.mean, table.aim))
    comparison = entry.comparison
    assert comparison is not None
    low, high = comparison.interval if entry.rows is None else entry.rows
    mean = entry.summary.mean - comparison.difference  # over the seeds that both have
    return Verdict(
        cell,
        mean,
        name,
        entry.summary.mean,
        (-high, -low),
        comparison.p_value,
        comparison.num,
        margin,
    )


def to_markdown(judged: Sequence[Verdict], method: str, *, note: str = "") -> str:
    """Write a table with one line for each cell.

    Args:
        judged: The verdicts.
        method: On which method.
        note: A sentence to add, such as that of tables with overlapping test sets.
    """
    head = ["", method, "best rival", "its mean", "difference", "95 % interval"]
    head += ["p", "Holm p", "verdict"]
    adjusted = holm([verdict.p_value for verdict in judged])
    body = markdown_grid(head, list(map(_line, judged, adjusted)))
    num, margin = max(verdict.num for verdict in judged), 100 * judged[0].margin
    seeds = "one seed" if num == 1 else f"{num} seeds, paired"
    near_zero = any(abs(verdict.rival_mean) < _NEAR_ZERO for verdict in judged)
    absolute = f"; as they are where that is within {_NEAR_ZERO:g} of 0" if near_zero else ""
    legend = (
        f"Differences are {method} minus its best rival, in means over {seeds}, relative to the "
        f"rival's{absolute}. Level: the interval is inside ±{margin:g} %; better or worse: it "
        "excludes 0, also after Holm's correction unless it says *by itself*; not worse: its upper "
        f"end is at most {margin:g} %, in {sum(v.not_worse for v in judged)} of {len(judged)}. "
        f"{_ABOUT_P if num > 1 else _ONE_SEED}{' ' + note if note else ''}"
    )
    return f"{body}\n\n{legend}\n"


def note_on(records: Sequence[Record]) -> str:
    """Return the sentence that records with overlapping test sets need."""
    return OVERLAP if any(map(overlap_of, records)) else ""


def _p_text(p: float) -> str:
    return "" if math.isnan(p) else f"{p:.2g}"


def _line(verdict: Verdict, p_holm: float) -> list[str]:
    said: str = verdict.outcome
    if said == "undecided" and verdict.not_worse:
        said = f"{said}, not worse"
    if said in ("better", "worse") and p_holm > SIGNIFICANT:
        said = f"{said} by itself"
    return [
        verdict.cell,
        f"{verdict.mean:.4f}",
        verdict.rival,
        f"{verdict.rival_mean:.4f}",
        *_differences(verdict),
        _p_text(verdict.p_value),
        _p_text(p_holm),
        said,
    ]


def _differences(verdict: Verdict) -> tuple[str, str]:
    """The difference and its interval, in percent where the rival's mean is a scale."""
    difference, (low, high) = verdict.relative, verdict.relative_interval
    scale, digits, unit = 100.0, 1, " %"
    if abs(verdict.rival_mean) < _NEAR_ZERO:
        scale, digits, unit = abs(verdict.rival_mean), 3, ""
    # What is a little below zero has a minus; zero has none.
    one, two, three = (f"{scale * v + 0.0:+.{digits}f}" for v in (difference, low, high))
    return f"{one}{unit}", "" if math.isnan(low) else f"{two} to {three}{unit}"
