"""Tables of methods by cells, from the records of an experiment.

`build_table` makes a value, `Table`: what is known of every method on every cell. Renderers are
pure functions from a table to text. Markdown and LaTeX show means with their standard errors and,
in a second section, the comparisons with a baseline; CSV and JSON hold every number in full.

What is good depends on the metric. Each has an *aim*: plus infinity for an accuracy, 0.95 for the
coverage of 95 % intervals, minus infinity for all others. The best mean is the nearest to it.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from predbayes.errors import ExperimentError, no_such
from predbayes.experiments.records import Record
from predbayes.experiments.statistics import (
    Comparison,
    Floats,
    Interval,
    Summary,
    compare,
    paired_examples,
    summarise,
)

DATASET = "data.name"  # the one axis whose value needs no name beside it
SIGNIFICANT = 0.05
_HIGHER = ("accuracy", "auroc", "auprc", "f1", "r2")
_MISSING = "—"
_MARK = "†"
_DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one method on one cell."""

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

    def best(self, column: str) -> set[str]:
        """The methods whose mean is nearest to the aim."""
        found = {r: self.entries[r, column] for r in self.rows if (r, column) in self.entries}
        losses = {r: loss(entry.summary.mean, self.aim) for r, entry in found.items()}
        lowest = min((x for x in losses.values() if not math.isnan(x)), default=math.nan)
        return {r for r, x in losses.items() if x == lowest}

    def legend(self) -> list[str]:
        """What exactly is shown, one sentence per line."""
        lines = [
            f"{self.metric}: mean ± standard error over {_num_seeds(self)}; bold: {self._bold}"
        ]
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
            lines += [self._test, self._reach]
        return lines

    @property
    def _bold(self) -> str:
        if math.isfinite(self.aim):
            return f"the mean nearest to {self.aim:g} in a column."
        return f"the {'highest' if self.aim > 0 else 'lowest'} mean in a column."

    @property
    def _test(self) -> str:
        return (
            f"{_MARK} not significantly different from {self.against} at {SIGNIFICANT:g}: "
            "two-sided Wilcoxon signed-rank test of the differences paired by seed, Holm's "
            "correction over the methods of a column."
        )

    @property
    def _reach(self) -> str:
        num = max(e.comparison.num for e in self.entries.values() if e.comparison)
        smallest = 2 / 2**num
        return (
            f"With {_count(num, 'pair')} the smallest p-value that this test can give is "
            f"{smallest:.2g}, before correction"
            + (": no difference can be significant." if smallest > SIGNIFICANT else ".")
        )


def build_table(
    records: Iterable[Record],
    metric: str,
    *,
    against: str | None = None,
    columns: Sequence[str] | None = None,
    higher_is_better: bool | None = None,
    losses: Path | None = None,
    seed: int = 0,
) -> Table:
    """The table of one metric.

    Args:
        records: Of one experiment; of several with the same cell, method and seed the last counts.
        metric: A name among the records' scores.
        against: The method that all others are compared with.
        columns: Labels of the cells to show (`cell_label`), in this order; all if not given.
        higher_is_better: Overrides what the metric's name says.
        losses: Folder with ``KEY.npy``, the loss of every test row by record; used for the NLL,
            whose mean they are, to add intervals over test rows.
        seed: Of the bootstraps.
    """
    records = scored(records, metric)
    labels = _unique(cell_label(record.cell) for record in records)
    chosen = labels if columns is None else _require("column", columns, labels)
    methods = _unique(record.method for record in records)
    if against is not None:
        _require("method", [against], methods)
    use = losses if metric == "nll" else None
    entries: dict[tuple[str, str], Entry] = {}
    for column in chosen:
        runs = _by_method(record for record in records if cell_label(record.cell) == column)
        for method, entry in _entries(runs, metric, against, use, seed).items():
            entries[method, column] = entry
    return Table(
        title=f"{' + '.join(_unique(record.experiment for record in records))}: {metric}",
        metric=metric,
        aim=_aim(metric, higher_is_better),
        rows=tuple(method for method in methods if any((method, c) in entries for c in chosen)),
        columns=tuple(chosen),
        entries=entries,
        against=against,
        validation=_on_validation(records),
    )


