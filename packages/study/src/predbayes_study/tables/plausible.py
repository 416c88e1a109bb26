"""Does a site's table look like the plan's? Other units, and targets that are the wrong way round.

Ranges are wide and words are few, so a table in other units, or with yes for no, may fit a plan to
the letter. What the plan knows of the reference rows tells them apart:

    centre, scale   of each number. With values in another unit the middle is far off, and the
                    spread as well; a factor between known units that mends both is named
    share           of the second of two classes. A swapped target has about one minus it
    trend           correlation of each number with the target. A swapped one points the other way

Hospitals differ, so each rule asks for far more than that: a doubt about a unit is a warning that
people look at. A target that is the wrong way round spoils the site's model and the pool. So a
doubt about it is an error, also for training, until `confirmed = true` under [target] in site.toml
says that somebody looked and it is right. No text has a value or a count of the site's; a factor is
one of a list.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from predbayes.errors import DataError
from predbayes_study.plan.schema import Number, Plan
from predbayes_study.plan.text import toml_value
from predbayes_study.tables.sitefile import SITE_FILE, SiteFile
from predbayes_study.tables.vocabulary import (
    CONVERSIONS,
    Conversion,
    concepts_of,
    conversions,
    normal_unit,
)
from predbayes_study.wording import six_digits

Array = np.ndarray[Any, Any]

MIN_VALUES = 20
"""With fewer a middle and a spread say too little; nor may they be of a few people."""

FAR = 2.5
"""Distance of middle and spread from the plan's from which on another unit is looked for."""

ELSEWHERE = 4.0
"""Scales between middles from which on no unit need explain it."""

_NEAR = 0.8  # distance that a factor must leave
_GAIN = 2.0  # and by which it must be nearer
_TAILS = (0.01, 0.99)  # beyond which single values count as these quantiles
_MIN_APART = 0.3  # of a share and one minus it, for them to be told apart
_SWAPPED = 0.15  # of the share's distance to one minus it, at most, in which a swapped one lies
_OPPOSITE = -0.5  # cosine of the plan's trends and the site's
_SURE = -4.0  # standard errors
_TINY = sys.float_info.min  # a spread that is smaller counts as this
_CONFIRM = f"write confirmed = true under [target] in {SITE_FILE}"
_DECIMAL = tuple(Conversion("", "", "", factor) for factor in (0.001, 0.01, 0.1, 10, 100, 1000))


def unit_doubt(
    name: str, column: Number, values: Array, *, theirs: str, where: str, is_log: bool = False
) -> str:
    """Say that a column looks as if it were in another unit; empty if it does not.

    Args:
        name: The plan's name of the column.
        column: Its form; without centre and scale nothing can be said.
        values: Of the site in the plan's unit, as far as it knows; NaN is missing.
        theirs: The site's name of it.
        where: A factor is written.
        is_log: Whether values, centre and scale are logarithms.
    """
    known = values[np.isfinite(values)]
    if column.centre is None or column.scale is None or len(known) < MIN_VALUES:
        return ""
    middle, spread = float(np.median(known)), _spread(known)
    if np.ptp(np.quantile(known, (0.25, 0.75))) == 0:
        return ""  # half of the rows or more have one value: neither is a measure of the rest
    if distance(column, middle, spread) < FAR:
        return ""
    if way := conversion_between(name, column, middle, spread, theirs=theirs, is_log=is_log):
        return _advice(name, way, where, is_log=is_log)
    if abs(middle - column.centre) < ELSEWHERE * column.scale:
        return ""
    return (
        f"{name}: its middle is far from that of the reference rows; is it the right column, in "
        f"{column.unit or 'the unit of the plan'}?"
    )


def conversion_between(
    name: str, column: Number, middle: float, spread: float, *, theirs: str, is_log: bool = False
) -> Conversion | None:
    """Return the change of units that brings a far middle and spread to the plan's, if one does."""
    as_it_is = distance(column, middle, spread)
    for ways in (_of_unit(name, theirs, column), _by_any_name(column), _DECIMAL):
        left = {way: _after(column, way, middle, spread, is_log=is_log) for way in ways}
        best = min(left, key=left.__getitem__, default=None)
        if best is not None and left[best] < min(_NEAR, as_it_is - _GAIN):
            return best
    return None


