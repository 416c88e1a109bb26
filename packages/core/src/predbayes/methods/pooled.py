"""A method of two halves: what a site learns and sends, and how the coordinator pools it.

With the pool `beta` it is Algorithm 1 of the paper (alg:dBpredbayes) without its last step, which
`Distilled` adds:

    1, 2   each site samples its posterior and sends the samples         learn
    3      the server averages a site's predictions over its samples     lift
    4      and adds what the pools need of it to the running sums        lift, then +
    5      beta = argmin of the NLL on the labelled reference rows       finish

A site may instead average its own predictions on the reference inputs and send those: the sums are
the same, the upload is smaller, and any learner will do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from predbayes.arrays import LoaderRows, as_rows
from predbayes.errors import PoolError, TrainingError, UploadError
from predbayes.exchange.reader import Reader
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.gate import DEFAULT_BOUNDS, log_density_ratio
from predbayes.learning.local import (
    GateLearner,
    Learner,
    Predictor,
    check_targets,
    fit_with_retries,
    require_learner,
)
from predbayes.learning.training import Rows, count_rows, gather
from predbayes.methods.description import name_of
from predbayes.pools.auto import AutoPool
from predbayes.pools.pool import Pool, PoolState
from predbayes.pools.terms import TermPool
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import FAMILIES, Categorical, Predictive
from predbayes.predictive.pooling import Contribution
from predbayes.seeding import split

Send = Literal["weights", "predictions"]

_CONTRAST = "num_contrast"


@dataclass(frozen=True, slots=True)
class Pooled:
    """Fit a learner at each site, and pool what the sites predict on the reference rows.

    Args:
        learner: What each site fits.
        pool: How the coordinator pools; by default the pool is selected on the labelled rows.
        send: Weight samples, or predictions on the reference inputs.
        own: What the coordinator fits to the labelled rows, for a pool that takes such a model:
            ``"same"`` as the sites, a learner of its own, or ``"none"``.
        gate: What each site learns its gate with, for a pool that asks for gates: ``"same"``, the
            learner's counterpart if it has one, a learner for two classes (0 a contrast row, 1 an
            own one), or ``"none"``.
    """

    learner: Learner
    pool: Pool[Any] = field(default_factory=AutoPool)
    send: Send = "weights"
    own: Learner | Literal["same", "none"] = "same"
    gate: Learner | Literal["same", "none"] = "same"

    def __post_init__(self) -> None:
        require_learner(self.learner)
        _require_pool(self.pool)
        if self.send not in get_args(Send):
            raise TrainingError(f"send must be 'weights' or 'predictions', not {self.send!r}")
        for name, given in (("own", self.own), ("gate", self.gate)):
            if isinstance(given, str) and given not in ("same", "none"):
                raise TrainingError(f"{name} must be 'same', 'none' or a learner, not {given!r}")
            if not isinstance(given, str):
                require_learner(given)
        if isinstance(self.pool, TermPool) and self.pool.gates and self._gate_learner is None:
            why = f"{type(self.learner).__name__} has no gate_learner, which gates are learnt with"
            raise TrainingError(
                f"{'the pool needs gates' if self.gate == 'none' else why}; give a learner for two "
                "classes as gate="
            )
        if self.own != "same" and not hasattr(self.pool, "own"):
            raise TrainingError(f"{name_of(self.pool)} takes no own model; leave own out")

    @property
    def families(self) -> frozenset[type[Predictive]]:
        """Those of the pool."""
        return self.pool.families

    @property
    def streams(self) -> bool:
        """As the pool does."""
        return self.pool.streams

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> PoolState:
        """Return the pool's first state; targets that the learner cannot predict are refused."""
        state = self.pool.init(reference)
        check_targets(self.learner, reference.targets)
        return state

    def learn(
        self, state: PoolState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Fit the learner; send its samples, or its predictions on the reference inputs."""
        rows = as_rows(rows)  # once: a loader's classes are counted while the learner reads it
        asked = getattr(self.pool, "count_classes", False)
        fitted = fit_with_retries(self.learner, rows, rng=rng)
        gate = self._gate(state, rows, inputs, rng)
        return upload_of(fitted, self.send, rows, inputs, count_classes=asked, gate=gate, rng=rng)

    def with_learner(self, learner: Learner) -> Pooled:
        """Return the same for a site with a learner of its own."""
        return replace(self, learner=learner)

    def state_arrays(self, state: PoolState) -> dict[str, Tensor]:
        """The rows that gates are learnt from; the prior stays, which is of labels."""
        count = state.num_contrast
        return {} if count is None else {_CONTRAST: torch.tensor(count)}

    def state_from(self, arrays: Mapping[str, Tensor]) -> PoolState:
        """The state with these rows."""
        return PoolState(num_contrast=int(arrays[_CONTRAST]) if _CONTRAST in arrays else None)

    def lift(self, state: PoolState, upload: Upload, inputs: Tensor) -> Any:
        """Return the site's predictives as a summand, whichever way they came."""
        self._check_gate(state, upload, inputs)
        predictive = Reader.of(self.learner).read(upload, inputs)
        return self.pool.lift(state, contribution(upload, predictive))

    def finish(
        self, state: PoolState, total: Any, reference: ReferenceRows, *, rng: torch.Generator
    ) -> PoolState:
        """Pool on all rows, with the coordinator's own model where the pool takes one."""
        pool: Any = self.pool
        if self.own != "none" and getattr(pool, "own", self) is None:
            learner = self.learner if self.own == "same" else self.own
            pool = replace(pool, own=partial(cross_fitted, learner))
        after: PoolState = pool.finish(state, total, reference, rng=rng)
        _require_pooled(name_of(self.pool), after, len(reference.inputs))
        return after

    def _gate(
        self, state: PoolState, rows: Rows, inputs: Tensor, rng: torch.Generator
    ) -> Tensor | None:
        """The site's gate, if the pool asks for it."""
        gate_learner = self._gate_learner if getattr(self.pool, "gates", False) else None
        if gate_learner is None:
            return None
        own = gather(rows, rng=rng)
        return log_density_ratio(
            gate_learner, own, inputs, num_contrast=state.num_contrast, rng=split(rng, 1)[0]
        )

    def _check_gate(self, state: PoolState, upload: Upload, inputs: Tensor) -> None:
        """Refuse a gate that no site can have learnt, if the pool may weigh by it."""
        if state.num_contrast is None:
            return
        try:
            if (gate := upload.gate) is None:
                return
            if len(gate) != len(inputs):
                raise UploadError(f"its gate has {len(gate)} numbers for {len(inputs)} inputs")
            DEFAULT_BOUNDS.check(gate, state.num_contrast)
        except UploadError as error:
            raise UploadError(
                f"site {upload.info.site!r}: {error.reason}; leave the site out, or let it learn "
                "again, with the method of this round"
            ) from error

    @property
    def _gate_learner(self) -> GateLearner | None:
        """What sites learn their gates with; None where their learner has no such counterpart."""
        if not isinstance(self.gate, str):
            return GateLearner(self.gate)
        return self.learner.gate_learner() if self.gate == "same" else None


def _require_pool(pool: object) -> None:
    if isinstance(pool, type):
        raise TrainingError(f"{pool.__name__} is a class; write {pool.__name__}()")
    if not all(hasattr(pool, part) for part in ("families", "streams", "init", "lift", "finish")):
        raise TrainingError(
            f"{pool!r} is no pool; a pool is an object with families, streams, init, lift and "
            "finish"
        )


def _require_pooled(name: str, state: object, num_rows: int) -> None:
    """Refuse what a pool, such as one of the user's own, must not return."""
    pooled = getattr(state, "pooled", None)
    if not isinstance(pooled, FAMILIES):
        raise PoolError(
            f"{name}.finish returned a {type(state).__name__} without a predictive; return "
            "PoolState(pooled=...) with a Categorical, a Gaussian or a Survival"
        )
    if len(pooled) != num_rows:
        raise PoolError(f"{name} pooled {len(pooled)} rows; there are {num_rows} reference rows")
    # A probability may be zero: its logarithm is not finite, its moments are.
    if not bool(pooled.moments().isfinite().all()):
        raise PoolError(f"{name} gave a predictive that is not finite")


def contribution(upload: Upload, predictive: Predictive) -> Contribution:
    """Return what a site predicts, with what its upload says about the site."""
    info = upload.info
    counts = None if info.class_rows is None else torch.tensor(info.class_rows)
    return Contribution(info.site, predictive, info.num_rows, counts, upload.gate)


def upload_of(
    predictor: Predictor,
    send: Send,
    rows: Rows,
    inputs: Tensor,
    *,
    count_classes: bool = False,
    gate: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    rng: torch.Generator,
) -> Upload:
    """Return what a site sends of a model that it has fitted.

    Args:
        predictor: The model.
        send: Weight samples, or predictions on the reference inputs.
        rows: What it was fitted to.
        inputs: The reference inputs.
        count_classes: Whether to say how many rows of each class the site has.
        gate: The site's gate on the reference inputs.
        dtype: What predictions travel in.
        rng: The order in which rows are read to count them.
    """
    if send == "predictions":
        predictive = predictor.predict(inputs)
        if not isinstance(predictive, FAMILIES):
            raise TrainingError(
                f"the learner's model predicts {type(predictive).__name__}; it must return a "
                "Categorical, a Gaussian or a Survival"
            )
        counts = _class_rows(rows, predictive, rng) if count_classes else None
        return Upload.of_predictions(
            predictive, num_rows=count_rows(rows), class_rows=counts, gate=gate, dtype=dtype
        )
    samples = getattr(predictor, "samples", None)
    if not isinstance(samples, WeightSamples):
        raise TrainingError("the learner's model has no weights to send; use send='predictions'")
    counts = _class_rows(rows, predictor.predict(inputs[:1]), rng) if count_classes else None
    return Upload.of_weights(samples, num_rows=count_rows(rows), class_rows=counts, gate=gate)


def _class_rows(
    rows: Rows, predictive: Predictive, rng: torch.Generator
) -> tuple[float, ...] | None:
    if not isinstance(predictive, Categorical):
        return None
    seen = rows.class_rows if isinstance(rows, LoaderRows) else None
    if seen is None:
        _inputs, targets = gather(rows, rng=rng)
        seen = Counter(targets.tolist())
    return tuple(float(seen[label]) for label in range(predictive.log_probs.shape[1]))
