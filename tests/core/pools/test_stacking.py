"""Controls against closed forms and independent solvers."""
# ruff: noqa: TID253  (scikit-learn as an oracle)

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize
from sklearn.linear_model import LogisticRegression

from predbayes.errors import ImproperPoolError
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.estimators import SklearnClassifier
from predbayes.methods.pooled import Pooled
from predbayes.methods.server_only import ServerOnly
from predbayes.pools.auto import AutoPool
from predbayes.pools.stacking import (
    RidgeStacker,
    SimplexStacking,
    ridge_weights,
    simplex_weights,
)
from predbayes.pools.terms import log_pool
from predbayes.predictive.families import Categorical
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import Contribution
from predbayes.seeding import generator
from predbayes.summand import fold
from tests.core.oracles import random_categorical


def pooled(pool, predictives, reference):
    state = pool.init(reference)
    sites = [Contribution(f"site {k}", p, 10.0 * (k + 1)) for k, p in enumerate(predictives)]
    total = fold(pool.lift(state, site) for site in sites)
    return pool.finish(state, total, reference, rng=generator(0)).predictive


@pytest.fixture
def labelled(rng):
    y = torch.randint(4, (300,), generator=rng)
    return ReferenceRows.of((torch.zeros(300, 1), y)), y


def test_the_log_pool_is_the_mean_of_logarithms_by_rows(labelled, rng):
    first, second = (random_categorical(rng, 300) for _ in range(2))
    expected = (first.log_probs / 3 + 2 * second.log_probs / 3).log_softmax(-1)
    found = pooled(log_pool(), [first, second], labelled[0])
    torch.testing.assert_close(found.log_probs, expected)


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
