"""What every method must do, in every family that it declares.

A new method is one more entry of METHODS: it gets the whole suite.
"""

from __future__ import annotations

import dataclasses
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from predbayes.api.result import Result
from predbayes.api.run import run
from predbayes.errors import PoolError
from predbayes.exchange.federation import InProcess, Task
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import (
    DeepEnsemble,
    Network,
    OptimizerSettings,
    SGDLearner,
    SGHMCLearner,
)
from predbayes.learning.nets import mlp
from predbayes.methods.distilled import Distilled
from predbayes.methods.pooled import Pooled
from predbayes.pools.auto import AutoPool
from predbayes.pools.terms import beta, gated, mixture
from predbayes.posterior.cyclical import SamplerSettings
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import generator
from predbayes.summand import Collected, fold
from tests.core.contracts.averaged import Averaged, Ensemble

NETWORKS = {
    Categorical: Network(lambda: mlp(2, 3, hidden=(8,)), Softmax(3)),
    Gaussian: Network(lambda: mlp(2, 1, hidden=(8,)), LearnedNoise()),
}
STUDENTS = {
    Categorical: NETWORKS[Categorical],
    Gaussian: Network(lambda: mlp(2, 2, hidden=(8,)), LearnedNoise(per_input=True)),
}
SHORT = OptimizerSettings(lr=0.05, num_epochs=2, batch_size=20)


def learner(family):
    return DeepEnsemble(SGDLearner(NETWORKS[family], SHORT), size=2)


def point(family):
    return SGDLearner(NETWORKS[family], SHORT)


def sampler(family):
    settings = SamplerSettings(
        num_epochs=10, batch_size=10, step_size=0.01, num_cycles=2, samples_per_cycle=2
    )
    return SGHMCLearner(NETWORKS[family], settings)


METHODS = {
    "mixture": lambda family: Pooled(learner(family), mixture()),
    "beta": lambda family: Pooled(learner(family), beta()),
    "beta by predictions": lambda family: Pooled(learner(family), beta(), send="predictions"),
    "gated": lambda family: Pooled(learner(family), gated()),
    "gated log, by predictions": lambda family: Pooled(
        learner(family), gated("log"), send="predictions"
    ),
    "auto": lambda family: Pooled(learner(family), AutoPool(min_labels=20, num_folds=2)),
    "auto, kept apart": lambda family: Pooled(
        learner(family), AutoPool(keep_apart=True, min_labels=20, num_folds=2)
    ),
    "auto, too few labels": lambda family: Pooled(learner(family), AutoPool(), send="predictions"),
    "averaged": lambda family: Averaged(point(family)),
    "ensemble": lambda family: Ensemble(point(family)),
    "distilled beta": lambda family: Distilled(
        Pooled(learner(family), beta()), STUDENTS[family], SHORT
    ),
    "one's own": lambda family: OWN_METHOD(point(family)),
    "a pool of one's own": lambda family: Pooled(learner(family), OWN_POOL()),
}
EXAMPLES = Path(__file__).parents[3] / "examples"
OWN_METHOD = runpy.run_path(str(EXAMPLES / "own_method.py"))["Median"]
OWN_POOL = runpy.run_path(str(EXAMPLES / "own_pool.py"))["Median"]
NEW_INPUTS = ("averaged", "ensemble", "distilled beta")  # what predicts more than reference rows
SEVERAL_ROUNDS = ("averaged",)


def cases_of(methods):
    return [
        pytest.param(name, family, id=f"{name}-{family.__name__}")
        for name, build in methods.items()
        for family in (Categorical, Gaussian)
        if family in build(family).families
    ]


def as_params(cases):
    return {"params": [case.values for case in cases], "ids": [case.id for case in cases]}


CASES = cases_of(METHODS)


