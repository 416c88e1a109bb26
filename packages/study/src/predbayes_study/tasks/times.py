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

from predbayes.exchange.strict import Finite
from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.likelihood import Hazards
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Survival, at_risk, require_times
from predbayes.predictive.measures import mean_estimate
from predbayes.predictive.survival import (
    FEWEST_AT_RISK,
    FEWEST_EVENTS,
    brier_by_time,
    kaplan_meier,
    num_supported,
    risk_gap_rows,
    risk_groups,
)
from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import AtSites, ClassRisk, Curves, RiskGroup
from predbayes_study.rules import Finding, error, warning
from predbayes_study.tables.problem import Kind
from predbayes_study.tasks.blocks import Alike, blocks_of, middles, within
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
from predbayes_study.wording import plain

MIN_EVENTS = 5
"""Events of reference rows in an interval, below which its hazard can hardly be learnt."""

_NOT_SEEN = (
    "Hardly a held-out row was seen to the horizon, so nothing is said of the risks at it, and "
    "models are compared by NLL alone."
)
_UNSEEN_AT_SITES = (
    "At some site hardly a row was seen to the horizon, so risks are not compared with what "
    "happened."
)
_THIRDS = ("lowest third", "middle third", "highest third")
_LEVEL = 0.95
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
    predicts = "the time to an event"
    gives = "The probability to be without the event at each time of the plan."
    shown_as = "curves"
    of_groups = ("c_index", "risk_gap")  # the NLL differs with how long rows were seen
    compares_sums = False  # they do not part the model's faults from how long rows were seen
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

    def doubts(self, plan: Plan, targets: Tensor, least: int) -> Iterator[Finding]:
        """Yield whether there are events to learn from; how many is nobody's business."""
        num_events, least = int((targets > 0).sum()), max(MIN_OF_CLASS, least)
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

    def worst(self, predictive: Survival) -> Tensor:
        """Return an event in the least probable interval, or none in any."""
        place = predictive.log_moments().argmin(1)
        last = predictive.log_odds.shape[1]
        return torch.where(place < last, place + 1.0, -float(last))

    def alike(
        self, predictive: Survival, targets: Tensor, least: int, apart: Tensor
    ) -> Alike[Survival]:
        """Return hazards of blocks, whose odds are bounded."""
        del targets
        most = math.log(100 * (predictive.log_odds.shape[1] + 1))
        log_odds = within(predictive.log_odds.clamp(-most, most), least)
        blocks = blocks_of(log_odds, least, apart)
        return Alike(Survival(middles(log_odds, blocks)), blocks[:, None])

    def calibration(
        self, plan: Plan, predictive: Survival, targets: Tensor, *, rng: torch.Generator
    ) -> Curves | None:
        """Compare predicted with observed curves; None where rows are too few for thirds.

        Rows are dealt into thirds by the risk that was stated for them. The mean of a third's
        predicted curves should be what Kaplan and Meier find in it, at the end of every interval;
        at the horizon this is calibration in groups of risk. A look at three groups finds something
        by chance alone more often than one: a group *fits* unless its stated risk is outside an
        interval of 1 - 0.05 / 3. Observed figures end where too few rows were seen. The Brier score
        over time is told beside that of the curve of all rows together, which knows no column.
        """
        del rng
        if len(targets) < len(_THIRDS):
            return None
        num = predictive.log_odds.shape[1]
        seen = num_supported(targets, num)
        ends = torch.arange(1, num + 1, dtype=torch.float64)
        everybody = kaplan_meier(targets).at(ends)
        # As hazards, so that it is scored as any prediction is.
        shares = torch.cat([torch.ones(1), everybody]).double()
        marginal = Survival.from_moments(torch.cat([-shares.diff(), shares[-1:]])[None])
        plain = brier_by_time(marginal[torch.zeros(len(targets)).long()], targets).mean(0)
        scores = brier_by_time(predictive, targets)
        return Curves(
            times=plan.target.times,
            gap=mean_estimate(risk_gap_rows(predictive, targets)) if seen == num else None,
            brier=tuple(mean_estimate(scores[:, j]) for j in range(seen)),
            brier_of_all=tuple(plain[:seen].tolist()),
            groups=tuple(
                _group(name, predictive[rows], targets[rows], ends)
                for name, rows in zip(_THIRDS, risk_groups(predictive, len(_THIRDS)), strict=True)
            ),
            unsure=_unsure(predictive, targets)
            if seen == num
            else f"hardly a scored row was seen to the horizon of {horizon_of(plan)}",
        )

    def verdict(
        self,
        plan: Plan,
        shown: Curves,
        num_rows: int,
        nothing: str,
        risks: Sequence[ClassRisk] = (),
    ) -> tuple[bool, str]:
        """Judge by the risk at the horizon; not where few rows were seen so long, or had events."""
        del risks
        gap = shown.gap
        if shown.unsure or gap is None:
            return False, f"Calibration cannot be judged: {shown.unsure}."
        words = (
            f"by {horizon_of(plan)} the observed risk less the stated one is "
            f"{100 * gap.value:+.1f} points (95 % interval {100 * gap.low:+.1f} to "
            f"{100 * gap.high:+.1f})"
        )
        off = [group.name for group in shown.groups if not group.fits]
        if gap.low <= 0 <= gap.high and not off:
            return True, (
                f"{nothing.rstrip(',')} on {num_rows:,} scored rows: {words}, and the observed "
                "risk of each third of the rows is what was stated, as far as chance allows."
            )
        of_groups = f"{' and the '.join(off)} of the risks"
        where = f"; it is not what was stated in the {of_groups}" if off else ""
        return True, f"The risks are not quite right: on {num_rows:,} scored rows {words}{where}."

    def events(self, plan: Plan, targets: Tensor) -> Tensor:
        """Return which rows are not censored."""
        del plan
        return (targets > 0).long()

    def expected_events(self, predictive: Survival, targets: Tensor) -> float:
        """Return the sum of cumulative hazards over the time that rows were seen.

        The number of events less it is a martingale, whatever rows were seen for, and its variance
        that sum as well. Within an interval the rate is taken as constant.
        """
        rates = nn.functional.softplus(predictive.log_odds.double())  # -log(1 - hazard)
        times = targets.abs().double()[:, None]
        seen = (times - torch.arange(rates.shape[1])).clamp(0, 1)
        return float((rates * seen).sum())

    def at_sites(self, found: AtSites, fewest: int) -> str:
        """Return the risk at the horizon, if rows were seen so long, and the C-index."""
        del fewest
        metrics = found.pooled.metrics
        index = metrics.get("c_index")
        told = f"; C-index {plain(index.value, 3)}" if index else ""
        if "risk_gap" not in metrics:
            return f"NLL {plain(metrics['nll'].value, 3)}{told}. {_UNSEEN_AT_SITES}"
        gap = metrics["risk_gap"]
        fits = (
            "no more than chance would give" if gap.low <= 0 <= gap.high else "more than by chance"
        )
        return (
            "by the horizon the observed risk less the stated one is "
            f"{100 * gap.value:+.1f} points (95 % interval {100 * gap.low:+.1f} to "
            f"{100 * gap.high:+.1f}), {fits}{told}."
        )

    def nll_note(self, plan: Plan) -> str:
        """Return of what it is the surprise."""
        del plan
        return (
            "It is the surprise at the interval in which the event came or, where a row was last "
            "seen without it, at getting so far."
        )

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


def _unsure(predictive: Survival, targets: Tensor) -> str:
    stated = float((1 - predictive.curve()[:, -1].double()).sum())
    num_events = int((targets > 0).sum())
    if max(num_events, stated) >= FEWEST_EVENTS:
        return ""
    return (
        f"{num_events} scored rows have the event, and about {stated:.0f} should by the risks; "
        f"fewer than {FEWEST_EVENTS} say little"
    )


def _group(name: str, predictive: Survival, targets: Tensor, ends: Tensor) -> RiskGroup:
    observed = kaplan_meier(targets)
    (low, high), stated = observed.interval(ends, _LEVEL), predictive.curve().double().mean(0)
    seen = num_supported(targets, len(ends))
    last = max(seen - 1, 0)
    wide = observed.interval(ends[last : last + 1], 1 - (1 - _LEVEL) / len(_THIRDS))
    return RiskGroup(
        name=name,
        num_rows=len(targets),
        stated=tuple(stated.tolist()),
        observed=tuple(
            Estimate(value, least, most)
            for value, least, most in zip(
                *(figures[:seen].tolist() for figures in (observed.at(ends), low, high)),
                strict=True,
            )
        ),
        fits=not seen or bool(wide[0] <= stated[last] <= wide[1]),
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
