"""What the methods that pool predictives share: what a site sends, how it is read, the prior.

A site sends its posterior samples, which the coordinator runs on the reference inputs; or it runs
them itself and sends the predictions. Either way the coordinator has one predictive per site, and
lifts it into the sums that its pool needs. Methods differ in how they pool: in `finish`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from predbayes.errors import PoolError, TrainingError, UploadError
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import LocalLearner, NetworkLearner, Predictor
from predbayes.learning.training import Rows, count_rows, gather
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.predictive.pooling import PredictiveSum, Term
from predbayes.predictive.selection import Choice
from predbayes.predictive.tuning import TunedPool

Send = Literal["weights", "predictions"]

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
    tuned: TunedPool | None = None  # None where nothing was tuned, or not by the convex solve
    choice: Choice | None = None  # of a pool that was chosen from several

    @property
    def predictive(self) -> Predictive:
        """The pool on all reference rows, labelled ones first."""
        return require_round(self.pooled)


class LearnsAndLifts:
    """The steps at a site and on its upload, the same for every pool."""

    __slots__ = ()

    learner: LocalLearner
    send: Send
    floor: float
    count_classes: bool = False  # whether sites say how many rows of each class they have

    families: ClassVar[frozenset[type[Predictive]]] = frozenset({Categorical, Gaussian})
    terms: ClassVar[Mapping[type[Predictive], Sequence[Term]]] = {}  # beside the paper's two

    def learn(
        self, state: PoolState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Fit the learner; send its samples, or its predictions on the reference inputs."""
        return send_predictive(
            self.learner, self.send, rows, inputs, count_classes=self.count_classes, rng=rng
        )

    def lift(self, state: PoolState, upload: Upload, inputs: Tensor) -> Any:
        """The site's predictives as a summand, whichever way they came."""
        return self._of_site(state, upload, read_predictive(self.learner, upload, inputs))

    def _of_site(
        self, state: PoolState, upload: Upload, predictive: Predictive
    ) -> PredictiveSum[Any]:
        counts = upload.info.class_rows
        class_rows = None if counts is None else torch.tensor(counts)
        return self._summand(state, predictive, upload.info.num_rows, class_rows)

    def _summand(
        self,
        state: PoolState,
        predictive: Predictive,
        num_rows: int,
        class_rows: Tensor | None,
    ) -> PredictiveSum[Any]:
        return PredictiveSum.of(
            predictive,
            num_rows,
            class_rows=class_rows,
            prior=state.prior,
            terms=self.terms.get(type(predictive), ()),
            floor=self.floor,
        )


def require_round(pooled: Predictive | None) -> Predictive:
    """The predictive of a state, which exists after a round."""
    if pooled is None:
        raise PoolError("no round has been run yet, so there is no pool")
    return pooled


def learner_name(learner: object) -> str:
    """The name of a learner for a message, also of one that is `Shared`."""
    return type(getattr(learner, "unshared", learner)).__name__


def require_choices(send: object, prior: object) -> None:
    """Refuse misspelt options at once, not after the sites have trained."""
    if send not in get_args(Send):
        raise TrainingError(f"send must be 'weights' or 'predictions', not {send!r}")
    if isinstance(prior, str) and prior not in get_args(PriorChoice):
        raise TrainingError(
            f"prior must be 'default', 'flat', 'reference' or a predictive, not {prior!r}"
        )


def require_labels(reference: ReferenceRows, what: str) -> None:
    """Refuse to tune without labels."""
    if not len(reference.targets):
        raise TrainingError(f"{what} is tuned on labelled reference rows, and there are none")


def check_targets(learner: LocalLearner, reference: ReferenceRows) -> None:
    """Refuse reference targets that the learner's network could not predict."""
    if isinstance(learner, NetworkLearner):
        learner.network.likelihood.check(reference.targets)


def prior_predictive(
    choice: PriorChoice | Predictive, reference: ReferenceRows
) -> Predictive | None:
    """The prior that the product divides out; it goes into the plan, so every party knows it."""
    if not isinstance(choice, str):
        return choice
    regression = reference.targets.is_floating_point()
    if choice == "reference" and not regression:
        raise TrainingError("prior 'reference' is for regression; give a Categorical instead")
    if choice == "flat" or not regression:
        return None
    targets = reference.targets.double()
    if len(targets) < 2 or not float(targets.var()) > 0:
        raise TrainingError("prior 'reference' needs reference targets with a variance")
    return Gaussian(targets.mean().view(1), targets.var().view(1))


def send_predictive(
    learner: LocalLearner,
    send: Send,
    rows: Rows,
    inputs: Tensor,
    *,
    count_classes: bool = False,
    rng: torch.Generator,
) -> Upload:
    """Fit the learner; send its samples, or its predictions on the reference inputs.

    With ``count_classes`` also how many rows of each class the site has.
    """
    predictor = learner.fit(rows, rng=rng)
    return upload_of(
        predictor, send, rows, inputs, learner=learner, count_classes=count_classes, rng=rng
    )


def upload_of(
    predictor: Predictor,
    send: Send,
    rows: Rows,
    inputs: Tensor,
    *,
    learner: LocalLearner,
    count_classes: bool = False,
    dtype: torch.dtype = torch.float32,
    rng: torch.Generator,
) -> Upload:
    """What a site sends of a model that it has fitted; predictions travel in ``dtype``."""
    if send == "predictions":
        predictive = predictor.predict(inputs)
        if not isinstance(predictive, Categorical | Gaussian):
            raise TrainingError(
                f"{learner_name(learner)} predicts {type(predictive).__name__}; it must "
                "return a Categorical or a Gaussian"
            )
        counts = _class_rows(rows, predictive, rng) if count_classes else None
        return Upload.of_predictions(
            predictive, num_rows=count_rows(rows), class_rows=counts, dtype=dtype
        )
    samples = getattr(predictor, "samples", None)
    if not isinstance(samples, WeightSamples):
        raise TrainingError(
            f"{learner_name(learner)} has no weights to send; use send='predictions'"
        )
    counts = _class_rows(rows, predictor.predict(inputs[:1]), rng) if count_classes else None
    return Upload.of_weights(samples, num_rows=count_rows(rows), class_rows=counts)


def _class_rows(
    rows: Rows, predictive: Predictive, rng: torch.Generator
) -> tuple[float, ...] | None:
    if not isinstance(predictive, Categorical):
        return None
    _inputs, targets = gather(rows, rng=rng)
    counts = torch.bincount(targets.long(), minlength=predictive.log_probs.shape[1])
    return tuple(counts.double().tolist())


def read_predictive(learner: LocalLearner, upload: Upload, inputs: Tensor) -> Predictive:
    """A site's predictives on the reference inputs, whichever way they came."""
    if upload.info.kind == "predictions":
        predictive = upload.predictive()
    elif isinstance(learner, NetworkLearner):
        predictive = learner.network.predict(upload.samples(), inputs, learner.device)
    else:
        raise TrainingError("weights can only be read with the network that they are of")
    if len(predictive) != len(inputs):
        raise UploadError(
            f"site {upload.info.site!r} predicted {len(predictive)} rows; there are "
            f"{len(inputs)} reference inputs"
        )
    return predictive
