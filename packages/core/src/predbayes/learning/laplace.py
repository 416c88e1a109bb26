r"""Last-layer Laplace: one plain fit, and a posterior of its last layer in closed form.

    theta   the P weights and biases of the last linear layer; m are the fitted ones
    G       sum_n J_n^T L_n J_n, what the rows say of theta
    J_n     d outputs / d theta = [phi_n, 1] (x) I, with phi_n what goes into the layer
    L_n     Fisher information of the outputs: diag(p) - p p^T of classes, 1 / v of a mean

    theta | rows  ~  N(m, (G + a I)^-1)

All other layers are as fitted. The prior precision a is that of the greatest evidence,

    log p(rows | m) - a |m|^2 / 2 + P log(a) / 2 - log det(G + a I) / 2

over a grid of decades and their thirds; one decomposition of G serves them all. M draws of theta
are M weight samples, so that the predictor is sent, pooled and distilled like any other. It costs
a pass over the rows and P^3 once, where sampling costs many fits: for a frozen or large backbone.

With one noise variance and a linear network it is Bayesian linear regression, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from predbayes.errors import TrainingError
from predbayes.learning.likelihood import FixedNoise, LearnedNoise, Softmax
from predbayes.learning.local import GateLearner, Learner, Network, NetworkPredictor, SGDLearner
from predbayes.learning.training import Batches, Rows, resolve_device
from predbayes.posterior.samples import WeightSamples
from predbayes.seeding import split

MAX_WEIGHTS = 8_000
"""Of the layer: their matrix is half a gigabyte."""

PRECISIONS = tuple(10 ** (power / 3) for power in range(-12, 19))
"""Among which the evidence chooses."""


@dataclass(frozen=True, slots=True)
class LastLayerLaplace(Learner):
    """A plain fit, with draws from the Laplace posterior of its last layer.

    Examples:
        >>> network = Network.mlp(2, Softmax(3), hidden=(8,))
        >>> learner = LastLayerLaplace(SGDLearner(network), num_samples=20)
    """

    member: SGDLearner
    num_samples: int = 10

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise TrainingError(f"num_samples must be at least 1, not {self.num_samples}")
        likelihood = self.network.likelihood
        plain = isinstance(likelihood, Softmax) and not likelihood.balanced
        one_noise = isinstance(likelihood, LearnedNoise) and not likelihood.per_input
        if not (plain or one_noise or isinstance(likelihood, FixedNoise)):
            raise TrainingError(
                "last-layer Laplace is for pb.Softmax without balanced=True, FixedNoise and "
                "pb.LearnedNoise without per_input=True; take DeepEnsemble for others"
            )

    @property
    def network(self) -> Network:
        """The member's network."""
        return self.member.network

    @property
    def device(self) -> str:
        """The member's device."""
        return self.member.device

    def fit(
        self, rows: Rows, *, rng: torch.Generator, start: WeightSamples | None = None
    ) -> NetworkPredictor:
        """Fit the member, then draw its last layer."""
        to_fit, to_pass, to_draw = split(rng, 3)
        fitted = self.member.fit(rows, rng=to_fit, start=start)
        posterior = LastLayer.of(fitted, rows, self.member.settings.batch_size, rng=to_pass)
        return replace(fitted, samples=posterior.draw(fitted.samples, self.num_samples, to_draw))

    def gate_learner(self) -> GateLearner:
        """Return the learner of a gate: the member's."""
        return self.member.gate_learner()


