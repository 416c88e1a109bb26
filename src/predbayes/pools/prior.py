"""The prior predictive, which a product of sites divides out.

It is agreed before the round and goes into the plan, so every party knows it.
"""

from __future__ import annotations

from typing import Literal, get_args

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.predictive.families import Gaussian, Predictive

PriorChoice = Literal["default", "flat", "reference"]
"""``reference`` is a Gaussian with the mean and variance of the reference targets.

The default is that for a Gaussian, and flat for a categorical.
"""


def require_prior(prior: object) -> None:
    """Refuse a misspelt choice at once, not after the sites have trained."""
    if isinstance(prior, str) and prior not in get_args(PriorChoice):
        raise TrainingError(
            f"prior must be 'default', 'flat', 'reference' or a predictive, not {prior!r}"
        )


def prior_predictive(
    choice: PriorChoice | Predictive, reference: ReferenceRows
) -> Predictive | None:
    """Return the prior that a choice stands for; None is flat."""
    if not isinstance(choice, str):
        return choice
    regression = reference.targets.is_floating_point()
    if choice == "reference" and not regression:
        raise TrainingError("prior 'reference' is for regression; give a Categorical instead")
    if choice == "flat" or not regression:
        return None
    targets = reference.targets.double()
    if len(targets) < 2 or not float(targets.var()) > 0:
        raise TrainingError("prior 'reference' needs reference targets with a variance")
    return Gaussian(targets.mean().view(1), targets.var().view(1))
