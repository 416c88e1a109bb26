"""What the review of a plan looks for in `[survey]`."""

from __future__ import annotations

from predbayes_study.extras.survey.section import SurveyTerms
from predbayes_study.kit.review import Review
from predbayes_study.payload import payload_of
from predbayes_study.rules import Rule


def _too_many(review: Review) -> bool:
    survey = review.plan.section(SurveyTerms)
    drawn = None if survey is None else survey.synthetic
    return drawn is not None and drawn.rows > review.plan.reference.num_rows


REVIEW = (
    Rule[Review](
        "survey.synthetic",
        "warning",
        lambda review: not review.plan.reference.num_rows and payload_of(review.plan).predicts,
        "reference rows can be drawn from surveys of the sites: predbayes plan merge DRAFT "
        "SURVEY... --reference 1000",
    ),
    Rule[Review](
        "survey.synthetic", "error", _too_many, "has more rows than there are reference rows"
    ),
)
