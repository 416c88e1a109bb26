r"""From a site's table to its survey: what may be told of columns, and what may not.

    counts       in steps of `step`, rounded down. A smaller one is not told, nor is there a word
                 for none. One that is left out alone would follow from the others, so the
                 smallest of these is left out as well, as long as those left out are one, or have
                 fewer rows than a step together
    words        the plan's; others only if a step of rows has them and they are short, and none at
                 all if most rows have rare ones: then the column is free text
    quantiles    only with four steps of rows beyond them on either side, so no least and no
                 greatest; and rounded until a step of rows lies within what the number stands for
    moments      each value within `BOUND` spreads of the middle that quantiles tell, whatever the
                 draft says: with a centre and a scale of its choice it could count single people;
                 only of `ROWS_PER_SUM` times as many rows as there are sums; every sum in steps
                 of what `step` rows can add to it, and none of fewer rows than that

With `patient` in `site.toml` a row is a person: of each the first one counts. So no number of a
survey is of fewer people than a step. One row more or less moves most figures by nothing, some by a
step, and may make a count appear or vanish. `tests/study/attacks/test_survey.py` has what can be
found
out all the same.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from predbayes.errors import DataError, PlanError, TextError
from predbayes.text import is_formula, require_printable
from predbayes_study.extras.survey import section
from predbayes_study.extras.survey.surveyfile import (
    LARGEST,
    LEVELS,
    MAX_WORD,
    MAX_WORDS,
    CategoryTold,
    Feature,
    Moments,
    NumberTold,
    Survey,
)
from predbayes_study.plan.schema import Category, Number, Plan
from predbayes_study.tables.column import Coded, as_texts, code_column, key_of
from predbayes_study.tables.mapping import PATIENT, read_site_table
from predbayes_study.tables.problem import Kind
from predbayes_study.tables.sitefile import SiteColumn, SiteFile
from predbayes_study.tables.vocabulary import NUMBER_CODES

Array = np.ndarray[Any, Any]

MIN_STEPS = 4
"""A table of fewer steps of rows than this is not surveyed."""

BEYOND = 4
"""Steps of rows that lie beyond a quantile, on either side."""

BOUND = 3.0
"""Scales from its centre that a value counts for in sums, at the most."""

ROWS_PER_SUM = 10
"""Rows for each sum of moments. Whoever knows somebody's row, and how people are everywhere, can
tell from D sums over N rows whether it is among them with an accuracy that rises with D / N."""

_FAR = 4.0  # spreads from the median from which on a number may be a code for missing
_MOST = 0.95  # of values that have so many decimals
_GRID = (1.0, 2.0, 5.0)
_FINEST = 1e-3  # of a spread, to which quantiles are told at the most


_Told = tuple[NumberTold | CategoryTold, Coded]
"""What is told of a column, and its codes: of words their place among the told ones.

