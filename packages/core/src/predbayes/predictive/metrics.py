"""How good a predictive is: proper scores, calibration and its uncertainty.

Every metric is a function `(predictive, targets) -> number`, a mean over rows that does not
depend on how they were batched; ``*_rows`` are the values by row. NLL is in nats per row with its
constant. `predbayes.predictive.measures` is the table of those that reports and records have.

The expected calibration error compares confidence with accuracy in bins B_m:

    ECE = sum_m |B_m| / N  *  |accuracy(B_m) - confidence(B_m)|

It is not zero for a perfectly calibrated model: with 15 bins its median is about .04 at 500
rows. So `ece` returns, beside the value, the *null* value (the median when labels are drawn from
the model itself) and an interval of the true error, which the value overstates (see
`predbayes.predictive.gaps`). Its lower end is 0 unless the value is above the 95 % quantile of the
null values: a calibrated model is accused in 5 % of cases. Bins are half-open on the left, (a, b],
with 0 in the first: a confidence of exactly 1 belongs to the last bin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.predictive.gaps import plausible_errors

ECE_BINS = 15
"""Bins of a calibration error, as in the literature; records of experiments keep these."""

DIAGRAM_BINS = 10
"""Bins of a study's reliability diagram: wide enough for the rows that a site has."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """What a reliability diagram shows, as sums over the rows of each bin of equal width."""

    count: list[int]  # rows whose confidence is in the bin
    confidence_sum: list[float]
    hits: list[int]  # rows of them whose predicted class is the target

    @property
    def confidence(self) -> list[float]:
        """Mean confidence by bin; 0 where a bin is empty."""
        return [c / max(n, 1) for c, n in zip(self.confidence_sum, self.count, strict=True)]

    @property
    def accuracy(self) -> list[float]:
        """Share of hits by bin; 0 where a bin is empty."""
        return [hits / max(n, 1) for hits, n in zip(self.hits, self.count, strict=True)]


@dataclass(frozen=True, slots=True)
class CalibrationError:
    """A calibration error with what is needed to read it."""

    value: float
    null: float  # median for a perfectly calibrated model with these confidences
    interval: tuple[float, float]  # 95 %, of the true error, may lie below the value; nan: none


def nll(predictive: Predictive, targets: Tensor) -> float:
    """Return the negative log-likelihood in nats per row."""
    return float(nll_rows(predictive, targets).mean())


def nll_rows(predictive: Predictive, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of each row, (B,)."""
    return -predictive.log_prob(targets).double()


def accuracy(predictive: Categorical, targets: Tensor) -> float:
    """Return the share of rows whose most probable class is the target."""
    return float(hit_rows(predictive, targets).mean())


def hit_rows(predictive: Categorical, targets: Tensor) -> Tensor:
    """Return 1 for each row whose most probable class is the target, else 0, (B,)."""
    predictive.check(targets)
    return (predictive.log_probs.argmax(-1) == targets).double()


def brier(predictive: Categorical, targets: Tensor) -> float:
    """Return the mean squared distance of the probabilities from the one-hot target, in [0, 2]."""
    return float(brier_rows(predictive, targets).mean())


def brier_rows(predictive: Categorical, targets: Tensor) -> Tensor:
    """Return the squared distance of each row, (B,)."""
    predictive.check(targets)
    probs = predictive.moments().double()
    observed = probs.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    rows: Tensor = probs.square().sum(-1) - 2 * observed + 1
    return rows


def rmse(predictive: Gaussian, targets: Tensor) -> float:
    """Return the root mean squared error of the means, in the unit of the target."""
    return float(predictive.residuals(targets).double().square().mean().sqrt())


def crps(predictive: Gaussian, targets: Tensor) -> float:
    """Return the continuous ranked probability score, in the unit of the target."""
    return float(crps_rows(predictive, targets).mean())


def crps_rows(predictive: Gaussian, targets: Tensor) -> Tensor:
    """Return the continuous ranked probability score of each row, (B,)."""
    std = predictive.var.double().sqrt()
    z = predictive.residuals(targets).double() / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    spread = z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi)
    rows: Tensor = std * spread
    return rows


def pit(predictive: Gaussian, targets: Tensor) -> Tensor:
    """Return the probability integral transform per row, (B,): uniform if calibrated."""
    uniform: Tensor = torch.special.ndtr(predictive.residuals(targets) / predictive.var.sqrt())
    return uniform


def interval_coverage(predictive: Gaussian, targets: Tensor, level: float = 0.95) -> float:
    """Return the share of targets inside the central interval of probability ``level``."""
    return float(covered_rows(predictive, targets, level).mean())


def covered_rows(predictive: Gaussian, targets: Tensor, level: float) -> Tensor:
    """Return 1 for each target inside the central interval, else 0, (B,)."""
    _require_level(level)
    return ((pit(predictive, targets).double() - 0.5).abs() <= level / 2).double()


def interval_width(predictive: Gaussian, level: float = 0.95) -> float:
    """Return the mean width of the central interval of probability ``level``."""
    return float(width_rows(predictive, level).mean())


def width_rows(predictive: Gaussian, level: float) -> Tensor:
    """Return the width of each row's central interval, in the unit of the target, (B,)."""
    _require_level(level)
    quantile = float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)))
    return 2 * quantile * predictive.var.double().sqrt()


