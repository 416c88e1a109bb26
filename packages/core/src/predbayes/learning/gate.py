"""The gate: how much denser a site's own rows lie at an input than the reference rows do.

    r_k(x) = p_k(x) / p_ref(x)

A site learns it by telling its own rows from *contrast rows*, which are reference inputs. With n
own and m contrast rows the odds of a classifier that does so are

    o(x) = n p_k(x) / (m p_ref(x)),        log r_k(x) = log o(x) - log n + log m

No label of a reference row is needed. A network for C classes learns C + 1: contrast rows, and own
rows by class, whose odds are added up; what tells digits apart helps to tell whose they are. Other
learners tell two classes apart. The gate is learnt apart from the site's model, which loses nothing
by it.

    cross-fitted   own and contrast rows are dealt into two halves, each with a classifier of its
                   own; a row of one half is judged by the classifier of the other, every other row
                   by both; rows of a patient are in one half, as they are nearly alike
    calibrated     log r = s z, where z is the judgement, a the slope of least NLL on held-out rows
                   and s = max(a, min(1, 2 a)): as steep as learnt, steeper if held-out rows ask
                   for it, and no steeper than 2 a, which is about where the judgement tells
                   those rows apart no better than no gate at all; where own and contrast rows
                   are alike s is about 0, and the gate 1 everywhere
    bounded        between a floor and a ceiling, and no more than 1 on average over the contrast
                   rows, which is what the mean of a density ratio over p_ref can be; whoever takes
                   a gate in checks both

With half the rows and half the steps in each of two fits, and as many contrast rows as own ones, a
gate takes as many steps as the model. A network that takes a least number of steps passes over few
rows again and again; there up to four contrast rows for an own one cost no step, and teach it more.
With any other learner a site of fewer rows has 1,000 contrast rows, and its gate takes more steps
than its model. Few contrast rows among many own ones may let a network diverge that did not before;
it then begins again with half the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.errors import TrainingError, UploadError
from predbayes.learning.local import GateLearner, fit_with_retries, kept_together
from predbayes.predictive.families import LOG_PROB_FLOOR, Categorical
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import tune_weights
from predbayes.seeding import split

MIN_ROWS = 20
"""Fewer own or contrast rows teach no gate: it is 1 everywhere."""

_MIN_CONTRAST = 1000
_MOST_PER_ROW = 4  # contrast rows for an own one; with 12 the own ones are too few in a batch
_MOST_LIFTED = 0.005  # of a logarithm: what the floor may add to the mean ratio
_SLACK = 0.02  # of a logarithm: that, and what rounding to 16 bits may do


@dataclass(frozen=True, slots=True)
class GateBounds:
    """Least and largest log ratio that may leave a site."""

    floor: float = -6.0
    ceiling: float = 3.0

    def __post_init__(self) -> None:
        if not self.floor < 0 < self.ceiling:
            raise TrainingError(
                f"a gate's bounds have 0 between them, which {self.floor:g} and {self.ceiling:g} "
                "do not"
            )

    def apply(self, log_ratio: Tensor, num_contrast: int | None = None) -> Tensor:
        """Return log ratios (R,) within the bounds, of mean at most 1 over the first rows."""
        bounded = log_ratio.double().clamp(self.floor, self.ceiling)
        contrast = bounded[:num_contrast]
        if not len(contrast):
            return bounded

        def excess(lowered: float) -> float:
            """Logarithm of the mean ratio, if all are lowered so far, but not below the floor."""
            kept = (contrast - lowered).clamp_min(self.floor)
            return float(kept.logsumexp(0)) - math.log(len(kept))

        lowered = max(excess(0.0), 0.0)
        if excess(lowered) > _MOST_LIFTED:  # by a floor that is near 0
            lowered = float(scipy.optimize.brentq(excess, 0.0, self.ceiling - self.floor))
        return (bounded - lowered).clamp_min(self.floor)

    def check(
        self, gate: Tensor, num_contrast: int | None = None, most_rows: int | None = None
    ) -> None:
        """Refuse a gate out of the bounds, and one that claims more rows than its site has.

        The mean of a density ratio over the contrast rows is the share of the site's rows that lie
        where these do: at most 1. So what a site weighs over all of them is no more than its row
        count, whatever it claims of single rows.

        Args:
            gate: As it was sent: (R,), in logarithms, and perhaps rounded to 16 bits.
            num_contrast: How many of the first rows may be contrast rows; None is all.
            most_rows: How many rows the site can have, if it is known: few teach no gate.
        """
        if most_rows is not None and most_rows < MIN_ROWS and bool(gate.any()):
            raise UploadError(
                f"its gate is not 0 everywhere, but from at most {most_rows} rows, fewer than "
                f"{MIN_ROWS}, no gate is learnt"
            )
        low, high = float(gate.min()), float(gate.max())
        within = self.floor - _SLACK <= low and high <= self.ceiling + _SLACK  # which NaN is not
        if not within:
            raise UploadError(
                f"its gate is from {low:g} to {high:g}; its bounds are floor = {self.floor:g} and "
                f"ceiling = {self.ceiling:g}"
            )
        mean = float(gate[:num_contrast].double().exp().mean())
        if mean > 1 + _SLACK:
            raise UploadError(
                f"its gate has a mean ratio of {mean:.3f} over the reference rows; no site's can "
                "be above 1"
            )


DEFAULT_BOUNDS = GateBounds()


def log_density_ratio(
    gate_learner: GateLearner,
    own: tuple[Tensor, Tensor],
    reference: Tensor,
    *,
    num_contrast: int | None = None,
    bounds: GateBounds = DEFAULT_BOUNDS,
    groups: Tensor | None = None,
    rng: torch.Generator,
) -> Tensor:
    """Return a site's gate on the reference inputs, (R,) in logarithms.

    Args:
        gate_learner: Fits own rows against contrast rows.
        own: The site's inputs and targets, of which classes alone are looked at.
        reference: The reference inputs.
        num_contrast: How many of the first reference inputs may be contrast rows; None is all.
        bounds: Of the log ratio.
        groups: Whose each own row is, (N,), as that of a patient; they stay together.
        rng: The halves, and the learner's randomness.
    """
    available = len(reference) if num_contrast is None else num_contrast
    own_inputs, targets = own
    num_groups = len(own_inputs) if groups is None else len(torch.unique(groups))
    if min(num_groups, available) < MIN_ROWS:
        return torch.zeros(len(reference), dtype=torch.float64)
    wanted = num_contrast_rows(len(own_inputs), gate_learner.free_rows)
    chosen = torch.randperm(available, generator=rng)[:wanted]
    mine = torch.randperm(len(own_inputs), generator=rng)
    kinds = gate_learner.kinds(targets)
    parts = _dealt(mine, groups)
    halves = [_Half(reference, chosen[p::2], own_inputs, kinds, parts[p], groups) for p in (0, 1)]
    models = [
        half.fit(gate_learner, rng=part) for half, part in zip(halves, split(rng, 2), strict=True)
    ]
    held_out = [model.judge(half) for model, half in zip(models, reversed(halves), strict=True)]
    everywhere = torch.stack([model.log_ratio(reference) for model in models]).mean(0)
    for half, (contrast, _) in zip(reversed(halves), held_out, strict=True):
        everywhere[half.contrast_rows] = contrast
    best = _best_slope(*map(torch.cat, zip(*held_out, strict=True)))
    return bounds.apply(max(best, min(1.0, 2 * best)) * everywhere, available)


def num_contrast_rows(num_own: int, free_rows: int = 0) -> int:
    """Return how many contrast rows teach a gate, if there are so many.

    Args:
        num_own: The site's own rows.
        free_rows: Rows that each of the two fits may have before it takes more steps.

    Examples:
        >>> num_contrast_rows(9600, 3800), num_contrast_rows(960, 3800), num_contrast_rows(960)
        (9600, 3840, 1000)
    """
    free = min(_MOST_PER_ROW * num_own, 2 * free_rows - num_own)
    return max(num_own, _MIN_CONTRAST, free)


def _dealt(rows: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows in two halves, group after group in the order in which their first rows come."""
    if groups is None:
        return rows[::2], rows[1::2]
    first: dict[int, int] = {}
    half = torch.tensor([first.setdefault(g, len(first)) % 2 for g in groups[rows].tolist()])
    return rows[half == 0], rows[half == 1]


