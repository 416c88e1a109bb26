"""Federated posterior averaging (Al-Shedivat et al., 2021): changes whitened by the posterior.

From samples x_1..x_l of its posterior, a site sends (FedPA: sec. 4)

    delta = Sigma^-1 (w - mean),   Sigma = rho_l I + (1 - rho_l) S,   rho_l = 1 / (1 + (l - 1) rho)

with S the samples' covariance, and the server steps along minus the row-weighted mean of the
deltas, by SGD with momentum or by Adam. Sigma is P x P and never built: with Sigma = rho_l A_l, the
matrices A_t = I + rho (t - 1) S_t grow by rank one,

    A_t = A_{t-1} + g_t u_t u_t',     u_t = x_t - mean_{t-1},     g_t = rho (t - 1) / t

so A_t^-1 is applied by the Sherman-Morrison formula from the vectors v_t = A_{t-1}^-1 u_t, and

    d_t = A_t^-1 (w - mean_t) = d_{t-1} - (1 + g_t t u_t.d_{t-1}) / (1 + g_t u_t.v_t) v_t / t

which costs O(l^2 P). At rho = 0 it is federated averaging of the sites' mean samples.

Released: the authors of beta-PredBayes overwrite u_t with v_t and use the final l in place of t, so
that their delta is not the solution of this system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.training import Rows, count_rows
from predbayes.methods.method import ModelState
from predbayes.summand import TensorSum
from predbayes_lab.baselines.global_model import (
    AveragesWeights,
    mean_of,
    predict_with,
    row_weighted,
    weights_of,
)

_FIRST_DECAY, _SECOND_DECAY = 0.9, 0.999  # of the server's optimiser


@dataclass(frozen=True, slots=True)
class PosteriorAveragingState(ModelState):
    """The global model and the server optimiser's memory."""

    first_moment: Tensor  # (P,); the velocity of SGD
    second_moment: Tensor  # (P,); of Adam
    num_steps: int = 0


@dataclass(frozen=True, slots=True)
class FedPA(AveragesWeights):
    """Average the sites' whitened changes; take a step of the server's optimiser.

    Args:
        learner: A sampler.
        shrinkage: rho; the larger, the less the sample covariance is shrunk to the identity.
        server_lr: Step size at the server.
        server_optimizer: SGD with momentum .9, or Adam.
    """

    shrinkage: float = 0.4
    server_lr: float = 1.0
    server_optimizer: Literal["sgd", "adam"] = "sgd"

    def __post_init__(self) -> None:
        if self.shrinkage < 0:
            raise TrainingError(f"shrinkage must not be negative, as {self.shrinkage} is")
        if self.server_optimizer not in ("sgd", "adam"):
            raise TrainingError(
                f"server_optimizer must be 'sgd' or 'adam', not {self.server_optimizer!r}"
            )

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> PosteriorAveragingState:
        """The weights that every site starts from."""
        weights = AveragesWeights.init(self, reference, rng=rng).weights
        zeros = torch.zeros_like(weights.vectors()[0][-1])
        return PosteriorAveragingState(weights, zeros, zeros)

    def learn(
        self, state: ModelState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Sample from the global model on; send the whitened change."""
        samples = self.learner.fit(rows, rng=rng, start=state.weights).samples
        parameters, buffers = samples.vectors()
        delta = whitened(state.weights.vectors()[0][-1], parameters, self.shrinkage)
        change = state.weights.from_vectors(delta.unsqueeze(0), buffers[-1])
        return Upload.of_delta(change, num_rows=count_rows(rows))

    def lift(self, state: ModelState, upload: Upload, inputs: Tensor) -> TensorSum:
        """The site's change times its rows."""
        return row_weighted(weights_of(upload, state, "delta"), upload.info.num_rows)

    def finish(
        self,
        state: PosteriorAveragingState,
        total: TensorSum,
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> PosteriorAveragingState:
        """One step along minus the mean delta."""
        first, second, step = self._step(state, mean_of(total, "parameters"))
        moved = state.weights.vectors()[0][-1] - self.server_lr * step
        weights = state.weights.from_vectors(moved.unsqueeze(0), mean_of(total, "buffers"))
        pooled = predict_with(self.learner, weights, reference)
        num_steps = state.num_steps + 1
        return PosteriorAveragingState(weights, first, second, num_steps, pooled=pooled)

    def _step(self, state: PosteriorAveragingState, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The optimiser's new memory, and the direction to step in."""
        if self.server_optimizer == "sgd":
            velocity = _FIRST_DECAY * state.first_moment + delta
            return velocity, state.second_moment, velocity
        first = _FIRST_DECAY * state.first_moment + (1 - _FIRST_DECAY) * delta
        second = _SECOND_DECAY * state.second_moment + (1 - _SECOND_DECAY) * delta.square()
        count = state.num_steps + 1
        unbiased = (second / (1 - _SECOND_DECAY**count)).sqrt() + 1e-8
        return first, second, first / (1 - _FIRST_DECAY**count) / unbiased


def whitened(start: Tensor, samples: Tensor, shrinkage: float) -> Tensor:
    """The delta of the module's docstring: start (P,), samples (l, P)."""
    mean = samples[0]
    delta = start - mean
    applied: list[tuple[Tensor, Tensor]] = []  # g_t / (1 + g_t u_t.v_t) and v_t
    for t, sample in enumerate(samples[1:], 2):
        u = sample - mean
        v = u.clone()
        for factor, earlier in applied:
            v -= factor * (earlier @ u) * earlier
        gain = shrinkage * (t - 1) / t
        scale = 1 + gain * (u @ v)
        delta = delta - (1 + gain * t * (u @ delta)) / scale * v / t
        applied.append((gain / scale, v))
        mean = mean + u / t
    return delta * (1 + (len(samples) - 1) * shrinkage)  # divided by rho_l