The code of a cell that is neither told nor missing is no number, and it has a fault or is odd.
"""


def take_survey(
    plan: Plan,
    site: SiteFile,
    path: Path,
    *,
    step: int,
    key: str,
    moments: bool,
    seen: str = "",
) -> Survey:
    """Survey a site's table.

    Args:
        plan: A draft, or a frozen plan.
        site: How the table becomes one in the plan's columns and units.
        path: The table.
        step: The least count that is told, and the step of greater ones.
        key: The site's public key, as hexadecimal digits.
        moments: Whether sums of products may be told; they are if the plan asks for them, too.
        seen: The ledger's head in the signed kit; empty of a draft.
    """
    plan.require_scalars("a survey")
    frame = read_site_table(plan, site, path)
    if PATIENT in frame:  # a row that names no patient is one of its own
        again = frame[PATIENT].duplicated() & (frame[PATIENT] != "")
        frame = frame[~again].reset_index(drop=True)
    if len(frame) < MIN_STEPS * step:
        raise DataError(f"{path.name}: fewer than {MIN_STEPS * step} rows are not surveyed")
    coded: dict[str, _Told] = {}
    for name in plan.names:
        column = plan.column(name)
        if name in frame and isinstance(column, Category):
            coded[name] = _code_words(column, frame[name], step)
        elif name in frame:
            assert isinstance(column, Number)
            coded[name] = _code_numbers(column, site.entry(plan, name), frame[name], step)
    inputs = {name: one for name, one in coded.items() if name in plan.columns}
    stated = plan.section(section.SurveyTerms)
    asked = moments and stated is not None and stated.moments
    return Survey(
        plan=plan.digest(),
        site=site.name,
        key=key,
        seen=seen,
        step=step,
        rows=_stepped(len(frame), step),
        columns={name: told for name, (told, _) in coded.items()},
        absent=tuple(name for name in plan.names if name not in frame),
        moments=_moments(inputs, len(frame), step) if asked else None,
    )


# Counts


def told_counts(counts: Sequence[int], step: int) -> list[int | None]:
    """Return the counts of one table that may be told, in steps; None where one may not.

    Examples:
        >>> told_counts([52, 41, 3, 0], 5), told_counts([52, 41, 12, 0], 5)
        ([50, None, None, None], [50, 40, 10, None])
    """
    hidden = [0 < count < step for count in counts]

    def is_safe() -> bool:
        left = [count for count, is_hidden in zip(counts, hidden, strict=True) if is_hidden]
        return not left or (len(left) > 1 and sum(left) >= step)

    while not is_safe():
        shown = [k for k, count in enumerate(counts) if count and not hidden[k]]
        if not shown:
            break
        hidden[min(shown, key=counts.__getitem__)] = True
    return [
        None if is_hidden or not count else _stepped(count, step)
        for count, is_hidden in zip(counts, hidden, strict=True)
    ]


def _stepped(count: int, step: int) -> int:
    return count - count % step


def _or_none(count: int, step: int) -> int | None:
    return _stepped(count, step) or None


# Words


def _code_words(column: Category, cells: pd.Series, step: int) -> _Told:
    texts = [key_of(text) for text in as_texts(cells)]
    counts = Counter(text for text in texts if text)
    listed = {key_of(word.strip()): word for word in column.categories}
    if len(listed) < len(column.categories):
        raise PlanError(f"{cells.name}: two categories are one word, as 1 and 1.0 are; keep one")
    unlisted = _frequent({w: n for w, n in counts.items() if w not in listed}, counts, step)
    if any(map(is_formula, unlisted)):
        raise DataError(
            f"`{cells.name}`: a spreadsheet would run a frequent word as a formula. Map it to "
            f"another with `recode` for {cells.name} in site.toml."
        )
    rest = sum(counts.values()) - sum(counts[w] for w in (*listed, *unlisted))
    rows = [*(counts[w] for w in (*listed, *unlisted)), rest, texts.count("")]
    told = told_counts(rows, step)
    words = dict(zip((*listed.values(), *unlisted), told, strict=False))
    kept = {w: n for w, n in words.items() if n is not None}
    indices = {key_of(word.strip()): float(k) for k, word in enumerate(kept)}
    codes = np.array([indices.get(text, np.nan) for text in texts])
    strange = np.isnan(codes) & np.array([bool(text) for text in texts])
    return CategoryTold(
        words={word: words[word] for word in column.categories},
        unlisted={word: kept[word] for word in unlisted if word in kept},
        other=told[-2],
        missing=told[-1],
    ), Coded(codes, {Kind.UNLISTED: strange})


def _is_shown(word: str) -> bool:
    try:
        require_printable(word)
    except TextError:
        return False
    return True


def _frequent(words: Mapping[str, int], counts: Mapping[str, int], step: int) -> list[str]:
    """Words that the plan does not have and that may be named, the most frequent first."""
    named = [w for w, n in words.items() if n >= step and len(w) <= MAX_WORD and _is_shown(w)]
    named = sorted(named, key=lambda word: (-words[word], word))[:MAX_WORDS]
    rare = sum(words.values()) - sum(words[word] for word in named)
    return [] if 2 * rare > sum(counts.values()) else named


# Numbers


def _code_numbers(column: Number, entry: SiteColumn, cells: pd.Series, step: int) -> _Told:
    coded = code_column(column.model_copy(update={"range": None, "missing": "impute"}), cells)
    faulty = coded.faulty
    values = np.where(faulty, np.nan, coded.codes)
    codes = _missing_codes(column, values[np.isfinite(values)], step)
    is_code = np.isin(values, list(codes))
    known = np.where(is_code, np.nan, values)
    numbers = known[np.isfinite(known)]
    if (np.abs(numbers) > LARGEST).any():
        raise DataError(
            f"{cells.name}: a number is beyond ±{LARGEST:g}, as no measurement is; mend the table, "
            "or its factor in site.toml"
        )
    told = NumberTold(
        unit=column.unit,
        factor=entry.factor,
        offset=entry.offset,
        missing=_or_none(int((np.isnan(values) & ~faulty).sum()), step),
        unreadable=_or_none(int(faulty.sum()), step),
        codes={f"{code:.12g}": _stepped(rows, step) for code, rows in codes.items()},
        decimals=_decimals(numbers),
        quantiles=told_quantiles(numbers, step),
    )
    return told, Coded(known, coded.faults, {Kind.UNLISTED: is_code})


def told_quantiles(values: Array, step: int) -> dict[int, float]:
    """Return the quantiles that may be told, by level in percent, rounded.

    Each has four steps of values beyond it on either side, and stands for a step of values.
    """
    told: dict[int, float] = {}
    if len(values) < 2 * BEYOND * step:
        return told
    finest = _FINEST * _spread(values)
    for level in LEVELS:
        if min(level, 100 - level) * len(values) < 100 * BEYOND * step:
            continue
        number = _rounded(values, float(np.quantile(values, level / 100)), finest, step)
        if min((values <= number).sum(), (values >= number).sum()) >= step:
            told[level] = max(number, *told.values()) if told else number
    return told


def _rounded(values: Array, quantile: float, finest: float, step: int) -> float:
    """The quantile on the finest round grid on which it stands for a step of values."""
    if finest <= 0:
        return quantile  # which at least half of the values are
    exponent = math.floor(math.log10(finest))
    for power in itertools.count(exponent):
        for unit in _GRID:
            width = unit * 10.0**power
            number = round(round(quantile / width) * width, max(0, -power) + 1)
            if (np.abs(values - number) <= width / 2).sum() >= step:
                return number
    raise AssertionError("a grid wide enough has all values in one place")


def _spread(values: Array) -> float:
    """A spread that few values do not move; 0 if most are the same."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(high - low) / 1.349 or float(values.std())


