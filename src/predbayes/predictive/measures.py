"""The table of measures: what a score is called, what it means, and how it is computed.

Reports, evaluations at sites, adoptions, records of experiments and their tables all read this
table. To add a measure is to add one entry.

A measure is a mean of values by row, or a function of that mean, such as the root in an RMSE. So
sums over the rows of several sites add up. A measure without ``rows`` is computed from all rows at
once (`predbayes.predictive.metrics.ece`); it is named here so that tables and figures know it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.predictive.metrics import (
    brier_rows,
    covered_rows,
    crps_rows,
    hit_rows,
    nll_rows,
    width_rows,
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


STANDARD = TargetUnit(lambda p, targets: p.residuals(targets).double(), width_rows, 1.0)
"""The unit in which predictives and targets are given."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One way to score."""

    name: str  # its key in results and records
    label: str  # what the head of a column says
    meaning: str  # what it is, and which way is better, for readers
    rows: Callable[[Any, Tensor, TargetUnit], Tensor] | None = None  # values by row, (B,)
    after: Callable[[Tensor], Tensor] = lambda mean: mean  # what is done to the mean of the rows
    family: type[Predictive] | None = None  # whose predictives it scores; None is every family
    unit: Literal["nats per row", "share", "target", ""] = ""  # a share of rows; the target's unit
    aim: float = -math.inf  # the best value; infinite where less, or more, is always better
    bounds: tuple[float, float] = (0.0, LARGEST)  # of the mean of the rows
    least_rows: int = 2  # that an interval needs
    needs_scale: bool = False  # undefined where the target was transformed
    headline: bool = False  # stands at the top of a report

    @property
    def is_share(self) -> bool:
        """True if it is a share of rows."""
        return self.unit == "share"

    @property
    def in_target_unit(self) -> bool:
        """True if it is in the target's own unit."""
        return self.unit == "target"

    def interval(self, mean: float, standard_error: float, num_rows: int) -> tuple[float, float]:
        """Return the 95 % interval of the measure, from the mean of its rows and their error.

        It is Student's. Rows that are never negative are skewed: few are far above the mean, and
        the mean of a sample without them is low and seems precise. Theirs is Student's of the
        logarithm, which reaches farther up and covers better.
        """
        reach = _t_quantile(num_rows) * standard_error
        if self.bounds[0] < 0 or mean <= 0:
            ends = [mean - reach, mean + reach]
        else:
            factor = math.exp(min(reach / mean, _MAX_LOG))
            ends = [mean / factor, mean * factor]
        low, high = self.after(torch.tensor(ends, dtype=torch.float64)).tolist()
        return low, high

    def value(self, rows: Tensor) -> float:
        """Return the measure of rows of which ``rows`` are the values, (B,)."""
        return float(self.after(rows.mean()))


def _t_quantile(num_rows: int) -> float:
    return float(scipy.stats.t.ppf(0.975, num_rows - 1)) if num_rows > 1 else 0.0


def _crps_rows(predictive: Gaussian, targets: Tensor, unit: TargetUnit) -> Tensor:
    assert unit.scale is not None  # see `Measure.needs_scale`
    return unit.scale * crps_rows(predictive, targets)


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
    ),
    Measure(
        "ece_null",
        "ECE if calibrated",
        "the ECE that a perfectly calibrated model would show on as many rows.",
        family=Categorical,
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


def row_values(
    predictive: Predictive, targets: Tensor, unit: TargetUnit = STANDARD
) -> dict[str, Tensor]:
    """Return the values by row, (B,), of each measure of the predictive's family, by name."""
    return {
        measure.name: measure.rows(predictive, targets, unit)
        for measure in row_measures(type(predictive), unit)
        if measure.rows is not None
    }
