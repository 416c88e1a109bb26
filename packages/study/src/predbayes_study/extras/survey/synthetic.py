r"""Reference rows drawn from surveys: like the sites' rows in what was told, and nobody's.

Each row is drawn like those of one site, and sites take part by the rows that they count for:

    value      a Gaussian copula: normal numbers with the told correlations, each put through the
               quantile function of its column (`marginal`) and rounded as the site's cells are
    word       the same, cut at the told shares, in the order of the plan's list
    missing    a normal number of its own beside that of the value, cut at the told share

Correlations come from sums of products where a site told them; elsewhere those of the others hold,
and without any columns are drawn apart. A feature f of mean zero has a normal number behind it
whose correlations follow from covariances C of what was summed:

    rho_ij = C_ij / (v_i v_j),    v = deviation of a value, variance of E[normal | word] of a word

Nothing is drawn that was not told: no sum is of few rows, so no row can be copied. Where columns
are few words, a drawn row may equal somebody's by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from predbayes.errors import PlanError
from predbayes.seeding import generator
from predbayes_study.extras.survey.disagree import counted_rows
from predbayes_study.extras.survey.marginal import Marginal
from predbayes_study.extras.survey.merge import agreeing
from predbayes_study.extras.survey.section import SurveyTerms, Synthetic
from predbayes_study.extras.survey.surveyfile import (
    CategoryTold,
    Feature,
    Moments,
    NumberTold,
    Survey,
)
from predbayes_study.plan.schema import Category, Plan, Scalar
from predbayes_study.tables.reading import read_reference

Array = np.ndarray[Any, Any]

OTHER = "other"
"""The word for all words that are not the plan's."""

_MOST = 0.95  # correlation that is drawn at the most
_LEAST_SHARE = 1e-6
_normal = NormalDist()


def draw_rows(plan: Plan, surveys: Sequence[Survey], num_rows: int, seed: int) -> pd.DataFrame:
    """Draw reference rows in the plan's columns, as text.

    Args:
        plan: What `merge` proposed of these surveys.
        surveys: What sites told.
        num_rows: How many.
        seed: Of the draw; another one gives other rows.
    """
    told = sorted(surveys, key=lambda survey: survey.site)  # in whatever order they are given
    correlations = [_correlations(plan, one) for one in told]
    counts = counted_rows(plan, told)
    shared = _pooled([(counts[s.site], own) for s, own in zip(told, correlations, strict=True)])
    rng = generator(seed, "synthetic reference rows")
    parts = []
    numbers = _allotted([counts[one.site] for one in told], num_rows)
    for survey, own, num in zip(told, correlations, numbers, strict=True):
        matrix = _sound(np.where(np.isnan(own), shared, own))
        normals = torch.randn(num, len(matrix), generator=rng, dtype=torch.float64)
        levels = torch.special.ndtr(
            normals @ torch.from_numpy(np.linalg.cholesky(matrix)).T
        ).numpy()
        parts.append(_rows(plan, survey, surveys, levels))
    rows = pd.concat(parts, ignore_index=True)
    return rows.iloc[torch.randperm(len(rows), generator=rng).tolist()].reset_index(drop=True)


def with_rows(
    plan: Plan, surveys: Sequence[Survey], num_rows: int, seed: int, *, folder: Path, file: str
) -> tuple[Plan, pd.DataFrame]:
    """Return the plan with drawn reference rows, and the rows: behind those that it has already.

    Args:
        plan: What `merge` proposed of these surveys.
        surveys: What sites told.
        num_rows: Rows to draw.
        seed: Seed of the draw.
        folder: Where the plan's own reference rows are, if it has any.
        file: Where all rows will be, relative to the plan.
    """
    rows, reference = draw_rows(plan, surveys, num_rows, seed), plan.reference
    asked = plan.section(SurveyTerms) or SurveyTerms()
    if asked.synthetic is not None:
        raise PlanError("the draft has synthetic reference rows already; give one without")
    if reference.file:
        real = read_reference(folder / reference.file)
        if len(real) != reference.num_rows:  # or nobody could say which rows are synthetic
            raise PlanError(
                f"{reference.file} has {len(real):,} rows, but labelled, evaluate and unlabelled "
                f"of the draft add up to {reference.num_rows:,}; correct them, then merge"
            )
        kept = [name for name in plan.names if name in real.columns]
        rows = pd.concat([real[kept], rows], ignore_index=True).fillna("")
    change = {
        "file": file,
        "unlabelled": reference.unlabelled + num_rows,
        "source": reference.source or f"drawn from surveys of {len(surveys)} sites",
    }
    digests = tuple(sorted(survey.digest() for survey in surveys))
    drawn = Synthetic(rows=num_rows, seed=seed, surveys=digests)
    sections = {**plan.sections, "survey": asked.model_copy(update={"synthetic": drawn})}
    reference = reference.model_copy(update=change)
    return plan.model_copy(update={"reference": reference, "sections": sections}), rows


