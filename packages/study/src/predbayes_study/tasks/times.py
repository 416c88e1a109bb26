"""Times to an event: a hazard is predicted for each interval of the plan up to its horizon.

A target is a time in intervals, negative where the row was last seen without the event
(`predbayes.predictive.families.Survival`). After the last interval nothing is looked at: a row that
was seen longer is censored at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.likelihood import Hazards
from predbayes.predictive.families import Survival, at_risk, require_times
from predbayes.predictive.survival import FEWEST_AT_RISK
from predbayes_study.plan.schema import Finite, Plan
from predbayes_study.rules import Finding, error, warning
from predbayes_study.tables.problem import Kind
from predbayes_study.tasks.hazards import HazardLearner
from predbayes_study.tasks.task import (
    LEAST_LOG_PROB,
    MIN_OF_CLASS,
    PRIOR_STD,
    Adjustment,
    Array,
    Faults,
    SharesTask,
)

MIN_EVENTS = 5
"""Events of reference rows in an interval, below which its hazard can hardly be learnt."""

_NOT_SEEN = (
    "Hardly a held-out row was seen to the horizon, so nothing is said of the risks at it, and "
    "models are compared by NLL alone."
)
_MAX_LISTED = 8
_AT_ONCE = 1e-6  # of an interval: a time of 0 has a sign as well
_MOST_IN_FIRST = 0.9  # of times, within the first interval
_MAX_STEPS = 100
_TOLERANCE = 1e-10


class HazardShift(Adjustment):
    """A site's own level of the hazards."""

    kind: Literal["hazard-shift"] = "hazard-shift"
    shift: Finite  # of the log odds in every interval

    def fits(self, plan: Plan) -> bool:
        """Return whether the plan's target is a time to an event."""
        return bool(plan.target.times)

    def apply(self, predictive: Survival) -> Survival:
        """Shift every log odds of a predictive."""
        return Survival(predictive.log_odds + self.shift)


