"""Table 1 of a study: whom it is about, by what sites told of their columns.

    sites    each survey as it is: what was told in steps, and nothing that was not
    total    all sites together. Every count is a sum of counts that are rounded down, so it is "at
             least". Quartiles are those of the mixture of the sites' quantile functions, by rows,
             over the sites that told quartiles and whose units agree. A site counts for no more
             rows than `rules.max_weight` allows: of one that states more each count is a part

Shares are of all rows, and rows at a site without the column lack it. In public there is the total
alone, and a count is of `fewest` sites or more. All counts of a column together are the rows, so
what is not shown of them has a sum that everybody knows. It must be of `fewest` sites, too: until
it is, the smallest count that is shown is left out as well.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from predbayes.exchange.strict import Finite
from predbayes_study.extras.survey.disagree import counted_rows
from predbayes_study.extras.survey.marginal import Marginal
from predbayes_study.extras.survey.merge import agreeing
from predbayes_study.extras.survey.surveyfile import NumberTold, Survey
from predbayes_study.plan.schema import Plan, Section
from predbayes_study.report.outstanding import is_listed
from predbayes_study.report.pages import render_page
from predbayes_study.result.schema import FEWEST_TO_POOL, Result
from predbayes_study.wording import plain

MOST_LINES = 100
"""Columns of the plan that a page shows."""

_BESIDE = 5  # groups side by side
_NONE = "–"
_QUARTILES = (25, 50, 75)
_LEVELS = (np.arange(2000) + 0.5) / 2000


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

    @property
    def counts(self) -> dict[int, Count]:
        """What is told, by its place: words, other words, and missing at the end."""
        places = enumerate((*self.words, self.missing))
        return {place: count for place, count in places if count is not None}


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


# From surveys


def table_one(plan: Plan, surveys: Sequence[Survey], num_sites: int) -> TableOne:
    """Return the table by the surveys of a result's sites."""
    told = sorted(surveys, key=lambda survey: survey.site)
    columns = {name: plan.column(name) for name in plan.names if name not in plan.vectors}
    lines = tuple(Line(name=n, unit=c.unit, words=c.words) for n, c in columns.items())
    sites = tuple(
        Group(name=one.site, rows=one.rows, cells=tuple(_cell(line, one) for line in lines))
        for one in told
    )
    most = counted_rows(plan, told)
    parts = [_part(site, int(most[site.name])) for site in sites]
    total = Group(
        name="All sites",
        rows=sum(site.rows for site in parts),
        num_sites=len(told),
        cells=tuple(_total(plan, line, k, parts, told) for k, line in enumerate(lines)),
    )
    step = max(survey.step for survey in told)
    return TableOne(step=step, num_sites=num_sites, lines=lines, total=total, sites=sites)


def _cell(line: Line, survey: Survey) -> Cell | None:
    told = survey.columns.get(line.name)
    if told is None:
        return None
    if isinstance(told, NumberTold):
        gone = [count for count in told.counts if count is not None]  # none of them is a value
        middle = None
        if set(_QUARTILES) <= told.quantiles.keys():
            low, median, high = (told.quantiles[level] for level in _QUARTILES)
            middle = Middle(low=low, median=median, high=high)
        return Cell(missing=Count(rows=sum(gone)) if gone else None, middle=middle)
    rows = {**told.unlisted, **told.words}
    strange = [n for word, n in told.unlisted.items() if word not in line.words]
    others = [n for n in (*strange, told.other) if n is not None]
    words = [*(rows.get(word) for word in line.words), sum(others) if others else None]
    missing, *counts = (None if n is None else Count(rows=n) for n in (told.missing, *words))
    return Cell(missing=missing, words=tuple(counts))


