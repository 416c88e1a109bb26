"""A model of the labelled rows that predicts each of them as if it had not seen it.

The rows are dealt into parts; a model is fitted without each part and predicts it. So predictives
on labelled rows are as honest as elsewhere, and may be weighed there against models that never saw
those rows (stacking; Wolpert, 1992). All of it is repeated with other parts, and a labelled row has
the mean of the R models that have not seen it, one of each repeat.

Other rows are new to all R F models. The mean of them all would be flatter than any mean of R, so
that what is weighed on labelled rows is too unsure elsewhere. Therefore models are averaged R at a
time, one of each repeat, as on labelled rows; and these F predictives, whose coordinates have each
the law that they have on labelled rows, are averaged in natural coordinates, in which pools are
linear: on average over models what a pool gets is the same on rows of either kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.learning.local import Learner, fit_with_retries
from predbayes.predictive.families import Gaussian, Predictive, average, joined
from predbayes.predictive.folds import NUM_REPEATS, Folds, folds, in_row_order
from predbayes.seeding import split


def cross_fitted(
    learner: Learner,
    inputs: Tensor,
    targets: Tensor,
    *,
    num_folds: int = 5,
    num_repeats: int = NUM_REPEATS,
    rng: torch.Generator,
) -> Predictive:
    """Predictives on all inputs, of which the first are labelled.

    Args:
        learner: What is fitted to the labelled rows, repeats × folds times.
        inputs: Reference inputs, labelled ones first.
        targets: The labels.
        num_folds: Parts of the rows, in each repeat.
        num_repeats: How often rows are dealt into parts.
        rng: Which row is in which part, and the learner's randomness.
    """
    if num_repeats < 1:
        raise TrainingError(f"num_repeats must be at least 1, not {num_repeats}")
    repeats = [
        _Repeat.fit(learner, inputs, targets, num_folds, own) for own in split(rng, num_repeats)
    ]
    labelled = _mean([repeat.held_out() for repeat in repeats])
    columns = zip(*(repeat.predictives for repeat in repeats), strict=True)
    elsewhere = _log_mean([_mean([p[len(targets) :] for p in column]) for column in columns])
    return joined([labelled, elsewhere])


@dataclass(frozen=True, slots=True)
class _Repeat:
    """One deal of the labelled rows, and on all inputs the models fitted without each part."""

    parts: Folds
    predictives: list[Any]

    @classmethod
    def fit(
        cls,
        learner: Learner,
        inputs: Tensor,
        targets: Tensor,
        num_folds: int,
        rng: torch.Generator,
    ) -> _Repeat:
        parts = folds(len(targets), num_folds, rng=rng)
        predictives = [
            fit_with_retries(learner, (inputs[seen], targets[seen]), rng=own).predict(inputs)
            for (_, seen), own in zip(parts, split(rng, num_folds), strict=True)
        ]
        return cls(parts, predictives)

    def held_out(self) -> Predictive:
        """Each labelled row by the model that has not seen it."""
        rows = [p[out] for (out, _), p in zip(self.parts, self.predictives, strict=True)]
        return in_row_order(self.parts, rows)


def _mean(predictives: Sequence[Any]) -> Predictive:
    """The mixture; a variance that models do not split stays so, as two cannot tell."""
    mean = average(predictives)
    if isinstance(mean, Gaussian) and predictives[0].epistemic_var is None:
        return Gaussian(mean.mean, mean.var)
    return mean


def _log_mean(predictives: Sequence[Any]) -> Predictive:
    """The mean in natural coordinates; the epistemic share of the variance is the mean share."""
    family = type(predictives[0])
    mean: Predictive = family.from_natural(torch.stack([p.natural() for p in predictives]).mean(0))
    if isinstance(mean, Gaussian) and predictives[0].epistemic_var is not None:
        share = torch.stack([p.epistemic_var / p.var for p in predictives]).mean(0)
        return Gaussian(mean.mean, mean.var, share * mean.var)
    return mean
