"""FedBE (Chen and Chao, 2021): an ensemble drawn around the average of the sites' weights.

A Gaussian over networks is fitted to the sites' weights w_k (FedBE: eq. 7),

    mean = sum_k |D_k| w_k / |D|,        var = sum_k |D_k| (w_k - mean)^2 / |D|

and the ensemble averages the predictives of S networks drawn from it, of the n sites' networks,
and of the mean network. `Distilled` makes one network of it.

Released: the authors of beta-PredBayes draw with the variance in place of the standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from predbayes.exchange.reader import Reader
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.methods.method import ModelState
from predbayes.summand import TensorSum
from predbayes_lab.baselines.global_model import (
    FromGlobalModel,
    mean_of,
    predict_with,
    row_weighted,
)


@dataclass(frozen=True, slots=True)
class FedBE(FromGlobalModel):
    """Average the predictives of drawn networks, the sites' networks and their mean.

    Args:
        learner: What each site fits.
        num_samples: Networks to draw.
    """

    num_samples: int = 10

    def lift(self, state: ModelState, upload: Upload, inputs: Tensor) -> TensorSum:
        """The site's weights and their squares times its rows, and the moments it predicts."""
        samples, num_rows = upload.samples(), upload.info.num_rows
        moments = Reader.of(self.learner).read(upload, inputs).moments()
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
