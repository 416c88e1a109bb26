"""A ladder of pools, climbed only as far as the labelled rows carry.

Each rung is a pool (`predbayes.predictive.pooling`) with some free weights. Rungs of one storey are
about as easy to overfit:

    untuned        mixture; log pool                                    (categorical only)
    few weights    beta (the paper); a temperature; with entropy, trust, the coordinator's own model
    many terms     the same with class mixture and label-prior-corrected log pool
    sites          one weight per site, where uploads are kept apart
    classes        one per site and class, likewise

Each is cross-validated on the labelled rows. Rungs of one storey compete by their mean loss; among
the winners the *one-standard-error rule* takes the lowest storey whose loss is within one standard
error of the least. The standard error is that of the paired difference, row by row: it does not
count what makes a row hard for every pool. A Gaussian pool always has its scale tuned: intervals
hang on it, and it takes few labels.

With fewer than `MIN_LABELS` labels nothing can be chosen, and the mixture it is.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.pooling import (
    CLASS_MIXTURE,
    CORRECTED,
    ENTROPY,
    LOG_POOL,
    PredictiveSum,
    Term,
    trust,
)
from predbayes.predictive.tuning import TunedPool, tune_beta, tune_weights

_log = logging.getLogger(__name__)

MIN_LABELS = 30
OWN = "own"
"""The component that is the coordinator's own model, cross-fitted on the labelled rows."""

TRUST_EXPONENTS = (0.5, 1.0, 2.0)
_MAX_ELEMENTS = 2**27  # of the directions, 1 GiB: a rung that needs more is not tried

CATEGORICAL_TERMS: tuple[Term, ...] = (LOG_POOL, ENTROPY, CLASS_MIXTURE, CORRECTED)
GAUSSIAN_TERMS: tuple[Term, ...] = tuple(trust(exponent) for exponent in TRUST_EXPONENTS)


class Storey(IntEnum):
    """How much there is to overfit."""

    UNTUNED = 0
    FEW_WEIGHTS = 1
    MANY_TERMS = 2
    SITES = 3
    CLASSES = 4


@dataclass(frozen=True, slots=True)
class Rung:
    """One pool of the ladder.

    Args:
        name: What it is called in reports.
        storey: How much there is to overfit.
        base: The component that it is drawn towards.
        free: Components with a free weight; none is the base alone.
        by_class: Components with a free weight for each class.
        interpolates: Whether it is the paper's pool, one weight between mixture and product.
    """

    name: str
    storey: Storey = Storey.FEW_WEIGHTS
    base: str = "mixture"
    free: tuple[str, ...] = ()
    by_class: tuple[str, ...] = ()
    interpolates: bool = False

    @property
    def components(self) -> frozenset[str]:
        """What a sum must have for it."""
        return frozenset({self.base, *self.free, *self.by_class})

    def num_weights(self, num_coordinates: int) -> int:
        """Free weights, where a predictive has so many coordinates."""
        return 1 if self.interpolates else len(self.free) + num_coordinates * len(self.by_class)

    def tune(
        self,
        total: PredictiveSum[Any],
        targets: Tensor,
        *,
        prior_std: float = 1.0,
        profiles: bool = False,
    ) -> TunedPool:
        """The weights of least NLL on labelled rows."""
        if self.interpolates:
            return tune_beta(total, targets, prior_std=prior_std)
        return tune_weights(
            total,
            targets,
            components=self.free,
            by_class=self.by_class,
            base=self.base,
            prior_std=prior_std,
            nonnegative=total.family is Gaussian,
            profiles=profiles,
        )


@dataclass(frozen=True, slots=True)
class RungScore:
    """How a rung did in cross-validation."""

    name: str
    storey: Storey
    num_weights: int
    nll: float  # mean over labelled rows, each scored with weights tuned without it
    behind: float  # mean difference to the best rung
    standard_error: float  # of that difference


@dataclass(frozen=True, slots=True)
class Choice:
    """The pool that was chosen, its weights, and why."""

    rung: Rung
    tuned: TunedPool
    scores: tuple[RungScore, ...]  # of every rung, from the ground up
    reason: str


def ladder(total: PredictiveSum[Any], sites: Sequence[str] = ()) -> list[Rung]:
    """The rungs that a sum can carry, from the ground up.

    Args:
        total: A sum with the terms of its family (`CATEGORICAL_TERMS`, `GAUSSIAN_TERMS`), with a
            component `OWN` where the coordinator has a model.
        sites: Components that are single sites, where uploads are kept apart.
    """
    build = _categorical_rungs if total.family is Categorical else _gaussian_rungs
    rungs = build(tuple(sites))
    there = set(total.components)
    carried = [rung for rung in rungs if rung.components <= there]
    num = total.component("mixture").numel()
    return [r for r in carried if num * r.num_weights(_coordinates(total)) <= _MAX_ELEMENTS]


MIXTURE = Rung("mixture", Storey.UNTUNED)
"""Where to stay when labels are too few."""

_BOTH_FAMILIES = (
    Rung("beta", interpolates=True),
    Rung("mixture, tempered", free=("mixture",)),
    Rung("mixture, product", free=("mixture", "product")),
    Rung("own model alone", base=OWN),
    Rung("own model, tempered", base=OWN, free=(OWN,)),
    Rung("mixture, own", free=("mixture", OWN)),
    Rung("mixture, product, own", free=("mixture", "product", OWN)),
)


