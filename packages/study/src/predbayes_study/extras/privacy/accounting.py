r"""What Gaussian noise promises: mu, epsilon and delta, by closed forms.

A query whose answer moves by at most Delta (in Euclidean norm) between neighbouring tables, told
with normal noise of deviation sigma, is mu-Gaussian private with mu = Delta / sigma (Dong, Roth and
Su, 2022): telling two neighbours apart by it is as hard as telling N(0, 1) from N(mu, 1). Answers
that follow one another, each of which may depend on those before it, add in squares:

    mu        = sqrt(mu_1^2 + ... + mu_T^2),   which is sqrt(T) Delta / sigma for T equal ones
    delta     = Phi(-eps / mu + mu / 2) - e^eps Phi(-eps / mu - mu / 2)

The second line is exact, not a bound: mu is (eps, delta)-private for exactly these pairs. So no
search over orders of divergences is needed; a test compares with the accountants of dp-accounting.

Which tables are neighbours, and of whom they tell, is part of a `Guarantee`:

    adjacency   replace-one: as many people, one of them with other rows; a sum of vectors of norm C
                moves by 2 C. add-or-remove: one person more or less; it moves by C
    unit        person: all rows of somebody; row: one row, and somebody with five rows is five

**All releases of a table** (`total`). If they are of one kind, so is what they promise together.
Otherwise it is told of rows that are replaced, which each kind implies: to replace somebody is to
remove and to add, which doubles mu; and who replaces a row of somebody replaces somebody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from predbayes.learning.guarantee import Guarantee

_HALVINGS = 200  # of an interval, more than doubles tell apart
_LARGEST_MU = 1e3  # above which nothing is promised


def delta_of(mu: float, epsilon: float) -> float:
    """Return the delta of mu-Gaussian privacy at an epsilon.

    Examples:
        >>> round(delta_of(1.0, 0.0), 6), f"{delta_of(1.0, 4.0):.2e}"
        (0.382925, '4.71e-05')
    """
    if mu == 0:
        return 0.0
    from scipy.special import log_ndtr  # a plan, which has a guarantee, loads without it

    above = math.exp(log_ndtr(-epsilon / mu + mu / 2))
    # Numerics: e^eps alone overflows.
    return max(above - math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2)), 0.0)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least epsilon of mu-Gaussian privacy at a delta, rounded up if at all.

    Examples:
        >>> round(epsilon_of(1.0, 1e-5), 2), epsilon_of(0.0, 1e-5)
        (4.38, 0.0)
    """
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    from scipy.special import ndtri

    # At mu^2 / 2 - mu Phi^-1(delta) the first term alone is delta.
    enough = mu * mu / 2 - mu * float(ndtri(delta))
    return _boundary(lambda epsilon: delta_of(mu, epsilon) <= delta, 0.0, enough)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the greatest mu that is (epsilon, delta)-private, rounded down if at all.

    Examples:
        >>> round(mu_of(4.0, 1e-5), 3)
        0.925
    """
    return _boundary(lambda mu: delta_of(mu, epsilon) <= delta, _LARGEST_MU, 0.0)


def composed(mus: Sequence[float]) -> float:
    """Return the mu of several answers together."""
    return math.hypot(*mus)


def total(kept: Sequence[Guarantee], delta: float) -> Guarantee:
    """Return what all guarantees that were given of one table promise together, at a delta."""
    kinds = {(one.adjacency, one.unit) for one in kept}
    adjacency, unit = kinds.pop() if len(kinds) == 1 else ("replace-one", "row")
    mus = [mu_of(one.epsilon, one.delta) * (1 + (one.adjacency != adjacency)) for one in kept]
    return Guarantee(epsilon_of(composed(mus), delta), delta, adjacency, unit)


def _boundary(holds: Callable[[float], bool], no: float, yes: float) -> float:
    """Where a property that holds at `yes` and not at `no` begins; the property holds there."""
    for _ in range(_HALVINGS):
        middle = (no + yes) / 2
        no, yes = (no, middle) if holds(middle) else (middle, yes)
    return yes