def _allotted(weights: Sequence[float], num: int) -> list[int]:
    """So many in all, by weight; whoever is cut most gets what is left."""
    exact = np.array(weights) / sum(weights) * num
    whole = np.floor(exact).astype(int)
    first = np.argsort(whole - exact, kind="stable")[: num - int(whole.sum())]
    whole[first] += 1
    return [int(one) for one in whole]


# One site's rows


def _rows(plan: Plan, survey: Survey, surveys: Sequence[Survey], levels: Array) -> pd.DataFrame:
    """Rows from levels, (N, 2 columns): of values, then of whether they are missing."""
    rows_of = counted_rows(plan, surveys)
    columns: dict[str, list[str]] = {}
    for index, (name, column) in enumerate(plan.scalars.items()):
        told, cells, at = survey.columns.get(name), [""] * len(levels), levels[:, index]
        if isinstance(column, Category) and isinstance(told, CategoryTold):
            shares = _shares(column, told, survey)
            ends = np.cumsum(list(shares.values()))[:-1]
            cells = [[*shares][k] for k in np.searchsorted(ends, at)]
        elif not column.words:
            # By the site's own quantiles, or another's where it told none or in another unit.
            numbers = agreeing(name, surveys)
            largest = max(numbers, key=rows_of.__getitem__, default="")
            one = numbers.get(survey.site) or numbers.get(largest)
            shape = None if one is None else Marginal.of(one, column.range)
            if one is not None and shape is not None:
                cells = [f"{value:.{one.decimals}f}" for value in shape.at(at) + 0.0]
        absent = levels[:, len(plan.columns) + index] > 1 - _missing_share(told, survey)
        columns[name] = ["" if gone else cell for gone, cell in zip(absent, cells, strict=True)]
    return pd.DataFrame(columns, dtype=object)


def _missing_share(told: NumberTold | CategoryTold | None, survey: Survey) -> float:
    """Share of rows without a value; what is no number, or a code for missing, has none either."""
    if told is None:
        return 1.0
    lacking = told.missing or 0
    if isinstance(told, NumberTold):
        lacking += (told.unreadable or 0) + sum(told.codes.values())
    return min(lacking / survey.rows, 1.0)


def _shares(column: Category, told: CategoryTold, survey: Survey) -> dict[str, float]:
    """Shares of the plan's words, and of others if the plan has room for them, among known rows.

    Rows that are told of no word are dealt out evenly to those whose count is not told.
    """
    counts = {**told.words, **told.unlisted}
    rows: dict[str, float | None] = {word: counts.get(word) for word in column.categories}
    others = sum(n for word, n in told.unlisted.items() if word not in rows) + (told.other or 0)
    hidden = [word for word, n in rows.items() if n is None]
    known = sum(n for n in rows.values() if n is not None) + others
    left = max(survey.rows - (told.missing or 0) - known, 0) / max(len(hidden), 1)
    shares = {word: left if n is None else float(n) for word, n in rows.items()}
    if column.other and others:
        shares[OTHER] = float(others)
    total = sum(shares.values())
    return {word: n / total if total else 1 / len(shares) for word, n in shares.items()}


# Correlations of the normal numbers


class _Latent(NamedTuple):
    """A normal number behind a column, by what was summed: its weights of the features."""

    place: int  # values first, then missing ones
    scores: Mapping[int, float]  # by feature
    is_value: bool
    known: float  # share of rows that have it


