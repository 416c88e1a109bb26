"""The pools that are made of a few terms of the sites' sum; they differ in terms and weights only.

    mixture      beta = 0    (Paper: eq:mixture_model)
    product      beta = 1    (Paper: eq:prod_rule), a Bayesian committee machine
    beta         interpolates the two in log space (Paper: eq:interp_model); beta is the one of
                 least NLL on the labelled reference rows (Paper: alg:dBpredbayes, step 5)
    tempered     a control: eta_mixture / T or eta_product / T, with T tuned like beta. If beta does
                 no better than a temperature, interpolating is not what helped
    log pool     a control: eta = sum_k w_k eta_k, w_k the share of rows; nothing is tuned

Two products count each site, at each input, by what it knows there, and nothing is tuned. What a
site knows is the prior's entropy less its own, i_k(x) = H(prior) - H(p_k(x)), at least zero; for
Gaussians 1/2 (log var_0 - log var_k(x)), for C classes under a flat prior log C - H.

    gpoe         generalised product of experts (Cao and Fleet, 2014)    sum_k i_k eta_k / sum_k i_k
    rbcm         robust Bayesian committee machine                 eta_0 + sum_k i_k (eta_k - eta_0)
                 (Deisenroth and Ng, 2015)

The paper's product counts every site once, and a Gaussian one not at all as soon as its variance
reaches the prior's: there it jumps. These two fade.

Two pools count each site, at each input, by how many rows it has there, and need no label.

    gated mixture     p(y | x) = sum_k n_k r_k(x) p_k(y | x) / sum_k n_k r_k(x)
    gated log pool    log p(y | x) = sum_k n_k r_k(x) log p_k(y | x) / sum_k n_k r_k(x) + const

r_k(x) = p_k(x) / p_ref(x) is the gate of site k (`predbayes.learning.gate`). The density of the
reference rows cancels, so with exact gates the mixture is the law of all sites' rows together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from predbayes.errors import PoolError, TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.pool import BOTH_FAMILIES, PoolState, require_labels
from predbayes.pools.prior import PriorChoice, prior_predictive
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.pooling import (
    ENTROPY,
    LOG_POOL,
    ROBUST,
    Contribution,
    PredictiveSum,
    Term,
    Weight,
)
from predbayes.predictive.pooling import gated as gated_term
from predbayes.predictive.tuning import TunedPool, tune_beta, tune_temperature

Weights = float | Mapping[str, Weight]
Tune = Callable[[PredictiveSum[Any], Tensor], TunedPool | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TermPool:
    """A pool of a few terms, with weights that are fixed or tuned on the labelled rows.

    Args:
        name: What summaries call it.
        weights: What `PredictiveSum.pool` takes; or a function that finds it from the sites' sum on
            the labelled reference rows and their labels.
        terms: Terms beside mixture and product.
        gates: Whether sites send their gates.
        prior: The prior predictive that the product divides out.
        floor: Least log-probability with which a site enters the pool.
    """

    name: str
    weights: Weights | Tune
    terms: tuple[Term, ...] = ()
    gates: bool = False
    prior: PriorChoice | Predictive = "default"
    floor: float = LOG_PROB_FLOOR

    families: ClassVar[frozenset[type[Predictive]]] = BOTH_FAMILIES
    streams: ClassVar[bool] = True

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return the prior predictive, and which of the reference rows gates are learnt from."""
        if callable(self.weights):
            require_labels(reference, self.name)
        prior = prior_predictive(self.prior, reference)
        informed = any(term in (ENTROPY, ROBUST) for term in self.terms)
        if informed and prior is None and reference.targets.is_floating_point():
            raise TrainingError(
                "what a site knows of numbers is relative to a prior, and this one is flat; give a "
                "Gaussian, or reference labels and prior='reference'"
            )
        return PoolState(
            prior=prior, num_contrast=reference.distillation.stop if self.gates else None
        )

    def lift(self, state: PoolState, site: Contribution) -> PredictiveSum[Any]:
        """Return the site in the sums of the terms."""
        if self.gates and site.gate is None:
            raise PoolError(f"site {site.site!r} sent no gate, which this pool needs")
        return site.summand(prior=state.prior, terms=self.terms, floor=self.floor)

    def finish(
        self,
        state: PoolState,
        total: PredictiveSum[Any],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> PoolState:
        """Tune the weights on the labelled rows, if they are not fixed; pool on all."""
        found: Weights | TunedPool = (
            self.weights(total[reference.labelled], reference.targets)
            if callable(self.weights)
            else self.weights
        )
        if isinstance(found, TunedPool):
            beta = found.beta if "beta" in found.profiles else math.nan
            return replace(state, pooled=total.pool(found.weights), beta=beta, tuned=found)
        beta = math.nan if isinstance(found, Mapping) else float(found)
        return replace(state, pooled=total.pool(found), beta=beta)


def beta(
    beta: float | Literal["tuned"] = "tuned",
    domain: tuple[float, float] = (0.0, 1.0),
    prior_std: float | None = None,
    *,
    prior: PriorChoice | Predictive = "default",
    floor: float = LOG_PROB_FLOOR,
) -> TermPool:
    """Return the paper's pool, which interpolates product and mixture (Paper: eq:interp_model).

    Args:
        beta: Tuned on the labelled reference rows; or a number: 0 is the mixture, 1 the product.
        domain: Range of a tuned beta.
        prior_std: Spread of a prior on the tuned beta, see `predbayes.predictive.tuning.tune_beta`.
        prior: The prior predictive that the product divides out.
        floor: Least log-probability with which a site enters the pool.
    """
    if isinstance(beta, str) and beta != "tuned":
        raise TrainingError(f"beta must be a number or 'tuned', not {beta!r}")
    tune = partial(tune_beta, domain=domain, prior_std=prior_std)
    weights = tune if isinstance(beta, str) else beta
    return TermPool(name="beta", weights=weights, prior=prior, floor=floor)


def mixture(
    prior: PriorChoice | Predictive = "default", *, floor: float = LOG_PROB_FLOOR
) -> TermPool:
    """Return the mixture of the sites' predictives (Paper: eq:mixture_model)."""
    return TermPool(name="mixture", weights=0.0, prior=prior, floor=floor)


def product(
    prior: PriorChoice | Predictive = "default", *, floor: float = LOG_PROB_FLOOR
) -> TermPool:
    """Return their product, a Bayesian committee machine (Paper: eq:prod_rule)."""
    return TermPool(name="product", weights=1.0, prior=prior, floor=floor)


def tempered(
    component: Literal["mixture", "product"] = "mixture",
    *,
    prior: PriorChoice | Predictive = "default",
    floor: float = LOG_PROB_FLOOR,
) -> TermPool:
    """Return the mixture or the product with one temperature, tuned on the labelled rows."""
    if component not in ("mixture", "product"):
        raise TrainingError(f"component must be 'mixture' or 'product', not {component!r}")
    tune = partial(tune_temperature, component=component)
    return TermPool(name=f"tempered {component}", weights=tune, prior=prior, floor=floor)


def rbcm(prior: PriorChoice | Predictive = "default") -> TermPool:
    """Return the robust Bayesian committee machine."""
    return _of_term("rbcm", ROBUST, prior=prior)


def gpoe(prior: PriorChoice | Predictive = "default") -> TermPool:
    """Return the generalised product of experts, whose weights sum to one."""
    return _of_term("gpoe", ENTROPY, prior=prior)


def log_pool() -> TermPool:
    """Return the mean of the sites' natural coordinates by their rows."""
    return _of_term("log pool", LOG_POOL)


def gated(
    pool: Literal["mixture", "log"] = "mixture",
    exponent: float = 1.0,
    *,
    floor: float = LOG_PROB_FLOOR,
) -> TermPool:
    """Return the gated mixture or log pool.

    Args:
        pool: The mixture, or the log pool.
        exponent: Power of the gate: 0 is the pool without gates, 1 what the theory asks for.
        floor: Least log-probability with which a site enters the pool.
    """
    if pool not in ("mixture", "log"):
        raise TrainingError(f"pool must be 'mixture' or 'log', not {pool!r}")
    if not 0 <= exponent < float("inf"):
        raise TrainingError(f"exponent must not be negative, as {exponent} is")
    term = gated_term(exponent, "moments" if pool == "mixture" else "natural")
    name = "gated mixture" if pool == "mixture" else "gated log pool"
    return _of_term(name, term, gates=True, prior="flat", floor=floor)


def _of_term(name: str, term: Term, **options: Any) -> TermPool:
    return TermPool(name=name, weights={term.name: 1.0}, terms=(term,), **options)
