"""Groups of rows that a plan names, by one of its columns, and which rows belong to each.

    "sex"                        one group for each category of the column
    "age: 0-49, 50-64, 65-"      ranges of a number: each begins at its first number and ends where
                                 the next begins; the last may have an end, which belongs to it

Rows that are in none of them, because something else or nothing is known, are one more group: with
it groups add up to all rows, and what follows by subtraction can be seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from predbayes_study.plan.schema import Column

ELSEWHERE = "none of these, or not known"
"""The name of the last group of every column."""

_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\s*-\s*(-?\d+(?:\.\d+)?)?")


@dataclass(frozen=True, slots=True)
class Grouping:
    """The groups of one column; rows of none of them are one more."""

    column: str
    names: tuple[str, ...]
    starts: tuple[float, ...] = ()  # of ranges, in ascending order; none of a category
    end: float | None = None  # of the last range

    @classmethod
    def of(cls, text: str, columns: Mapping[str, Column]) -> Grouping:
        """Read a group's text; refuse what does not fit the columns.

        Examples:
            >>> from predbayes_study.plan.schema import Number
            >>> Grouping.of("age: 0-49, 50-", {"age": Number(type="number")}).starts
            (0.0, 50.0)
        """
        name, _, ranges = (text, "", "") if text in columns else text.partition(":")
        name = name.strip()
        if name not in columns:
            raise ValueError(f"there is no column {name!r}")
        column = columns[name]
        if column.type == "category":
            if ranges:
                raise ValueError(f"{name!r} has categories, not ranges")
            return cls(name, column.categories)
        if column.type != "number":
            raise ValueError(f"{name!r} is {column.type}, which has no groups")
        return cls._of_ranges(name, ranges)

    @classmethod
    def _of_ranges(cls, name: str, text: str) -> Grouping:
        """Ranges of a number."""
        parts = [part.strip() for part in text.split(",")]
        found = [_RANGE.fullmatch(part) for part in parts]
        ends = [(float(m[1]), None if m[2] is None else float(m[2])) for m in found if m]
        starts = tuple(start for start, _ in ends)
        in_order = all(
            end is not None and start <= end < following
            for (start, end), following in zip(ends, starts[1:], strict=False)
        )
        last = ends[-1] if ends else (0.0, None)
        if len(ends) < len(parts) or not in_order or (last[1] is not None and last[1] < last[0]):
            raise ValueError(
                f"{name!r} is a number; write ranges in ascending order, such as "
                f'"{name}: 0-49, 50-64, 65-"'
            )
        return cls(name, tuple(parts), starts, ends[-1][1])
