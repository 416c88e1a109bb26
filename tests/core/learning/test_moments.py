"""A head from sums of moments: exact, the same for every split, and as good as its oracle."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes.errors import PredbayesError, UploadError
from predbayes.learning.moments import Moments, RandomFeatures
from predbayes.predictive.metrics import nll
from predbayes.seeding import generator

FEATURES = RandomFeatures(3, 20)
discriminant_analysis = pytest.importorskip("sklearn.discriminant_analysis")
linear_model = pytest.importorskip("sklearn.linear_model")


def rows(num: int, num_classes: int | None, seed: int = 0):
    rng = generator(seed, "rows")
    inputs = torch.randn(num, 3, generator=rng)
    signal = torch.stack([inputs[:, 0], inputs[:, 1].sin() * 2, inputs[:, 2].square()], 1)
    noise = torch.randn(num, 3, generator=rng)
    if num_classes is None:
        return inputs, signal.sum(1) / 3 + 0.3 * noise[:, 0]
    return inputs, (signal + 0.5 * noise)[:, :num_classes].argmax(1)


@pytest.mark.parametrize("num_classes", [None, 3])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), num_parts=st.integers(1, 50))
def test_sums_are_the_same_integers_for_every_split_and_order(num_classes, seed, num_parts):
    inputs, targets = rows(200, num_classes)
    whole = Moments.of(FEATURES, inputs, targets, num_classes)
    order = torch.randperm(200, generator=generator(seed, "order"))
    parts = [
        Moments.of(FEATURES, inputs[part], targets[part], num_classes)
        for part in order.chunk(num_parts)
    ]
    total = parts[0]
    for part in parts[1:]:
        total.add_(Moments.from_arrays(FEATURES, num_classes, part.arrays()))
    assert torch.equal(total.sums, whole.sums)
    assert total.num_rows == 200


def test_features_are_those_of_a_gaussian_kernel():
    features = RandomFeatures(3, 20_000, scales=(1.0,))
    inputs = rows(30, None)[0]
    found = features(inputs, 1.0)[:, 4:]
    kernel = (-torch.cdist(inputs, inputs).double().square() / (2 * 3)).exp()
    assert (found @ found.T - kernel).abs().max() < 0.03


def test_a_number_is_predicted_as_by_bayesian_ridge_regression_on_the_rows():
    inputs, targets = rows(400, None)
    features = RandomFeatures(3, 20, scales=(1.0,))
    head = Moments.of(features, inputs, targets, None).head()
    phi = features(inputs, 1.0)[:, 1:].numpy()
    flat = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0.0)
    oracle = linear_model.BayesianRidge(**flat, tol=1e-8, max_iter=10_000)
    oracle.fit(phi, targets.numpy())
    new = rows(100, None, seed=1)[0]
    mean, std = oracle.predict(features(new, 1.0)[:, 1:].numpy(), return_std=True)
    found = head.predict(new)
    # The oracle does not shrink its intercept, and rounds nothing.
    assert (found.mean - torch.tensor(mean)).abs().max() < 0.02
    assert (found.var.sqrt() / torch.tensor(std) - 1).abs().max() < 0.02


def test_two_classes_are_told_apart_as_by_fishers_discriminant():
    inputs, targets = rows(4000, 2)
    features = RandomFeatures(3, 20, scales=(1.0,))
    head = Moments.of(features, inputs, targets, 2).head()
    new = rows(200, 2, seed=1)[0]
    phi, at = features(inputs, 1.0)[:, 1:], features(new, 1.0)[:, 1:]
    oracle = discriminant_analysis.LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-9)
    oracle.fit(phi.numpy(), targets.numpy())
    expected = torch.tensor(oracle.decision_function(at.numpy()))
    log_probs = head.predict(new).log_probs.double()
    found = log_probs[:, 1] - log_probs[:, 0]
    assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.995
    slope = (found * expected).sum() / expected.square().sum()
    assert slope == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("num_classes", [None, 2, 3])
def test_more_than_the_marginal_is_learnt_and_intervals_are_right(num_classes):
    inputs, targets = rows(1000, num_classes)
    new, truth = rows(1000, num_classes, seed=1)
    predictive = Moments.of(FEATURES, inputs, targets, num_classes).head().predict(new)
    if num_classes is None:
        marginal = 0.5 * math.log(2 * math.pi * float(targets.var())) + 0.5
        within = (truth - predictive.mean).abs() <= 1.6449 * predictive.var.sqrt()
        assert float(within.float().mean()) == pytest.approx(0.9, abs=0.03)
    else:
        marginal = math.log(num_classes)
    assert nll(predictive, truth) < 0.8 * marginal


def test_a_class_that_nobody_has_is_rare_and_not_impossible():
    inputs, targets = rows(300, 2)
    found = Moments.of(FEATURES, inputs, targets, 4).head().predict(inputs).log_probs.exp()
    assert found[:, 2:].allclose(torch.tensor(1e-3))
    assert found.sum(1).allclose(torch.ones(300))


def test_more_features_than_rows_still_give_a_distribution():
    inputs, targets = rows(15, 3)
    found = Moments.of(RandomFeatures(3, 300), inputs, targets, 3).head().predict(inputs)
    assert bool(found.log_probs.isfinite().all())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda sent: sent[:, :-1], "as agreed"),
        (lambda sent: sent.double(), "as agreed"),
        (lambda sent: sent * 0, "no rows"),
        (lambda sent: sent + (torch.arange(sent.shape[1]) == 0), "no rows"),
        (lambda sent: sent + (torch.arange(sent.shape[1]) == 1) * 2**50, "larger than"),
        (lambda sent: -sent, "no rows"),
        (lambda sent: sent * 2**22, "too many"),
        (lambda sent: torch.where(torch.arange(sent.shape[1]) == 1, -(2**63), sent), "larger than"),
    ],
)
def test_sums_that_no_rows_have_are_refused(change, told):
    inputs, targets = rows(50, 3)
    sent = Moments.of(FEATURES, inputs, targets, 3).arrays()["moments"]
    with pytest.raises(UploadError, match=told):
        Moments.from_arrays(FEATURES, 3, {"moments": change(sent)})


def test_moments_of_other_features_do_not_add():
    inputs, targets = rows(50, 3)
    one = Moments.of(FEATURES, inputs, targets, 3)
    with pytest.raises(UploadError, match="do not add"):
        one.add_(Moments.of(RandomFeatures(3, 20, seed=1), inputs, targets, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomFeatures(0),
        lambda: RandomFeatures(3, scales=()),
        lambda: RandomFeatures(3, scales=(0.0,)),
        lambda: Moments.of(FEATURES, torch.zeros(5, 4), torch.zeros(5), None),
        lambda: Moments.of(FEATURES, torch.zeros(5, 3), torch.full((5,), 100.0), None),
        lambda: Moments.of(FEATURES, torch.full((5, 3), math.nan), torch.zeros(5), None),
        lambda: Moments.of(FEATURES, torch.zeros(5, 3), torch.full((5,), 3), 3),
    ],
)
def test_what_cannot_be_summed_is_refused(make):
    with pytest.raises(PredbayesError):
        make()


def test_moments_of_more_rows_than_fit_do_not_add():
    inputs, targets = rows(50, 3)
    one = Moments.of(FEATURES, inputs, targets, 3)
    many = Moments(FEATURES, 3, one.sums * (2**26 // 50))
    with pytest.raises(UploadError, match="no more"):
        one.add_(many)


def test_very_many_absent_classes_leave_a_distribution():
    inputs, targets = rows(60, 2)
    features = RandomFeatures(3, 2, scales=(1.0,))
    found = Moments.of(features, inputs, targets, 1500).head().predict(inputs[:2])
    assert found.log_probs.exp().sum(1).allclose(torch.ones(2))
