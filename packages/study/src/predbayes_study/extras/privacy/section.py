"""What a plan promises to people at a site, in `[privacy]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from predbayes.exchange.strict import Finite
from predbayes.learning.guarantee import Adjacency, Guarantee, Unit
from predbayes.learning.named import PRIVATE
from predbayes_study.plan.schema import Added, Plan, Positive

if TYPE_CHECKING:
    from predbayes.learning.local import Learner


class Privacy(Added):
    """Each upload has differential privacy; what has no noise does not leave."""

    payload: ClassVar[str] = "private"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    # No other learner has noise, and to choose one by the rows reveals something of them.
    learners: ClassVar[tuple[str, ...]] = (PRIVATE,)
    # What tells of rows without noise. Sealed sums need the exact number of rows of each class.
    excludes: ClassVar[tuple[str, ...]] = ("gate", "learner.split", "survey", "sealed", "moments")

    epsilon: Annotated[Positive, Field(le=100)]
    delta: Annotated[Finite, Field(gt=0, le=1e-3)]  # far below one over the people of a site
    adjacency: Adjacency
    unit: Unit

    @property
    def promise(self) -> Guarantee:
        """What each upload promises."""
        return Guarantee(self.epsilon, self.delta, self.adjacency, self.unit)

    def learner(self, plan: Plan, name: str) -> Learner | None:
        """Return the learner with noise; it is loaded here, because plans are read without it."""
        from predbayes_study.extras.privacy.private import PrivateLogistic

        return PrivateLogistic(plan.num_outputs, self.promise) if name == PRIVATE else None
