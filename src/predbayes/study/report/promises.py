"""What a report says of promised coverage, and where nothing is promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predbayes.study.plan.schema import Plan
from predbayes.study.result.schema import Promise, Result
from predbayes.study.wording import counted, decimals, plain

_NONE = "–"

Share = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Promised:
    """Tables of promised coverage, and what is said beside them."""

    words: list[str]  # where nothing is promised
    counted: str = ""  # by whom
    size: str = ""  # what sizes are
    levels: tuple[str, ...] = ()
    table: tuple[tuple[str, str, str, str], ...] = ()  # level, size, the model's own, its share
    sites: tuple[tuple[str, list[str]], ...] = ()  # shares by level
    by_class: bool = False


def promised(plan: Plan, result: Result) -> Promised:
    """Put promises into tables and words."""
    if plan.survival:
        return Promised(["No coverage is promised for times to an event."])
    found = result.at_sites
    if found is None or not found.promises:
        return Promised(
            [
                "No coverage is promised: no site has sent counts of scores with its evaluation, "
                "or they may not be shown here."
            ]
        )
    lines, num_rows = found.promises, sum(found.scores[0].counts)
    unit = f"widths in {plan.target.unit}" if plan.target.unit else "widths"
    sites = sorted({site for one in lines for site in one.covered})
    return Promised(
        words=[_unpromised(one, num_rows) for one in lines if one.size is None],
        counted=f"{counted(num_rows, 'held-out row')} of {counted(lines[0].num_sites, 'site')}",
        size="numbers of classes" if plan.classification else unit,
        levels=tuple(_percent(one.level) for one in lines),
        table=tuple(_line(one, _places(lines)) for one in lines),
        sites=tuple((s, [_share(one.covered.get(s)) for one in lines]) for s in sites),
        by_class=len(found.scores) > 1,
    )


def _line(one: Promise, places: int) -> tuple[str, str, str, str]:
    size = _NONE if one.size is None else plain(one.size, places)
    own = plain(one.credible_size, places)
    return _percent(one.level), size, own, _share(one.credible_covered)


def _places(lines: Sequence[Promise]) -> int:
    return decimals([one.credible_size for one in lines])


def _unpromised(one: Promise, num_rows: int) -> str:
    return (
        f"No coverage is promised at {_percent(one.level)}: {counted(num_rows, 'row')}, "
        "in bins of which none is small, are too few."
    )


def _share(share: Share | None) -> str:
    """A share of rows, or between which it is as far as counts tell."""
    if share is None:
        return _NONE
    low, high = (plain(100 * end, 1) for end in share)
    return f"{low} %" if low == high else f"{low} to {high} %"


def _percent(level: float) -> str:
    return f"{plain(100 * level)} %"
