r"""How good predicted times to an event are, where some rows are censored.

Times are in intervals and negative where censored, as in `Survival`; all figures end at the
horizon, the end of the last interval.

    G(t)           probability to be seen for t or longer, by Kaplan and Meier with censoring for
                   the event: what weighs rows that were seen, so that they stand for all
    Brier at t     mean of S(t | x)^2 / G(T) over rows with the event by t, and of
                   (1 - S(t | x))^2 / G(t) over rows that reached t (Graf et al., 1999)
    C-index        share of pairs in which the row with the earlier event has the higher risk by
                   the horizon (Harrell et al., 1996); equal risks count half
    risk gap       events by the horizon, weighed by 1 / G(T), less stated risks: observed by
                   Kaplan and Meier minus expected

Each is a mean over rows. For the C-index a row's value is C + 2 (c_i - C n_i) / mean n, where c_i
and n_i count the concordant and the comparable pairs that the row is in: its mean is C, and its
spread is that of C (a ratio of two U-statistics). So intervals, and sums over sites, are those of
any mean; over sites it is of pairs within a site.

Two spreads would be too small where events are few, and are at least what follows, by moving rows
away from their mean: that of the gap is that of events drawn from the stated risks, and that of the
C-index that of one pair in 2 E told wrongly, with E events.

Beyond what rows were seen for nothing can be estimated: `num_supported` says how many ends of
intervals are within that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn.functional import softplus

from predbayes.arrays import once_per_row
from predbayes.predictive.families import Survival

_LEAST_SEEN = 0.05  # no row stands for more than twenty
_BLOCK = 1000  # rows that are paired with all others at a time

FEWEST_AT_RISK = 5
"""Rows that must reach an interval, for something to be said of its end."""

FEWEST_EVENTS = 10
"""With fewer the C-index is not told, and calibration not judged."""


@dataclass(frozen=True, slots=True)
class KaplanMeier:
    """The share that reaches a time without the event, and the variance of its logarithm."""

    times: Tensor  # (K,) of events, ascending
    shares: Tensor  # (K,) just after them
    variances: Tensor  # (K,) of the logarithm, by Greenwood's formula
    ends: Tensor  # (N,) of all rows, ascending

    @classmethod
    def of(cls, times: Tensor, event: Tensor, *, censoring: bool = False) -> KaplanMeier:
        """Estimate from times (N,) and whether they are of an event.

        With ``censoring`` the time until a row was last seen is what is estimated. At the same time
        events come first, so they are no longer at risk of it.
        """
        happened = ~event if censoring else event
        ends = times.double().sort().values
        at, count = torch.unique(times[happened].double(), return_counts=True)
        reached = len(ends) - torch.searchsorted(ends, at)
        if censoring:
            events = times[event].double().sort().values
            reached -= torch.searchsorted(events, at, right=True) - torch.searchsorted(events, at)
        left = (1 - count.double() / reached).clamp_min(0)
        spread = count.double() / (reached * (reached - count).clamp_min(1))
        return cls(at, left.cumprod(0), spread.cumsum(0), ends)

    def at_risk(self, when: Tensor) -> Tensor:
        """Return how many rows were seen until each of some times, or longer."""
        return len(self.ends) - torch.searchsorted(self.ends, when.double())

    def before(self, when: Tensor) -> Tensor:
        """Return the share that is left just before each of some times."""
        return self._at(torch.searchsorted(self.times, when.double(), right=False), self.shares, 1)

    def at(self, when: Tensor) -> Tensor:
        """Return the share that is left after each of some times."""
        return self._at(torch.searchsorted(self.times, when.double(), right=True), self.shares, 1)

    def interval(self, when: Tensor, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return intervals of the share, made on the scale of log(-log).

        Before the first event, and once nobody is left, the formula has none: then they are that
        of no event among the rows that were seen so long, and the end of that of the last share
        above 0.
        """
        place = torch.searchsorted(self.times, when.double(), right=True)
        gone = self._at(place, self.shares, 1) == 0
        place = place - gone.long()
        share, error = self._at(place, self.shares, 1), self._at(place, self.variances, 0).sqrt()
        inside = share.clamp(1e-12, 1 - 1e-12).log()
        reach = (NormalDist().inv_cdf(0.5 + level / 2) * error / -inside).clamp_max(20.0)
        low, high = (inside * reach.exp()).exp(), (inside * (-reach).exp()).exp()
        least = (1 - level) ** (1 / self.at_risk(when).double())  # of nobody: 0
        low, high = torch.where(share < 1, low, least), torch.where(share < 1, high, 1.0)
        return torch.where(gone, 0.0, low), high

    @staticmethod
    def _at(place: Tensor, values: Tensor, first: float) -> Tensor:
        padded = torch.cat([torch.tensor([first], dtype=torch.float64), values])
        return padded[place]


def kaplan_meier(targets: Tensor) -> KaplanMeier:
    """Return the share without the event."""
    return KaplanMeier.of(targets.abs(), targets > 0)


def _seen(targets: Tensor) -> KaplanMeier:
    return KaplanMeier.of(targets.abs(), targets > 0, censoring=True)


