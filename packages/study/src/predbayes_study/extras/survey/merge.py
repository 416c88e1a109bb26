"""A plan from surveys: what sites tell of their columns becomes ranges, categories and the like.

    range            far beyond all told quantiles, rounded outward; one that the draft has stays
    categories       the draft's, and frequent words that are no other spelling of these
    optional         where a site lacks the column
    missing          `refuse` becomes `flag` where rows lack it, else `impute`: few may lack it
    centre, scale    mean and deviation over all rows together; freezing replaces them by those of
                     the reference rows, and keeps those of a target without labels
    share            of the second of two classes
    other sections   as `plan new` writes them, where the draft does not have them

No site counts for more rows than `rules.max_weight` allows. A site whose unit is doubted counts for
none of these until it is corrected. What was proposed why
stands above each column as a comment.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from predbayes.errors import StudyError
from predbayes.exchange.strict import folded_name
from predbayes_study.extras.survey.disagree import (
    Doubt,
    counted_rows,
    disagreements,
    is_far,
    numbers_of,
    second_share,
    unit_groups,
    words_of,
)
from predbayes_study.extras.survey.marginal import Marginal, centre_and_scale, far_ends
from predbayes_study.extras.survey.surveyfile import NumberTold, Survey, misfit
from predbayes_study.kit.draft import MIN_TOLD, new_sections, round_outward
from predbayes_study.plan.schema import Category, Column, Number, Plan, Scalar, Target
from predbayes_study.wording import counted, six_digits

_FAR_LEVEL = 3.2e-5  # 4 standard deviations of a normal distribution


@dataclass(frozen=True, slots=True)
class Merged:
    """A proposed plan, why each column is as it is, and in what sites disagree."""

    plan: Plan
    notes: dict[str, tuple[str, ...]]
    doubts: tuple[Doubt, ...]


def merge(plan: Plan, surveys: Sequence[Survey]) -> Merged:
    """Propose a plan by the surveys of a draft."""
    _require_fitting(plan, surveys)
    doubts = disagreements(plan, surveys)
    columns: dict[str, Column] = {}
    notes: dict[str, tuple[str, ...]] = {}
    for name, column in plan.scalars.items():
        columns[name] = _proposed(plan, name, column, surveys)
        asked = [doubt.text for doubt in doubts if doubt.column == name]
        notes[name] = (_told(name, surveys), *(f"ask: {text}" for text in asked))
    open_ends = {k: v for k, v in new_sections().items() if k not in plan.model_fields_set}
    told = {"columns": columns, "target": _target(plan, surveys)}
    proposed = plan.model_copy(update=open_ends | told)
    return Merged(proposed, notes, tuple(doubts))


def _require_fitting(plan: Plan, surveys: Sequence[Survey]) -> None:
    """Surveys are of this draft and fit it, and of one site each."""
    if plan.frozen is not None:
        raise StudyError("the plan is frozen already; merge surveys into the draft")
    plan.require_scalars("a survey")
    digest = plan.digest()
    for survey in surveys:
        if survey.plan != digest:
            raise StudyError(
                f"the survey of {survey.site} is of another draft of the plan; give the draft that "
                "the sites had, unchanged"
            )
        if problem := misfit(plan, survey, of_draft=True):
            raise StudyError(
                f"the survey of {survey.site} does not fit the draft: {problem}; ask {survey.site} "
                "for one that predbayes site survey wrote"
            )
    # No two have one name, however it is spelt, or one key.
    for one, other in itertools.combinations(surveys, 2):
        if folded_name(one.site) == folded_name(other.site):
            raise StudyError(f"there are two surveys of {other.site}; give one")
        if one.key == other.key:
            raise StudyError(
                f"the surveys of {one.site} and {other.site} are signed with one key; each site "
                "has a key of its own"
            )


def _proposed(plan: Plan, name: str, column: Scalar, surveys: Sequence[Survey]) -> Scalar:
    is_lacking = any(name in survey.absent for survey in surveys)
    change: dict[str, Any] = {"optional": column.optional or is_lacking}
    if column.missing == "refuse" or is_lacking:
        change["missing"] = "flag" if is_lacking or _is_missing(name, surveys) else "impute"
    if isinstance(column, Category):
        change["categories"] = (*column.categories, *words_of(plan, name, surveys).new)
    else:
        change |= _numbers(plan, name, column, surveys)
    return column.model_copy(update=change)


def _is_missing(name: str, surveys: Sequence[Survey]) -> bool:
    told = (survey.columns.get(name) for survey in surveys)
    return any(one is not None and one.missing is not None for one in told)


def agreeing(name: str, surveys: Sequence[Survey]) -> dict[str, NumberTold]:
    """Return what is told of a column of numbers by the sites whose units agree with most.

    With a median alone nobody can say that a site's unit does; nor does it tell much.
    """
    numbers = {s: told for s, told in numbers_of(name, surveys).items() if told.middle is not None}
    most = next(iter(unit_groups(numbers)), None)
    if most is None:
        return numbers

    def is_near(told: NumberTold) -> bool:
        is_one_value = 25 in told.quantiles and told.spread == 0
        return is_one_value and not is_far(told, most, numbers)

    return {site: told for site, told in numbers.items() if site in most or is_near(told)}


def _numbers(plan: Plan, name: str, column: Number, surveys: Sequence[Survey]) -> dict[str, Any]:
    """Range, centre and scale of a column of numbers, as far as they are told."""
    told = agreeing(name, surveys)
    if not told:
        return {}
    change: dict[str, Any] = {}
    low, high = far_ends(list(told.values()), _FAR_LEVEL)
    if column.range is None and low < high:
        change["range"] = round_outward(low, high)
    rows = counted_rows(plan, surveys)
    limits = change.get("range", column.range)
    columns = ((Marginal.of(one, limits), rows[site]) for site, one in told.items())
    centre, scale = centre_and_scale((one, weight) for one, weight in columns if one is not None)
    if scale > 0:
        change |= {"centre": six_digits(centre), "scale": six_digits(scale)}
    return change


def _target(plan: Plan, surveys: Sequence[Survey]) -> Target:
    """The target with what sites tell of it: a share of two classes, centre and scale of a number.

    Logarithms are not told, so a target with a transform keeps what the draft has.
    """
    target = plan.target
    if "share" in target.allowed:
        share = second_share(plan, surveys)
        if (
            share is None
            or target.share is not None
            or sum(counted_rows(plan, surveys).values()) < MIN_TOLD
        ):
            return target
        return target.model_copy(update={"share": min(max(round(share, 2), 0.01), 0.99)})
    # Intervals of times are for people to choose.
    if "scale" not in target.allowed or target.transform != "none" or target.scale is not None:
        return target
    units = _numbers(plan, target.name, Number(type="number"), surveys)
    return target.model_copy(update={k: v for k, v in units.items() if k != "range"})


def _num_rows(surveys: Sequence[Survey]) -> int:
    return sum(survey.rows for survey in surveys)


def _told(name: str, surveys: Sequence[Survey]) -> str:
    """One line on who told what of a column."""
    there = [survey for survey in surveys if name in survey.columns]
    rows, missing = _num_rows(there), sum(s.columns[name].missing or 0 for s in there)
    share = f", {missing / rows:.0%} missing" if rows and missing else ""
    return f"{name}: by {counted(len(there), 'site')}, {counted(rows, 'row')}{share}"
