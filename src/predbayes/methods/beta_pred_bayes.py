"""Beta-Predictive Bayes (Hasan et al., AAAI 2024), with its two ends: mixture and product.

Algorithm 1 of the paper (alg:dBpredbayes) without its last step, which `Distilled` adds:

    1, 2   each site samples its posterior and sends the samples         learn
    3      the server averages a site's predictions over its samples     lift
    4      and adds what the pools need of it to the running sums        lift, then +
    5      beta = argmin of the NLL on the labelled reference rows       finish

A site may instead average its own predictions on the reference inputs and send those: the sums are
the same, the upload is smaller, and any learner will do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.local import LocalLearner
from predbayes.methods.pooled import (
    LearnsAndLifts,
    PoolState,
    PriorChoice,
    Send,
    check_targets,
    prior_predictive,
    require_choices,
    require_labels,
)
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.released import released_beta
from predbayes.predictive.tuning import tune_beta


@dataclass(frozen=True, slots=True)
class BetaPredBayes(LearnsAndLifts):
    """Interpolate product and mixture in log space (Paper: eq:interp_model).

    Args:
        learner: What each site fits.
        send: Weight samples (Algorithm 1), or predictions on the reference inputs.
        beta: Tuned on the labelled reference rows; or a number: 0 is the mixture, 1 the product; or
            ``"released"``: as the authors' code finds it, for comparison with its figures only.
        domain: Where a tuned beta may lie.
        prior_std: Spread of a prior on the tuned beta, see `predbayes.predictive.tuning.tune_beta`.
        prior: The prior predictive that the product divides out.
        floor: Least log-probability with which a site enters the pool.
    """

    learner: LocalLearner
    send: Send = "weights"
    beta: float | Literal["tuned", "released"] = "tuned"
    domain: tuple[float, float] = (0.0, 1.0)
    prior_std: float | None = None
    prior: PriorChoice | Predictive = "default"
    floor: float = LOG_PROB_FLOOR

    streams: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_choices(self.send, self.prior)
        if isinstance(self.beta, str) and self.beta not in ("tuned", "released"):
            raise TrainingError(f"beta must be a number, 'tuned' or 'released', not {self.beta!r}")

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> PoolState:
        """The prior predictive; it goes into the plan, so every party knows it."""
        if isinstance(self.beta, str):
            require_labels(reference, "beta")
        check_targets(self.learner, reference)
        return PoolState(prior_predictive(self.prior, reference))

    def finish(
        self,
        state: PoolState,
        total: PredictiveSum[Any],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> PoolState:
        """Tune beta on the labelled rows; pool on all."""
        labelled = total[reference.labelled]
        if self.beta == "tuned":
            tuned = tune_beta(
                labelled, reference.targets, domain=self.domain, prior_std=self.prior_std
            )
            return replace(state, pooled=total.pool(tuned.weights), beta=tuned.beta, tuned=tuned)
        if self.beta == "released":
            beta = released_beta(labelled, reference.targets)
        else:
            beta = float(self.beta)
        return replace(state, pooled=total.pool(beta), beta=beta)


def mixture(learner: LocalLearner, send: Send = "weights") -> BetaPredBayes:
    """The mixture of the sites' predictives (Paper: eq:mixture_model)."""
    return BetaPredBayes(learner, send, beta=0.0)


def product(
    learner: LocalLearner, send: Send = "weights", prior: PriorChoice | Predictive = "default"
) -> BetaPredBayes:
    """The product of the sites' predictives, a Bayesian committee machine (Paper: eq:prod_rule)."""
    return BetaPredBayes(learner, send, beta=1.0, prior=prior)
