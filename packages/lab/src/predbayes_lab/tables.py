"""Tables of methods by cells, from the records of an experiment.

`build_table` makes a value, `Table`: what is known of every method on every cell.
`predbayes_lab.rendering` makes text of it.

What is good depends on the metric. Each has an *aim* (`predbayes.predictive.measures`): plus
infinity for an accuracy, 0.95 for the coverage of 95 % intervals, minus infinity for a loss and for
what the table of measures does not have. The best mean is the nearest to it.

Where every seed draws test rows of its own, standard errors, intervals and tests allow for their
overlap (`predbayes_lab.statistics`); `overlap_of` reads that off the records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from predbayes.errors import ExperimentError
from predbayes.predictive.measures import MEASURES
from predbayes_lab.data.registry import DATASETS
from predbayes_lab.datasets import is_own
from predbayes_lab.decode import require_known
from predbayes_lab.methods import METHODS
from predbayes_lab.records import Record, split_label, without_additions
from predbayes_lab.statistics import (
    Comparison,
    Floats,
    Interval,
    Summary,
    compare,
    over_rows,
    summarise,
)
from predbayes_lab.world import VALIDATION_FRACTION

DATASET = "data.name"  # the one axis whose value needs no name beside it
SIGNIFICANT = 0.05
MARK = "†"
OVERLAP = (
    "Every seed draws its own test rows, so test sets overlap: standard errors, intervals and "
    "tests have the correction of Nadeau and Bengio (2003)."
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The figures of one method on one cell."""

    summary: Summary
    comparison: Comparison | None = None  # with the table's baseline
    rows: Interval | None = None  # 95 % interval of that difference over test rows
    variant: str = ""  # in a table of best variants: which one


@dataclass(frozen=True, slots=True)
class Table:
    """One metric of all methods on all cells."""

    title: str
    metric: str
    aim: float  # the value that would be best; infinite where more, or less, is always better
    rows: tuple[str, ...]  # methods
    columns: tuple[str, ...]  # cells
    entries: Mapping[tuple[str, str], Entry]  # by row and column; a missing one has no record
    against: str | None = None  # the baseline of the comparisons
    validation: bool = False  # whether scored on a validation split
    overlapping: bool = False  # whether seeds drew test rows of their own in some column
    outdated: tuple[str, ...] = ()  # rows of an earlier results version of their method

    def best(self, column: str) -> set[str]:
        """Return the methods whose mean is nearest to the aim."""
        shown = {r: self.entries[r, column] for r in self.rows if (r, column) in self.entries}
        losses = {r: loss(entry.summary.mean, self.aim) for r, entry in shown.items()}
        lowest = min((x for x in losses.values() if not math.isnan(x)), default=math.nan)
        return {r for r, x in losses.items() if x == lowest}

    def legend(self) -> list[str]:
        """Say what exactly is shown, one sentence per line."""
        lines = [
            f"{self.metric}: mean ± standard error over {_num_seeds(self)}; bold: {self._bold}"
        ]
        if self.overlapping:
            lines.append(OVERLAP)
        if self.outdated:
            lines.append(
                f"Of an earlier version of the method, and not run again since: "
                f"{', '.join(self.outdated)}."
            )
        if self.validation:
            lines.append("Scored on a validation split, not on the test rows.")
        if any(math.isnan(entry.summary.mean) for entry in self.entries.values()):
            lines.append("diverged: at least one run did; its record says how.")
        if any(entry.variant for entry in self.entries.values()):
            lines.append(
                "Of each method the variant with the best mean is shown; it was chosen on the rows "
                "that it is scored on, so its score is optimistic."
            )
        if any(entry.comparison for entry in self.entries.values()):
            lines.append(self._test)
        return lines

    @property
    def _bold(self) -> str:
        if math.isfinite(self.aim):
            return f"the mean nearest to {self.aim:g} of a cell."
        return f"the {'highest' if self.aim > 0 else 'lowest'} mean of a cell."

    @property
    def _test(self) -> str:
        return (
            f"{MARK} not significantly different from {self.against} at {SIGNIFICANT:g}: "
            "two-sided t test of the differences paired by seed, Holm's correction over the "
            "methods of a cell."
        )


