"""How a plan's pool takes an upload into its sums.

No label has a part in it, and no row of the reference rows has to do with another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from predbayes.exchange.upload import Upload
from predbayes.methods.pooled import contribution
from predbayes.pools.auto import AutoPool
from predbayes.pools.pool import Pool, PoolState
from predbayes.pools.terms import beta, mixture, product
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.pooling import Contribution, PredictiveSum
from predbayes_study.plan.models import standard_prior
from predbayes_study.plan.schema import Plan


def pool_of(plan: Plan, own: Predictive | None) -> Pool[PredictiveSum[Any]]:
    """The pool that a plan names; the coordinator's model where it has a part."""
    prior: Predictive | Literal["flat"] = standard_prior(plan) or "flat"
    floor = plan.pool.floor
    match plan.pool.method:
        case "auto":
            return AutoPool(own, prior=prior, floor=floor)
        case "beta":
            return beta(prior=prior, floor=floor)
        case "mixture":
            return mixture(prior=prior, floor=floor)
        case "product":
            return product(prior=prior, floor=floor)


def lifting(plan: Plan) -> Callable[[Contribution], PredictiveSum[Any]]:
    """How the plan's pool, without the coordinator's model, lifts a contribution."""
    return partial(pool_of(plan, None).lift, PoolState(prior=standard_prior(plan)))


def contributed(upload: Upload, predictive: Predictive, most_rows: float) -> Contribution:
    """What a site predicts, within bounds, for no more rows than these."""
    return contribution(upload, predictive.bounded(LOG_PROB_FLOOR)).limited(most_rows)
