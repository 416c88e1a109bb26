"""How good a predictor is on the scored rows, with intervals, in the target's unit.

Every metric is a mean over rows, or the root of one, so its interval is a bootstrap of that mean; a
share of rows has Wilson's interval, which also holds where all or none hit.
Calibration is shown beside what a perfectly calibrated model would show on as many rows: the *null*
band of a reliability diagram holds each bin's accuracy in 95 % of cases if every probability is
right, and that of a PIT histogram each decile's count.
"""

from __future__ import annotations

from collections.abc import Callable

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.study.plan.schema import Plan
from predbayes.study.result.model import describe
from predbayes.study.result.schema import Bin, Coverage, Estimate, Level, Reliability, Scores
from predbayes.study.tables.coding import target_units, untransform

NUM_DRAWS = 1000
SHARES = ("accuracy", "coverage_95")  # of rows: with Wilson's interval
LEVELS = (0.5, 0.8, 0.9, 0.95)
_NUM_BINS = 10
_TAILS = (0.025, 0.975)


def score(
    plan: Plan, predictive: Predictive, targets: Tensor, *, rng: torch.Generator
) -> Scores | None:
    """The metrics of the plan's task; None where there is no row to score."""
    if not len(targets):
        return None
    values = row_values(plan, predictive, targets)
    draws = torch.randint(len(targets), (NUM_DRAWS, len(targets)), generator=rng)
    found = {
        name: _share(rows > 0) if name in SHARES else _estimate(rows, draws, after)
        for name, (rows, after) in values.items()
    }
    return Scores(num_rows=len(targets), metrics=found)


def reliability(predictive: Categorical, targets: Tensor, *, rng: torch.Generator) -> Reliability:
    """Confidence against accuracy in ten bins, with the band of a calibrated model."""
    error = metrics.ece(predictive, targets, rng=rng)
    found = metrics.reliability(predictive, targets, _NUM_BINS)
    lows, highs = _null_band(predictive, found.count, rng)
    bins = tuple(
        Bin(count=n, confidence=c, accuracy=a, null_low=low, null_high=high)
        for n, c, a, low, high in zip(
            found.count, found.confidence, found.accuracy, lows, highs, strict=True
        )
    )
    low, high = error.interval
    return Reliability(
        ece=Estimate(value=error.value, low=low, high=high), null=error.null, bins=bins
    )


def coverage(predictive: Gaussian, targets: Tensor) -> Coverage:
    """Where targets lie in their predictives: by decile, and in central intervals."""
    uniform = metrics.pit(predictive, targets).double()
    deciles = torch.histc(uniform, 10, 0, 1).long().tolist()
    low, high = (int(scipy.stats.binom.ppf(tail, len(targets), 0.1)) for tail in _TAILS)
    levels = tuple(
        Level(level=level, coverage=_share((uniform - 0.5).abs() <= level / 2)) for level in LEVELS
    )
    return Coverage(pit=tuple(deciles), null_low=low, null_high=high, levels=levels)


def verdict(plan: Plan, num_scored: int, found: Reliability | Coverage | None) -> tuple[bool, str]:
    """Whether calibration can be judged, and what may be said about it."""
    least = plan.rules.min_labels_to_judge
    if found is None or num_scored < least:
        return False, (
            f"Calibration cannot be judged: {num_scored:,} scored rows are fewer than the "
            f"{least:,} that the plan asks for."
        )
    if isinstance(found, Reliability):
        return True, _classification_verdict(found, num_scored)
    return True, _regression_verdict(found, num_scored)


def mean_estimate(rows: Tensor, *, rng: torch.Generator) -> Estimate:
    """The mean of rows, (N,), with its interval; of differences it is that of a paired test."""
    return _estimate(rows, torch.randint(len(rows), (NUM_DRAWS, len(rows)), generator=rng), None)


Rows = dict[str, tuple[Tensor, Callable[[Tensor], Tensor] | None]]