def build_table(
    records: Iterable[Record],
    metric: str,
    *,
    against: str | None = None,
    columns: Sequence[str] | None = None,
    losses: Path | None = None,
) -> Table:
    """Build the table of one metric.

    Args:
        records: Of one experiment; of several with the same cell, method and seed the last counts.
        metric: A name among the records' scores.
        against: The method that all others are compared with.
        columns: Labels of the cells to show (`cell_label`), in this order; all if not given.
        losses: Folder with ``KEY.npy``, the loss of every test row by record; used for the NLL,
            whose mean they are, to add intervals over test rows, where all seeds have the same.
    """
    records = scored(records, metric)
    labels = unique(cell_label(record.cell) for record in records)
    require_known("column", columns or (), labels)
    chosen = labels if columns is None else unique(columns)
    methods = unique(record.method for record in records)
    require_known("method", [against] if against is not None else (), methods)
    use = losses if metric == "nll" else None
    entries: dict[tuple[str, str], Entry] = {}
    shown = [record for record in records if cell_label(record.cell) in chosen]
    for column in chosen:
        runs: dict[str, dict[int, Record]] = {}
        for record in (r for r in shown if cell_label(r.cell) == column):
            runs.setdefault(record.method, {})[record.seed] = record
        for method, entry in _entries(runs, metric, against, use).items():
            entries[method, column] = entry
    return Table(
        title=f"{' + '.join(unique(record.experiment for record in records))}: {metric}",
        metric=metric,
        aim=MEASURES[metric].aim if metric in MEASURES else -math.inf,
        rows=tuple(method for method in methods if any((method, c) in entries for c in chosen)),
        columns=tuple(chosen),
        entries=entries,
        against=against,
        validation=_on_validation(records),
        overlapping=any(map(overlap_of, shown)),
        outdated=tuple(unique(record.method for record in shown if is_outdated(record))),
    )


def best_table(
    records: Iterable[Record],
    metric: str,
    *,
    against: str | None = None,
    columns: Sequence[str] | None = None,
    losses: Path | None = None,
) -> Table:
    """Build a table of the best variant of every method on every cell, for grid searches.

    ``fedavg[optimizer.lr=0.1]`` is a variant of ``fedavg``. The best one has the best mean of
    the same metric; comparisons are between the best ones.
    """
    records = list(records)
    every = build_table(records, metric, columns=columns)
    chosen: dict[tuple[str, str], str] = {}
    for label, column in every.entries:
        base = split_label(label)[0]
        held = chosen.setdefault((base, column), label)
        mean, best = (every.entries[one, column].summary.mean for one in (label, held))
        if math.isnan(best) or loss(mean, every.aim) < loss(best, every.aim):
            chosen[base, column] = label
    kept = []
    for record in records:
        base = split_label(record.method)[0]
        if record.method == chosen.get((base, cell_label(record.cell)), record.method):
            kept.append(replace(record, method=base))
    table = build_table(kept, metric, against=against, columns=columns, losses=losses)
    entries = {
        (base, column): replace(entry, variant=split_label(chosen[base, column])[1])
        for (base, column), entry in table.entries.items()
    }
    return replace(table, entries=entries)


# Reading records


def latest(records: Iterable[Record]) -> list[Record]:
    """Keep one record per cell, method and seed: the last written, in the place of the first.

    Of each cell and method only those count that were made with the settings of its last record:
    a mean over runs of different settings would be the mean of nothing.
    """
    last: dict[tuple[str, str, int], Record] = {}
    settings: dict[tuple[str, str], dict[str, Any]] = {}
    for record in records:
        last[cell_label(record.cell), record.method, record.seed] = record
        settings[cell_label(record.cell), record.method] = without_additions(record.config)
    return [
        record
        for (cell, method, _seed), record in last.items()
        if without_additions(record.config) == settings[cell, method]
    ]


def averaged(records: Iterable[Record], axis: str) -> list[Record]:
    """Return records without an axis: one for each cell, method and seed, with the mean scores.

    What differs along the axis, such as a draw of labelled rows, is then no spread between seeds.
    """
    groups: dict[Any, list[Record]] = {}
    for record in records:
        cell = {name: value for name, value in record.cell.items() if name != axis}
        one = replace(record, cell=cell)
        groups.setdefault((cell_label(cell), one.method, one.seed), []).append(one)
    return [
        replace(
            group[-1],
            scores={
                name: float(np.mean([r.scores[name] for r in group])) for name in group[-1].scores
            },
        )
        for group in groups.values()
    ]


def is_outdated(record: Record) -> bool:
    """Return whether the same settings would give other numbers today."""
    name = record.config.get("method", {}).get("name")
    version = record.config.get("results", {}).get("method")
    return name in METHODS and version is not None and version != str(METHODS[name].version)


def overlap_of(record: Record) -> float:
    """Return test rows per training row if each seed draws its own; 0 if all have the same.

    Validation rows are a random part of the training rows, whatever the dataset.
    """
    if record.config.get("evaluate") == "validation":
        return VALIDATION_FRACTION / (1 - VALIDATION_FRACTION)
    if not _draws_test_rows(record):
        return 0.0
    return float(record.data["num_test"] / record.data["num_train"])


