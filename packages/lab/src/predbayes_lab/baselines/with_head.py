"""Pools of sites' models with a head from moments beside them, as one more candidate.

Each site sends what it predicts on the reference rows, as for `AutoPool`, and sums of moments, as
for `HeadFromMoments`. The coordinator adds up both. The head of the total is one model of all rows;
no label has a part in it, so that it is honest on the labelled rows. There it stands beside the
pools, alone and in log-linear pools with them, and the labelled rows say how much of it to take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from predbayes.exchange.header import SUMS
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import Learner, NetworkLearner
from predbayes.learning.moments import Moments
from predbayes.learning.training import Rows
from predbayes.methods.pooled import Pooled
from predbayes.pools.auto import AutoPool
from predbayes.pools.pool import PoolState, RoundState
from predbayes.predictive.families import Predictive
from predbayes_lab.baselines.moments import HeadFromMoments, MomentsState, head_for

_POOL, _HEAD = "pool/", "head/"


@dataclass(frozen=True, slots=True)
class WithHeadState(RoundState):
    """The states of both halves."""

    pool: PoolState
    head: MomentsState


@dataclass(slots=True)
class _Both:
    """A site in the sums of both halves."""

    summand: Any
    moments: Moments

    def add_(self, other: _Both) -> Self:
        self.summand.add_(other.summand)
        self.moments.add_(other.moments)
        return self


@dataclass(frozen=True, slots=True)
class PooledWithHead:
    """Select a pool on the labelled rows, with a head from moments among the candidates.

    Args:
        pooled: What sites learn and send, and an `AutoPool`.
        head: Which sums they send beside it.
    """

    pooled: Pooled
    head: HeadFromMoments

    @property
    def families(self) -> frozenset[type[Predictive]]:
        """Those of both."""
        return self.pooled.families & self.head.families

    @property
    def streams(self) -> bool:
        """As the pool does."""
        return self.pooled.streams

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> WithHeadState:
        """Return the first states of both halves."""
        return WithHeadState(
            self.pooled.init(reference, rng=rng), self.head.init(reference, rng=rng)
        )

    def learn(
        self, state: WithHeadState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Return the predictions, with the sums beside them."""
        upload = self.pooled.learn(state.pool, rows, inputs, rng=rng)
        sums = self.head.learn(state.head, rows, inputs, rng=rng)
        return replace(upload, arrays={**upload.arrays, SUMS: sums.arrays[SUMS]})

    def with_learner(self, learner: Learner) -> PooledWithHead:
        """Return the same for a site with a learner of its own."""
        return replace(self, pooled=self.pooled.with_learner(learner))

    def state_arrays(self, state: WithHeadState) -> dict[str, Tensor]:
        """What sites need of both."""
        pool = self.pooled.state_arrays(state.pool)
        head = self.head.state_arrays(state.head)
        return {_POOL + n: a for n, a in pool.items()} | {_HEAD + n: a for n, a in head.items()}

    def state_from(self, arrays: Mapping[str, Tensor]) -> WithHeadState:
        """The states of both."""
        pool, head = (
            {n.removeprefix(part): a for n, a in arrays.items() if n.startswith(part)}
            for part in (_POOL, _HEAD)
        )
        return WithHeadState(self.pooled.state_from(pool), self.head.state_from(head))

    def lift(self, state: WithHeadState, upload: Upload, inputs: Tensor) -> _Both:
        """Return the site in the sums of both halves."""
        info = upload.info.model_copy(update={"kind": "moments"})
        return _Both(
            self.pooled.lift(state.pool, upload, inputs),
            self.head.lift(state.head, replace(upload, info=info), inputs),
        )

    def finish(
        self,
        state: WithHeadState,
        total: _Both,
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> WithHeadState:
        """Fit the head, and select a pool with it."""
        predicted = total.moments.head().predict(reference.inputs)
        pool: Any = self.pooled.pool
        pooled = replace(self.pooled, pool=replace(pool, head=predicted))
        after = pooled.finish(state.pool, total.summand, reference, rng=rng)
        return replace(state, pool=after, pooled=after.pooled)


def auto_with_head(
    learner: NetworkLearner,
    *,
    num_features: int = 300,
    scales: tuple[float, ...] = (1.0, 2.0, 4.0),
    gates: bool = True,
    own: Learner | Literal["same", "none"] = "same",
) -> PooledWithHead:
    """Return `AutoPool` with a head from moments among its candidates.

    Args:
        learner: What each site fits.
        num_features: Random features of each scale.
        scales: Distances over which the head may bend.
        gates: Whether sites send their gates.
        own: What the coordinator fits to the labelled rows.
    """
    pooled = Pooled(learner, AutoPool(gates=gates), send="predictions", own=own)
    return PooledWithHead(
        pooled, head_for(learner, num_features=num_features, scales=tuple(scales))
    )
