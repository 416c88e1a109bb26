"""What the model looks at: columns that it uses matter, others do not, whatever their type."""

from __future__ import annotations

import pytest
import torch

from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import generator
from predbayes_study.plan.schema import Plan
from predbayes_study.result.importance import MOST_ROWS, importances

TEXT = """
format = 1
name = "why"
target = { name = "outcome", TARGET }
reference = {}
[columns]
dose = { type = "number", missing = "flag", centre = 0.0, scale = 1.0 }
ward = { type = "category", categories = ["a", "b"], other = false }
noise = { type = "number", centre = 0.0, scale = 1.0 }
"""
EVENT = Plan.loads(TEXT.replace("TARGET", 'task = "classification", classes = ["no", "yes"]'))
NUMBER = Plan.loads(TEXT.replace("TARGET", 'task = "regression", centre = 0.0, scale = 1.0'))


class Told:
    """A model that uses the dose most, the ward a little, and the rest not at all."""

    def __init__(self, plan):
        self.plan = plan

    def predict(self, inputs):
        odds = (2 * inputs[:, 0] + 0.5 * inputs[:, 3]).double()
        if not self.plan.target.classes:
            return Gaussian(odds, torch.full_like(odds, 0.5))
        return Categorical(torch.stack([torch.zeros_like(odds), odds], 1).log_softmax(1))


def rows(num_rows=400):
    rng = generator(0, "why")
    numbers = torch.randn(num_rows, 2, generator=rng)
    ward = torch.nn.functional.one_hot(torch.randint(2, (num_rows,), generator=rng), 2).float()
    return torch.cat([numbers[:, :1], torch.zeros(num_rows, 1), ward, numbers[:, 1:]], 1)


@pytest.mark.parametrize("plan", [EVENT, NUMBER])
def test_columns_that_are_used_matter_and_others_do_not(plan):
    found = importances(plan, Told(plan), rows(), rng=generator(0, "deal"))
    assert [one.column for one in found] == ["dose", "ward", "noise"]
    dose, ward, noise = (one.change for one in found)
    assert dose.low > ward.high > ward.low > 0
    assert noise.value == pytest.approx(0, abs=1e-12)


def test_of_an_event_a_number_has_a_direction():
    dose, ward, noise = importances(EVENT, Told(EVENT), rows(), rng=generator(0, "deal"))
    low, high = dose.quartile_risks
    assert high > low + 0.3
    assert noise.quartile_risks[0] == pytest.approx(noise.quartile_risks[1])
    assert ward.quartile_risks is None
    assert all(
        one.quartile_risks is None
        for one in importances(NUMBER, Told(NUMBER), rows(), rng=generator(0, "deal"))
    )


def test_the_same_seed_gives_the_same_and_few_rows_nothing():
    first, second = (
        importances(EVENT, Told(EVENT), rows(MOST_ROWS + 50), rng=generator(3, "deal"))
        for _ in range(2)
    )
    assert first == second
    assert importances(EVENT, Told(EVENT), rows(9), rng=generator(0, "deal")) == ()