def row_values(plan: Plan, predictive: Predictive, targets: Tensor) -> Rows:
    """For each metric the values that it is the mean of, and what is done to the mean."""
    if isinstance(predictive, Categorical):
        return _categorical_rows(predictive, targets)
    assert isinstance(predictive, Gaussian)
    return _gaussian_rows(plan, predictive, targets)


def _categorical_rows(predictive: Categorical, targets: Tensor) -> Rows:
    hits = predictive.log_probs.argmax(-1) == targets
    return {
        "nll": (-predictive.log_prob(targets).double(), None),
        "accuracy": (hits.double(), None),
        "brier": (metrics.brier_rows(predictive, targets), None),
    }


def _gaussian_rows(plan: Plan, predictive: Gaussian, targets: Tensor) -> Rows:
    said = describe(plan, predictive, 0.95)
    inside = (metrics.pit(predictive, targets).double() - 0.5).abs() <= 0.475
    rows: Rows = {
        "nll": (-predictive.log_prob(targets).double(), None),
        "rmse": ((said["mean"] - untransform(plan, targets.double())).square(), torch.sqrt),
        "coverage_95": (inside.double(), None),
        "width_95": (said["high"] - said["low"], None),
    }
    if plan.target.transform == "none":
        _, scale = target_units(plan)
        rows["crps"] = (scale * metrics.crps_rows(predictive, targets), None)
    return rows


def _estimate(rows: Tensor, draws: Tensor, after: Callable[[Tensor], Tensor] | None) -> Estimate:
    finish = after or (lambda mean: mean)
    means = finish(rows[draws].mean(1))
    low, high = torch.quantile(means, torch.tensor(_TAILS, dtype=means.dtype)).tolist()
    return Estimate(value=float(finish(rows.mean())), low=low, high=high)


def _share(hits: Tensor) -> Estimate:
    """A share with Wilson's interval."""
    found = scipy.stats.binomtest(int(hits.sum()), len(hits)).proportion_ci(method="wilson")
    return Estimate(value=float(hits.double().mean()), low=float(found.low), high=float(found.high))


def _null_band(
    predictive: Categorical, count: list[int], rng: torch.Generator
) -> tuple[list[float], list[float]]:
    """Accuracy of each bin when labels are drawn from the predictive itself, in 95 % of draws."""
    confidence = predictive.moments().double().max(-1).values.clamp_max(1.0)
    bins = ((confidence * _NUM_BINS).ceil().long() - 1).clamp(0, _NUM_BINS - 1)
    hits = torch.bernoulli(confidence.expand(NUM_DRAWS, -1), generator=rng)
    sums = torch.zeros(NUM_DRAWS, _NUM_BINS, dtype=torch.float64)
    sums.index_add_(1, bins, hits)
    means = sums / torch.tensor(count).clamp_min(1)
    low, high = torch.quantile(means, torch.tensor(_TAILS, dtype=torch.float64), dim=0)
    return low.tolist(), high.tolist()


def _classification_verdict(found: Reliability, num_rows: int) -> str:
    shown = (
        f"the expected calibration error is {found.ece.value:.3f} (95 % interval "
        f"{found.ece.low:.3f} to {found.ece.high:.3f}); a perfectly calibrated model would show "
        f"about {found.null:.3f} on as many rows"
    )
    if found.ece.low <= found.null:
        return f"No miscalibration was found on {num_rows:,} scored rows: {shown}."
    return f"The probabilities are not quite right: on {num_rows:,} scored rows {shown}."


def _regression_verdict(found: Coverage, num_rows: int) -> str:
    widest = found.levels[-1]
    share = widest.coverage
    value, low, high = (f"{100 * x:.1f}" for x in (share.value, share.low, share.high))
    shown = (
        f"intervals of {100 * widest.level:.0f} % hold {value} % of {num_rows:,} scored targets "
        f"(95 % interval {low} to {high})"
    )
    if share.low <= widest.level <= share.high:
        return f"No miscalibration was found: {shown}."
    side = "narrow" if share.value < widest.level else "wide"
    return f"The intervals are too {side}: {shown}."
