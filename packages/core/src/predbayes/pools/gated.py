"""The gated pools: each site counts, at each input, by how many rows it has there.

    gated mixture    p(y | x) = sum_k n_k r_k(x) p_k(y | x) / sum_k n_k r_k(x)
    gated log pool   log p(y | x) = sum_k n_k r_k(x) log p_k(y | x) / sum_k n_k r_k(x) + const

r_k(x) = p_k(x) / p_ref(x) is the gate of site k (`predbayes.learning.gate`). The density of the
reference rows cancels, so with exact gates the mixture is the law of all sites' rows together.
Nothing is tuned: no label is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from predbayes.errors import PoolError, TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.pool import BOTH_FAMILIES, Contribution, PoolState
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.pooling import PredictiveSum, gated, gated_name


@dataclass(frozen=True, slots=True)
class GatedPool:
    """Pool by the sites' gates, without a label.

    Args:
        pool: The mixture, or the log pool.
        exponent: Of the gate: 0 is the pool without gates, 1 what the theory asks for.
        floor: Least log-probability with which a site enters the pool.
    """

    pool: Literal["mixture", "log"] = "mixture"
    exponent: float = 1.0
    floor: float = LOG_PROB_FLOOR

    families: ClassVar[frozenset[type[Predictive]]] = BOTH_FAMILIES
    streams: ClassVar[bool] = True
    gates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.pool not in ("mixture", "log"):
            raise TrainingError(f"pool must be 'mixture' or 'log', not {self.pool!r}")
        if not 0 <= self.exponent < float("inf"):
            raise TrainingError(f"exponent must not be negative, as {self.exponent} is")

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return which of the reference rows gates are learnt from."""
        return PoolState(num_contrast=reference.distillation.stop)

    def lift(self, state: PoolState, site: Contribution) -> PredictiveSum[Any]:
        """Return the site in the gated sum."""
        if site.gate is None:
            raise PoolError(f"site {site.site!r} sent no gate, which this pool needs")
        return site.summand(terms=(gated(self.exponent, self._coordinates),), floor=self.floor)

    def finish(
        self,
        state: PoolState,
        total: PredictiveSum[Any],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> PoolState:
        """Divide by the sum of the weights."""
        name = gated_name(self.exponent, self._coordinates)
        return replace(state, pooled=total.pool({name: 1.0}))

    @property
    def _coordinates(self) -> Literal["moments", "natural"]:
        return "moments" if self.pool == "mixture" else "natural"