@dataclass(frozen=True, slots=True)
class _Half:
    """Half of the contrast rows and half of the own ones, by number."""

    reference: Tensor
    contrast_rows: Tensor
    inputs: Tensor
    kinds: Tensor
    own_rows: Tensor
    groups: Tensor | None  # of all own rows

    @property
    def contrast(self) -> Tensor:
        return self.reference[self.contrast_rows]

    @property
    def own(self) -> Tensor:
        return self.inputs[self.own_rows]

    def fit(self, gate_learner: GateLearner, *, rng: torch.Generator) -> _Judge:
        contrast, own = self.contrast, self.own
        kinds = torch.cat([torch.zeros(len(contrast)).long(), self.kinds[self.own_rows]])
        groups = self.groups
        if groups is not None:  # each contrast row is its own
            alone = torch.arange(len(self.contrast_rows)) + 1 + groups.max()
            groups = torch.cat([alone, groups[self.own_rows]])
        together = kept_together(gate_learner.learner, groups, torch.arange(len(kinds)))
        rows = torch.cat([contrast, own]), kinds
        model = fit_with_retries(gate_learner.learner, rows, rng=rng, **together)
        return _Judge(model, math.log(len(own) / len(contrast)), gate_learner.by_class)


@dataclass(frozen=True, slots=True)
class _Judge:
    """A classifier of contrast and own rows, and the log odds of the two kinds in its half."""

    model: Any
    log_odds: float
    by_class: bool

    def log_ratio(self, inputs: Tensor) -> Tensor:
        predictive = self.model.predict(inputs)
        if not isinstance(predictive, Categorical) or not (
            self.by_class or predictive.log_probs.shape[1] == 2
        ):
            raise TrainingError("a gate's learner must predict two classes: contrast and own rows")
        log_probs = predictive.bounded(LOG_PROB_FLOOR).log_probs.double()
        return log_probs[:, 1:].logsumexp(1) - log_probs[:, 0] - self.log_odds

    def judge(self, half: _Half) -> tuple[Tensor, Tensor]:
        return self.log_ratio(half.contrast), self.log_ratio(half.own)


def _best_slope(contrast: Tensor, own: Tensor) -> float:
    """The slope a >= 0 of least NLL of which rows are own, with log odds a z + b."""
    log_ratio = torch.cat([contrast, own])
    one = torch.ones_like(log_ratio)
    # The pool is base + a z + b: a logistic regression by the solver that tunes every pool.
    base = PredictiveSum.of(_of_two_classes(math.log(len(own) / len(contrast)) * one))
    pool = base.with_component("judged", _of_two_classes(log_ratio))
    pool = pool.with_component("shift", _of_two_classes(one))
    kinds = torch.cat([torch.zeros(len(contrast)), torch.ones(len(own))]).long()
    tuned = tune_weights(pool, kinds, components=("judged", "shift"), profiles=False)
    slope = tuned.weights["judged"]
    assert isinstance(slope, float)
    return max(slope, 0.0)


def _of_two_classes(log_odds: Tensor) -> Categorical:
    return Categorical(torch.stack([torch.zeros_like(log_odds), log_odds], 1).log_softmax(1))
