"""FedBE (Chen and Chao, 2021): an ensemble drawn around the average of the sites' weights.

A Gaussian over networks is fitted to the sites' weights w_k (FedBE: eq. 7),

    mean = sum_k |D_k| w_k / |D|,        var = sum_k |D_k| (w_k - mean)^2 / |D|

and the ensemble averages the predictives of S networks drawn from it, of the n sites' networks,
and of the mean network. `Distilled` makes one network of it.

Released: the authors of beta-PredBayes draw with the variance in place of the standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import NetworkLearner
from predbayes.learning.training import Rows
from predbayes.methods.global_model import (
    ModelState,
    first_model,
    learn_from,
    mean_of,
    predict_with,
    row_weighted,
)
from predbayes.methods.pooled import read_predictive
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.summand import TensorSum


@dataclass(frozen=True, slots=True)
class FedBE:
    """Average the predictives of drawn networks, the sites' networks and their mean.

    Args:
        learner: What each site fits.
        num_samples: Networks to draw.
    """

    learner: NetworkLearner
    num_samples: int = 10

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

    def lift(self, state: ModelState, upload: Upload, inputs: Tensor) -> TensorSum:
        """The site's weights and their squares times its rows, and the moments it predicts."""
        samples, num_rows = upload.samples(), upload.info.num_rows
        moments = read_predictive(self.learner, upload, inputs).moments()
        squares = num_rows * samples.vectors()[0][-1].square()
        sums = {"sites": torch.tensor(1.0), "moments": moments, "squares": squares}
        return row_weighted(samples, num_rows).with_terms(sums)

    def finish(
        self, state: ModelState, total: TensorSum, reference: ReferenceRows, *, rng: torch.Generator
    ) -> ModelState:
        """Draw networks; average all predictives by their moments."""
        mean = mean_of(total, "parameters")
        std = (mean_of(total, "squares") - mean.square()).clamp_min(0).sqrt()
        noise = torch.randn(self.num_samples, len(mean), generator=rng, dtype=mean.dtype)
        buffers = mean_of(total, "buffers")
        vectors = torch.cat([mean.unsqueeze(0), mean + noise * std])
        drawn = state.weights.from_vectors(vectors, buffers)
        predictive = predict_with(self.learner, drawn, reference)
        moments = total["moments"] + len(drawn) * predictive.moments()
        average = moments / (total["sites"] + len(drawn))
        return replace(state, weights=drawn[:1], pooled=type(predictive).from_moments(average))
