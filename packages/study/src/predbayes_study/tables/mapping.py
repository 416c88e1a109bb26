"""A site's table in the plan's columns, words and units, by the site's own file.

A cell goes through it in this order: a missing code becomes an empty cell; a recode gives the
plan's word or number, and is final; a limit such as <5 becomes a number, if the file says which; a
day becomes the time from it to another; a number becomes value * factor + offset. What is left is
text as `coding` takes it, and the rows keep their lines in the site's file. No message repeats a
cell.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from predbayes.errors import DataError, no_such
from predbayes.progress import each_column
from predbayes_study.plan.schema import Column, Plan
from predbayes_study.tables.column import key_of, to_number, to_point
from predbayes_study.tables.problem import Kind, Problem, least_cell
from predbayes_study.tables.reading import read_raw
from predbayes_study.tables.sitefile import SITE_FILE, SiteColumn, SiteFile
from predbayes_study.tables.vectors import with_vectors
from predbayes_study.tables.vocabulary import NUMBER_CODES, normal_unit

PATIENT = "\n"
"""Name of the column that says whose row it is; no plan can have such a name."""

_LIMIT = re.compile(r"([<>≤≥])=?\s*(\S+)")
_DAYS = {"years": 365.25, "months": 365.25 / 12, "h": 1 / 24}  # in one unit; else days


def read_site_table(plan: Plan, site: SiteFile, path: Path, *, target: bool = True) -> pd.DataFrame:
    """Read a site's rows in the plan's columns and units, text cells, by their lines in the file.

    A column that the file lacks is left out; the target is there if the file has it. Without
    ``target`` nobody looks for it: of patients to come it is not known yet.
    """
    # What a site says of the rows that it trains on may be mailed to others.
    least = least_cell(plan) if target else 0
    raw = read_raw(site.file, path, least=least, row_by_row=plan.promise is not None)
    frame, ambiguous = translate(plan, site, raw)
    if plan.promise is not None:  # no single cell decides whether the site can train
        for problem in ambiguous:
            frame.loc[[*problem.lines], problem.column] = ""
        ambiguous = ()
    problems = [*entry_problems(plan, site, raw.columns), *ambiguous]
    asked = [p for p in problems if target or p.column not in plan.outcomes]
    wrong = [problem.told(least) for problem in asked]
    if wrong:
        raise DataError(f"{path.name} and {SITE_FILE} do not fit: {'; '.join(wrong)}")
    return with_vectors(plan, frame, path, stores_of(plan, site))


def translate(
    plan: Plan, site: SiteFile, raw: pd.DataFrame
) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """Return the plan's columns, as far as the file has them, and which cells are ambiguous."""
    columns: dict[str, Any] = {}
    problems: list[Problem] = []
    for name in each_column(plan.names, "translating"):
        entry = site.entry(plan, name)
        if entry.column not in raw.columns:
            continue
        column = plan.column(name)
        if name in plan.vectors:
            columns[name] = list(raw[entry.column])
            continue
        change = _cell_change(entry, site, column)
        places, texts = pd.factorize(raw[entry.column].to_numpy(dtype=object))
        cells = np.array([change(text) for text in texts], dtype=object)
        unclear = cells == None  # noqa: E711
        columns[name] = np.where(unclear, texts, cells)[places]
        if entry.date:
            columns[name] = _times(entry, column, columns[name], _ends(entry, raw))
        if unclear.any():
            problems.append(Problem(Kind.POINT, name, tuple(raw.index[unclear[places]].tolist())))
    if site.patient and site.patient in raw.columns:
        columns[PATIENT] = list(raw[site.patient])
    return pd.DataFrame(columns, index=raw.index, dtype=object), tuple(problems)


def stores_of(plan: Plan, site: SiteFile) -> dict[str, str]:
    """Return the files of vectors that a site names, by the plan's column."""
    return {name: site.entry(plan, name).file for name in plan.vectors}


