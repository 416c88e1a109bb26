r"""Hazards by any classifier of two classes: one trial for each interval that a row was seen in.

A row that was seen in intervals 1 to j becomes j rows for the classifier: its inputs, and one 0/1
input for each interval that says which it is. The class is 1 in the interval of the event and 0
elsewhere, so what the classifier says of it is the hazard

    h_j(x) = P(event in interval j | none before, x)

With a logistic regression, log odds of h_j(x) = a_j + <b, x>: the discrete-time counterpart of a
Cox model, which has the same baseline and coefficients in log(-log(1 - h)) (Allison, 1982).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from predbayes.errors import TrainingError
from predbayes.learning.likelihood import Hazards
from predbayes.learning.local import GateLearner, Learner, Predictor, kept_together
from predbayes.learning.training import Rows, gather
from predbayes.predictive.families import Categorical, Survival, at_risk


@dataclass(frozen=True, slots=True)
class HazardLearner(Learner):
    """Time to an event by a learner of two classes.

    Args:
        learner: Of whether the event comes in an interval.
        num_intervals: How many there are.
    """

    learner: Learner
    num_intervals: int

    keeps_groups: ClassVar[bool] = True

    def fit(
        self, rows: Rows, *, rng: torch.Generator, groups: Tensor | None = None
    ) -> FittedHazards:
        """Fit the learner to the trials of all rows.

        Trials of a row, and of rows of a group, as those of one patient, are drawn and left out
        together by learners that draw rows.
        """
        inputs, targets = gather(rows, rng=rng)
        Hazards(self.num_intervals).check(targets)
        row, interval = at_risk(targets, self.num_intervals).nonzero().unbind(1)
        if not len(row):
            raise TrainingError("no row was seen for half of the first interval")
        happened = (targets[row] > 0) & (targets[row].ceil().long() - 1 == interval)
        trials = with_interval(inputs[row], interval, self.num_intervals)
        own = torch.arange(len(targets)) if groups is None else groups
        together = kept_together(self.learner, own, row)
        fitted = self.learner.fit((trials, happened.long()), rng=rng, **together)
        return FittedHazards(fitted, self.num_intervals)

    def gate_learner(self) -> GateLearner | None:
        """Return the learner of a gate: that of the classifier."""
        return self.learner.gate_learner()


@dataclass(frozen=True, slots=True)
class FittedHazards:
    """A classifier of trials."""

    model: Predictor
    num_intervals: int

    def predict(self, inputs: Tensor) -> Survival:
        """Ask it about every interval of every row."""
        num = self.num_intervals
        interval = torch.arange(num).repeat(len(inputs))
        said = self.model.predict(with_interval(inputs.repeat_interleave(num, 0), interval, num))
        if not isinstance(said, Categorical) or said.log_probs.shape[1] != 2:
            raise TrainingError("hazards are learnt by a learner of two classes")
        return Survival((said.log_probs[:, 1] - said.log_probs[:, 0]).reshape(-1, num))


def with_interval(inputs: Tensor, interval: Tensor, num_intervals: int) -> Tensor:
    """Return inputs, (N, F), beside which interval is meant, (N, F + J)."""
    return torch.cat([inputs, nn.functional.one_hot(interval, num_intervals).to(inputs)], 1)
