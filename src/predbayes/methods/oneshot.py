"""One-shot federated learning (Guha et al., 2019): an ensemble of the sites' point estimates.

Every site trains one network from a common start and sends it. Beta-PredBayes' authors average the
*logits*, which for the Categorical is the product at temperature n,

    eta = (1/n) sum_k log p_k

and for a regression the mixture with equal weights. Guha et al. also study which sites to leave
out; here all take part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import NetworkLearner
from predbayes.learning.training import Rows
from predbayes.methods.global_model import ModelState, first_model, learn_from
from predbayes.methods.pooled import read_predictive
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.predictive.pooling import PredictiveSum


@dataclass(frozen=True, slots=True)
class OneShotFL:
    """Average the logits of the sites' networks; in a regression, their moments."""

    learner: NetworkLearner

    families: ClassVar[frozenset[type[Predictive]]] = frozenset({Categorical, Gaussian})
    streams: ClassVar[bool] = True

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> ModelState:
        """The weights that every site starts from."""
        return first_model(self.learner, reference, rng=rng)

    def learn(
        self, state: ModelState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Train from the common start; send the weights."""
        return learn_from(self.learner, state, rows, rng=rng)

    def lift(self, state: ModelState, upload: Upload, inputs: Tensor) -> PredictiveSum[Any]:
        """The site's predictive; every site counts once."""
        return PredictiveSum.of(read_predictive(self.learner, upload, inputs), rows=1.0)

    def finish(
        self,
        state: ModelState,
        total: PredictiveSum[Any],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> ModelState:
        """Mean logits, or the mixture."""
        if total.family is Categorical:
            return replace(state, pooled=total.pool({"product": 1 / total.num_clients}))
        return replace(state, pooled=total.mixture())
