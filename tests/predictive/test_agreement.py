"""One number of a site, found under masks: what it is, what it cannot tell, and whom it finds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes.errors import PoolError
from predbayes.exchange.masking import sum_of_masks
from predbayes.predictive.agreement import LEAST_OF_CLASS, Weighing, standing_out
from predbayes.predictive.families import Categorical
from predbayes.predictive.fixed import FixedPoint
from predbayes.predictive.words import to_words
from predbayes.study.result.screening import _categorical_scores

FORM = FixedPoint(400, 3, -12.0, 100_000, 1_000, 300)


def case(seed, sharpness=3.0):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randperm(400, generator=rng)[:300]
    targets = torch.randint(3, (300,), generator=rng)
    return rows, targets, Categorical.from_natural(sharpness * torch.randn(400, 3, generator=rng))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(0.1, 8))
def test_under_a_mask_it_is_the_sum_of_the_score_test(seed, sharpness):
    rows, targets, predictive = case(seed, sharpness)
    weighing = Weighing.of(rows, targets, 3)
    words, mask = (
        to_words(FORM, predictive, 90, torch.full((3,), 30.0)),
        sum_of_masks([seed.to_bytes(32, "big")], FORM.size),
    )
    hidden = weighing.total(FORM, words + mask) - weighing.total(FORM, mask)
    found = weighing.agreement(FORM, hidden)
    # Without the bound of screening on log p, which is -4.6: these are all above.
    if float(predictive.log_probs.min()) > -4.6:
        scores, _, _ = _categorical_scores(predictive[rows], targets)
        assert found == pytest.approx(float(scores.mean()), abs=1e-6)
    shares = torch.bincount(targets, minlength=3).double() / 300
    floored = predictive.bounded(-12.0).natural().double()[rows]
    right = floored.gather(1, targets[:, None])[:, 0] - floored @ shares
    assert found == pytest.approx(float(right.mean()), abs=1e-6)


def test_base_rates_add_nothing():
    rows, targets, _ = case(0)
    constant = Categorical(torch.tensor([[0.9, 0.06, 0.04]]).log().repeat(400, 1))
    words = to_words(FORM, constant, 90, torch.full((3,), 30.0))
    weighing = Weighing.of(rows, targets, 3)
    assert weighing.agreement(FORM, weighing.total(FORM, words)) == pytest.approx(0, abs=1e-6)


def test_no_choice_of_labels_makes_it_tell_of_few_rows():
    """A class of one row would weigh as much as all others together."""
    rows, targets, _ = case(0)
    targets = torch.zeros_like(targets)
    for few in (1, LEAST_OF_CLASS - 1):
        targets[:few] = 1
        with pytest.raises(PoolError, match="10 rows of each"):
            Weighing.of(rows, targets, 3)
    targets[:40], targets[40] = 1, 2
    weighing = Weighing.of(rows, targets, 3)
    assert len(weighing) == 299
    assert not weighing.weights[:, 2].any()
    by_row = weighing.weights.abs().amax(1)
    assert int((by_row > 0.5 * by_row.max()).sum()) >= LEAST_OF_CLASS
    assert not weighing.weights.sum(1).any()


def test_it_takes_more_than_a_few_labels():
    with pytest.raises(PoolError, match="30 labelled rows"):
        Weighing.of(torch.arange(29), torch.arange(29) % 2, 3)


def test_masks_of_another_upload_are_noticed():
    rows, targets, predictive = case(1)
    words = to_words(FORM, predictive, 90, torch.full((3,), 30.0))
    weighing = Weighing.of(rows, targets, 3)
    foreign = sum_of_masks([b"a" * 32], FORM.size)
    with pytest.raises(PoolError, match="masks are not of this upload"):
        weighing.agreement(FORM, weighing.total(FORM, words + foreign))


def test_nobody_is_judged_where_most_know_nothing():
    assert standing_out({"a": -0.1, "b": 0.0, "c": 5.0}) == {}
