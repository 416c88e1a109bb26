"""One-shot federated learning (Guha et al., 2019): an ensemble of the sites' point estimates.

Every site trains one network from a common start and sends it. Beta-PredBayes' authors average the
*logits*, which for the Categorical is the product at temperature n,

    eta = (1/n) sum_k log p_k

and for a regression the mixture with equal weights. Guha et al. also study which sites to leave
out; here all take part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from predbayes.exchange.reader import Reader
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.methods.method import ModelState
from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import PredictiveSum
from predbayes_lab.baselines.global_model import FromGlobalModel


@dataclass(frozen=True, slots=True)
class OneShotFL(FromGlobalModel):
    """Average the logits of the sites' networks; in a regression, their moments."""

    def lift(self, state: ModelState, upload: Upload, inputs: Tensor) -> PredictiveSum[Any]:
        """The site's predictive; every site counts once."""
        return PredictiveSum.of(Reader.of(self.learner).read(upload, inputs), rows=1.0)

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
