"""Embarrassingly parallel MCMC (Neiswanger et al., 2014): a product of Gaussians on the weights.

Each site's samples are summarised by a Gaussian, here with a diagonal covariance as in the
paper's experiments. Every site's posterior holds the whole prior N(0, s^2), so the product of n
of them holds it n times, and n - 1 are divided out:

    prec = sum_k prec_k - (n - 1) / s^2,        mean = sum_k prec_k mean_k / prec

The predictive is the average over networks drawn from that Gaussian. Weights of networks can
only be multiplied where they mean the same, so all sites start from common weights.

Released: the authors take the identity for every precision, pass a variance as a standard
deviation, and in classification use the mean alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from predbayes.errors import TrainingError, UploadError
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import NetworkPredictor
from predbayes.learning.norms import without_prior
from predbayes.learning.training import Rows, count_rows
from predbayes.methods.method import ModelState
from predbayes.summand import TensorSum
from predbayes_lab.baselines.global_model import (
    FromGlobalModel,
    network_of,
    predict_with,
    weights_of,
)

_MIN_VAR = 1e-10  # of weights that hardly move, such as those of a pixel that is always black


@dataclass(frozen=True, slots=True)
class EPMCMC(FromGlobalModel):
    """Multiply diagonal Gaussians fitted to the sites' samples; predict with draws from the result.

    Args:
        learner: A sampler, with at least two samples per site.
        num_samples: Networks to draw.
        prior_std: Standard deviation s of the weight prior that the sampler used.
    """

    num_samples: int = 10
    prior_std: float = math.inf

    def __post_init__(self) -> None:
        if self.num_samples < 1 or not self.prior_std > 0:
            raise TrainingError("EP-MCMC needs a positive number of samples and prior_std")

    def learn(
        self, state: ModelState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Sample from the common start on; send the samples."""
        samples = self.learner.fit(rows, rng=rng, start=state.weights).samples
        return Upload.of_weights(samples, num_rows=count_rows(rows))

    def lift(self, state: ModelState, upload: Upload, inputs: Tensor) -> TensorSum:
        """The natural coordinates of the Gaussian fitted to the site's samples."""
        parameters, buffers = weights_of(upload, state).vectors()
        if len(parameters) < 2:
            raise UploadError(
                f"site {upload.info.site!r} sent one sample, which has no variance; sample more"
            )
        # No site knows less than the prior.
        prec = (1 / parameters.var(0).clamp_min(_MIN_VAR)).maximum(self._prior_prec(state))
        return TensorSum(
            {
                "sites": torch.tensor(1.0),
                "prec": prec,
                "prec_mean": prec * parameters.mean(0),
                "buffers": buffers.mean(0),
            }
        )

    def finish(
        self, state: ModelState, total: TensorSum, reference: ReferenceRows, *, rng: torch.Generator
    ) -> ModelState:
        """Divide the prior out; draw networks; average their predictives."""
        prec = total["prec"] - (total["sites"] - 1) * self._prior_prec(state)
        mean = total["prec_mean"] / prec
        noise = torch.randn(self.num_samples, len(mean), generator=rng, dtype=mean.dtype)
        buffers = total["buffers"] / total["sites"]
        drawn = state.weights.from_vectors(mean + noise / prec.sqrt(), buffers)
        weights = state.weights.from_vectors(mean.unsqueeze(0), buffers)
        pooled = predict_with(self.learner, drawn, reference)
        return replace(state, weights=weights, pooled=pooled, drawn=drawn)

    def model(self, state: ModelState) -> NetworkPredictor:
        """The networks that were drawn."""
        return network_of(self.learner, state.drawn or state.weights)

    def _prior_prec(self, state: ModelState) -> Tensor:
        """The prior's precision of each parameter; what is no weight has none."""
        weights = state.weights
        free = without_prior(self.learner.network.create(torch.Generator()))
        ones = {
            name: torch.full_like(value, float(name not in free))
            for name, value in weights.parameters.items()
        }
        return replace(weights, parameters=ones).vectors()[0][-1] / self.prior_std**2
