"""What every method must do, in every family that it declares.

A new method is one more entry of METHODS: it gets the whole suite.
"""

from __future__ import annotations

import dataclasses
import runpy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from predbayes.api.run import run
from predbayes.exchange.federation import InProcess, Task
from predbayes.exchange.reference import ReferenceRows
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
from predbayes.methods.ep_mcmc import EPMCMC
from predbayes.methods.fedavg import FedAvg
from predbayes.methods.fedbe import FedBE
from predbayes.methods.fedbens import FedBEns
from predbayes.methods.fedkt import FedKT
from predbayes.methods.fedpa import FedPA
from predbayes.methods.fedprox import FedProx
from predbayes.methods.fedyogi import FedYogi
from predbayes.methods.moments import head_for
from predbayes.methods.oneshot import OneShotFL
from predbayes.methods.pooled import Pooled
from predbayes.methods.server_only import ServerOnly
from predbayes.methods.with_head import auto_with_head
from predbayes.pools.auto import AutoPool
from predbayes.pools.best_site import BestSite
from predbayes.pools.beta import BetaPool, mixture, product
from predbayes.pools.gated import GatedPool
from predbayes.pools.informed import gpoe, rbcm
from predbayes.pools.tempered import Tempered
from predbayes.posterior.cyclical import SamplerSettings
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import generator
from predbayes.summand import Kept, fold

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
    "product": lambda family: Pooled(learner(family), product()),
    "beta": lambda family: Pooled(learner(family), BetaPool()),
    "beta by predictions": lambda family: Pooled(learner(family), BetaPool(), send="predictions"),
    "released beta": lambda family: Pooled(learner(family), BetaPool(beta="released")),
    "rbcm": lambda family: Pooled(learner(family), rbcm()),
    "gpoe": lambda family: Pooled(learner(family), gpoe()),
    "gated": lambda family: Pooled(learner(family), GatedPool()),
    "gated log, by predictions": lambda family: Pooled(
        learner(family), GatedPool("log"), send="predictions"
    ),
    "tempered mixture": lambda family: Pooled(learner(family), Tempered()),
    "tempered product": lambda family: Pooled(learner(family), Tempered("product")),
    "auto": lambda family: Pooled(learner(family), AutoPool(min_labels=20)),
    "auto, kept apart": lambda family: Pooled(
        learner(family), AutoPool(keep_apart=True, min_labels=20, num_folds=2)
    ),
    "auto, too few labels": lambda family: Pooled(learner(family), AutoPool(), send="predictions"),
    "best site": lambda family: Pooled(learner(family), BestSite()),
    "server only": lambda family: ServerOnly(learner(family)),
    "fedavg": lambda family: FedAvg(point(family)),
    "fedprox": lambda family: FedProx(point(family), proximal=0.1),
    "fedyogi": lambda family: FedYogi(point(family)),
    "fedpa": lambda family: FedPA(sampler(family)),
    "ep-mcmc": lambda family: EPMCMC(sampler(family)),
    "fedbe": lambda family: FedBE(point(family)),
    "fedbens": lambda family: FedBEns(point(family), num_starts=2),
    "oneshot": lambda family: OneShotFL(point(family)),
    "fedkt": lambda family: FedKT(point(family), num_parts=2),
    "moments": lambda family: head_for(point(family), num_features=10),
    "auto with a head": lambda family: auto_with_head(point(family), num_features=10),
    "distilled beta": lambda family: Distilled(
        Pooled(learner(family), BetaPool()), STUDENTS[family], SHORT
    ),
    "one's own": lambda family: OWN_METHOD(point(family)),
    "a pool of one's own": lambda family: Pooled(learner(family), OWN_POOL()),
    "distilled fedbe": lambda family: Distilled(FedBE(point(family)), STUDENTS[family], SHORT),
}
EXAMPLES = Path(__file__).parents[2] / "examples"
OWN_METHOD = runpy.run_path(str(EXAMPLES / "own_method.py"))["Median"]
OWN_POOL = runpy.run_path(str(EXAMPLES / "own_pool.py"))["Median"]
SEVERAL_ROUNDS = ("fedavg", "fedprox", "fedyogi", "fedpa")
CASES = [
    pytest.param(name, family, id=f"{name}-{family.__name__}")
    for name, build in METHODS.items()
    for family in (Categorical, Gaussian)
    if family in build(family).families
]


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


def run_on(method, sites, reference, seed=0):
    return predictives(run(method, InProcess(sites), reference, seed=seed).state)


