"""Predictive distributions: a batch of categoricals, of Gaussians, or of times to an event.

All are exponential families on y. With natural coordinates eta, statistic T(y), log-partition A:

    log p(y) = <eta, T(y)> - A(eta)        mu = E T(y) = grad A(eta)        Cov T(y) = hess A(eta)

    family        eta (natural)                           mu (moments)
    Categorical   log p_c                                 p_c
    Gaussian      (precision * mean, -precision / 2)      (mean, mean^2 + variance)
    Survival      log odds of the hazard per interval     probability of the event per interval,
                                                          and of none in any

A time to an event is one Bernoulli trial for each interval that was lived through: mu has one entry
more than eta, and where a row is no longer seen its trials are missing (`Predictive.observed`).

A product of experts adds natural coordinates, a mixture averages moments: that is all that
`predbayes.predictive.pooling` needs to know, and why nothing there asks which task it serves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from predbayes.errors import PoolError

LOG_PROB_FLOOR = -80.0
"""Least log p of a client that enters a pool.

No class is ever quite impossible, so every sum stays finite, whatever a client claims.
e^-80 is still a normal float32, so nothing here touches slow subnormal numbers.
"""

LOG_PROB_CEILING = 1e-3
"""Largest log p of a client: what rounding may leave above zero."""

_LEAST_LOG = -200.0  # exp of it is zero, or as good as that
VAR_FLOOR = 1e-12
"""Least variance of a Gaussian client: the twin of `LOG_PROB_FLOOR`."""

_LOG_2PI = math.log(2 * math.pi)


class Predictive(Protocol):
    """A batch of B predictive distributions of one exponential family with D coordinates."""

    def __len__(self) -> int:
        """The number of rows, B."""

    def __getitem__(self, rows: slice | Tensor) -> Self:
        """The predictives of some of the rows."""

    def natural(self) -> Tensor:
        """Natural coordinates, (B, D)."""

    def moments(self) -> Tensor:
        """Moment coordinates, (B, D)."""

    def check(self, targets: Tensor) -> None:
        """Refuse targets that are not one per row, or that the family cannot have produced."""

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log density of one target per row, (B,)."""

    def kl(self, other: Self) -> Tensor:
        """KL(self || other) per row, (B,)."""

    def bounded(self, floor: float) -> Self:
        """The nearest predictive whose coordinates are finite: log p or variance floored."""

    def informed(self, prior: Self) -> Self:
        """This predictive as an expert: the prior where it knows no more than the prior."""

    def information(self, prior: Self | None) -> Tensor:
        """The prior's entropy less its own in nats, (B,): what it knows beyond the prior.

        Zero, not less, where it is less certain than the prior.
        """

    @classmethod
    def from_natural(cls, natural: Tensor) -> Self:
        """The predictive with these natural coordinates (for a categorical up to a shift)."""

    @classmethod
    def from_moments(cls, moments: Tensor) -> Self:
        """The predictive with these moments."""

    @staticmethod
    def log_partition(natural: Tensor) -> Tensor:
        """A(eta) per row, (B,); infinite where eta is outside the natural domain."""

    @staticmethod
    def inner(natural: Tensor, targets: Tensor) -> Tensor:
        """The inner product of eta with T(y) per row, (B,), with leading dimensions kept."""

    @staticmethod
    def derivatives(natural: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient (J,) and Hessian (J, J) of A along directions (J, B, D), averaged over rows."""

    @staticmethod
    def observed(natural: Tensor, directions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Switch off what targets say nothing of, in eta (B, D) and in directions (J, B, D).

        Then A(eta) is that of the trials that were seen.
        """

    @staticmethod
    def is_proper(natural: Tensor) -> bool:
        """Say whether every row of eta lies in the natural domain."""


@dataclass(frozen=True, slots=True, repr=False)
class Categorical:
    """Categorical predictives over C classes, kept as normalised log-probabilities.

    Examples:
        >>> p = Categorical.from_natural(torch.tensor([[0.0, 0.0], [5.0, 5.0]]))
        >>> p.moments().tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """

    log_probs: Tensor  # (B, C)

    def __post_init__(self) -> None:
        if self.log_probs.ndim != 2:
            raise PoolError(
                f"log-probabilities have shape {tuple(self.log_probs.shape)}; they must have one "
                "row per input and one column per class"
            )

    def __len__(self) -> int:
        return self.log_probs.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Categorical:
        return Categorical(self.log_probs[rows])

    def natural(self) -> Tensor:
        """Natural coordinates log p, (B, C)."""
        return self.log_probs

    def moments(self) -> Tensor:
        """Moment coordinates p, (B, C)."""
        return self.log_probs.exp()

    @property
    def probs(self) -> Tensor:
        """Probabilities of the classes, (B, C)."""
        return self.log_probs.exp()

    def classes(self) -> Tensor:
        """The most probable class of each row, (B,)."""
        return self.log_probs.argmax(-1)

    def __repr__(self) -> str:
        return f"Categorical of {len(self):,} rows, {self.log_probs.shape[1]} classes"

    def check(self, targets: Tensor) -> None:
        """One class index per row, an integer from 0 to C - 1."""
        _require_shape(targets, (len(self),))
        require_classes(targets, self.log_probs.shape[1])

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log-probability of one class index per row, (B,)."""
        self.check(targets)
        return self.inner(self.log_probs, targets)

    def kl(self, other: Categorical) -> Tensor:
        """KL(self || other) per row, (B,)."""
        # Numerics: 0 log 0 = 0, also where log p is -inf.
        probs = self.moments()
        gap = torch.where(probs > 0, self.log_probs - other.log_probs, 0.0)
        return (probs * gap).sum(-1)

    def entropy(self) -> Tensor:
        """Shannon entropy in nats per row, (B,)."""
        # Numerics: 0 log 0 = 0, also where log p is -inf.
        expected: Tensor = torch.linalg.vecdot(self.moments(), self.log_probs.clamp_min(_LEAST_LOG))
        return -expected

    def bounded(self, floor: float) -> Categorical:
        """Log-probabilities no lower than ``floor``."""
        if float(self.log_probs.max()) > LOG_PROB_CEILING:
            raise PoolError(
                "log-probabilities are above zero; build from probabilities with "
                "Categorical.from_moments, from logits with Categorical.from_natural"
            )
        floored = self.log_probs.clamp_min(floor)
        # A floor that only guards against overflow adds no mass worth a second pass.
        if floor <= -20:
            return Categorical(floored)
        # Numerics: of numbers so small no maximum need be taken out, and this is much the quicker.
        return Categorical(floored - floored.exp().sum(-1, keepdim=True).log())

    def informed(self, prior: Categorical) -> Categorical:  # noqa: ARG002
        """Itself: every categorical product is proper."""
        return self

    def information(self, prior: Categorical | None) -> Tensor:
        """Entropy of the prior, log C of a flat one, less its own."""
        uniform = math.log(self.log_probs.shape[-1])
        before = uniform if prior is None else prior.entropy().double()
        return (before - self.entropy().double()).clamp_min(0.0)

    @classmethod
    def from_natural(cls, natural: Tensor) -> Categorical:
        """Normalise logits."""
        # Numerics: as stable as log_softmax, and on CPU much faster in float64.
        return cls(natural - natural.logsumexp(-1, keepdim=True))

    @classmethod
    def from_moments(cls, moments: Tensor) -> Categorical:
        """Normalise non-negative class weights."""
        return cls(moments.log() - moments.sum(-1, keepdim=True).log())

    @staticmethod
    def log_partition(natural: Tensor) -> Tensor:
        """Log-sum-exp over classes."""
        return natural.logsumexp(-1)

    @staticmethod
    def inner(natural: Tensor, targets: Tensor) -> Tensor:
        """The coordinate of the observed class."""
        index = targets.long().unsqueeze(-1).expand(*natural.shape[:-1], 1)
        return natural.gather(-1, index).squeeze(-1)

    @staticmethod
    def derivatives(natural: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of the directions under p, without a C × C matrix."""
        probs = Categorical.from_natural(natural).moments()
        means = (probs * directions).sum(-1)  # (J, B)
        # Numerics: centred first; where p is saturated a difference of squares is all rounding.
        centred = directions - means.unsqueeze(-1)
        hessian = (probs * centred).flatten(1) @ centred.flatten(1).T / natural.shape[0]
        return means.mean(-1), hessian

    @staticmethod
    def observed(
        natural: Tensor,
        directions: Tensor,
        targets: Tensor,  # noqa: ARG004
    ) -> tuple[Tensor, Tensor]:
        """A class is seen whole."""
        return natural, directions

    @staticmethod
    def is_proper(natural: Tensor) -> bool:
        """Any finite logits make a distribution."""
        return bool(natural.isfinite().all())


@dataclass(frozen=True, slots=True, repr=False)
class Gaussian:
    """Gaussian predictives of one real target, with an optional split of the variance.

    ``var`` is the whole predictive variance. ``epistemic_var``, where known, is the part that more
    data would remove (the spread of the posterior samples' means); the rest is observation noise.

    Examples:
        >>> p = Gaussian.from_moments(torch.tensor([[1.0, 5.0]]))
        >>> p.mean.tolist(), p.std.tolist(), p
        ([1.0], [2.0], Gaussian of 1 rows)
    """

    mean: Tensor  # (B,)
    var: Tensor  # (B,)
    epistemic_var: Tensor | None = None  # (B,), at most var

    def __len__(self) -> int:
        return self.mean.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Gaussian:
        epistemic = None if self.epistemic_var is None else self.epistemic_var[rows]
        return Gaussian(self.mean[rows], self.var[rows], epistemic)

    def natural(self) -> Tensor:
        """Natural coordinates (precision × mean, −precision / 2), (B, 2)."""
        prec = self.var.reciprocal()
        return torch.stack([prec * self.mean, -0.5 * prec], -1)

    def moments(self) -> Tensor:
        """Moment coordinates (mean, second moment), (B, 2), in float64."""
        # Numerics: in float32 a mean of 1000 leaves nothing of a variance of .01.
        mean = self.mean.double()
        return torch.stack([mean, mean.square() + self.var.double()], -1)

    @property
    def std(self) -> Tensor:
        """Predictive standard deviation, (B,)."""
        return self.var.sqrt()

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The central interval that holds a target with this probability: low and high, (B,)."""
        if not 0 < level < 1:
            raise PoolError(f"level must lie between 0 and 1, not be {level}")
        reach = NormalDist().inv_cdf(0.5 + level / 2) * self.std
        return self.mean - reach, self.mean + reach

    def __repr__(self) -> str:
        return f"Gaussian of {len(self):,} rows"

    def check(self, targets: Tensor) -> None:
        """One number per row."""
        _require_shape(targets, tuple(self.mean.shape))

    def residuals(self, targets: Tensor) -> Tensor:
        """Target minus mean per row, (B,)."""
        self.check(targets)
        return targets - self.mean

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log density per row with its constant, (B,)."""
        squared = self.residuals(targets).square()
        return -0.5 * (squared / self.var + self.var.log() + _LOG_2PI)

    def kl(self, other: Gaussian) -> Tensor:
        """KL(self || other) per row, (B,)."""
        ratio = self.var / other.var
        shift = (self.mean - other.mean).square() / other.var
        return 0.5 * (ratio + shift - 1 - ratio.log())

    def bounded(self, floor: float) -> Gaussian:  # noqa: ARG002
        """Variance no lower than `VAR_FLOOR`."""
        if float(self.var.min()) < 0:
            raise PoolError("a variance is negative; a predictive has standard deviations squared")
        return Gaussian(self.mean, self.var.clamp_min(VAR_FLOOR), self.epistemic_var)

    def informed(self, prior: Gaussian) -> Gaussian:
        """The prior itself where the variance is not below the prior's.

        A client less certain than the prior would take precision away from the product, which could
        then have none left. Knowing nothing is the least that a client can know. As a client's
        variance passes the prior's the product jumps by what its mean is off the prior's: the
        robust product weighs by `information`, which fades out, and does not.
        """
        prior_mean, prior_var = prior.mean.to(self.mean), prior.var.to(self.var)
        knows = self.var < prior_var
        mean = torch.where(knows, self.mean, prior_mean)
        return Gaussian(mean, torch.where(knows, self.var, prior_var), self.epistemic_var)

    def information(self, prior: Gaussian | None) -> Tensor:
        """Half of log prior variance − log variance."""
        if prior is None:
            raise PoolError("what a Gaussian knows is relative to a prior; give the clients one")
        return (0.5 * (prior.var.double().log() - self.var.double().log())).clamp_min(0.0)

    @classmethod
    def from_natural(cls, natural: Tensor) -> Gaussian:
        """Mean and variance from natural coordinates; precisions must be positive."""
        var = (-2 * natural[..., 1]).reciprocal()
        return cls(natural[..., 0] * var, var)

    @classmethod
    def from_moments(cls, moments: Tensor) -> Gaussian:
        """Mean and variance from the first two moments (Paper: eq:mixture_gaussian)."""
        mean = moments[..., 0]
        # Numerics: the difference of second moment and squared mean can round to below zero.
        var = (moments[..., 1] - mean.square()).clamp_min(VAR_FLOOR)
        return cls(mean, var)

    @staticmethod
    def log_partition(natural: Tensor) -> Tensor:
        """Half of mean² × precision − log precision + log 2π; infinite without precision."""
        shifted, prec = natural[..., 0], -2 * natural[..., 1]
        value = 0.5 * (shifted.square() / prec - prec.log() + _LOG_2PI)
        return torch.where(prec > 0, value, torch.inf)

    @staticmethod
    def inner(natural: Tensor, targets: Tensor) -> Tensor:
        """The first coordinate times y plus the second times y²."""
        return natural[..., 0] * targets + natural[..., 1] * targets.square()

    @staticmethod
    def derivatives(natural: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of a y + b y² for each direction (a, b), in closed form."""
        law = Gaussian.from_natural(natural)
        means = (law.moments() * directions).sum(-1)  # (J, B)
        # a y + b y² = const + (a + 2 b mean) z + b z² with z = y - mean: uncorrelated summands.
        linear = (directions[..., 0] + 2 * law.mean * directions[..., 1]) * law.var.sqrt()
        quadratic = directions[..., 1] * law.var * math.sqrt(2.0)
        hessian = (linear @ linear.T + quadratic @ quadratic.T) / natural.shape[0]
        return means.mean(-1), hessian

    @staticmethod
    def observed(
        natural: Tensor,
        directions: Tensor,
        targets: Tensor,  # noqa: ARG004
    ) -> tuple[Tensor, Tensor]:
        """A number is seen whole."""
        return natural, directions

    @staticmethod
    def is_proper(natural: Tensor) -> bool:
        """Finite, with positive precision in every row."""
        return bool(natural.isfinite().all() and (natural[..., 1] < 0).all())


@dataclass(frozen=True, slots=True, repr=False)
class Survival:
    """Times to an event, by the odds of its hazard in each of J intervals.

    The hazard of an interval is the probability of the event in it for those who reached it. A
    target is a time in intervals, negative if it is censored: 2.3 is an event in the third
    interval, -2.3 a row last seen there without one. A censored row counts for an interval that it
    was seen in for at least half.

    Examples:
        >>> p = Survival(torch.tensor([[0.0, 0.0]]))  # a hazard of one half, twice
        >>> p.moments().tolist(), p.curve().tolist()
        ([[0.5, 0.25, 0.25]], [[0.5, 0.25]])
        >>> p[torch.tensor([0, 0])].log_prob(torch.tensor([1.5, -1.0])).exp().tolist()
        [0.25, 0.5]
    """

    log_odds: Tensor  # (B, J)

    def __post_init__(self) -> None:
        if self.log_odds.ndim != 2:
            raise PoolError(
                f"log odds of hazards have shape {tuple(self.log_odds.shape)}; they must have one "
                "row per input and one column per interval"
            )

    def __len__(self) -> int:
        return self.log_odds.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Survival:
        return Survival(self.log_odds[rows])

    def natural(self) -> Tensor:
        """Log odds of the hazards, (B, J)."""
        return self.log_odds

    def log_moments(self) -> Tensor:
        """Logarithms of the moments, (B, J + 1)."""
        reached = nn.functional.logsigmoid(-self.log_odds).cumsum(-1)
        before = nn.functional.pad(reached[..., :-1], (1, 0))
        here = nn.functional.logsigmoid(self.log_odds) + before
        return torch.cat([here, reached[..., -1:]], -1)

    def moments(self) -> Tensor:
        """Probability of the event in each interval, and of none in any, (B, J + 1)."""
        return self.log_moments().exp()

    def curve(self) -> Tensor:
        """Probability to reach the end of each interval without the event, (B, J)."""
        return nn.functional.logsigmoid(-self.log_odds).cumsum(-1).exp()

    def __repr__(self) -> str:
        return f"Survival of {len(self):,} rows, {self.log_odds.shape[1]} intervals"

    def check(self, targets: Tensor) -> None:
        """One time in intervals per row, positive or negative and not beyond the last."""
        _require_shape(targets, (len(self),))
        require_times(targets, self.log_odds.shape[1])

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log-probability of the trials that were seen, (B,)."""
        self.check(targets)
        trials = nn.functional.softplus(self.log_odds) * at_risk(targets, self.log_odds.shape[1])
        return self.inner(self.log_odds, targets) - trials.sum(-1)

    def kl(self, other: Survival) -> Tensor:
        """KL(self || other) per row, (B,)."""
        own = self.log_moments()
        return (own.exp() * (own - other.log_moments())).sum(-1)

    def entropy(self) -> Tensor:
        """Shannon entropy in nats of the interval of the event, or none, (B,)."""
        entropy: Tensor = torch.special.entr(self.moments()).sum(-1)
        return entropy

    def bounded(self, floor: float) -> Survival:
        """Log odds between ``floor`` and its opposite."""
        return Survival(self.log_odds.clamp(floor, -floor))

    def informed(self, prior: Survival) -> Survival:  # noqa: ARG002
        """Itself: every product of hazards is proper."""
        return self

    def information(self, prior: Survival | None) -> Tensor:
        """Entropy of the prior, log (J + 1) of a flat one, less its own."""
        uniform = math.log(self.log_odds.shape[-1] + 1)
        before = uniform if prior is None else prior.entropy().double()
        return (before - self.entropy().double()).clamp_min(0.0)

    @classmethod
    def from_natural(cls, natural: Tensor) -> Survival:
        """Log odds as they are."""
        return cls(natural)

    @classmethod
    def from_moments(cls, moments: Tensor) -> Survival:
        """Hazards of probabilities: each over what is left of them."""
        # Numerics: far down a certain curve both may be nothing; the odds are then even.
        tail = moments.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return cls(moments[..., :-1].clamp_min(_LEAST).log() - tail.clamp_min(_LEAST).log())

    @staticmethod
    def log_partition(natural: Tensor) -> Tensor:
        """Softplus summed over intervals."""
        return nn.functional.softplus(natural).sum(-1)

    @staticmethod
    def inner(natural: Tensor, targets: Tensor) -> Tensor:
        """The coordinate of the interval of the event; zero of a censored row."""
        num = natural.shape[-1]
        index = targets.ceil().long().clamp(1, num) - 1
        found = natural.gather(-1, index.unsqueeze(-1).expand(*natural.shape[:-1], 1)).squeeze(-1)
        return torch.where(targets > 0, found, 0.0)

    @staticmethod
    def derivatives(natural: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of the directions: trials are independent."""
        hazards = natural.sigmoid()
        weighted = (hazards * (1 - hazards) * directions).flatten(1)
        hessian = weighted @ directions.flatten(1).T / natural.shape[0]
        return (hazards * directions).sum(-1).mean(-1), hessian

    @staticmethod
    def observed(natural: Tensor, directions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Trials of intervals that a row was not seen in have no event whatever the directions."""
        seen = at_risk(targets, natural.shape[-1])
        return torch.where(seen, natural, _NEVER), torch.where(seen, directions, 0.0)

    @staticmethod
    def is_proper(natural: Tensor) -> bool:
        """Any finite log odds make a distribution."""
        return bool(natural.isfinite().all())


_LEAST = 1e-37  # of a probability: a normal float32
_NEVER = -1e4  # log odds of an event that cannot be

FAMILIES = (Categorical, Gaussian, Survival)
"""What a predictive can be."""


def at_risk(targets: Tensor, num_intervals: int) -> Tensor:
    """Return the intervals that each row was seen in, (B, J) bool: that of its event is one."""
    times = targets.abs().unsqueeze(-1)
    starts = torch.arange(num_intervals, device=targets.device)
    return torch.where(targets.unsqueeze(-1) > 0, times > starts, times >= starts + 0.5)


def joined(parts: Sequence[Any]) -> Categorical | Gaussian | Survival:
    """The rows of several predictives of one family, one after another."""
    if isinstance(parts[0], Categorical):
        return Categorical(torch.cat([part.log_probs for part in parts]))
    if isinstance(parts[0], Survival):
        return Survival(torch.cat([part.log_odds for part in parts]))
    known = [part.epistemic_var for part in parts if part.epistemic_var is not None]
    return Gaussian(
        torch.cat([part.mean for part in parts]),
        torch.cat([part.var for part in parts]),
        torch.cat(known) if len(known) == len(parts) else None,
    )


def average(predictives: Sequence[Any]) -> Categorical | Gaussian | Survival:
    """The mixture of several models of one thing, in equal parts.

    Of Gaussians the one with its moments; that the models disagree is epistemic variance.
    """
    if isinstance(predictives[0], Categorical):
        stacked = torch.stack([p.log_probs for p in predictives])
        return Categorical(stacked.logsumexp(0) - math.log(len(stacked)))
    if isinstance(predictives[0], Survival):
        return Survival.from_moments(torch.stack([p.moments() for p in predictives]).mean(0))
    means = torch.stack([p.mean for p in predictives])
    spread = (means - means.mean(0)).square().mean(0)
    variances = [p.var for p in predictives]
    known = [p.epistemic_var for p in predictives if p.epistemic_var is not None]
    return Gaussian(
        means.mean(0),
        torch.stack(variances).mean(0) + spread,
        torch.stack(known).mean(0) + spread if known else spread,
    )


def require_classes(targets: Tensor, num_classes: int) -> None:
    """Refuse labels that are not class indices from 0 to C - 1."""
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise PoolError(f"class labels are {targets.dtype}; convert them to integers")
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < num_classes:
        raise PoolError(
            f"class labels run from {int(targets.min())} to {int(targets.max())}; "
            f"with {num_classes} classes they must be from 0 to {num_classes - 1}"
        )


def require_times(targets: Tensor, num_intervals: int) -> None:
    """Refuse what is not a time in intervals, negative where it is censored."""
    if not targets.is_floating_point():
        raise PoolError(f"times are {targets.dtype}; convert them with .float()")
    sizes = targets.abs()
    if not bool(((sizes > 0) & (sizes <= num_intervals)).all()):
        raise PoolError(
            f"times must be above 0 and at most {num_intervals}, in intervals, or the opposite of "
            "such a number where a row is censored"
        )


def _require_shape(targets: Tensor, shape: tuple[int, ...]) -> None:
    # A (B,) target against a (B, 1) mean would broadcast to B × B and score silently.
    if tuple(targets.shape) != shape:
        raise PoolError(
            f"targets have shape {tuple(targets.shape)}, predictions {shape}; "
            "reshape the targets to one number per row"
        )