def ece(
    predictive: Categorical,
    targets: Tensor,
    *,
    rng: torch.Generator,
    adaptive: bool = False,
    num_bins: int = ECE_BINS,
    num_draws: int = 200,
) -> CalibrationError:
    """Estimate the expected calibration error of the predicted class.

    Args:
        predictive: What was predicted.
        targets: What was observed.
        rng: Draws labels for the null value, and true errors for the interval.
        adaptive: Bins of equally many rows instead of equal width.
        num_bins: How many bins.
        num_draws: How many draws the null value is made from.
    """
    hits, confidence = hit_rows(predictive, targets), confidences(predictive)
    if adaptive:  # bins of equally many rows, as far as ties allow: equal confidences share one
        ordered = confidence.sort().values
        last = torch.arange(1, num_bins) * len(ordered) // num_bins - 1
        bins = torch.searchsorted(ordered[last.clamp_min(0)], confidence)
    else:
        bins = bin_of(confidence, num_bins)
    value = _gap(confidence, hits, bins)
    null = torch.tensor(
        [
            _gap(confidence, torch.bernoulli(confidence.clamp_max(1.0), generator=rng), bins)
            for _ in range(num_draws)
        ]
    )
    draws = _plausible_errors(confidence, hits, bins, rng)
    ends = torch.tensor([(1 - 0.95) / 2, (1 + 0.95) / 2], dtype=draws.dtype)
    low, high = draws[draws > 0].quantile(ends).tolist()
    p_value = (1 + int((null >= value).sum())) / (len(null) + 1)
    if p_value > 0.05:  # then it may be zero, whatever the draws say
        low = 0.0
    return CalibrationError(value, float(null.median()), (low, high))


def reliability(predictive: Categorical, targets: Tensor, num_bins: int = ECE_BINS) -> Reliability:
    """Sum confidences and hits in the bins of `ece`, which is their gap per row.

    Examples:
        >>> p = Categorical.from_moments(torch.tensor([[0.9, 0.1], [0.7, 0.3]]).double())
        >>> bins = reliability(p, torch.tensor([0, 1]), num_bins=2)
        >>> bins.count, bins.accuracy
        ([0, 2], [0.0, 0.5])
    """
    hits, confidence = hit_rows(predictive, targets), confidences(predictive)
    bins = bin_of(confidence, num_bins)

    def total(values: Tensor) -> Tensor:
        return torch.bincount(bins, weights=values, minlength=num_bins)

    return Reliability(
        torch.bincount(bins, minlength=num_bins).tolist(),
        total(confidence).tolist(),
        total(hits).long().tolist(),
    )


def confidences(predictive: Categorical) -> Tensor:
    """Return the probability of each row's most probable class, (B,)."""
    return predictive.moments().double().amax(-1)


def bin_of(confidence: Tensor, num_bins: int) -> Tensor:
    """Return the bin of equal width, (a, b], that each confidence belongs to."""
    return ((confidence * num_bins).ceil().long() - 1).clamp(0, num_bins - 1)


def classwise_ece(
    predictive: Categorical,
    targets: Tensor,
    *,
    rng: torch.Generator,
    num_bins: int = ECE_BINS,
    num_draws: int = 200,
) -> CalibrationError:
    """Estimate the calibration error of each class's probability, averaged over classes.

    It has no interval: errors of classes depend on each other, and most of their bins are nearly
    empty. Compare the value with its null value.
    """
    predictive.check(targets)
    probs = predictive.moments().double()
    bins = bin_of(probs, num_bins)

    def error(labels: Tensor) -> float:
        hits = torch.nn.functional.one_hot(labels.long(), probs.shape[-1]).double()
        columns = zip(probs.T, hits.T, bins.T, strict=True)
        return sum(_gap(p, h, b) for p, h, b in columns) / probs.shape[-1]

    null = [error(torch.multinomial(probs, 1, generator=rng).squeeze(-1)) for _ in range(num_draws)]
    return CalibrationError(
        error(targets), float(torch.tensor(null).median()), (math.nan, math.nan)
    )


def _gap(confidence: Tensor, hits: Tensor, bins: Tensor) -> float:
    """Sum over bins of |hits - confidence|, per row."""
    return float(torch.bincount(bins, weights=hits - confidence).abs().sum()) / len(hits)


def _plausible_errors(
    confidence: Tensor, hits: Tensor, bins: Tensor, rng: torch.Generator
) -> Tensor:
    """Draws of what the true error may be."""
    count, sums, right = (
        torch.bincount(bins, weights) for weights in (torch.ones_like(hits), confidence, hits)
    )
    full = count > 0
    count = count[full]
    return plausible_errors(count, sums[full] / count, right[full], rng=rng)


def _require_level(level: float) -> None:
    if not 0 < level < 1:
        raise PoolError(f"a level is a probability between 0 and 1, not {level}")