def _correlations(plan: Plan, survey: Survey) -> Array:
    """Correlations by a site's sums, (2 columns, 2 columns); NaN where they do not tell."""
    num, moments = len(plan.columns), survey.moments
    matrix = np.full((2 * num, 2 * num), np.nan)
    latents = [] if moments is None else [*_latents(plan, survey, moments)]
    if moments is None or not latents:
        return matrix
    weights = np.zeros((len(latents), len(moments.features)))
    for k, latent in enumerate(latents):
        weights[k, [*latent.scores]] = [*latent.scores.values()]
    cov = weights @ _covariance(moments, survey.rows) @ weights.T
    # What a covariance is divided by to be a correlation of the normal number.
    variances = [max(float(variance), 0.0) for variance in cov.diagonal()]
    spread = np.array(
        [
            float(np.sqrt(variance * latent.known)) if latent.is_value else variance
            for latent, variance in zip(latents, variances, strict=True)
        ]
    )
    with np.errstate(all="ignore"):
        found = np.where(np.outer(spread, spread) > 0, cov / np.outer(spread, spread), np.nan)
    places = [latent.place for latent in latents]
    matrix[np.ix_(places, places)] = found.clip(-_MOST, _MOST)
    return matrix


def _covariance(moments: Moments, rows: int) -> Array:
    num = len(moments.features)
    lower = np.zeros((num, num))
    lower[np.tril_indices(num)] = np.concatenate(moments.products)
    products = lower + lower.T - np.diag(lower.diagonal())
    mean = np.array(moments.sums) / rows
    return products / rows - np.outer(mean, mean)


def _latents(plan: Plan, survey: Survey, moments: Moments) -> Iterator[_Latent]:
    """The normal numbers that sums tell of."""
    for index, (name, column) in enumerate(plan.scalars.items()):
        places = {k: f for k, f in enumerate(moments.features) if f.column == name}
        told = survey.columns.get(name)
        known = 1 - _missing_share(told, survey)
        scores = _scores(column, told, survey, places)
        if any(scores.values()):
            yield _Latent(index, scores, not column.words, known)
        # Missing or not is a word of two.
        expected = _expected({"there": known, "gone": 1 - known})
        gap = expected["gone"] - expected["there"]
        gone = {k: gap for k, f in places.items() if f.kind == "missing"}
        if gone:
            yield _Latent(len(plan.columns) + index, gone, is_value=False, known=1.0)


def _scores(
    column: Scalar,
    told: NumberTold | CategoryTold | None,
    survey: Survey,
    places: Mapping[int, Feature],
) -> dict[int, float]:
    """Weights of a column's features in its score: the value, or what is expected by the word."""
    if not column.words:
        return {k: 1.0 for k, f in places.items() if f.kind == "value"}
    if not (isinstance(column, Category) and isinstance(told, CategoryTold)):
        return {}
    shares = _shares(column, told, survey)
    expected = _expected(shares)
    summed = {f.word for f in places.values() if f.kind == "word"}
    most = max((w for w in shares if w not in summed), key=shares.__getitem__, default="")
    base = expected.get(most, 0.0)
    return {
        k: (expected.get(f.word, 0.0) if f.kind == "word" else 0.0) - base
        for k, f in places.items()
    }


def _expected(shares: Mapping[str, float]) -> dict[str, float]:
    """What is expected of the normal number behind each word."""
    found, below = {}, 0.0
    for word, share in shares.items():
        above = below + share
        found[word] = (_density(below) - _density(above)) / max(share, _LEAST_SHARE)
        below = above
    return found


def _density(level: float) -> float:
    """The normal density at a level."""
    inside = _LEAST_SHARE < level < 1 - _LEAST_SHARE
    return _normal.pdf(_normal.inv_cdf(level)) if inside else 0.0


def _pooled(weighted: Sequence[tuple[float, Array]]) -> Array:
    """Mean over sites, by rows, of what is told; 0 where nobody tells."""
    told = np.stack([matrix for _, matrix in weighted])
    weights = np.array([rows for rows, _ in weighted])[:, None, None] * ~np.isnan(told)
    total = weights.sum(0)
    mean: Array = (weights * np.nan_to_num(told)).sum(0) / np.where(total > 0, total, 1.0)
    return mean


def _sound(matrix: Array) -> Array:
    """The correlation matrix nearest to one that rounding made impossible, roughly."""
    matrix = matrix.copy()
    np.fill_diagonal(matrix, 1.0)
    values, vectors = np.linalg.eigh(matrix)
    mended: Array = (vectors * values.clip(1e-6)) @ vectors.T
    spread = np.sqrt(mended.diagonal())
    mended /= np.outer(spread, spread)
    return mended
