"""What a plan says of sums of moments, in `[moments]`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from predbayes.exchange.strict import Finite
from predbayes.learning.leverage import ENOUGH_ROWS
from predbayes_study.plan.schema import Added, Count, Plan


def _scales(values: tuple[float, ...]) -> tuple[float, ...]:
    if not values or not all(0.01 <= value <= 1000 for value in values):
        raise ValueError("must be some numbers from 0.01 to 1000")
    return values


class Moments(Added):
    """Features of which sites send sums of products; see `predbayes.learning.moments`."""

    sends: ClassVar[str] = "moments"
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    excludes: ClassVar[tuple[str, ...]] = (
        "gate",
        "model.module",
        "rules.screening",
        "sealed",
    )

    features: Annotated[int, Field(ge=1, le=2000)] = 300  # random ones, of each scale
    scales: Annotated[
        tuple[Finite, ...], Field(strict=False, max_length=10), AfterValidator(_scales)
    ] = (1.0, 2.0, 4.0)  # distances over which the model may bend
    seed: Count = 0  # of the features
    # Rows for each feature that a site must have: sums of fewer tell who is in them.
    rows_per_feature: Annotated[int, Field(ge=1)] = ENOUGH_ROWS

    def num_summed(self, plan: Plan) -> int:
        """Return the number of features of one scale whose products are summed."""
        return 1 + plan.num_inputs + self.features
