"""The prior predictive, which a product of sites divides out.

It is agreed before the round and goes into the plan, so every party knows it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.pool import BOTH_FAMILIES, Contribution, PoolState
from predbayes.predictive.families import LOG_PROB_FLOOR, Gaussian, Predictive, joined
from predbayes.predictive.folds import folds, in_row_order
from predbayes.predictive.pooling import PredictiveSum, Term

_log = logging.getLogger(__name__)

PriorChoice = Literal["default", "flat", "reference"]
"""``reference`` is a Gaussian with the mean and variance of the reference targets.

The default is that for a Gaussian whose reference targets have a variance, and flat otherwise.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsUnderAPrior:
    """What the pools of mixture and product share: the prior, and how a site is lifted.

    Args:
        prior: The prior predictive that the product divides out.
        floor: Least log-probability with which a site enters the pool.
    """

    prior: PriorChoice | Predictive = "default"
    floor: float = LOG_PROB_FLOOR

    families: ClassVar[frozenset[type[Predictive]]] = BOTH_FAMILIES

    def __post_init__(self) -> None:
        # Refuse a misspelt choice at once, not after the sites have trained.
        if isinstance(self.prior, str) and self.prior not in get_args(PriorChoice):
            raise TrainingError(
                f"prior must be 'default', 'flat', 'reference' or a predictive, not {self.prior!r}"
            )

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return the prior predictive."""
        return PoolState(prior=prior_predictive(self.prior, reference))

    def lift(self, state: PoolState, site: Contribution) -> PredictiveSum[Any]:
        """Return the site in the sums of mixture and product."""
        return site.summand(prior=state.prior, floor=self.floor)


@dataclass(frozen=True, slots=True)
class OneTerm(SumsUnderAPrior):
    """A pool that is one term of the sites' sum; nothing is tuned.

    Args:
        term: Which one.
    """

    term: Term

    streams: ClassVar[bool] = True

    def lift(self, state: PoolState, site: Contribution) -> PredictiveSum[Any]:
        """Return the site in the sums of the term."""
        return site.summand(prior=state.prior, floor=self.floor, terms=(self.term,))

    def finish(
        self,
        state: PoolState,
        total: PredictiveSum[Any],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> PoolState:
        """Pool on all rows."""
        return replace(state, pooled=total.pool({self.term.name: 1.0}))


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
