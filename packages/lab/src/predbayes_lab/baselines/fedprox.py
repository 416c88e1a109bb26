"""FedProx (Li et al., 2020): federated averaging with sites held near the global model.

Site k minimises its mean loss plus a squared penalty (FedProx: eq. 2),

    F_k(v) + lambda/2 ||v - w||^2,       whose gradient is    grad F_k(v) + lambda (v - w)

Released: the authors of beta-PredBayes add lambda times the norm itself, not squared, tensor by
tensor: a pull of constant size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from predbayes.exchange.upload import Upload
from predbayes.learning.local import NetworkLearner, NetworkPredictor
from predbayes.learning.training import Rows, count_rows, resolve_device
from predbayes.methods.method import ModelState
from predbayes.posterior.samples import WeightSamples
from predbayes_lab.baselines.fedavg import FedAvg


class PenalisedLearner(NetworkLearner, Protocol):
    """A network learner whose fit takes a penalty: `SGDLearner`."""

    def fit(
        self,
        rows: Rows,
        *,
        rng: torch.Generator,
        start: WeightSamples | None = None,
        penalty: Callable[[nn.Module], None] | None = None,
    ) -> NetworkPredictor:
        """Learn from a site's rows under a penalty."""


@dataclass(frozen=True, slots=True)
class FedProx(FedAvg):
    """Average the sites' weights, trained under a proximal penalty.

    Args:
        learner: What each site fits.
        proximal: Strength lambda of the penalty; 0 is FedAvg.
    """

    learner: PenalisedLearner
    proximal: float = 0.01

    def learn(
        self, state: ModelState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Train near the global model; send the weights."""
        penalty = _towards(state.weights, self.proximal, self.learner.device)
        predictor = self.learner.fit(rows, rng=rng, start=state.weights, penalty=penalty)
        return Upload.of_weights(predictor.samples, num_rows=count_rows(rows))


def _towards(anchor: WeightSamples, strength: float, device: str) -> Callable[[nn.Module], None]:
    """Adds strength × (v - anchor) to the gradients of a module with parameters v."""
    centre = {
        name: value[-1].to(resolve_device(device)) for name, value in anchor.parameters.items()
    }

    def add_gradient(module: nn.Module) -> None:
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if parameter.grad is not None:
                    parameter.grad.add_(parameter - centre[name], alpha=strength)

    return add_gradient
