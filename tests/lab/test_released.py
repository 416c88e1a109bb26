"""The released code's scores, against a loop over single rows."""

from __future__ import annotations

import math

import pytest
import torch

from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.pooling import PredictiveSum
from predbayes_lab.released import released_beta, released_nll

ROWS = 230  # two batches of the released code and a part of one


@pytest.fixture
def gaussian(rng):
    mean = torch.randn(ROWS, generator=rng, dtype=torch.float64)
    return Gaussian(mean, torch.rand(ROWS, generator=rng, dtype=torch.float64) + 0.5)


@pytest.fixture
def categorical(rng):
    return Categorical(torch.randn(ROWS, 3, generator=rng, dtype=torch.float64).log_softmax(-1))


def batches():
    return [range(start, min(start + 100, ROWS)) for start in range(0, ROWS, 100)]


def loss(predictive, i, y):
    """Minus the log density of one target, without its constant."""
    mean, var = float(predictive.mean[i]), float(predictive.var[i])
    return 0.5 * (math.log(var) + (float(y) - mean) ** 2 / var)


def test_a_slipped_score_is_of_every_prediction_against_every_target_of_its_batch(gaussian, rng):
    y = torch.randn(ROWS, generator=rng, dtype=torch.float64)
    slipped = sum(
        sum(loss(gaussian, i, y[j]) for i in rows for j in rows) / len(rows) ** 2
        for rows in batches()
    )
    meant = sum(sum(loss(gaussian, i, y[i]) for i in rows) / len(rows) for rows in batches())
    assert released_nll(gaussian, y, slipped=True) == pytest.approx(slipped, abs=1e-9)
    assert released_nll(gaussian, y, slipped=False) == pytest.approx(meant, abs=1e-9)


def test_a_score_of_classes_is_a_sum_of_batch_means_and_never_slipped(categorical, rng):
    y = torch.randint(3, (ROWS,), generator=rng)
    meant = sum(
        sum(-float(categorical.log_probs[i, y[i]]) for i in rows) / len(rows) for rows in batches()
    )
    for slipped in (False, True):
        assert released_nll(categorical, y, slipped=slipped) == pytest.approx(meant, abs=1e-9)


@pytest.mark.parametrize("num_epochs", [1, 10])
def test_beta_moves_from_a_half_by_no_more_than_adams_steps(categorical, rng, num_epochs):
    other = Categorical(torch.randn(ROWS, 3, generator=rng, dtype=torch.float64).log_softmax(-1))
    total = PredictiveSum.of(categorical, 50) + PredictiveSum.of(other, 50)
    product = total.family.from_natural(total.component("product"))
    likely = product.log_probs.argmax(-1)  # the product is surer of it than the mixture is
    steps = num_epochs * len(batches())
    beta = released_beta(total, likely, num_epochs=num_epochs)
    assert 0.5 < beta <= 0.5 + 0.01 * steps + 1e-9
    unlikely = product.log_probs.argmin(-1)
    assert 0.5 - 0.01 * steps - 1e-9 <= released_beta(total, unlikely, num_epochs=num_epochs) < 0.5


def test_beta_of_a_regression_follows_the_slipped_loss(rng):
    # Both sites are right to the row, and sure: scored against all targets of a batch that is far
    # too sure. The slipped loss therefore leaves the product for the wider mixture.
    y = torch.randn(ROWS, generator=rng, dtype=torch.float64)
    sure = Gaussian(y, torch.full_like(y, 0.01))
    total = PredictiveSum.of(sure, 50) + PredictiveSum.of(sure, 50)
    assert released_beta(total, y, num_epochs=1) < 0.5
