"""A control: one temperature T on the mixture or the product, tuned on labelled rows like beta.

    eta = eta_mixture / T        or        eta = eta_product / T

If beta does no better than a temperature, interpolating is not what helped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.pool import PoolState, require_labels
from predbayes.pools.prior import SumsUnderAPrior
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import tune_temperature


@dataclass(frozen=True, slots=True)
class Tempered(SumsUnderAPrior):
    """One temperature on the mixture or on the product.

    Args:
        component: Which of the two.
    """

    component: Literal["mixture", "product"] = "mixture"

    streams: ClassVar[bool] = True

    def __post_init__(self) -> None:
        SumsUnderAPrior.__post_init__(self)
        if self.component not in ("mixture", "product"):
            raise TrainingError(f"component must be 'mixture' or 'product', not {self.component!r}")

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return the prior predictive."""
        require_labels(reference, "the temperature")
        return SumsUnderAPrior.init(self, reference)

    def finish(
        self,
        state: PoolState,
        total: PredictiveSum[Any],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> PoolState:
        """Tune the temperature on the labelled rows; pool on all."""
        labelled = total[reference.labelled]
        tuned = tune_temperature(labelled, reference.targets, component=self.component)
        return replace(state, pooled=total.pool(tuned.weights), tuned=tuned)
