"""FedYogi (Reddi et al., 2021): federated averaging with an adaptive step at the server.

With D the row-weighted mean of the sites' changes w_k - w (FedOpt: alg. 2),

    m  <-  b1 m + (1 - b1) D
    v  <-  v - (1 - b2) D^2 sign(v - D^2)
    w  <-  w + eta m / (sqrt(v) + tau)

from m = 0 and v = tau^2, the least start that Reddi et al. allow. After one round m is a tenth
of D: the method is made for many.

Released: the authors of beta-PredBayes start at v = 0: `first_second_moment=0.0`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from predbayes.exchange.reference import ReferenceRows
from predbayes.methods.method import ModelState
from predbayes.summand import TensorSum
from predbayes_lab.baselines.global_model import AveragesWeights, mean_of, predict_with


@dataclass(frozen=True, slots=True)
class YogiState(ModelState):
    """The global model and the server optimiser's memory."""

    first_moment: Tensor  # (P,)
    second_moment: Tensor  # (P,)


@dataclass(frozen=True, slots=True)
class FedYogi(AveragesWeights):
    """Average the sites' changes; step adaptively.

    Args:
        learner: What each site fits.
        server_lr: Step size eta at the server.
        adaptivity: The constant tau.
        first_decay: b1.
        second_decay: b2.
        first_second_moment: Where v starts; None is tau squared.
    """

    server_lr: float = 0.1
    adaptivity: float = 0.01
    first_decay: float = 0.9
    second_decay: float = 0.99
    first_second_moment: float | None = None

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> YogiState:
        """The weights that every site starts from, and a fresh optimiser."""
        weights = AveragesWeights.init(self, reference, rng=rng).weights
        vector = weights.vectors()[0][-1]
        start = self.first_second_moment
        second = self.adaptivity**2 if start is None else start
        return YogiState(weights, torch.zeros_like(vector), torch.full_like(vector, second))

    def finish(
        self, state: YogiState, total: TensorSum, reference: ReferenceRows, *, rng: torch.Generator
    ) -> YogiState:
        """One step of Yogi along the mean change."""
        present = state.weights.vectors()[0][-1]
        change = mean_of(total, "parameters") - present
        first = self.first_decay * state.first_moment + (1 - self.first_decay) * change
        square = change.square()
        sign = (state.second_moment - square).sign()
        second = state.second_moment - (1 - self.second_decay) * square * sign
        moved = present + self.server_lr * first / (second.sqrt() + self.adaptivity)
        weights = state.weights.from_vectors(moved.unsqueeze(0), mean_of(total, "buffers"))
        pooled = predict_with(self.learner, weights, reference)
        return replace(
            state, weights=weights, first_moment=first, second_moment=second, pooled=pooled
        )
