"""Which of a few learners serves a site's rows best, found by cross-validation.

    loss_k    mean over rows of -log p_k(y_i | x_i), each row predicted by a fit of learner k to
              four of five parts, the row's own left out
    chosen    the first learner, simplest first, whose loss is not above the least one by more than
              a standard error of the paired difference

So the rows must ask for a model that is less simple; where they cannot tell, a linear one is it.

What it costs is bounded: at most `MOST_ROWS` rows are looked at, and an ensemble is tried with few
of its members. That is at most five times a fit of each learner to so many rows. Fewer than
`LEAST_ROWS` rows choose nothing: the simplest learner is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.local import Learner, fit_with_retries, kept_together
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.folds import folds, in_row_order
from predbayes.seeding import split
from predbayes_study.tasks.hazards import HazardLearner

MOST_ROWS = 5000
LEAST_ROWS = 30

_NUM_FOLDS = 5
_NUM_TRIED = 4  # members of an ensemble


@dataclass(frozen=True, slots=True)
class Choice:
    """The learner that was chosen, and what spoke for it."""

    name: str
    losses: Mapping[str, float]  # mean NLL of held-out rows, by learner; none without a trial
    num_rows: int  # that it was tried on

    def sentence(self) -> str:
        """Say it in one line.

        Examples:
            >>> Choice("linear", {"linear": 0.371, "network": 0.38}, 240).sentence()
            'linear, chosen by cross-validation on 240 rows (NLL: linear 0.371, network 0.380)'
            >>> Choice("linear", {}, 12).sentence()
            'linear, the simplest, because 12 rows are too few to choose by'
        """
        if not self.losses:
            return (
                f"{self.name}, the simplest, because {self.num_rows} rows are too few to choose by"
            )
        told = ", ".join(f"{name} {loss:.3f}" for name, loss in self.losses.items())
        return f"{self.name}, chosen by cross-validation on {self.num_rows:,} rows (NLL: {told})"


def choose(
    learners: Mapping[str, Learner],
    rows: tuple[Tensor, Tensor],
    *,
    most_rows: int = MOST_ROWS,
    groups: Tensor | None = None,
    rng: torch.Generator,
) -> Choice:
    """Choose one of several learners for a site's rows.

    Args:
        learners: By name, simplest first.
        rows: Inputs and targets.
        most_rows: How many of them are looked at.
        groups: Rows with the same number, as those of one patient, are tried together.
        rng: Which rows are tried, their parts, and the learners' randomness.
    """
    inputs, targets = rows
    simplest = next(iter(learners))
    if len(targets) < LEAST_ROWS or len(learners) == 1:
        return Choice(simplest, {}, len(targets))
    drawn = torch.randperm(len(targets), generator=rng)[:most_rows].sort().values
    tried = inputs[drawn], targets[drawn]
    together = None if groups is None else groups[drawn]
    losses = {
        name: _held_out_losses(in_brief(learner), tried, own, together)
        for (name, learner), own in zip(learners.items(), split(rng, len(learners)), strict=True)
    }
    found = {name: rows for name, rows in losses.items() if rows is not None}
    if not found:
        return Choice(simplest, {}, len(drawn))
    means = {name: float(rows.mean()) for name, rows in found.items()}
    best = min(means, key=means.__getitem__)
    chosen = next(name for name, rows in found.items() if not is_worse(rows, found[best]))
    return Choice(chosen, means, len(drawn))


def in_brief(learner: Any) -> Any:
    """Return the learner with as many members as a trial needs."""
    if isinstance(learner, SklearnClassifier | SklearnRegressor):
        return replace(learner, size=min(learner.size, _NUM_TRIED))
    if isinstance(learner, HazardLearner):
        return replace(learner, learner=in_brief(learner.learner))
    return learner


def held_out(
    learner: Learner,
    rows: tuple[Tensor, Tensor],
    *,
    rng: torch.Generator,
    groups: Tensor | None = None,
) -> Predictive:
    """Return what fits to the other parts predict for each row; rows of a group are in one part."""
    inputs, targets = rows
    parts = folds(len(targets), _NUM_FOLDS, rng=rng, groups=groups)
    predictives = [
        fit_with_retries(
            learner,
            (inputs[seen], targets[seen]),
            rng=own,
            **kept_together(learner, groups, seen),
        ).predict(inputs[out])
        for (out, seen), own in zip(parts, split(rng, len(parts)), strict=True)
    ]
    return in_row_order(parts, predictives)


def _held_out_losses(
    learner: Learner,
    rows: tuple[Tensor, Tensor],
    rng: torch.Generator,
    groups: Tensor | None,
) -> Tensor | None:
    """The loss row by row; None of a learner that cannot be fitted to the rows."""
    try:
        predictive = held_out(learner, rows, rng=rng, groups=groups)
    except TrainingError:
        return None
    return row_losses(predictive, rows[1])


def row_losses(predictive: Predictive, targets: Tensor) -> Tensor:
    """Return the NLL row by row, of probabilities that are bounded."""
    return -predictive.bounded(LOG_PROB_FLOOR).log_prob(targets).double()


def is_worse(rows: Tensor, than: Tensor, num_errors: float = 1.0) -> bool:
    """Return whether losses are higher than others by so many standard errors of the difference."""
    difference = rows - than
    if len(difference) < 2:
        return False
    error = float(difference.std()) / math.sqrt(len(difference))
    return float(difference.mean()) > num_errors * error
