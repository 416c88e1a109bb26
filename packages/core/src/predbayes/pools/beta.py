"""The pool of Beta-Predictive Bayes (Hasan et al., AAAI 2024), with its two ends.

    mixture      beta = 0    (Paper: eq:mixture_model)
    product      beta = 1    (Paper: eq:prod_rule)
    in between   interpolated in log space (Paper: eq:interp_model)

Beta is the one of least NLL on the labelled reference rows (Paper: alg:dBpredbayes, step 5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.pool import PoolState, require_labels
from predbayes.pools.prior import PriorChoice, SumsUnderAPrior
from predbayes.predictive.families import Predictive
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import tune_beta


@dataclass(frozen=True, slots=True)
class BetaPool(SumsUnderAPrior):
    """Interpolate product and mixture in log space (Paper: eq:interp_model).

    Args:
        beta: Tuned on the labelled reference rows; or a number: 0 is the mixture, 1 the product.
        domain: Where a tuned beta may lie.
        prior_std: Spread of a prior on the tuned beta, see `predbayes.predictive.tuning.tune_beta`.
    """

    beta: float | Literal["tuned"] = "tuned"
    domain: tuple[float, float] = (0.0, 1.0)
    prior_std: float | None = None

    streams: ClassVar[bool] = True

    def __post_init__(self) -> None:
        SumsUnderAPrior.__post_init__(self)
        if isinstance(self.beta, str) and self.beta != "tuned":
            raise TrainingError(f"beta must be a number or 'tuned', not {self.beta!r}")

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return the prior predictive."""
        if isinstance(self.beta, str):
            require_labels(reference, "beta")
        return SumsUnderAPrior.init(self, reference)

    def finish(
        self,
        state: PoolState,
        total: PredictiveSum[Any],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> PoolState:
        """Tune beta on the labelled rows; pool on all."""
        if not isinstance(self.beta, str):
            return replace(state, pooled=total.pool(self.beta), beta=float(self.beta))
        labelled = total[reference.labelled]
        tuned = tune_beta(labelled, reference.targets, domain=self.domain, prior_std=self.prior_std)
        return replace(state, pooled=total.pool(tuned.weights), beta=tuned.beta, tuned=tuned)


def mixture() -> BetaPool:
    """Return the mixture of the sites' predictives (Paper: eq:mixture_model)."""
    return BetaPool(beta=0.0)


def product(prior: PriorChoice | Predictive = "default") -> BetaPool:
    """Return their product, a Bayesian committee machine (Paper: eq:prod_rule)."""
    return BetaPool(beta=1.0, prior=prior)