@pytest.mark.parametrize(("name", "family"), CASES)
class TestMethodContract:
    def test_predicts_on_every_reference_row(self, name, family):
        sites, reference = world(family)
        for p in run_on(METHODS[name](family), sites, reference):
            assert isinstance(p, family)
            assert len(p) == len(reference.inputs)
            assert family.is_proper(p.natural())

    def test_same_seed_same_result(self, name, family):
        sites, reference = world(family)
        first, second = (run_on(METHODS[name](family), sites, reference) for _ in range(2))
        for p, q in zip(first, second, strict=True):
            assert torch.equal(p.natural(), q.natural())

    def test_another_seed_another_result(self, name, family):
        sites, reference = world(family)
        first, second = (run_on(METHODS[name](family), sites, reference, s) for s in (0, 1))
        for p, q in zip(first, second, strict=True):
            assert not torch.equal(p.natural(), q.natural())

    def test_order_of_sites_is_irrelevant(self, name, family):
        sites, reference = world(family)
        backwards = dict(reversed(sites.items()))
        first = run_on(METHODS[name](family), sites, reference)
        second = run_on(METHODS[name](family), backwards, reference)
        for p, q in zip(first, second, strict=True):
            # The student trains on targets that differ by rounding.
            torch.testing.assert_close(p.natural(), q.natural(), rtol=1e-4, atol=1e-4)

    def test_works_with_one_site(self, name, family):
        sites, reference = world(family, num_sites=1)
        assert run_on(METHODS[name](family), sites, reference)

    def test_streaming_equals_batch(self, name, family):
        """Folding uploads as they come, and merging two partial sums made apart.

        What does not stream is kept apart, and adds all the same.
        """
        method = METHODS[name](family)
        sites, reference = world(family)
        state = method.init(reference, rng=generator(0, "init"))
        task = Task(method, state, reference.inputs)
        uploads = list(InProcess(sites).collect(task))
        lifted = [method.lift(state, u, reference.inputs) for u in uploads]
        merged = fold(lifted[:1]).add_(fold(lifted[1:]))
        finished = method.finish(state, merged, reference, rng=generator(0, "finish", 0))
        for p, q in zip(predictives(finished), run_on(method, sites, reference), strict=True):
            torch.testing.assert_close(p.natural(), q.natural(), rtol=1e-4, atol=1e-4)
        assert method.streams is not isinstance(merged, Kept)

    def test_finishing_leaves_what_was_handed_in(self, name, family):
        """So that a total can be finished again, to the same result."""
        method = METHODS[name](family)
        sites, reference = world(family)
        state = method.init(reference, rng=generator(0, "init"))
        uploads = InProcess(sites).collect(Task(method, state, reference.inputs))
        total = fold(method.lift(state, u, reference.inputs) for u in uploads)
        first, second = (
            method.finish(state, total, reference, rng=generator(0, "finish")) for _ in range(2)
        )
        for p, q in zip(predictives(first), predictives(second), strict=True):
            assert torch.equal(p.natural(), q.natural())

    def test_inputs_are_left_untouched(self, name, family):
        sites, reference = world(family)
        before, _ = world(family)
        run_on(METHODS[name](family), sites, reference)
        for site, (x, y) in sites.items():
            assert torch.equal(x, before[site][0])
            assert torch.equal(y, before[site][1])

    def test_sites_see_no_reference_label(self, name, family):
        """Other labels, the same uploads: nothing of them is in the state that sites are sent.

        The prior's two moments are the exception, and are part of the agreed plan; they do not
        reach an upload either.
        """
        method = METHODS[name](family)
        sites, reference = world(family)
        shuffled = reference.targets.flip(0)
        other = dataclasses.replace(
            reference, targets=shuffled if family is Categorical else 2 * shuffled
        )
        digests = []
        for rows in (reference, other):
            prior_free = method.init(rows, rng=generator(0, "init"))
            task = Task(method, prior_free, rows.inputs)
            digests.append([u.digest() for u in InProcess(sites).collect(task)])
        assert digests[0] == digests[1]
        # Beyond that, the state that sites are sent depends on labels by the prior's two numbers.
        states = (method.init(rows, rng=generator(0)) for rows in (reference, other))
        differing = [
            int((a != b).sum())
            for a, b in zip(*(tensors_of(state) for state in states), strict=True)
        ]
        assert sum(differing) <= 2


@pytest.mark.parametrize(
    ("name", "family"), [case for case in CASES if not case.values[0].startswith("distilled")]
)
def test_every_method_can_be_distilled(name, family):
    sites, reference = world(family)
    method = Distilled(METHODS[name](family), STUDENTS[family], SHORT)
    state = run(method, InProcess(sites), reference, seed=0).state
    alone = run(METHODS[name](family), InProcess(sites), reference, seed=0).state
    assert torch.equal(state.teacher.predictive.natural(), alone.predictive.natural())
    assert isinstance(state.student.predict(reference.inputs), family)
    assert state.gap >= 0


@pytest.mark.parametrize("family", [Categorical, Gaussian], ids=lambda family: family.__name__)
@pytest.mark.parametrize("name", SEVERAL_ROUNDS)
def test_rounds_go_on_from_the_state_of_the_last(name, family):
    """Two rounds equal one round, and then one from its state with the second round's draws."""
    method = METHODS[name](family)
    sites, reference = world(family)
    federation = InProcess(sites)
    twice = run(method, federation, reference, seed=0, num_rounds=2).state
    once = run(method, federation, reference, seed=0).state
    uploads = federation.collect(Task(method, once, reference.inputs, round=1))
    total = fold(method.lift(once, upload, reference.inputs) for upload in uploads)
    after = method.finish(once, total, reference, rng=generator(0, "finish", 1))
    assert torch.equal(after.predictive.natural(), twice.predictive.natural())
    assert not torch.equal(once.predictive.natural(), twice.predictive.natural())