def best_table(
    records: Iterable[Record],
    metric: str,
    *,
    against: str | None = None,
    columns: Sequence[str] | None = None,
    higher_is_better: bool | None = None,
    losses: Path | None = None,
) -> Table:
    """The best variant of every method on every cell, for grid searches.

    ``fedavg[optimizer.lr=0.1]`` is a variant of ``fedavg``. The best one has the best mean of
    the same metric; comparisons are between the best ones.
    """
    records = list(records)
    every = build_table(records, metric, columns=columns, higher_is_better=higher_is_better)
    chosen: dict[tuple[str, str], str] = {}
    for label, column in every.entries:
        base = split_label(label)[0]
        held = chosen.get((base, column))
        mean = every.entries[label, column].summary.mean
        if held is None or _is_better(mean, every.entries[held, column].summary.mean, every.aim):
            chosen[base, column] = label
    best = [
        replace(record, method=split_label(record.method)[0])
        for record in records
        if record.method
        == chosen.get((split_label(record.method)[0], cell_label(record.cell)), record.method)
    ]
    table = build_table(
        best,
        metric,
        against=against,
        columns=columns,
        higher_is_better=higher_is_better,
        losses=losses,
    )
    entries = {
        (base, column): replace(entry, variant=split_label(chosen[base, column])[1])
        for (base, column), entry in table.entries.items()
    }
    return replace(table, entries=entries)


# Reading records


def latest(records: Iterable[Record]) -> list[Record]:
    """One record per cell, method and seed: the last written, in the place of the first.

    Of each cell and method only those count that were made with the settings of its last record:
    a mean over runs of different settings would be the mean of nothing.
    """
    found: dict[tuple[str, str, int], Record] = {}
    settings: dict[tuple[str, str], dict[str, Any]] = {}
    for record in records:
        found[cell_label(record.cell), record.method, record.seed] = record
        settings[cell_label(record.cell), record.method] = _settings(record)
    return [
        record
        for (cell, method, _seed), record in found.items()
        if _settings(record) == settings[cell, method]
    ]


def _on_validation(records: Sequence[Record]) -> bool:
    kinds = {record.config.get("evaluate", "test") for record in records}
    if len(kinds) > 1:
        raise ExperimentError(
            "some records are scored on validation rows and some on test rows; sweep them into "
            "folders of their own"
        )
    return kinds == {"validation"}


def _settings(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.config.items() if name != "code-sha256"}


def scored(records: Iterable[Record], metric: str) -> list[Record]:
    """The `latest` records that have a score of this name."""
    current = latest(records)
    if not current:
        raise ExperimentError("there are no records yet; run the experiment first")
    _require("metric", [metric], _unique(name for record in current for name in record.scores))
    # A run that diverged has no score, and must not make its method's mean better by that.
    return [
        replace(record, scores={metric: math.nan}) if record.error else record
        for record in current
        if metric in record.scores or record.error
    ]


