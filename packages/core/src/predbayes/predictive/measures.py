"""The table of measures: what a score is called, what it means, and how it is computed.

Reports, evaluations at sites, adoptions, records of experiments and their tables all read this
table. To add a measure is to add one entry.

Most measures are a mean of values by row, or a function of that mean, such as the root in an RMSE.
So sums over the rows of several sites add up. Others are of all rows at once (``whole``), as the
AUROC; ``adds`` says which statistics of them add up over sites. What has neither is computed where
it is needed, as the ECE (`predbayes.predictive.metrics.ece`) and what depends on a threshold
(`predbayes.predictive.risk.Decision`); it is named here so that tables and pages know it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.predictive.estimate import Estimate, share, t_quantile
from predbayes.predictive.families import Categorical, Gaussian, Predictive, Survival
from predbayes.predictive.metrics import (
    brier_rows,
    covered_rows,
    crps_rows,
    hit_rows,
    nll_rows,
    width_rows,
)
from predbayes.predictive.risk import Risks, macro
from predbayes.predictive.survival import (
    concordance_rows,
    has_events,
    integrated_brier_rows,
    is_seen_to_horizon,
    risk_gap_rows,
)

_MAX_NLL = 1e6  # per row
_MAX_LOG = 20.0  # of an interval's end over the mean
LARGEST = 1e30
"""Of anything in the target's unit."""


@dataclass(frozen=True, slots=True)
class TargetUnit:
    """How Gaussian predictives are told in the unit of their target."""

    errors: Callable[[Gaussian, Tensor], Tensor]  # of the mean, by row and up to its sign, (B,)
    widths: Callable[[Gaussian, float], Tensor]  # of the central interval of a level, (B,)
    scale: float | None  # what a deviation of 1 is in it; None where the target was transformed
    values: Callable[[Tensor], Tensor] = lambda targets: targets.double()  # of targets, (B,)
    ends: tuple[float, ...] = ()  # of the intervals of a survival; empty: 1, 2 and so on


STANDARD = TargetUnit(lambda p, targets: p.residuals(targets).double(), width_rows, 1.0)
"""The unit in which predictives and targets are given."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One way to score."""

    name: str  # its key in results and records
    label: str  # what the head of a column says
    meaning: str  # what it is, and which way is better, for readers
    rows: Callable[[Any, Tensor, TargetUnit], Tensor] | None = None  # values by row, (B,)
    # Of all rows at once; of several classes the mean over classes, each against the others.
    whole: Callable[[Any, Tensor, TargetUnit], Estimate | None] | None = None
    after: Callable[[Tensor], Tensor] = lambda mean: mean  # what is done to the mean of the rows
    family: type[Predictive] | None = None  # whose predictives it scores; None is every family
    unit: Literal["nats per row", "share", "target", ""] = ""  # a share of rows; the target's unit
    aim: float = -math.inf  # the best value; infinite where less, or more, is always better
    bounds: tuple[float, float] = (0.0, LARGEST)  # of the mean of the rows
    least_rows: int = 2  # that an interval needs
    # Whether rows are such that it means something; None: they always are.
    is_told: Callable[[Any, Tensor], bool] | None = None
    by_odds: bool = False  # its interval is made on the scale of log odds
    needs_scale: bool = False  # undefined where the target was transformed
    headline: bool = False  # stands at the top of a report
    compared: bool = True  # stands in tables that compare predictors
    adds: str = "sums of its values and of their squares"  # over sites; empty: nothing does

    @property
    def leads(self) -> bool:
        """True if it stands before others at the top of a report."""
        return self.name == "auroc"

    @property
    def direction(self) -> str:
        """Which way is better, in words."""
        if math.isinf(self.aim):
            return "higher is better" if self.aim > 0 else "lower is better"
        return f"{self.aim:g} is best"

    @property
    def is_share(self) -> bool:
        """True if it is a share of rows."""
        return self.unit == "share"

    @property
    def in_target_unit(self) -> bool:
        """True if it is in the target's own unit."""
        return self.unit == "target"

    def of(self, *, classes: bool) -> Measure:
        """Return the same for a task; no row of classes is negative: no probability is above 1."""
        least, most = self.bounds
        return replace(self, bounds=(max(0.0, least), most)) if classes else self

    def interval(self, mean: float, standard_error: float, num_rows: int) -> tuple[float, float]:
        """Return the 95 % interval of the measure, from the mean of its rows and their error.

        It is Student's. Rows that are never negative are skewed: few are far above the mean, and
        the mean of a sample without them is low and seems precise. Theirs is Student's of the
        logarithm, which reaches farther up, with (n - 1) / (1 + c^2) degrees of freedom for rows
        whose standard deviation is c means: of gamma rows c^2 is known with a relative variance
        of 2 (1 + c^2) / n, where Student has 2 / (n - 1). Of a C-index it is that of its log odds,
        which stays between 0 and 1.
        """
        reach = t_quantile(num_rows) * standard_error
        if self.by_odds and 0 < mean < 1:
            centre, far = math.log(mean / (1 - mean)), min(reach / (mean * (1 - mean)), _MAX_LOG)
            ends = [1 / (1 + math.exp(-centre - side * far)) for side in (-1, 1)]
        elif self.bounds[0] < 0 or mean <= 0:
            ends = [mean - reach, mean + reach]
        else:
            relative = standard_error / mean
            freedom = (num_rows - 1) / (1 + num_rows * relative**2)
            far = float(scipy.special.stdtrit(freedom, 0.975)) * relative if freedom > 0 else 0.0
            factor = math.exp(min(far, _MAX_LOG))
            ends = [mean / factor, mean * factor]
        low, high = self.after(torch.tensor(ends, dtype=torch.float64)).tolist()
        return low, high

    def value(self, rows: Tensor) -> float:
        """Return the measure of rows of which ``rows`` are the values, (B,)."""
        return float(self.after(rows.mean()))

    def estimate(self, rows: Tensor) -> Estimate:
        """Return the measure and its interval from the values by row, (B,)."""
        num = len(rows)
        if self.is_share:
            return share(int(rows.sum()), num)
        rows = rows.double()
        error = float(rows.std()) / math.sqrt(num) if num > 1 else 0.0
        return Estimate(self.value(rows), *self.interval(float(rows.mean()), error, num))