def _categorical_rungs(sites: tuple[str, ...]) -> list[Rung]:
    few = ("mixture", "product", "entropy")
    many = (*few, "class_mixture", "corrected")
    rungs = [
        MIXTURE,
        Rung("log pool", Storey.UNTUNED, "log_pool"),
        *_BOTH_FAMILIES,
        Rung("log pool, tempered", base="log_pool", free=("log_pool",)),
        Rung("log pool, own", base="log_pool", free=("log_pool", OWN)),
        Rung("mixture, product, entropy", free=few),
        Rung("mixture, product, entropy, own", free=(*few, OWN)),
        Rung("every term", Storey.MANY_TERMS, free=many),
        Rung("every term, own", Storey.MANY_TERMS, free=(*many, OWN)),
    ]
    if not sites:
        return rungs
    return [
        *rungs,
        Rung("a weight per site", Storey.SITES, free=(*many, *sites)),
        Rung("a weight per site, own", Storey.SITES, free=(*many, OWN, *sites)),
        Rung("a weight per site and class", Storey.CLASSES, free=many, by_class=sites),
        Rung("the same, own", Storey.CLASSES, free=many, by_class=(*sites, OWN)),
    ]


def _gaussian_rungs(sites: tuple[str, ...]) -> list[Rung]:
    rungs = list(_BOTH_FAMILIES)
    for name in (term.name for term in GAUSSIAN_TERMS):
        readable = name.replace("_", " ")
        rungs += [
            Rung(f"{readable}, tempered", base=name, free=(name,)),
            Rung(f"{readable}, own", base=name, free=(name, OWN)),
            Rung(f"mixture, {readable}, own", free=("mixture", name, OWN)),
        ]
    if sites:
        rungs += [
            Rung("a weight per site", Storey.SITES, free=("mixture", *sites)),
            Rung("a weight per site, own", Storey.SITES, free=("mixture", OWN, *sites)),
        ]
    return rungs


def climb(
    total: PredictiveSum[Any],
    targets: Tensor,
    rungs: Sequence[Rung],
    *,
    num_folds: int = 5,
    min_labels: int = MIN_LABELS,
    rng: torch.Generator,
) -> Choice:
    """Choose a rung by cross-validation and the one-standard-error rule, and tune it on all rows.

    Args:
        total: The sites' sum on the labelled rows.
        targets: Their labels.
        rungs: What to choose from.
        num_folds: Parts of the rows, each scored once.
        min_labels: Below as many it is the mixture, with a warning.
        rng: Which row is in which part.
    """
    if len(targets) < min_labels:
        reason = f"{len(targets)} labelled rows are too few to choose by; {min_labels} are needed"
        _log.warning("the pool is the plain mixture: %s", reason)
        nll = float(-total.mixture().log_prob(targets).mean()) if len(targets) else math.nan
        return Choice(MIXTURE, TunedPool({"mixture": 1.0}, nll, len(targets), {}), (), reason)
    folds = torch.randperm(len(targets), generator=rng) % num_folds
    losses = [_held_out_losses(rung, total, targets, folds) for rung in rungs]
    best = min(range(len(rungs)), key=lambda index: float(losses[index].mean()))
    scores = [
        _score(rung, total, own, losses[best]) for rung, own in zip(rungs, losses, strict=True)
    ]
    chosen = _lowest_storey(scores)
    # Intervals of one weight come at once; of several each takes many solves.
    tuned = rungs[chosen].tune(total, targets, profiles=len(rungs[chosen].free) == 1)
    return Choice(rungs[chosen], tuned, tuple(scores), _reason(scores[chosen], scores[best]))


def _held_out_losses(
    rung: Rung, total: PredictiveSum[Any], targets: Tensor, folds: Tensor
) -> Tensor:
    """-log p of each row under weights tuned on the other parts."""
    losses = torch.empty(len(targets), dtype=torch.float64)
    for fold in range(int(folds.max()) + 1):
        out, rest = (folds == fold).nonzero()[:, 0], (folds != fold).nonzero()[:, 0]
        try:
            tuned = rung.tune(total[rest], targets[rest])
            predictive = total[out].pool(tuned.weights)
        except PoolError:  # improper with these weights at some row that they were not tuned on
            return torch.full_like(losses, math.inf)
        losses[out] = -predictive.log_prob(targets[out]).double()
    return losses


def _score(rung: Rung, total: PredictiveSum[Any], losses: Tensor, best: Tensor) -> RungScore:
    behind = losses - best
    error = float(behind.std()) / math.sqrt(len(behind)) if behind.isfinite().all() else math.nan
    num_weights = rung.num_weights(_coordinates(total))
    return RungScore(
        rung.name, rung.storey, num_weights, float(losses.mean()), float(behind.mean()), error
    )


def _lowest_storey(scores: Sequence[RungScore]) -> int:
    """The best rung of the lowest storey whose best is within one standard error of the least."""
    order = sorted(range(len(scores)), key=lambda i: (scores[i].storey, scores[i].nll))
    winners = {scores[i].storey: i for i in reversed(order)}
    return next(
        i for _, i in sorted(winners.items()) if scores[i].behind <= scores[i].standard_error
    )


def _reason(chosen: RungScore, best: RungScore) -> str:
    if chosen is best:
        return f"least cross-validated NLL, {chosen.nll:.4f}"
    return (
        f"cross-validated NLL {chosen.nll:.4f}, within one standard error "
        f"({chosen.standard_error:.4f}) of {best.name!r} ({best.nll:.4f}), which overfits sooner"
    )


def _coordinates(total: PredictiveSum[Any]) -> int:
    return int(total.component("mixture").shape[1])
