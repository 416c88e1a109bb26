"""How much a site may count, whatever it says: one rule for every word that is weight.

A site's own word sets its weight: its number of rows, its gate, the precision that it claims, the
rows of its sums and of its survey. With m what the median site says, of two medians the lower,

    most = max_weight m

is what any site counts for. `predbayes_study.result.weighing` applies it to uploads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from predbayes_study.plan.schema import MAX_WEIGHT, Plan


def most(words: Any, times: float, usual: float = 0.0) -> Any:
    """Return the most that any site counts for, (...).

    Args:
        words: What each site says, (K, ...).
        times: How many times the median site's word it may be.
        usual: The least that the median is taken for.

    Examples:
        >>> float(most([100, 120, 10**9], 3.0))
        360.0
    """
    import numpy as np  # here, so that `study status` starts without it

    said = np.asarray(words)
    middle = (len(said) - 1) // 2
    return times * np.partition(said, middle, axis=0)[middle].clip(usual)


@dataclass(frozen=True, slots=True)
class RowCaps:
    """How many rows a site counts for at most, and how many if something speaks against it."""

    most: float = math.inf
    median: float = math.inf
    least: float = math.inf

    @classmethod
    def of(cls, plan: Plan, rows: Sequence[int], *, judged: bool = True) -> RowCaps:
        """Return the plan's limits for sites of these rows.

        Args:
            plan: The plan; a draft that does not say has the limit that it is frozen with.
            rows: What the sites state.
            judged: Whether something can be found against a site; otherwise all are bounded.
        """
        times = plan.rules.max_weight
        if times is None and plan.frozen is None:
            times = MAX_WEIGHT
        if times is None or not rows:
            return cls()
        median = float(median_low(rows))
        return cls(times * median if judged else median, median, float(min(rows)))
