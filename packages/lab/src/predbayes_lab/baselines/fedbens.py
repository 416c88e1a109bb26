"""FedBEns (Talpini, Savi and Neglia, 2025): an ensemble of modes of the product of posteriors.

Every site trains M networks, from M starts that all sites share, and sends of each the mode w_km it
came to and the diagonal F_km of its Fisher information: a mixture of M Laplace approximations. The
coordinator looks for modes of the product over sites, from each start. Modes of different starts
lie so far apart in the space of weights that near start m only the sites' m-th components count;
their product is a Gaussian, and its mode is known in closed form, coordinate by coordinate:

    w_m = (sum_k F_km w_km + a mean_k w_km) / (sum_k F_km + a)

The ensemble averages the predictives of w_1..w_M. Where the rows of no site tell anything (F = 0)
it is the mean that counts, which the authors have from starting there and stopping early. The
damping a is a multiple of the mean of sum_k F_km; the labelled reference rows choose it by NLL.

F is estimated without bias from gradients of whole batches with targets drawn from the network's
own predictive: scores are then independent with mean zero, and the square of their sum has the
mean of the sum of their squares. With M = 1 it is FedFisher (Jhunjhunwala et al., 2024) but for
its optimiser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from predbayes.errors import TrainingError, UploadError
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.likelihood import FixedNoise, LearnedNoise, Softmax
from predbayes.learning.local import Network, NetworkPredictor
from predbayes.learning.training import Rows, count_rows, resolve_device
from predbayes.methods.method import ModelState
from predbayes.posterior.samples import WeightSamples
from predbayes.seeding import split
from predbayes.summand import TensorSum
from predbayes_lab.baselines.global_model import (
    FromGlobalModel,
    network_of,
    predict_with,
    weights_of,
)

DAMPING = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
"""Multiples of the mean information, among which the labelled rows choose."""

_WITHOUT_LABELS = 0.1
_BATCH_SIZE, _DRAWS = 50, 100  # of the estimate of the information: its error is some 14 %


@dataclass(frozen=True, slots=True)
class FedBEns(FromGlobalModel):
    """Multiply the sites' diagonal Laplace approximations start by start; average the modes.

    Args:
        learner: What each site fits, once from every start.
        num_starts: M.
    """

    num_starts: int = 5

    def __post_init__(self) -> None:
        if self.num_starts < 1:
            raise TrainingError(f"num_starts must be at least 1, not {self.num_starts}")

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> ModelState:
        """The weights that every site starts from, M of them."""
        starts = split(rng, self.num_starts)
        states = [FromGlobalModel.init(self, reference, rng=own) for own in starts]
        return ModelState(WeightSamples.concat([state.weights for state in states]))

    def learn(
        self, state: ModelState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Train from each start; send the modes, and after them what is known of each weight."""
        modes, known = [], []
        for index, own in enumerate(split(rng, len(state.weights))):
            start = state.weights[index : index + 1]
            mode = self.learner.fit(rows, rng=own, start=start).samples[-1:]
            modes.append(mode)
            known.append(_information(network_of(self.learner, mode), rows, own))
        samples = WeightSamples.concat([*modes, *known])
        return Upload.of_weights(samples, num_rows=count_rows(rows))

    def lift(self, state: ModelState, upload: Upload, inputs: Tensor) -> TensorSum:
        """Information, modes, and modes times information."""
        num = len(state.weights)
        parameters, buffers = weights_of(upload, state).vectors()
        if len(parameters) != 2 * num:
            raise UploadError(
                f"site {upload.info.site!r} sent {len(parameters)} sets of weights; FedBEns needs "
                f"{2 * num}: {num} modes, and the information of each"
            )
        modes, known = parameters[:num], parameters[num:]
        if (known < 0).any():
            raise UploadError(f"site {upload.info.site!r} sent negative information")
        return TensorSum(
            {
                "sites": torch.tensor(1.0),
                "information": known,
                "weighted": known * modes,
                "modes": modes,
                "buffers": buffers[:num],
            }
        )

    def finish(
        self, state: ModelState, total: TensorSum, reference: ReferenceRows, *, rng: torch.Generator
    ) -> ModelState:
        """Choose the damping on the labelled rows; average the modes' predictives."""
        weights = min(
            (self._ensemble(state, total, damping) for damping in self._dampings(reference)),
            key=lambda found: self._loss(found, reference),
        )
        return replace(
            state, weights=weights, pooled=predict_with(self.learner, weights, reference)
        )

    def model(self, state: ModelState) -> NetworkPredictor:
        """The ensemble."""
        return network_of(self.learner, state.weights)

    def _dampings(self, reference: ReferenceRows) -> tuple[float, ...]:
        return DAMPING if len(reference.targets) else (_WITHOUT_LABELS,)

    def _ensemble(self, state: ModelState, total: TensorSum, damping: float) -> WeightSamples:
        """The modes w_m of the module's docstring."""
        known, sites = total["information"], total["sites"]
        pull = (damping * known.mean(1, keepdim=True)).clamp_min(torch.finfo(known.dtype).tiny)
        vectors = (total["weighted"] + pull * total["modes"] / sites) / (known + pull)
        buffers = total["buffers"] / sites
        return WeightSamples.concat(
            [
                state.weights.from_vectors(vector.unsqueeze(0), own)
                for vector, own in zip(vectors, buffers, strict=True)
            ]
        )

    def _loss(self, weights: WeightSamples, reference: ReferenceRows) -> float:
        if not len(reference.targets):
            return 0.0
        inputs = reference.inputs[reference.labelled]
        predictive = self.learner.network.predict(weights, inputs, self.learner.device)
        loss = float(-predictive.log_prob(reference.targets).mean())
        return loss if math.isfinite(loss) else math.inf  # of weights too large to predict with


def _information(fitted: NetworkPredictor, rows: Rows, rng: torch.Generator) -> WeightSamples:
    """The diagonal of the Fisher information of all rows, in the places of the weights."""
    network, device = fitted.network, resolve_device(fitted.device)
    module = network.create(torch.Generator(), fitted.samples).to(device).eval()
    total = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    batches = network.batches(rows, _BATCH_SIZE, fitted.device)
    num_passes = math.ceil(_DRAWS / len(batches))
    for _ in range(num_passes):
        for inputs, _ in batches.epoch(rng):
            module.zero_grad()
            outputs = module(inputs)
            drawn = _drawn(network, outputs.detach(), rng)
            (len(drawn) * network.likelihood.loss(outputs, drawn)).backward()  # type: ignore[no-untyped-call]
            for name, value in module.named_parameters():
                if value.grad is not None:
                    total[name] += value.grad.square()
    scaled = {name: (value / num_passes).unsqueeze(0).cpu() for name, value in total.items()}
    return replace(fitted.samples, parameters=scaled)


def _drawn(network: Network, outputs: Tensor, rng: torch.Generator) -> Tensor:
    """Targets from the law that the loss is of."""
    likelihood = network.likelihood
    if isinstance(likelihood, Softmax):
        drawn = torch.multinomial(outputs.cpu().softmax(-1), 1, generator=rng)[:, 0]
    elif isinstance(likelihood, FixedNoise | LearnedNoise):
        mean, var = (m.cpu() for m in likelihood.moments(outputs, training=True))
        drawn = mean + var.sqrt() * torch.randn(mean.shape, generator=rng)
    else:
        raise TrainingError(f"FedBEns cannot draw targets of {type(likelihood).__name__}")
    return drawn.to(outputs.device)
