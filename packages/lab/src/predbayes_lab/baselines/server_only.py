"""A control: the same learner on the coordinator's labelled reference rows, with no federation.

A federation must beat it before it is worth the trouble. Deep ensembles in place of posterior
samples are another control: a learner, `DeepEnsemble`, for any method. A *bag* is the coordinator's
own model as `AutoPool` has it, cross-fitted and so of several fits, alone: what `AutoPool` owes to
that model is no merit of the federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.local import Learner, check_targets, fit_with_retries
from predbayes.learning.training import Rows, count_rows
from predbayes.pools.pool import BOTH_FAMILIES, PoolState
from predbayes.predictive.families import Predictive
from predbayes.seeding import split
from predbayes.summand import TensorSum


@dataclass(frozen=True, slots=True)
class ServerOnly:
    """The learner on the labelled reference rows; sites send how many rows they have, no more.

    Args:
        learner: What is fitted.
        bag: Whether to fit it once, or as often as the own model of `AutoPool`, which it then is.
    """

    learner: Learner
    bag: bool = False

    families: ClassVar[frozenset[type[Predictive]]] = BOTH_FAMILIES
    streams: ClassVar[bool] = True

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> PoolState:
        """Nothing to tell the sites."""
        if not len(reference.targets):
            raise TrainingError(
                "server only learns from labelled reference rows, and there are none"
            )
        check_targets(self.learner, reference.targets)
        return PoolState()

    def learn(
        self, state: PoolState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """The number of rows."""
        return Upload(UploadInfo(kind="counts", num_rows=count_rows(rows)), {})

    def state_arrays(self, state: PoolState) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def state_from(self, arrays: Mapping[str, Tensor]) -> PoolState:
        """The state of which sites need nothing."""
        return PoolState()

    def lift(self, state: PoolState, upload: Upload, inputs: Tensor) -> TensorSum:
        """The number of rows."""
        return TensorSum({"rows": torch.tensor(float(upload.info.num_rows))})

    def finish(
        self, state: PoolState, total: TensorSum, reference: ReferenceRows, *, rng: torch.Generator
    ) -> PoolState:
        """Fit at the coordinator."""
        if self.bag:
            own = split(rng, 2)[0]  # as in AutoPool, so that it is the same model to the bit
            bag = cross_fitted(self.learner, reference.inputs, reference.targets, rng=own)
            return replace(state, pooled=bag)
        rows = (reference.inputs[reference.labelled], reference.targets)
        model = fit_with_retries(self.learner, rows, rng=rng)
        return replace(state, pooled=model.predict(reference.inputs))
