from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from predbayes.errors import TrainingError
from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import (
    DeepEnsemble,
    Network,
    OptimizerSettings,
    SGDLearner,
    SGHMCLearner,
)
from predbayes.learning.nets import mlp
from predbayes.posterior.cyclical import PRESETS, CyclicalSchedule, SamplerSettings
from predbayes.posterior.samples import WeightSamples
from predbayes.posterior.sghmc import SGHMC
from predbayes.predictive.metrics import accuracy, nll
from predbayes.seeding import generator

CLASSES = Network(lambda: mlp(2, 2, hidden=(16,)), Softmax(2))
NUMBERS = Network(lambda: mlp(2, 1, hidden=(16,)), LearnedNoise())
SAMPLER = SamplerSettings(num_epochs=20, batch_size=50, num_cycles=2, max_samples=3, friction=0.1)


@pytest.fixture
def blobs(rng):
    y = torch.randint(2, (400,), generator=rng)
    x = torch.randn(400, 2, generator=rng) + 2.0 * (2 * y[:, None] - 1)
    return x, y


@pytest.fixture
def line(rng):
    x = torch.randn(400, 2, generator=rng)
    return x, x[:, 0] - 0.5 * x[:, 1] + 0.3 * torch.randn(400, generator=rng)


LEARNERS = {
    "sghmc": lambda network: SGHMCLearner(network, SAMPLER),
    "sgd": lambda network: SGDLearner(network, OptimizerSettings(lr=0.05, num_epochs=20)),
    "adam": lambda network: SGDLearner(network, OptimizerSettings("adam", lr=0.02, num_epochs=20)),
    "ensemble": lambda network: DeepEnsemble(
        SGDLearner(network, OptimizerSettings(lr=0.05, num_epochs=10)), size=3
    ),
}


@pytest.mark.parametrize("name", LEARNERS)
class TestEveryLearner:
    def test_learns_to_classify(self, name, blobs, rng):
        predictor = LEARNERS[name](CLASSES).fit(blobs, rng=rng)
        assert accuracy(predictor.predict(blobs[0]), blobs[1]) > 0.97

    def test_learns_a_function_and_its_noise(self, name, line, rng):
        x, y = line
        predictive = LEARNERS[name](NUMBERS).fit(line, rng=rng).predict(x)
        best = 0.5 * math.log(2 * math.pi * math.e * 0.09)  # NLL of the true law
        assert nll(predictive, y) == pytest.approx(best, abs=0.15)
        assert bool((predictive.epistemic_var <= predictive.var).all())

    def test_same_seed_same_weights(self, name, blobs):
        first, second, third = (
            LEARNERS[name](CLASSES).fit(blobs, rng=generator(seed)).samples for seed in (1, 1, 2)
        )
        weights = [s.parameters["1.weight"] for s in (first, second, third)]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])


def test_batched_prediction_is_the_average_of_the_networks_one_by_one(rng):
    """torch.func against a plain loop, with batch norm whose buffers differ between samples."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))

    network = Network(build, Softmax(4))
    modules = [network.create(rng) for _ in range(3)]
    x = torch.randn(4500, 3, generator=rng)
    for module in modules:
        module(torch.randn(100, 3, generator=rng))  # moves the running statistics
    samples = WeightSamples.concat([WeightSamples.of(m) for m in modules])
    expected = torch.stack([m.eval()(x).softmax(-1) for m in modules]).mean(0)
    torch.testing.assert_close(network.predict(samples, x).moments(), expected.detach())


def test_a_build_that_returns_one_module_is_refused(rng):
    """Every fit would go on from the weights of the one before."""
    net = mlp(2, 2)
    with pytest.raises(TrainingError, match="make a new one each time"):
        Network(lambda: net, Softmax(2)).create(rng)


def test_few_rows_are_sampled_from_with_as_many_steps_as_it_takes(blobs, rng):
    """The paper's 25 epochs over one batch have no room for five cycles; a thousand steps have."""
    few = (blobs[0][:20], blobs[1][:20])
    paper = PRESETS["paper"]
    with pytest.raises(TrainingError, match="25 steps are too few for 5 cycles") as error:
        SGHMCLearner(CLASSES, paper).fit(few, rng=rng)
    assert "\n" not in str(error.value)
    predictor = SGHMCLearner(CLASSES, replace(paper, min_steps=1000)).fit(few, rng=rng)
    assert len(predictor.samples) == 6
    assert accuracy(predictor.predict(few[0]), few[1]) > 0.9


def test_a_set_that_has_enough_steps_is_fitted_as_ever(blobs):
    """Twenty epochs of eight batches are 160 steps."""
    vectors = []
    for min_steps in (0, 160, 161):
        learner = SGHMCLearner(CLASSES, replace(SAMPLER, min_steps=min_steps))
        vectors.append(learner.fit(blobs, rng=generator(1)).samples.vectors()[0])
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


@pytest.mark.parametrize("bad", [{"optimizer": "adm"}, {"batch_size": 0}, {"num_epochs": 0}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(TrainingError):
        OptimizerSettings(**bad)


def test_the_sampler_runs_by_its_settings(blobs, monkeypatch):
    """Every setting at every step, and which weights are kept, seen from inside the optimiser."""
    settings = SamplerSettings(
        num_epochs=10,
        batch_size=50,
        step_size=0.03,
        friction=0.2,
        temperature=0.5,
        prior_std=0.7,
        num_cycles=2,
        samples_per_cycle=3,
        max_samples=4,
        exploration=0.6,
    )
    schedule = CyclicalSchedule(80, 2, 0.03, 3, exploration=0.6)
    seen, weights = [], []
    step = SGHMC.step

    def spy(self, closure=None):
        (group,) = self.param_groups
        step(self, closure)
        seen.append(
            {k: group[k] for k in ("step_size", "temperature", "friction", "prior_std", "num_rows")}
        )
        weights.append(group["params"][0].detach().clone())

    monkeypatch.setattr(SGHMC, "step", spy)
    samples = SGHMCLearner(CLASSES, settings).fit(blobs, rng=generator(0)).samples
    assert seen == [
        {
            "step_size": schedule.step_size_at(i),
            "temperature": 0.5 if schedule.is_sampling(i) else 0.0,
            "friction": 0.2,
            "prior_std": 0.7,
            "num_rows": 400,
        }
        for i in range(80)
    ]
    kept = torch.stack([weights[i] for i in schedule.snapshot_steps()[-4:]])
    assert torch.equal(samples.parameters["1.weight"], kept)
