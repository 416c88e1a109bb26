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
from predbayes.pools.pool import BOTH_FAMILIES, Contribution, PoolState, require_labels
from predbayes.pools.prior import PriorChoice, prior_predictive, require_prior
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import tune_temperature


@dataclass(frozen=True, slots=True)
class Tempered:
    """One temperature on the mixture or on the product.

    Args:
        component: Which of the two.
        prior: The prior predictive that the product divides out.
        floor: Least log-probability with which a site enters the pool.
    """

    component: Literal["mixture", "product"] = "mixture"
    prior: PriorChoice | Predictive = "default"
    floor: float = LOG_PROB_FLOOR

    families: ClassVar[frozenset[type[Predictive]]] = BOTH_FAMILIES
    streams: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_prior(self.prior)
        if self.component not in ("mixture", "product"):
            raise TrainingError(f"component must be 'mixture' or 'product', not {self.component!r}")

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return the prior predictive."""
        require_labels(reference, "the temperature")
        return PoolState(prior=prior_predictive(self.prior, reference))

    def lift(self, state: PoolState, site: Contribution) -> PredictiveSum[Any]:
        """Return the site in the sums of mixture and product."""
        return site.summand(prior=state.prior, floor=self.floor)

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
