r"""How sure a model should be that was pooled without a label: what the sites' sums say.

Sites that know other classes are weighed without a label (`predbayes.learning.gate`), but how sure
their pool should be does not follow from that. Sites have outcomes. Each tries the common model on
held-out rows, and its evaluation has a few sums more, the *echo*. Echoes add up over sites. From
them follows the level of the model, in natural coordinates

    eta -> t eta + b,      t one number; b a shift of the event's log odds, for two classes alone

**Two classes.** An echo is S(t, b) - S(1, 0), on a grid, of the negative log-likelihood

    S(t, b) = sum_i -log p_{t,b}(y_i | x_i)

of blocks of rows (`tasks.blocks`). S is convex and smooth, so a cubic spline between the points of
the grid has its minimum. The number of events follows from S, so there is no echo where it is
small. Blocks say no more than odds of 1 to 200, so a model that is often surer than that, and
wrong, is corrected too little: where t should be 1/4 it was 0.27 to 0.41.

**More classes.** Blocks of each class are too coarse for a likelihood: with ten classes and 50 rows
they more than double it. Let m_ic be the log-probability of class c in the block of row i. An
evaluation says sum_i m_i,y. An echo is what each t expects of that sum, and with what variance,

    M(t) = sum_i sum_c q_ic m_ic,     V(t) = sum_i [sum_c q_ic m_ic^2 - (sum_c q_ic m_ic)^2],

in which no outcome has a part, with q_ic = p_t(c | x_i). Then t is where (sum_i m_i,y - M)^2 / V is
least. That is right for blocks of any size if sites have the classes about as the model expects;
blocks follow from a site's own rows, and where each site has mostly two of ten classes, t was too
large by a quarter.

**Numbers.** Counts of scores |y - mean| / std in bins are in an evaluation, too. The most likely t
of normal targets with variance var / t follows from them, so there is no echo besides.

**Times.** There is none yet: the level of a survival model stays.

A weak prior keeps few rows from deciding much: log t ~ N(0, 1), b ~ N(0, 1.5^2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # whose parts load when they are used
import torch
from pydantic import Field
from torch import Tensor

from predbayes.exchange.strict import Strict
from predbayes.predictive.families import Categorical, Predictive
from predbayes_study.payloads.details import Evaluation
from predbayes_study.plan.schema import Plan

Array = npt.NDArray[np.float64]

TIMES = tuple(2.0 ** (step / 4) for step in range(-8, 13))
"""Where t is tried with more than two classes, from 1/4 to 8."""

TIMES_OF_TWO = tuple(2.0 ** (step / 2) for step in range(-4, 7))
SHIFTS = tuple(step / 2 for step in range(-4, 5))
"""Where t and b are tried with two classes: 99 points."""

_SLACK = 0.006  # share by which rounding may change a number, and a little more
_LOG_TIME_STD, _SHIFT_STD = 1.0, 1.5
_FINEST = 401  # points at which a curve is looked up


class ModelLevel(Strict):
    """What a model is multiplied by and shifted by, in natural coordinates: as far as grids go."""

    inverse_temperature: Annotated[float, Field(ge=0.1, le=10, allow_inf_nan=False)]
    shifts: tuple[Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)], ...] = ()

    def apply(self, predictive: Predictive) -> Predictive:
        """Return a predictive at this level."""
        natural = self.inverse_temperature * predictive.natural()
        if self.shifts:
            natural = natural + natural.new_tensor(self.shifts)
        return predictive.from_natural(natural)

    def fits(self, plan: Plan) -> bool:
        """Return whether it is of the plan's target."""
        return not self.shifts or len(self.shifts) == len(plan.target.classes or ())


class Heard(NamedTuple):
    """What a site said of a model."""

    weight: float  # of each of its rows
    said: Evaluation


def asks_for_echo(plan: Plan) -> bool:
    """Return whether sites say how sure the model should be: no reference row has a label."""
    return not (plan.reference.labelled or plan.reference.evaluate)


def is_possible(echo: Sequence[float], num_classes: int, num_rows: int) -> bool:
    """Return whether rows can have such an echo: one site's must not drown all others.

    No log-probability of a block is below that of a hundredth of an equal share (`Task.alike`), so
    no sum can change faster with t and b than these. S is convex in t, and in b.
    """
    least = num_rows * math.log(101 * num_classes)
    told = np.array(echo)
    if num_classes == 2:
        times, shifts = np.array(TIMES_OF_TWO), np.array(SHIFTS)
        told = told.reshape(len(times), len(shifts))
        most = np.add.outer(np.abs(times - 1) * least, np.abs(shifts) * num_rows)
        slack = _SLACK * np.abs(told)
        return bool(
            (np.abs(told) <= most * (1 + _SLACK)).all()
            and _is_convex(told, slack, times)
            and _is_convex(told.T, slack.T, shifts)
        )
    mean, variance = np.split(told, 2)
    # d M / d log t is at most 0.3 of the range of m: that of x times the slope of a logistic.
    steps = 0.3 * least * np.diff(np.log(TIMES)) + _SLACK * (np.abs(mean[1:]) + np.abs(mean[:-1]))
    return bool(
        (-least * (1 + _SLACK) <= mean).all()
        and (mean <= 0).all()
        and (np.abs(np.diff(mean)) <= steps).all()
        and (variance >= 0).all()
        and (variance <= least**2 / num_rows).all()
    )


