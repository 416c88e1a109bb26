"""What a reader must know of reference rows that were drawn from surveys, in plain words."""

from __future__ import annotations

from predbayes_study.plan.schema import Reference


def synthetic_words(reference: Reference) -> str:
    """Say how many reference rows are synthetic, and what that means; empty if none is."""
    drawn = reference.synthetic
    if drawn is None:
        return ""
    are = "are" if drawn.rows > 1 else "is"
    return (
        f"{drawn.rows:,} of {reference.num_rows:,} reference rows {are} synthetic: drawn from "
        f"counts and rounded figures that sites ({len(drawn.surveys)}) told of their columns. They "
        "are nobody's rows and have no labels. They follow each column, and how two go "
        "together as far as that was told, but not what is peculiar to three or more: rare "
        "combinations may be drawn too often or never, and the model is the less sure to be right "
        "there. Sites try the model on rows of their own before anybody uses it."
    )
