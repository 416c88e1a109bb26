"""How good a predictor is on the scored rows, with intervals, in the target's unit.

A measure (`predbayes.predictive.measures`) is a mean over rows, or the root of one, so its interval
is that of a mean (`Measure.interval`); a share of rows has Wilson's, which also holds where all or
none hit. What they cover is in docs/intervals.md.
Calibration is shown beside what a perfectly calibrated model would show on as many rows: the *null*
band of a reliability diagram holds each bin's accuracy in 95 % of cases if every probability is
right, and that of a PIT histogram each decile's count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.predictive import measures, metrics
from predbayes.predictive.estimate import Estimate, share
from predbayes.predictive.families import Categorical, Gaussian, Predictive, Survival
from predbayes.predictive.measures import LARGEST, MEASURES, Measure, TargetUnit
from predbayes.predictive.metrics import DIAGRAM_BINS
from predbayes.predictive.risk import Risks as RowRisks
from predbayes_study.plan.schema import Plan
from predbayes_study.result.model import describe
from predbayes_study.result.schema import (
    AtThreshold,
    Bin,
    ClassRisk,
    Curves,
    IntervalCalibration,
    Level,
    Reliability,
    Scores,
)
from predbayes_study.tasks.numbers import target_units, untransform

FAMILY: Mapping[str, type[Predictive]] = {
    "classification": Categorical,
    "regression": Gaussian,
    "survival": Survival,
}
"""Of the predictives of a task."""

TAILS = (0.025, 0.975)  # of an interval of 95 %
_NUM_DRAWS = 1000  # of a null band
_DIFFERENCE = Measure("difference", "", "", bounds=(-LARGEST, LARGEST))
MAX_STANDARD = 1e4
"""Of means, variances and targets: in standard deviations of the target none is larger."""

_NOTHING = "No miscalibration was found"
_IN_PART = "Calibration could be checked in part only,"
_LEVELS = (0.5, 0.8, 0.9, 0.95)


def target_unit(plan: Plan) -> TargetUnit:
    """Return the unit of a plan's target."""

    def errors(predictive: Gaussian, targets: Tensor) -> Tensor:
        mean = describe(plan, predictive, 0.95)["mean"]
        return _tellable(mean - untransform(plan, targets.double()))

    def widths(predictive: Gaussian, level: float) -> Tensor:
        described = describe(plan, predictive, level)
        return _tellable(described["high"] - described["low"])

    scale = target_units(plan)[1] if plan.target.transform == "none" else None
    values = lambda y: _tellable(untransform(plan, y.double()))  # noqa: E731
    return TargetUnit(errors, widths, scale, values, plan.target.times)


def _tellable(values: Tensor) -> Tensor:
    """Numerics: the exponential of a bad prediction may be infinite; its score must not be."""
    return values.nan_to_num(nan=LARGEST).clamp(-LARGEST, LARGEST)


def measures_of(plan: Plan) -> list[Measure]:
    """Return the measures of the plan's task."""
    return measures.row_measures(FAMILY[plan.target.task], target_unit(plan))


def row_values(plan: Plan, predictive: Predictive, targets: Tensor) -> dict[str, Tensor]:
    """Return the values by row, (N,), of each measure of the plan's task, by name."""
    return measures.row_values(predictive, targets, target_unit(plan))


def worst_targets(predictive: Predictive) -> Tensor:
    """Return targets (N,) that score worse than any: the least probable classes, or far away."""
    if isinstance(predictive, Categorical):
        return predictive.log_probs.argmin(1)
    if isinstance(predictive, Survival):
        # An event in the least probable interval, or none in any.
        place = predictive.log_moments().argmin(1)
        last = predictive.log_odds.shape[1]
        return torch.where(place < last, place + 1.0, -float(last))
    assert isinstance(predictive, Gaussian)
    return torch.where(predictive.mean > 0, -MAX_STANDARD, MAX_STANDARD)


def score(
    plan: Plan, predictive: Predictive, targets: Tensor, *, whole: bool = True
) -> Scores | None:
    """Return the measures of the plan's task; None where there is no row to score.

    Without the ``whole`` only means over rows: an AUROC takes nine tenths of the time.
    """
    if not len(targets):
        return None
    estimates = {}
    for name, rows in row_values(plan, predictive, targets).items():
        measure = MEASURES[name].of(classes=plan.classification)
        estimates[name] = (
            share(int(rows.sum()), len(rows)) if measure.is_share else _estimate(rows, measure)
        )
    if whole:
        estimates |= measures.whole_values(predictive, targets, target_unit(plan), compared=True)
    return Scores(num_rows=len(targets), metrics=estimates)