def world(family, num_sites=3):
    rng = generator(0, "world")
    x = torch.randn(90 + 30, 2, generator=rng)
    y = x.sum(-1) + 0.1 * torch.randn(120, generator=rng)
    if family is Categorical:
        y = (y > -0.7).long() + (y > 0.7).long()
    sites = {
        f"site{k}": (x[part], y[part])
        for k, part in enumerate(torch.arange(90).tensor_split(num_sites))
    }
    reference = ReferenceRows.of((x[90:110], y[90:110]), evaluate=x[110:])
    return sites, reference


def predictives(state):
    """What a state predicts on the reference rows: the pool, and the student where there is one."""
    if hasattr(state, "student"):
        _sites, reference = world(type(state.teacher.predictive))
        return [state.teacher.predictive, state.student.predict(reference.inputs)]
    return [state.predictive]


def tensors_of(value):
    """Every tensor anywhere inside a state."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for part in value.values() for tensor in tensors_of(part)]
    if not dataclasses.is_dataclass(value):
        return []
    parts = (getattr(value, field.name) for field in dataclasses.fields(value))
    return [tensor for part in parts for tensor in tensors_of(part)]


@dataclass(frozen=True)
class Sent:
    """A federation whose sites have sent already; with another one it keeps what that one sends."""

    uploads: list[Upload] = field(default_factory=list)
    federation: InProcess | None = None

    def collect(self, task):
        if self.federation is None:
            yield from self.uploads
            return
        for upload in self.federation.collect(task):
            self.uploads.append(upload)
            yield upload


@dataclass(frozen=True)
class Case:
    """A method after its one run."""

    name: str
    build: Callable
    family: type
    sites: dict
    reference: ReferenceRows
    uploads: list[Upload]
    result: Result
    reference_only: bool
    several_rounds: bool

    @classmethod
    def of(cls, name, build, family, *, new_inputs, several_rounds):
        (sites, reference), uploads = world(family), []
        result = run(build(family), Sent(uploads, InProcess(sites)), reference, seed=0)
        made = (name, build, family, sites, reference, uploads, result)
        return cls(*made, name not in new_inputs, name in several_rounds)

    @property
    def state(self):
        return self.result.state

    def method(self):
        return self.build(self.family)

    def finished(self, uploads):
        """The predictions of these uploads, with the same seed."""
        return predictives(run(self.method(), Sent(uploads), self.reference, seed=0).state)


@pytest.fixture(scope="module", **as_params(CASES))
def case(request):
    name, family = request.param
    return Case.of(
        name, METHODS[name], family, new_inputs=NEW_INPUTS, several_rounds=SEVERAL_ROUNDS
    )


@pytest.fixture(scope="module")
def again(case):
    """A second run's uploads: the same seed, sites in the other order, other reference labels."""
    shuffled = case.reference.targets.flip(0)
    targets = shuffled if case.family is Categorical else 2 * shuffled
    rows = dataclasses.replace(case.reference, targets=targets)
    backwards = InProcess(dict(reversed(case.sites.items())))
    method = case.method()
    state = method.init(rows, rng=generator(0, "init"))
    return list(backwards.collect(Task(method, state, rows.inputs))), state


