"""Table 1 as a page shows it: groups side by side, one line for each figure of a column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from predbayes_study.extras.survey.tableone import (
    Cell,
    Count,
    Group,
    Line,
    TableOne,
    in_public,
)
from predbayes_study.plan.schema import Plan
from predbayes_study.report.outstanding import is_listed
from predbayes_study.report.pages import render_page
from predbayes_study.result.schema import FEWEST_TO_POOL, Result
from predbayes_study.wording import plain

MOST_LINES = 100
"""Columns of the plan that are shown."""

_BESIDE = 5  # groups side by side
_NONE = "–"


class Row(NamedTuple):
    """One line of the page: a title, or a name and a figure of each group."""

    name: str
    figures: tuple[str, ...]  # none: a title
    is_part: bool = False  # of the title above


class Block(NamedTuple):
    """Some of the groups, beside all lines."""

    groups: tuple[Group, ...]
    rows: tuple[Row, ...]


def section(_: Plan, result: Result, *, public: bool) -> str:
    """Render the report's section on whom the result is about; "" without surveys."""
    table = TableOne.of(result)
    if table is not None and public:
        table = in_public(table, FEWEST_TO_POOL)
    elif table is not None and not is_listed(result):
        table = table.model_copy(update={"sites": ()})
    if table is None:
        return ""
    return render_page(
        "table_one.html.j2",
        {},
        "predbayes_study.extras.survey",
        table=table,
        blocks=table_blocks(table),
        public=public,
        fewest_sites=FEWEST_TO_POOL,
        most_lines=MOST_LINES,
    )


def table_blocks(table: TableOne) -> list[Block]:
    """Return the tables of a page: all sites and the first few, then the next few."""
    everybody = (table.total, *table.sites)
    parts = (everybody[k : k + _BESIDE] for k in range(0, len(everybody), _BESIDE))
    return [Block(groups, tuple(_rows(table, groups))) for groups in parts]


def _rows(table: TableOne, groups: tuple[Group, ...]) -> Iterator[Row]:
    for index, line in enumerate(table.lines[:MOST_LINES]):
        cells = [(group, group.cells[index]) for group in groups]
        if not line.words:
            title = f"{line.name}, {line.unit}" if line.unit else line.name
            yield Row(title, tuple(_middle(cell) for _, cell in cells))
        else:
            yield Row(line.name, ())
        for place, word in enumerate(_words(line, table)):
            counts = (_share(g, None if cell is None else cell.words[place]) for g, cell in cells)
            yield Row(word, tuple(counts), is_part=True)
        if any(cell is None or cell.missing for _, cell in cells):
            missing = [_missing(group, cell) for group, cell in cells]
            yield Row("missing", tuple(missing), is_part=True)


def _words(line: Line, table: TableOne) -> tuple[str, ...]:
    """The words of a category, and others if anybody told of any."""
    if not line.words:
        return ()
    index = table.lines.index(line)
    told = (group.cells[index] for group in (table.total, *table.sites))
    others = any(cell is not None and cell.words[-1] is not None for cell in told)
    return (*line.words, "other words") if others else line.words


def _middle(cell: Cell | None) -> str:
    if cell is None or cell.middle is None:
        return _NONE
    middle = cell.middle
    low, median, high = (_written(value) for value in (middle.low, middle.median, middle.high))
    return f"{median} [{low} to {high}]"


def _written(value: float) -> str:
    """A number as it was told."""
    return f"{value:.6g}".replace("-", "\N{MINUS SIGN}")


def _share(group: Group, count: Count | None) -> str:
    """A count and its share of all rows, which is a bound if some site did not tell its part."""
    if count is None:
        return _NONE
    bound = "≥ " if count.sites < group.num_sites else ""
    return f"{count.rows:,} ({bound}{plain(100 * count.rows / group.rows, 0)} %)"


def _missing(group: Group, cell: Cell | None) -> str:
    return "not recorded" if cell is None else _share(group, cell.missing)
