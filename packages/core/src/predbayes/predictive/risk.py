r"""How well a risk is told: who is at risk, whether the risk is right, what decisions gain by it.

A risk r_i is the probability that a classification gives to one class, the *event* of row i. With
E events and O other rows, and l_i = log r_i / (1 - r_i),

    AUROC       share of pairs of an event and another row where the event has the higher risk; a
                tie counts half
    AP          average precision: over events, the share of events among rows of at least its risk
    slope       b of logit P(event) = a + b l_i by maximum likelihood; 1 if risks spread rightly,
                less if they are too extreme
    intercept   a of logit P(event) = a + l_i; 0 if risks are right on average
    O/E         events over sum_i r_i
    at t        sensitivity, specificity, PPV and NPV of treating rows with r_i >= t, and the net
                benefit (TP - FP t / (1 - t)) / N (Vickers and Elkin, 2006)

Each has an interval of 95 % about other rows of the same kind, for this model: of the AUROC
Newcombe's fifth (2006), which inverts the variance of Hanley and McNeil; of the AP Wilson's, its
events as trials; of slope and intercept Wald's; of O/E Wilson's of the events, the sum of risks
being fixed; of shares Wilson's; of a net benefit Student's. They are held against simulations in
`tests/core/statistical/test_intervals.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.arrays import once_per_row
from predbayes.predictive.estimate import Estimate, Z, mean_of, share, t_quantile, wilson
from predbayes.predictive.families import Categorical

MOST_SLOPE = 100.0
"""Of a calibration slope; above it events and others are as good as separated."""

_MOST_LOG_ODDS = 40.0  # in a fit; whatever is surer is as sure as that
_MAX_STEPS = 100
_TOLERANCE = 1e-12


@dataclass(frozen=True)  # without slots, where what is made once is kept
class Risks:
    """What was said of one class, row by row, and whether it was so."""

    log_odds: Tensor  # (N,)
    event: Tensor  # (N,), bool

    @classmethod
    def of(cls, predictive: Categorical, targets: Tensor, index: int) -> Risks:
        """Return the risks of one class, against all others."""
        predictive.check(targets)
        log_probs = predictive.log_probs.double()
        others = torch.cat([log_probs[:, :index], log_probs[:, index + 1 :]], 1)
        return cls(log_probs[:, index] - others.logsumexp(1), targets == index)

    @cached_property
    def risk(self) -> Tensor:
        """The probability of the event, (N,)."""
        return once_per_row(torch.sigmoid, self.log_odds)

    @property
    def num_events(self) -> int:
        """Rows with the event."""
        return int(self.event.sum())

    @property
    def num_rows(self) -> int:
        """All rows."""
        return len(self.event)

    @property
    def is_mixed(self) -> bool:
        """Whether there are events and other rows."""
        return 0 < self.num_events < self.num_rows

    def auroc(self) -> Estimate | None:
        """Return the area under the ROC curve; None without events or without other rows."""
        if not self.is_mixed:
            return None
        num, total = self.num_events, self.num_rows
        ranks = scipy.stats.rankdata(self.log_odds.numpy())
        pairs = float(ranks[self.event.numpy()].sum()) - num * (num + 1) / 2
        area = pairs / (num * (total - num))
        return Estimate(area, *auroc_ends(area, num, total - num))

    def average_precision(self) -> Estimate | None:
        """Return the average precision; None without events."""
        if not self.num_events:
            return None
        levels, place = torch.unique(self.log_odds, return_inverse=True)
        rows = torch.bincount(place, minlength=len(levels)).flip(0)
        events = torch.bincount(place, self.event.double(), len(levels)).flip(0)
        precision = events.cumsum(0) / rows.cumsum(0)
        value = float((events * precision).sum()) / self.num_events
        return wilson(value, self.num_events)

    def slope(self) -> Estimate | None:
        """Return the calibration slope; None where the rows determine none."""
        if not self.is_mixed or bool((self.log_odds == self.log_odds[0]).all()):
            return None
        fitted = _logistic(self._design(), self.event.double(), torch.zeros_like(self.log_odds))
        return None if fitted is None else _wald(*fitted, 1)

    def intercept(self) -> Estimate | None:
        """Return the calibration intercept, the slope being 1; None where all or no row is one."""
        if not self.is_mixed:
            return None
        ones, odds = self._design()[:, :1], self._design()[:, 1]
        fitted = _logistic(ones, self.event.double(), odds)
        return None if fitted is None else _wald(*fitted, 0)

    def observed_expected(self) -> Estimate:
        """Return the number of events over the sum of risks."""
        return observed_expected(self.num_events, float(self.risk.sum()), self.num_rows)

    def prevalence(self) -> Estimate:
        """Return the share of events."""
        return share(self.num_events, self.num_rows)

    def decision(self, threshold: float) -> Decision:
        """Count what treating rows of at least this risk would do."""
        treated = self.risk >= threshold
        hits = int((treated & self.event).sum())
        return Decision(threshold, hits, int(treated.sum()) - hits, self.num_events, self.num_rows)

    def _design(self) -> Tensor:
        odds = self.log_odds.clamp(-_MOST_LOG_ODDS, _MOST_LOG_ODDS)
        return torch.stack([torch.ones_like(odds), odds], 1)


@dataclass(frozen=True, slots=True)
class Decision:
    """What treating rows of at least some risk does; counts may be halves if they are bounded."""

    threshold: float
    true_positive: float
    false_positive: float
    num_events: int
    num_rows: int

    @property
    def num_others(self) -> int:
        """Rows without the event."""
        return self.num_rows - self.num_events

    def sensitivity(self) -> Estimate | None:
        """Share of events that are treated."""
        return share(self.true_positive, self.num_events) if self.num_events else None

    def specificity(self) -> Estimate | None:
        """Share of others that are not treated."""
        if not self.num_others:
            return None
        return share(self.num_others - self.false_positive, self.num_others)

    def ppv(self) -> Estimate | None:
        """Share of events among those treated."""
        treated = self.true_positive + self.false_positive
        return share(self.true_positive, treated) if treated else None

    def npv(self) -> Estimate | None:
        """Share of others among those not treated."""
        spared = self.num_others - self.false_positive
        left = self.num_rows - self.true_positive - self.false_positive
        return share(spared, left) if left else None

    def net_benefit(self) -> Estimate:
        """Events treated less others treated, these at the odds of the threshold, per row.

        Examples:
            >>> Decision(0.2, 8, 12, 10, 100).net_benefit().value  # (8 - 12 / 4) / 100
            0.05
        """
        odds, num = self.threshold / (1 - self.threshold), self.num_rows
        mean = (self.true_positive - odds * self.false_positive) / num
        square = (self.true_positive + odds * odds * self.false_positive) / num
        error = math.sqrt(max(0.0, square - mean * mean) / (num - 1)) if num > 1 else 0.0
        reach = t_quantile(num) * error
        return Estimate(mean, mean - reach, mean + reach)

    def treat_all(self) -> float:
        """Net benefit of treating everybody; that of treating nobody is 0."""
        odds = self.threshold / (1 - self.threshold)
        return (self.num_events - odds * self.num_others) / self.num_rows

    def figures(self) -> dict[str, Estimate]:
        """Return all that are defined, by their names in the table of measures."""
        found = {name: getattr(self, name)() for name in AT_THRESHOLD}
        return {name: figure for name, figure in found.items() if figure is not None}


AT_THRESHOLD = ("sensitivity", "specificity", "ppv", "npv", "net_benefit")
"""What there is for each threshold, by the names of the table of measures."""


def macro(
    predictive: Categorical, targets: Tensor, figure: Callable[[Risks], Estimate | None]
) -> Estimate | None:
    """Return the figure of the event: of two classes the second, of more the mean over classes.

    Classes that the rows do not have are left out of the mean. Its interval has the means of the
    ends, which is right for classes that err together and wider than needed for others.
    """
    num = predictive.log_probs.shape[1]
    classes = (1,) if num == 2 else range(num)
    found = [figure(Risks.of(predictive, targets, index)) for index in classes]
    return mean_of([one for one in found if one is not None])


def observed_expected(
    num_events: float, expected: float, num_rows: int, slack: float = 0.0
) -> Estimate:
    """Return observed over expected events, with an interval for the observed ones.

    The expected ones may be off by a share of `slack`.
    """
    found, per_row = share(num_events, num_rows), max(expected / num_rows, 1e-300)
    value, low, high = (end / per_row for end in (found.value, found.low, found.high))
    return Estimate(value, low / (1 + slack), high / (1 - slack), value * slack / (1 - slack))


def auroc_error(area: float, num_events: int, num_others: int) -> float:
    """Return the standard error of an AUROC, by Hanley and McNeil for the mean number of rows."""
    mean = (num_events + num_others) / 2 - 1
    spread = 1 + mean * (1 - area) / (2 - area) + mean * area / (1 + area)
    return math.sqrt(max(0.0, area * (1 - area) * spread / (num_events * num_others)))


def auroc_ends(area: float, num_events: int, num_others: int) -> tuple[float, float]:
    """Return the interval of an AUROC: areas from which it is at most 1.96 standard errors away.

    The variance is Hanley and McNeil's (1982) for exponential risks, of the mean number of rows
    (Newcombe, 2006, method 5); so areas of 0 and 1 have an interval, too.
    """

    def excess(theta: float) -> float:
        error = auroc_error(theta, num_events, num_others)
        return (area - theta) ** 2 - (Z * error) ** 2

    # Numerics: at 0 and 1 the area itself is a root, but not the one that is meant.
    start = min(max(area, 1e-9), 1 - 1e-9)
    low = 0.0 if area <= 0 else float(scipy.optimize.brentq(excess, 0.0, start, xtol=1e-12))
    high = 1.0 if area >= 1 else float(scipy.optimize.brentq(excess, start, 1.0, xtol=1e-12))
    return low, high


def _wald(weights: Tensor, covariance: Tensor, index: int) -> Estimate:
    value, reach = float(weights[index]), Z * math.sqrt(float(covariance[index, index]))
    return Estimate(value, value - reach, value + reach)


def _logistic(design: Tensor, event: Tensor, offset: Tensor) -> tuple[Tensor, Tensor] | None:
    """Weights of a logistic regression and their covariance; None where there is no maximum."""

    def loss(weights: Tensor) -> float:
        odds = offset + design @ weights
        return float((torch.nn.functional.softplus(odds) - event * odds).sum())

    weights = torch.zeros(design.shape[1], dtype=torch.float64)
    for _ in range(_MAX_STEPS):
        probs = (offset + design @ weights).sigmoid()
        information = design.T @ (design * (probs * (1 - probs)).unsqueeze(1))
        step, failed = torch.linalg.solve_ex(information, design.T @ (event - probs))
        if int(failed) or not bool(step.isfinite().all()):
            return None
        # Numerics: where risks are far off a full step can be much too long.
        while loss(weights + step) > loss(weights) and float(step.abs().max()) > _TOLERANCE:
            step = step / 2
        weights = weights + step
        if float(weights.abs().max()) > MOST_SLOPE:
            return None
        if float(step.abs().max()) <= _TOLERANCE:
            break
    covariance, failed = torch.linalg.inv_ex(information)
    # Numerics: of rows that are separated, or next to it, information is next to nothing.
    var = covariance.diag()
    sound = not int(failed) and bool(((var > 0) & (var < MOST_SLOPE**2)).all())
    return (weights, covariance) if sound else None
