"""What is wrong with a table, as data; this is the one place where it becomes words.

A `Problem` says what kind it is, which column has it, and on which lines. Code decides by the kind,
never by the words. A `Finding` is what a person reads: something to mend or to know. Neither has a
cell in its text, because messages are copied into e-mails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

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
        what = self.kind.value.format(detail=self.detail)
        if not self.lines:
            return f"{self.column}: {what}"
        values = "value" if len(self.lines) == 1 else "values"
        return f"{self.column}: {len(self.lines)} {values} {what} ({listed(self.lines)})"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend, to decide or to know."""

    severity: Literal["error", "warning"]
    text: str
    values: tuple[str, ...] = field(default=(), repr=False)  # cells, not for any message


def error(text: str, values: Sequence[str] = ()) -> Finding:
    """Return what must be mended."""
    return Finding("error", text, tuple(values))


def warning(text: str, values: Sequence[str] = ()) -> Finding:
    """Return what somebody should know."""
    return Finding("warning", text, tuple(values))


def errors_of(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return those that must be mended."""
    return tuple(finding for finding in findings if finding.severity == "error")


def listed(lines: Sequence[int]) -> str:
    """Name the first few lines, and how many more there are.

    Examples:
        >>> listed([4]), listed([4, 17]), listed(range(2, 10))
        ('line 4', 'lines 4, 17', 'lines 2, 3, 4, 5, 6 and 3 more')
    """
    shown = lines[:_MAX_LINES]
    more = f" and {len(lines) - len(shown)} more" if len(lines) > len(shown) else ""
    return f"{'line' if len(lines) == 1 else 'lines'} {', '.join(map(str, shown))}{more}"
