"""Last-layer Laplace: exact where it must be, and against derivatives where it is not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import predbayes as pb
from predbayes.errors import TrainingError
from predbayes.learning.laplace import LastLayer, LastLayerLaplace
from predbayes.learning.likelihood import FixedNoise, LearnedNoise, Softmax
from predbayes.learning.local import Network, NetworkPredictor, OptimizerSettings, SGDLearner
from predbayes.posterior.samples import WeightSamples

SETTINGS = OptimizerSettings(optimizer="adam", lr=0.02, num_epochs=30, batch_size=50)


def numbers(rng, num_rows=80):
    inputs = torch.randn(num_rows, 3, generator=rng)
    noise = 0.5 * torch.randn(num_rows, generator=rng)
    return inputs, inputs @ torch.tensor([1.0, -0.5, 0.0]) + 0.3 + noise


def classes(rng, num_rows=90):
    inputs = torch.randn(num_rows, 3, generator=rng)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.5).long()


def posterior_of(network, rows, rng, **settings):
    fitted = SGDLearner(network, OptimizerSettings(**settings)).fit(rows, rng=rng)
    return fitted, LastLayer.of(fitted, rows, 32, rng=rng)


def covariance(posterior):
    scaled = posterior.eigenvectors / (posterior.eigenvalues + posterior.precision)
    return scaled @ posterior.eigenvectors.T


@pytest.mark.parametrize("likelihood", [Softmax(3), LearnedNoise(), FixedNoise(0.3, 0.3)])
def test_information_is_the_hessian_of_the_loss(likelihood, rng):
    """Of these likelihoods the Fisher information in the last layer is the Hessian."""
    rows = classes(rng) if isinstance(likelihood, Softmax) else numbers(rng)
    network = Network.mlp(3, likelihood, hidden=(4,))
    fitted, posterior = posterior_of(network, rows, rng, num_epochs=3)
    module = network.create(torch.Generator(), fitted.samples).double()
    layer = dict(module.named_modules())[posterior.name]
    shape = layer.weight.shape

    def loss(theta):
        theta = theta.view(shape[0], shape[1] + 1)
        own = {f"{posterior.name}.weight": theta[:, :-1], f"{posterior.name}.bias": theta[:, -1]}
        outputs = torch.func.functional_call(module, own, rows[0].double())
        targets = rows[1] if isinstance(likelihood, Softmax) else rows[1].double()
        return len(targets) * likelihood.loss(outputs, targets)

    hessian = torch.autograd.functional.hessian(loss, posterior.mean.flatten())
    found = posterior.eigenvectors * posterior.eigenvalues @ posterior.eigenvectors.T
    torch.testing.assert_close(found, hessian, rtol=1e-4, atol=1e-4)


def sines(num_outputs):
    """A network whose weights anybody can write down."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, num_outputs))
    with torch.no_grad():
        for weights in net.parameters():
            numbers = torch.arange(1.0, weights.numel() + 1)
            weights.copy_(numbers.sin().view_as(weights))
    return net


# Of laplace-torch 0.3: last layer, full matrix, prior precision 0.5; variances of the weights and
# then the biases, and the log marginal likelihood.
ORACLES = [
    (
        Softmax(3),
        [
            *(0.984657, 1.054542, 0.885556, 1.097013, 1.237410, 1.027481, 1.004589, 1.086044),
            *(0.916892, 1.043607, 1.124872, 1.065554),
        ],
        -93.301964,
    ),
    (FixedNoise(0.25, 0.25), [0.100088, 0.114222, 0.053250, 0.137446], -524.871033),
]


