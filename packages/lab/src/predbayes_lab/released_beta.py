"""The tables' method "beta": the paper's pool, or with the beta of the authors' code."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from predbayes.pools.prior import PriorChoice
from predbayes.pools.terms import TermPool
from predbayes.pools.terms import beta as tuned_beta
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes_lab.released import released_beta


def beta(
    beta: float | Literal["tuned", "released"] = "tuned",
    domain: tuple[float, float] = (0.0, 1.0),
    prior_std: float | None = None,
    *,
    prior: PriorChoice | Predictive = "default",
    floor: float = LOG_PROB_FLOOR,
) -> TermPool:
    """Return the pool of a table: `predbayes.pools.terms.beta`, which also takes ``"released"``.

    That is for comparison with the figures of the authors' code only.
    """
    known = "tuned" if beta == "released" else beta
    pool = tuned_beta(known, domain, prior_std, prior=prior, floor=floor)
    return replace(pool, weights=released_beta) if beta == "released" else pool