OF_RISK = ("auroc", "average_precision", "slope", "intercept", "observed_expected")
"""The measures of one class's risk, by name."""

_CURVE = tuple(step / 100 for step in range(1, 100))


def risks(
    plan: Plan, predictive: Predictive, targets: Tensor, *, rng: torch.Generator
) -> tuple[ClassRisk, ...]:
    """Tell how well risks are told: the event's of two classes, or each class's of more.

    A diagram and a decision curve are of an event alone.
    """
    if not isinstance(predictive, Categorical) or not len(targets):
        return ()
    classes, indices = plan.target.classes or (), plan.event_indices
    return tuple(
        _class_risk(
            classes[index],
            RowRisks.of(predictive, targets, index),
            plan.thresholds,
            rng if len(indices) == 1 else None,
        )
        for index in indices
    )


def _class_risk(
    name: str, rows: RowRisks, thresholds: Sequence[float], rng: torch.Generator | None
) -> ClassRisk:
    """The risks of a class; with a generator, a diagram and a decision curve as well."""
    found = {of: getattr(rows, of)() for of in OF_RISK}
    curve = [] if rng is None else [rows.decision(threshold) for threshold in _CURVE]
    return ClassRisk(
        name=name,
        num_rows=rows.num_rows,
        prevalence=rows.prevalence(),
        metrics={of: figure for of, figure in found.items() if figure is not None},
        bins=() if rng is None else _risk_bins(rows, rng),
        at=tuple(
            AtThreshold(threshold=t, metrics=d.figures(), treat_all=d.treat_all())
            for t, d in ((t, rows.decision(t)) for t in thresholds)
        ),
        curve=tuple((d.threshold, d.net_benefit().value, d.treat_all()) for d in curve),
    )


def class_shares(plan: Plan, targets: Tensor) -> tuple[float, ...]:
    """Return the share of rows of each class; nothing of a regression or without rows."""
    if not plan.classification or not len(targets):
        return ()
    counts = torch.bincount(targets.long(), minlength=plan.num_outputs)
    return tuple((counts.double() / len(targets)).tolist())


def _risk_bins(rows: RowRisks, rng: torch.Generator) -> tuple[Bin, ...]:
    """Stated risk against the share of events in bins, with the band of right risks."""
    place = metrics.bin_of(rows.risk, DIAGRAM_BINS)
    count, stated, events = (
        torch.bincount(place, weights.double(), DIAGRAM_BINS)
        for weights in (torch.ones_like(rows.risk), rows.risk, rows.event)
    )
    low, high = _band(rows.risk, place, count, rng)
    return tuple(
        Bin(
            count=int(count[k]),
            stated=float(stated[k] / count[k]),
            observed=float(events[k] / count[k]),
            null_low=low[k],
            null_high=high[k],
        )
        for k in count.nonzero()[:, 0].tolist()
    )


def counted_bin(count: int, hits: int, stated: float) -> Bin:
    """Return a bin of which only counts and a sum are known.

    Args:
        count: Rows in it.
        hits: Right answers among them, or events.
        stated: Sum of the confidences, or of the risks.
    """
    stated = min(1.0, stated / count)
    low, high = (float(scipy.stats.binom.ppf(tail, count, stated)) / count for tail in TAILS)
    return Bin(count=count, stated=stated, observed=hits / count, null_low=low, null_high=high)


def calibration(
    predictive: Predictive, targets: Tensor, *, rng: torch.Generator
) -> Reliability | IntervalCalibration | None:
    """Show how stated and observed frequencies agree; None where there is no row to tell by."""
    if not len(targets):
        return None
    if isinstance(predictive, Categorical):
        return _reliability(predictive, targets, rng)
    assert isinstance(predictive, Gaussian)
    return _coverage(predictive, targets)


def _reliability(predictive: Categorical, targets: Tensor, rng: torch.Generator) -> Reliability:
    """Confidence against accuracy in bins, with the band of a calibrated model."""
    error = metrics.ece(predictive, targets, rng=rng)
    sums = metrics.reliability(predictive, targets, DIAGRAM_BINS)
    columns = (sums.count, sums.confidence, sums.accuracy, *_null_band(predictive, sums.count, rng))
    bins = tuple(
        Bin(count=n, stated=c, observed=a, null_low=low, null_high=high)
        for n, c, a, low, high in zip(*columns, strict=True)
    )
    low, high = error.interval
    return Reliability(ece=Estimate(error.value, low, high), null=error.null, bins=bins)


