"""Is a method the best of its table? One line per cell, by a rule that is fixed beforehand.

In each cell the method meets its best rival: of the other methods the one with the lowest mean,
over the seeds that both have. It is *not worse* if one of these holds:

    lowest   its mean is no higher
    within   its mean is higher by at most the tolerance, relative to the rival's
    level    the 95 % interval of the paired difference contains 0: over test rows where their
             losses are at hand, else over seeds
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
from predbayes.experiments.statistics import Interval
from predbayes.experiments.tables import Entry, Table, build_table, loss

Outcome = Literal["lowest", "within", "level", "worse"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A method's comparison with its best rival in one cell."""

    cell: str
    mean: float
    rival: str
    rival_mean: float
    interval: Interval  # of the method minus the rival
    p_value: float  # Wilcoxon signed-rank, two-sided, uncorrected
    num: int  # seeds that both have
    outcome: Outcome

    @property
    def relative(self) -> float:
        """The difference of the means in parts of the rival's."""
        return (self.mean - self.rival_mean) / abs(self.rival_mean)


def verdicts(
    records: Sequence[Record],
    method: str,
    *,
    metric: str = "nll",
    rivals: Sequence[str] | None = None,
    tolerance: float = 0.01,
    losses: Path | None = None,
) -> list[Verdict]:
    """Compare a method with its best rival, cell by cell.

    Args:
        records: Of one experiment.
        method: The label to judge.
        metric: One of which less is better.
        rivals: Labels to judge it against; all others if None.
        tolerance: What still counts as not worse, relative to the rival's mean.
        losses: Folder of the test rows' losses, for intervals over rows.
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
        _verdict(table, method, wanted, cell, tolerance)
        for cell in table.columns
        if (method, cell) in table.entries
    ]


def _verdict(table: Table, method: str, rivals: set[str], cell: str, tolerance: float) -> Verdict:
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
    interval = (-high, -low)
    mean = entry.summary.mean - comparison.difference  # over the seeds that both have
    return Verdict(
        cell,
        mean,
        name,
        entry.summary.mean,
        interval,
        comparison.p_value,
        comparison.num,
        _outcome(mean, entry, interval, tolerance),
    )


def _outcome(mean: float, rival: Entry, interval: Interval, tolerance: float) -> Outcome:
    if mean <= rival.summary.mean:
        return "lowest"
    if mean - rival.summary.mean <= tolerance * abs(rival.summary.mean):
        return "within"
    return "level" if interval[0] <= 0 <= interval[1] else "worse"


def to_markdown(judged: Sequence[Verdict], method: str, tolerance: float = 0.01) -> str:
    """Write a table with one line for each cell."""
    head = ["", method, "best rival", "its mean", "difference", "95 % interval", "p", ""]
    body = markdown_grid(head, [_line(verdict, tolerance) for verdict in judged])
    num = max(verdict.num for verdict in judged)
    seeds = "one seed" if num == 1 else f"{num} seeds, paired"
    return (
        f"{body}\n\nDifferences are {method} minus its best rival, in means over {seeds}; "
        f"p: Wilcoxon signed-rank test, uncorrected, at least {2 / 2**num:.2g}.\n"
    )


def _signed(value: float) -> str:
    return f"{round(value, 4) + 0.0:+.4f}"  # no minus before zero


def _line(verdict: Verdict, tolerance: float) -> list[str]:
    low, high = verdict.interval
    outcome = f"within {100 * tolerance:g} %" if verdict.outcome == "within" else verdict.outcome
    return [
        verdict.cell,
        f"{verdict.mean:.4f}",
        verdict.rival,
        f"{verdict.rival_mean:.4f}",
        f"{100 * verdict.relative:+.1f} %",
        "" if math.isnan(low) else f"{_signed(low)} to {_signed(high)}",
        "" if math.isnan(verdict.p_value) else f"{verdict.p_value:.2g}",
        outcome,
    ]
