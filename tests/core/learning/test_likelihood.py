from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from predbayes.errors import PredbayesError, TrainingError
from predbayes.learning.likelihood import (
    MIN_NOISE_VAR,
    FixedNoise,
    Hazards,
    LearnedNoise,
    LogOdds,
    Softmax,
)
from predbayes.predictive.families import Categorical, Gaussian
from tests.core.oracles import RANDOM

REGRESSION = [LearnedNoise(), LearnedNoise(per_input=True), FixedNoise(0.3, 0.3)]


def outputs_of(likelihood, rng, num_samples=1, num_rows=6):
    """Outputs as an attached network would give them."""
    net = nn.Linear(4, likelihood.num_outputs)
    inputs = torch.randn(num_rows, 4, generator=rng)
    samples = [
        likelihood.attach(nn.Linear(4, likelihood.num_outputs))(inputs) for _ in range(num_samples)
    ]
    assert likelihood.attach(net)(inputs).shape == samples[0].shape
    return torch.stack(samples).detach()


def entropy_of(predictive):
    if isinstance(predictive, Categorical):
        return predictive.entropy()
    return 0.5 * (2 * math.pi * math.e * predictive.var).log()


def test_softmax_averages_probabilities_not_logits(rng):
    outputs = torch.randn(3, 6, 5, generator=rng)
    expected = outputs.softmax(-1).mean(0)
    torch.testing.assert_close(Softmax(5).predictive(outputs).moments(), expected)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("likelihood", [Softmax(3), LogOdds(), Hazards(4), *REGRESSION])
def test_outputs_in_half_precision_are_read_in_full(likelihood, kind, rng):
    """A network under autocast: its rounded outputs are computed with as any others are."""
    outputs = outputs_of(likelihood, rng, num_samples=3).to(kind)
    half, full = likelihood.predictive(outputs), likelihood.predictive(outputs.float())
    fields = [getattr(half, field.name) for field in dataclasses.fields(half)]
    assert {field.dtype for field in fields} == {torch.float32}
    assert torch.equal(half.moments(), full.moments())
    soft = likelihood.soft_targets(full)
    losses = [likelihood.soft_loss(some[0], soft) for some in (outputs, outputs.float())]
    assert torch.equal(*losses)


@pytest.mark.parametrize("likelihood", [Softmax(3), *REGRESSION])
def test_other_numbers_of_outputs_are_refused(likelihood, rng):
    outputs = torch.zeros(1, 6, 5)
    with pytest.raises(TrainingError, match="5 outputs where"):
        likelihood.predictive(outputs)
    with pytest.raises(TrainingError, match="5 outputs where"):
        likelihood.loss(outputs[0], torch.zeros(6))
    with pytest.raises(TrainingError, match="5 outputs where"):
        likelihood.soft_loss(outputs[0], torch.zeros(6, 2))


def test_targets_that_cannot_be_learnt_are_refused():
    classes, numbers = torch.tensor([0, 1, 2]), torch.tensor([0.5, 1.0, 2.0])
    for bad in (classes.unsqueeze(-1), numbers, classes + 1, classes - 100):
        with pytest.raises(PredbayesError):
            Softmax(3).check(bad)
    Softmax(3).check(classes)
    for likelihood in REGRESSION:
        for bad in (numbers.unsqueeze(-1), classes, numbers / 0):
            with pytest.raises(PredbayesError):
                likelihood.check(bad)
        likelihood.check(numbers)


def test_softmax_survives_extreme_logits():
    outputs = torch.tensor([[[1e4, 0.0]], [[0.0, 1e4]]])
    predictive = Softmax(2).predictive(outputs)
    torch.testing.assert_close(predictive.log_probs, torch.full((1, 2), math.log(0.5)))


@pytest.mark.parametrize("likelihood", [Softmax(3), *REGRESSION])
def test_loss_is_the_nll_of_one_sample(likelihood, rng):
    outputs = outputs_of(likelihood, rng)
    classes = likelihood.family is Categorical
    y = torch.randint(3, (6,), generator=rng) if classes else torch.randn(6, generator=rng)
    expected = -likelihood.predictive(outputs).log_prob(y).mean()
    torch.testing.assert_close(likelihood.loss(outputs[0], y), expected)


@pytest.mark.parametrize("likelihood", [Softmax(4), *REGRESSION])
def test_soft_loss_has_the_gradient_of_the_kl(likelihood, rng):
    """And is larger by the teacher's entropy, which no student can change."""
    teacher = RANDOM[likelihood.family](rng)
    outputs = outputs_of(likelihood, rng, num_rows=7)[0].double().requires_grad_()
    divergence = teacher.kl(likelihood.predictive(outputs.unsqueeze(0))).mean()
    loss = likelihood.soft_loss(outputs, likelihood.soft_targets(teacher))
    expected, actual = (torch.autograd.grad(v, outputs)[0] for v in (divergence, loss))
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(loss - divergence, entropy_of(teacher).mean())


@pytest.mark.parametrize("likelihood", REGRESSION)
def test_variance_is_spread_plus_noise(likelihood, rng):
    outputs = outputs_of(likelihood, rng, num_samples=4)
    predictive = likelihood.predictive(outputs)
    assert isinstance(predictive, Gaussian)
    spread = outputs[..., 0].var(0, correction=0)
    torch.testing.assert_close(predictive.mean, outputs[..., 0].mean(0))
    torch.testing.assert_close(predictive.epistemic_var, spread)
    noise = torch.stack([likelihood.predictive(o.unsqueeze(0)).var for o in outputs]).mean(0)
    torch.testing.assert_close(predictive.var, spread + noise)


def test_learned_noise_has_a_floor():
    outputs = torch.tensor([[[0.0, -1e4]]])
    assert float(LearnedNoise().predictive(outputs).var) == pytest.approx(MIN_NOISE_VAR)
    assert float(LearnedNoise(least_var=0.02).predictive(outputs).var) == pytest.approx(0.02)


def test_the_released_noise_trains_with_squared_error_and_predicts_with_two(rng):
    likelihood = FixedNoise.released()
    outputs, y = torch.randn(6, 1, generator=rng), torch.randn(6, generator=rng)
    squared = (outputs[:, 0] - y).square().mean()
    torch.testing.assert_close(likelihood.loss(outputs, y), squared + 0.5 * math.log(math.pi))
    assert likelihood.predictive(outputs.unsqueeze(0)).var.tolist() == [2.0] * 6