def _draws_test_rows(record: Record) -> bool:
    name = record.data.get("name")
    if name is None:
        return False
    if is_own(name):  # then a seed's rows are others than those that the key is made with
        return bool(record.data["sha256"] != record.config["data-sha256"])
    return record.data["variant"] in DATASETS[name].random_splits


def _on_validation(records: Sequence[Record]) -> bool:
    kinds = {record.config.get("evaluate", "test") for record in records}
    if len(kinds) > 1:
        raise ExperimentError(
            "some records are scored on validation rows and some on test rows; sweep them into "
            "folders of their own"
        )
    return kinds == {"validation"}


def scored(records: Iterable[Record], metric: str) -> list[Record]:
    """Return the `latest` records that have a score of this name."""
    current = latest(records)
    if not current:
        raise ExperimentError("there are no records yet; run the experiment first")
    require_known("metric", [metric], unique(name for record in current for name in record.scores))
    # A run that diverged has no score, and must not make its method's mean better by that.
    return [
        replace(record, scores={metric: math.nan}) if record.error else record
        for record in current
        if metric in record.scores or record.error
    ]


def cell_label(cell: Mapping[str, Any]) -> str:
    """Name a cell in short: the dataset, and every other axis by the last part of its name.

    Examples:
        >>> cell_label({"data.name": "mnist", "partition.heterogeneity": 0.9})
        'mnist, heterogeneity=0.9'
    """
    short = [axis.rpartition(".")[2] for axis in cell]
    parts = [str(cell[DATASET])] if DATASET in cell else []
    for axis, name in zip(cell, short, strict=True):
        if axis != DATASET:
            parts.append(f"{axis if short.count(name) > 1 else name}={cell[axis]}")
    return ", ".join(parts) or "all"


def loss(value: float, aim: float) -> float:
    """Return a value's distance from its metric's aim; up to a constant if that is infinite."""
    return abs(value - aim) if math.isfinite(aim) else -math.copysign(1.0, aim) * value


def _entries(
    runs: Mapping[str, Mapping[int, Record]],
    metric: str,
    against: str | None,
    losses: Path | None,
) -> dict[str, Entry]:
    """The entries of one column, by method."""
    ratio = max(overlap_of(r) for by_seed in runs.values() for r in by_seed.values())
    values = {
        method: {s: record.scores[metric] for s, record in by_seed.items()}
        for method, by_seed in runs.items()
    }
    comparisons = compare(values, against, tested_per_trained=ratio) if against in values else {}
    entries = {}
    for method, by_seed in values.items():
        comparison = comparisons.get(method)
        rows = None
        # Rows of seeds that draw their own are partly the same, and nobody knows which.
        if comparison and losses and against and (comparison.num == 1 or not ratio):
            rows = _over_rows(runs[method], runs[against], losses)
        entries[method] = Entry(summarise([*by_seed.values()], ratio), comparison, rows)
    return entries


def _over_rows(
    runs: Mapping[int, Record], baseline: Mapping[int, Record], losses: Path
) -> Interval | None:
    """The interval over test rows, from the seeds for which both have their losses."""
    differences = []
    for shared in sorted(runs.keys() & baseline.keys()):
        first, second = (_read_losses(losses, r) for r in (runs[shared], baseline[shared]))
        if first is None or second is None:
            continue
        if first.shape != second.shape:
            raise ExperimentError(
                f"{runs[shared].method} and {baseline[shared].method} were tested on "
                f"{len(first)} and {len(second)} rows with seed {shared}; run them again"
            )
        differences.append(first - second)
    return over_rows(differences) if differences else None


def _read_losses(folder: Path, record: Record) -> Floats | None:
    path = folder / f"{record.key}.npy"
    if not path.exists():
        return None
    try:
        array: Floats = np.load(path, allow_pickle=False).astype(np.float64)
    except (ValueError, EOFError, OSError) as error:
        raise ExperimentError(f"{path.name} does not hold losses: {error}") from error
    return array.reshape(-1)


def unique(names: Iterable[str]) -> list[str]:
    """Return each name once, in the order in which they come."""
    return list(dict.fromkeys(names))


def _num_seeds(table: Table) -> str:
    nums = {entry.summary.num for entry in table.entries.values()}
    return _count(max(nums), "seed") + ("" if len(nums) == 1 else ", or n where given")


def _count(num: int, noun: str) -> str:
    return f"{num} {noun}{'' if num == 1 else 's'}"