class TestMethodContract:
    def test_predicts_on_every_reference_row_and_leaves_the_rows_of_sites(self, case):
        for p in predictives(case.state):
            assert isinstance(p, case.family)
            assert len(p) == len(case.reference.inputs)
            assert case.family.is_proper(p.natural())
        for site, rows in world(case.family)[0].items():
            for had, has in zip(rows, case.sites[site], strict=True):
                assert torch.equal(had, has)

    def test_every_method_has_the_same_result(self, case):
        result, inputs = case.result, case.reference.inputs
        assert torch.equal(result.predictive.natural(), predictives(case.state)[0].natural())
        assert repr(result) == result.summary()
        assert result.account.sites == {"site0": 30, "site1": 30, "site2": 30}
        if case.reference_only:
            with pytest.raises(PoolError, match="Distilled"):
                result.predict(inputs)
        elif not case.name.startswith("distilled"):  # a student is near, a method's network exact
            assert torch.equal(result.predict(inputs).natural(), result.predictive.natural())

    def test_same_seed_same_bits_and_the_order_of_sites_is_irrelevant(self, case, again):
        uploads, _state = again
        ordered = case.finished(uploads[::-1])
        backwards = case.finished(uploads)
        for p, same, other in zip(predictives(case.state), ordered, backwards, strict=True):
            assert torch.equal(p.natural(), same.natural())
            # The student trains on targets that differ by rounding.
            torch.testing.assert_close(p.natural(), other.natural(), rtol=1e-4, atol=1e-4)

    def test_sites_see_no_reference_label(self, case, again):
        """Other labels, the same uploads: nothing of them is in the state that sites are sent.

        The prior's two moments are the exception, and are part of the agreed plan; they do not
        reach an upload either.
        """
        uploads, state = again
        assert [u.digest() for u in uploads[::-1]] == [u.digest() for u in case.uploads]
        before = case.method().init(case.reference, rng=generator(0, "init"))
        pairs = zip(tensors_of(before), tensors_of(state), strict=True)
        assert sum(int((a != b).sum()) for a, b in pairs) <= 2

    def test_one_site_is_enough_and_another_seed_has_another_result(self, case):
        uploads = []
        rows = {"site0": case.sites["site0"]}
        federation = Sent(uploads, InProcess(rows))
        one = predictives(run(case.method(), federation, case.reference, seed=1).state)
        for p, q in zip(predictives(case.state), one, strict=True):
            assert len(q) == len(case.reference.inputs)
            assert not torch.equal(p.natural(), q.natural())
        if uploads[0].arrays:
            assert uploads[0].digest() != case.uploads[0].digest()

    def test_streaming_equals_batch_and_a_total_can_be_finished_again(self, case):
        """Folding uploads as they come, and merging two partial sums made apart.

        What does not stream is kept apart, and adds all the same.
        """
        method = case.method()
        state = method.init(case.reference, rng=generator(0, "init"))
        lifted = [method.lift(state, u, case.reference.inputs) for u in case.uploads]
        merged = fold(lifted[:1]).add_(fold(lifted[1:]))
        first, second = (
            predictives(method.finish(state, merged, case.reference, rng=generator(0, "finish", 0)))
            for _ in range(2)
        )
        for p, q, r in zip(predictives(case.state), first, second, strict=True):
            torch.testing.assert_close(p.natural(), q.natural(), rtol=1e-4, atol=1e-4)
            assert torch.equal(q.natural(), r.natural())
        assert method.streams is not isinstance(merged, Collected)

    def test_can_be_distilled(self, case):
        if isinstance(case.method(), Distilled):
            return
        method = Distilled(case.method(), STUDENTS[case.family], SHORT)
        state = run(method, Sent(case.uploads), case.reference, seed=0).state
        assert torch.equal(state.teacher.predictive.natural(), case.state.predictive.natural())
        assert isinstance(state.student.predict(case.reference.inputs), case.family)
        assert state.gap >= 0

    def test_rounds_go_on_from_the_state_of_the_last(self, case):
        """Two rounds equal one round, and then one from its state with the second round's draws."""
        if not case.several_rounds:
            return
        method, federation = case.method(), InProcess(case.sites)
        twice = run(method, federation, case.reference, seed=0, num_rounds=2).state
        uploads = federation.collect(Task(method, case.state, case.reference.inputs, round=1))
        total = fold(method.lift(case.state, u, case.reference.inputs) for u in uploads)
        after = method.finish(case.state, total, case.reference, rng=generator(0, "finish", 1))
        assert torch.equal(after.predictive.natural(), twice.predictive.natural())
        assert not torch.equal(case.state.predictive.natural(), twice.predictive.natural())