class Times(SharesTask[Survival]):
    """The time to an event is predicted."""

    family = Survival
    outputs = ("survival", "median")
    has_trend = False  # a trend of times is none of what was censored

    def in_words(self, plan: Plan) -> str:
        """Return how many intervals there are."""
        return f"time to an event in {plan.num_outputs} intervals"

    def encode(self, plan: Plan, columns: Mapping[str, Array]) -> tuple[Array, Faults]:
        """Return times in intervals, negative where rows are censored."""
        time, event = plan.outcomes
        times = columns[time]
        faults = {time: {Kind.NEGATIVE: times < 0}}
        return in_intervals(plan, times, columns[event]), faults

    def from_labels(self, plan: Plan, labels: Sequence[Any]) -> Tensor:
        """Return times in intervals, as which they are kept."""
        times = torch.tensor([x if isinstance(x, float) else math.nan for x in labels])
        require_times(times.to(self.dtype), plan.num_outputs)
        return times.to(self.dtype)

    def doubts(self, plan: Plan, targets: Tensor) -> Iterator[Finding]:
        """Yield whether there are events to learn from; how many is nobody's business."""
        num_events, least = int((targets > 0).sum()), max(MIN_OF_CLASS, plan.rules.min_cell)
        if num_events < least:
            yield warning(
                f"{plan.target.event}: fewer than {least} rows have the event by "
                f"{horizon_of(plan)}; a model of this site alone learns little. Are its codes "
                "those of the plan?"
            )
        elif num_events == len(targets):
            yield warning(
                f"{plan.target.event}: every row has the event; are rows that were last seen "
                "without it left out?"
            )
        yield from _follow_up(plan, targets.abs().double())

    def label_doubts(self, plan: Plan, targets: Tensor) -> Iterator[Finding]:
        """Yield intervals with hardly an event."""
        target = plan.target
        if not bool((targets > 0).any()):
            yield error(
                f"target: no reference row has the event by the last of times; are the codes of "
                f"{target.event!r} {target.codes[0]!r} and {target.codes[1]!r}?"
            )
            return
        counts = torch.bincount(
            (targets[targets > 0].ceil() - 1).long(), minlength=plan.num_outputs
        )
        starts = (0.0, *target.times)
        poor = [
            f"{start:g} to {end:g}"
            for start, end, count in zip(starts, target.times, counts.tolist(), strict=False)
            if count < MIN_EVENTS
        ]
        if poor:
            more = f" and {len(poor) - _MAX_LISTED} more" if len(poor) > _MAX_LISTED else ""
            yield warning(
                f"target: fewer than {MIN_EVENTS} events of reference rows are in the intervals "
                f"{', '.join(poor[:_MAX_LISTED])}{more} {target.unit}".rstrip()
                + "; make them wider, so that curves can be learnt and checked"
            )

    def likelihood(self, plan: Plan, *, per_input: bool = False) -> Hazards:
        """Return hazards of the intervals."""
        del per_input
        return Hazards(plan.num_outputs)

    def learner(self, plan: Plan, name: str, estimator: Any) -> HazardLearner:
        """Return the learner of a classifier of trials."""
        del name
        return HazardLearner(SklearnClassifier(estimator, 2), plan.num_outputs)

    def simple(self, plan: Plan, name: str, estimator: Callable[[], Any]) -> HazardLearner:
        """Return one fit to trials."""
        del name
        return HazardLearner(SklearnClassifier(estimator(), 2, size=1), plan.num_outputs)

    def base_rate(self, plan: Plan, targets: Tensor) -> Survival:
        """Return a life table: events over rows that reached an interval, half a row more each."""
        reached = at_risk(targets, plan.num_outputs).sum(0)
        ended = targets[targets > 0].ceil().long() - 1
        events = torch.bincount(ended, minlength=plan.num_outputs)
        return Survival(((events + 0.5) / (reached - events + 0.5)).log()[None])

    def shapes(self, plan: Plan) -> Mapping[str, tuple[int, ...]]:
        """Return log odds of the hazard for each reference row and interval."""
        return {"log_odds": (plan.reference.num_rows, plan.num_outputs)}

    def describe(self, plan: Plan, predictive: Survival, level: float) -> dict[str, Tensor]:
        """Return ``survival`` (N, J), and the ``median`` time (N,), NaN after the last interval.

        Within an interval the hazard is constant.
        """
        del level
        curve = Survival(predictive.log_odds.double()).curve()
        before = nn.functional.pad(curve[:, :-1], (1, 0), value=1.0)
        above = curve > 0.5
        place = above.sum(1, keepdim=True).clamp_max(curve.shape[1] - 1)
        start, end = before.gather(1, place)[:, 0].log(), curve.gather(1, place)[:, 0].log()
        part = ((start - math.log(0.5)) / (start - end).clamp_min(1e-12)).clamp(0, 1)
        ends = torch.tensor([0.0, *plan.target.times], dtype=torch.float64)
        low, high = ends[place[:, 0]], ends[place[:, 0] + 1]
        median = torch.where(above.all(1), torch.nan, low + part * (high - low))
        return {"survival": curve, "median": median}

    def columns(self, plan: Plan, described: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return ``survival_<time>`` for the end of each interval, and the ``median``."""
        curve = described["survival"].numpy()
        ends = {f"survival_{t:g}": curve[:, j] for j, t in enumerate(plan.target.times)}
        return ends | {"median": described["median"].numpy()}

    def adjust(self, predictive: Survival, targets: Tensor) -> HazardShift:
        """Fit a shift of the hazards."""
        return fit_hazard_shift(predictive, targets)

    def errors(self, values: Mapping[str, Tensor]) -> Tensor | None:
        """Return the integrated Brier score, where rows were seen to the horizon."""
        return values.get("integrated_brier")

    def unsaid(self, names: Collection[str]) -> str:
        """Return that risks at the horizon are not known."""
        return "" if "risk_gap" in names else _NOT_SEEN

    def log_shares(self, predictive: Survival) -> Tensor:
        """Return log-probabilities of an event in each interval, and of none."""
        return Survival(predictive.log_odds.double()).log_moments()

    def agreement(self, predictive: Survival, targets: Tensor) -> tuple[Tensor, Tensor, int]:
        """Score each interval among the rows that reached it: trials are uncorrelated.

        As in a log rank test. The scores are of as many rows as there are events, which is what can
        be known from them.
        """
        num = predictive.log_odds.shape[1]
        seen = at_risk(targets, num).double()
        event = torch.zeros_like(seen)
        happened = (targets > 0).nonzero()[:, 0]
        event[happened, targets[happened].ceil().long() - 1] = 1.0
        reached = seen.sum(0).clamp_min(1)
        shares = event.sum(0) / reached
        said = self.without_level(predictive)
        centred = (said - (seen * said).sum(0) / reached) * seen
        variances = (centred.square() * (shares * (1 - shares))).sum(1)
        return (centred * (event - shares)).sum(1), variances, int(bool(event.any()))

    def without_level(self, predictive: Survival) -> Tensor:
        """Return bounded log odds of the hazards."""
        return predictive.log_odds.double().clamp(LEAST_LOG_PROB, -LEAST_LOG_PROB)


def horizon_of(plan: Plan) -> str:
    """Return the last time with its unit."""
    return f"{plan.target.times[-1]:g} {plan.target.unit}".strip()


def in_intervals(plan: Plan, times: Array, events: Array) -> Array:
    """Return times in the plan's intervals, negative where events are 0; NaN is missing."""
    ends = (0.0, *plan.target.times)
    lived = np.interp(times, ends, np.arange(len(ends))).clip(_AT_ONCE)
    seen = (events == 1) & (times <= ends[-1])
    return np.where(np.isnan(times) | np.isnan(events), np.nan, np.where(seen, lived, -lived))


def _follow_up(plan: Plan, times: Tensor) -> Iterator[Finding]:
    """Yield whether times, in intervals, are in the plan's unit and reach its horizon."""
    target, num, horizon = plan.target, plan.num_outputs, horizon_of(plan)
    middle = float(np.interp(target.times[-1] / 2, (0.0, *target.times), range(num + 1)))
    in_unit = f"in {target.unit or 'the unit of the plan'}"
    if float((times <= 1).double().mean()) > _MOST_IN_FIRST:
        yield warning(
            f"{target.name}: nearly all times are within the first interval, which ends at "
            f"{target.times[0]:g}, of a horizon of {horizon}; are they {in_unit}?"
        )
    elif not bool((times > middle).any()):
        yield warning(
            f"{target.name}: no time is in the second half of the horizon of {horizon}; are they "
            f"{in_unit}?"
        )
    if int((times > num - 1).sum()) < FEWEST_AT_RISK:
        yield warning(
            f"{target.name}: fewer than {FEWEST_AT_RISK} rows are seen in the last interval. Some "
            "intervals may have nobody at risk: there this site's model only repeats the hazards "
            "of the intervals before, and no figure at the horizon will be told of its rows"
        )


def fit_hazard_shift(
    predictive: Survival, targets: Tensor, prior_std: float = PRIOR_STD
) -> HazardShift:
    """Find the most probable shift of all log odds, by Newton's method.

    Examples:
        >>> even = Survival(torch.zeros(40, 1))
        >>> rows = torch.tensor([-1.0] * 10 + [1.0] * 30)
        >>> round(fit_hazard_shift(even, rows, prior_std=1e6).shift, 6)  # log(30 / 10)
        1.098612
    """
    trials = predictive.log_odds.double()[at_risk(targets, predictive.log_odds.shape[1])]
    num_events, prior_prec = int((targets > 0).sum()), prior_std**-2
    shift = 0.0
    for _ in range(_MAX_STEPS):
        hazards = (trials + shift).sigmoid()
        gradient = float(hazards.sum()) - num_events + prior_prec * shift
        step = gradient / (float((hazards * (1 - hazards)).sum()) + prior_prec)
        # Numerics: where hazards are next to nothing a full step can be far too long.
        shift -= max(-1.0, min(1.0, step))
        if abs(step) < _TOLERANCE:
            break
    return HazardShift(shift=shift)
