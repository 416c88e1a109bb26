r"""A multinomial logistic model by gradient descent, under differential privacy of people.

For T steps people's gradients are clipped, summed, and told with normal noise; nothing else of the
rows is used:

    g_i       = mean over the rows (x, y) of person i of (softmax(W x) - y) x'
    S_t       = sum_i g_i min(1, C / |g_i|) + N(0, sigma^2 I)
    W_t+1     = (1 - shrinkage) W_t - rate S_t / (C n),     n = people + N(0, sigma_n^2)

The model is the mean of the later half of the W_t. S_t moves by at most Delta = 2 C if one person
is replaced by another, and by C if one is added or removed; n by at most 1. So all that is told is
mu-Gaussian private (`extras.privacy.accounting`), with

    mu^2      = T Delta^2 / sigma^2 + 1 / sigma_n^2

of which n has the share `COUNT_SHARE`. Whatever is computed from W and n is no further release:
predictions at any number of inputs, weights, the noisy count. n has its noise, and its share, also
where somebody is replaced and the number of people does not change.

Nothing is fitted to the rows beside this. Inputs are as the plan scales them and are bounded by
`INPUT_BOUND`, a constant; C is a constant, and T, rate and shrinkage follow from the number of
classes K:

    T = 20 sqrt(K / 2),    rate = K / 2,    shrinkage = 1 / (2 T)

With more classes each has fewer people, so that a mean gradient is shorter and the way to go
longer. What noise adds to a weight in all steps is of deviation rate sigma sqrt(T) / (C n), which
is proportional to the length of the way, rate T, and not to T alone: so steps are made shorter, by
the noisy n, where this would be above `most_noise`. It is computed of what was told, and costs
nothing.

**Where noise comes from.** `Noise` expands a secret key by SHAKE-256, so whoever does not have the
key cannot compute it, whatever else is public. A site derives the key from its secret, from the
plan, the rows and these settings: the same release again is the same bits and costs nothing, and
other rows or another plan have noise that is independent of it. `MECHANISM` is among the settings:
a version that computes another gradient raises it, and is another release. Each sum's noise also
depends on the sum itself, so two different sums never have the same noise, whatever made them
differ.

**Whole numbers.** What is summed and told is whole numbers in units of a grid g, a power of two by
which the noise has a deviation of 2^22 to 2^23. Each number of a person's clipped gradient is cut
towards zero to whole grids, which makes none longer, and clipping leaves room of 1e-12 for
rounding in doubles, which adds less than 1e-13. So her vector in whole numbers has a norm of at
most C / g, sums of whole numbers are exact in any order, and the sum moves by Delta / g at the
most. n moves by 1 / g, which is whole. Noise is discrete Gaussian of whole scale s, drawn exactly
(`extras.privacy.discrete`).

**Why that is as private as normal noise.** Let x be N(k, s^2 - 100) and m, given x, be whole with
probabilities as exp(-(m - x)^2 / 200). Completing the square, the probability of m is exp(-(m -
k)^2 / (2 s^2)) times the mean, over a normal x', of 1 / sum_j exp(-(j - x')^2 / 200). By Poisson's
formula such a sum is the same for all x' but for a factor within 1 +- 2.1 exp(-200 pi^2). So
discrete Gaussian noise is normal noise of variance s^2 - 100, rounded at random, but for a factor
within 1 +- e^-1970 for each m, and rounding costs nothing. `scaled` chooses s with s^2 - 100 above
the variance that the equations ask for: mu is smaller by 1e-7 of itself, which is far more than all
these factors together are worth.

Not defended: the last bits of a gradient may depend on which others are computed beside it; and
time and memory that training takes are not made equal. Predictions leave in the plan's precision,
float32 at the most.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.learning.guarantee import Adjacency, Guarantee
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Learner
from predbayes.learning.named import PRIVATE
from predbayes.learning.training import Rows, gather
from predbayes.predictive.families import Categorical
from predbayes_study.extras.privacy.accounting import mu_of
from predbayes_study.extras.privacy.discrete import Integers, discrete_gaussian

Array = npt.NDArray[np.float64]

INPUT_BOUND = 3.0
"""Inputs beyond it, in the plan's scales, count as this."""

