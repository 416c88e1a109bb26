"""Federated averaging (McMahan et al., 2017): the row-weighted mean of the sites' weights.

    w  <-  sum_k |D_k| w_k / sum_k |D_k|,        w_k trained at site k, from w

Over several rounds by `run(..., num_rounds=)`; the learner's epochs are those of one round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from predbayes.exchange.reference import ReferenceRows
from predbayes.methods.method import ModelState
from predbayes.summand import TensorSum
from predbayes_lab.baselines.global_model import AveragesWeights, mean_of, predict_with


@dataclass(frozen=True, slots=True)
class FedAvg(AveragesWeights):
    """Average the sites' weights."""

    def finish(
        self, state: ModelState, total: TensorSum, reference: ReferenceRows, *, rng: torch.Generator
    ) -> ModelState:
        """The mean is the new global model."""
        mean = mean_of(total, "parameters").unsqueeze(0)
        weights = state.weights.from_vectors(mean, mean_of(total, "buffers"))
        return ModelState(weights, pooled=predict_with(self.learner, weights, reference))
