from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from predbayes.errors import TrainingError
from predbayes.learning.distill import (
    distill,
    recalibrated,
    without_unseen_inputs,
)
from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import Network, NetworkPredictor, OptimizerSettings
from predbayes.learning.nets import input_weight, mlp
from predbayes.learning.training import TensorBatches
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import generator

FAST = OptimizerSettings("adam", lr=0.01, num_epochs=60, batch_size=50)
CLASSES = Network(lambda: mlp(1, 3, hidden=(32,)), Softmax(3))
NUMBERS = Network(lambda: mlp(1, 2, hidden=(32,)), LearnedNoise(per_input=True))


@pytest.fixture
def inputs(rng):
    return torch.rand(600, 1, generator=rng) * 4 - 2


def teacher_of(inputs, family):
    x = inputs[:, 0].double()
    if family is Categorical:
        return Categorical.from_natural(torch.stack([x, x**2, torch.zeros_like(x)], -1))
    return Gaussian(torch.sin(2 * x), 0.05 + 0.2 * x**2)


@pytest.mark.parametrize(("student", "family"), [(CLASSES, Categorical), (NUMBERS, Gaussian)])
class TestBothFamilies:
    def test_student_predicts_what_the_teacher_predicts(self, student, family, inputs, rng):
        """Also the input-dependent variance: nothing else can bring the KL this low."""
        teacher = teacher_of(inputs, family)
        predictor = distill(student, teacher, inputs, settings=FAST, rng=rng)
        new = torch.linspace(-1.9, 1.9, 101).unsqueeze(-1)
        gap = teacher_of(new, family).kl(_double(predictor.predict(new)))
        assert float(gap.mean()) < 0.02

    def test_it_can_start_from_given_weights(self, student, family, inputs):
        teacher = teacher_of(inputs, family)
        first = distill(student, teacher, inputs, settings=FAST, rng=generator(1))
        still = OptimizerSettings("sgd", lr=0.0, num_epochs=1)
        second = distill(
            student, teacher, inputs, settings=still, start=first.samples, rng=generator(2)
        )
        for name, value in first.samples.parameters.items():
            assert torch.equal(value, second.samples.parameters[name])


def constant_student(likelihood):
    """A student that says the same of every input, so that it cannot match its teacher."""
    return Network(lambda: mlp(1, likelihood.num_outputs, hidden=()), likelihood)


SLOW = OptimizerSettings("adam", lr=0.02, num_epochs=1500, batch_size=10)


def test_a_student_that_cannot_match_keeps_the_teachers_average_probabilities(rng):
    """The minimum of KL(teacher || student); the other direction gives their geometric mean."""
    probs = torch.tensor([[0.98, 0.01, 0.01], [0.3, 0.3, 0.4]])
    student = distill(
        constant_student(Softmax(3)),
        Categorical.from_moments(probs),
        torch.zeros(2, 1),
        settings=SLOW,
        rng=rng,
    )
    actual = student.predict(torch.zeros(1, 1)).moments()[0]
    torch.testing.assert_close(actual, probs.mean(0), atol=0.005, rtol=0)


def test_a_student_that_cannot_match_keeps_the_teachers_moments(rng):
    """For the Gaussian: the mean of the means, and a variance that covers their spread."""
    teacher = Gaussian(torch.tensor([-1.0, 1.0]), torch.tensor([0.2, 0.4]))
    student = distill(
        constant_student(LearnedNoise(per_input=True)),
        teacher,
        torch.zeros(2, 1),
        settings=SLOW,
        rng=rng,
    )
    actual = student.predict(torch.zeros(1, 1))
    assert float(actual.mean) == pytest.approx(0.0, abs=0.02)
    assert float(actual.var) == pytest.approx(0.3 + 1.0, abs=0.02)


def test_families_must_agree(inputs, rng):
    with pytest.raises(TrainingError, match="student of the teacher's family"):
        distill(CLASSES, teacher_of(inputs, Gaussian), inputs, rng=rng)


def trained(student, seed=1):
    return NetworkPredictor(student, WeightSamples.of(student.create(generator(seed))))