def _is_convex(values: Array, slack: Array, places: Array) -> bool:
    """Return whether columns are convex: but for rounding, none is above its neighbours' line."""
    left, right = np.diff(places)[:-1, None], np.diff(places)[1:, None]

    def line(ends: Array) -> Array:
        made: Array = (ends[:-2] * right + ends[2:] * left) / (left + right)
        return made

    return bool((values[1:-1] <= line(values) + line(slack) + slack[1:-1] + 1e-9).all())


def echo_of_two(said: Categorical, targets: Tensor) -> tuple[float, ...]:
    """Return S(t, b) - S(1, 0) at all points of the grid.

    Args:
        said: Of blocks of rows, (N, 2).
        targets: Of the rows.
    """
    odds, event = (said.log_probs[:, 1] - said.log_probs[:, 0]).double(), targets.double()

    def total(time: float, shift: float) -> float:
        levelled = time * odds + shift
        rows = torch.nn.functional.softplus(levelled) - event * levelled
        return float(rows.sum())

    now = total(1.0, 0.0)
    return tuple(total(time, shift) - now for time in TIMES_OF_TWO for shift in SHIFTS)


def echo_of_several(said: Categorical, predictive: Categorical) -> tuple[float, ...]:
    """Return M(t), then V(t), at all points of the grid; nothing in them depends on an outcome.

    Args:
        said: Of blocks of rows, (N, C).
        predictive: Of each row, (N, C).
    """
    middles = said.log_probs.double()
    means, variances = [], []
    for time in TIMES:
        probs = (time * predictive.log_probs.double()).softmax(1)
        mean = (probs * middles).sum(1)
        means.append(float(mean.sum()))
        variances.append(float(((probs * middles.square()).sum(1) - mean.square()).sum()))
    return (*means, *variances)


def level_of_two(echo: Array) -> ModelLevel:
    """Return the level of least S, by the sum of echoes."""
    log_times, shifts = np.log(TIMES_OF_TWO), np.array(SHIFTS)
    prior = np.add.outer((log_times / _LOG_TIME_STD) ** 2, (shifts / _SHIFT_STD) ** 2) / 2
    surface = scipy.interpolate.RectBivariateSpline(
        log_times, shifts, echo.reshape(len(log_times), len(shifts)) + prior
    )
    places = np.linspace(log_times[0], log_times[-1], _FINEST)
    others = np.linspace(shifts[0], shifts[-1], _FINEST)
    row, column = divmod(int(surface(places, others).argmin()), _FINEST)
    half = float(others[column]) / 2
    return ModelLevel(inverse_temperature=float(np.exp(places[row])), shifts=(-half, half))


def level_of_several(echo: Array, total: float) -> ModelLevel:
    """Return the likeliest level by M and V, summed over sites, and the sum that there is."""
    log_times = np.log(TIMES)
    places = np.linspace(log_times[0], log_times[-1], _FINEST)
    mean, variance = (
        scipy.interpolate.PchipInterpolator(log_times, part)(places) for part in np.split(echo, 2)
    )
    loss = (total - mean) ** 2 / variance.clip(1e-9) + (places / _LOG_TIME_STD) ** 2
    return ModelLevel(inverse_temperature=float(np.exp(places[int(loss.argmin())])))


def level_of_scores(heard: Sequence[Heard]) -> ModelLevel:
    """Return the most likely level of normal targets, by sites that sent counts of scores."""
    log_times = np.linspace(np.log(TIMES[0]), np.log(TIMES[-1]), _FINEST)
    total = (log_times / _LOG_TIME_STD) ** 2 / 2
    for one in heard:
        assert one.said.scores is not None
        ends = np.exp(log_times / 2)[:, None] * np.array([0.0, *one.said.scores.edges, np.inf])
        # Numerics: differences of tails, as those of values near 1 would be rounding.
        inside = -np.diff(scipy.special.ndtr(-ends), axis=1)
        total -= one.weight * (np.log(inside.clip(1e-300)) @ np.array(one.said.scores.counts))
    return ModelLevel(inverse_temperature=float(np.exp(log_times[int(total.argmin())])))
