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

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from predbayes.errors import PoolError, TrainingError, UploadError
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import LocalLearner, NetworkLearner, NetworkPredictor
from predbayes.learning.training import Rows, count_rows
from predbayes.predictive.families import LOG_PROB_FLOOR, Categorical, Gaussian, Predictive
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import TunedPool, tune_beta

PriorChoice = Literal["default", "flat", "reference"]
"""``reference`` is a Gaussian with the mean and variance of the reference targets.

The default is that for a Gaussian, and flat for a categorical.
"""


@dataclass(frozen=True, slots=True)
class PoolState:
    """The prior, which everybody may see, and after the round what came of it."""

    prior: Predictive | None
    pooled: Predictive | None = None
    beta: float = math.nan
    tuned: TunedPool | None = None  # None where beta was given

    @property
    def predictive(self) -> Predictive:
        """The pool on all reference rows, labelled ones first."""
        if self.pooled is None:
            raise PoolError("no round has been run yet, so there is no pool")
        return self.pooled


@dataclass(frozen=True, slots=True)
class BetaPredBayes:
    """Interpolate product and mixture in log space (Paper: eq:interp_model).

    Args:
        learner: What each site fits.
        send: Weight samples (Algorithm 1), or predictions on the reference inputs.
        beta: Tuned on the labelled reference rows, or a number: 0 is the mixture, 1 the product.
        domain: Where a tuned beta may lie.
        prior_std: Spread of a prior on the tuned beta, see `predbayes.predictive.tuning.tune_beta`.
        prior: The prior predictive that the product divides out.
        floor: Least log-probability with which a site enters the pool.
    """

    learner: LocalLearner
    send: Literal["weights", "predictions"] = "weights"
    beta: float | Literal["tuned"] = "tuned"
    domain: tuple[float, float] = (0.0, 1.0)
    prior_std: float | None = None
    prior: PriorChoice | Predictive = "default"
    floor: float = LOG_PROB_FLOOR

    families: ClassVar[frozenset[type[Predictive]]] = frozenset({Categorical, Gaussian})
    streams: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.send not in ("weights", "predictions"):
            raise TrainingError(f"send must be 'weights' or 'predictions', not {self.send!r}")
        if isinstance(self.beta, str) and self.beta != "tuned":
            raise TrainingError(f"beta must be a number or 'tuned', not {self.beta!r}")
        if isinstance(self.prior, str) and self.prior not in ("default", "flat", "reference"):
            raise TrainingError(
                f"prior must be 'default', 'flat', 'reference' or a predictive, not {self.prior!r}"
            )

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> PoolState:  # noqa: ARG002
        """The prior predictive; it goes into the plan, so every party knows it."""
        if self.beta == "tuned" and not len(reference.targets):
            raise TrainingError("beta is tuned on labelled reference rows, and there are none")
        if isinstance(self.learner, NetworkLearner):
            self.learner.network.likelihood.check(reference.targets)
        if not isinstance(self.prior, str):
            return PoolState(self.prior)
        regression = reference.targets.is_floating_point()
        if self.prior == "reference" and not regression:
            raise TrainingError("prior 'reference' is for regression; give a Categorical instead")
        if self.prior == "flat" or not regression:
            return PoolState(None)
        targets = reference.targets.double()
        if len(targets) < 2 or not float(targets.var()) > 0:
            raise TrainingError("prior 'reference' needs reference targets with a variance")
        return PoolState(Gaussian(targets.mean().view(1), targets.var().view(1)))

    def learn(
        self,
        state: PoolState,  # noqa: ARG002
        rows: Rows,
        inputs: Tensor,
        *,
        rng: torch.Generator,
    ) -> Upload:
        """Fit the learner; send its samples, or its predictions on the reference inputs."""
        predictor = self.learner.fit(rows, rng=rng)
        if self.send == "predictions":
            predictive = predictor.predict(inputs)
            if type(predictive) not in self.families:
                raise TrainingError(
                    f"{type(self.learner).__name__} predicts {type(predictive).__name__}; it must "
                    "return a Categorical or a Gaussian"
                )
            return Upload.of_predictions(predictive, num_rows=count_rows(rows))
        if not isinstance(predictor, NetworkPredictor):
            raise TrainingError(
                f"{type(self.learner).__name__} has no weights to send; use send='predictions'"
            )
        return Upload.of_weights(predictor.samples, num_rows=count_rows(rows))

    def lift(self, state: PoolState, upload: Upload, inputs: Tensor) -> PredictiveSum[Any]:
        """The site's predictives as a summand, whichever way they came."""
        if upload.info.kind == "predictions":
            predictive = upload.predictive()
        elif isinstance(self.learner, NetworkLearner):
            predictive = self.learner.network.predict(upload.samples(), inputs)
        else:
            raise TrainingError("weights can only be read with the network that they are of")
        if len(predictive) != len(inputs):
            raise UploadError(
                f"site {upload.info.site!r} predicted {len(predictive)} rows; there are "
                f"{len(inputs)} reference inputs"
            )
        return PredictiveSum.of(
            predictive, upload.info.num_rows, prior=state.prior, floor=self.floor
        )

    def finish(
        self,
        state: PoolState,
        total: PredictiveSum[Any],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,  # noqa: ARG002
    ) -> PoolState:
        """Tune beta on the labelled rows; pool on all."""
        if self.beta != "tuned":
            return replace(state, pooled=total.pool(self.beta), beta=self.beta)
        tuned = tune_beta(
            total[reference.labelled],
            reference.targets,
            domain=self.domain,
            prior_std=self.prior_std,
        )
        return replace(state, pooled=total.pool(tuned.weights), beta=tuned.beta, tuned=tuned)


def mixture(
    learner: LocalLearner, send: Literal["weights", "predictions"] = "weights"
) -> BetaPredBayes:
    """The mixture of the sites' predictives (Paper: eq:mixture_model)."""
    return BetaPredBayes(learner, send, beta=0.0)


def product(
    learner: LocalLearner, send: Literal["weights", "predictions"] = "weights"
) -> BetaPredBayes:
    """The product of the sites' predictives, a Bayesian committee machine (Paper: eq:prod_rule)."""
    return BetaPredBayes(learner, send, beta=1.0)
