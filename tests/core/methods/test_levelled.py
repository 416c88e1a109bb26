"""Sites say how sure a student should be, in one more round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch

import predbayes as pb
from predbayes.errors import TrainingError, UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import Learner, Network, OptimizerSettings
from predbayes.methods.distilled import Distilled
from predbayes.methods.levelled import TIMES, Asked, Levelled, level_of
from predbayes.methods.pooled import Pooled
from predbayes.pools.terms import mixture
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.metrics import nll
from predbayes.seeding import generator

LONG = OptimizerSettings(optimizer="adam", lr=0.01, num_epochs=60, batch_size=50)
STUDENTS = {
    Categorical: Network.mlp(2, Softmax(2), (8,)),
    Gaussian: Network.mlp(2, LearnedNoise(per_input=True), (8,)),
}


@dataclass
class Knowing:
    """Says the truth, but as sure as it is told to be."""

    family: type
    times: float

    def predict(self, inputs):
        if self.family is Categorical:
            odds = 2 * inputs.sum(1)
            truth = Categorical(torch.stack([-odds, odds], 1).div(2).log_softmax(1))
        else:
            truth = Gaussian(inputs.sum(1), torch.full((len(inputs),), 0.25))
        return truth.from_natural(truth.natural() / self.times)


@dataclass(frozen=True)
class Teaching(Learner):
    """Notes which rows it was given."""

    family: type
    times: float
    seen: list = field(default_factory=list, repr=False)
    name: ClassVar[str] = "teaching"

    def fit(self, rows, *, rng, **options):
        self.seen.append(rows[0])
        return Knowing(self.family, self.times)


def drawn(family, num, *path):
    rng = generator(0, "drawn", *path)
    inputs = torch.randn(num, 2, generator=rng)
    if family is Categorical:
        return inputs, torch.bernoulli((2 * inputs.sum(1)).sigmoid(), generator=rng).long()
    return inputs, inputs.sum(1) + 0.5 * torch.randn(num, generator=rng)


def study(family, num_sites=4, num_rows=200):
    sites = {f"site {n}": drawn(family, num_rows, n) for n in range(num_sites)}
    none = drawn(family, 0, "none")
    reference = pb.ReferenceRows.of(none, unlabelled=drawn(family, 500, "reference")[0])
    return sites, reference


def method(family, times):
    learner = Teaching(family, times)
    pooled = Pooled(learner, mixture(), send="predictions")
    return learner, Distilled(pooled, STUDENTS[family], LONG)


@pytest.mark.parametrize("family", [Categorical, Gaussian])
@pytest.mark.parametrize("times", [1.0, 3.0, 0.5])
def test_a_student_gets_as_sure_as_held_out_rows_say(family, times):
    sites, reference = study(family, num_rows=600)
    learner, distilled = method(family, times)
    plain = pb.run(distilled, sites, reference, progress=False)
    found = pb.run(distilled, sites, reference, progress=False, calibrate="sites")
    inputs, targets = drawn(family, 4000, "later")
    # By 480 held-out rows, and 4,000 later ones: errors of about .08, and .08 between the points.
    said = replace(found.model, inverse_temperature=1.0).predict(inputs)
    best = min(TIMES, key=lambda t: nll(said.from_natural(t * said.natural()), targets))
    assert math.log(found.model.inverse_temperature) == pytest.approx(math.log(best), abs=0.3)
    assert found.account.temperature == pytest.approx(1 / found.model.inverse_temperature)
    if times != 1:
        assert nll(found.predict(inputs), targets) < nll(plain.predict(inputs), targets) - 0.01
    assert found.account.sites == dict.fromkeys(sites, 480)
    assert plain.account.sites == dict.fromkeys(sites, 600)
    held_in = learner.seen[-4:]
    assert [len(rows) for rows in held_in] == [480] * 4


def test_rows_that_judge_were_not_learnt_from():
    sites, reference = study(Categorical, num_sites=1)
    learner, distilled = method(Categorical, 1.0)
    levelled = Levelled(distilled)
    state, rng = levelled.init(reference, rng=generator(0)), generator(1)
    rows = sites["site 0"]
    levelled.learn(state, rows, reference.inputs, rng=rng)
    asked = []

    class Student:
        def predict(self, inputs):
            asked.append(inputs)
            return Knowing(Categorical, 1.0).predict(inputs)

    levelled.learn(Asked(None, Student()), rows, reference.inputs, rng=rng)
    (learnt,), (judged,) = learner.seen, asked
    assert len(learnt) + len(judged) == len(rows[0])
    both = torch.cat([learnt, judged])
    assert torch.equal(torch.unique(both, dim=0), torch.unique(rows[0], dim=0))


def test_the_level_is_the_exact_least_loss():
    """S(t) = n (t - log t^k) has its minimum at k."""
    times = torch.tensor(TIMES, dtype=torch.float64)
    for least in (0.3, 1.0, 2.3, 7.0):
        assert level_of(1e6 * (times - least * times.log())) == pytest.approx(least, rel=0.01)
    assert level_of(torch.zeros(len(TIMES))) == pytest.approx(1.0)  # as the prior has it


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda d: Levelled(d.method), "student"),
        (lambda d: Levelled(d, holdout=0.0), "holdout"),
        (lambda d: Levelled(d, holdout=0.6), "holdout"),
    ],
)
def test_what_cannot_be_levelled_is_refused(made, why):
    with pytest.raises(TrainingError, match=why):
        made(method(Categorical, 1.0)[1])


def test_wrong_words_and_too_few_rows_are_one_line():
    sites, reference = study(Categorical, num_rows=3)
    distilled = method(Categorical, 1.0)[1]
    with pytest.raises(TrainingError, match="too few to hold 20% out"):
        pb.run(distilled, sites, reference, calibrate="sites", progress=False)
    with pytest.raises(TrainingError, match="'labels' or 'sites'"):
        pb.run(distilled, sites, reference, calibrate="site", progress=False)
    with pytest.raises(TrainingError, match="one round"):
        pb.run(distilled, sites, reference, calibrate="sites", num_rounds=2, progress=False)
    levelled = Levelled(distilled)
    sent = Upload(UploadInfo(kind="echo", num_rows=9), {"echo": torch.zeros(5)}).named("Basel")
    with pytest.raises(UploadError, match="'Basel' sent no echo"):
        levelled.lift(Asked(None, object()), sent, reference.inputs)