@pytest.mark.parametrize(("likelihood", "variances", "evidence"), ORACLES)
def test_it_is_what_laplace_torch_says(likelihood, variances, evidence, rng):
    steps = torch.arange(60.0)
    inputs = torch.stack([(0.7 * steps).sin(), (1.3 * steps).cos()], 1)
    targets = torch.arange(60) % 3
    if isinstance(likelihood, FixedNoise):
        targets = inputs[:, 0] - inputs[:, 1]
    network = Network(lambda: sines(likelihood.num_outputs), likelihood)
    fitted = NetworkPredictor(network, WeightSamples.of(sines(likelihood.num_outputs)))
    posterior = LastLayer.of(fitted, (inputs, targets), 20, rng=rng)
    vectors, values = posterior.eigenvectors, posterior.eigenvalues + 0.5
    found = (vectors / values @ vectors.T).diag().view(likelihood.num_outputs, 4)
    ordered = [*found[:, :3].flatten().tolist(), *found[:, 3].tolist()]
    assert ordered == pytest.approx(variances, abs=5e-6)
    assert posterior.evidence(0.5) == pytest.approx(evidence, abs=1e-4)


def test_draws_have_the_posteriors_moments_and_all_else_is_as_fitted(rng):
    rows, network = classes(rng), Network.mlp(3, Softmax(3), hidden=(2,))
    fitted, posterior = posterior_of(network, rows, rng, num_epochs=3)
    drawn = posterior.draw(fitted.samples, 20_000, rng)
    last = [f"{posterior.name}.{part}" for part in ("weight", "bias")]
    for name, value in drawn.parameters.items():
        if name not in last:
            assert torch.equal(value, fitted.samples.parameters[name].expand_as(value))
    weight, bias = (drawn.parameters[name].double() for name in last)
    theta = torch.cat([weight, bias[..., None]], -1).flatten(1)
    exact = covariance(posterior)
    std = exact.diag().sqrt()
    assert float(((theta.mean(0) - posterior.mean.flatten()) / std).abs().max()) < 5 / math.sqrt(
        20_000
    )
    correlations = exact / std / std[:, None]
    found = theta.T.cov() / std / std[:, None]
    assert float((found - correlations).abs().max()) < 0.06


def test_the_same_seed_gives_the_same_samples_and_they_are_a_learners(rng):
    rows, network = classes(rng), Network.mlp(3, Softmax(3), hidden=(4,))
    learner = LastLayerLaplace(SGDLearner(network, SETTINGS), num_samples=5)
    one, two = (learner.fit(rows, rng=torch.Generator().manual_seed(3)) for _ in range(2))
    assert len(one.samples) == 5
    for name, value in one.samples.arrays().items():
        assert torch.equal(value, two.samples.arrays()[name])
    method = pb.Pooled(learner, pb.pools.beta(), send="weights")
    reference = pb.ReferenceRows.of((rows[0][:30], rows[1][:30]))
    result = pb.run(method, {"A": rows, "B": rows}, reference)
    assert result.predictive.moments().shape == (30, 3)


class Added(nn.Module):
    """Ends with something else than its last linear layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs):
        return self.layer(inputs) + 1


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Network(Added, Softmax(3)), "its outputs are not those of its last one"),
        (Network(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU()), Softmax(3)), "ends with nn"),
        (Network.mlp(3, Softmax(3), hidden=(4000,)), "12,003 weights"),
    ],
)
def test_networks_that_it_cannot_read_are_refused_in_one_line(network, message, rng):
    learner = LastLayerLaplace(SGDLearner(network, OptimizerSettings(num_epochs=1)))
    samples = WeightSamples.of(network.create(rng))
    with pytest.raises(TrainingError, match=message) as refused:
        LastLayer.of(NetworkPredictor(network, samples), classes(rng), 32, rng=rng)
    assert "\n" not in str(refused.value)
    assert learner.num_samples == 10


@pytest.mark.parametrize("likelihood", [Softmax(3, balanced=True), LearnedNoise(per_input=True)])
def test_likelihoods_that_it_does_not_know_are_refused(likelihood):
    with pytest.raises(TrainingError, match="last-layer Laplace is for"):
        LastLayerLaplace(SGDLearner(Network.mlp(3, likelihood)))
