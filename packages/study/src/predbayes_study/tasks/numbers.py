"""Numbers: a value is predicted, by a normal distribution in standard units of the target.

Standard units are (t - centre) / scale of the transformed target t; a plan that has no centre and
scale yet leaves t as it is. A Gaussian of mean m and variance v on the logarithm of the target is a
lognormal in its unit: median exp(m), mean exp(m + v / 2), standard deviation
mean * sqrt(exp(v) - 1); quantiles go through the transform as they are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.errors import PoolError, UploadError
from predbayes.exchange.strict import Finite
from predbayes.learning.estimators import SklearnRegressor
from predbayes.learning.likelihood import LearnedNoise
from predbayes.learning.named import CALIBRATED
from predbayes.predictive import metrics
from predbayes.predictive.estimate import share
from predbayes.predictive.families import Gaussian
from predbayes.predictive.measures import LARGEST, MEASURES, TargetUnit
from predbayes_study.plan.schema import Plan, Positive
from predbayes_study.result.schema import AtSites, ClassRisk, IntervalCalibration, Level
from predbayes_study.rules import Finding, error, warning
from predbayes_study.tables.problem import Kind
from predbayes_study.tasks.blocks import Alike, blocks_of, middles, within
from predbayes_study.tasks.echo import Heard, ModelLevel, level_of_scores
from predbayes_study.tasks.task import (
    MOST_MEAN,
    NUM_MEMBERS,
    TAILS,
    Adjustment,
    Array,
    Faults,
    Task,
    percent,
)
from predbayes_study.wording import plain

PRIOR_ROWS = 8  # that say k = 1: about the weight of log k ~ N(0, 0.5^2)

NUMBERS = ("mean", "median", "std", "low", "high")
"""What is said of a number: all in the target's unit, ``low`` and ``high`` at the level asked."""

MAX_STANDARD = 1e4
"""Of means, variances and targets: in standard deviations of the target none is larger."""

_LEVELS = (0.5, 0.8, 0.9, 0.95)
_FARTHEST = 5.0
_LEAST_VAR = 1e-4  # of numbers that are all the same
_LEAST_EPISTEMIC = 1e-4  # of the whole variance, as `predbayes.predictive.pooling.trust` has it
_LEAST_OF_MEAN = 0.1  # of the mean variance, with which a row enters a shift


class ShiftScale(Adjustment):
    """A site's own level of the target, and its own spread about what is predicted."""

    kind: Literal["shift-scale"] = "shift-scale"
    shift: Finite  # of the mean, in standard units
    var_factor: Positive

    def fits(self, plan: Plan) -> bool:
        """Return whether the plan's target is a number."""
        return plan.target.task == "regression"

    def apply(self, predictive: Gaussian) -> Gaussian:
        """Move and widen a predictive."""
        return Gaussian(predictive.mean + self.shift, self.var_factor * predictive.var)


