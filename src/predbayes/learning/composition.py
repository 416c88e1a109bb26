r"""What noise on sampled batches promises, and what all releases of a table promise together.

In each of T steps every person is in the batch with probability q, by a coin of her own, and a sum
of vectors of norm C is told with noise of deviation z C. With q = 1 this is one Gaussian mechanism,
and has a closed form (`learning.accounting`). Below 1 it has none: the privacy losses of a step are
put on a grid, rounded to the safe side, and folded T times, by dp-accounting. The pairs of
densities whose losses they are, in units of C:

    add-or-remove   (1 - q) N(0, z^2) + q N(1, z^2)  and  N(0, z^2), in both directions
    replace-one     (1 - q) N(0, z^2) + q N(1, z^2)  and  (1 - q) N(0, z^2) + q N(-1, z^2)

Neither is turned into the other: to replace somebody is accounted as what it is, and takes more
noise than to add somebody, of small q about twice as much.

**No tables are worse than the second pair.** Given everybody else's coins, the two answers are
P = (1 - q) N(0) + q N(g) and Q = (1 - q) N(0) + q N(h) with |g|, |h| <= C. For the hockey-stick
divergence H and any order a' = 1 + q (a - 1) >= 1, with b = a' / a (Balle, Barthe and Gaboardi,
2018, theorem 2):

    H_a'(P, Q) = q H_a(N(g), (1 - b) N(0) + b N(h)) = q E (1 - a (1 - b) e^U - a b e^V)_+

where under N(g) the exponents U, V are normal with means of minus half their variances, and, in
units of z^2, var U = |g|^2, var V = |g - h|^2, cov(U, V) = |g|^2 - g.h. All second derivatives of
the function of (e^U, e^V) are measures that are not negative, so its mean grows with every entry of
the covariance (Kahane, 1986). All three entries are largest at once: at h = -g, |g| = C. Orders
below 1 are the same with P and Q changed over. The mean over the others' coins is no worse, as H is
convex; and what was told before may choose the next step, as the pair is the same whatever it was.

q is agreed beforehand and depends on no row: with q = batch / people of a site the accountant would
need the number of people, which is not told.

**All releases of a table** (`total`). If they are of one kind, so is what they promise together.
Otherwise it is told of rows that are replaced, which each kind implies: to replace somebody is to
remove and to add, which doubles the mu of a Gaussian mechanism; a sampled one has a pair of its own
for it; and who replaces a row of somebody replaces somebody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from predbayes.learning.accounting import Adjacency, Guarantee, composed, epsilon_of
from predbayes.optional import require

_INTERVAL = 1e-3  # of the grid of privacy losses; losses are rounded to the safe side
_NOISES = 400  # different ones from 1 to e: what an accountant's last bits say is not noticed
_LEAST_NOISE = 0.3  # less is not looked for


@dataclass(frozen=True, slots=True)
class Sampled:
    """A guarantee that is kept by noise on sampled batches, and by that of one count."""

    guarantee: Guarantee
    probability: float  # q
    noise: float  # z, of a sum's deviation in clipping norms
    steps: int  # T
    count_mu: float  # of the noisy number of people


def sampled_for(
    guarantee: Guarantee, *, probability: float, steps: int, count_mu: float
) -> Sampled:
    """Return the batches with the least noise that keep a guarantee, on a grid of noises."""
    noise = _least_noise(guarantee, probability, steps, count_mu)
    return Sampled(guarantee, probability, noise, steps, count_mu)


def total(kept: Sequence[Guarantee | Sampled], delta: float) -> Guarantee:
    """Return what all guarantees that were given of one table promise together, at a delta."""
    stated = [one.guarantee if isinstance(one, Sampled) else one for one in kept]
    kinds = {(one.adjacency, one.unit) for one in stated}
    adjacency, unit = kinds.pop() if len(kinds) == 1 else ("replace-one", "row")
    mus = [
        one.mu * (1 + (one.adjacency != adjacency)) for one in kept if isinstance(one, Guarantee)
    ]
    epsilon = spent(mus, [one for one in kept if isinstance(one, Sampled)], adjacency, delta)
    return Guarantee(epsilon, delta, adjacency, unit)


def spent(
    mus: Sequence[float], batches: Sequence[Sampled], adjacency: Adjacency, delta: float
) -> float:
    """Return the epsilon at a delta of Gaussian and of sampled releases, for an adjacency."""
    # The count moves by at most 1 in either adjacency.
    mu = composed([*mus, *(one.count_mu for one in batches)])
    if not batches:
        return epsilon_of(mu, delta)
    interval = _INTERVAL * min(1.0, *(one.guarantee.epsilon for one in batches))
    losses = _losses(1 / mu, 1.0, "add-or-remove", interval) if mu > 0 else None
    for one in batches:
        steps = _losses(one.noise, one.probability, adjacency, interval).self_compose(one.steps)
        losses = steps if losses is None else losses.compose(steps)
    assert losses is not None
    return float(losses.get_epsilon_for_delta(delta))


@lru_cache
def _least_noise(guarantee: Guarantee, probability: float, steps: int, count_mu: float) -> float:
    def keeps(number: int) -> bool:
        one = Sampled(guarantee, probability, math.exp(number / _NOISES), steps, count_mu)
        return spent([], [one], guarantee.adjacency, guarantee.delta) <= guarantee.epsilon

    # Sampling only helps: with the noise of q = 1 the guarantee is kept.
    moved = 2 if guarantee.adjacency == "replace-one" else 1
    mu = math.sqrt(guarantee.mu**2 - count_mu**2)
    enough = math.ceil(_NOISES * math.log(moved * math.sqrt(steps) / mu)) + 1
    least = math.ceil(_NOISES * math.log(_LEAST_NOISE))
    stride, too_little = _NOISES // 4, enough
    # Downwards in strides, as little noise takes a large grid, and then by halves.
    while too_little > least and keeps(too_little):
        enough, too_little = too_little, too_little - stride
    while enough - too_little > 1:
        middle = (enough + too_little) // 2
        enough, too_little = (middle, too_little) if keeps(middle) else (enough, middle)
    return math.exp(enough / _NOISES)


def _losses(deviation: float, probability: float, adjacency: Adjacency, interval: float) -> Any:
    """The distribution of privacy losses of one Gaussian sum, by dp-accounting."""
    relations = require("dp_accounting", "privacy").NeighboringRelation
    replaced = adjacency == "replace-one"
    made = require("dp_accounting.pld.privacy_loss_distribution", "privacy")
    return made.from_gaussian_mechanism(
        deviation,
        sampling_prob=probability,
        value_discretization_interval=interval,
        neighboring_relation=relations.REPLACE_ONE if replaced else relations.ADD_OR_REMOVE_ONE,
    )
