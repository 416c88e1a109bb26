"""Table 1 from surveys: sums of what sites told, and quartiles of all their rows together.

Every count is a sum of counts that are rounded down, so it is "at least". It has no part of a site
that did not tell, so what a site hid does not follow from the others. Quartiles are those of the
mixture of the sites' quantile functions, by rows, over the sites that told quartiles and whose
units agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predbayes.errors import StudyError
from predbayes_study.extras.survey.marginal import Marginal
from predbayes_study.extras.survey.merge import agreeing
from predbayes_study.extras.survey.surveyfile import (
    CategoryTold,
    NumberTold,
    Survey,
)
from predbayes_study.extras.survey.tableone import Cell, Count, Group, Line, Middle, TableOne
from predbayes_study.plan.schema import Category, Number, Plan

_QUARTILES = (25, 50, 75)
_LEVELS = (np.arange(2000) + 0.5) / 2000


def table_one(plan: Plan, surveys: Sequence[Survey], num_sites: int) -> TableOne | None:
    """Return the table by the surveys of a result's sites; None if there is none."""
    if not surveys:
        return None
    told = sorted(surveys, key=lambda survey: survey.site)
    lines = tuple(_line(plan, name) for name in plan.names if name not in plan.vectors)
    sites = tuple(
        Group(
            name=survey.site, rows=survey.rows, cells=tuple(_cell(line, survey) for line in lines)
        )
        for survey in told
    )
    rows = sum(survey.rows for survey in told)
    cells = tuple(_total(plan, line, k, sites, told) for k, line in enumerate(lines))
    return TableOne(
        step=max(survey.step for survey in told),
        num_sites=num_sites,
        lines=lines,
        total=Group(name="All sites", rows=rows, num_sites=len(told), cells=cells),
        sites=sites,
    )


def require_fitting(plan: Plan, survey: Survey) -> None:
    """Refuse a survey that is of other columns than the plan's, in kind, unit or words."""
    for name, told in survey.columns.items():
        if name not in plan.names:
            raise StudyError(f"it tells of {name}, which is no column of the plan")
        column = plan.column(name)
        if told.type != column.type:
            raise StudyError(f"it tells of {name} as a {told.type}; in the plan it is none")
        if isinstance(told, NumberTold) and isinstance(column, Number) and told.unit != column.unit:
            raise StudyError(f"it tells of {name} in another unit than the plan's")
        if isinstance(told, CategoryTold) and isinstance(column, Category):
            strange = [word for word in told.words if word not in column.categories]
            if strange:
                raise StudyError(f"it tells of words of {name} that the plan does not have")


def _line(plan: Plan, name: str) -> Line:
    column = plan.column(name)
    if isinstance(column, Category):
        return Line(name=name, words=column.categories)
    return Line(name=name, unit=column.unit)


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
    return Cell(missing=_count(told.missing), words=tuple(map(_count, words)))


def _count(rows: int | None) -> Count | None:
    return None if rows is None else Count(rows=rows)


def _total(
    plan: Plan, line: Line, index: int, sites: Sequence[Group], surveys: Sequence[Survey]
) -> Cell | None:
    """All sites together; None if no site has the column."""
    cells = [site.cells[index] for site in sites]
    there = [cell for cell in cells if cell is not None]
    if not there:
        return None
    absent = [
        Count(rows=site.rows) for site, cell in zip(sites, cells, strict=True) if cell is None
    ]
    words = [_sum([cell.words[k] for cell in there if cell.words]) for k in _places(line)]
    return Cell(
        missing=_sum([*(cell.missing for cell in there), *absent]),
        middle=None if line.words else _pooled(plan, line.name, surveys),
        words=tuple(words),
    )


def _places(line: Line) -> range:
    """Of the words and, behind them, of all others."""
    return range(len(line.words) + 1 if line.words else 0)


def _sum(counts: Sequence[Count | None]) -> Count | None:
    told = [count for count in counts if count is not None]
    if not told:
        return None
    return Count(rows=sum(count.rows for count in told), sites=len(told))


def _pooled(plan: Plan, name: str, surveys: Sequence[Survey]) -> Middle | None:
    """Quartiles of the rows of all sites whose units agree and that told quartiles."""
    column = plan.column(name)
    limits = column.range if isinstance(column, Number) else None
    rows = {survey.site: survey.rows for survey in surveys}
    told = {
        site: one
        for site, one in agreeing(name, surveys).items()
        if set(_QUARTILES) <= one.quantiles.keys()
    }
    marginals = {site: Marginal.of(one, limits) for site, one in told.items()}
    values = [one.at(_LEVELS) for one in marginals.values() if one is not None]
    if not values:
        return None
    known = [
        max(rows[site] - sum(count or 0 for count in one.counts), 1) for site, one in told.items()
    ]
    weights = np.repeat(np.array(known, dtype=float), len(_LEVELS))
    everything = np.concatenate(values)
    order = np.argsort(everything, kind="stable")
    levels = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    places = max(one.decimals for one in told.values())
    low, median, high = (
        round(float(np.interp(level / 100, levels, everything[order])), places)
        for level in _QUARTILES
    )
    return Middle(low=low, median=median, high=high, sites=len(told))