def _missing_codes(column: Number, values: Array, step: int) -> dict[float, int]:
    """Numbers that often mean missing, with a step of rows, where they make no sense as values.

    They are out of the plan's range or, if it has none, far out, and most of what is so far out.
    """
    if len(values) < MIN_STEPS * step:
        return {}
    middle, far = float(np.median(values)), _FAR * _spread(values)
    low, high = (middle - far, middle + far) if column.range is None else column.range
    found: dict[float, int] = {}
    for side in (values[values < low], values[values > high]):
        counts = Counter(side[np.isin(side, list(NUMBER_CODES))].tolist())
        frequent = {code: rows for code, rows in counts.items() if rows >= step}
        if 2 * sum(frequent.values()) > len(side):
            found |= frequent
    return dict(sorted(found.items()))


def _decimals(values: Array) -> int:
    """Decimals with which nearly all numbers are written, as far as they matter."""
    for places in range(6):
        near = 1e-9 + _FINEST * _spread(values) if len(values) else 0.0
        if not len(values) or (np.abs(values - values.round(places)) <= near).mean() >= _MOST:
            return places
    return 6


# Sums


def num_sums(num_features: int) -> int:
    """Return how many sums there are of features and of products of two."""
    return num_features * (num_features + 3) // 2


def _moments(coded: Mapping[str, _Told], num_rows: int, step: int) -> Moments | None:
    """Sums of the features of all columns; None if rows are too few for so many."""
    pairs = [pair for name, one in coded.items() for pair in _features(name, one)]
    if not pairs or num_rows < ROWS_PER_SUM * num_sums(len(pairs)):
        return None
    features = tuple(feature for feature, _ in pairs)
    rows = np.stack([values for _, values in pairs], axis=1)
    most = np.array([1.0 if feature.kind != "value" else BOUND for feature in features])
    sums = _in_steps(rows.sum(0), most, step)
    products = _in_steps(rows.T @ rows, np.outer(most, most), step)
    adding = (rows != 0).astype(float)
    products = np.where(adding.T @ adding < step, 0.0, products)
    lower = tuple(tuple(line[: k + 1].tolist()) for k, line in enumerate(products))
    return Moments(features=features, sums=tuple(sums.tolist()), products=lower)


def _in_steps(sums: Array, most: Array, step: int) -> Array:
    """Sums in steps of what `step` rows can add to them, of which each adds `most` at the most."""
    steps = sums / (most * step)
    # A count is rounded down like any other; of values sums are as likely too large as too small.
    # Numerics: a sum of ones is exact; -0 is 0.
    told: Array = np.where(most == 1, np.floor(steps), np.rint(steps)) * (most * step) + 0.0
    return told


def _features(name: str, one: _Told) -> Iterator[tuple[Feature, Array]]:
    """Features of one column with their values; of words the most frequent follows from others."""
    told, coded = one
    if isinstance(told, CategoryTold):
        rows = {w: n for w, n in (told.words | told.unlisted).items() if n is not None}
        most = max(rows, key=rows.__getitem__, default="")
        for k, word in enumerate(rows):
            if word != most:
                feature = Feature(column=name, kind="word", word=word)
                yield feature, (coded.codes == k).astype(float)
    elif told.middle is not None and told.spread:
        centre, scale = told.middle, told.spread
        values = np.nan_to_num(((coded.codes - centre) / scale).clip(-BOUND, BOUND))
        yield Feature(column=name, kind="value", centre=centre, scale=scale), values
    if told.missing is not None and coded.missing.any():
        yield Feature(column=name, kind="missing"), coded.missing.astype(float)
