"""Controls against closed forms and independent solvers."""
# ruff: noqa: TID253  (scikit-learn as an oracle)

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize
from sklearn.linear_model import LogisticRegression

from predbayes.api.run import run
from predbayes.errors import ImproperPoolError
from predbayes.exchange.federation import InProcess
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.local import OptimizerSettings, SGDLearner
from predbayes.methods.pooled import Pooled
from predbayes.pools.auto import AutoPool
from predbayes.pools.terms import beta, mixture, tempered
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import Contribution
from predbayes.predictive.selection import OWN
from predbayes.seeding import generator
from predbayes.summand import Collected, fold
from predbayes_lab.baselines.server_only import ServerOnly
from predbayes_lab.baselines.sites_apart import (
    BestSite,
    RidgeStacker,
    SimplexStacking,
    ridge_weights,
    simplex_weights,
)
from tests.core.oracles import random_categorical
from tests.core.pools.test_auto import BOTH, LEARNERS, Blobs, auto, world
from tests.lab.baselines.test_closed_forms import CLASSES, class_world, run_on


def pooled(pool, predictives, reference):
    state = pool.init(reference)
    sites = [Contribution(f"site {k}", p, 10.0 * (k + 1)) for k, p in enumerate(predictives)]
    total = fold(pool.lift(state, site) for site in sites)
    return pool.finish(state, total, reference, rng=generator(0)).predictive


@pytest.fixture
def labelled(rng):
    y = torch.randint(4, (300,), generator=rng)
    return ReferenceRows.of((torch.zeros(300, 1), y)), y


def test_simplex_weights_are_those_of_an_independent_solver(rng):
    log_probs = torch.randn(200, 3, generator=rng, dtype=torch.float64) - 2

    def loss(free):
        weights = np.append(free, 1 - free.sum())
        return -np.log(np.exp(log_probs.numpy()) @ weights).mean()

    best = optimize.minimize(
        loss, [1 / 3, 1 / 3], method="SLSQP", bounds=[(0, 1)] * 2,
        constraints={"type": "ineq", "fun": lambda w: 1 - w.sum()}, options={"ftol": 1e-14},
    )  # fmt: skip
    found = simplex_weights(log_probs)
    assert float(found.sum()) == pytest.approx(1)
    np.testing.assert_allclose(found[:2], best.x, atol=1e-3)


def test_stacking_takes_the_site_that_knows_alone(labelled, rng):
    reference, y = labelled
    sure = torch.full((300, 4), 0.02).scatter(1, y.unsqueeze(1), 0.94)
    useless = Categorical(torch.full((300, 4), 0.25).log())
    found = pooled(SimplexStacking(), [useless, Categorical(sure.log())], reference)
    torch.testing.assert_close(found.probs, sure, atol=1e-4, rtol=1e-3)


def test_labels_that_every_site_rules_out_are_refused():
    with pytest.raises(ImproperPoolError, match="rule out"):
        simplex_weights(torch.full((3, 2), -torch.inf, dtype=torch.float64))


