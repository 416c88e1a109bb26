"""Rules as data: the review of a plan, the check of a table and a site's policy are tables of them.

A `Rule` has a key, a severity, a function that finds what is wrong, and a message. Extras add rules
to the same tables, under the name that the table has in `Extra.rules`. A `Finding` is what a person
reads: something to fix or to know. Its text has no cell of a table, because messages are copied
into e-mails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

Severity = Literal["error", "warning"]
C_contra = TypeVar("C_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to fix, to decide or to know."""

    severity: Severity
    text: str
    values: tuple[str, ...] = field(default=(), repr=False)  # cells, not for any message
    hides: bool = False  # lines and counts, which are not for any message either
    key: str = ""  # of the rule


class Rule(NamedTuple, Generic[C_contra]):
    """One line of a table of rules.

    Args:
        key: What it is about: a key of a plan or of a policy, or a name of its own.
        severity: Whether what it finds forbids something.
        finds: Returns whether something is wrong, or everything that is wrong, from what is asked.
        message: What to say, with what was found as `found` and what is asked as `asked`.
    """

    key: str
    severity: Severity
    finds: Callable[[C_contra], bool | Iterable[Any]]
    message: str = "{found}"

    def findings(self, asked: C_contra) -> Iterator[Finding]:
        """Yield a finding for each thing that is wrong; what was found may be one already."""
        found = self.finds(asked)
        for one in (asked,) * found if isinstance(found, bool) else found:
            if isinstance(one, Finding):
                yield replace(one, key=self.key)
            else:
                text = self.message.format(found=one, asked=asked)
                yield Finding(self.severity, text, key=self.key)


def findings(rules: Iterable[Rule[C_contra]], asked: C_contra) -> Iterator[Finding]:
    """Yield what rules find, each with the rule's key before its text."""
    for rule in rules:
        for found in rule.findings(asked):
            yield replace(found, text=f"{found.key}: {found.text}")


def error(text: str, values: Sequence[str] = ()) -> Finding:
    """Return what must be fixed."""
    return Finding("error", text, tuple(values))


def warning(text: str, values: Sequence[str] = ()) -> Finding:
    """Return what you should know."""
    return Finding("warning", text, tuple(values))


def errors_of(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that must be fixed."""
    return tuple(finding for finding in found if finding.severity == "error")
