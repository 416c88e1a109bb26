r"""Fits to shadow halves of some rows, and what each of them says about every person.

Two attackers look at a fit. Both know a person's whole row, x and y:

    at the target        asks the model about x itself: whoever has its weights, or has put x among
                         the reference rows
    by reference rows    sees what the model says of the reference rows alone. From that it works
                         out what the model would say of x, by a kernel regression: of a linear
                         kernel, which is exact where the model is linear, and of one that looks at
                         rows near x

What is said of x becomes one number: the log odds of y's class, minus the distance of a mean from
y, or the log-probability of a time to an event. The gate, where there is one, is one number more.
Numbers of one person's rows add.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from predbayes.learning.gate import GateBounds, log_density_ratio
from predbayes.learning.local import GateLearner, Learner, kept_together
from predbayes.predictive.families import LOG_PROB_FLOOR, Categorical, Gaussian, Predictive
from predbayes.seeding import split
from predbayes_study.extras.audit.membership import Array, Members, shadow_halves

MOST_REFERENCE = 2000
"""Reference rows that the attacker's student learns from: a solve is of their third power."""

_RIDGE = 1e-3  # of the mean diagonal
_CEILING = 30.0  # of log odds

Bound = Callable[[Predictive, Tensor], Predictive]


@dataclass(frozen=True, slots=True)
class GateOf:
    """How a gate is learnt."""

    gate_learner: GateLearner
    bounds: GateBounds


@dataclass(frozen=True, slots=True)
class Shadows:
    """Who was in which half, and what the fits say: (runs, people, numbers)."""

    members: Members
    target: Array
    reference: Array
    gate_target: Array | None = None
    gate_reference: Array | None = None

    @property
    def at_target(self) -> Array:
        """All that is said at the target, the gate as well."""
        return _beside(self.target, self.gate_target)

    @property
    def by_reference(self) -> Array:
        """All that reference rows tell, the gate as well."""
        return _beside(self.reference, self.gate_reference)


def _beside(values: Array, gate: Array | None) -> Array:
    return values if gate is None else np.concatenate([values, gate], axis=-1)


def fit_shadows(
    learner: Learner,
    rows: tuple[Tensor, Tensor],
    people: Tensor,
    reference: Tensor,
    *,
    num_pairs: int = 8,
    gate: GateOf | None = None,
    bound: Bound | None = None,
    rng: torch.Generator,
) -> Shadows:
    """Fit a learner to shadow halves.

    Args:
        learner: What is attacked.
        rows: Inputs and targets.
        people: Whose each row is, (N,), numbered from 0 without a gap; they stay together.
        reference: The reference inputs.
        num_pairs: Complementary pairs of halves.
        gate: Of a plan that asks for one.
        bound: What becomes of predictions, and the targets of a half, before they leave.
        rng: The halves, and the learner's randomness.
    """
    inputs, targets = rows
    num_people = int(people.max()) + 1
    members = shadow_halves(num_people, num_pairs, rng)
    seen = torch.randperm(len(reference), generator=rng)[:MOST_REFERENCE].sort().values
    student = _student(reference[seen], inputs)
    by_person = _Sum(people, num_people)
    asked = torch.cat([reference, inputs])
    found: list[tuple[Array, ...]] = []
    for half, own in zip(members, split(rng, len(members)), strict=True):
        kept = torch.from_numpy(half)[people].nonzero()[:, 0]
        part = inputs[kept], targets[kept]
        fitted = learner.fit(part, rng=own, **kept_together(learner, people, kept))
        said = fitted.predict(asked).bounded(LOG_PROB_FLOOR)
        said = said if bound is None else bound(said, part[1])
        away = said[len(reference) :]
        taught = _told(said, student @ _coordinates(said)[seen])
        values = [by_person(statistic(one, targets)) for one in (away, taught)]
        if gate is not None:
            ratio = log_density_ratio(
                gate.gate_learner,
                part,
                asked,
                num_contrast=len(reference),
                bounds=gate.bounds,
                groups=people[kept],
                rng=own,
            )
            values += [by_person(one) for one in (ratio[len(reference) :], student @ ratio[seen])]
        found.append(tuple(values))
    return Shadows(members, *(np.stack(several) for several in zip(*found, strict=True)))


@dataclass(frozen=True, slots=True)
class _Sum:
    """Adds numbers of rows by person."""

    people: Tensor
    num_people: int

    def __call__(self, values: Tensor) -> Array:
        total = torch.zeros(self.num_people, dtype=torch.float64)
        summed: Array = total.index_add_(0, self.people, values.double()).numpy()
        return summed[:, None]


def _student(reference: Tensor, inputs: Tensor) -> Tensor:
    """The matrix (N, R) that makes of what is said at reference rows what is said at own rows."""
    flat = reference.reshape(len(reference), -1).double()
    centre, scale = flat.mean(0), flat.std(0).clamp_min(1e-6)
    theirs = (flat - centre) / scale
    mine = (inputs.reshape(len(inputs), -1).double() - centre) / scale
    apart = torch.cdist(theirs, theirs)
    width = float(apart[apart > 0].median()) / 2 if bool((apart > 0).any()) else 1.0

    def kernel(rows: Tensor) -> Tensor:
        near = (-0.5 * (torch.cdist(rows, theirs) / width) ** 2).exp()
        return near + 1 + rows @ theirs.T / theirs.shape[1]

    among = kernel(theirs)
    ridge = _RIDGE * float(among.diagonal().mean())
    factor = torch.linalg.cholesky(among + ridge * torch.eye(len(among), dtype=among.dtype))
    return torch.cholesky_solve(kernel(mine).T, factor).T


def _coordinates(said: Predictive) -> Tensor:
    """What a student learns: log-probabilities, log odds of hazards, or a mean, (B, ...)."""
    return said.mean.double()[:, None] if isinstance(said, Gaussian) else said.natural().double()


def _told(like: Predictive, coordinates: Tensor) -> Predictive:
    """A student's coordinates as a predictive of the same family."""
    if isinstance(like, Gaussian):
        return Gaussian(coordinates[:, 0], torch.ones(len(coordinates), dtype=torch.float64))
    return type(like).from_natural(coordinates)


def statistic(said: Predictive, targets: Tensor) -> Tensor:
    """Return one number of each row, larger as a rule where it was trained on, (N,)."""
    if isinstance(said, Gaussian):
        return -(said.mean.double() - targets.double()).abs()
    if not isinstance(said, Categorical):
        return said.log_prob(targets).double()
    of_class = said.log_probs.double().gather(1, targets[:, None])[:, 0].clamp(max=0.0)
    others = torch.log(-torch.expm1(of_class.clamp(max=-1e-13)))
    return (of_class - others).clamp(-_CEILING, _CEILING)
