"""What a plan says of surveys, and of reference rows that were drawn from them, in `[survey]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from predbayes_study.plan.schema import Added, Count, Digest, Plan, Section


class Synthetic(Section):
    """Reference rows that were drawn from surveys, and are nobody's."""

    rows: Annotated[int, Field(gt=0)]  # of the reference rows
    seed: Count  # of the draw
    surveys: Annotated[tuple[Digest, ...], Field(strict=False)]  # digests of what sites told


class SurveyTerms(Added):
    """What sites are asked to tell of their columns before there are reference rows."""

    moments: bool = False  # sums of products of pairs of columns, too
    synthetic: Synthetic | None = None  # None: all reference rows are real

    def caution(self, plan: Plan) -> str:
        """Say how many reference rows are synthetic, and what that means; empty if none is."""
        drawn = self.synthetic
        if drawn is None:
            return ""
        are = "are" if drawn.rows > 1 else "is"
        return (
            f"{drawn.rows:,} of {plan.reference.num_rows:,} reference rows {are} synthetic: drawn "
            f"from counts and rounded figures that sites ({len(drawn.surveys)}) told of their "
            "columns. They are nobody's rows and have no labels. They follow each column, and how "
            "two go together as far as that was told, but not what is peculiar to three or more: "
            "rare combinations may be drawn too often or never, and the model is the less sure to "
            "be right there. Sites try the model on rows of their own before anybody uses it."
        )
