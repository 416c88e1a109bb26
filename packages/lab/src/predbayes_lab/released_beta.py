"""The tables' method "beta": the paper's pool, or with the beta of the authors' code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.beta import BetaPool
from predbayes.pools.pool import PoolState, require_labels
from predbayes.pools.prior import PriorChoice, SumsUnderAPrior
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.pooling import PredictiveSum
from predbayes_lab.released import released_beta


@dataclass(frozen=True, slots=True)
class ReleasedBeta(SumsUnderAPrior):
    """Interpolate with the beta of the authors' code, for comparison with its figures only."""

    streams: ClassVar[bool] = True

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return the prior predictive."""
        require_labels(reference, "beta")
        return SumsUnderAPrior.init(self, reference)

    def finish(
        self,
        state: PoolState,
        total: PredictiveSum[Any],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,  # noqa: ARG002
    ) -> PoolState:
        """Fit beta on the labelled rows; pool on all."""
        beta = released_beta(total[reference.labelled], reference.targets)
        return replace(state, pooled=total.pool(beta), beta=beta)


def beta(
    beta: float | Literal["tuned", "released"] = "tuned",
    domain: tuple[float, float] = (0.0, 1.0),
    prior_std: float | None = None,
    *,
    prior: PriorChoice | Predictive = "default",
    floor: float = LOG_PROB_FLOOR,
) -> BetaPool | ReleasedBeta:
    """Return the pool of a table: `BetaPool`, or with ``"released"`` `ReleasedBeta`."""
    if beta == "released":
        return ReleasedBeta(prior=prior, floor=floor)
    return BetaPool(beta, domain, prior_std, prior=prior, floor=floor)
