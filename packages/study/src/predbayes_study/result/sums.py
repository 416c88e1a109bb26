"""Sums over rows of one measure: with few digits, so that they tell of no single row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from predbayes.predictive.estimate import Estimate, share
from predbayes.predictive.measures import Measure
from predbayes_study.payloads.details import Sums
from predbayes_study.plan.schema import Plan

DIGITS = 3
ROUNDING = 0.005
"""Of what rounding to so many digits may do to a number."""

SLACK = 0.006
"""Of what it may do to a sum of several, or to a quotient."""

_EXACT = 1e-9  # of what a computer's arithmetic may do


def sums_of(measure: Measure, rows: Tensor) -> Sums:
    """Sum up the values of rows, (N,), with as many digits as may leave a site."""
    if measure.is_share:
        return Sums(total=float(rows.sum()))
    rows = rows.double()
    total, spread = rounded(float(rows.sum())), float((rows - rows.mean()).square().sum())
    return Sums(total=total, squares=total * total / len(rows) + rounded(spread))


def rounded(value: float) -> float:
    """Return a number with as many digits as may leave a site."""
    return float(f"{value:.{DIGITS}g}")


def is_rounded(measure: Measure, sums: Sums, num_rows: int) -> bool:
    """Return whether sums have no more digits than may leave a site."""
    if measure.is_share or sums.squares is None:
        return True
    spread = sums.squares - sums.total * sums.total / num_rows
    near = _EXACT * sums.squares  # which is all that is left of a spread of nothing
    return rounded(sums.total) == sums.total and abs(rounded(spread) - spread) <= near


def is_possible(plan: Plan, measure: Measure, sums: Sums, num_rows: int) -> bool:
    """Return whether some rows have such sums."""
    total, squares = sums.total, sums.squares
    if measure.is_share:
        return total == int(total) and 0 <= total <= num_rows and squares in (None, total)
    if squares is None:
        return False
    least, most = measure.of(classes=plan.classification).bounds
    if not least <= total / num_rows <= most * (1 + SLACK):
        return False
    # Of values that are not negative none is above their sum; no sum over sites is infinite.
    largest = total if least >= 0 else num_rows * most
    if squares > (largest * (1 + SLACK)) ** 2:
        return False
    return squares * num_rows >= total * total * (1 - _EXACT)  # Cauchy and Schwarz


def estimate_of_sums(measure: Measure, sums: Sums, num_rows: int) -> Estimate:
    """Return a measure and its interval from sums over rows."""
    if measure.is_share:
        return share(sums.total, num_rows)
    mean = sums.total / num_rows
    var = max(0.0, (sums.squares or 0.0) / num_rows - mean * mean)
    low, high = measure.interval(mean, math.sqrt(var / (num_rows - 1)), num_rows)
    value = float(measure.after(torch.tensor(mean, dtype=torch.float64)))
    return Estimate(value, low, high)
