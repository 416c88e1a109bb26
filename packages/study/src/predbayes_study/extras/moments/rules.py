"""What the review of a plan and a site's policy look for in `[moments]`."""

from __future__ import annotations

from collections.abc import Iterator

from predbayes.learning.leverage import ENOUGH_ROWS
from predbayes_study.extras.moments.section import Moments
from predbayes_study.kit.review import Review
from predbayes_study.plan.schema import Number
from predbayes_study.rules import Rule
from predbayes_study.site.policy import Case


def _asked(review: Review) -> Moments:
    section = review.plan.section(Moments)
    assert section is not None
    return section


def _least_rows(review: Review) -> Iterator[str]:
    asked = _asked(review)
    num = asked.num_summed(review.plan)
    yield (
        f"{asked.rows_per_feature} rows for each of {num:,} features are "
        f"{asked.rows_per_feature * num:,}; sites with fewer to train on cannot take part"
    )


def _unscaled(review: Review) -> Iterator[str]:
    plan = review.plan
    bare = [
        name
        for name, column in plan.columns.items()
        if isinstance(column, Number) and (column.centre is None or column.scale is None)
    ]
    if bare and not plan.reference.num_rows:
        yield ", ".join(bare)


def _too_few_rows(case: Case) -> Iterator[int]:
    asked = None if case.plan is None else case.plan.section(Moments)
    if asked is not None and asked.rows_per_feature < ENOUGH_ROWS:
        yield asked.rows_per_feature


REVIEW = (
    Rule[Review](
        "moments.rows_per_feature",
        "warning",
        lambda review: _asked(review).rows_per_feature < ENOUGH_ROWS,
        f"sums of fewer than {ENOUGH_ROWS} rows per feature can tell who is in them",
    ),
    Rule[Review]("moments", "warning", _least_rows),
    Rule[Review](
        "columns",
        "error",
        _unscaled,
        "without reference rows write centre and scale of {found} into the plan, about their mean "
        "and standard deviation",
    ),
)

POLICY = (
    Rule[Case](
        "moments.rows_per_feature",
        "error",
        _too_few_rows,
        f"moments.rows_per_feature = {{found}} of the plan is below {ENOUGH_ROWS}",
    ),
    Rule[Case](
        "max_membership_auc",
        "error",
        lambda case: case.policy.max_membership_auc is not None,
        "sums of moments cannot be audited",
    ),
)
