"""Choosing a learner by cross-validation: the best one, and the simplest where rows cannot tell."""

from __future__ import annotations

import pytest
import torch

from predbayes.errors import TrainingError
from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.local import Learner
from predbayes.learning.named import BY_TASK, CLASSIFIERS, MAX_BOOSTED, tried_by_auto
from predbayes.predictive.families import Categorical
from predbayes.seeding import generator
from predbayes_study.tasks.choice import LEAST_ROWS, choose, held_out


class Says(Learner):
    """A learner that gives the right class so much, and notes what it was fitted to."""

    def __init__(self, right, spread=0.0):
        self.right, self.spread, self.sizes, self.seen = right, spread, [], []

    def fit(self, rows, *, rng):
        self.sizes.append(len(rows[1]))
        self.seen.append(set(rows[0][:, 0].tolist()))
        self.noise = self.spread * torch.randn(10_000, generator=rng)
        return self

    def predict(self, inputs):
        assert not self.seen[-1] & set(inputs[:, 0].tolist())
        odds = self.right + self.noise[: len(inputs)]
        right = inputs[:, 1].long()
        return Categorical.from_natural(torch.nn.functional.one_hot(right, 2) * odds[:, None])


class Fails(Learner):
    def fit(self, rows, *, rng):
        raise TrainingError("no")


def rows_of(num):
    targets = torch.arange(num) % 2
    return torch.stack([torch.arange(num).float(), targets.float()], 1), targets


def curved(num, seed=0):
    """Yes in two opposite quadrants, which no line tells apart."""
    rng = generator(seed, "curved")
    x = torch.randn(num, 3, generator=rng)
    return x, ((x[:, 0] * x[:, 1] > 0) ^ (torch.rand(num, generator=rng) < 0.1)).long()


def straight(num, seed=0):
    rng = generator(seed, "straight")
    x = torch.randn(num, 3, generator=rng)
    return x, (x[:, 0] + torch.randn(num, generator=rng) > 0).long()


def classifiers():
    return {
        name: SklearnClassifier(CLASSIFIERS[name](), 2, calibrated=name == "gradient-boosting")
        for name in ("logistic-regression", "gradient-boosting")
    }


class TestChoose:
    def test_takes_the_best_where_rows_tell(self):
        found = choose({"simple": Says(0.5), "good": Says(2.0)}, rows_of(100), rng=generator(0))
        assert found.name == "good"
        assert found.losses["good"] < found.losses["simple"]

    def test_takes_the_simplest_where_they_cannot(self):
        """A thousandth of a nat better, by noise of a tenth."""
        found = choose(
            {"simple": Says(1.0), "good": Says(1.0, spread=0.3)}, rows_of(100), rng=generator(0)
        )
        assert found.name == "simple"

    def test_every_row_is_predicted_by_fits_that_have_not_seen_it(self):
        learner = Says(1.0)
        held_out(learner, rows_of(50), rng=generator(0))
        assert learner.sizes == [40] * 5

    def test_rows_of_one_patient_are_tried_together(self):
        inputs, targets = rows_of(60)
        patients = torch.arange(60) // 4
        inputs[:, 0] = patients  # by which the learner notes what it has seen, and refuses it
        choose(
            {"a": Says(2.0), "b": Says(2.0)},
            (inputs, targets),
            groups=patients,
            rng=generator(0, "x"),
        )
        with pytest.raises(AssertionError):
            choose({"a": Says(2.0), "b": Says(2.0)}, (inputs, targets), rng=generator(0, "x"))

    def test_few_rows_choose_nothing(self):
        unused = Says(1.0)
        found = choose(
            {"simple": unused, "good": Says(2.0)}, rows_of(LEAST_ROWS - 1), rng=generator(0)
        )
        assert (found.name, dict(found.losses), unused.sizes) == ("simple", {}, [])

    def test_looks_at_so_many_rows_and_no_more(self):
        learner = Says(1.0)
        learners = {"simple": learner, "good": Says(1.0)}
        found = choose(learners, rows_of(200), most_rows=60, rng=generator(0))
        assert found.num_rows == 60
        assert learner.sizes == [48] * 5

    def test_what_cannot_be_fitted_is_not_chosen(self):
        found = choose({"simple": Fails(), "good": Says(1.0)}, rows_of(100), rng=generator(0))
        assert (found.name, list(found.losses)) == ("good", ["good"])
        nothing = choose({"simple": Fails(), "good": Fails()}, rows_of(100), rng=generator(0))
        assert nothing.name == "simple"

    @pytest.mark.parametrize(
        ("make", "best"), [(straight, "logistic-regression"), (curved, "gradient-boosting")]
    )
    def test_of_a_line_and_trees_takes_what_made_the_rows(self, make, best):
        assert choose(classifiers(), make(400), rng=generator(0)).name == best


def test_boosting_is_not_tried_for_many_classes():
    assert "gradient-boosting" in tried_by_auto("classification", MAX_BOOSTED)
    assert "gradient-boosting" not in tried_by_auto("classification", MAX_BOOSTED + 1)
    for task, known in BY_TASK.items():
        assert set(tried_by_auto(task, 2)) - {"small-network"} <= set(known)
