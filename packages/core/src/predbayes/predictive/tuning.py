"""Tuning a pool: an exact convex solve on cached sums.

The pool's natural coordinates are affine in its weights a, and the log-partition A is convex, so

    L(a) = mean_i [ A(eta_i(a)) - <eta_i(a), T(y_i)> ],      eta_i(a) = eta_i0 + sum_j a_j d_ij

is convex, for the Gaussian on the domain where every precision is positive (L grows without
bound at its edge). Newton's method with a line search finds the minimum to rounding in a few
passes over the labelled rows; no network is run again. The paper's beta (eq:interp_model) is the
case of one direction, from the mixture to the product.

Deviation: the paper runs ten epochs of Adam from 0.5, which does not converge on small sets.

A weak prior a_j ~ N(0, s^2) around the mixture may be added: with few labels even one scalar
overfits. Each weight comes with its profile likelihood and the 95 % interval

    { a_j : 2 N [L_profile(a_j) - L(best)] <= chi2_1(0.95) }
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.predictive.families import Predictive
from predbayes.predictive.pooling import PredictiveSum, Weight

Vector = np.ndarray[Any, np.dtype[np.float64]]

_CHI2_95 = 3.841458820694124  # 95 % quantile of chi-squared with one degree of freedom
_MAX_NEWTON_STEPS = 100
_MAX_STEP = 5.0  # parameters are of order one
_CURVE_POINTS = 21


@dataclass(frozen=True, slots=True)
class Profile:
    """One weight of a tuned pool: its value, its 95 % interval and the curve they are read off."""

    value: float
    interval: tuple[float, float]
    curve: tuple[tuple[float, float], ...]  # (weight, NLL per row), the others at their best

    def as_weight(self, shift: float, count: int) -> Profile:
        """From the solver's parameter to a component's weight: shift + parameter / count."""
        low, high = self.interval
        return Profile(
            shift + self.value / count,
            (shift + low / count, shift + high / count),
            tuple((shift + value / count, nll) for value, nll in self.curve),
        )


@dataclass(frozen=True, slots=True)
class TunedPool:
    """The weights of a pool and how well the labelled rows determine them."""

    weights: dict[str, Weight]  # what `PredictiveSum.pool` takes
    nll: float  # per labelled row, at the optimum
    num_labels: int
    profiles: dict[str, Profile]  # by free parameter: "beta", or a component's name

    @property
    def beta(self) -> float:
        """The weight of the product in the paper's pool."""
        if "beta" not in self.profiles:
            raise PoolError("this pool has free weights and no beta; see its weights")
        return self.profiles["beta"].value


def tune_beta(
    total: PredictiveSum[Any],
    targets: Tensor,
    *,
    domain: tuple[float, float] = (0.0, 1.0),
    prior_std: float | None = None,
    profiles: bool = True,
) -> TunedPool:
    """The beta of least NLL (Paper: eq:interp_model), exactly.

    Args:
        total: The clients' sum on the labelled reference rows.
        targets: Those rows' labels.
        domain: Where to look; beyond [0, 1] a Gaussian pool may be improper and is avoided.
        prior_std: Spread of a normal prior on n × beta, the weight of the clients' *mean* log p, so
            that one value suits any number of clients; None is no prior.
        profiles: Whether to find the interval, too, which takes most of the time.
    """
    if not domain[0] < domain[1]:
        raise PoolError(f"the domain of beta must be an interval (low, high), not {domain}")
    # The solver's parameter is n × beta, of order one however many clients there are.
    count = total.num_clients
    mixture = total.component("mixture")
    direction = (total.component("product") - mixture) / count
    problem = _Problem.build(total.family, mixture, [direction], targets, prior_std)
    bounds = [(count * domain[0], count * domain[1])]
    best = problem.solve(bounds)
    beta = float(best[0]) / count
    weights: dict[str, Weight] = {"mixture": 1.0 - beta, "product": beta}
    found = {}
    if profiles:
        found["beta"] = problem.profile(0, best, bounds).as_weight(0.0, count)
    return TunedPool(weights, problem.nll(best), len(targets), found)