class TestRecalibration:
    """One temperature on labelled rows."""

    PROBS = torch.tensor([0.5, 0.3, 0.2])

    def overconfident(self, factor):
        """Says of every input the true probabilities, with log odds ``factor`` times as large."""
        logits = (factor * self.PROBS.log()).unsqueeze(0)
        samples = WeightSamples({"1.weight": torch.zeros(1, 3, 1), "1.bias": logits}, {})
        return NetworkPredictor(constant_student(Softmax(3)), samples)

    def labels(self, num):
        """Exactly as frequent as they are probable."""
        return torch.arange(3).repeat_interleave((num * self.PROBS).round().long())

    @pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
    def test_a_student_k_times_overconfident_gets_temperature_k(self, factor):
        x, y = torch.zeros(100, 1), self.labels(100)
        student = recalibrated(self.overconfident(factor), x, y, prior_std=None)
        assert 1 / student.inverse_temperature == pytest.approx(factor, rel=1e-5)
        torch.testing.assert_close(student.predict(x[:1]).moments()[0], self.PROBS)

    def test_few_labels_leave_the_student_nearly_as_it_is(self):
        """Five of the likeliest class, one case in 32: taken at their word, it is certain."""
        x, y = torch.zeros(5, 1), torch.zeros(5, dtype=torch.long)
        student = self.overconfident(1.0)
        assert recalibrated(student, x, y, prior_std=None).inverse_temperature > 10
        assert 1 < recalibrated(student, x, y).inverse_temperature < 1.1

    def test_the_temperature_of_a_gaussian_is_the_mean_squared_standardised_residual(self, rng):
        x, y = torch.rand(300, 1, generator=rng), torch.randn(300, generator=rng)
        before = trained(NUMBERS)
        after = recalibrated(before, x, y, prior_std=None)
        plain, tempered = before.predict(x), after.predict(x)
        expected = float(((y - plain.mean).square() / plain.var).mean())
        assert 1 / after.inverse_temperature == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(tempered.mean, plain.mean)
        torch.testing.assert_close(tempered.var, expected * plain.var)

    @pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
    def test_a_temperature_must_be_positive(self, bad):
        with pytest.raises(TrainingError, match="must be positive and finite"):
            replace(self.overconfident(1.0), inverse_temperature=bad)


class TestDecay:
    """Of the learning rate."""

    def distance(self, decay, num_steps):
        """How far plain gradient descent goes down a slope of one."""
        model = nn.Linear(1, 1)
        start = model.bias.item()
        rows = TensorBatches(torch.zeros(num_steps, 1), torch.zeros(num_steps), batch_size=1)
        settings = OptimizerSettings("sgd", lr=0.1, momentum=0.0, num_epochs=1, decay=decay)
        settings.minimize(model, lambda outputs, _: outputs.mean(), rows, rng=generator(0))
        return start - model.bias.item()

    @pytest.mark.parametrize("num_steps", [1, 7, 40])
    def test_rates_that_fall_as_a_cosine_sum_to_half_of_those_that_stay(self, num_steps):
        """The cosines of 0, 1/n, ... (n-1)/n of a half turn sum to 1."""
        assert self.distance("none", num_steps) == pytest.approx(0.1 * num_steps, rel=1e-4)
        expected = 0.1 * (num_steps + 1) / 2
        assert self.distance("cosine", num_steps) == pytest.approx(expected, rel=1e-4)


def _double(predictive):
    if isinstance(predictive, Categorical):
        return Categorical(predictive.log_probs.double())
    return Gaussian(predictive.mean.double(), predictive.var.double())


@pytest.mark.parametrize("likelihood", [Softmax(3), LearnedNoise(), LearnedNoise(per_input=True)])
def test_what_no_row_shows_has_no_say(likelihood, rng):
    """A flag that was never up must not turn predictions at random."""
    hidden = tuple([8] * 11)  # layers whose names have two digits
    network = Network(lambda: mlp(4, likelihood.num_outputs, hidden), likelihood)
    samples = WeightSamples.concat([WeightSamples.of(network.create(rng)) for _ in range(2)])
    student = NetworkPredictor(network, samples)
    inputs = torch.randn(20, 4, generator=rng)
    inputs[:, 2] = 0
    flagged = inputs.clone()
    flagged[:, 2] = 1
    deaf = without_unseen_inputs(student, inputs)
    before = student.predict(inputs).natural()
    assert torch.equal(deaf.predict(inputs).natural(), before)
    assert torch.equal(deaf.predict(flagged).natural(), before)
    assert not torch.equal(student.predict(flagged).natural(), before)
    changed = [n for n, v in samples.parameters.items() if not v.equal(deaf.samples.parameters[n])]
    assert changed == [input_weight(network.create(rng))]