def target_doubts(plan: Plan, codes: Array, targets: Array) -> Iterator[str]:
    """Say that two classes look swapped, or a numeric target turned round.

    Args:
        plan: What it is compared with.
        codes: (N, columns) of the site's table.
        targets: (N,) classes, or numbers.
    """
    from predbayes_study.tasks import task_of  # units are looked at without torch

    name, known = plan.target.name, np.isfinite(targets)
    if not task_of(plan).has_trend or known.sum() < MIN_VALUES:
        return
    share = plan.target.share
    if share is not None and is_swapped(share, float(targets[known].mean())):
        first, second = plan.target.classes or ("", "")
        yield (
            f"{name}: {second!r} is about as frequent here as {first!r} in the reference rows; "
            f"are they swapped? If so, recode them; if not, {_CONFIRM}"
        )
    elif _points_back(plan, codes[known], targets[known]):
        yield (
            f"{name}: numbers that rise with it in the reference rows fall with it here; is the "
            f"target the wrong way round, or another column? If not, {_CONFIRM}"
        )


def require_right_way(plan: Plan, site: SiteFile, codes: Array, targets: Array) -> None:
    """Refuse a target that looks as if it were the wrong way round and that nobody confirmed."""
    if not site.target.confirmed:
        for doubt in target_doubts(plan, codes, targets):
            raise DataError(doubt)


def _spread(values: Array) -> float:
    """Standard deviation; single values far out, such as codes for missing, hardly count."""
    low, high = np.quantile(values, _TAILS)
    return float(values.clip(low, high).std())


def distance(column: Number, middle: float, spread: float) -> float:
    """Return how far off the plan's numbers are: the middle in scales, the spread in logarithms."""
    assert column.centre is not None
    assert column.scale is not None
    # Numerics: a ratio of positive numbers may still be too small for a float, as 0 is.
    wider = math.log(max(spread, _TINY)) - math.log(max(column.scale, _TINY))
    return abs(middle - column.centre) / column.scale + abs(wider)


def _after(column: Number, way: Conversion, middle: float, spread: float, *, is_log: bool) -> float:
    if is_log:
        return distance(column, middle + math.log(way.factor), spread)
    return distance(column, middle * way.factor + way.offset, spread * way.factor)


def _of_unit(name: str, theirs: str, column: Number) -> list[Conversion]:
    """Ways to the plan's unit from others in which the same is measured."""
    return conversions(concepts_of(name) | concepts_of(theirs), "", normal_unit(column.unit))


def _by_any_name(column: Number) -> list[Conversion]:
    """All ways to the plan's unit; all there are, if it states none."""
    unit = normal_unit(column.unit)
    return [way for way in CONVERSIONS if not unit or way.to == unit]


def _advice(name: str, way: Conversion, where: str, *, is_log: bool) -> str:
    factor = toml_value(six_digits(way.factor))
    also = f", offset = {toml_value(six_digits(way.offset))}" if way.offset and not is_log else ""
    units = f" ({way.unit} to {way.to})" if way.unit else ""
    return (
        f"{name}: looks as if it were in another unit: times {factor}{units} it would be "
        f"like the reference rows; if so, write factor = {factor}{also} {where}"
    )


def is_swapped(plans: float, here: float) -> bool:
    """Return whether a share is near one minus the plan's, and far from the plan's."""
    apart = abs(1 - 2 * plans)
    return apart > _MIN_APART and abs(here - (1 - plans)) < _SWAPPED * apart


def _points_back(plan: Plan, codes: Array, targets: Array) -> bool:
    """Whether the site's correlations are, together, the opposite of the plan's."""
    trends, here = [], []
    for index, column in enumerate(plan.columns.values()):
        if isinstance(column, Number) and column.trend:
            trends.append(column.trend)
            here.append(correlation(codes[:, index], targets))
    ours, theirs = np.array(trends), np.array(here)
    length = float(np.linalg.norm(ours))
    if not len(ours) or not np.linalg.norm(theirs):
        return False
    along = float(ours @ theirs) / length
    return (
        along * math.sqrt(len(targets)) < _SURE
        and along / float(np.linalg.norm(theirs)) < _OPPOSITE
    )


def correlation(x: Array, y: Array) -> float:
    """Return the correlation where both are known; 0 if it cannot be said."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    with np.errstate(all="ignore"):
        found = float(np.corrcoef(x, y)[0, 1])
    return found if math.isfinite(found) else 0.0