def test_ridge_weights_are_those_of_scikit_learn(rng):
    x = torch.randn(150, 5, generator=rng, dtype=torch.float64)
    y = (x @ torch.randn(5, 3, generator=rng, dtype=torch.float64)).argmax(-1)
    oracle = LogisticRegression(C=1 / 0.7, fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(ridge_weights(x, y, 3, 0.7).T, oracle.coef_, atol=1e-3)


def test_the_stacker_undoes_a_site_that_names_classes_wrongly(labelled, rng):
    """Each class is called the next one: no mixture helps, a regression does."""
    reference, y = labelled
    logits = 3 * torch.nn.functional.one_hot((y + 1) % 4, 4) + torch.randn(300, 4, generator=rng)
    wrong = Categorical.from_natural(logits)
    found = pooled(RidgeStacker(), [wrong, random_categorical(rng, 300, scale=0.1)], reference)
    assert nll(found, y) < 0.5 < 2 < nll(wrong, y)


def test_a_class_without_labels_keeps_a_probability(rng):
    reference = ReferenceRows.of((torch.zeros(30, 1), torch.arange(30) % 3))
    found = pooled(RidgeStacker(), [random_categorical(rng, 30)], reference)
    assert bool((found.probs[:, 3] > 0).all())


def test_the_own_bag_is_the_own_model_of_auto(rng):
    y = torch.randint(2, (60,), generator=rng)
    x = torch.randn(60, 2, generator=rng) + 2.0 * y[:, None]
    reference = ReferenceRows.of((x[:40], y[:40]), evaluate=x[40:])
    learner = SklearnClassifier(LogisticRegression(), 2, size=2)
    seen = []

    def own(*rows, **options):
        seen.append(cross_fitted(learner, *rows, **options))
        return seen[0]

    methods = (Pooled(learner, AutoPool(own=own), "predictions"), ServerOnly(learner, bag=True))
    for method in methods:
        state = method.init(reference, rng=generator(0))
        upload = method.learn(state, (x, y), reference.inputs, rng=generator(0))
        total = method.lift(state, upload, reference.inputs)
        found = method.finish(state, total, reference, rng=generator(1)).predictive
    assert torch.equal(found.log_probs, seen[0].log_probs)


class TestControls:
    def test_server_only_ignores_the_sites(self, rng):
        _learner, _sites, reference = class_world(rng)
        learner = SGDLearner(CLASSES, OptimizerSettings(num_epochs=3))
        x = torch.randn(30, 2, generator=rng)
        worlds = [{"a": (x, torch.full((30,), k))} for k in (0, 1)]
        first, second = (run_on(ServerOnly(learner), w, reference).predictive for w in worlds)
        assert torch.equal(first.natural(), second.natural())
        labelled = (reference.inputs[:6], reference.targets)
        alone = learner.fit(labelled, rng=generator(0, "finish", 0)).predict(reference.inputs)
        assert torch.equal(first.natural(), alone.natural())

    def test_best_site_is_the_one_with_the_least_nll_on_the_labels(self, rng):
        learner, sites, reference = class_world(rng)
        own = {
            site: CLASSES.predict(learner.results[int(site)], reference.inputs) for site in sites
        }
        for predictive in own.values():
            labels = predictive.log_probs.argmax(-1)[:6]  # all that this site would say
            state = run_on(Pooled(learner, BestSite()), sites, replace(reference, targets=labels))
            scores = {site: metrics.nll(p[:6], labels) for site, p in own.items()}
            assert state.site == min(scores, key=scores.get)
            assert torch.equal(state.predictive.natural(), own[state.site].natural())

    def test_a_site_without_finite_predictions_is_not_the_best(self, rng):
        learner, sites, reference = class_world(rng)
        broken = WeightSamples(
            {
                name: torch.full_like(value, math.inf)
                for name, value in learner.results[1].parameters.items()
            },
            {},
        )
        method = Pooled(replace(learner, results=learner.results | {1: broken}), BestSite())
        state = method.init(reference, rng=rng)
        lifted = [
            Collected(
                Contribution(
                    site, CLASSES.predict(method.learner.results[int(site)], reference.inputs), 1
                )
            )
            for site in sites
        ]
        assert method.finish(state, fold(lifted), reference, rng=rng).site in {"3", "4"}
        with pytest.raises(ImproperPoolError, match="finite NLL"):
            method.finish(state, lifted[0].__class__(lifted[0].items[0]), reference, rng=rng)


class TestItPays:
    @BOTH
    def test_with_skewed_sites_and_labels_nothing_else_is_better(self, family):
        """On rows that nothing was tuned or fitted on, over four worlds."""
        learner = LEARNERS[family]
        methods = (
            auto(family),
            Pooled(learner, beta(), send="predictions"),
            Pooled(learner, mixture(), send="predictions"),
            Pooled(learner, tempered(), send="predictions"),
            ServerOnly(learner),
        )
        losses = torch.zeros(len(methods))
        for seed in range(4):
            sites, reference, y = world(family, num_labels=150, num_evaluate=2000, seed=seed)
            states = [run(method, InProcess(sites), reference, seed=0).state for method in methods]
            losses += torch.tensor([nll(s.predictive[reference.evaluate], y) for s in states])
        assert float(losses[0]) < float(losses[1:].min())

    def test_where_sites_know_nothing_the_own_model_is_found(self):
        """Labels at the sites are drawn by lot: whoever listens to them loses."""
        sites, reference, y = world(num_labels=300, num_evaluate=2000)
        lost = {
            name: (x, torch.randint(3, (len(x),), generator=generator(0, name)))
            for name, (x, _) in sites.items()
        }
        state, server = (
            run(method, InProcess(lost), reference, seed=0).state
            for method in (auto(), ServerOnly(Blobs()))
        )
        assert OWN in state.choice.spec.components
        ours, theirs = (nll(s.predictive[-2000:], y) for s in (state, server))
        assert ours <= theirs + 0.02  # its models have seen four rows of five