def _crps_rows(predictive: Gaussian, targets: Tensor, unit: TargetUnit) -> Tensor:
    assert unit.scale is not None  # see `Measure.needs_scale`
    return unit.scale * crps_rows(predictive, targets)


def _r2(predictive: Gaussian, targets: Tensor, unit: TargetUnit) -> Estimate | None:
    """The interval is Student's of the logarithm of what is not explained, by its influences."""
    errors = unit.errors(predictive, targets).square()
    values = unit.values(targets)
    spread = (values - values.mean()).square()
    if len(targets) < 3 or not float(spread.sum()) > 0 or not float(errors.sum()) > 0:
        return None
    left = float(errors.sum() / spread.sum())
    influence = errors / errors.mean() - spread / spread.mean()
    reach = t_quantile(len(targets)) * float(influence.std()) / math.sqrt(len(targets))
    factor = math.exp(min(reach, _MAX_LOG))
    return Estimate(1 - left, 1 - left * factor, 1 - left / factor)


def _of_event(
    figure: Callable[[Risks], Estimate | None],
) -> Callable[[Categorical, Tensor, TargetUnit], Estimate | None]:
    return lambda predictive, targets, _: macro(predictive, targets, figure)


_BINS = "events and other rows, counted in bins of the risk"

_TABLE = (
    Measure(
        "nll",
        "NLL",
        "negative log-likelihood, in nats per row: the mean surprise at the true answer. Lower is "
        "better; to be sure and wrong costs most.",
        lambda predictive, targets, _: nll_rows(predictive, targets),
        unit="nats per row",
        bounds=(-_MAX_NLL, _MAX_NLL),
        headline=True,
    ),
    Measure(
        "accuracy",
        "Accuracy",
        "share of rows whose most probable class is the true one. Higher is better.",
        lambda predictive, targets, _: hit_rows(predictive, targets),
        family=Categorical,
        unit="share",
        aim=math.inf,
        headline=True,
    ),
    Measure(
        "brier",
        "Brier score",
        "squared distance of the probabilities from the truth, from 0 to 2. Lower is better.",
        lambda predictive, targets, _: brier_rows(predictive, targets),
        family=Categorical,
        bounds=(0.0, 2.0),
    ),
    Measure(
        "ece",
        "ECE",
        "expected calibration error, the mean gap between stated confidence and share of right "
        "answers. It is never exactly 0, because groups are small.",
        family=Categorical,
        adds="rows, right answers and confidences, summed in bins of the confidence",
    ),
    Measure(
        "ece_null",
        "ECE if calibrated",
        "the ECE that a perfectly calibrated model would show on as many rows.",
        family=Categorical,
        adds="",
    ),
    Measure(
        "auroc",
        "AUROC",
        "area under the ROC curve: how often a row with the event has a higher risk than one "
        "without, 50 % being chance and 100 % perfect. Higher is better.",
        whole=_of_event(Risks.auroc),
        family=Categorical,
        aim=math.inf,
        bounds=(0.0, 1.0),
        headline=True,
        adds=_BINS,
    ),
    Measure(
        "average_precision",
        "Average precision",
        "share of events among rows of at least some risk, averaged over events; chance gives the "
        "share of events. Higher is better.",
        whole=_of_event(Risks.average_precision),
        family=Categorical,
        aim=math.inf,
        bounds=(0.0, 1.0),
        compared=False,
        adds=_BINS,
    ),
    Measure(
        "slope",
        "Calibration slope",
        "how log odds of the event grow with stated ones. It should be 1; below 1 high risks are "
        "too high and low ones too low.",
        whole=_of_event(Risks.slope),
        family=Categorical,
        aim=1.0,
        bounds=(-LARGEST, LARGEST),
        compared=False,
        adds="slopes of sites, weighted by their precision, and these weights",
    ),
    Measure(
        "intercept",
        "Calibration intercept",
        "by how much stated log odds are too low on average. It should be 0; below 0 risks are too "
        "high.",
        whole=_of_event(Risks.intercept),
        family=Categorical,
        aim=0.0,
        bounds=(-LARGEST, LARGEST),
        compared=False,
        adds="intercepts of sites, weighted by their precision, and these weights",
    ),
    Measure(
        "observed_expected",
        "Observed / expected",
        "events over the sum of stated risks. It should be 1; below 1 risks are too high on "
        "average.",
        whole=_of_event(Risks.observed_expected),
        family=Categorical,
        aim=1.0,
        compared=False,
        adds=f"{_BINS}, and sums of risks",
    ),
    *(
        Measure(
            name,
            label,
            f"{meaning} Higher is better.",
            family=Categorical,
            unit="share" if name != "net_benefit" else "",
            aim=math.inf,
            bounds=(-LARGEST, 1.0) if name == "net_benefit" else (0.0, 1.0),
            compared=False,
            adds=_BINS,
        )
        for name, label, meaning in (
            ("sensitivity", "Sensitivity", "share of events whose risk is at least the threshold."),
            ("specificity", "Specificity", "share of other rows whose risk is below it."),
            ("ppv", "PPV", "share of events among rows whose risk is at least the threshold."),
            ("npv", "NPV", "share of other rows among those whose risk is below it."),
            (
                "net_benefit",
                "Net benefit",
                "per row, events treated less other rows treated, these weighed by the odds of the "
                "threshold; treating nobody has 0.",
            ),
        )
    ),
    Measure(
        "rmse",
        "RMSE",
        "root mean square error of the predicted mean. Lower is better.",
        lambda predictive, targets, unit: unit.errors(predictive, targets).square(),
        # Numerics: the lower end of an interval of the mean may be negative.
        after=lambda mean: mean.clamp_min(0).sqrt(),
        family=Gaussian,
        unit="target",
        headline=True,
    ),
    Measure(
        "mae",
        "MAE",
        "mean absolute error of the predicted mean. Lower is better.",
        lambda predictive, targets, unit: unit.errors(predictive, targets).abs(),
        family=Gaussian,
        unit="target",
    ),
    Measure(
        "r2",
        "R²",
        "share of the variance of true values that predicted means explain: 1 is all, 0 is no more "
        "than their mean does, and it can be negative. Higher is better.",
        whole=_r2,
        family=Gaussian,
        aim=math.inf,
        bounds=(-LARGEST, 1.0),
        adds="",  # the spread of the target would have to leave a site
    ),
    Measure(
        "coverage_95",
        "95 % coverage",
        "share of true values inside the model’s 95 % interval. It should be 95 %.",
        lambda predictive, targets, _: covered_rows(predictive, targets, 0.95),
        family=Gaussian,
        unit="share",
        aim=0.95,
        headline=True,
    ),
    Measure(
        "width_95",
        "95 % width",
        "mean width of the 95 % interval. Narrower is better, if the coverage holds.",
        lambda predictive, _, unit: unit.widths(predictive, 0.95),
        family=Gaussian,
        unit="target",
    ),
    Measure(
        "crps",
        "CRPS",
        "continuous ranked probability score: mean distance of the whole prediction from the true "
        "value. Lower is better.",
        _crps_rows,
        family=Gaussian,
        unit="target",
        needs_scale=True,
    ),
    Measure(
        "c_index",
        "C-index",
        "how often, of two rows, the one with the earlier event has the higher risk: .5 is chance "
        "and 1 perfect. Higher is better.",
        lambda predictive, targets, _: concordance_rows(predictive, targets),
        # Numerics: sums of few digits may be of a little more than 1.
        after=lambda mean: mean.clamp(0, 1),
        is_told=has_events,
        by_odds=True,
        family=Survival,
        aim=math.inf,
        bounds=(-1.0, 1.0),
        headline=True,
        adds="sums of its values and of their squares, over pairs within a site",
    ),
    Measure(
        "integrated_brier",
        "Integrated Brier",
        "squared distance of the probability to be without the event from the truth, averaged over "
        "time up to the horizon and corrected for rows that were no longer seen. Lower is better.",
        lambda predictive, targets, unit: integrated_brier_rows(predictive, targets, unit.ends),
        is_told=is_seen_to_horizon,
        family=Survival,
        bounds=(0.0, 20.0),
        headline=True,
    ),
    Measure(
        "risk_gap",
        "Observed − expected",
        "share of rows with the event by the horizon, by Kaplan and Meier, less the mean of the "
        "risks that were stated. It should be 0; below 0 risks are too high.",
        lambda predictive, targets, _: risk_gap_rows(predictive, targets),
        is_told=is_seen_to_horizon,
        family=Survival,
        aim=0.0,
        bounds=(-20.0, 20.0),
        headline=True,
    ),
)