def tune_weights(
    total: PredictiveSum[Any],
    targets: Tensor,
    *,
    components: Sequence[str] = ("mixture", "product"),
    by_class: Sequence[str] = (),
    base: str = "mixture",
    prior_std: float | None = 1.0,
    nonnegative: bool = False,
    profiles: bool = True,
) -> TunedPool:
    """Free weights for several components, drawn towards one of them alone, the base.

    Args:
        total: The clients' sum on the labelled reference rows.
        targets: Those rows' labels.
        components: Names that `PredictiveSum.component` knows, each once.
        by_class: Components of a categorical that get one weight for each class, on top.
        base: Always in the pool; it keeps weight 1 where it is not listed.
        prior_std: Spread of each weight around the base's (1 for it, 0 for the others; the
            products' are taken per client, see `tune_beta`); None is no prior.
        nonnegative: Whether weights must not be negative. A Gaussian pool is then proper also at
            inputs that were not seen here.
        profiles: Whether to find intervals, too; of many weights they take a while.
    """
    if len({*components, *by_class}) != len(components) + len(by_class):
        raise PoolError(f"each component may be listed once, not {[*components, *by_class]}")
    # Products are the components whose size grows with the number of clients.
    counts = [total.num_clients if name in ("product", "robust") else 1 for name in components]
    starts = {name: float(name == base) for name in (*components, *by_class)}
    directions = [
        total.component(name) / count for name, count in zip(components, counts, strict=True)
    ]
    offset = total.component(base)
    masks = torch.eye(offset.shape[1], dtype=torch.float64)
    directions += [total.component(name) * mask for name in by_class for mask in masks]
    problem = _Problem.build(total.family, offset, directions, targets, prior_std)
    of_directions = [*components, *(name for name in by_class for _ in masks)]
    bounds = [(-starts[name] if nonnegative else -math.inf, math.inf) for name in of_directions]
    best = problem.solve(bounds) if bounds else np.zeros(0)
    weights: dict[str, Weight] = {base: 1.0}
    found = {}
    for index, (name, count) in enumerate(zip(components, counts, strict=True)):
        weights[name] = starts[name] + float(best[index]) / count
        if profiles:
            found[name] = problem.profile(index, best, bounds).as_weight(starts[name], count)
    of_classes = best[len(components) :].reshape(len(by_class), len(masks))
    for name, row in zip(by_class, of_classes, strict=True):
        weights[name] = tuple(starts[name] + float(weight) for weight in row)
    return TunedPool(weights, problem.nll(best), len(targets), found)


def tune_temperature(
    total: PredictiveSum[Any],
    targets: Tensor,
    *,
    component: str = "mixture",
    prior_std: float | None = None,
) -> TunedPool:
    """One temperature T on one component, eta = component / T (Guo et al., 2017), exactly.

    For a Gaussian it scales the variance and leaves the mean. The profile is that of 1 / T, and
    ``prior_std`` the spread of a normal prior on it around 1, for the product on n / T.
    """
    # As in `tune_beta` the product is taken per client, so that the parameter is of order one.
    count = total.num_clients if component == "product" else 1
    natural = total.component(component) / count
    problem = _Problem.build(total.family, natural, [natural], targets, prior_std)
    bounds = [(-0.999, math.inf)]  # the parameter is count / T - 1
    best = problem.solve(bounds)
    profile = problem.profile(0, best, bounds).as_weight(1 / count, count)
    weights: dict[str, Weight] = {component: profile.value}
    return TunedPool(weights, problem.nll(best), len(targets), {"inverse_temperature": profile})


