"""A head from moments as a network, so that it is kept, given out and run like any other.

Its features stand in buffers and what was learnt in parameters. All are in float64, and the
network predicts what `MomentsHead` does, rounded to float32 as outputs of networks are. Nothing of
it is trained.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from predbayes.learning.likelihood import LearnedNoise, Likelihood, Softmax
from predbayes.learning.local import Network, NetworkPredictor
from predbayes.learning.moments import (
    MomentsHead,
    RandomFeatures,
    class_log_probs,
    grid_features,
    inputs_on_grid,
    linear_outputs,
)
from predbayes.posterior.samples import WeightSamples

_LIKELIHOOD = LearnedNoise(per_input=True)


class HeadModule(nn.Module):
    """Outputs of a head: log p of classes, or a mean and the raw noise of its variance."""

    frequencies: Tensor  # (D, J)
    phases: Tensor  # (J,)
    sizes: Tensor  # (width,) by which features are multiplied

    def __init__(self, num_inputs: int, num_features: int, num_classes: int | None) -> None:
        super().__init__()
        width, outputs = 1 + num_inputs + num_features, num_classes or 1
        self.num_classes = num_classes
        for name, shape in {
            "frequencies": (num_inputs, num_features),
            "phases": (num_features,),
            "sizes": (width,),
        }.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.centre = _parameter(outputs)
        self.weights = _parameter(width, outputs)
        self.spread = _parameter(width, width)
        self.noise_var = _parameter()
        self.precision = _parameter(outputs, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs as the likelihood of `head_network` reads them, in float32."""
        phi = grid_features(inputs_on_grid(inputs), self.frequencies, self.phases) * self.sizes
        outputs, ratios = linear_outputs(phi, self.centre, self.weights, self.spread)
        if self.num_classes is not None:
            return class_log_probs(outputs, ratios, self.centre, self.precision).float()
        var = (self.noise_var * (1 + ratios) - _LIKELIHOOD.least_var).clamp_min(1e-12)
        # The likelihood takes its softplus: large variances are nearly their own.
        raw = torch.where(var > 30, var, var.clamp_max(30).expm1().log())
        return torch.stack([outputs[:, 0], raw], 1).float()

    @torch.no_grad()
    def take(self, head: MomentsHead) -> None:
        """Become a head of these sizes."""
        frequencies, phases = head.features.waves(head.scale)
        self.frequencies.copy_(frequencies)
        self.phases.copy_(phases)
        self.sizes.copy_(head.features.weights)
        self.centre.copy_(head.centre)
        self.weights.copy_(head.weights)
        self.spread.copy_(head.spread)
        self.noise_var.fill_(head.noise_var)
        if head.precision is not None:
            self.precision.copy_(head.precision)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=torch.float64), requires_grad=False)


def head_network(features: RandomFeatures, num_classes: int | None) -> Network:
    """Return the network of heads with such features."""
    likelihood: Likelihood = _LIKELIHOOD if num_classes is None else Softmax(num_classes)
    build = partial(HeadModule, features.num_inputs, features.num_features, num_classes)
    return Network(build, likelihood)


def as_predictor(head: MomentsHead) -> NetworkPredictor:
    """Return a head as the one sample of its network."""
    num_classes = None if head.precision is None else len(head.centre)
    network = head_network(head.features, num_classes)
    module = network.build()
    assert isinstance(module, HeadModule)
    module.take(head)
    return NetworkPredictor(network, WeightSamples.of(module))
