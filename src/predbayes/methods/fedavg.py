"""Federated averaging (McMahan et al., 2017): the row-weighted mean of the sites' weights.

    w  <-  sum_k |D_k| w_k / sum_k |D_k|,        w_k trained at site k, from w

Over several rounds by `run(..., num_rounds=)`; the learner's epochs are those of one round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import NetworkLearner
from predbayes.learning.training import Rows
from predbayes.methods.global_model import (
    ModelState,
    average_model,
    first_model,
    learn_from,
    row_weighted,
)
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.summand import TensorSum


@dataclass(frozen=True, slots=True)
class FedAvg:
    """Average the sites' weights."""

    learner: NetworkLearner

    families: ClassVar[frozenset[type[Predictive]]] = frozenset({Categorical, Gaussian})
    streams: ClassVar[bool] = True

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> ModelState:
        """The weights that every site starts from."""
        return first_model(self.learner, reference, rng=rng)

    def learn(
        self, state: ModelState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Train from the global model; send the weights."""
        return learn_from(self.learner, state, rows, rng=rng)

    def lift(self, state: ModelState, upload: Upload, inputs: Tensor) -> TensorSum:
        """The site's weights times its rows."""
        return row_weighted(upload.samples(), upload.info.num_rows)

    def finish(
        self, state: ModelState, total: TensorSum, reference: ReferenceRows, *, rng: torch.Generator
    ) -> ModelState:
        """The mean is the new global model."""
        return average_model(self.learner, state, total, reference)