Bounds = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Problem:
    """The convex objective of the module's docstring, with everything that depends on y summed."""

    family: type[Predictive]
    offset: Tensor  # (N, D) eta_0
    directions: Tensor  # (J, N, D)
    offset_stat: float  # mean over rows of <eta_0, T(y)>
    direction_stats: Vector  # (J,) mean over rows of <d_j, T(y)>
    penalty: float  # precision of the prior, per row

    @classmethod
    def build(
        cls,
        family: type[Predictive],
        offset: Tensor,
        directions: Sequence[Tensor],
        targets: Tensor,
        prior_std: float | None,
    ) -> _Problem:
        if len(targets) != len(offset) or not len(targets):
            raise PoolError(
                f"{len(targets)} labels for {len(offset)} predictives; a pool is tuned on labelled "
                "reference rows, one label for each"
            )
        family.from_natural(offset).check(targets)
        targets = targets.double() if targets.is_floating_point() else targets
        stacked = (
            torch.stack(list(directions)) if directions else offset.new_zeros(0, *offset.shape)
        )
        offset, stacked = family.observed(offset, stacked, targets)
        return cls(
            family,
            offset,
            stacked,
            offset_stat=float(family.inner(offset, targets).mean()),
            direction_stats=family.inner(stacked, targets).mean(-1).numpy(),
            penalty=0.0 if prior_std is None else prior_std**-2 / len(targets),
        )

    def natural(self, weights: Vector) -> Tensor:
        shift: Tensor = torch.tensordot(torch.from_numpy(weights), self.directions, dims=1)
        return self.offset + shift

    def nll(self, weights: Vector) -> float:
        """Per row, without the prior."""
        partition = float(self.family.log_partition(self.natural(weights)).mean())
        return partition - self.offset_stat - float(weights @ self.direction_stats)

    def value(self, weights: Vector) -> float:
        return self.nll(weights) + 0.5 * self.penalty * float(weights @ weights)

    def derivatives(self, weights: Vector) -> tuple[Vector, Vector]:
        slope, curvature = self.family.derivatives(self.natural(weights), self.directions)
        gradient = slope.numpy() - self.direction_stats + self.penalty * weights
        hessian = curvature.numpy() + self.penalty * np.eye(len(weights))
        return gradient, hessian

    def solve(self, bounds: Bounds, start: Vector | None = None) -> Vector:
        """Projected Newton: exact on the free weights, the others held at their bounds."""
        low, high = np.array(bounds).T
        point = np.clip(np.zeros(len(bounds)) if start is None else start, low, high)
        value = self.value(point)
        if not math.isfinite(value):
            raise PoolError("the pool is improper where tuning starts; give the clients a prior")
        for _ in range(_MAX_NEWTON_STEPS):
            gradient, hessian = self.derivatives(point)
            held = ((point <= low) & (gradient > 0)) | ((point >= high) & (gradient < 0))
            step = _newton_step(gradient, hessian, ~held)
            # Where the objective is nearly linear Newton's step would leap out of sight.
            reach = _MAX_STEP * max(1.0, float(np.abs(point).max()))
            step *= min(1.0, reach / max(float(np.abs(step).max()), 1e-300))
            if -float(gradient @ step) <= 1e-15 * max(1.0, abs(value)):
                break  # what is left to gain is rounding
            better, better_value = self._search(point, value, step, gradient, np.array(bounds))
            if better_value >= value:
                break
            point, value = better, better_value
        return point

    def _search(
        self, point: Vector, value: float, step: Vector, gradient: Vector, bounds: Vector
    ) -> tuple[Vector, float]:
        """Halve the step until it helps enough; improper points count as infinitely bad."""
        low, high = bounds.T
        length = 1.0
        while length > 1e-12:
            candidate = np.clip(point + length * step, low, high)
            candidate_value = self.value(candidate)
            if candidate_value <= value + 1e-4 * float(gradient @ (candidate - point)):
                return candidate, candidate_value
            length /= 2
        return point, value

    def profile(self, index: int, best: Vector, bounds: Bounds) -> Profile:
        """The best NLL for each value of one weight, and where it is 95 % likely to lie."""
        level = self.value(best) + 0.5 * _CHI2_95 / len(self.offset)

        def excess(value: float) -> float:
            at_value = self._solve_with(index, value, best, bounds)
            return self.value(at_value) - level

        _, hessian = self.derivatives(best)
        scale = math.sqrt(_CHI2_95 / (len(self.offset) * max(hessian[index, index], 1e-12)))
        low, high = (
            _crossing(excess, float(best[index]), side * scale, bounds[index])
            for side in (-1.0, 1.0)
        )
        # Twice the interval, within the domain; where the data say nothing, a few standard errors.
        reach = 2 * (high - low) if math.isfinite(high - low) else 4 * scale
        left, right = (
            max(bounds[index][0], best[index] - reach),
            min(bounds[index][1], best[index] + reach),
        )
        grid = sorted({*np.linspace(left, right, _CURVE_POINTS).tolist(), float(best[index])})
        curve = tuple(
            (value, self.nll(self._solve_with(index, value, best, bounds))) for value in grid
        )
        return Profile(float(best[index]), (low, high), curve)

    def _solve_with(self, index: int, value: float, best: Vector, bounds: Bounds) -> Vector:
        """The optimum of the other weights with one held at ``value``."""
        start = best.copy()
        start[index] = value
        if len(bounds) == 1:
            return start
        held = [(value, value) if j == index else bound for j, bound in enumerate(bounds)]
        # An improper start has an infinite value, which is all that a profile needs to know.
        return self.solve(held, start) if math.isfinite(self.value(start)) else start


def _newton_step(gradient: Vector, hessian: Vector, free: np.ndarray[Any, Any]) -> Vector:
    step = np.zeros_like(gradient)
    if free.any():
        # Least squares: with one client, or two equal components, directions vanish or repeat.
        block = hessian[np.ix_(free, free)]
        step[free] = -np.linalg.lstsq(block, gradient[free], rcond=1e-14)[0]
        # No curvature left to see, or only its rounding: go straight downhill.
        if not (np.abs(step).max() < 1e100 and float(gradient @ step) < 0):
            step[free] = -gradient[free]
    return step


def _crossing(
    excess: Callable[[float], float], best: float, step: float, domain: tuple[float, float]
) -> float:
    """Where a convex function that is negative at ``best`` crosses zero in the step's direction."""
    limit = domain[1] if step > 0 else domain[0]

    def clipped(value: float) -> float:
        return min(value, limit) if step > 0 else max(value, limit)

    def finite(value: float) -> float:
        # The root finder wants a number also where the pool is improper.
        return min(excess(value), 1e300)

    inner, outer = best, clipped(best + step)
    for _ in range(40):
        if finite(outer) > 0:
            return float(scipy.optimize.brentq(finite, inner, outer, xtol=1e-7, rtol=1e-7))
        if outer == limit:
            return limit
        inner, outer = outer, clipped(best + 2 * (outer - best))
    return limit
