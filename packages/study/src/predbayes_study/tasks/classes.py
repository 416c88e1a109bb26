"""Classes: one of several words is predicted, by a probability for each.

Calibration is shown beside what a perfectly calibrated model would show on as many rows: the *null*
band of a reliability diagram holds each bin's accuracy in 95% of cases if every probability is
right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.arrays import once_per_row
from predbayes.errors import PoolError
from predbayes.exchange.strict import Finite
from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.likelihood import Softmax
from predbayes.learning.named import CALIBRATED
from predbayes.predictive import metrics
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Categorical
from predbayes.predictive.metrics import DIAGRAM_BINS
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.risk import Risks
from predbayes.predictive.tuning import tune_temperature
from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import (
    AtSites,
    AtThreshold,
    Bin,
    ClassRisk,
    Factor,
    Reliability,
)
from predbayes_study.rules import Finding, error, warning
from predbayes_study.tasks.blocks import Alike, blocks_of, means, middles, whole_edges, within
from predbayes_study.tasks.echo import (
    SHIFTS,
    TIMES,
    TIMES_OF_TWO,
    Heard,
    ModelLevel,
    echo_of_several,
    echo_of_two,
    level_of_several,
    level_of_two,
)
from predbayes_study.tasks.task import (
    LEAST_LOG_PROB,
    MIN_OF_CLASS,
    NUM_MEMBERS,
    PRIOR_STD,
    TAILS,
    Adjustment,
    Array,
    Faults,
    SharesTask,
    percent,
)
from predbayes_study.wording import plain

MIN_ROWS_OF_CLASS = 5
"""With fewer expected, a class may well have no labelled row at all."""

ALPHA = 0.05

OF_RISK = ("auroc", "average_precision", "slope", "intercept", "observed_expected")
"""The measures of one class's risk, by name."""

_CURVE = tuple(step / 100 for step in range(1, 100))
_NULL = {"slope": 1.0, "observed_expected": 1.0}
_FEWEST_GROUPS = 3  # one or two hold rows of every probability, and agree with any flat model
_NUM_DRAWS = 1000  # of a null band
_FACTOR, _MOST_FACTOR = 1.3, 1e6
_LEAST_SPREAD = 1e-9
_WIDER = 2.2414 / 1.96  # normal quantiles of 2.5%, halved and not
_NULL_ECE = 0.9  # of a calibrated model, times sqrt(n): .09 at 100, .03 at 1,000
_MAX_STEPS = 100
_TOLERANCE = 1e-10


class Intercept(Adjustment):
    """A site's own frequencies of the classes."""

    kind: Literal["intercept"] = "intercept"
    shifts: tuple[Finite, ...]  # of log p, one for each class

    def fits(self, plan: Plan) -> bool:
        """Return whether it is of the plan's classes."""
        return len(self.shifts) == len(plan.target.classes or ())

    def apply(self, predictive: Categorical) -> Categorical:
        """Shift every log-odds of a predictive."""
        log_probs = predictive.log_probs
        return Categorical.from_natural(log_probs + log_probs.new_tensor(self.shifts))