def cell_label(cell: Mapping[str, Any]) -> str:
    """A cell in short: the dataset, and every other axis by the last part of its name.

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


def split_label(label: str) -> tuple[str, str]:
    """A method and its variant.

    Examples:
        >>> split_label("fedavg[optimizer.lr=0.1]"), split_label("fedavg")
        (('fedavg', 'optimizer.lr=0.1'), ('fedavg', ''))
        >>> split_label("beta[sampler.step-size=0.1] student")
        ('beta student', 'sampler.step-size=0.1')
    """
    found = re.fullmatch(r"(.*?)\[(.*)\](.*)", label)
    return (found[1] + found[3], found[2]) if found else (label, "")


def loss(value: float, aim: float) -> float:
    """How far a value is from the aim of its metric; with an infinite aim, up to a constant."""
    return abs(value - aim) if math.isfinite(aim) else -math.copysign(1.0, aim) * value


def _aim(metric: str, higher_is_better: bool | None = None) -> float:
    coverage = re.fullmatch(r"coverage_(\d+)", metric)
    if coverage and higher_is_better is None:
        return float(f"0.{coverage[1]}")
    if higher_is_better is None:
        higher_is_better = metric.startswith((*_HIGHER, "coverage"))
    return math.inf if higher_is_better else -math.inf


def _is_better(value: float, other: float, aim: float) -> bool:
    return math.isnan(other) or loss(value, aim) < loss(other, aim)


def _entries(
    runs: Mapping[str, Mapping[int, Record]],
    metric: str,
    against: str | None,
    losses: Path | None,
    seed: int,
) -> dict[str, Entry]:
    """The entries of one column, by method."""
    values = {
        method: {s: record.scores[metric] for s, record in by_seed.items()}
        for method, by_seed in runs.items()
    }
    comparisons = compare(values, against, seed=seed) if against in values else {}
    entries = {}
    for method, by_seed in values.items():
        comparison = comparisons.get(method)
        over_rows = None
        if comparison and losses and against:
            over_rows = _over_rows(runs[method], runs[against], losses, seed)
        entries[method] = Entry(summarise(list(by_seed.values())), comparison, over_rows)
    return entries


def _over_rows(
    runs: Mapping[int, Record], baseline: Mapping[int, Record], losses: Path, seed: int
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
    return paired_examples(differences, seed=seed) if differences else None


def _read_losses(folder: Path, record: Record) -> Floats | None:
    path = folder / f"{record.key}.npy"
    if not path.exists():
        return None
    try:
        array: Floats = np.load(path, allow_pickle=False).astype(np.float64)
    except (ValueError, EOFError, OSError) as error:
        raise ExperimentError(f"{path.name} does not hold losses: {error}") from error
    return array.reshape(-1)


def _by_method(records: Iterable[Record]) -> dict[str, dict[int, Record]]:
    runs: dict[str, dict[int, Record]] = {}
    for record in records:
        runs.setdefault(record.method, {})[record.seed] = record
    return runs


def _require(kind: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    for name in names:
        if name not in known:
            raise ExperimentError(no_such(kind, name, known))
    return _unique(names)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


# Rendering


def to_markdown(table: Table) -> str:
    """The table, its legend, and the comparisons."""
    head = ["", *map(_pipes, table.columns)]
    body = [
        [_pipes(row), *(_markdown_entry(table, row, column) for column in table.columns)]
        for row in table.rows
    ]
    parts = [f"### {table.title}", _markdown_grid(head, body), *table.legend()]
    compared = _comparison_rows(table)
    if compared:
        parts += [
            f"#### Differences from {table.against}",
            _markdown_grid(_comparison_head(table), [[*map(_pipes, row)] for row in compared]),
            _comparison_legend(table),
        ]
    return "\n\n".join(parts) + "\n"


def to_latex(table: Table) -> str:
    """The same as a LaTeX table; needs the package booktabs."""
    head = ["", *map(_latex_escape, table.columns)]
    body = [
        [_latex_escape(row), *(_latex_entry(table, row, column) for column in table.columns)]
        for row in table.rows
    ]
    parts = [_latex_grid(head, body, table.title, table.legend())]
    compared = _comparison_rows(table)
    if compared:
        parts.append(
            _latex_grid(
                [*map(_latex_escape, _comparison_head(table))],
                [[*map(_latex_escape, row[:2]), *map(_latex_number, row[2:])] for row in compared],
                f"{table.title}, differences from {table.against}",
                [_comparison_legend(table)],
            )
        )
    return "\n".join(parts)


def to_csv(table: Table) -> str:
    """One line per method and cell, all numbers in full; what is missing is empty."""
    text = io.StringIO()
    lines = [_flat(table, row, column) for column in table.columns for row in table.rows]
    writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def to_json(table: Table) -> str:
    """All of the table, readable by `from_json`; numbers that are not finite are strings."""
    entries = [
        {"row": row, "column": column, **asdict(entry)}
        for (row, column), entry in table.entries.items()
    ]
    fields = {
        name: getattr(table, name) for name in ("title", "metric", "aim", "against", "validation")
    }
    content = {**fields, "rows": table.rows, "columns": table.columns, "entries": entries}
    return json.dumps(_jsonable(content), indent=2, allow_nan=False) + "\n"


def from_json(text: str) -> Table:
    """The inverse of `to_json`."""
    try:
        content = json.loads(text)
        entries = {(item["row"], item["column"]): _entry(item) for item in content["entries"]}
        return Table(
            title=content["title"],
            metric=content["metric"],
            aim=float(content["aim"]),
            rows=tuple(content["rows"]),
            columns=tuple(content["columns"]),
            entries=entries,
            against=content["against"],
            validation=content["validation"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"this is not a table: {error}") from error


RENDERERS: dict[str, Callable[[Table], str]] = {
    "md": to_markdown,
    "tex": to_latex,
    "csv": to_csv,
    "json": to_json,
}


def render(table: Table, suffix: str) -> str:
    """A table as text, by the suffix of the file that it is for: md, tex, csv or json."""
    name = suffix.removeprefix(".")
    if name not in RENDERERS:
        raise ExperimentError(f"no tables in {name!r}; there is {', '.join(RENDERERS)}")
    return RENDERERS[name](table)


def decimals(standard_error: float) -> int:
    """So many that the standard error has two digits, at least 3 and at most 6.

    Examples:
        >>> decimals(0.00012), decimals(0.5), decimals(float("nan"))
        (5, 3, 3)
    """
    if not math.isfinite(standard_error) or standard_error <= 0:
        return 3
    return min(6, max(3, 1 - math.floor(math.log10(standard_error))))


def _parts(table: Table, row: str, column: str) -> tuple[str, str, str, bool, bool]:
    """Of a present entry: mean, standard error or nothing, note, whether bold, whether marked."""
    entry = table.entries[row, column]
    summary = entry.summary
    if math.isnan(summary.mean):
        return _DIVERGED, "", "", False, False
    digits = decimals(summary.standard_error)
    spread = "" if math.isnan(summary.standard_error) else f"{summary.standard_error:.{digits}f}"
    notes = [entry.variant] if entry.variant else []
    if summary.num < max(e.summary.num for e in table.entries.values()):
        notes.append(f"n={summary.num}")
    note = f" ({'; '.join(notes)})" if notes else ""
    marked = entry.comparison is not None and entry.comparison.p_holm > SIGNIFICANT
    return f"{summary.mean:.{digits}f}", spread, note, row in table.best(column), marked


def _markdown_entry(table: Table, row: str, column: str) -> str:
    if (row, column) not in table.entries:
        return _MISSING
    mean, spread, note, bold, marked = _parts(table, row, column)
    number = f"{mean} ± {spread}" if spread else mean
    return (f"**{number}**" if bold else number) + (_MARK if marked else "") + _pipes(note)


def _latex_entry(table: Table, row: str, column: str) -> str:
    if (row, column) not in table.entries:
        return "---"
    mean, spread, note, bold, marked = _parts(table, row, column)
    if mean == _DIVERGED:
        return mean
    number = f"{mean} \\pm {spread}" if spread else mean
    body = f"\\mathbf{{{number}}}" if bold else number
    mark = r"^\dagger" if marked else ""
    return f"${body}{mark}$" + _latex_escape(note)


def _comparison_head(table: Table) -> list[str]:
    head = ["cell", "method", "difference", "95 % interval", "p", "Holm p", "pairs"]
    return [*head, "95 % over test rows"] if _has_rows(table) else head


def _comparison_rows(table: Table) -> list[list[str]]:
    lines = []
    for column in table.columns:
        for row in table.rows:
            entry = table.entries.get((row, column))
            if entry is None or entry.comparison is None:
                continue
            if math.isnan(entry.comparison.difference):
                continue
            line = [column, row, *_comparison_cells(entry.comparison)]
            if _has_rows(table):
                line.append(_interval(entry.rows, _digits_of(entry.rows)))
            lines.append(line)
    return lines


def _comparison_cells(comparison: Comparison) -> list[str]:
    digits = _digits_of(comparison.interval)
    return [
        f"{comparison.difference:+.{digits}f}",
        _interval(comparison.interval, digits),
        _p_value(comparison.p_value),
        _p_value(comparison.p_holm),
        str(comparison.num),
    ]


def _p_value(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _comparison_legend(table: Table) -> str:
    legend = (
        f"Differences are method minus {table.against}, paired by seed; interval: percentile "
        "bootstrap over seeds."
    )
    if _has_rows(table):
        legend += " Over test rows: bootstrap of the rows, for the models of these seeds."
    return legend


def _has_rows(table: Table) -> bool:
    return any(entry.rows for entry in table.entries.values())


def _digits_of(interval: Interval | None) -> int:
    """Decimals for an interval, as for a standard error of a quarter of its width."""
    return decimals((interval[1] - interval[0]) / 4 if interval else math.nan)


def _interval(interval: Interval | None, digits: int) -> str:
    if interval is None or math.isnan(interval[0]):
        return _MISSING
    return f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def _num_seeds(table: Table) -> str:
    nums = {entry.summary.num for entry in table.entries.values()}
    return _count(max(nums), "seed") + ("" if len(nums) == 1 else ", or n where given")


def _count(num: int, noun: str) -> str:
    return f"{num} {noun}{'' if num == 1 else 's'}"


def _markdown_grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body))


def _pipes(text: str) -> str:
    return text.replace("|", "\\|")


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "—": "---",
    "†": r"$^\dagger$",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _latex_escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _latex_number(text: str) -> str:
    return "---" if text == _MISSING else f"${text}$"


def _latex_grid(
    head: Sequence[str], body: Sequence[Sequence[str]], title: str, legend: Sequence[str]
) -> str:
    lines = [f"{' & '.join(cells)} \\\\" for cells in (head, *body)]
    caption = " ".join(map(_latex_escape, [f"{title}.", *legend]))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _flat(table: Table, row: str, column: str) -> dict[str, object]:
    entry = table.entries.get((row, column))
    summary = entry.summary if entry else None
    comparison = entry.comparison if entry else None
    low, high = comparison.interval if comparison else ("", "")
    rows_low, rows_high = entry.rows if entry and entry.rows else ("", "")
    return {
        "metric": table.metric,
        "cell": column,
        "method": row,
        "variant": entry.variant if entry else "",
        "mean": summary.mean if summary else "",
        "standard_error": summary.standard_error if summary else "",
        "num": summary.num if summary else "",
        "against": (table.against or "") if comparison else "",
        "difference": comparison.difference if comparison else "",
        "low": low,
        "high": high,
        "p_value": comparison.p_value if comparison else "",
        "p_holm": comparison.p_holm if comparison else "",
        "num_pairs": comparison.num if comparison else "",
        "rows_low": rows_low,
        "rows_high": rows_high,
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(part) for part in value]
    return value


def _entry(item: Mapping[str, Any]) -> Entry:
    def numbers(part: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value if name == "num" else float(value) for name, value in part.items()}

    comparison = None
    if item["comparison"] is not None:
        rest = {name: x for name, x in item["comparison"].items() if name != "interval"}
        interval = _pair(item["comparison"]["interval"])
        comparison = Comparison(interval=interval, **numbers(rest))
    over_rows = None if item["rows"] is None else _pair(item["rows"])
    return Entry(Summary(**numbers(item["summary"])), comparison, over_rows, item["variant"])


def _pair(interval: Sequence[float | str]) -> Interval:
    low, high = map(float, interval)
    return low, high