MEASURES = {measure.name: measure for measure in _TABLE}
"""All measures by name, in the order in which results keep them."""


def row_measures(family: type[Predictive], unit: TargetUnit = STANDARD) -> list[Measure]:
    """Return the measures of a family that are made of means over rows."""
    return [
        measure
        for measure in _TABLE
        if measure.rows is not None
        and measure.family in (None, family)
        and not (measure.needs_scale and unit.scale is None)
    ]


def whole_values(
    predictive: Predictive,
    targets: Tensor,
    unit: TargetUnit = STANDARD,
    *,
    compared: bool = False,
) -> dict[str, Estimate]:
    """Return the measures of all rows at once that these rows define, by name.

    Only those that are ``compared``, if nobody looks at the others: some are slow.
    """
    found = {
        measure.name: measure.whole(predictive, targets, unit)
        for measure in _TABLE
        if measure.whole is not None
        and measure.family in (None, type(predictive))
        and (measure.compared or not compared)
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def row_values(
    predictive: Predictive, targets: Tensor, unit: TargetUnit = STANDARD
) -> dict[str, Tensor]:
    """Return the values by row, (B,), of each measure of the predictive's family, by name.

    What these rows cannot tell is left out.
    """
    return {
        measure.name: measure.rows(predictive, targets, unit)
        for measure in row_measures(type(predictive), unit)
        if measure.rows is not None
        and (measure.is_told is None or measure.is_told(predictive, targets))
    }


_DIFFERENCE = Measure("difference", "", "", bounds=(-LARGEST, LARGEST))


def mean_estimate(rows: Tensor) -> Estimate:
    """Return the mean of rows, (B,), and its interval; of differences that of a paired test."""
    return _DIFFERENCE.estimate(rows)