class Classes(SharesTask[Categorical]):
    """One of several classes is predicted."""

    family = Categorical
    dtype = torch.long
    predicts = "a class"
    gives = "A probability of each class."
    by_class = True
    is_bounded = True  # log p is from -80 to 0
    outputs = ("probabilities",)
    shown_as = "reliability"
    # Every sixteenth of log odds from -7 to 7.
    grid = tuple(round(1 / (1 + math.exp(-step / 16)), 6) for step in range(-112, 113))

    def in_words(self, plan: Plan) -> str:
        """Return how many classes there are."""
        return f"{plan.num_outputs} classes"

    def encode(self, plan: Plan, columns: Mapping[str, Array]) -> tuple[Array, Faults]:
        """Return the places of the classes in the plan's list."""
        return columns[plan.target.name], {}

    def to_labels(self, plan: Plan, targets: Sequence[float]) -> list[str]:
        """Return the classes' names."""
        names = plan.target.classes or ()
        return [names[int(target)] for target in targets]

    def from_labels(self, plan: Plan, labels: Sequence[Any]) -> Tensor:
        """Return the places of names."""
        places = {name: place for place, name in enumerate(plan.target.classes or ())}
        if not places.keys() >= set(labels):
            raise PoolError("a label is none of the classes")
        return torch.tensor([places[label] for label in labels], dtype=self.dtype)

    def doubts(self, plan: Plan, targets: Tensor, least: int) -> Iterator[Finding]:
        """Yield which classes lack rows; how many rows of each is nobody's business."""
        counts = torch.bincount(targets.long(), minlength=plan.num_outputs)
        target, names = plan.target.name, plan.target.classes or ()
        # With a smaller `min_cell` the rows decide: to say so of some counts alone would tell them.
        sent = (
            "no counts of classes will" if plan.rules.min_cell >= least else "their counts may not"
        )
        if int((counts > 0).sum()) == 1:
            yield warning(
                f"{target}: all rows are of one class, {names[int(counts.argmax())]!r}; "
                "a model of this site alone cannot tell classes apart"
            )
            return
        for name, count in zip(names, counts.tolist(), strict=True):
            if not count:
                yield warning(f"{target}: no row is of the class {name!r}")
            elif count < least:
                yield warning(
                    f"{target}: fewer than {least} rows are of the class {name!r}; {sent} be sent"
                )
            elif count < max(MIN_OF_CLASS, least / (1 - plan.learner.holdout)):
                yield warning(
                    f"{target}: few rows are of the class {name!r}: a model hardly learns it, and "
                    "counts of classes may not be sent"
                )

    def label_doubts(self, plan: Plan, targets: Tensor) -> Iterator[Finding]:
        """Yield which classes have too few labels."""
        counts = torch.bincount(targets.long(), minlength=plan.num_outputs)
        names = plan.target.classes or ()
        if int(counts.count_nonzero()) == 1 and plan.reference.labelled + plan.reference.evaluate:
            yield error(
                f"target: every label is {names[int(counts.argmax())]!r}, which is nothing to "
                "choose or judge by; label rows of at least two classes, or none"
            )
            return
        expected = counts * min(plan.reference.labelled / len(targets), 1)
        for name, count, tuned_on in zip(names, counts, expected, strict=True):
            if not count:
                yield warning(
                    f"target: no row has the label {name!r}; what sites say about it is not checked"
                )
            elif plan.reference.labelled and tuned_on < MIN_ROWS_OF_CLASS:
                yield warning(
                    f"target: {int(count)} rows have the label {name!r}, of which about "
                    f"{float(tuned_on):.0f} will be labelled: too few to tune on"
                )

    def by_chance(self, num_scored: int) -> str:
        """Return the ECE of a calibrated model."""
        if not num_scored:
            return ""
        return (
            ". Even a perfectly calibrated model has an ECE of about "
            f"{min(_NULL_ECE / math.sqrt(num_scored), 1):.2f} then (.09 with 100, .04 with 500, "
            ".03 with 1,000)"
        )

    def likelihood(self, plan: Plan, *, per_input: bool = False) -> Softmax:
        """Return probabilities of the classes."""
        del per_input
        return Softmax(plan.num_outputs)

    def learner(self, plan: Plan, name: str, estimator: Any) -> SklearnClassifier:
        """Return the learner of a classifier, with a temperature where it is too sure."""
        return SklearnClassifier(estimator, plan.num_outputs, calibrated=name in CALIBRATED)

    def simple(self, plan: Plan, name: str, estimator: Callable[[], Any]) -> SklearnClassifier:
        """Return one fit, or a small bag of trees with a temperature."""
        learner = SklearnClassifier(estimator(), plan.num_outputs, size=1)
        is_bag = name in CALIBRATED
        return replace(learner, size=NUM_MEMBERS, calibrated=True) if is_bag else learner

    def base_rate(self, plan: Plan, targets: Tensor) -> Categorical:
        """Return the shares of classes, with one row of each more."""
        counts = torch.bincount(targets, minlength=plan.num_outputs) + 1.0
        return Categorical.from_moments(counts[None] / counts.sum())

    def shapes(self, plan: Plan) -> Mapping[str, tuple[int, ...]]:
        """Return a log-probability for each reference row and class."""
        return {"log_probs": (plan.reference.num_rows, plan.num_outputs)}

    def describe(self, plan: Plan, predictive: Categorical, level: float) -> dict[str, Tensor]:
        """Return ``probabilities`` (N, C)."""
        del plan, level
        return {"probabilities": predictive.log_probs.double().softmax(1)}

    def columns(self, plan: Plan, described: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return ``probability_<class>`` for each, and the likeliest as ``predicted``."""
        names, probabilities = plan.target.classes or (), described["probabilities"]
        found: dict[str, Any] = {
            f"probability_{n}": probabilities[:, c].numpy() for c, n in enumerate(names)
        }
        return found | {"predicted": [names[c] for c in probabilities.argmax(1).tolist()]}

    def adjust(self, predictive: Categorical, targets: Tensor) -> Intercept:
        """Fit shifts of the classes."""
        return fit_intercept(predictive, targets)

    def errors(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return wrong answers."""
        return 1 - values["accuracy"]

    def worst(self, predictive: Categorical) -> Tensor:
        """Return the least probable classes."""
        return predictive.log_probs.argmin(1)

    def alike(
        self, predictive: Categorical, targets: Tensor, least: int, apart: Tensor
    ) -> Alike[Categorical]:
        """Return probabilities of blocks: of two classes one for both, of more of each class.

        No class has less than a hundredth of an equal share. Of several classes probabilities of a
        row need not add up to one, because they are of different blocks.
        """
        del targets
        num = predictive.log_probs.shape[1]
        floor = predictive.log_probs.clamp_min(-math.log(100 * num)).log_softmax(1)
        scores = _strangeness(predictive)
        if num == 2:
            edges, (apart,) = whole_edges(self.grid, [scores], [apart], least)
            odds = within(floor[:, 1:] - floor[:, :1], least)
            blocks = blocks_of(odds, least, apart)
            odds = middles(odds, blocks)
            both = once_per_row(lambda odds: torch.cat([-odds, odds], 1).sigmoid().log(), odds)
            said = Categorical(both)
            return Alike(said, blocks[:, None].expand(-1, 2), said.log_probs.argmax(1), edges)
        predicted, floor = _predicted(floor, least, apart), within(floor, least)
        cells = [2 * apart + (predicted == index) for index in range(num)]
        edges, cells = whole_edges(self.grid, [scores[:, [c]] for c in range(num)], cells, least)
        blocks = torch.stack([blocks_of(floor[:, [c]], least, cells[c]) for c in range(num)], 1)
        columns = [middles(floor[:, [c]], blocks[:, c]) for c in range(num)]
        return Alike(Categorical(torch.cat(columns, 1)), blocks, predicted, edges)

    def values(self, plan: Plan, said: Alike[Categorical], targets: Tensor) -> dict[str, Tensor]:
        """Return values that depend on the block of the row's own class and on nothing else."""
        if plan.num_outputs == 2:
            return super().values(plan, said, targets)
        assert said.predicted is not None
        own, probs = targets.long()[:, None], said.predictive.log_probs.double().exp()
        others = probs.square().sum(1, keepdim=True) - probs.square()
        others = torch.cat(
            [means(others[:, c], said.blocks[:, c])[:, None] for c in range(plan.num_outputs)], 1
        )
        stated = probs.gather(1, own)[:, 0]
        return {
            "nll": -stated.log(),
            "brier": (1 - stated).square() + others.gather(1, own)[:, 0],
            "accuracy": (said.predicted == targets).double(),
        }

    def calibration(
        self, plan: Plan, predictive: Categorical, targets: Tensor, *, rng: torch.Generator
    ) -> Reliability:
        """Return confidence against accuracy in bins, with the band of a calibrated model."""
        del plan
        error = metrics.ece(predictive, targets, rng=rng)
        sums = metrics.reliability(predictive, targets, DIAGRAM_BINS)
        # Accuracy when labels are drawn from the predictive itself.
        stated = metrics.confidences(predictive).clamp_max(1.0)
        place = metrics.bin_of(stated, DIAGRAM_BINS)
        band = _band(stated, place, torch.tensor(sums.count), rng)
        bins = tuple(
            Bin(count=n, stated=c, observed=a, null_low=low, null_high=high)
            for n, c, a, low, high in zip(
                sums.count, sums.confidence, sums.accuracy, *band, strict=True
            )
        )
        low, high = error.interval
        return Reliability(
            ece=Estimate(error.value, low, high),
            # Of two classes the event's slope says it, beside its level.
            factor=None if predictive.log_probs.shape[1] == 2 else _factor(predictive, targets),
            null=error.null,
            bins=bins,
        )

    def verdict(
        self,
        plan: Plan,
        shown: Reliability,
        num_rows: int,
        nothing: str,
        risks: Sequence[ClassRisk] = (),
    ) -> tuple[bool, str]:
        """Judge by the expected calibration error and, for several classes, by the factor.

        For two classes the event's slope and its observed over expected take the factor's place.
        Each of the two errs in 5% of studies of a calibrated model, and one of them in at most 10%.
        """
        del plan
        ece, null, factor = shown.ece, shown.null, shown.factor
        words = (
            f"the expected calibration error is {ece.value:.3f} (95 % interval {ece.low:.3f} to "
            f"{ece.high:.3f}); a perfectly calibrated model would show about {null:.3f} on as many "
            "rows"
        )
        told, is_off, power = [f"{words}."], ece.low > 0, None
        if factor is not None:
            power = factor.power
        if factor is not None and factor.p_value < ALPHA:
            is_off = True
            side = "too extreme" if factor.value < 1 else "not sure enough"
            p_value = "< 0.001" if factor.p_value < 0.001 else f"= {factor.p_value:.3f}"
            told.append(
                f"They are {side}: multiplied by {plain(factor.value, 2)} the log odds would fit "
                f"better than chance explains (likelihood ratio, p {p_value})."
            )
        if len(risks) == 1:
            power = _power_of_slope(risks[0])
        if len(risks) == 1 and is_off_by(risks[0]):
            is_off = True
            told.append(f"Of the risks of “{risks[0].name}”: {risk_words(risks[0])}")
        rows = f"on {num_rows:,} scored rows"
        if is_off:
            return True, f"The probabilities are not quite right: {rows} {' '.join(told)}"
        if power is not None:
            told.append(
                "A model whose log odds are off by a factor of 1.3 would be found out in about "
                f"{100 * power:.0f} of 100 studies of this size."
            )
        return True, f"{nothing} {rows}: {' '.join(told)}"

    def risks(
        self, plan: Plan, predictive: Categorical, targets: Tensor, *, rng: torch.Generator
    ) -> tuple[ClassRisk, ...]:
        """Return the event's risks of two classes, or each class's of more.

        A diagram and a decision curve are of an event alone.
        """
        classes, indices = plan.target.classes or (), plan.event_indices
        return tuple(
            _class_risk(
                classes[index],
                Risks.of(predictive, targets, index),
                plan.thresholds,
                rng if len(indices) == 1 else None,
            )
            for index in (indices if len(targets) else ())
        )

    def class_shares(self, plan: Plan, targets: Tensor) -> tuple[float, ...]:
        """Return the share of rows of each class; nothing without rows."""
        if not len(targets):
            return ()
        counts = torch.bincount(targets.long(), minlength=plan.num_outputs)
        return tuple((counts.double() / len(targets)).tolist())

    def events(self, plan: Plan, targets: Tensor) -> Tensor | None:
        """Return the places of two classes."""
        return targets.long() if len(plan.event_indices) == 1 else None

    def event_risks(self, plan: Plan, predictive: Categorical, targets: Tensor) -> Risks | None:
        """Return the risks of the event of two classes."""
        if len(plan.event_indices) != 1:
            return None
        return Risks.of(predictive, targets, plan.event_indices[0])

    def strangeness(self, predictive: Categorical, targets: Tensor) -> Tensor:
        """Return 1 - p of each row's class."""
        return _strangeness(predictive).gather(1, targets.long().unsqueeze(1))[:, 0]

    def promised(
        self, plan: Plan, predictive: Categorical, bound: float
    ) -> dict[str, list[str] | Tensor]:
        """Return ``set``, the names of classes with a bar between."""
        names, sets = plan.target.classes or (), promised_sets(predictive, bound).tolist()
        kept = ([n for n, is_in in zip(names, row, strict=True) if is_in] for row in sets)
        return {"set": [" | ".join(row) for row in kept]}

    def promised_size(self, plan: Plan, predictive: Categorical, bound: float) -> Tensor:
        """Return how many classes a set has."""
        del plan
        return promised_sets(predictive, bound).sum(1)

    def num_echo(self, plan: Plan) -> int:
        """Return the points of the grid."""
        return len(TIMES_OF_TWO) * len(SHIFTS) if plan.num_outputs == 2 else 2 * len(TIMES)

    def echo(
        self,
        plan: Plan,
        said: Alike[Categorical],
        predictive: Categorical,
        targets: Tensor,
    ) -> tuple[float, ...]:
        """Return a likelihood of blocks for two classes, and an expectation for more."""
        if plan.num_outputs == 2:
            events = int(targets.sum())  # which follow from such an echo
            if min(events, len(targets) - events) < plan.rules.min_cell:
                return ()
            return echo_of_two(said.predictive, targets)
        return echo_of_several(said.predictive, predictive)

    def level(self, plan: Plan, heard: Sequence[Heard]) -> ModelLevel | None:
        """Return the level of least loss for two classes, or of right expectations for more."""
        heard = [one for one in heard if one.said.echo is not None]
        if not heard:
            return None
        weights = np.array([one.weight for one in heard])
        echo = weights @ np.array([one.said.echo for one in heard])
        if plan.num_outputs == 2:
            return level_of_two(echo)
        totals = [-one.said.metrics["nll"].total for one in heard]
        return level_of_several(echo, float(weights @ totals))

    def at_sites(self, found: AtSites, fewest: int) -> str:
        """Return the accuracy, and what bins of the risk or of the confidence say."""
        metrics = found.pooled.metrics
        words = (
            f"{percent(metrics['accuracy'].value)} of cases are right; NLL "
            f"{plain(metrics['nll'].value, 3)}."
        )
        if found.between:
            return f"{words} These are means over sites that differ."
        if len(found.pooled.risks) == 1:
            return f"{words} {_by_risk(found.pooled.risks[0], found.pooled.num_rows)}"
        words += (
            " A site counts answers by blocks of at least five rows, so the two figures are worse "
            "than the model where a site has few rows of a class."
        )
        inside = [bin.null_low <= bin.observed <= bin.null_high for bin in found.pooled.bins]
        if len(inside) >= _FEWEST_GROUPS:
            num_rows = sum(bin.count for bin in found.pooled.bins)
            return f"{words} {_by_groups(inside, _part(num_rows, found.pooled.num_rows))}"
        if not found.sites:  # what the public sees
            return f"{words} What shows calibration, if sites sent it, is in the members’ report."
        return (
            f"{words} Too little of a reliability diagram came with them, so calibration is not "
            f"judged: a site sends one from {fewest} held-out rows on, if its groups "
            "are not too small."
        )

    def nll_note(self, plan: Plan) -> str:
        """Return what a guess scores."""
        guess = plain(math.log(plan.num_outputs), 3)
        return (
            f"To give each of the {plan.num_outputs} classes the same probability scores {guess}."
        )

    def log_shares(self, predictive: Categorical) -> Tensor:
        """Return the log-probabilities of the classes."""
        return predictive.log_probs.double()

    def agreement(self, predictive: Categorical, targets: Tensor) -> tuple[Tensor, Tensor, int]:
        """Score log-probabilities, whose base rates say nothing."""
        log_probs = predictive.log_probs.double().clamp_min(LEAST_LOG_PROB)
        counts = torch.bincount(targets, minlength=log_probs.shape[1]).double()
        shares = counts / counts.sum()
        # Base rates add nothing to the score, because the shares are those of the labels; what
        # they would add to the variance must go.
        varying = log_probs - log_probs.mean(0)
        centred = varying - (varying @ shares).unsqueeze(1)
        scores = Categorical.inner(centred, targets)
        return scores, centred.square() @ shares, int((counts > 0).sum()) - 1

    def without_level(self, predictive: Categorical) -> Tensor:
        """Return log-probabilities less their mean over classes."""
        log_probs = predictive.log_probs.double().clamp_min(LEAST_LOG_PROB)
        return log_probs - log_probs.mean(1, keepdim=True)


def _strangeness(predictive: Categorical) -> Tensor:
    """Return 1 - p of each class at each row, (N, C)."""
    return 1 - predictive.log_probs.double().softmax(1)


def _predicted(log_probs: Tensor, least: int, apart: Tensor) -> Tensor:
    """Return the likeliest class of each row, (N,), of those that enough rows beside it have."""
    found = torch.empty(len(log_probs), dtype=torch.int64)
    for number in torch.unique(apart).tolist():
        rows = (apart == number).nonzero()[:, 0]
        here = log_probs[rows].clone()
        while True:
            likeliest = here.argmax(1)
            sizes = torch.bincount(likeliest, minlength=here.shape[1])
            few = torch.where((sizes > 0) & (sizes < least), sizes, len(rows) + 1)
            if int(few.min()) > len(rows):
                break
            here[:, int(few.argmin())] = -torch.inf
        found[rows] = likeliest
    return found


def promised_sets(predictive: Categorical, bound: float) -> Tensor:
    """Return which classes are in each row's set, (N, C).

    The likeliest always is, so that no set is empty; that covers more, if anything.
    """
    scores = _strangeness(predictive)
    return (scores <= bound).scatter(1, scores.argmin(1, keepdim=True), value=True)


def _class_risk(
    name: str, rows: Risks, thresholds: Sequence[float], rng: torch.Generator | None
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


def _risk_bins(rows: Risks, rng: torch.Generator) -> tuple[Bin, ...]:
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


def is_off_by(risk: ClassRisk) -> list[str]:
    """Return by what stated risks are off: of slope and events over expected, at 5% together."""
    found = [(name, risk.metrics[name]) for name in _NULL if name in risk.metrics]
    return [name for name, e in found if _is_far(e, _NULL[name])]


def _is_far(found: Estimate, null: float) -> bool:
    """Whether a value is outside of an interval that is as wide as two figures need."""
    reach = _WIDER * ((found.value - found.low) if null < found.value else found.high - found.value)
    return abs(found.value - null) > reach


def _power_of_slope(risk: ClassRisk) -> float | None:
    """Return in what share of such studies a slope of 1.3, or of 1 / 1.3, is found to be off."""
    slope = risk.metrics.get("slope")
    if slope is None or slope.high <= slope.value:
        return None
    # In standard errors as they would be at a slope of 1, in proportion.
    error = (slope.high - slope.value) / 1.96 / max(slope.value, 0.1)
    shift, end = (1 - 1 / _FACTOR) / error, 1.96 * _WIDER
    return float(scipy.stats.norm.sf(end - shift) + scipy.stats.norm.sf(end + shift))


def _factor(predictive: Categorical, targets: Tensor) -> Factor | None:
    """Test whether log odds multiplied by one number would be better.

    With l the log-probabilities and p_t those of t l, the score at t = 1 is the sum of
    l_y - E_p[l], with mean sum(E_pt[l] - E_p[l]) and variance sum(Var_pt[l]) if t is right.
    """
    natural = predictive.log_probs.double()

    def moments(time: float) -> tuple[Tensor, Tensor]:
        probs = (time * natural).softmax(1)
        mean = (probs * natural).sum(1)
        return mean, (probs * natural.square()).sum(1) - mean.square()

    mean, variance = moments(1.0)
    spread = math.sqrt(float(variance.sum()))
    if spread < _LEAST_SPREAD:
        return None
    tuned = tune_temperature(PredictiveSum.of(predictive), targets, component="product")
    gain = len(targets) * (metrics.nll(predictive, targets) - tuned.nll)
    powers = []
    for time in (_FACTOR, 1 / _FACTOR):
        other, its_variance = moments(time)
        shift, its_spread = float((other - mean).sum()), math.sqrt(float(its_variance.sum()))
        ends = (np.array([-1.0, 1.0]) * 1.96 * spread - shift) / max(its_spread, _LEAST_SPREAD)
        powers.append(1 - float(np.diff(scipy.stats.norm.cdf(ends))[0]))
    return Factor(
        value=min(tuned.profiles["inverse_temperature"].value, _MOST_FACTOR),
        p_value=float(scipy.stats.chi2.sf(max(2 * gain, 0.0), 1)),
        power=min(powers),
    )


def risk_words(risk: ClassRisk) -> str:
    """Say in a sentence whether stated risks are right, by slope and by events over expected."""
    found = [name for name in _NULL if name in risk.metrics]
    off = is_off_by(risk)
    if not found:
        return "There are too few events to say whether the risks are right."
    if not off:
        return (
            "Neither the level nor the spread of the stated risks differs from the observed ones "
            "by more than chance would give."
        )
    words = []
    if "observed_expected" in off:
        high = risk.metrics["observed_expected"].value < 1
        words.append(f"on average the stated risks are too {'high' if high else 'low'}")
    if "slope" in off:
        extreme = risk.metrics["slope"].value < 1
        words.append(f"they are {'too extreme' if extreme else 'not spread out enough'}")
    text = ", and ".join(words)
    return f"{text[0].upper()}{text[1:]}, by more than chance would give."


def _by_risk(risk: ClassRisk, num_rows: int) -> str:
    """Of two classes: level and spread need no groups that all sites have in common."""
    words = f"By counts{_part(risk.num_rows, num_rows)}: {risk_words(risk)}"
    inside = [bin.null_low <= bin.observed <= bin.null_high for bin in risk.bins]
    return f"{words} {_by_groups(inside)}" if len(inside) >= _FEWEST_GROUPS else words


def _by_groups(inside: Sequence[bool], part: str = "") -> str:
    return (
        f"Of {len(inside)} groups of about equal probability{part} {sum(inside)} are as often so "
        "as chance would let them be if the model were calibrated."
    )


def _part(num_rows: int, every: int) -> str:
    """Of how many rows a figure is, where it is not of all."""
    return "" if num_rows == every else f" of {num_rows:,} of these rows"


def fit_intercept(
    predictive: Categorical, targets: Tensor, prior_std: float = PRIOR_STD
) -> Intercept:
    """Find the most probable shifts of the classes, by Newton's method.

    Examples:
        >>> even = Categorical.from_moments(torch.full((40, 2), 0.5))
        >>> rows = torch.tensor([0] * 10 + [1] * 30)
        >>> no, yes = fit_intercept(even, rows, prior_std=1e6).shifts
        >>> round(yes - no, 6)  # log(30 / 10)
        1.098612
    """
    natural = predictive.log_probs.double()
    num_classes = natural.shape[1]
    counts = torch.bincount(targets, minlength=num_classes).double()
    prior_prec = prior_std**-2
    # Numerics: all shifts by the same are no shift, so with a flat prior nothing would hold them;
    # steps sum to zero, and what is added along (1, ..., 1) leaves those as they are.
    prior = prior_prec * torch.eye(num_classes, dtype=torch.float64) + 1

    def objective(shifts: Tensor) -> float:
        fit = (natural + shifts).logsumexp(1).sum() - counts @ shifts
        return float(fit + 0.5 * prior_prec * shifts.square().sum())

    shifts = torch.zeros(num_classes, dtype=torch.float64)
    for _ in range(_MAX_STEPS):
        probs = (natural + shifts).softmax(1)
        expected = probs.sum(0)
        gradient = expected - counts + prior_prec * shifts
        hessian = expected.diag() - probs.T @ probs + prior
        step = torch.linalg.solve(hessian, gradient)
        if float(step.abs().max()) < _TOLERANCE:
            break
        # Numerics: where predictions are saturated a full step can be far too long.
        while objective(shifts - step) > objective(shifts) and float(step.abs().max()) > _TOLERANCE:
            step = step / 2
        shifts = shifts - step
    return Intercept(shifts=tuple((shifts - shifts.mean()).tolist()))
