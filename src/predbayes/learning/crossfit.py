"""A model of the labelled rows that predicts each of them as if it had not seen it.

The rows are dealt into parts; a model is fitted without each part and predicts it. On other inputs
all of them are averaged. So the predictives on the labelled rows are as honest as elsewhere, and
may be weighed there against models that never saw those rows (stacking; Wolpert, 1992).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from predbayes.learning.local import LocalLearner
from predbayes.predictive.families import Predictive, average, joined
from predbayes.predictive.folds import folds, in_row_order
from predbayes.seeding import split


def cross_fitted(
    learner: LocalLearner,
    inputs: Tensor,
    targets: Tensor,
    *,
    num_folds: int = 5,
    rng: torch.Generator,
) -> Predictive:
    """Predictives on all inputs, of which the first are labelled.

    Args:
        learner: What is fitted to the labelled rows.
        inputs: Reference inputs, labelled ones first.
        targets: The labels.
        num_folds: Parts, and models.
        rng: Which row is in which part, and the learner's randomness.
    """
    num_labels = len(targets)
    parts = folds(num_labels, num_folds, rng=rng)
    fitted: list[Any] = []
    for (_, seen), own in zip(parts, split(rng, num_folds), strict=True):
        model = learner.fit((inputs[seen], targets[seen]), rng=own)
        fitted.append(model.predict(inputs))
    held_out = [predictive[out] for (out, _), predictive in zip(parts, fitted, strict=True)]
    elsewhere = average([predictive[num_labels:] for predictive in fitted])
    return joined([in_row_order(parts, held_out), elsewhere])