COUNT_SHARE = 0.05
"""Of mu^2 that the noisy number of people has."""

MECHANISM = 4
"""Raise it with any change of what is computed before noise is added, or of who is held out."""

_BITS = 52  # of a uniform number: with a half added it is exact in doubles
_BLOCK = 2**22  # numbers of gradients at a time
_STEPS_OF_TWO = 20  # classes
_LEAST_PEOPLE = 2.0  # that a noisy count is taken for
_EXACT = 2.0**-30  # grid of sums without noise
_SCALE_BITS = 23  # of the deviation of noise, in grids
_COARSEST = 2.0**-4  # grid: noise is less than half a million people


@dataclass(frozen=True, slots=True)
class Noise:
    """Random numbers of a secret key; each path has its own, the same whenever it is asked."""

    key: bytes

    def noisy(self, total: Integers, scale: int, *path: str | int) -> Integers:
        """Add discrete Gaussian noise of this scale to a sum; 0: none.

        Examples:
            >>> one, other, total = Noise(b"a" * 32), Noise(b"b" * 32), np.arange(3)
            >>> bool((one.noisy(total, 99, "step", 0) == one.noisy(total, 99, "step", 0)).all())
            True
            >>> bool((one.noisy(total, 99, "step", 0) == other.noisy(total, 99, "step", 0)).all())
            False
        """
        if not scale:
            return total
        whose = hashlib.sha256(total.astype("<i8").tobytes()).hexdigest()
        tries = count()
        return total + discrete_gaussian(
            total.size, scale, lambda num: self._words(num, *path, whose, next(tries))
        )

    def uniforms(self, num: int, *path: str | int) -> Array:
        """Return independent numbers between 0 and 1, neither of which is among them."""
        whole = self._words(num, *path) >> np.uint64(64 - _BITS)
        return (whole.astype(np.float64) + 0.5) * 2.0**-_BITS

    def _words(self, num: int, *path: str | int) -> npt.NDArray[np.uint64]:
        where = "/".join(repr(part) for part in path).encode()
        # The key has a fixed length, so key and path cannot run into each other.
        content = hashlib.shake_256(hashlib.sha256(self.key).digest() + where).digest(8 * num)
        return np.frombuffer(content, dtype="<u8").astype(np.uint64)


def sensitivity(clip: float, adjacency: Adjacency) -> float:
    """Return by how much a sum of vectors of norm `clip` moves between neighbouring tables."""
    return clip * (2 if adjacency == "replace-one" else 1)


def scaled(deviation: float) -> tuple[float, int]:
    """Return the grid for noise of this deviation, and the noise's scale in grids."""
    if deviation == 0:
        return _EXACT, 0
    grid = math.ldexp(1.0, math.frexp(deviation)[1] - _SCALE_BITS)
    if grid > _COARSEST:
        raise TrainingError("the plan promises so much privacy that only noise would be left")
    # Above sqrt(deviation^2 + 100) in grids, by 1 at the least.
    return grid, math.ceil(math.hypot(deviation / grid, 10)) + 1


def clipped_sum(vectors: Array, clip: float, grid: float) -> Integers:
    """Return the sum of people's vectors (P, D), each of norm at most `clip`, in grids of `clip`.

    What is no number counts as 0, so that no row can undo the bound.
    """
    known = np.nan_to_num(vectors, nan=0.0, posinf=0.0, neginf=0.0)
    # Numerics: squares of large numbers overflow; in units of the largest they do not.
    largest = np.abs(known).max(axis=1, keepdims=True, initial=0.0)
    units = known / np.where(largest > 0, largest, 1.0)
    norms = np.sqrt((units**2).sum(axis=1, keepdims=True))  # from 1 on, where it is not 0
    with np.errstate(over="ignore"):
        lengths = np.minimum(norms * largest / clip, 1.0)
    bounded = units * (lengths / np.where(norms > 0, norms, 1.0))
    # Towards zero, and first by more than rounding adds: the norm stays within the bound.
    total: Integers = np.trunc(bounded * ((1 - 1e-12) / grid)).astype(np.int64).sum(axis=0)
    return total


