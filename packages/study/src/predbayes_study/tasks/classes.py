"""Classes: one of several words is predicted, by a probability for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.likelihood import Softmax
from predbayes.learning.named import CALIBRATED
from predbayes.predictive.families import Categorical
from predbayes_study.plan.schema import Finite, Plan
from predbayes_study.rules import Finding, error, warning
from predbayes_study.tasks.task import (
    LEAST_LOG_PROB,
    MIN_OF_CLASS,
    NUM_MEMBERS,
    PRIOR_STD,
    Adjustment,
    Array,
    Faults,
    SharesTask,
)

MIN_ROWS_OF_CLASS = 5
"""With fewer expected, a class may well have no labelled row at all."""

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
    by_class = True
    is_bounded = True  # log p is from -80 to 0
    outputs = ("probabilities",)

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

    def doubts(self, plan: Plan, targets: Tensor) -> Iterator[Finding]:
        """Yield which classes lack rows; how many rows of each is nobody's business."""
        counts = torch.bincount(targets.long(), minlength=plan.num_outputs)
        target, min_cell, names = plan.target.name, plan.rules.min_cell, plan.target.classes or ()
        if int((counts > 0).sum()) == 1:
            yield warning(
                f"{target}: all rows are of one class, {names[int(counts.argmax())]!r}; "
                "a model of this site alone cannot tell classes apart"
            )
            return
        for name, count in zip(names, counts.tolist(), strict=True):
            if not count:
                yield warning(f"{target}: no row is of the class {name!r}")
            elif count < min_cell:
                yield warning(
                    f"{target}: fewer than {min_cell} rows are of the class {name!r}; no counts "
                    "of classes will be sent"
                )
            elif count < max(MIN_OF_CLASS, min_cell / (1 - plan.learner.holdout)):
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
