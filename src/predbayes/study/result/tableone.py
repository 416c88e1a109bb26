"""Table 1 of a study as plain data: whom it is about, by what sites told of their columns.

    sites    each survey as it is: what was told in steps, and nothing that was not
    total    all sites together (`predbayes.study.result.surveyed`)

Shares are of all rows, and rows at a site without the column lack it. In public there is the total
alone, and a count is of `fewest` sites or more. If one count of a column is left out alone, so is
the smallest of the others: all of them together are the rows.
"""

from __future__ import annotations

from predbayes.study.plan.schema import Finite, Section


class Count(Section):
    """Rows, at least, and how many sites told of them."""

    rows: int
    sites: int = 1


class Middle(Section):
    """Quartiles of a number, and of how many sites."""

    low: Finite
    median: Finite
    high: Finite
    sites: int = 1


class Cell(Section):
    """What is told of one column."""

    missing: Count | None  # None: not told
    middle: Middle | None = None  # of a number
    words: tuple[Count | None, ...] = ()  # of a category, as the line has them; then other words


class Group(Section):
    """A site, or all of them."""

    name: str
    rows: int
    num_sites: int = 1
    cells: tuple[Cell | None, ...]  # one for each line; None where the site lacks the column


class Line(Section):
    """A column."""

    name: str
    unit: str = ""
    words: tuple[str, ...] = ()  # of a category


class TableOne(Section):
    """Rows of the sites in a result, by what was surveyed."""

    step: int  # of counts, the largest of any site
    num_sites: int  # in the result; some may have told nothing
    lines: tuple[Line, ...]
    total: Group
    sites: tuple[Group, ...] = ()  # in the order of their names


def in_public(table: TableOne, fewest: int) -> TableOne | None:
    """Return the table of all sites alone, without what tells of fewer sites than that."""
    if len(table.sites) < fewest:
        return None
    cells = tuple(None if cell is None else _public(cell, fewest) for cell in table.total.cells)
    total = table.total.model_copy(update={"cells": cells})
    return table.model_copy(update={"total": total, "sites": ()})


def _public(cell: Cell, fewest: int) -> Cell:
    middle = cell.middle if cell.middle is not None and cell.middle.sites >= fewest else None
    counts = dict(enumerate((*cell.words, cell.missing)))
    shown = {k: count for k, count in counts.items() if count and count.sites >= fewest}
    num_hidden = sum(count is not None for count in counts.values()) - len(shown)
    if cell.words and num_hidden == 1 and shown:
        del shown[min(shown, key=lambda k: shown[k].rows)]
    *words, missing = (shown.get(k) for k in counts)
    return Cell(missing=missing, middle=middle, words=tuple(words))