@dataclass(frozen=True, slots=True)
class PrivateLogistic(Learner):
    """The logistic model of the module's docstring, as a local learner.

    Args:
        num_classes: Classes of the task.
        guarantee: What is promised; None: no noise, to compare with.
        secret: The key of the noise. Empty: one is drawn from `rng`, which is no secret where the
            seed is known.
        steps: T; 0: by the number of classes.
        clip: C.
        most_noise: Deviation that noise may give a weight over all steps: where it would be more,
            which the noisy number of people tells, steps are shorter.
    """

    num_classes: int
    guarantee: Guarantee | None
    secret: bytes = b""
    steps: int = 0
    clip: float = 1.0
    most_noise: float = 0.5

    name: ClassVar[str] = PRIVATE
    keeps_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.steps:
            steps = round(_STEPS_OF_TWO * math.sqrt(self.num_classes / 2))
            object.__setattr__(self, "steps", steps)

    @property
    def rate(self) -> float:
        """Of a step, in clipping norms."""
        return self.num_classes / 2

    @property
    def shrinkage(self) -> float:
        """Of the weights, in each step."""
        return 0.5 / self.steps

    @property
    def settings(self) -> str:
        """All that the noise is for: other settings have noise of their own."""
        parts = (self.num_classes, self.guarantee, self.steps, self.clip, self.most_noise)
        return repr(("dp-logistic", MECHANISM, *parts, INPUT_BOUND, COUNT_SHARE))

    @property
    def step_deviation(self) -> float:
        """Sigma."""
        if self.guarantee is None:
            return 0.0
        moved = sensitivity(self.clip, self.guarantee.adjacency)
        return moved * math.sqrt(self.steps / (1 - COUNT_SHARE)) / self._mu

    @property
    def count_deviation(self) -> float:
        """sigma_n."""
        return 0.0 if self.guarantee is None else 1 / (math.sqrt(COUNT_SHARE) * self._mu)

    @property
    def _mu(self) -> float:
        """The Gaussian privacy that has exactly the guarantee's epsilon at its delta."""
        assert self.guarantee is not None
        return mu_of(self.guarantee.epsilon, self.guarantee.delta)

    def scale(self, people: float) -> float:
        """Return by what noisy sums are multiplied: smaller than `rate` has it where noise is."""
        noise = self.step_deviation / self.clip * math.sqrt(self.steps)
        scale = self.rate / people
        return min(scale, self.most_noise / noise) if noise > 0 else scale

    def fit(
        self, rows: Rows, *, rng: torch.Generator, groups: Tensor | None = None
    ) -> PrivateModel:
        """Descend; rows of a group are one person's, if the promise is of people."""
        if isinstance(rows, tuple) and not len(rows[0]):
            inputs, targets = rows  # nobody is there, which must not be a reason to refuse either
        else:
            inputs, targets = gather(rows, rng=rng)
            Softmax(self.num_classes).check(targets)
        if self.guarantee is not None and self.guarantee.unit == "row":
            groups = None
        drawn = torch.randint(256, (32,), generator=rng, dtype=torch.uint8).numpy().tobytes()
        people = People.of(inputs, targets.numpy(), self.num_classes, groups)
        noise = Noise(self.secret or drawn)
        grid, spread = scaled(self.count_deviation)
        number = np.array([people.num * round(1 / grid)])
        counted = float(noise.noisy(number, spread, "people")[0] * grid)
        scale = self.scale(max(counted, _LEAST_PEOPLE))
        grid, spread = scaled(self.step_deviation / self.clip)
        shape = (people.width, self.num_classes)
        weights, later = np.zeros(math.prod(shape)), np.zeros(math.prod(shape))
        for step in range(self.steps):
            total = people.clipped_sum(weights, self.clip, grid)
            told = noise.noisy(total, spread, "step", step) * grid
            weights = (1 - self.shrinkage) * weights - scale * told
            if step >= self.steps // 2:
                later += weights / (self.steps - self.steps // 2)
        return PrivateModel(torch.from_numpy(later.reshape(shape)), max(1, round(counted)))


def logistic(weights: Array, features: Array, wanted: Array) -> Array:
    """Return the gradients of a multinomial logistic model, row by row."""
    logits = features @ weights.reshape(features.shape[1], -1)
    errors = scipy.special.softmax(logits, axis=1) - wanted
    gradients: Array = (features[:, :, None] * errors[:, None, :]).reshape(len(features), -1)
    return gradients


@dataclass(frozen=True, slots=True)
class PrivateModel:
    """A logistic model of which everything may be told."""

    weights: Tensor  # (inputs + 1, classes), the last line is the constant's
    people: int  # how many there are, with noise

    def predict(self, inputs: Tensor) -> Categorical:
        """Probabilities of each class."""
        logits = torch.from_numpy(bounded(inputs)) @ self.weights
        return Categorical(logits.log_softmax(-1).float())


@dataclass(frozen=True, slots=True)
class People:
    """Rows in the order of their people, and the gradients of these."""

    features: Array  # (N, width)
    wanted: Array  # (N, classes), 1 at the class of a row
    starts: Integers  # the first row of each person, and the number of rows

    @classmethod
    def of(cls, inputs: Tensor, targets: Integers, classes: int, groups: Tensor | None) -> People:
        """Put rows in order; without groups each is somebody's only one."""
        whose = np.arange(len(targets)) if groups is None else groups.numpy()
        order = np.argsort(whose, kind="stable")
        first = np.flatnonzero(np.diff(whose[order], prepend=whose[order][:1] - 1))
        wanted = np.eye(classes)[targets[order]]
        return cls(bounded(inputs)[order], wanted, np.append(first, len(targets)).astype(np.int64))

    @property
    def num(self) -> int:
        """How many there are."""
        return len(self.starts) - 1

    @property
    def width(self) -> int:
        """Numbers of a row, the constant among them."""
        return int(self.features.shape[1])

    def clipped_sum(self, weights: Array, clip: float, grid: float) -> Integers:
        """Return the sum of all people's clipped gradients: what noise is added to."""
        total = np.zeros(weights.size, dtype=np.int64)
        for some in self.means(weights):
            total += clipped_sum(some, clip, grid)
        return total

    def means(self, weights: Array) -> Iterator[Array]:
        """Each person's mean gradient, some people at a time."""
        num_rows = max(1, _BLOCK // weights.size)
        start = 0
        while start < self.num:
            # As many people as fit, and one at the least.
            fit = int(np.searchsorted(self.starts, self.starts[start] + num_rows, "right")) - 1
            stop = max(start + 1, min(fit, self.num))
            rows = slice(self.starts[start], self.starts[stop])
            of_rows = logistic(weights, self.features[rows], self.wanted[rows])
            firsts = self.starts[start:stop] - self.starts[start]
            sizes = np.diff(self.starts[start : stop + 1])
            yield np.add.reduceat(of_rows, firsts, axis=0) / sizes[:, None]
            start = stop


def bounded(inputs: Tensor) -> Array:
    """Return inputs within `INPUT_BOUND`, and a constant behind them."""
    # Of no rows, -1 would have no size: if everybody is held out, that must not be a refusal.
    flat = inputs.reshape(len(inputs), math.prod(inputs.shape[1:])).double()
    flat = flat.nan_to_num(0.0, INPUT_BOUND, -INPUT_BOUND)
    within = flat.clamp(-INPUT_BOUND, INPUT_BOUND)
    features: Array = torch.cat([within, torch.ones(len(flat), 1).double()], dim=1).numpy()
    return features
