"""Simple models of a site: what they are, when they beat another, and that advice heeds them."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression  # noqa: TID253

from predbayes.predictive.families import Categorical
from predbayes.seeding import generator
from predbayes_study.result.model import CalibratedModel
from predbayes_study.site import simple as module
from predbayes_study.site.adopt import adopt, cross_adjusted
from predbayes_study.site.rows import SiteRows, split_rows
from predbayes_study.site.simple import (
    BASE_RATE,
    SimpleModels,
    beats,
    simple_learners,
)
from predbayes_study.site.training import Holdout
from predbayes_study.tasks.choice import row_losses
from tests.study.world import frozen

PLAN = """
format = 1
name = "home"
target = {{ name = "outcome", {target} }}
reference = {{}}
model = {{ hidden = [4] }}
[columns]
a = {{ type = "number", centre = 0.0, scale = 1.0 }}
b = {{ type = "number", centre = 0.0, scale = 1.0 }}
"""
CLASSES = frozen(PLAN.format(target='task = "classification", classes = ["no", "yes"]'))
NUMBER = frozen(PLAN.format(target='task = "regression", centre = 0.0, scale = 1.0'))


class Says:
    """A study's model with these log odds of yes: how steep, how shifted, how noisy."""

    def __init__(self, steep, shift, noise=0.0):
        self.steep, self.shift, self.noise = steep, shift, noise

    def predict(self, inputs):
        wild = torch.sin(37 * inputs[:, 0] + 91 * inputs[:, 1])  # noise that repeats
        odds = self.steep * inputs[:, 0] + self.shift + self.noise * wild
        return Categorical.from_natural(torch.stack([torch.zeros_like(odds), odds], 1))


def a_site(seed):
    """Rows of a logistic model of its own, and a study's model that may fit them or not."""
    rng = generator(seed, "site")
    draw = torch.rand(6, generator=rng)
    num = int(60 + 500 * draw[0])
    inputs = torch.randn(num, 2, generator=rng)
    odds = -1.5 + 2 * draw[1] * inputs[:, 0] + draw[2]
    targets = (torch.rand(num, generator=rng) < odds.sigmoid()).long()
    study = Says(4 * float(draw[3]) - 1, 2 * float(draw[4]) - 1.5, 3 * float(draw[5]))
    return SiteRows(inputs, targets), study


def plain_logistic(rows, held_out):
    """A fit that anybody could make, apart from the project's."""
    seen = torch.ones(len(rows.targets), dtype=torch.bool)
    seen[held_out] = False
    fitted = LogisticRegression(max_iter=1000).fit(rows.inputs[seen], rows.targets[seen])
    probs = torch.as_tensor(fitted.predict_proba(rows.inputs[held_out]))
    return -probs.log().gather(1, rows.targets[held_out][:, None])[:, 0]


@pytest.fixture
def without_trees(monkeypatch):
    """Boosting costs seconds, and is no part of what is shown."""
    learners = simple_learners(CLASSES)
    del learners["gradient-boosting"]
    monkeypatch.setattr(module, "simple_learners", lambda plan: learners)


@pytest.mark.usefixtures("without_trees")
def test_what_a_plain_logistic_regression_beats_is_never_advised():
    """Random sites, with own models and studies' models of every quality."""
    advised = []
    for seed in range(60):
        rows, study = a_site(seed)
        held_out = split_rows(CLASSES, "Basel", len(rows.targets))[1]
        model = CalibratedModel(CLASSES, study)
        own = Says(*(4 * torch.rand(2, generator=generator(seed, "own")) - 2).tolist())
        kept = Holdout(
            held_out, own.predict(rows.inputs[held_out]), rows.digest(), CLASSES.digest()
        )
        adoption = adopt(model, "Basel", rows, kept)
        found = adoption.comparison
        advised.append(found.choice)
        if found.choice == "simple":
            assert found.minus_simple["adopted"].value > 0 or found.minus_simple["own"].value > 0
            continue
        rival = plain_logistic(rows, held_out)
        came = model.predictive(rows.inputs)
        folds = generator(CLASSES.seed, "adopt", "Basel")
        predictive = {
            "own": own.predict(rows.inputs),
            "global": came,
            "adopted": cross_adjusted(came, rows.targets, rng=folds),
        }[found.choice]
        difference = row_losses(predictive[held_out], rows.targets[held_out]) - rival
        error = float(difference.std()) / math.sqrt(len(difference))
        assert float(difference.mean()) <= 2 * error + 1e-3, seed
    assert {*advised} == {"own", "simple", "adopted", "global"}


class TestBeats:
    def test_by_two_standard_errors_and_no_less(self):
        noise = torch.tensor([1.0, -1.0] * 50, dtype=torch.float64)
        error = float(noise.std()) / 10
        for times, expected in ((1.9, False), (2.1, True)):
            assert beats(torch.zeros(100), noise + times * error) is expected


class TestModels:
    @pytest.mark.parametrize("plan", [CLASSES, NUMBER], ids=["classes", "number"])
    def test_are_fitted_to_the_rows_that_are_not_held_out(self, plan):
        """Targets of held-out rows change nothing that is said of them."""
        rng = generator(0, "rows")
        inputs = torch.randn(80, 2, generator=rng)
        targets = inputs[:, 0] + 0.5 * torch.randn(80, generator=rng)
        targets = (targets > 0).long() if plan.target.classes else targets
        held_out = split_rows(plan, "Basel", 80)[1]
        changed = targets.clone()
        changed[held_out] = 1 - changed[held_out]
        one, two = (
            SimpleModels.fit(plan, "Basel", SiteRows(inputs, t), held_out)
            for t in (targets, changed)
        )
        linear = "logistic-regression" if plan.target.classes else "linear-regression"
        assert set(one.predictives) == {BASE_RATE, linear, "gradient-boosting"}
        for name, said in one.predictives.items():
            assert torch.equal(said.natural(), two.predictives[name].natural())
        assert one.cross_validated == two.cross_validated
        assert one.best == linear


@pytest.mark.usefixtures("without_trees")
class TestAdvice:
    def adopted(self, study, own, seed=0):
        rng = generator(seed, "advice")
        inputs = torch.randn(600, 2, generator=rng)
        targets = (torch.rand(600, generator=rng) < (2 * inputs[:, 0] - 1).sigmoid()).long()
        rows = SiteRows(inputs, targets)
        held_out = split_rows(CLASSES, "Basel", 600)[1]
        said = own.predict(inputs[held_out])
        kept = Holdout(held_out, said, rows.digest(), CLASSES.digest())
        return adopt(CalibratedModel(CLASSES, study), "Basel", rows, kept).comparison

    def test_a_study_better_than_a_straw_man_but_not_than_a_line_is_not_advised(self):
        """Graz: own network worst, a plain logistic regression best, the study's in between."""
        found = self.adopted(Says(2, -1, noise=3), Says(-1, 3))
        assert found.minus_own["adopted"]["nll"].high < 0
        assert (found.choice, found.simple) == ("simple", "logistic-regression")
        assert found.advice.startswith("Use a logistic-regression of your own rows")
        assert "\n" not in found.advice

    def test_a_study_that_is_right_is_advised_and_the_simple_model_named(self):
        found = self.adopted(Says(2, -1), Says(1, 0))
        assert found.choice in ("adopted", "global")
        assert "best simple model of your rows, logistic-regression, is no better" in found.advice
        assert list(found.scores) == ["own", "simple", "adopted", "global"]
