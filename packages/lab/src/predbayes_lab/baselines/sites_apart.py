"""Controls: what is learnt about sites from labels alone, with no theory of how they relate.

    best site          the one site whose own model is best on the labelled rows, with no pooling
    simplex stacking   mixture with weights of sites on the simplex, of least NLL on labelled rows
                       (Breiman, 1996; Yao et al., 2018)
    ridge stacker      multinomial logistic regression on all sites' log-probabilities, penalised
                       towards zero, the penalty by cross-validation: FENS (Allouah et al., 2024)
                       in one round, where its server learns a network

A pool that does no better than these has no need of its ideas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.errors import ImproperPoolError
from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.pool import BOTH_FAMILIES, PoolState, require_labels
from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical, Predictive
from predbayes.predictive.folds import folds
from predbayes.predictive.pooling import Contribution
from predbayes.summand import Collected

_MAX_STEPS, _TOLERANCE = 10_000, 1e-10
_PENALTIES = tuple(10.0**power for power in range(-3, 4))  # in rows
_NUM_FOLDS = 5
_FLOOR = -20.0  # of a log-probability as a feature


class KeepsSites:
    """What pools share that look at each site: labels are needed, predictives are kept apart."""

    __slots__ = ()

    families: ClassVar[frozenset[type[Predictive]]] = BOTH_FAMILIES
    streams: ClassVar[bool] = False
    tuned: ClassVar[str]  # what labels are needed for

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return an empty state: there is nothing to tell the sites."""
        require_labels(reference, self.tuned)
        return PoolState()

    def lift(self, state: PoolState, site: Contribution) -> Collected[Contribution]:
        """Return the site's predictives, kept apart."""
        return Collected(site)


@dataclass(frozen=True, slots=True)
class BestSiteState(PoolState):
    """Which site was taken, and what it predicts."""

    site: str = ""


@dataclass(frozen=True, slots=True)
class BestSite(KeepsSites):
    """The model of the site with the least NLL on the labelled reference rows."""

    tuned: ClassVar[str] = "the choice of a site"

    def finish(
        self,
        state: PoolState,
        total: Collected[Contribution],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> BestSiteState:
        """Choose on the labelled rows; of equal sites the first by name."""
        rows, targets = reference.labelled, reference.targets
        scored = [(metrics.nll(c.predictive[rows], targets), c.site, c) for c in total.items]
        finite = [entry for entry in scored if math.isfinite(entry[0])]
        if not finite:
            raise ImproperPoolError(
                "no site predicts the labelled reference rows with a finite NLL"
            )
        _nll, site, best = min(finite, key=lambda entry: entry[:2])
        return BestSiteState(site=site, pooled=best.predictive)


@dataclass(frozen=True, slots=True)
class SimplexStacking(KeepsSites):
    """A mixture whose weights of sites have the least NLL on the labelled rows."""

    tuned: ClassVar[str] = "stacking"

    def finish(
        self,
        state: PoolState,
        total: Collected[Contribution],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> PoolState:
        """Find the weights; mix on all rows."""
        predictives = [site.predictive for site in _by_name(total)]
        rows, targets = reference.labelled, reference.targets
        log_probs = torch.stack([p[rows].log_prob(targets).double() for p in predictives], -1)
        weights = simplex_weights(log_probs)
        moments = torch.stack([p.moments().double() for p in predictives], -1) @ weights
        family, dtype = type(predictives[0]), predictives[0].moments().dtype
        return replace(state, pooled=family.from_moments(moments.to(dtype)))


def simplex_weights(log_probs: Tensor) -> Tensor:
    """Return the weights of least NLL of a mixture, from log-probabilities (B, K) of the labels.

    Expectation-maximisation, which on this convex problem climbs to the optimum from inside.
    """
    best = log_probs.max(-1, keepdim=True).values
    if not bool(best.isfinite().all()):
        raise ImproperPoolError("all sites rule out the label of a reference row; nothing to mix")
    likelihoods = (log_probs - best).exp()
    weights = torch.full((log_probs.shape[1],), 1 / log_probs.shape[1], dtype=log_probs.dtype)
    for _ in range(_MAX_STEPS):
        gradient = (likelihoods / (likelihoods @ weights).unsqueeze(-1)).mean(0)
        weights = weights * gradient
        # The gap to the optimum is at most the logarithm of the largest gradient.
        if float(gradient.max()) < 1 + _TOLERANCE:
            break
    return weights / weights.sum()


@dataclass(frozen=True, slots=True)
class RidgeStacker(KeepsSites):
    """A ridge-penalised multinomial logistic regression on all sites' log-probabilities."""

    families: ClassVar[frozenset[type[Predictive]]] = frozenset({Categorical})
    tuned: ClassVar[str] = "the stacker"

    def finish(
        self,
        state: PoolState,
        total: Collected[Contribution],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> PoolState:
        """Choose the penalty, fit on the labelled rows, predict all."""
        natural = [site.predictive.natural() for site in _by_name(total)]
        features, num_classes = _features(natural), natural[0].shape[1]
        known, targets = features[reference.labelled], reference.targets
        penalty = _penalty(known, targets, num_classes, rng)
        weights = ridge_weights(known, targets, num_classes, penalty)
        logits = (features @ weights).to(natural[0].dtype)
        return replace(state, pooled=Categorical.from_natural(logits))


def ridge_weights(features: Tensor, targets: Tensor, num_classes: int, penalty: float) -> Tensor:
    """Return the weights (F, C) of least NLL in all plus penalty / 2 times their squares."""
    shape = (features.shape[1], num_classes)
    wanted = torch.nn.functional.one_hot(targets, num_classes).to(features)

    def loss(vector: Any) -> tuple[float, Any]:
        weights = torch.from_numpy(vector).view(shape)
        log_probs = (features @ weights).log_softmax(-1)
        gradient = features.T @ (log_probs.exp() - wanted) + penalty * weights
        value = -(wanted * log_probs).sum() + 0.5 * penalty * weights.square().sum()
        return float(value), gradient.reshape(-1).numpy()

    found = scipy.optimize.minimize(
        loss, np.zeros(math.prod(shape)), jac=True, method="L-BFGS-B", options={"maxiter": 1000}
    )
    return torch.from_numpy(found.x).view(shape)


def _features(natural: Sequence[Tensor]) -> Tensor:
    """Floored and centred log-probabilities of all sites, and a constant."""
    floored = [eta.double().clamp_min(_FLOOR) for eta in natural]
    centred = [eta - eta.mean(-1, keepdim=True) for eta in floored]
    return torch.cat([*centred, torch.ones(len(natural[0]), 1, dtype=torch.float64)], -1)


def _penalty(features: Tensor, targets: Tensor, num_classes: int, rng: torch.Generator) -> float:
    """The penalty of least cross-validated NLL; of one or no fold the largest."""
    num_folds = min(_NUM_FOLDS, len(targets))
    if num_folds < 2:
        return _PENALTIES[-1]
    parts = folds(len(targets), num_folds, rng=rng)

    def held_out(penalty: float) -> float:
        losses = []
        for out, seen in parts:
            weights = ridge_weights(features[seen], targets[seen], num_classes, penalty)
            log_probs = (features[out] @ weights).log_softmax(-1)
            losses.append(-log_probs.gather(1, targets[out].unsqueeze(1)).sum())
        return float(torch.stack(losses).sum())

    return min(_PENALTIES, key=held_out)


def _by_name(total: Collected[Contribution]) -> list[Contribution]:
    """The sites in one order, whatever the order of arrival."""
    return sorted(total.items, key=lambda site: site.site)
