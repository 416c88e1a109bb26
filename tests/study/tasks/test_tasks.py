"""Tasks: what each answers for itself, and that nothing else branches on one."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import predbayes_study
from predbayes.errors import PoolError
from predbayes.predictive.families import Categorical, Gaussian, Survival
from predbayes.seeding import generator
from predbayes_study.result.schema import Result
from predbayes_study.site.simple import BaseRate
from predbayes_study.tasks import TASKS, task_for, task_of
from predbayes_study.tasks.numbers import PRIOR_ROWS, ShiftScale
from predbayes_study.tasks.task import PRIOR_STD
from tests.core.oracles import random_categorical
from tests.study.world import frozen

ROOT = Path(predbayes_study.__file__).parent
BRANCH = re.compile(
    r"isinstance\([^()]*\b(?:Categorical|Gaussian|Survival)\b"
    r"|case (?:Categorical|Gaussian|Survival)\b"
    r"|\.task [!=]= |\btask\] *[(.]"
    r"|\bself\.survival\b|\bform\.survival\b"
    r"|num_classes is (?:not )?None"
)
ELSEWHERE = {
    "extras/audit/shadows.py": "attacks what any learner predicts, and knows no plan",
    "extras/moments": "sums of products of targets: one column of a number, or one of each class",
    "extras/sealed/fixed_point.py": "where terms are in words of 64 bits depends on the family",
    "extras/sealed/payload.py": "makes words of the two families that have them",
    "extras/sealed/secure_sum.py": "writes and reads these words",
    "result/weighing.py": "a precision is a weight that only a number has",
}
"""Files outside `tasks` that may branch on a task, with the reason."""

PLAN = """
format = 1
name = "three"
target = {{ name = "outcome", {target} }}
reference = {{}}
model = {{ hidden = [4] }}
[columns]
a = {{ type = "number", centre = 0.0, scale = 1.0 }}
"""
PLANS = {
    name: frozen(PLAN.format(target=f'task = "{name}", {keys}'))
    for name, keys in {
        "classification": 'classes = ["no", "yes", "perhaps"]',
        "regression": 'unit = "cm", centre = 170.0, scale = 10.0',
        "survival": 'event = "came", times = [1, 2, 5]',
    }.items()
}
LABELS = {
    "classification": ["yes", "no"],
    "regression": [180.0, 165.0],
    "survival": [0.5, -3.0],
}

BASE_RATES = {
    "classification": ([0, 0, 0, 0, 1, 1, 2], [[0.5, 0.3, 0.2]]),
    "regression": ([1.0, 3.0, 1.0, 3.0], [[2.0, 5.0]]),
    # Three reach the first interval, one has the event there; half a row more of each kind.
    "survival": ([0.5, -1.0, -1.0], [[0.375, 0.3125, 0.15625, 0.15625]]),
}
"""Targets, and the moments that they have."""

every_task = pytest.mark.parametrize("name", TASKS)


def predicted(name, num_rows=40):
    """Random predictions, and targets that are drawn without them."""
    rng = generator(0, name)
    if name == "classification":
        said = random_categorical(rng, num_rows, 3)
        return said, torch.randint(3, (num_rows,), generator=rng)
    if name == "regression":
        mean, targets = torch.randn(2, num_rows, generator=rng).double()
        return Gaussian(mean, 0.2 + torch.rand(num_rows, generator=rng).double()), targets
    said = Survival(torch.randn(num_rows, 3, generator=rng).double())
    times = 3 * torch.rand(num_rows, generator=rng).double().clamp_min(1e-3)
    return said, torch.where(torch.rand(num_rows, generator=rng) < 0.6, times, -times)


def test_nothing_else_branches_on_a_task():
    found = {
        path.relative_to(ROOT).as_posix()
        for kind in ("*.py", "*.j2", "*.toml")
        for path in ROOT.rglob(kind)
        if BRANCH.search(path.read_text()) and path.parent.name != "tasks"
    }
    assert {name for name in found if not name.startswith(tuple(ELSEWHERE))} == set()
    assert all(any(name.startswith(known) for name in found) for known in ELSEWHERE)


@every_task
class TestEach:
    def test_is_found_by_its_plan_and_by_its_predictions(self, name):
        assert task_of(PLANS[name]) is task_for(predicted(name)[0]) is TASKS[name]

    def test_labels_are_read_as_they_were_written(self, name):
        task, labels = TASKS[name], LABELS[name]
        targets = task.from_labels(PLANS[name], labels)
        assert targets.dtype == task.dtype
        if not task.is_scaled:  # whose file has the target's own unit
            assert task.to_labels(PLANS[name], targets.tolist()) == labels
        with pytest.raises(PoolError):
            task.from_labels(PLANS[name], ["no such", *labels])

    def test_the_base_rate_is_how_targets_are_distributed(self, name):
        targets, expected = BASE_RATES[name]
        learner = BaseRate(PLANS[name])
        rows = torch.zeros(len(targets), 1), torch.tensor(targets)
        said = learner.fit(rows, rng=generator(0)).predict(torch.zeros(4, 1))
        expected = torch.tensor(expected).double().expand(4, -1)
        torch.testing.assert_close(said.moments().double(), expected)

    def test_a_network_and_an_upload_have_its_family(self, name):
        task, plan = TASKS[name], PLANS[name]
        assert task.likelihood(plan).family is task.family
        assert task.numbers_per_row(plan) == {"regression": 3}.get(name, plan.num_outputs)

    def test_an_adjustment_fits_its_plan_alone(self, name):
        found = TASKS[name].adjust(*predicted(name))
        assert [found.fits(plan) for plan in PLANS.values()] == [one == name for one in TASKS]

    def test_an_adjustment_is_where_the_penalised_loss_is_least(self, name):
        said, targets = predicted(name)
        best = TASKS[name].adjust(said, targets)
        least = penalised(best, said, targets)
        around = list(moved(best))
        assert len(around) >= 2
        assert all(penalised(one, said, targets) > least for one in around)

    @pytest.mark.parametrize("extreme", [0.0, 60.0])
    def test_an_adjustment_is_finite_where_all_targets_are_alike(self, name, extreme):
        """As of a site that has one class, or where saturated predictions are all wrong."""
        said, targets = predicted(name)
        if name == "classification":
            logits = extreme * torch.nn.functional.one_hot(targets, 3).double()
            said, targets = Categorical.from_natural(logits), (targets + 1) % 3 * (extreme > 0)
        elif name == "survival":
            said = Survival(torch.full((len(targets), 3), extreme).double())
            targets = torch.full((len(targets),), -3.0).double()
        else:
            targets = torch.full_like(targets, extreme)
        best = TASKS[name].adjust(said, targets)
        assert all(math.isfinite(value) for value in values_of(best))
        adjusted = best.apply(said)
        assert float(adjusted.log_prob(targets).sum()) > float(said.log_prob(targets).sum())

    def test_calibration_is_shown_as_its_results_keep_it(self, name):
        task, (said, targets), rng = TASKS[name], predicted(name, 120), generator(0, "shown")
        shown = task.calibration(PLANS[name], said, targets, rng=rng)
        assert task.shown_as in Result.model_fields
        assert type(shown).__name__ in str(Result.model_fields[task.shown_as].annotation)
        can_judge, words = task.verdict(PLANS[name], shown, 120, "Nothing was found")
        assert can_judge
        assert "120 scored" in words

    def test_predictions_are_near_themselves_and_far_from_others(self, name):
        task, (one, _) = TASKS[name], predicted(name)
        other = one[torch.arange(len(one)).flip(0)]
        assert float(task.hellinger(one, one).max()) == 0
        assert 0 < float(task.hellinger(one, other).mean()) <= 1
        assert task.is_same(one, one, 1e-3)
        assert not task.is_same(one, other, 1e-3)
        apart = task.distances([one, other])
        expected = float(task.hellinger(one, other).mean())
        torch.testing.assert_close(apart, torch.tensor([[0.0, expected], [expected, 0.0]]).double())

    def test_the_worst_targets_are_allowed_and_improbable(self, name):
        task, (said, targets) = TASKS[name], predicted(name)
        worst = task.worst(said)
        said.check(worst)
        assert float(said.log_prob(worst).mean()) < float(said.log_prob(targets).mean())

    def test_the_same_is_said_of_no_fewer_rows_than_asked(self, name):
        said, targets = predicted(name)
        told = TASKS[name].alike(said, targets, 10, torch.zeros(len(said), dtype=torch.int64))
        assert len(told.predictive) == len(said)
        for blocks in told.blocks.T:
            sizes = torch.bincount(blocks)
            assert int(sizes.min()) >= 10
            assert int(sizes.max()) < 20
        assert float(task_spread(told.predictive)) < float(task_spread(said))

    def test_what_is_described_makes_columns(self, name):
        task, (said, _) = TASKS[name], predicted(name)
        described = task.describe(PLANS[name], said, 0.9)
        assert len(described) == len(task.outputs)
        columns = task.columns(PLANS[name], described)
        assert {len(column) for column in columns.values()} == {len(said)}

    def test_only_what_is_strange_is_outside_what_is_promised(self, name):
        task, (said, targets) = TASKS[name], predicted(name)
        if not task.grid:
            return
        bound = float(task.strangeness(said, targets).double().median())
        sizes = task.promised_size(PLANS[name], said, bound)
        assert bool((sizes <= task.promised_size(PLANS[name], said, 2 * bound)).all())
        assert bool(np.all(np.diff(task.grid) > 0))


def values_of(adjustment):
    kept = adjustment.model_dump(exclude={"kind"})
    return [x for value in kept.values() for x in (value if isinstance(value, tuple) else (value,))]


def moved(best, size=0.01):
    """Adjustments that are near one."""
    for key, value in best.model_dump(exclude={"kind"}).items():
        for step in (-size, size):
            if isinstance(value, tuple):
                for place in range(len(value)):
                    near = tuple(x + step * (k == place) for k, x in enumerate(value))
                    yield best.model_copy(update={key: near})
            else:
                yield best.model_copy(update={key: value + step})


def penalised(adjustment, said, targets):
    """The loss of rows, and what the prior adds."""
    if isinstance(adjustment, ShiftScale):
        shift, factor = values_of(adjustment)
        prior = shift**2 / factor + PRIOR_ROWS * (1 / factor + math.log(factor))
    else:
        prior = sum(shift**2 for shift in values_of(adjustment)) / PRIOR_STD**2
    return 0.5 * prior - float(adjustment.apply(said).log_prob(targets).sum())


def task_spread(said):
    moments = said.moments()
    return (moments.amax(0) - moments.amin(0)).sum()
