"""Sums over held-out rows, and somebody who knows people by their columns and has the model.

Six digits over five rows fitted one hypothesis of 4.6 million: who was held out, and each one's
diagnosis. Now there is nothing to send of fewer than 30 rows, and of 30 rows the sums fit so many
hypotheses that already those nearest to the truth are many.

A model can also be made to ask about one person. It says the same of all others, so that whatever
they have adds the same, and something else of her. What is said of her is clipped to what is said
of others, so her outcome changes no sum but as anybody's does.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from predbayes.errors import DataError
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import generator
from predbayes_study.plan.schema import Plan
from predbayes_study.result.evaluation import evaluate, evaluation_upload
from predbayes_study.result.statistics.disclosure import FEWEST_ROWS
from predbayes_study.result.statistics.statistic import HeldOutRows

PLAN = Plan.loads("""
format = 1
name = "sums"
target = { name = "disease", task = "classification", classes = ["no", "yes"] }
reference = {}
[columns]
x = { type = "number" }
""")
NUMBERS = Plan.loads("""
format = 1
name = "sums"
target = { name = "days", task = "regression" }
reference = {}
[columns]
x = { type = "number" }
""")
NUM_CANDIDATES = 60
MEASURES = ("nll", "brier", "accuracy")
SITES = range(2)


def people(seed):
    """What the model says of each candidate, and the diagnosis."""
    rng = generator(seed, "people")
    odds = 1.5 * torch.randn(NUM_CANDIDATES, generator=rng)
    predictive = Categorical(torch.stack([-odds, odds], 1).div(2).log_softmax(1))
    return predictive, torch.bernoulli(predictive.moments()[:, 1], generator=rng).long()


def values(predictive):
    """What each candidate with each diagnosis adds to the sums, (candidates, diagnoses, sums)."""
    log_probs = predictive.log_probs.double().numpy()
    probs = np.exp(log_probs)
    brier = np.stack([((probs - np.eye(2)[c]) ** 2).sum(1) for c in (0, 1)], 1)
    right = np.stack([log_probs.argmax(1) == c for c in (0, 1)], 1)
    return np.stack([-log_probs, brier, right, log_probs**2, brier**2], 2)


def as_sent(sums, num_rows, digits=3):
    """What leaves: totals, and spreads about the mean, rounded; shares as they are."""
    totals, squares = sums[..., :3], sums[..., 3:]
    spreads = squares - totals[..., :2] ** 2 / num_rows
    return np.concatenate(
        [rounded(totals[..., :2], digits), totals[..., 2:], rounded(spreads, digits)], -1
    )


def rounded(numbers, digits):
    scale = 10.0 ** (digits - 1 - np.floor(np.log10(np.abs(numbers))))
    return np.round(numbers * scale) / scale


def num_fitting(seed, digits):
    """How many of the hypotheses nearest to the truth give the same sums as the truth."""
    predictive, targets = people(seed)
    told, order = values(predictive), np.random.default_rng(seed).permutation(NUM_CANDIDATES)
    held_out, others = order[:FEWEST_ROWS], order[FEWEST_ROWS:]
    labels = targets.numpy()
    true = told[held_out, labels[held_out]].sum(0)
    pairs = np.array(list(itertools.combinations(range(len(held_out)), 2)))
    out = told[held_out, labels[held_out]]
    leaves = out[pairs[:, 0]] + out[pairs[:, 1]]
    coming = np.concatenate(
        [
            told[others[pairs[:, 0]], first] + told[others[pairs[:, 1]], second]
            for first, second in itertools.product((0, 1), repeat=2)
        ]
    )
    target = as_sent(true, FEWEST_ROWS, digits)
    fitting = 0
    for left in leaves:
        sums = as_sent(true - left + coming, FEWEST_ROWS, digits)
        fitting += int(np.isclose(sums, target, rtol=1e-9).all(1).sum())
    return fitting


def test_what_is_computed_here_is_what_leaves():
    predictive, targets = people(0)
    found = evaluate(PLAN, predictive, targets, "0" * 64).metrics
    clipped = values(HeldOutRows(PLAN, predictive, targets).said.predictive)
    sums = clipped[np.arange(NUM_CANDIDATES), targets.numpy()].sum(0)
    told = as_sent(sums, NUM_CANDIDATES)
    assert [found[name].total for name in MEASURES] == pytest.approx(told[:3])
    for name, spread in zip(("nll", "brier"), told[3:], strict=True):
        total = found[name].total
        assert found[name].squares - total**2 / NUM_CANDIDATES == pytest.approx(spread, rel=1e-3)


def test_of_five_rows_nothing_leaves():
    predictive, targets = people(0)
    with pytest.raises(DataError, match="5 held-out rows are fewer than 30"):
        evaluation_upload(PLAN, "Basel", predictive[:5], targets[:5], "0" * 64)


def test_sums_do_not_name_the_people_they_are_sums_of():
    """Of 760,000 hypotheses that differ in two people, hundreds fit; with six digits none does."""
    assert min(num_fitting(seed, digits=3) for seed in SITES) >= 50
    assert max(num_fitting(seed, digits=6) for seed in SITES) == 0


@pytest.mark.parametrize("others", [0.0, 2.2, -2.2])
@pytest.mark.parametrize("hers", [0.0, 30.0, -30.0, 0.5])
@pytest.mark.parametrize("num_rows", [30, 240])
def test_a_model_that_is_sure_of_one_person_does_not_tell_her_outcome(others, hers, num_rows):
    """Two sites with as many right answers, one where she is ill, send the same to the bit."""
    odds = torch.full((num_rows,), others)
    odds[17] = hers
    predictive = Categorical(torch.stack([-odds, odds], 1).div(2).log_softmax(1))
    any_classes = torch.zeros(num_rows, dtype=torch.long)
    right = HeldOutRows(PLAN, predictive, any_classes).said.predictive.log_probs.argmax(1)
    well, ill = right.clone(), right.clone()
    well[3], ill[17] = 1 - right[3], 1 - right[17]  # somebody is not what the model says
    sent = [evaluate(PLAN, predictive, targets, "0" * 64) for targets in (well, ill)]
    assert sent[0].metrics == sent[1].metrics
    assert sent[0].scores == sent[1].scores


def test_a_few_people_with_codes_of_their_own_stand_out_no_more_than_five():
    odds = torch.zeros(60)
    odds[:4] = torch.tensor([8.0, 4.0, 2.0, 1.0])  # whose sum would tell all four
    predictive = Categorical(torch.stack([-odds, odds], 1).div(2).log_softmax(1))
    found = HeldOutRows(PLAN, predictive, torch.zeros(60, dtype=torch.long)).said.predictive
    assert found.log_probs.exp().numpy() == pytest.approx(0.5)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1e-3), (50.0, 1.0), (0.0, 1e2)])
def test_one_of_numbers_is_neither_surer_of_her_nor_far_away(mean, std):
    means, variances = torch.full((40,), 3.0), torch.full((40,), 4.0)
    means[17], variances[17] = mean, std**2
    rows = HeldOutRows(NUMBERS, Gaussian(means, variances), 3 + torch.arange(40.0).sin())
    found = rows.said.predictive
    assert set(found.mean.tolist()) == {3.0}
    assert set(found.var.tolist()) == {4.0}


def test_no_plan_gives_several_numbers_room_to_be_far_away():
    """The unit of a target is the plan's: here the site's own numbers are tiny in it."""
    targets, means = 1e-3 * torch.arange(60.0).sin(), torch.zeros(60)
    means[:8] = 4.0  # scales of the plan, of which the site's rows have a thousandth
    found = HeldOutRows(NUMBERS, Gaussian(means, torch.ones(60)), targets).said.predictive
    assert float(found.mean.abs().max()) <= 6 * float(targets.std())


def test_an_honest_model_scores_nearly_the_same():
    rng = generator(0, "honest")
    odds = 1.5 * torch.randn(300, generator=rng)
    predictive = Categorical(torch.stack([-odds, odds], 1).div(2).log_softmax(1))
    targets = torch.bernoulli(predictive.moments()[:, 1], generator=rng).long()
    plain = -predictive.log_probs[torch.arange(300), targets].sum()
    found = evaluate(PLAN, predictive, targets, "0" * 64).metrics["nll"].total
    assert found == pytest.approx(float(plain), rel=0.02)