def _coverage(predictive: Gaussian, targets: Tensor) -> IntervalCalibration:
    """Count where targets lie in their predictives: by decile, and in central intervals."""
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
    plan: Plan,
    num_scored: int,
    shown: Reliability | IntervalCalibration | Curves | None,
    cautions: Sequence[str] = (),
) -> tuple[bool, str]:
    """Say whether calibration can be judged, and what may be said about it.

    With cautions nothing is called sound that was not checked.
    """
    if not num_scored:
        return False, "Calibration cannot be judged: no row with a label was scored."
    least = plan.rules.min_labels_to_judge
    if shown is None or num_scored < least:
        return False, (
            f"Calibration cannot be judged: {num_scored:,} scored rows are fewer than the "
            f"{least:,} that the plan asks for."
        )
    nothing = _IN_PART if cautions else _NOTHING
    if isinstance(shown, Curves):
        if shown.unsure or shown.gap is None:
            return False, f"Calibration cannot be judged: {shown.unsure}."
        return True, _survival_verdict(plan, shown, shown.gap, num_scored, nothing)
    if isinstance(shown, Reliability):
        return True, _classification_verdict(shown, num_scored, nothing)
    return True, _regression_verdict(shown, num_scored, nothing)


def mean_estimate(rows: Tensor) -> Estimate:
    """Return the mean of rows, (N,), and its interval; of differences that of a paired test."""
    return _estimate(rows, _DIFFERENCE)


def _estimate(rows: Tensor, measure: Measure) -> Estimate:
    rows = rows.double()
    num = len(rows)
    error = float(rows.std()) / math.sqrt(num) if num > 1 else 0.0
    return Estimate(measure.value(rows), *measure.interval(float(rows.mean()), error, num))


def _null_band(
    predictive: Categorical, count: list[int], rng: torch.Generator
) -> tuple[list[float], list[float]]:
    """Accuracy of each bin when labels are drawn from the predictive itself, in 95 % of draws."""
    confidence = metrics.confidences(predictive).clamp_max(1.0)
    return _band(confidence, metrics.bin_of(confidence, DIAGRAM_BINS), torch.tensor(count), rng)


def _band(
    stated: Tensor, place: Tensor, count: Tensor, rng: torch.Generator
) -> tuple[list[float], list[float]]:
    """Shares by bin, in 95 % of draws, when each row is a hit as often as is stated."""
    hits = torch.bernoulli(stated.expand(_NUM_DRAWS, -1), generator=rng)
    sums = torch.zeros(_NUM_DRAWS, DIAGRAM_BINS, dtype=torch.float64)
    sums.index_add_(1, place, hits)
    means = sums / count.clamp_min(1)
    low, high = torch.quantile(means, torch.tensor(TAILS, dtype=torch.float64), dim=0)
    return low.tolist(), high.tolist()


def _classification_verdict(reliability: Reliability, num_rows: int, nothing: str) -> str:
    ece, null = reliability.ece, reliability.null
    shown = (
        f"the expected calibration error is {ece.value:.3f} (95 % interval {ece.low:.3f} to "
        f"{ece.high:.3f}); a perfectly calibrated model would show about {null:.3f} on as many rows"
    )
    if ece.low == 0:
        return f"{nothing} on {num_rows:,} scored rows: {shown}."
    return f"The probabilities are not quite right: on {num_rows:,} scored rows {shown}."


def _survival_verdict(
    plan: Plan, curves: Curves, gap: Estimate, num_rows: int, nothing: str
) -> str:
    horizon = f"{plan.target.times[-1]:g} {plan.target.unit}".strip()
    shown = (
        f"by {horizon} the observed risk less the stated one is {100 * gap.value:+.1f} points "
        f"(95 % interval {100 * gap.low:+.1f} to {100 * gap.high:+.1f})"
    )
    off = [group.name for group in curves.groups if not group.fits]
    if gap.low <= 0 <= gap.high and not off:
        return (
            f"{nothing.rstrip(',')} on {num_rows:,} scored rows: {shown}, and the observed risk of "
            "each third of the rows is what was stated, as far as chance allows."
        )
    where = (
        f"; it is not what was stated in the {' and the '.join(off)} of the risks" if off else ""
    )
    return f"The risks are not quite right: on {num_rows:,} scored rows {shown}{where}."


def _regression_verdict(coverage: IntervalCalibration, num_rows: int, nothing: str) -> str:
    widest = coverage.levels[-1]
    held = widest.coverage
    value, low, high = (f"{100 * x:.1f}" for x in (held.value, held.low, held.high))
    shown = (
        f"intervals of {100 * widest.level:.0f} % hold {value} % of {num_rows:,} scored targets "
        f"(95 % interval {low} to {high})"
    )
    if held.low <= widest.level <= held.high:
        return f"{nothing.rstrip(',')}: {shown}."
    side = "narrow" if held.value < widest.level else "wide"
    return f"The intervals are too {side}: {shown}."