def num_supported(targets: Tensor, num_intervals: int) -> int:
    """Return how many ends of intervals, from the first on, rows were seen long enough for.

    The share that is seen until an end must be one that weights are made of, and `FEWEST_AT_RISK`
    rows must reach its interval, unless nobody was lost from sight.
    """
    seen = _seen(targets)
    ends = torch.arange(1, num_intervals + 1, dtype=torch.float64)
    share = seen.before(ends)
    reach = len(targets) - torch.searchsorted(seen.ends, ends - 1, right=True)
    ok = (share >= _LEAST_SEEN) & ((reach >= FEWEST_AT_RISK) | (share == 1))
    return int(ok.long().cumprod(0).sum())


def is_seen_to_horizon(predictive: Survival, targets: Tensor) -> bool:
    """Return whether rows were seen long enough for figures at the horizon."""
    num = predictive.log_odds.shape[1]
    return num_supported(targets, num) == num


def has_events(predictive: Survival, targets: Tensor) -> bool:
    """Return whether events are enough to say how well they are told apart."""
    predictive.check(targets)
    return int((targets > 0).sum()) >= FEWEST_EVENTS


def cumulative_hazard(predictive: Survival) -> Tensor:
    """Return the cumulative hazard at the horizon, (B,): it orders rows as the risk does."""
    return once_per_row(lambda odds: softplus(odds).sum(1), predictive.log_odds.double())


def concordance_rows(predictive: Survival, targets: Tensor) -> Tensor:
    """Return values by row, (B,), whose mean is the C-index; without a comparable pair 1/2."""
    predictive.check(targets)
    risk, times, event = cumulative_hazard(predictive), targets.abs().double(), targets > 0
    concordant, comparable = (torch.zeros(len(targets), dtype=torch.float64) for _ in range(2))
    for start in range(0, len(targets), _BLOCK):
        rows = torch.arange(start, min(start + _BLOCK, len(targets)))
        later = times > times[rows, None]
        later |= (times == times[rows, None]) & ~event
        later &= event[rows, None]
        gap = risk[rows, None] - risk
        right = torch.where(gap == 0, 0.5, (gap > 0).double()) * later
        concordant[rows] += right.sum(1)
        comparable[rows] += later.sum(1)
        concordant += right.sum(0)
        comparable += later.sum(0)
    if not float(comparable.sum()):
        return torch.full_like(risk, 0.5)
    index = float(concordant.sum() / comparable.sum())
    wrong = 1 / (2 * float(event.sum()))
    least = math.sqrt(wrong * (1 - wrong) * len(targets) / float(event.sum()))
    return _spread(index + 2 * (concordant - index * comparable) / comparable.mean(), least)


def _spread(rows: Tensor, least: float) -> Tensor:
    """Move rows away from their mean, so that their standard deviation is no less than that."""
    if len(rows) < 2:
        return rows
    mean = rows.mean()
    away = rows - mean
    if float(away.std()) < 1e-12:  # all the same: to either side in turn
        away = torch.arange(len(rows)).double() % 2
        away = away - away.mean()
    return mean + away * max(1.0, least / float(away.std())) if least else rows


def brier_by_time(predictive: Survival, targets: Tensor) -> Tensor:
    """Return the Brier score of each row at the end of each interval, (B, J)."""
    predictive.check(targets)
    curve = predictive.curve().double()
    ends = torch.arange(1, curve.shape[1] + 1, dtype=torch.float64)
    seen, times, event = _seen(targets), targets.abs().double(), targets > 0
    had = event[:, None] & (times[:, None] <= ends)
    reached = (times[:, None] >= ends) & ~had
    by_event = 1 / seen.before(times).clamp_min(_LEAST_SEEN)
    by_end = 1 / seen.before(ends).clamp_min(_LEAST_SEEN)
    return had * curve.square() * by_event[:, None] + reached * (1 - curve).square() * by_end


def integrated_brier_rows(
    predictive: Survival, targets: Tensor, ends: Sequence[float] = ()
) -> Tensor:
    """Return the Brier score of each row, (B,), averaged over time from 0 to the horizon.

    Between the ends of intervals, which are 1, 2 and so on if they are not given, it is taken as
    linear; at time 0 it is 0.
    """
    scores = brier_by_time(predictive, targets)
    knots = torch.tensor([0.0, *(ends or range(1, scores.shape[1] + 1))], dtype=torch.float64)
    return torch.trapezoid(torch.nn.functional.pad(scores, (1, 0)), knots, dim=1) / knots[-1]


def risk_gap_rows(predictive: Survival, targets: Tensor) -> Tensor:
    """Return values by row, (B,), whose mean is the observed less the expected risk."""
    predictive.check(targets)
    weight = 1 / _seen(targets).before(targets.abs()).clamp_min(_LEAST_SEEN)
    risk = 1 - predictive.curve()[:, -1].double()
    return _spread((targets > 0) * weight - risk, float((risk * (1 - risk)).mean().sqrt()))


def risk_groups(predictive: Survival, num_groups: int) -> list[Tensor]:
    """Deal rows into groups of rising risk and about equal size."""
    order = cumulative_hazard(predictive).argsort(stable=True)
    bounds = [math.floor(k * len(order) / num_groups) for k in range(num_groups + 1)]
    return [order[a:b] for a, b in itertools.pairwise(bounds)]