@dataclass(frozen=True, slots=True)
class LastLayer:
    """The posterior of a last layer: a normal distribution about the fitted weights."""

    name: str  # of the layer in its module
    mean: Tensor  # (O, D), or (O, D + 1) with biases
    eigenvalues: Tensor  # (P,) of G
    eigenvectors: Tensor  # (P, P), in columns
    log_likelihood: float  # of the rows, at the mean

    @classmethod
    def of(
        cls, fitted: NetworkPredictor, rows: Rows, batch_size: int, *, rng: torch.Generator
    ) -> LastLayer:
        """Learn what the rows say of the last layer of a fitted network."""
        network, device = fitted.network, resolve_device(fitted.device)
        module = network.create(torch.Generator(), fitted.samples).to(device).eval()
        layers = [(n, m) for n, m in module.named_modules() if isinstance(m, nn.Linear)]
        if not layers or layers[-1][1].out_features != network.likelihood.num_outputs:
            raise TrainingError("last-layer Laplace needs a network that ends with nn.Linear")
        name, layer = layers[-1]
        if (num_weights := _weights(layer).numel()) > MAX_WEIGHTS:
            raise TrainingError(
                f"the last layer has {num_weights:,} weights, and last-layer Laplace takes "
                f"{MAX_WEIGHTS:,} at most; take DeepEnsemble, or a narrower layer before the last"
            )
        batches = network.batches(rows, batch_size, fitted.device)
        information, log_likelihood = _pass_over(network, module, layer, batches, rng)
        values, vectors = torch.linalg.eigh(information)
        return cls(name, _weights(layer), values.clamp_min(0), vectors, log_likelihood)

    def evidence(self, precision: float) -> float:
        """Return the log evidence of a prior precision, but for a constant."""
        num_weights = len(self.eigenvalues)
        log_det = float((self.eigenvalues + precision).log().sum())
        penalty = precision * float(self.mean.square().sum())
        return self.log_likelihood + 0.5 * (num_weights * math.log(precision) - log_det - penalty)

    @property
    def precision(self) -> float:
        """The prior precision of the greatest evidence."""
        return max(PRECISIONS, key=self.evidence)

    def draw(self, fitted: WeightSamples, num_samples: int, rng: torch.Generator) -> WeightSamples:
        """Return samples that are as fitted but for the last layer."""
        noise = torch.randn(num_samples, len(self.eigenvalues), generator=rng, dtype=torch.float64)
        scaled = noise / (self.eigenvalues + self.precision).sqrt()
        drawn = self.mean + (scaled @ self.eigenvectors.T).view(num_samples, *self.mean.shape)
        parameters = {n: v.expand(num_samples, *v.shape[1:]) for n, v in fitted.parameters.items()}
        buffers = {n: v.expand(num_samples, *v.shape[1:]) for n, v in fitted.buffers.items()}
        weight, bias = (f"{self.name}.{part}".lstrip(".") for part in ("weight", "bias"))
        kind = parameters[weight].dtype
        parameters[weight] = drawn[..., : parameters[weight].shape[2]].to(kind)
        if bias in parameters:
            parameters[bias] = drawn[..., -1].to(kind)
        return WeightSamples(parameters, buffers)


def _weights(layer: nn.Linear) -> Tensor:
    """Weights with biases in the last column, (O, D + 1)."""
    parts = [layer.weight] if layer.bias is None else [layer.weight, layer.bias[:, None]]
    return torch.cat(parts, 1).detach().cpu().double()


def _pass_over(
    network: Network, module: nn.Module, layer: nn.Linear, batches: Batches, rng: torch.Generator
) -> tuple[Tensor, float]:
    """G, and the log-likelihood of the rows."""
    seen: list[tuple[Tensor, Tensor]] = []
    hook = layer.register_forward_hook(lambda _, given, out: seen.append((given[0], out)))
    total = torch.zeros(_weights(layer).numel(), _weights(layer).numel(), dtype=torch.float64)
    log_likelihood = 0.0
    try:
        with torch.no_grad():
            for inputs, targets in batches.epoch(rng):
                seen.clear()
                outputs = module(inputs)
                if len(seen) != 1 or not torch.equal(
                    seen[0][1], outputs[..., : seen[0][1].shape[-1]]
                ):
                    raise TrainingError(
                        "last-layer Laplace needs a network that ends with nn.Linear; its outputs "
                        "are not those of its last one"
                    )
                features, made = seen[0]
                log_likelihood -= len(targets) * float(network.likelihood.loss(outputs, targets))
                total += _information(features, _fisher(network, outputs, made), layer)
    finally:
        hook.remove()
    return total, log_likelihood


def _fisher(network: Network, outputs: Tensor, made: Tensor) -> Tensor:
    """L_n of each row, (B, O, O)."""
    likelihood = network.likelihood
    if isinstance(likelihood, Softmax):
        probs = made.cpu().double().softmax(-1)
        return probs.diag_embed() - probs[:, :, None] * probs[:, None, :]
    assert isinstance(likelihood, FixedNoise | LearnedNoise)
    var = likelihood.moments(outputs, training=True)[1].cpu().double()
    return var.reciprocal()[:, None, None]


def _information(features: Tensor, fisher: Tensor, layer: nn.Linear) -> Tensor:
    """sum_n J_n^T L_n J_n, with theta by output and then by feature."""
    phi = features.cpu().double()  # not every device has doubles
    if layer.bias is not None:
        phi = nn.functional.pad(phi, (0, 1), value=1.0)
    num_outputs, width = fisher.shape[1], phi.shape[1]
    blocks = torch.empty(num_outputs, width, num_outputs, width, dtype=torch.float64)
    for one in range(num_outputs):
        for two in range(one + 1):
            block = phi.T @ (fisher[:, one, two, None] * phi)
            blocks[one, :, two] = blocks[two, :, one] = block  # a symmetric block
    return blocks.reshape(num_outputs * width, num_outputs * width)
