"""Figures that pages claim, by name, each made from records and held against the pages.

A page writes the mark right after the number, where readers do not see it:

    an NLL of .358<!-- claim: gated.fashion-mnist.h0.9.nll --> without a label

A table of verdicts is counted in the same way: `EXPERIMENT.FILE.WORD` is the number of its lines
that say a word, as in

    better in 5<!-- claim: gates-auto.verdict-auto-gated.better-by-itself --> of 8 cells

`results/claims.json` has every claim that there are records for: its value, how many seeds it rests
on, its 95 % interval, and which records and pages it is about. `scripts/tables` has the table of
claims, one line each, and writes the file; a test compares it with records and pages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from predbayes_lab.records import Record
from predbayes_lab.tables import build_table, cell_label

# A number, perhaps with a percent sign or between stars, and the mark.
MARKED = re.compile(r"(?P<number>[-+]?\d*\.?\d+)(?P<percent> ?%)?\*{0,2}<!-- claim: \S+ -->")
ANY_MARK = re.compile(r"<!-- claim: (\S+) -->")


@dataclass(frozen=True, slots=True)
class Claim:
    """Which mean over seeds is claimed, or by how much it differs from another's."""

    experiment: str  # the folder below results/
    cell: str  # as in the head of a table: "fashion-mnist, heterogeneity=0.9"
    method: str
    metric: str = "nll"
    against: str | None = None  # then it is the difference, in parts of this method's mean


def marker(name: str) -> str:
    """Return what a page writes after the number.

    Examples:
        >>> marker("gated.mnist.h0.9.nll")
        '<!-- claim: gated.mnist.h0.9.nll -->'
    """
    return f"<!-- claim: {name} -->"


def figure(claim: Claim, records: Sequence[Record]) -> dict[str, Any] | None:
    """Return value, seeds and interval; None where the records do not have it yet."""
    wanted = {claim.method, claim.against} - {None}
    own = [r for r in records if r.method in wanted and cell_label(r.cell) == claim.cell]
    if {r.method for r in own if claim.metric in r.scores} != wanted:
        return None
    table = build_table(own, claim.metric, against=claim.against)
    entry = table.entries[claim.method, claim.cell]
    if claim.against is None:
        summary = entry.summary
        return _entry(summary.mean, summary.interval, summary.num)
    if entry.comparison is None:
        return None  # they share no seed
    compared, base = entry.comparison, table.entries[claim.against, claim.cell].summary.mean
    low, high = (end / abs(base) for end in compared.interval)
    return _entry(compared.difference / abs(base), (low, high), compared.num)


def _entry(value: float, interval: tuple[float, float], num: int) -> dict[str, Any]:
    finite = None if math.isnan(interval[0]) else [*interval]
    return {"value": value, "seeds": num, "interval": finite}


def marks(pages: Mapping[str, str]) -> Iterator[tuple[str, str, str | None]]:
    """Yield page, name and the number before each mark; None where there is no number."""
    for page, text in pages.items():
        numbers = {found.end(): found for found in MARKED.finditer(text)}
        for mark in ANY_MARK.finditer(text):
            found = numbers.get(mark.end())
            yield page, mark[1], found and f"{found['number']}{found['percent'] or ''}"


def agrees(shown: str, value: float) -> bool:
    """Say whether a page's number is the value, rounded as the page has it.

    A percentage is of a relative difference, and pages say "38 % below": its sign is in the words.

    Examples:
        >>> agrees(".358", 0.35794), agrees("0.36", 0.35794), agrees(".36", 0.35)
        (True, True, False)
        >>> agrees("38 %", -0.384)
        True
    """
    number = shown.rstrip(" %")
    if shown.endswith("%"):
        value, number = 100 * abs(value), number.lstrip("+-")
    decimals = len(number.partition(".")[2])
    # Numerics: a half may be rounded to either side.
    return abs(float(number) - value) <= 0.5 * 0.1**decimals + 1e-9
