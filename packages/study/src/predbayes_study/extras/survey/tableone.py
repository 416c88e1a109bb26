"""Table 1 of a study as plain data: whom it is about, by what sites told of their columns.

    sites    each survey as it is: what was told in steps, and nothing that was not
    total    all sites together (`predbayes_study.extras.survey.surveyed`)

Shares are of all rows, and rows at a site without the column lack it. In public there is the total
alone, and a count is of `fewest` sites or more. All counts of a column together are the rows, so
what is not shown of them has a sum that everybody knows. It must be of `fewest` sites, too: until
it is, the smallest count that is shown is left out as well.
"""

from __future__ import annotations

from collections.abc import Container

from predbayes_study.plan.schema import Finite, Section
from predbayes_study.result.schema import Result


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

    @classmethod
    def of(cls, result: Result) -> TableOne | None:
        """Return the table of a result; None if no survey is in."""
        found = result.extras.get("survey")
        return None if found is None else cls.model_validate(found, strict=False)


def in_public(table: TableOne, fewest: int) -> TableOne | None:
    """Return the table of all sites alone, without what tells of fewer sites than that."""
    if len(table.sites) < fewest:
        return None
    cells = tuple(_public(table, index, fewest) for index in range(len(table.lines)))
    total = table.total.model_copy(update={"cells": cells})
    return table.model_copy(update={"total": total, "sites": ()})


def _public(table: TableOne, index: int, fewest: int) -> Cell | None:
    cell = table.total.cells[index]
    if cell is None:
        return None
    middle = cell.middle if cell.middle is not None and cell.middle.sites >= fewest else None
    counts = _counts(cell)
    shown = {place: count for place, count in counts.items() if count.sites >= fewest}
    while cell.words and shown and not _is_safe(table, index, shown, fewest):
        del shown[min(shown, key=lambda place: shown[place].rows)]
    *words, missing = (shown.get(place) for place in range(len(cell.words) + 1))
    return Cell(missing=missing, middle=middle, words=tuple(words))


def _counts(cell: Cell) -> dict[int, Count]:
    """What is told, by its place: words, other words, and missing at the end."""
    places = enumerate((*cell.words, cell.missing))
    return {place: count for place, count in places if count is not None}


def _is_safe(table: TableOne, index: int, shown: Container[int], fewest: int) -> bool:
    """Whether the rows that are not shown are those of enough sites, or of none."""
    cell = table.total.cells[index]
    assert cell is not None  # as some of it is shown
    hidden = [count for place, count in _counts(cell).items() if place not in shown]
    if len(hidden) == 1 and hidden[0].sites < fewest:
        return False
    at_missing = len(cell.words)
    num = sum(_has_more(site, index, at_missing, shown, table.step) for site in table.sites)
    return num >= fewest or (num == 0 and not hidden)


def _has_more(site: Group, index: int, at_missing: int, shown: Container[int], step: int) -> bool:
    """Whether a site has rows that are not shown: it told of them, or its rows say so."""
    cell = site.cells[index]
    counts = {at_missing: Count(rows=site.rows)} if cell is None else _counts(cell)
    seen = [count.rows for place, count in counts.items() if place in shown]
    told = sum(count.rows for count in counts.values()) - sum(seen)
    # Of each count that was rounded down fewer rows than a step are left.
    return told > 0 or site.rows - sum(seen) > len(seen) * (step - 1)