def _part(site: Group, most: int) -> Group:
    """As much of each of a site's counts as `most` are of its rows, rounded down."""

    def rows(count: Count | None) -> Count | None:
        return count and count.model_copy(update={"rows": count.rows * most // site.rows})

    def cell(told: Cell | None) -> Cell | None:
        words = () if told is None else tuple(map(rows, told.words))
        return told and told.model_copy(update={"missing": rows(told.missing), "words": words})

    return site.model_copy(update={"rows": most, "cells": tuple(map(cell, site.cells))})


def _total(
    plan: Plan, line: Line, index: int, sites: Sequence[Group], surveys: Sequence[Survey]
) -> Cell | None:
    """All sites together; None if no site has the column."""
    cells = [(site, site.cells[index]) for site in sites]
    there = [cell for _, cell in cells if cell is not None]
    if not there:
        return None
    absent = [Count(rows=site.rows) for site, cell in cells if cell is None]
    words = zip(*(cell.words for cell in there), strict=True)
    return Cell(
        missing=summed([*(cell.missing for cell in there), *absent]),
        middle=None if line.words else _pooled(plan, line.name, surveys),
        words=tuple(map(summed, words)),
    )


def summed(counts: Sequence[Count | None]) -> Count | None:
    """Return the sum of what is told; None if nothing is."""
    told = [count for count in counts if count is not None]
    return Count(rows=sum(count.rows for count in told), sites=len(told)) if told else None


def _pooled(plan: Plan, name: str, surveys: Sequence[Survey]) -> Middle | None:
    """Quartiles of the rows of all sites whose units agree and that told quartiles."""
    rows, counts = {survey.site: survey.rows for survey in surveys}, counted_rows(plan, surveys)
    told = {
        site: one
        for site, one in agreeing(name, surveys).items()
        if set(_QUARTILES) <= one.quantiles.keys()
    }
    if not told:
        return None
    marginals = (Marginal.of(one, plan.column(name).range) for one in told.values())
    values = np.concatenate([one.at(_LEVELS) for one in marginals if one is not None])
    known = [
        max(rows[site] - sum(count or 0 for count in one.counts), 1) * counts[site] / rows[site]
        for site, one in told.items()
    ]
    weights = np.repeat(np.array(known), len(_LEVELS))
    order = np.argsort(values, kind="stable")
    levels = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    places = max(one.decimals for one in told.values())
    low, median, high = (
        round(float(np.interp(level / 100, levels, values[order])), places) for level in _QUARTILES
    )
    return Middle(low=low, median=median, high=high, sites=len(told))


# In public


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
    shown = {place: count for place, count in cell.counts.items() if count.sites >= fewest}
    while cell.words and shown and not _is_safe(table, index, cell, shown, fewest):
        del shown[min(shown, key=lambda place: shown[place].rows)]
    *words, missing = (shown.get(place) for place in range(len(cell.words) + 1))
    return Cell(missing=missing, middle=middle, words=tuple(words))


def _is_safe(table: TableOne, index: int, total: Cell, shown: Container[int], fewest: int) -> bool:
    """Whether the rows that are not shown are those of enough sites, or of none."""
    hidden = [count for place, count in total.counts.items() if place not in shown]
    if len(hidden) == 1 and hidden[0].sites < fewest:
        return False
    num = 0  # sites with rows that are not shown: they told of them, or their rows say so
    for site in table.sites:
        cell = site.cells[index]
        counts = {len(total.words): Count(rows=site.rows)} if cell is None else cell.counts
        seen = [count.rows for place, count in counts.items() if place in shown]
        told = sum(count.rows for count in counts.values()) - sum(seen)
        # Of each count that was rounded down fewer rows than a step are left.
        num += told > 0 or site.rows - sum(seen) > len(seen) * (table.step - 1)
    return num >= fewest or (num == 0 and not hidden)


# On a page


class Row(NamedTuple):
    """One line of the page: a title, or a name and a figure of each group."""

    name: str
    figures: tuple[str, ...]  # none: a title
    is_part: bool = False  # of the title above


class Block(NamedTuple):
    """Some of the groups, beside all lines."""

    groups: tuple[Group, ...]
    rows: tuple[Row, ...]


def section(plan: Plan, result: Result, *, public: bool) -> str:
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
        table=table,
        blocks=table_blocks(table),
        public=public,
        fewest_sites=FEWEST_TO_POOL,
        most_lines=MOST_LINES,
        max_weight=plan.rules.max_weight,
    )


def table_blocks(table: TableOne) -> list[Block]:
    """Return the tables of a page: all sites and the first few, then the next few."""
    everybody = (table.total, *table.sites)
    parts = (everybody[k : k + _BESIDE] for k in range(0, len(everybody), _BESIDE))
    return [Block(groups, tuple(_rows(everybody, table.lines, groups))) for groups in parts]


def _rows(
    everybody: Sequence[Group], lines: Sequence[Line], groups: Sequence[Group]
) -> Iterator[Row]:
    for index, line in enumerate(lines[:MOST_LINES]):
        cells = [(group, group.cells[index]) for group in groups]
        if not line.words:
            title = f"{line.name}, {line.unit}" if line.unit else line.name
            yield Row(title, tuple(_middle(cell) for _, cell in cells))
        else:
            yield Row(line.name, ())
            all_told = (group.cells[index] for group in everybody)
            others = any(cell is not None and cell.words[-1] is not None for cell in all_told)
            for place, word in enumerate((*line.words, *["other words"] * others)):
                parts = (_share(g, None if c is None else c.words[place]) for g, c in cells)
                yield Row(word, tuple(parts), is_part=True)
        if any(cell is None or cell.missing for _, cell in cells):
            missing = ("not recorded" if c is None else _share(g, c.missing) for g, c in cells)
            yield Row("missing", tuple(missing), is_part=True)


def _middle(cell: Cell | None) -> str:
    if cell is None or cell.middle is None:
        return _NONE
    values = (cell.middle.median, cell.middle.low, cell.middle.high)
    median, low, high = (f"{value:.6g}".replace("-", "\N{MINUS SIGN}") for value in values)
    return f"{median} [{low} to {high}]"


def _share(group: Group, count: Count | None) -> str:
    """A count and its share of all rows, which is a bound if some site did not tell its part."""
    if count is None:
        return _NONE
    bound = "≥ " if count.sites < group.num_sites else ""
    return f"{count.rows:,} ({bound}{plain(100 * count.rows / group.rows, 0)} %)"
