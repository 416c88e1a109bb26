"""What the scores of several seeds say about two methods.

A seed decides the split, the clients' rows and all that is drawn, for every method alike. So
methods are compared by *paired* differences d_s = method - baseline, one per seed that both have:
their mean, its 95 % interval, the p-value of the same t test, and that p-value after Holm's
correction for the methods compared. With J seeds

    mean(d) +- t_{J-1} sqrt((1 / J + tested / trained) var(d))

where *tested / trained* is 0 if all seeds are scored on the same test rows (the publisher's), and
the ratio of test rows to training rows if every seed draws its own from one set of rows. Such test
sets overlap, and so do the training sets: the differences are correlated, their spread alone shows
too little, and more seeds make it no better (Nadeau and Bengio, 2003, Inference for the
generalization error). The standard error of a mean over seeds is made likewise.

Two seeds have an interval, too: t with one degree of freedom makes it wide (12.7 standard errors),
and right. With the same test rows for all seeds the interval is about other seeds, for these rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from predbayes.errors import ExperimentError

Interval = tuple[float, float]
Floats = NDArray[np.float64]

LEVEL = 0.95
_NONE = (math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean of one score over seeds."""

    mean: float
    standard_error: float  # of the mean; nan for one value
    num: int

    @property
    def interval(self) -> Interval:
        """The 95 % interval of Student's t; nan for one value."""
        if math.isnan(self.standard_error):
            return _NONE
        reach = _quantile(self.num) * self.standard_error
        return self.mean - reach, self.mean + reach


@dataclass(frozen=True, slots=True)
class Comparison:
    """A method minus its baseline, paired by seed."""

    difference: float  # mean over the seeds that both have
    interval: Interval  # 95 %; nan for one seed
    p_value: float  # of the t test that the interval belongs to, two-sided; nan for one seed
    p_holm: float  # after Holm's correction for all methods compared
    num: int  # pairs


def summarise(values: ArrayLike, tested_per_trained: float = 0.0) -> Summary:
    """Return mean and standard error.

    Args:
        values: One per seed.
        tested_per_trained: Test rows per training row if each seed draws its own; 0 if all have
            the same test rows.

    Examples:
        >>> found = summarise([1.0, 2.0, 3.0])
        >>> found.mean, round(found.standard_error, 4), found.num
        (2.0, 0.5774, 3)
    """
    array = _vector(values)
    if len(array) == 0:
        raise ExperimentError("no values to summarise")
    mean, num = float(array.mean()), len(array)
    if num == 1 or not np.isfinite(array).all():
        return Summary(mean, math.nan, num)
    shrink = math.sqrt(1 / num + tested_per_trained)
    return Summary(mean, float(array.std(ddof=1)) * shrink, num)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down: below the level, all of them hold at once.

    A p-value that is nan is no test: it stays nan and does not count.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted = [math.nan] * len(p_values)
    tests = [index for index, p in enumerate(p_values) if not math.isnan(p)]
    floor = 0.0  # the adjusted p-values keep the order of the given ones
    for rank, index in enumerate(sorted(tests, key=lambda index: p_values[index])):
        floor = max(floor, min(1.0, (len(tests) - rank) * p_values[index]))
        adjusted[index] = floor
    return adjusted


def t_test(summary: Summary) -> float:
    """Test that a mean of differences is zero; return two-sided p, nan for one difference."""
    from scipy import stats

    if math.isnan(summary.standard_error):
        return math.nan
    if summary.standard_error == 0:
        return 1.0 if summary.mean == 0 else 0.0
    t = abs(summary.mean) / summary.standard_error
    return float(2 * stats.t.sf(t, summary.num - 1))


def p_of_interval(interval: Interval) -> float:
    """Return the two-sided p-value of no difference, from a 95 % interval over many rows.

    Examples:
        >>> round(p_of_interval((0.0, 2.0)), 3)
        0.05
    """
    from scipy import stats

    low, high = interval
    if low == high:
        return 1.0 if low == 0 else 0.0
    reached = abs(low + high) / (high - low)  # to zero, in half widths
    return float(2 * stats.norm.sf(reached * stats.norm.ppf((1 + LEVEL) / 2)))


def compare(
    values_by_method: Mapping[str, Mapping[int, float]],
    against: str,
    *,
    tested_per_trained: float = 0.0,
) -> dict[str, Comparison]:
    """Compare every method with one, paired by seed; leave out methods that share no seed.

    Args:
        values_by_method: A score by method and seed.
        against: The baseline among these methods.
        tested_per_trained: As in `summarise`.
    """
    if against not in values_by_method:
        raise ExperimentError(f"no values of {against!r} to compare with")
    baseline = values_by_method[against]
    comparisons: dict[str, Comparison] = {}
    for method, values in values_by_method.items():
        shared = sorted(values.keys() & baseline.keys())
        if method == against or not shared:
            continue
        found = summarise([values[s] - baseline[s] for s in shared], tested_per_trained)
        p = t_test(found)
        comparisons[method] = Comparison(found.mean, found.interval, p, p, found.num)
    adjusted = holm([comparison.p_value for comparison in comparisons.values()])
    return {
        method: replace(comparison, p_holm=p)
        for (method, comparison), p in zip(comparisons.items(), adjusted, strict=True)
    }


def over_rows(differences_by_seed: Sequence[ArrayLike]) -> Interval:
    """Return the 95 % interval, over test rows, of the mean difference per row.

    It says how far the difference depends on which rows were tested, for these trained models; it
    says nothing of other seeds. All seeds must have been tested on the same rows: a row that is
    hard for one is hard for the others, so each row counts once, with its mean over seeds.

    Args:
        differences_by_seed: Per seed, the loss of a method minus that of its baseline, row by row.
    """
    arrays = [_vector(differences) for differences in differences_by_seed]
    if not arrays or min(map(len, arrays)) < 2:
        raise ExperimentError("an interval over test rows needs two rows of each seed")
    if len({len(array) for array in arrays}) > 1:
        raise ExperimentError("an interval over test rows needs the same rows for all seeds")
    return summarise(np.mean(arrays, axis=0)).interval


def _vector(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64).reshape(-1)


def _quantile(num: int) -> float:
    """Standard errors that an interval from ``num`` values reaches to each side."""
    from scipy import stats

    return float(stats.t.ppf((1 + LEVEL) / 2, num - 1))
