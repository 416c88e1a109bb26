"""The egress page of a survey: everything that would leave, and what it could reveal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from predbayes_study.extras.survey import section
from predbayes_study.extras.survey.surveyfile import CategoryTold, Feature, NumberTold, Survey
from predbayes_study.extras.survey.take import BEYOND, BOUND, ROWS_PER_SUM
from predbayes_study.plan.schema import Plan
from predbayes_study.report.pages import render_page
from predbayes_study.result.schema import FEWEST_TO_POOL
from predbayes_study.trust.signing import PublicKey, fingerprint


class Line(NamedTuple):
    """What is told of one column."""

    name: str
    missing: str
    figures: str
    mapped: str


class SumLine(NamedTuple):
    """Sums of one feature: its own, and with those before it and itself."""

    name: str
    total: str
    products: str


def render_survey(plan: Plan, survey: Survey, *, num_bytes: int, released: bool) -> str:
    """Render the egress page of a survey.

    Args:
        plan: That it answers.
        survey: All of it.
        num_bytes: Of its file.
        released: Whether it may leave; otherwise the page says that it is held back.
    """
    asked = plan.section(section.SurveyTerms)
    return render_page(
        "survey.html.j2",
        {},
        "predbayes_study.extras.survey",
        plan=plan,
        asks_sums=asked is not None and asked.moments,
        survey=survey,
        lines=[_line(survey, name) for name in survey.columns],
        sums=list(_sums(survey)),
        num_bytes=num_bytes,
        released=released,
        beyond=BEYOND,
        bound=BOUND,
        rows_per_sum=ROWS_PER_SUM,
        fewest_sites=FEWEST_TO_POOL,
        key_fingerprint=PublicKey(survey.key).fingerprint,
        digest=survey.digest(),
        fingerprint=fingerprint(survey.digest()),
    )


def count_text(survey: Survey, count: int | None) -> str:
    """Return a count as a reader takes it.

    It stands for itself and the next few, because it is rounded down.
    """
    if count is None:
        return f"fewer than {survey.step}, or not told"
    return f"{count:,}"


def _line(survey: Survey, name: str) -> Line:
    told = survey.columns[name]
    missing = count_text(survey, told.missing)
    if isinstance(told, NumberTold):
        return Line(name, missing, _numbers(told), _mapped(told))
    return Line(name, missing, _words(survey, told), "words")


def _numbers(told: NumberTold) -> str:
    parts = [f"{level} %: {value:.6g}" for level, value in told.quantiles.items()]
    parts = [f"quantiles {', '.join(parts)}" if parts else "no quantile: too few values"]
    parts += [f"{code} (a code for missing?): {rows:,} rows" for code, rows in told.codes.items()]
    if told.unreadable is not None:
        parts.append(f"no number: {told.unreadable:,} rows")
    return "; ".join([*parts, f"decimals: {told.decimals}"])


def _words(survey: Survey, told: CategoryTold) -> str:
    rows = {**told.words, **told.unlisted, "all other words": told.other}
    return "; ".join(f"{word}: {count_text(survey, count)}" for word, count in rows.items())


def _mapped(told: NumberTold) -> str:
    unit = told.unit or "no unit stated"
    if (told.factor, told.offset) == (1.0, 0.0):
        return f"{unit}, as it is"
    return f"{unit}, by times {told.factor:.6g} plus {told.offset:.6g}"


def _sums(survey: Survey) -> Iterator[SumLine]:
    if survey.moments is None:
        return
    told = survey.moments
    for feature, total, products in zip(told.features, told.sums, told.products, strict=True):
        numbers = " ".join(f"{number:g}" for number in products)
        yield SumLine(_feature(feature), f"{total:g}", numbers)


def _feature(feature: Feature) -> str:
    if feature.kind == "word":
        return f"{feature.column} = {feature.word}"
    if feature.kind == "missing":
        return f"{feature.column} is missing"
    return f"({feature.column} − {feature.centre:.6g}) / {feature.scale:.6g}"
