"""The temperature of a bag of classifiers, learnt on the rows that each member was not fitted to.

A member of a bag is fitted to rows drawn with replacement and leaves out about a third of them. So
for nearly every row there are members that have not seen it. Their average p_i is smoothed as the
bag's is, and one number makes it as sure as it may be:

    q_i(c) ~ p_i(c)^a,    a = argmin  -sum_i log q_i(y_i) + 1/2 (log a)^2

a = 1 / T is above 1 where the bag is too unsure, and below it where boosting has learnt noise. The
prior on log a keeps classes that rows happen to part from making the bag certain. A row has about a
third of the members, whose average is a little worse than that of all: the bag errs on the side of
doubt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # whose parts load when they are used

Array = npt.NDArray[Any]

_LEAST, _MOST = 0.05, 20.0  # of a


def inverse_temperature(
    probs: Sequence[Array], left_out: Sequence[Array], labels: Array, uniform: float
) -> float:
    """Return a of a bag.

    Args:
        probs: What each member says of the rows that it was not fitted to, (n_m, C).
        left_out: Which rows these are, by member.
        labels: The classes of all rows, (N,).
        uniform: Mass of the uniform distribution against a member's of one.
    """
    total = np.zeros((len(labels), probs[0].shape[1]))
    count = np.zeros(len(labels))
    for said, rows in zip(probs, left_out, strict=True):
        total[rows] += said
        count[rows] += 1
    known = count > 0
    if not known.any():
        return 1.0
    logs = np.log(total[known] / count[known, None] + uniform / total.shape[1])
    right = np.take_along_axis(logs, labels[known, None], axis=1)[:, 0]

    def loss(log_a: float) -> float:
        a = math.exp(log_a)
        return float((scipy.special.logsumexp(a * logs, axis=1) - a * right).sum() + 0.5 * log_a**2)

    ends = (math.log(_LEAST), math.log(_MOST))
    return math.exp(scipy.optimize.minimize_scalar(loss, bounds=ends, method="bounded").x)
