"""What is wrong with a table, as data; this is the one place where it becomes words.

A `Problem` says what kind it is, which column has it, and on which lines. Code decides by the kind,
never by the words. Like a `Finding` it has no cell in its text, because messages are copied into
e-mails.

For the same reason texts that may leave name no line and no exact count: a plan's range can be so
narrow that how many values are outside, or inside, is about one person. Counts are told in steps of
`least_cell`. Whoever asks to see values sees lines and counts as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from predbayes_study.plan.schema import Plan
from predbayes_study.wording import counted

FEWEST_TOLD = 5
"""Smaller counts are not told, even if the plan's `min_cell` is less."""

_MAX_LINES = 5  # of one problem that are listed


class Kind(Enum):
    """Kinds of problems, with their words."""

    ABSENT = "the column is missing"
    REPEATED = "several columns have this name"
    MISNAMED = "{detail}"
    UNREADABLE = "that cannot be read as a finite number"
    COMMA = "with a decimal comma, where a point is needed"
    POINT = "with a point, in a file that has decimal commas"
    OUTSIDE = "outside {detail}"
    UNLISTED = "not in the plan's list"
    NOT_POSITIVE = "not positive, so without a logarithm"
    NEGATIVE = "negative, which no time is"
    NO_VECTOR = "without a vector that can be read"
    SIZE = "other than {detail}"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with one column.

    Examples:
        >>> print(Problem(Kind.OUTSIDE, "age", (4, 17, 203), "18 to 100"))
        age: 3 values outside 18 to 100 (lines 4, 17, 203)
        >>> print(Problem(Kind.ABSENT, "sex"))
        sex: the column is missing
    """

    kind: Kind
    column: str  # of the plan
    lines: tuple[int, ...] = ()  # the header is line 1; none where the whole column is meant
    detail: str = ""  # of the plan or of names; never a cell

    def __str__(self) -> str:
        return self.told(0)

    def told(self, least: int) -> str:
        """Return it without lines, its count in steps of the least that may be told; 0: all of it.

        Examples:
            >>> Problem(Kind.MISSING, "age", (4, 17, 203)).told(5)
            'age: fewer than 5 values missing'
        """
        what = self.kind.value.format(detail=self.detail)
        if not self.lines:
            return f"{self.column}: {what}"
        where = "" if least else f" ({listed(self.lines)})"
        return f"{self.column}: {stepped(len(self.lines), 'value', least)} {what}{where}"


def least_cell(plan: Plan) -> int:
    """Return the least count that may be told about a plan's columns."""
    return max(FEWEST_TOLD, plan.rules.min_cell)


def stepped(count: int, noun: str, least: int) -> str:
    """Return a count in steps of the least that may be told; 0: as it is.

    Examples:
        >>> stepped(3, "row", 5), stepped(118, "row", 5), stepped(118, "row", 0)
        ('fewer than 5 rows', 'at least 115 rows', '118 rows')
    """
    if not least:
        return counted(count, noun)
    if count < least:
        return f"fewer than {counted(least, noun)}"
    return f"at least {counted(count - count % least, noun)}"


def listed(lines: Sequence[int]) -> str:
    """Name the first few lines, and how many more there are.

    Examples:
        >>> listed([4]), listed([4, 17]), listed(range(2, 10))
        ('line 4', 'lines 4, 17', 'lines 2, 3, 4, 5, 6 and 3 more')
    """
    shown = lines[:_MAX_LINES]
    more = f" and {len(lines) - len(shown)} more" if len(lines) > len(shown) else ""
    return f"{'line' if len(lines) == 1 else 'lines'} {', '.join(map(str, shown))}{more}"
