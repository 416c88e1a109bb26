"""A table as text: pure functions from a `Table` to Markdown and CSV.

Markdown shows means with their standard errors and, in a second section, the comparisons with a
baseline; CSV holds every number in full.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict

from predbayes.errors import ExperimentError
from predbayes.text import to_cell
from predbayes_lab.statistics import Comparison, Interval
from predbayes_lab.tables import MARK, SIGNIFICANT, Table

_MISSING = "—"
_MOST_COLUMNS = 12
_CSV_COLUMNS = (
    *("metric", "cell", "method", "variant", "mean", "standard_error", "num"),
    *("against", "difference", "low", "high", "p_value", "p_holm", "num_pairs"),
    *("rows_low", "rows_high"),
)


def to_markdown(table: Table) -> str:
    """Render the table, its legend, and the comparisons as Markdown."""
    grid = markdown_grid(*_grid(table))
    parts = [f"### {table.title}", grid, *table.legend()]
    compared = _comparison_rows(table)
    if compared:
        parts += [
            f"#### Differences from {table.against}",
            markdown_grid(_comparison_head(table), [[*map(_pipes, row)] for row in compared]),
            _comparison_legend(table),
        ]
    return "\n\n".join(parts) + "\n"


def to_csv(table: Table) -> str:
    """Render one line per method and cell, all numbers in full; what is missing is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for column, row in itertools.product(table.columns, table.rows):
        flat = _flat(table, row, column)
        writer.writerow({k: to_cell(v) if isinstance(v, str) else v for k, v in flat.items()})
    return text.getvalue()


RENDERERS: dict[str, Callable[[Table], str]] = {
    "md": to_markdown,
    "csv": to_csv,
}


def render(table: Table, suffix: str) -> str:
    """Render a table as text, by the suffix of its file: md or csv."""
    name = suffix.removeprefix(".")
    if name not in RENDERERS:
        raise ExperimentError(f"no tables in {name!r}; there is {', '.join(RENDERERS)}")
    return RENDERERS[name](table)


def decimals(standard_error: float) -> int:
    """Return how many decimals show two digits of the standard error, at least 3 and at most 6.

    Examples:
        >>> decimals(0.00012), decimals(0.5), decimals(float("nan"))
        (5, 3, 3)
    """
    if not math.isfinite(standard_error) or standard_error <= 0:
        return 3
    return min(6, max(3, 1 - math.floor(math.log10(standard_error))))


def _grid(table: Table) -> tuple[list[str], list[list[str]]]:
    """Head and lines: of methods, or of cells where there are more of them than fit a page."""
    if len(table.columns) > _MOST_COLUMNS:
        body = [
            [_pipes(column), *(_shown(table, row, column) for row in table.rows)]
            for column in table.columns
        ]
        return ["", *map(_pipes, table.rows)], body
    body = [
        [_pipes(row), *(_shown(table, row, column) for column in table.columns)]
        for row in table.rows
    ]
    return ["", *map(_pipes, table.columns)], body


def _shown(table: Table, row: str, column: str) -> str:
    """Mean and standard error of an entry, bold if best, marked if not significantly different."""
    if (row, column) not in table.entries:
        return _MISSING
    entry = table.entries[row, column]
    summary = entry.summary
    if math.isnan(summary.mean):
        return "diverged"
    digits = decimals(summary.standard_error)
    number = f"{summary.mean:.{digits}f}"
    if not math.isnan(summary.standard_error):
        number += f" ± {summary.standard_error:.{digits}f}"
    if row in table.best(column):
        number = f"**{number}**"
    if entry.comparison is not None and entry.comparison.p_holm > SIGNIFICANT:
        number += MARK
    notes = [entry.variant] if entry.variant else []
    if summary.num < max(e.summary.num for e in table.entries.values()):
        notes.append(f"n={summary.num}")
    return number + (_pipes(f" ({'; '.join(notes)})") if notes else "")


def _comparison_head(table: Table) -> list[str]:
    head = ["cell", "method", "difference", "95 % interval", "p", "Holm p", "pairs"]
    return [*head, "95 % over test rows"] if _has_rows(table) else head


def _comparison_rows(table: Table) -> list[list[str]]:
    lines = []
    for column, row in itertools.product(table.columns, table.rows):
        entry = table.entries.get((row, column))
        if entry and entry.comparison and not math.isnan(entry.comparison.difference):
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
    if math.isnan(p):
        return _MISSING
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _comparison_legend(table: Table) -> str:
    over_rows = " Over test rows: for the models of these seeds, whatever other seeds give."
    return (
        f"Differences are method minus {table.against}, paired by seed; interval and p: Student's "
        f"t over seeds.{over_rows if _has_rows(table) else ''}"
    )


def _has_rows(table: Table) -> bool:
    return any(entry.rows for entry in table.entries.values())


def _digits_of(interval: Interval | None) -> int:
    """Decimals for an interval, as for a standard error of a quarter of its width."""
    return decimals((interval[1] - interval[0]) / 4 if interval else math.nan)


def _interval(interval: Interval | None, digits: int) -> str:
    if interval is None or math.isnan(interval[0]):
        return _MISSING
    return f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def markdown_grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body))


def _pipes(text: str) -> str:
    return text.replace("|", "\\|")


def _flat(table: Table, row: str, column: str) -> dict[str, object]:
    line: dict[str, object] = {"metric": table.metric, "cell": column, "method": row}
    entry = table.entries.get((row, column))
    if entry is None:
        return line
    if entry.comparison is not None:
        (low, high), num = entry.comparison.interval, entry.comparison.num
        line |= {"against": table.against, "low": low, "high": high, "num_pairs": num}
        line |= asdict(entry.comparison)
    if entry.rows is not None:
        line["rows_low"], line["rows_high"] = entry.rows
    return line | {"variant": entry.variant, **asdict(entry.summary)}  # its num is that of seeds
