"""The pool that the labelled rows select, with the coordinator's own model in it.

The selection is that of `predbayes.predictive.selection`:

    lift     the sums of every term of the candidates; a site also says how many rows of each class
             it has
    finish   the coordinator's own model, cross-fitted on the labelled rows, enters twice: as one
             more site, and as a component with a weight of its own; then select

With many labels and skewed sites the own model carries much of the weight, with few labels none:
the result is about as good as the better of federation and no federation, or better than both.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar

import torch

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.pool import BOTH_FAMILIES, OwnModel, PoolState
from predbayes.pools.prior import PriorChoice, marginal_predictive, prior_predictive
from predbayes.predictive.families import FAMILIES, LOG_PROB_FLOOR, Predictive
from predbayes.predictive.folds import NUM_REPEATS
from predbayes.predictive.pooling import Contribution, PredictiveSum
from predbayes.predictive.selection import (
    HEAD,
    MIN_LABELS,
    TERMS,
    candidates,
    select,
    why_untunable,
    with_coordinator,
)
from predbayes.seeding import split
from predbayes.summand import Collected

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Site:
    """One site where uploads are kept apart."""

    name: str
    predictive: Predictive
    summand: PredictiveSum[Any]


@dataclass(frozen=True, slots=True)
class AutoPool:
    """Select a pool by cross-validation on the labelled reference rows.

    Args:
        own: The coordinator's own model on the reference rows, honest on the labelled ones; or how
            it is made; or None. `Pooled` gives one that it makes with a learner.
        keep_apart: Whether to keep the sites' predictives apart, for pools with a weight per site.
            The others need sums only.
        count_classes: Whether sites say how many rows of each class they have.
        gates: Whether sites send their gates.
        num_folds: Parts of the labelled rows in cross-validation.
        num_repeats: How often the own model is cross-fitted, with other parts each time: repeats ×
            folds fits.
        min_labels: With fewer labels, or where all are the same, the pool is the gated mixture, or
            the plain one if there are no gates or they cannot be trusted.
        head: A model of all sites' rows on the reference rows, in which no label has a part; see
            `predbayes_lab.baselines.with_head`.
        prior: The prior predictive that the product divides out.
        floor: Least log-probability with which a site enters the pool.
    """

    own: OwnModel | Predictive | None = None
    keep_apart: bool = False
    count_classes: bool = True
    gates: bool = True
    num_folds: int = 5
    num_repeats: int = NUM_REPEATS
    min_labels: int = MIN_LABELS
    head: Predictive | None = None
    prior: PriorChoice | Predictive = field(default="default", kw_only=True)
    floor: float = field(default=LOG_PROB_FLOOR, kw_only=True)

    families: ClassVar[frozenset[type[Predictive]]] = BOTH_FAMILIES

    def __post_init__(self) -> None:
        if not 2 <= self.num_folds <= self.min_labels:
            raise TrainingError(
                f"num_folds must be from 2 to min_labels ({self.min_labels}), not {self.num_folds}"
            )
        if self.num_repeats < 1:
            raise TrainingError(f"num_repeats must be at least 1, not {self.num_repeats}")

    @property
    def streams(self) -> bool:
        """Unless predictives are kept apart."""
        return not self.keep_apart

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return the prior predictive, and which of the reference rows gates are learnt from."""
        prior = prior_predictive(self.prior, reference)
        return PoolState(prior=prior, num_contrast=reference.distillation.stop)

    def lift(self, state: PoolState, site: Contribution) -> Any:
        """Return the site in every term of the candidates."""
        terms = TERMS[type(site.predictive)]
        summand = site.summand(prior=state.prior, terms=terms, floor=self.floor)
        if not self.keep_apart:
            return summand
        return Collected(_Site(site.site, site.predictive.bounded(self.floor), summand))

    def finish(
        self, state: PoolState, total: Any, reference: ReferenceRows, *, rng: torch.Generator
    ) -> PoolState:
        """Make the coordinator's own model, select a pool on the labelled rows, pool on all."""
        sites: Sequence[_Site] = total.items if isinstance(total, Collected) else ()
        # Out of place: what was handed in stays as it is.
        pooled = reduce(add, (site.summand for site in sites)) if sites else total
        everywhere = pooled[: state.num_contrast]
        fit_rng, fold_rng, marginal_rng = split(rng, 3)
        own = self._own_model(reference, fit_rng)
        marginal = None
        if not why_untunable(reference.targets, self.min_labels):
            marginal = marginal_predictive(
                self.prior, reference, num_folds=self.num_folds, rng=marginal_rng
            )
        pooled = with_coordinator(
            pooled, own, reference.targets, marginal=marginal, floor=self.floor
        )
        if self.head is not None:
            pooled = pooled.with_component(HEAD, self.head.bounded(self.floor))
        for site in sites:
            pooled = pooled.with_component(site_component(site.name), site.predictive)
        labelled = pooled[reference.labelled]
        tried = candidates(labelled, [site_component(site.name) for site in sites])
        choice = select(
            labelled,
            reference.targets,
            tried,
            num_folds=self.num_folds,
            min_labels=self.min_labels,
            everywhere=everywhere,
            rng=fold_rng,
        )
        _log.info("pool: %s (%s)", choice.name, choice.reason)
        return replace(
            state, pooled=pooled.pool(choice.tuned.weights), tuned=choice.tuned, choice=choice
        )

    def _own_model(self, reference: ReferenceRows, rng: torch.Generator) -> Predictive | None:
        """The coordinator's own model on all reference rows, if it has one."""
        own = self.own
        if own is None or why_untunable(reference.targets, self.min_labels):
            return None
        if isinstance(own, FAMILIES):
            return own
        assert callable(own)
        try:
            return own(
                reference.inputs,
                reference.targets,
                num_folds=self.num_folds,
                num_repeats=self.num_repeats,
                rng=rng,
            )
        except TrainingError as error:
            _log.warning("the pool is without a model of the labelled rows: %s", error)
            return None


def site_component(name: str) -> str:
    """Return what the pool calls the component that is one site."""
    return f"site {name}"
