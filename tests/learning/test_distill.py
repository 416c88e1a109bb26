from __future__ import annotations

import pytest
import torch

from predbayes.errors import TrainingError
from predbayes.learning.distill import PAPER_DISTILLATION, distill
from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import Network, OptimizerSettings
from predbayes.learning.nets import mlp
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

    def test_same_seed_same_student(self, student, family, inputs):
        teacher, short = teacher_of(inputs, family), OptimizerSettings("adam", num_epochs=1)
        first, second = (
            distill(student, teacher, inputs, settings=short, rng=generator(1)).samples
            for _ in range(2)
        )
        for name, value in first.parameters.items():
            assert torch.equal(value, second.parameters[name])

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


def test_the_papers_settings_are_the_papers():
    assert OptimizerSettings("adam", lr=1e-4, num_epochs=100) == PAPER_DISTILLATION


def test_families_must_agree(inputs, rng):
    with pytest.raises(TrainingError, match="student of the teacher's family"):
        distill(CLASSES, teacher_of(inputs, Gaussian), inputs, rng=rng)


def test_class_counts_must_agree(inputs, rng):
    other = Network(lambda: mlp(1, 5), Softmax(5))
    with pytest.raises(TrainingError, match="predicts 3 classes, the student 5"):
        distill(other, teacher_of(inputs, Categorical), inputs, rng=rng)


def _double(predictive):
    if isinstance(predictive, Categorical):
        return Categorical(predictive.log_probs.double())
    return Gaussian(predictive.mean.double(), predictive.var.double())
