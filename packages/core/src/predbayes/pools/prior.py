"""The prior predictive, which a product of sites divides out.

It is agreed before the round and goes into the plan, so every party knows it.
"""

from __future__ import annotations

import logging
from typing import Literal, get_args

import torch

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.predictive.families import Gaussian, Predictive, joined
from predbayes.predictive.folds import folds, in_row_order

_log = logging.getLogger(__name__)

PriorChoice = Literal["default", "flat", "reference"]
"""``reference`` is a Gaussian with the mean and variance of the reference targets.

The default is that for a Gaussian whose reference targets have a variance, and flat otherwise.
"""


def prior_predictive(
    choice: PriorChoice | Predictive, reference: ReferenceRows
) -> Predictive | None:
    """Return the prior that a choice stands for; None is flat."""
    if not isinstance(choice, str):
        return choice
    if choice not in get_args(PriorChoice):
        raise TrainingError(
            f"prior must be 'default', 'flat', 'reference' or a predictive, not {choice!r}"
        )
    regression = reference.targets.is_floating_point()
    if choice == "reference" and not regression:
        raise TrainingError("prior 'reference' is for regression; give a Categorical instead")
    if choice == "flat" or not regression:
        return None
    targets = reference.targets.double()
    if len(targets) >= 2 and float(targets.var()) > 0:
        return Gaussian(targets.mean().view(1), targets.var().view(1))
    if choice == "reference":
        raise TrainingError(
            "prior 'reference' needs reference targets with a variance; give such labels, a "
            "Gaussian, or prior='flat'"
        )
    _log.info("the prior is flat: there are no reference targets with a variance to make it of")
    return None


def marginal_predictive(
    choice: PriorChoice | Predictive,
    reference: ReferenceRows,
    *,
    num_folds: int,
    rng: torch.Generator,
) -> Predictive | None:
    """Return the prior as a component on all reference rows, honest on the labelled ones.

    A prior that is made of the labels is made, for a labelled row, of those of the other parts:
    what is weighed on a row must not have seen its label.
    """
    whole = prior_predictive(choice, reference)
    if not isinstance(choice, str) or not isinstance(whole, Gaussian):
        return whole
    targets = reference.targets.double()
    parts = folds(len(targets), num_folds, rng=rng)
    least = 1e-6 * float(whole.var)  # of labels that are all the same but for one part
    held_out = []
    for out, seen in parts:
        rest = targets[seen]
        apart = Gaussian(rest.mean().view(1), rest.var().clamp_min(least).view(1))
        held_out.append(_rows(apart, len(out)))
    others = _rows(whole, len(reference.inputs) - len(targets))
    return joined([in_row_order(parts, held_out), others])


def _rows(predictive: Gaussian, num_rows: int) -> Gaussian:
    """One predictive on several rows."""
    return predictive[torch.zeros(num_rows, dtype=torch.long)]
