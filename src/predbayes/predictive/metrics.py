"""How good a predictive is: proper scores, calibration and its uncertainty.

Every metric is a function `(predictive, targets) -> number`, a mean over rows that does not
depend on how they were batched. NLL is in nats per row with its constant.

The expected calibration error compares confidence with accuracy in bins B_m:

    ECE = sum_m |B_m| / N  *  |accuracy(B_m) - confidence(B_m)|

It is not zero for a perfectly calibrated model: with 15 bins its median is about .04 at 500
rows. So `ece` returns, beside the value, the *null* value (the median when labels are drawn from
the model itself) and a bootstrap interval. Bins are half-open on the left, (a, b], with 0 in the
first: a confidence of exactly 1 belongs to the last bin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.predictive.families import Categorical, Gaussian, Predictive

NUM_BINS = 15


@dataclass(frozen=True, slots=True)
class Reliability:
    """What a reliability diagram shows, by bins of equal width; 0 in the means of an empty bin."""

    count: list[int]  # rows whose confidence is in the bin
    confidence: list[float]  # their mean confidence
    accuracy: list[float]  # the fraction of them whose predicted class is the target


@dataclass(frozen=True, slots=True)
class CalibrationError:
    """A calibration error with what is needed to read it."""

    value: float
    null: float  # median for a perfectly calibrated model with these confidences
    interval: tuple[float, float]  # 95 %, basic bootstrap


def nll(predictive: Predictive, targets: Tensor) -> float:
    """Negative log-likelihood in nats per row."""
    return -float(predictive.log_prob(targets).double().mean())


def accuracy(predictive: Categorical, targets: Tensor) -> float:
    """Fraction of rows whose most probable class is the target."""
    predictive.check(targets)
    return float((predictive.log_probs.argmax(-1) == targets).double().mean())


def brier(predictive: Categorical, targets: Tensor) -> float:
    """Mean squared distance of the probabilities from the one-hot target, in [0, 2]."""
    return float(brier_rows(predictive, targets).mean())


def brier_rows(predictive: Categorical, targets: Tensor) -> Tensor:
    """What `brier` is the mean of, (B,)."""
    predictive.check(targets)
    probs = predictive.moments().double()
    observed = probs.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    rows: Tensor = probs.square().sum(-1) - 2 * observed + 1
    return rows


def rmse(predictive: Gaussian, targets: Tensor) -> float:
    """Root mean squared error of the means, in the unit of the target."""
    return float(predictive.residuals(targets).double().square().mean().sqrt())


def crps(predictive: Gaussian, targets: Tensor) -> float:
    """Continuous ranked probability score, in the unit of the target."""
    return float(crps_rows(predictive, targets).mean())


def crps_rows(predictive: Gaussian, targets: Tensor) -> Tensor:
    """What `crps` is the mean of, (B,)."""
    std = predictive.var.double().sqrt()
    z = predictive.residuals(targets).double() / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    spread = z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi)
    rows: Tensor = std * spread
    return rows


def pit(predictive: Gaussian, targets: Tensor) -> Tensor:
    """Probability integral transform per row, (B,): uniform if the predictive is calibrated."""
    uniform: Tensor = torch.special.ndtr(predictive.residuals(targets) / predictive.var.sqrt())
    return uniform


def interval_coverage(predictive: Gaussian, targets: Tensor, level: float = 0.95) -> float:
    """Fraction of targets inside the central interval of probability ``level``."""
    _require_level(level)
    inside = (pit(predictive, targets) - 0.5).abs() <= level / 2
    return float(inside.double().mean())


def interval_width(predictive: Gaussian, level: float = 0.95) -> float:
    """Mean width of the central interval of probability ``level``, in the unit of the target."""
    _require_level(level)
    quantile = float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)))
    return float(2 * quantile * predictive.var.double().sqrt().mean())


def ece(
    predictive: Categorical,
    targets: Tensor,
    *,
    rng: torch.Generator,
    adaptive: bool = False,
    num_bins: int = NUM_BINS,
    num_draws: int = 200,
) -> CalibrationError:
    """Expected calibration error of the predicted class.

    Args:
        predictive: What was predicted.
        targets: What was observed.
        rng: Draws labels for the null value and rows for the interval.
        adaptive: Bins of equally many rows instead of equal width.
        num_bins: How many bins.
        num_draws: How many draws the null value and the interval are made from.
    """
    predictive.check(targets)
    confidence, label = predictive.moments().double().max(-1)
    assign = _equal_mass if adaptive else _equal_width

    def gap(confidence: Tensor, hits: Tensor) -> float:
        return _gap(confidence, hits, assign(confidence, num_bins))

    def from_model() -> Tensor:
        return torch.bernoulli(confidence.clamp_max(1.0), generator=rng)

    return _with_null(confidence, (label == targets).double(), gap, from_model, rng, num_draws)


def reliability(predictive: Categorical, targets: Tensor, num_bins: int = NUM_BINS) -> Reliability:
    """Confidence and accuracy in the bins of `ece`, which is their mean gap weighted by counts.

    Examples:
        >>> p = Categorical.from_moments(torch.tensor([[0.9, 0.1], [0.7, 0.3]]).double())
        >>> bins = reliability(p, torch.tensor([0, 1]), num_bins=2)
        >>> bins.count, bins.accuracy
        ([0, 2], [0.0, 0.5])
    """
    predictive.check(targets)
    confidence, label = predictive.moments().double().max(-1)
    bins = _equal_width(confidence, num_bins)
    count = torch.bincount(bins, minlength=num_bins)

    def mean(values: Tensor) -> list[float]:
        total = torch.bincount(bins, weights=values, minlength=num_bins)
        means: list[float] = (total / count.clamp_min(1)).tolist()
        return means

    return Reliability(count.tolist(), mean(confidence), mean((label == targets).double()))


def classwise_ece(
    predictive: Categorical,
    targets: Tensor,
    *,
    rng: torch.Generator,
    num_bins: int = NUM_BINS,
    num_draws: int = 200,
) -> CalibrationError:
    """Calibration error of every class's probability, averaged over classes; equal-width bins."""
    predictive.check(targets)
    probs = predictive.moments().double()
    one_hot = torch.nn.functional.one_hot(targets.long(), probs.shape[-1]).double()

    def over_classes(probs: Tensor, hits: Tensor) -> float:
        gaps = [_gap(p, h, _equal_width(p, num_bins)) for p, h in zip(probs.T, hits.T, strict=True)]
        return sum(gaps) / len(gaps)

    def from_model() -> Tensor:
        drawn = torch.multinomial(probs, 1, generator=rng).squeeze(-1)
        return torch.nn.functional.one_hot(drawn, probs.shape[-1]).double()

    return _with_null(probs, one_hot, over_classes, from_model, rng, num_draws)


