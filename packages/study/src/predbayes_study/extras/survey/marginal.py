"""What a column is like by what was told of it: a quantile function with tails.

Between told quantiles it is a straight line. Beyond them it goes on as a normal distribution does
that passes through the median and the outermost told quantile; of positive numbers whose upper half
is much wider than the lower one, a lognormal one. So no end is anybody's value: none was told.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from predbayes_study.extras.survey.surveyfile import NumberTold
from predbayes_study.plan.schema import Range

Array = np.ndarray[Any, Any]

_TAIL = (0.0005, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1)  # levels that tails are drawn through
_SKEWED = 1.5  # upper half against the lower, from which on logarithms are nearer to normal
_MOST_LOG = 60.0  # of a value to the median; a told number may be anything
_GRID = np.arange(0.5, 200) / 200  # levels at which moments are taken
_z = NormalDist().inv_cdf


@dataclass(frozen=True)
class Marginal:
    """A quantile function by its corners."""

    levels: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, told: NumberTold, limits: Range | None = None) -> Marginal | None:
        """Return that of a survey's column, within limits; None if it tells no median."""
        middle = told.middle
        if middle is None:
            return None
        corners = {level / 100: value for level, value in told.quantiles.items()}
        inner = sorted(corners)
        lower = {p: beyond(told, p) for p in _TAIL if p < inner[0]}
        upper = {1 - p: beyond(told, 1 - p) for p in _TAIL if 1 - p > inner[-1]}
        corners = dict(sorted({**lower, **corners, **upper}.items()))
        rising = np.maximum.accumulate(list(corners.values()))
        if limits is not None:
            rising = rising.clip(*limits)
        return cls(tuple(corners), tuple(rising.tolist()))

    def at(self, levels: Array) -> Array:
        """Return quantiles."""
        return np.interp(levels, self.levels, self.values)


def beyond(told: NumberTold, level: float) -> float:
    """Return a quantile outside those that are told, or the nearest told one if it is alone."""
    side = min(told.quantiles) if level < 0.5 else max(told.quantiles)
    middle, end = told.quantiles[50], told.quantiles[side]
    if side == 50:
        return middle
    far = _z(level) / _z(side / 100)
    if _is_skewed(told):
        # Numerics: a ratio of told numbers may be too small for a float, and has no logarithm.
        to_end = math.log(end) - math.log(middle)
        return middle * math.exp(min(far * to_end, _MOST_LOG))
    value = middle + (end - middle) * far
    return max(value, 0.0) if min(told.quantiles.values()) >= 0 else value


def _is_skewed(told: NumberTold) -> bool:
    values = list(told.quantiles.values())
    middle = told.quantiles[50]
    return values[0] > 0 and values[-1] - middle > _SKEWED * (middle - values[0])


def centre_and_scale(weighted: Iterable[tuple[Marginal, float]]) -> tuple[float, float]:
    """Return mean and standard deviation of a mixture of columns, each by its weight."""
    pairs = list(weighted)
    values = np.stack([one.at(_GRID) for one, _ in pairs])
    weights = np.array([weight for _, weight in pairs])[:, None]
    weights = weights / (weights.sum() * len(_GRID))
    mean = float((weights * values).sum())
    return mean, float(np.sqrt((weights * (values - mean) ** 2).sum()))


def far_ends(columns: Sequence[NumberTold], level: float) -> tuple[float, float]:
    """Return the least and the greatest of far quantiles, at a level and one minus it."""
    ends = [beyond(told, p) for told, p in itertools.product(columns, (level, 1 - level))]
    return min(ends), max(ends)
