"""Controls: what a federation must beat before it is worth the trouble.

    ServerOnly   the same learner on the coordinator's labelled reference rows: no federation
    BestSite     the one site whose own model is best on those rows: no pooling
    Tempered     one temperature T on the mixture or the product, tuned on those rows like beta:

        eta = eta_mixture / T        or        eta = eta_product / T

If beta does no better than a temperature, interpolating is not what helped. Deep ensembles in place
of posterior samples are a learner, `DeepEnsemble`, for any method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from predbayes.errors import ImproperPoolError, TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import LocalLearner
from predbayes.learning.training import Rows, count_rows
from predbayes.methods.pooled import (
    LearnsAndLifts,
    PoolState,
    PriorChoice,
    Send,
    check_targets,
    prior_predictive,
    read_predictive,
    require_choices,
    require_labels,
    require_round,
    send_predictive,
)
from predbayes.predictive import metrics
from predbayes.predictive.families import LOG_PROB_FLOOR, Categorical, Gaussian, Predictive
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import tune_temperature
from predbayes.summand import Kept, TensorSum


@dataclass(frozen=True, slots=True)
class ServerOnly:
    """The learner on the labelled reference rows; sites send how many rows they have, no more."""

    learner: LocalLearner

    families: ClassVar[frozenset[type[Predictive]]] = frozenset({Categorical, Gaussian})
    streams: ClassVar[bool] = True

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> PoolState:
        """Nothing to tell the sites."""
        if not len(reference.targets):
            raise TrainingError(
                "server only learns from labelled reference rows, and there are none"
            )
        check_targets(self.learner, reference)
        return PoolState(None)

    def learn(
        self, state: PoolState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """The number of rows."""
        return Upload.of_count(count_rows(rows))

    def lift(self, state: PoolState, upload: Upload, inputs: Tensor) -> TensorSum:
        """The number of rows."""
        return TensorSum({"rows": torch.tensor(float(upload.info.num_rows))})

    def finish(
        self, state: PoolState, total: TensorSum, reference: ReferenceRows, *, rng: torch.Generator
    ) -> PoolState:
        """Fit at the coordinator."""
        rows = (reference.inputs[reference.labelled], reference.targets)
        return replace(state, pooled=self.learner.fit(rows, rng=rng).predict(reference.inputs))


@dataclass(frozen=True, slots=True)
class BestSiteState:
    """Which site was chosen, and what it predicts."""

    site: str = ""
    pooled: Predictive | None = None

    @property
    def predictive(self) -> Predictive:
        """On all reference rows, labelled ones first."""
        return require_round(self.pooled)


@dataclass(frozen=True, slots=True)
class BestSite:
    """The model of the site with the least NLL on the labelled reference rows.

    Args:
        learner: What each site fits.
        send: Weight samples, or predictions on the reference inputs.
    """

    learner: LocalLearner
    send: Send = "weights"

    families: ClassVar[frozenset[type[Predictive]]] = frozenset({Categorical, Gaussian})
    streams: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_choices(self.send, "default")

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> BestSiteState:
        """Nothing to tell the sites."""
        require_labels(reference, "the choice of a site")
        check_targets(self.learner, reference)
        return BestSiteState()

    def learn(
        self, state: BestSiteState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Fit the learner; send its samples, or its predictions on the reference inputs."""
        return send_predictive(self.learner, self.send, rows, inputs, rng=rng)

    def lift(
        self, state: BestSiteState, upload: Upload, inputs: Tensor
    ) -> Kept[tuple[str, Predictive]]:
        """The site's name and predictives."""
        return Kept((upload.info.site, read_predictive(self.learner, upload, inputs)))

    def finish(
        self,
        state: BestSiteState,
        total: Kept[tuple[str, Predictive]],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> BestSiteState:
        """Choose on the labelled rows; of equal sites the first by name."""
        rows, targets = reference.labelled, reference.targets
        scored = [(metrics.nll(p[rows], targets), site, p) for site, p in total.items]
        finite = [entry for entry in scored if math.isfinite(entry[0])]
        if not finite:
            raise ImproperPoolError(
                "no site predicts the labelled reference rows with a finite NLL"
            )
        _nll, site, predictive = min(finite, key=lambda entry: entry[:2])
        return replace(state, site=site, pooled=predictive)


@dataclass(frozen=True, slots=True)
class Tempered(LearnsAndLifts):
    """One temperature on the mixture or on the product.

    Args:
        learner: What each site fits.
        component: Which pool.
        send: Weight samples, or predictions on the reference inputs.
        prior: The prior predictive that the product divides out.
        floor: Least log-probability with which a site enters the pool.
    """

    learner: LocalLearner
    component: Literal["mixture", "product"] = "mixture"
    send: Send = "weights"
    prior: PriorChoice | Predictive = "default"
    floor: float = LOG_PROB_FLOOR

    streams: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_choices(self.send, self.prior)
        if self.component not in ("mixture", "product"):
            raise TrainingError(f"component must be 'mixture' or 'product', not {self.component!r}")

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> PoolState:
        """The prior predictive."""
        require_labels(reference, "the temperature")
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
        """Tune the temperature on the labelled rows; pool on all."""
        labelled = total[reference.labelled]
        tuned = tune_temperature(labelled, reference.targets, component=self.component)
        return replace(state, pooled=total.pool(tuned.weights), tuned=tuned)
