"""Products that count each site, at each input, by what it knows there; nothing is tuned.

What a site knows is the prior's entropy less its own, i_k(x) = H(prior) - H(p_k(x)), at least zero;
for Gaussians 1/2 (log var_0 - log var_k(x)), for C classes under a flat prior log C - H.

    gpoe   generalised product of experts (Cao and Fleet, 2014)    sum_k i_k eta_k / sum_k i_k
    rbcm   robust Bayesian committee machine                       eta_0 + sum_k i_k (eta_k - eta_0)
           (Deisenroth and Ng, 2015)

The committee machine of the paper's product, `predbayes.pools.beta`, counts every site once, and a
Gaussian one not at all as soon as its variance reaches the prior's: there it jumps.
"""

from __future__ import annotations

from dataclasses import dataclass

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.pool import PoolState
from predbayes.pools.prior import OneTerm, PriorChoice
from predbayes.predictive.families import Predictive
from predbayes.predictive.pooling import ENTROPY, ROBUST, Term


@dataclass(frozen=True, slots=True)
class InformedPool(OneTerm):
    """A pool that is one term, weighted by what sites know.

    Args:
        term: `predbayes.predictive.pooling.ROBUST` or `ENTROPY`.
    """

    term: Term = ROBUST

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return the prior predictive; numbers must have one."""
        state = OneTerm.init(self, reference)
        if state.prior is None and reference.targets.is_floating_point():
            raise TrainingError(
                "what a site knows of numbers is relative to a prior, and this one is flat; give a "
                "Gaussian, or reference labels and prior='reference'"
            )
        return state


def rbcm(prior: PriorChoice | Predictive = "default") -> InformedPool:
    """Return the robust Bayesian committee machine."""
    return InformedPool(prior=prior, term=ROBUST)


def gpoe(prior: PriorChoice | Predictive = "default") -> InformedPool:
    """Return the generalised product of experts, whose weights sum to one."""
    return InformedPool(prior=prior, term=ENTROPY)