def bootstrap(
    metric: Callable[[Predictive, Tensor], float],
    predictive: Predictive,
    targets: Tensor,
    *,
    rng: torch.Generator,
    num_draws: int = 1000,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a metric over rows."""
    draws = []
    for _ in range(num_draws):
        rows = torch.randint(len(targets), (len(targets),), generator=rng)
        draws.append(metric(predictive[rows], targets[rows]))
    return _quantiles(draws, level)


Gap = Callable[[Tensor, Tensor], float]


def _with_null(
    confidence: Tensor,
    hits: Tensor,
    gap: Gap,
    from_model: Callable[[], Tensor],
    rng: torch.Generator,
    num_draws: int,
) -> CalibrationError:
    value = gap(confidence, hits)
    null = torch.tensor([gap(confidence, from_model()) for _ in range(num_draws)]).median()
    resampled = []
    for _ in range(num_draws):
        rows = torch.randint(len(hits), (len(hits),), generator=rng)
        resampled.append(gap(confidence[rows], hits[rows]))
    low, high = _quantiles(resampled, 0.95)
    # Resampling adds noise of its own, and noise only ever adds to an ECE: so the basic interval,
    # which reflects the resampled values about the estimate, and not the percentile interval.
    return CalibrationError(
        value, float(null), (max(0.0, 2 * value - high), max(0.0, 2 * value - low))
    )


def _gap(confidence: Tensor, hits: Tensor, bins: Tensor) -> float:
    """Sum over bins of |hits - confidence|, per row."""
    return float(torch.bincount(bins, weights=hits - confidence).abs().sum()) / len(hits)


def _equal_width(confidence: Tensor, num_bins: int) -> Tensor:
    return ((confidence * num_bins).ceil().long() - 1).clamp(0, num_bins - 1)


def _equal_mass(confidence: Tensor, num_bins: int) -> Tensor:
    """Bins of equally many rows, as far as ties allow: equal confidences share a bin."""
    ordered = confidence.sort().values
    last = torch.arange(1, num_bins) * len(ordered) // num_bins - 1
    return torch.searchsorted(ordered[last.clamp_min(0)], confidence)


def _require_level(level: float) -> None:
    if not 0 < level < 1:
        raise PoolError(f"a level is a probability between 0 and 1, not {level}")


def _quantiles(draws: list[float], level: float) -> tuple[float, float]:
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.tensor(draws, dtype=torch.float64).quantile(tails).tolist()
    return low, high
