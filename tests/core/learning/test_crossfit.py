"""Predictives of labelled rows by models that have not seen them."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from predbayes.errors import DivergedError
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.local import Learner
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.folds import NUM_REPEATS
from predbayes.seeding import generator

NUM_LABELS, NUM_ROWS, NUM_CLASSES = 23, 31, 3


class Memory(Learner):
    """Knows the label of every row that it has seen; of others, the frequencies of the labels."""

    def fit(self, rows, *, rng):
        inputs, targets = rows
        frequencies = (torch.bincount(targets, minlength=NUM_CLASSES) + 1.0).log()

        class Memories:
            def predict(self, new):
                logits = frequencies.repeat(len(new), 1)
                same = (new[:, None, 0] == inputs[None, :, 0]).float()
                logits += 30 * same @ torch.nn.functional.one_hot(targets, NUM_CLASSES).float()
                return Categorical.from_natural(logits)

        return Memories()


class Numbered(Learner):
    """Its k-th model predicts k beyond the input, with variance 1 + k; it remembers its rows."""

    def __init__(self, *, splits_variance=True):
        self.seen = []
        self.draws = []
        self.splits_variance = splits_variance

    def fit(self, rows, *, rng):
        index = len(self.seen)
        self.seen.append(rows)
        self.draws.append(float(torch.rand((), generator=rng)))
        splits = self.splits_variance

        class Model:
            def predict(self, new):
                var = torch.full((len(new),), 1.0 + index)
                return Gaussian(new[:, 0] + index, var, var / 2 if splits else None)

        return Model()


@pytest.fixture
def rows(rng):
    inputs = torch.arange(float(NUM_ROWS)).unsqueeze(-1)
    return inputs, torch.randint(NUM_CLASSES, (NUM_LABELS,), generator=rng)


@pytest.fixture
def numbered(rows):
    learner = Numbered()
    inputs, _ = rows
    targets = 100 * inputs[:NUM_LABELS, 0]
    fitted = cross_fitted(learner, inputs, targets, num_folds=4, num_repeats=3, rng=generator(0))
    return learner, fitted


def mean_of_numbered(models):
    """Of models k: their mean beyond the input, variance, and epistemic variance."""
    mean = sum(models) / len(models)
    spread = sum((k - mean) ** 2 for k in models) / len(models)
    return mean, 1 + mean + spread, (1 + mean) / 2 + spread


def test_a_row_is_predicted_by_the_models_that_did_not_see_it(rows, numbered):
    learner, predictive = numbered
    x = rows[0][:, 0]
    assert len(predictive) == NUM_ROWS
    for row in range(NUM_LABELS):
        models = [k for k, (seen, _) in enumerate(learner.seen) if row not in seen]
        assert [k // 4 for k in models] == [0, 1, 2]  # one of each repeat
        mean, var, epistemic = mean_of_numbered(models)
        assert float(predictive.mean[row] - x[row]) == pytest.approx(mean, abs=1e-5)
        assert float(predictive.var[row]) == pytest.approx(var)
        assert float(predictive.epistemic_var[row]) == pytest.approx(epistemic)


def test_in_every_repeat_each_part_is_left_out_once_and_parts_are_of_one_size(numbered):
    learner, _ = numbered
    assert len(learner.seen) == 3 * 4
    for repeat in range(3):
        seen = [rows for rows, _ in learner.seen[4 * repeat : 4 * repeat + 4]]
        assert sorted(NUM_LABELS - len(rows) for rows in seen) == [5, 6, 6, 6]


def test_elsewhere_models_are_averaged_as_on_labelled_rows_and_then_log_linearly(rows, numbered):
    """One of each repeat; of the four means precisions are averaged, and precision × mean."""
    _, predictive = numbered
    means, variances, epistemic = torch.tensor(
        [mean_of_numbered([k, 4 + k, 8 + k]) for k in range(4)]
    ).T
    x = rows[0][NUM_LABELS:, 0]
    precision = (1 / variances).mean()
    expected = ((x[:, None] + means) / variances).mean(1) / precision
    elsewhere = predictive[NUM_LABELS:]
    torch.testing.assert_close(elsewhere.mean, expected)
    torch.testing.assert_close(elsewhere.var, (1 / precision).expand(8))
    share = (epistemic / variances).mean()
    torch.testing.assert_close(elsewhere.epistemic_var, (share / precision).expand(8))


@pytest.mark.parametrize("num_repeats", [1, 2, 5])
def test_labelled_rows_and_others_have_the_same_log_odds_on_average(num_repeats):
    """Models that are noise about one truth.

    The mean of ever so many of them is flatter than a mean of R: if other rows had that, a weight
    that is right on labelled rows would be too small there.
    """

    class Noise(Learner):
        def fit(self, rows, *, rng):
            class Model:
                def predict(self, new):
                    noise = 3 * torch.randn(len(new), 2, generator=rng, dtype=torch.float64)
                    return Categorical.from_natural(torch.tensor([3.0, 0.0]) + noise)

            return Model()

    num_labels = 2000
    inputs, targets = torch.zeros(2 * num_labels, 1), torch.zeros(num_labels, dtype=torch.long)
    fitted = cross_fitted(
        Noise(), inputs, targets, num_repeats=num_repeats, rng=generator(num_repeats)
    )
    odds = fitted.log_probs[:, 0] - fitted.log_probs[:, 1]
    labelled, others = odds[:num_labels], odds[num_labels:]
    error = ((labelled.var() + others.var()) / num_labels).sqrt()
    assert abs(float(labelled.mean() - others.mean())) < 3 * float(error)


def test_a_row_does_not_depend_on_its_own_label(rows):
    """Bit by bit; nor on the labels of its part. Every other row does."""
    inputs, targets = rows
    once = partial(cross_fitted, Memory(), inputs, num_repeats=1)
    before = once(targets, rng=generator(0)).log_probs
    for row in range(NUM_LABELS):
        changed = targets.clone()
        changed[row] = (changed[row] + 1) % NUM_CLASSES
        after = once(changed, rng=generator(0)).log_probs
        same = (after == before).all(-1)
        assert bool(same[row])
        assert int(same.sum()) in (4, 5)  # 23 rows in five parts
        assert not bool(same[NUM_LABELS:].any())


def test_the_generator_deals_the_parts_and_gives_each_model_its_own(rows):
    inputs, targets = rows
    first, same, other = (Numbered() for _ in range(3))
    for learner, seed in ((first, 0), (same, 0), (other, 1)):
        cross_fitted(learner, inputs, targets.float(), rng=generator(seed))
    assert len(set(first.draws)) == len(first.draws) == NUM_REPEATS * 5
    assert first.draws == same.draws
    assert first.draws != other.draws
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first.seen, same.seen, strict=True))
    assert any(
        a[0].shape != b[0].shape or not torch.equal(a[0], b[0])
        for a, b in zip(first.seen, other.seen, strict=True)
    )


def test_a_fit_that_diverges_begins_again_with_half_the_step(rows, caplog):
    """One of many must not cost the whole model, whose step nobody can change any more."""

    class Steep(Memory):
        def __init__(self, step):
            self.step = step

        def slower(self):
            return Steep(self.step / 2)

        def fit(self, rows, *, rng):
            if self.step > 0.1 and 0 not in rows[0][:, 0]:  # without the first row it diverges
                raise DivergedError("training diverged at step 556; lower the step size")
            return super().fit(rows, rng=rng)

    inputs, targets = rows
    found = cross_fitted(Steep(0.4), inputs, targets, num_folds=4, rng=generator(0))
    expected = cross_fitted(Memory(), inputs, targets, num_folds=4, rng=generator(0))
    assert torch.equal(found.log_probs, expected.log_probs)
    # One part of each repeat is without that row, and takes two steps to get there.
    assert caplog.text.count("begins again with half the step") == 2 * NUM_REPEATS


def test_fewer_labels_than_parts_are_each_left_out(rows):
    inputs, targets = rows
    learner = Numbered()
    predictive = cross_fitted(
        learner, inputs, targets[:3].float(), num_folds=5, num_repeats=1, rng=generator(0)
    )
    models = (predictive.mean[:3] - inputs[:3, 0]).tolist()
    assert sorted(models) == [0, 1, 2]
    for row, model in enumerate(models):
        assert row not in learner.seen[int(model)][0]