def entry_problems(plan: Plan, site: SiteFile, header: Sequence[str]) -> list[Problem]:
    """Find names in the site's file that the plan, or the table, does not have."""
    problems = [
        Problem(Kind.MISNAMED, "[columns]", detail=no_such("column of the plan", name, plan.names))
        for name in site.columns
        if name not in (*plan.columns, *plan.outcomes[1:])
    ]
    names = [str(name) for name in header]
    if site.patient and site.patient not in names:
        detail = no_such("column in the file", site.patient, names)
        problems.append(Problem(Kind.MISNAMED, "patient", detail=detail))
    for name in plan.names:
        entry = site.target if name == plan.target.name else site.columns.get(name)
        asked = () if entry is None else (entry.column, "" if _day(entry.until) else entry.until)
        problems += [
            Problem(Kind.MISNAMED, name, detail=no_such("column in the file", theirs, names))
            for theirs in asked
            if theirs and theirs not in names
        ]
    return problems


def is_limit(text: str) -> bool:
    """Return whether a cell says no more than that a number is below or above another.

    Examples:
        >>> is_limit("<5"), is_limit("> 100"), is_limit("5")
        (True, True, False)
    """
    return _LIMIT.fullmatch(text) is not None


def _limited(text: str, entry: SiteColumn, decimal: str) -> float | str | None:
    """The number that stands for a limit, or an empty cell; None where it is for others to say."""
    found = _LIMIT.fullmatch(text) if entry.limit != "refuse" else None
    number = to_number(found[2], decimal) if found else None
    if found is None or number is None:
        return None
    if entry.limit == "missing":
        return ""
    return number / 2 if entry.limit == "half" and found[1] in "<≤" else number


def _day(text: str, form: str = "%Y-%m-%d") -> datetime.date | None:
    try:
        return datetime.datetime.strptime(text, form).date()  # a day has no zone
    except (ValueError, re.error):  # one that names a part of a day twice is the latter
        return None


def _ends(entry: SiteColumn, raw: pd.DataFrame) -> list[datetime.date | None]:
    """The days to which time is counted, one for each row."""
    if fixed := _day(entry.until):
        return [fixed] * len(raw)
    if entry.until not in raw.columns:
        return [None] * len(raw)  # which is said elsewhere
    return [_day(text, entry.date) for text in raw[entry.until]]


def _times(
    entry: SiteColumn,
    column: Column,
    cells: Sequence[str],
    ends: Sequence[datetime.date | None],
) -> list[str]:
    """Days as the time from each of them to its end, in the plan's unit."""
    days = _DAYS.get(normal_unit(column.unit), 1.0)
    times: list[str] = []
    for cell, end in zip(cells, ends, strict=True):
        begin = _day(cell, entry.date)
        if begin is None or end is None:
            times.append(cell)  # whoever reads it next says that it is no number
        else:
            times.append(repr((end - begin).days / days * entry.factor + entry.offset))
    return times


def _cell_change(entry: SiteColumn, site: SiteFile, column: Column) -> Callable[[str], str | None]:
    """What becomes of one cell; None is a number that could be read in two ways."""
    decimal, is_number = site.file.decimal, not column.words
    missing = dict.fromkeys((*site.missing.codes, *entry.missing), "")
    # Codes are written with a point, as all of TOML, or copied from the table.
    final = {
        key_of(code.strip(), mark, is_number=is_number): word
        for code, word in (entry.recode | missing).items()
        for mark in {decimal, "."}
    }

    def change(text: str) -> str | None:
        key = key_of(text, decimal, is_number=is_number)
        if key in final or not is_number:
            return final.get(key, text)
        limit = _limited(text, entry, decimal)
        if limit == "":
            return ""
        number = to_number(text, decimal) if limit is None else float(limit)
        if limit is not None and number is not None:
            return repr(number * entry.factor + entry.offset)
        if number is None or (entry.factor, entry.offset) == (1.0, 0.0):
            return to_point(text, decimal)
        converted = number * entry.factor + entry.offset
        # A code for missing that is converted would be clipped as if it had been measured.
        both = (number, converted)
        is_code = number in NUMBER_CODES and all(_is_outside(n, column) for n in both)
        return repr(number if is_code else converted)

    return change


def _is_outside(number: float, column: Column) -> bool:
    return column.range is not None and not column.range[0] <= number <= column.range[1]