class Numbers(Task[Gaussian]):
    """A number is predicted."""

    family = Gaussian
    predicts = "a number"
    gives = "A mean and an interval."
    is_scaled = True
    has_intervals = True
    num_noise = 1
    shown_as = "coverage"
    # Two hundredths apart, from 0.05 to 1,097 standard deviations.
    grid = tuple(float(f"{math.exp(step / 50):.6g}") for step in range(-150, 351))
    outputs = tuple(f"target_{name}" for name in NUMBERS)  # "mean" is also an operator

    def in_words(self, plan: Plan) -> str:
        """Return that it is a number."""
        del plan
        return "regression"

    def encode(self, plan: Plan, columns: Mapping[str, Array]) -> tuple[Array, Faults]:
        """Return numbers in standard units."""
        name, faults = plan.target.name, dict[Kind, Array]()
        (centre, scale), values = target_units(plan), columns[name]
        if plan.target.transform == "log":
            faults = {Kind.NOT_POSITIVE: values <= 0}
            values = np.log(np.where(values > 0, values, np.nan))
        return (values - centre) / scale, {name: faults}

    def from_labels(self, plan: Plan, labels: Sequence[Any]) -> Tensor:
        """Return numbers in standard units."""
        values = np.array([x if isinstance(x, float) else math.nan for x in labels])
        found = torch.from_numpy(self.encode(plan, {plan.target.name: values})[0])
        if not bool(found.isfinite().all()):
            raise PoolError("a label is no number of the plan's")
        return found.to(self.dtype)

    def doubts(self, plan: Plan, targets: Tensor, least: int) -> Iterator[Finding]:
        """Yield that a target does not vary."""
        del least
        if bool((targets == targets[0]).all()):
            yield warning(f"{plan.target.name}: the same in every row; is it the right column?")

    def label_doubts(self, plan: Plan, targets: Tensor) -> Iterator[Finding]:
        """Yield that labels do not vary, or are skewed."""
        if bool((targets == targets[0]).all()):
            yield error(f"target: {plan.target.name!r} is the same in every reference row")
        centre, scale = target_units(plan)
        values = centre + scale * targets
        is_positive = plan.target.transform == "none" and bool((values > 0).all())
        if is_positive and float(values.mean()) < 1.96 * float(values.std()):
            yield warning(
                f"target: {plan.target.name!r} is positive and skewed, so that intervals of many "
                'rows would begin below 0; transform = "log" is for such targets'
            )

    def by_chance(self, num_scored: int) -> str:
        """Return how well a coverage would be known."""
        if not num_scored:
            return ""
        off = 1.96 * math.sqrt(0.95 * 0.05 / num_scored)
        return f". The coverage of 95 % intervals would be known to ±{100 * off:.0f} points only"

    def likelihood(self, plan: Plan, *, per_input: bool = False) -> LearnedNoise:
        """Return a mean, and a variance that is learnt."""
        del plan
        return LearnedNoise(per_input=per_input)

    def learner(self, plan: Plan, name: str, estimator: Any) -> SklearnRegressor:
        """Return the learner of a regressor."""
        del plan, name
        return SklearnRegressor(estimator, discreet=True)

    def simple(self, plan: Plan, name: str, estimator: Callable[[], Any]) -> SklearnRegressor:
        """Return a few fits."""
        del plan
        return SklearnRegressor(estimator(), size=NUM_MEMBERS, discreet=name in CALIBRATED)

    def base_rate(self, plan: Plan, targets: Tensor) -> Gaussian:
        """Return mean and variance."""
        del plan
        var = targets.var(correction=0).clamp_min(_LEAST_VAR)
        return Gaussian(targets.mean()[None], var[None])

    def prior(self) -> Gaussian:
        """Return the standard normal, in standard units."""
        return Gaussian(torch.zeros(1), torch.ones(1))

    def shapes(self, plan: Plan) -> Mapping[str, tuple[int, ...]]:
        """Return a mean and two variances for each reference row."""
        names = ("mean", "epistemic_var", "noise_var")
        return dict.fromkeys(names, (plan.reference.num_rows,))

    def require_plausible(self, arrays: Mapping[str, Tensor]) -> None:
        """Refuse means and variances that are far from any target."""
        # Numerics: not abs, of which the least integer is negative.
        if max(max(float(a.max()), -float(a.min())) for a in arrays.values()) > MAX_STANDARD:
            raise UploadError("means or variances are beyond any plausible target")

    def describe(self, plan: Plan, predictive: Gaussian, level: float) -> dict[str, Tensor]:
        """Return each of `NUMBERS`, (N,)."""
        mean, std = predictive.mean.double(), predictive.var.double().sqrt()
        reach = statistics.NormalDist().inv_cdf((1 + level) / 2) * std
        median, low, high = (untransform(plan, q) for q in (mean, mean - reach, mean + reach))
        mean, std = _moments_in_unit(plan, mean, std)
        return {"mean": mean, "median": median, "std": std, "low": low, "high": high}

    def columns(self, plan: Plan, described: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return each of `NUMBERS`."""
        del plan
        return {name: values.numpy() for name, values in described.items()}

    def adjust(self, predictive: Gaussian, targets: Tensor) -> ShiftScale:
        """Fit a shift and a factor."""
        return fit_shift_scale(predictive, targets)

    def errors(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return squared errors."""
        return values["rmse"]

    def unit(self, plan: Plan) -> TargetUnit:
        """Return the target's own unit."""

        def errors(predictive: Gaussian, targets: Tensor) -> Tensor:
            mean = self.describe(plan, predictive, 0.95)["mean"]
            return _tellable(mean - untransform(plan, targets.double()))

        def widths(predictive: Gaussian, level: float) -> Tensor:
            described = self.describe(plan, predictive, level)
            return _tellable(described["high"] - described["low"])

        scale = target_units(plan)[1] if plan.target.transform == "none" else None
        values = lambda y: _tellable(untransform(plan, y.double()))  # noqa: E731
        return TargetUnit(errors, widths, scale, values)

    def worst(self, predictive: Gaussian) -> Tensor:
        """Return targets that are far away."""
        return torch.where(predictive.mean > 0, -MAX_STANDARD, MAX_STANDARD)

    def alike(
        self, predictive: Gaussian, targets: Tensor, least: int, apart: Tensor
    ) -> Alike[Gaussian]:
        """Return means and variances of blocks.

        No mean is further from the rows' own than five of their standard deviations, which no plan
        can choose.
        """
        centre, reach = float(targets.double().mean()), _FARTHEST * float(targets.double().std())
        means = within(predictive.mean.clamp(centre - reach, centre + reach), least)
        variances = within(predictive.var, least)
        # A mean matters by standard deviations, a variance by its logarithm.
        scaled = torch.stack([means / variances.median().sqrt(), variances.log()], 1)
        blocks = blocks_of(scaled, least, apart)
        said = middles(torch.stack([means, variances], 1), blocks)
        return Alike(Gaussian(said[:, 0], said[:, 1]), blocks[:, None])

    def calibration(
        self, plan: Plan, predictive: Gaussian, targets: Tensor, *, rng: torch.Generator
    ) -> IntervalCalibration:
        """Count where targets are in their predictives: by decile, and in central intervals."""
        del plan, rng
        uniform = metrics.pit(predictive, targets).double()
        deciles = torch.histc(uniform, 10, 0, 1).long().tolist()
        low, high = (int(scipy.stats.binom.ppf(tail, len(targets), 0.1)) for tail in TAILS)
        levels = tuple(
            Level(level=level, coverage=share(hits, len(targets)))
            for level in _LEVELS
            for hits in [int(metrics.covered_rows(predictive, targets, level).sum())]
        )
        return IntervalCalibration(pit=tuple(deciles), null_low=low, null_high=high, levels=levels)

    def verdict(
        self,
        plan: Plan,
        shown: IntervalCalibration,
        num_rows: int,
        nothing: str,
        risks: Sequence[ClassRisk] = (),
    ) -> tuple[bool, str]:
        """Judge by the widest interval."""
        del plan, risks
        widest = shown.levels[-1]
        share = widest.coverage
        value, low, high = (f"{100 * x:.1f}" for x in (share.value, share.low, share.high))
        words = (
            f"intervals of {100 * widest.level:.0f} % hold {value} % of {num_rows:,} scored "
            f"targets (95 % interval {low} to {high})"
        )
        if share.low <= widest.level <= share.high:
            return True, f"{nothing.rstrip(',')}: {words}."
        side = "narrow" if share.value < widest.level else "wide"
        return True, f"The intervals are too {side}: {words}."

    def level(self, plan: Plan, heard: Sequence[Heard]) -> ModelLevel | None:
        """Return the level that counts of scores ask for."""
        del plan
        counted = [one for one in heard if one.said.scores is not None]
        return level_of_scores(counted) if counted else None

    def strangeness(self, predictive: Gaussian, targets: Tensor) -> Tensor:
        """Return how many standard deviations targets are from means."""
        return (targets.double() - predictive.mean.double()).abs() / predictive.var.double().sqrt()

    def promised(
        self, plan: Plan, predictive: Gaussian, bound: float
    ) -> dict[str, list[str] | Tensor]:
        """Return the ends of intervals, ``lower`` and ``upper``."""
        mean, reach = predictive.mean.double(), bound * predictive.var.double().sqrt()
        return {"lower": untransform(plan, mean - reach), "upper": untransform(plan, mean + reach)}

    def promised_size(self, plan: Plan, predictive: Gaussian, bound: float) -> Tensor:
        """Return how wide intervals are."""
        low, high = self.promised(plan, predictive, bound).values()
        assert isinstance(low, Tensor)
        assert isinstance(high, Tensor)
        return high - low

    def own_bound(self, level: float) -> float:
        """Return the quantile of the normal distribution."""
        return statistics.NormalDist().inv_cdf((1 + level) / 2)

    def at_sites(self, found: AtSites, fewest: int) -> str:
        """Return how many true values are in intervals."""
        del fewest
        name = "coverage_95"
        share = found.pooled.metrics[name]
        assert MEASURES[name].is_share
        fits = "as many as they should" if share.low <= 0.95 <= share.high else _unclipped(found)
        return (
            f"intervals of 95 % hold {percent(share.value)} of true values (95 % interval "
            f"{percent(share.low)} to {percent(share.high)}): {fits}."
        )

    def nll_note(self, plan: Plan) -> str:
        """Return what a standard unit is."""
        scale = target_units(plan)[1]
        if plan.target.transform == "log":
            one_unit = f"a factor of {plain(math.exp(scale))}"
        else:
            one_unit = f"{plain(scale)} {plan.target.unit}".rstrip()
        return f"It is of the target in standard units, one unit being {one_unit}."

    def hellinger(self, one: Gaussian, other: Gaussian) -> Tensor:
        """Return the distance of two normal distributions."""
        var, other_var = one.var.double(), other.var.double()
        both = var + other_var
        shift = (one.mean.double() - other.mean.double()).square()
        overlap = (2 * (var * other_var).sqrt() / both).sqrt() * (-0.25 * shift / both).exp()
        return (1 - overlap).clamp_min(0)

    def distances(self, predictives: Sequence[Gaussian]) -> Tensor:
        """Return the distances of one after the other."""
        means = torch.stack([p.mean.double() for p in predictives])
        everybody = Gaussian(means, torch.stack([p.var.double() for p in predictives]))
        return torch.stack([self.hellinger(one, everybody).mean(-1) for one in predictives])

    def point(self, some: Sequence[Gaussian]) -> Callable[[Gaussian], Tensor]:
        """Return (shift / std)^2 / 8 + (log ratio of stds)^2 / 4 for near ones."""
        std = (0.5 * torch.stack([p.var.double().log() for p in some]).mean(0)).exp()

        def scaled(predictive: Gaussian) -> Tensor:
            logs = predictive.var.double().log()
            parts = predictive.mean.double() / std / math.sqrt(8), logs / 4
            return (torch.cat(parts) / math.sqrt(len(std))).float()

        return scaled

    def is_same(self, one: Gaussian, other: Gaussian, nearly: float) -> bool:
        """Compare means in standard deviations, and variances by their ratio."""
        shift = (one.mean - other.mean).abs() < nearly * one.var.sqrt()
        return bool(shift.all()) and bool(((one.var / other.var).log().abs() < nearly).all())

    def mean(self, predictive: Gaussian) -> Gaussian:
        """Return the mean of means, and of variances."""
        mean, var = predictive.mean.double().mean(), predictive.var.double().mean()
        return Gaussian(mean[None], var[None])

    def movement(self, predictive: Gaussian) -> str:
        """Return the range of the means."""
        means = predictive.mean
        return f"{float(means.max() - means.min()):.2g} standard units"

    def agreement(self, predictive: Gaussian, targets: Tensor) -> tuple[Tensor, Tensor, int]:
        """Score means by how sure they are."""
        residuals = targets.double() - targets.double().mean()
        target_var = float(residuals.square().mean())
        if not target_var > 0:
            return residuals, residuals, 0
        reach = MOST_MEAN * math.sqrt(target_var)
        means = (predictive.mean.double() - targets.double().mean()).clamp(-reach, reach)
        certainty = target_var / (target_var + predictive.var.double())
        centred = certainty * (means - (certainty * means).sum() / certainty.sum())
        return centred * residuals, centred.square() * target_var, 1

    def without_level(self, predictive: Gaussian) -> Tensor:
        """Return bounded means."""
        return predictive.mean.double().clamp(-MOST_MEAN, MOST_MEAN).unsqueeze(1)

    def expected(self, moments: Tensor) -> Tensor:
        """Return bounded means."""
        return moments[:, :1].clamp(-MOST_MEAN, MOST_MEAN)

    def assurance(self, predictive: Gaussian) -> Tensor:
        """Return how small the epistemic variance is; 0 where it is not known."""
        if predictive.epistemic_var is None:
            return torch.zeros(len(predictive), dtype=torch.float64)
        least = _LEAST_EPISTEMIC * predictive.var.double()
        return -0.5 * predictive.epistemic_var.double().maximum(least).log()


def target_units(plan: Plan) -> tuple[float, float]:
    """Return centre and scale of the transformed target: 0 and 1 where the plan has none yet."""
    centre, scale = plan.target.centre, plan.target.scale
    return 0.0 if centre is None else centre, 1.0 if scale is None else scale


def untransform(plan: Plan, values: Tensor) -> Tensor:
    """Take quantiles of the target from standard units to its own unit."""
    centre, scale = target_units(plan)
    transformed = centre + scale * values
    return transformed.exp() if plan.target.transform == "log" else transformed


def _moments_in_unit(plan: Plan, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the target from those in standard units."""
    centre, scale = target_units(plan)
    mean, std = centre + scale * mean, scale * std
    if plan.target.transform == "none":
        return mean, std
    var = std.square()
    lognormal_mean = (mean + 0.5 * var).exp()
    return lognormal_mean, lognormal_mean * var.expm1().sqrt()


def _tellable(values: Tensor) -> Tensor:
    """Numerics: the exponential of a bad prediction may be infinite; its score must not be."""
    return values.nan_to_num(nan=LARGEST).clamp(-LARGEST, LARGEST)


def _unclipped(found: AtSites) -> str:
    """What is left of a coverage that is not 95 %: sites clip predictions, which widens misses."""
    counts = [one.credible_covered for one in found.coverages if one.level == 0.95]
    if not counts or counts[0] is None or found.pooled.scores is None:
        return "not 95 %, where predictions are clipped as they leave a site"
    (low, high), num_rows = counts[0], sum(found.pooled.scores.counts)
    ends = [share(round(end * num_rows), num_rows) for end in (low, high)]
    if ends[0].low <= 0.95 <= ends[1].high:
        return (
            "not 95 %, but predictions are clipped before they leave a site; of unclipped ones, by "
            f"counts, it is {percent(low)} to {percent(high)}, which does not speak against 95 %"
        )
    return "not 95 %"


def fit_shift_scale(
    predictive: Gaussian, targets: Tensor, prior_rows: float = PRIOR_ROWS
) -> ShiftScale:
    """Find the most probable shift and factor, in closed form.

    Examples:
        >>> flat = Gaussian(torch.zeros(9), torch.ones(9))
        >>> fit_shift_scale(flat, torch.full((9,), 2.0)).shift  # nine of ten rows say 2
        1.8
    """
    residuals = predictive.residuals(targets).double()
    var = predictive.var.double()
    # No row speaks for ten: a few that claim to be certain would decide the shift of all.
    prec = var.clamp_min(_LEAST_OF_MEAN * float(var.mean())).reciprocal()
    # The best shift does not depend on the factor, because its prior has the factor in it, too.
    shift = (prec @ residuals) / (prec.sum() + 1)
    squares = prec @ (residuals - shift).square() + shift.square() + prior_rows
    return ShiftScale(shift=float(shift), var_factor=float(squares) / (len(targets) + prior_rows))
