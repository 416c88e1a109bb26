"""What becomes of the pool without a site: selected and tuned anew, or by subtraction.

The pool of some sites is what `predbayes.pools.auto` would choose for them, its losses those of
each labelled row under weights tuned without it (`PoolLosses`). To choose again without each site
takes a while. Sums subtract: with S what the sum of all has and s_k what the site has in it, the
pool without it at the same weights w is that of S - s_k, and

    effect of k  =  mean_i [ loss_i(S - s_k, w) - loss_i(S, w) ],   positive if the site helps,

and for a site that is not in it likewise with S and S + s_k.

At the least loss the weights have slope zero: what tuning them anew would change is of second
order in the site's share of the pool, which is next to nothing where sites are many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.predictive.estimate import Estimate, t_quantile
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.pooling import Contribution, PredictiveSum
from predbayes.predictive.selection import (
    MIN_LABELS,
    TERMS,
    Choice,
    PoolSpec,
    candidates,
    select,
    with_coordinator,
)
from predbayes.seeding import generator
from predbayes.summand import fold

_BLOCK = 2**19  # numbers of sites that are subtracted together: they stay in the cache


@dataclass(frozen=True, slots=True)
class Effect:
    """What leaving a site out does to the NLL."""

    value: float  # positive if the site helps
    error: float  # standard error
    nll: float  # of the pool with the site
    num_rows: int

    @classmethod
    def of(cls, gaps: Tensor, nll: float) -> Effect:
        """Return the effect by losses of rows without the site minus those with it, (N,)."""
        return cls(float(gaps.mean()), float(gaps.std()) / math.sqrt(len(gaps)), nll, len(gaps))

    @property
    def score(self) -> float:
        """The site's help in standard errors; below zero it does harm."""
        return self.value / self.error if self.error > 0 else 0.0

    def estimate(self) -> Estimate:
        """Return the same as a result keeps it."""
        reach = t_quantile(self.num_rows) * self.error
        return Estimate(self.value, self.value - reach, self.value + reach)


@dataclass(frozen=True)
class PoolLosses:
    """The losses of the pool that `predbayes.pools.auto` would choose for some sites.

    Args:
        targets: The labels.
        seed: Of the folds, which are the same for whatever sites.
        own: The coordinator's own model, cross-fitted, on the labelled rows.
        prior: The prior predictive that the product divides out.
        specs: What to choose from; all that the sum can carry by default.
        floor: Least log-probability with which a site enters the pool.
        num_folds: Parts of the labelled rows in cross-validation.
        min_labels: With fewer labels nothing is tuned.
    """

    targets: Tensor
    seed: int
    own: Predictive | None = None
    prior: Predictive | None = None
    specs: Sequence[PoolSpec] | None = None
    floor: float = LOG_PROB_FLOOR
    num_folds: int = 5
    min_labels: int = MIN_LABELS

    def __call__(self, contributions: Sequence[Contribution]) -> Tensor:
        """Return them row by row, each row under weights tuned without it."""
        return self.tuned(contributions).choice.losses

    def summand(self, site: Contribution, names: Iterable[str] | None = None) -> PredictiveSum[Any]:
        """Return one site in the terms of these names, or of all candidates."""
        terms = TERMS[type(site.predictive)]
        if names is not None:
            terms = [term for term in terms if term.name in set(names)]
        return site.summand(prior=self.prior, terms=terms, floor=self.floor)

    def choice(self, total: PredictiveSum[Any]) -> Choice:
        """Select from what the sum can carry."""
        specs = self.specs or candidates(total)
        return select(
            total,
            self.targets,
            [spec for spec in specs if spec.components <= set(total.components)],
            num_folds=self.num_folds,
            min_labels=self.min_labels,
            rng=generator(self.seed, "screening"),
        )

    def tuned(
        self, sites: Sequence[Contribution], total: PredictiveSum[Any] | None = None
    ) -> Tuned:
        """The pool of sites, of which sums can be taken away; with their sum if it is known."""
        if total is None:
            total = fold(map(self.summand, sites))
        own, prior = self.own, self.prior
        own_too = with_coordinator(total, own, self.targets, marginal=prior, floor=self.floor)
        return Tuned(self, own_too)


