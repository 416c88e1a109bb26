"""Normalisation layers: no prior on scales, and statistics of the weights that are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from predbayes.errors import TrainingError
from predbayes.learning.distill import distill
from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import Network, OptimizerSettings, SGDLearner, SGHMCLearner
from predbayes.learning.nets import mlp
from predbayes.learning.norms import norm_parameters, without_prior
from predbayes.posterior.cyclical import SamplerSettings
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Categorical
from predbayes.seeding import generator

SETTINGS = SamplerSettings(
    num_epochs=12, batch_size=16, num_cycles=2, samples_per_cycle=2, friction=0.1
)
NORMS = {
    "batch": lambda: nn.BatchNorm1d(8),
    "layer": lambda: nn.LayerNorm(8),
    "group": lambda: nn.GroupNorm(2, 8),
    "rms": lambda: nn.RMSNorm(8),
}


def normalised(norm=NORMS["batch"]):
    return Network(
        lambda: nn.Sequential(nn.Linear(3, 8), norm(), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)),
        Softmax(2),
    )


@pytest.fixture
def rows(rng):
    inputs = 3 + 2 * torch.randn(64, 3, generator=rng)
    return inputs, (inputs[:, 0] > 3).long()


@pytest.mark.parametrize("norm", NORMS)
class TestPrior:
    def test_scales_are_not_pulled_to_zero(self, norm, rows):
        """Under a prior that holds every weight at 0, scales stay near the 1 that they start at."""
        tight = replace(SETTINGS, prior_std=1e-2, step_size=1e-3, num_epochs=60)
        samples = SGHMCLearner(normalised(NORMS[norm]), tight).fit(rows, rng=generator(0)).samples
        assert float(samples.parameters["0.weight"].abs().mean()) < 0.05
        assert float(samples.parameters["1.weight"].min()) > 0.8


def test_names_of_what_has_no_prior():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.GroupNorm(2, 4)))
    assert norm_parameters(net) == {"1.weight", "1.bias", "2.0.weight", "2.0.bias"}
    assert norm_parameters(nn.LayerNorm(3)) == {"weight", "bias"}
    with_noise = LearnedNoise().attach(mlp(2, 1))
    assert without_prior(with_noise) & dict(with_noise.named_parameters()).keys() == {"raw_noise"}


def statistics_under(samples, index, rows):
    """Mean and variance of what goes into the batch normalisation, over all rows at once."""
    weight = samples.parameters["0.weight"][index]
    given = rows[0] @ weight.T + samples.parameters["0.bias"][index]
    return given.mean(0), given.var(0)


class TestStatistics:
    def test_every_sample_has_those_of_its_own_weights(self, rows):
        """One batch that holds all rows: to the last digits."""
        whole = replace(SETTINGS, batch_size=64, num_epochs=40)
        samples = SGHMCLearner(normalised(), whole).fit(rows, rng=generator(0)).samples
        assert len(samples) == 4
        for index in range(4):
            mean, var = statistics_under(samples, index, rows)
            torch.testing.assert_close(samples.buffers["1.running_mean"][index], mean)
            torch.testing.assert_close(samples.buffers["1.running_var"][index], var)

    def test_a_plain_fit_and_a_student_have_them_too(self, rows):
        """Twenty steps leave a tenth of the values that a layer starts with."""
        settings = OptimizerSettings(batch_size=64, num_epochs=20)
        fitted = SGDLearner(normalised(), settings).fit(rows, rng=generator(0))
        teacher = Categorical.from_natural(torch.zeros(64, 2))
        student = distill(normalised(), teacher, rows[0], settings=settings, rng=generator(0))
        for samples in (fitted.samples, student.samples):
            mean, _ = statistics_under(samples, 0, rows)
            torch.testing.assert_close(samples.buffers["1.running_mean"][0], mean)


def frozen_backbone():
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        net[1].running_mean.fill_(0.5)
    for parameter in net[:3].parameters():
        parameter.requires_grad = False
    return net


@pytest.mark.parametrize("kind", ["sghmc", "sgd"])
def test_a_frozen_backbone_is_one_fixed_function(kind, rows):
    network = Network(frozen_backbone, Softmax(2))
    learner = SGHMCLearner(network, SETTINGS) if kind == "sghmc" else SGDLearner(network)
    start = network.create(generator(5))
    samples = learner.fit(rows, rng=generator(0), start=WeightSamples.of(start)).samples
    for name, value in {
        **dict(start[:3].named_parameters()),
        **dict(start.named_buffers()),
    }.items():
        for one in {**samples.parameters, **samples.buffers}[name]:
            assert torch.equal(one, value)
    assert not torch.equal(samples.parameters["3.weight"][-1], start[3].weight)


def test_a_network_that_is_frozen_whole_is_refused_in_one_line(rows):
    network = Network(lambda: mlp(3, 2).requires_grad_(False), Softmax(2))
    for learner in (SGHMCLearner(network, SETTINGS), SGDLearner(network)):
        with pytest.raises(TrainingError, match=r"^the network has nothing to learn: [^\n]*$"):
            learner.fit(rows, rng=generator(0))