@dataclass(frozen=True)  # without slots, where what is made once is kept
class Tuned:
    """A pool of many sites, with its weights."""

    losses: PoolLosses
    total: PredictiveSum[Any]  # with the coordinator's model

    @cached_property
    def choice(self) -> Choice:
        """The candidates that were chosen, and their weights."""
        return self.losses.choice(self.total)

    @cached_property
    def nll(self) -> float:
        """Of the pool, cross-validated."""
        return float(self.choice.losses.mean())

    def without(self, sites: Iterable[Contribution]) -> Tuned:
        """Return the pool without some sites that are in it."""
        part = fold(map(self.losses.summand, sites))
        return Tuned(self.losses, self.total.combined(part, sign=-1))

    def with_sites(self, sites: Iterable[Contribution]) -> Tuned:
        """Return the pool with some sites that are not in it."""
        part = fold(map(self.losses.summand, sites))
        return Tuned(self.losses, self.total.combined(part, sign=1))

    def closely(self, site: Contribution) -> Effect:
        """What becomes of it without a site if it is chosen and tuned anew."""
        return Effect.of(self.without([site]).choice.losses - self.choice.losses, self.nll)

    def effects(self, sites: Iterable[Contribution], *, inside: bool = True) -> dict[str, Effect]:
        """By name, what each site does, at the same weights; all of them are in it, or none is."""
        found: dict[str, Effect] = {}
        num, weights = len(self.losses.targets), self.choice.tuned.weights
        size = max(1, _BLOCK // self.total.component("mixture").numel())
        for block in _blocks(sites, size):
            summands = [self.losses.summand(site, weights) for site in block]
            gaps = self._gaps(summands, -1) if inside else -self._gaps(summands, 1)
            means, errors = gaps.mean(1).tolist(), (gaps.std(1) / math.sqrt(num)).tolist()
            for site, mean, error in zip(block, means, errors, strict=True):
                found[site.site] = Effect(mean, error, self.nll - (0.0 if inside else mean), num)
        return found

    @cached_property
    def _floats(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The terms that have a weight, and the two that every sum has."""
        names = {"natural", "moments", *self.choice.tuned.weights}
        return {name: pair for name, pair in self.total.floats().items() if name in names}

    @cached_property
    def _fixed_losses(self) -> Tensor:
        return self._losses_of(self.total)

    def _gaps(self, summands: Sequence[PredictiveSum[Any]], sign: int) -> Tensor:
        """Losses with each summand added or taken away less those of the pool, (K, N)."""
        num = len(self.total)
        try:
            losses = self._losses_of(self._each(summands, sign))
        except PoolError:  # improper with one of these: what that one does cannot be told
            if len(summands) == 1:
                return torch.zeros(1, num, dtype=torch.float64)
            return torch.cat([self._gaps([one], sign) for one in summands])
        return losses.reshape(-1, num) - self._fixed_losses

    def _each(self, summands: Sequence[PredictiveSum[Any]], sign: int) -> PredictiveSum[Any]:
        """The sum with each of some sites, or without it, one below the other."""
        num, found = len(self.total), [summand.floats() for summand in summands]
        terms = {}
        for name, (value, weight) in self._floats.items():
            if not all(name in site for site in found):
                continue
            values = value + sign * torch.stack([site[name][0] for site in found])
            weights = [_by_row(weight + sign * site[name][1], num) for site in found]
            terms[name] = values.flatten(0, 1), torch.cat(weights)
        prior = self.total.prior
        if prior is not None and len(prior) > 1:
            prior = prior[torch.arange(num).repeat(len(found))]
        return self.total.with_floats(terms, self.total.num_clients + sign, prior)

    def _losses_of(self, total: PredictiveSum[Any]) -> Tensor:
        targets = self.losses.targets.repeat(len(total) // len(self.losses.targets))
        pooled = total.pool(self.choice.tuned.weights)
        losses: Tensor = -pooled.log_prob(targets).double()
        return losses


def _blocks(sites: Iterable[Contribution], size: int) -> Iterator[list[Contribution]]:
    stream = iter(sites)
    while block := list(islice(stream, size)):
        yield block


def _by_row(weight: Tensor, num: int) -> Tensor:
    """A weight, one number or one for each class, for each of so many rows."""
    return weight if weight.ndim == 2 else weight.reshape(1, -1).expand(num, -1)
