"""A model made of sums of moments: that of all rows in one place, to the bit, for every split.

Every site maps its rows to agreed features, and sends the sums of their products. With a scale s,
frequencies w_j ~ N(0, 1) and phases b_j of an agreed seed, and inputs x of D numbers of about unit
size,

    phi(x) = ( 1,  a x / sqrt(D),  sqrt(2 / J) cos(w_j' x / (s sqrt(D)) + b_j) for j = 1, ..., J )

are linear features and random Fourier features (Rahimi and Recht, 2007). The sums

    N,    Phi'Phi,    Phi'Y,    Y'Y

over all rows give Bayesian least squares, y = f(x) + noise with f = w' phi and w ~ N(0, t I). Its
evidence, which the same sums give, chooses t, the noise's variance and one of several scales.

    numbers    y ~ N( E f(x), noise + Var f(x) )
    classes    Y is one-hot. With residual covariance R, and v(x) = Var f(x) / noise,

               log p_c(x) = -(e_c - f(x))' R^-1 (e_c - f(x)) / (2 (1 + v(x)) sqrt(C - 1)) + const

               For two classes and without a prior on w this is Fisher's linear discriminant in the
               features. With more classes it is overconfident, since most residuals are small and
               few are large: hence the root.

Sums are *exact*: inputs, frequencies and features are integers on a grid, and their products are
added as integers. So one row more or less, another order or another number of sites changes
nothing but what it must. Sums of fewer rows than features give rows away; whoever sends them should
have many more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.errors import TrainingError, UploadError
from predbayes.predictive.families import Categorical, Gaussian, Predictive, require_classes
from predbayes.seeding import generator

_BITS = 12  # after the point, of inputs, features and targets
_FREQUENCY_BITS = 20
_TABLE_BITS = 12  # angles that cosines are tabulated at
_TURN = 2.0 ** (_BITS + _FREQUENCY_BITS)  # a whole one, in units of frequency times input
_MOST_INPUT = 8.0  # inputs beyond are taken as this: a plan's numbers have about unit size
MOST_TARGET = 64.0  # beyond which no number can be summed
_MOST_ROWS = 2**26  # whose sums stay below 2^63: the largest square of a target has 36 bits
_CHUNK = 2**16  # rows whose sums of products stay below 2^53, and so are exact in float64
_LINEAR = 0.3  # a: linear features beside Fourier features
_STARTS = ((0.0, -1.0), (2.0, -3.0), (-2.0, -2.0))  # log t, log noise


@dataclass(frozen=True)  # without slots, where frequencies are kept
class RandomFeatures:
    """Features that sites agree on: the same for whoever has the same fields.

    Args:
        num_inputs: Numbers of an input, D.
        num_features: Fourier features, J, of each scale.
        scales: Distances over which the model may bend, in units of the inputs; the evidence
            chooses one.
        seed: Of frequencies and phases.
    """

    num_inputs: int
    num_features: int = 300
    scales: tuple[float, ...] = (1.0, 2.0, 4.0)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_inputs < 1 or self.num_features < 1:
            raise TrainingError("moments need at least one input and one feature")
        if not self.scales or not all(0.01 <= scale <= 1000 for scale in self.scales):
            raise TrainingError("scales of moments must be some numbers from 0.01 to 1000")

    @property
    def width(self) -> int:
        """Features of one scale, the constant and the linear ones among them."""
        return 1 + self.num_inputs + self.num_features

    @cached_property
    def _frequencies(self) -> Tensor:
        """In turns per unit, on a grid, (D, J)."""
        rng = generator(self.seed, "frequencies")
        normal = torch.randn(self.num_inputs, self.num_features, generator=rng, dtype=torch.float64)
        return normal / (2 * math.pi * math.sqrt(self.num_inputs))

    @cached_property
    def _phases(self) -> Tensor:
        rng = generator(self.seed, "phases")
        return torch.rand(self.num_features, generator=rng, dtype=torch.float64)

    def on_grid(self, inputs: Tensor, scale: float) -> Tensor:
        """Features of one scale before they are weighted, as integers in float64, (B, width).

        Sums of integers below 2^53 are exact in any order, so no library rounds them its own way.
        """
        numbers = inputs_on_grid(inputs)
        if numbers.shape[1] != self.num_inputs:
            raise TrainingError(
                f"rows have {numbers.shape[1]} inputs, and moments are of {self.num_inputs}"
            )
        return grid_features(numbers, *self.waves(scale))

    def waves(self, scale: float) -> tuple[Tensor, Tensor]:
        """Return frequencies (D, J) and phases (J,) of one scale, as integers in float64."""
        frequencies = (self._frequencies / scale * 2**_FREQUENCY_BITS).round()
        return frequencies, (self._phases * _TURN).round()

    @cached_property
    def weights(self) -> Tensor:
        """What each feature on the grid is multiplied by, (width,)."""
        linear = _LINEAR / math.sqrt(self.num_inputs)
        parts = [(1, 1.0), (self.num_inputs, linear)]
        parts.append((self.num_features, math.sqrt(2 / self.num_features)))
        found = torch.cat([torch.full((n,), w, dtype=torch.float64) for n, w in parts])
        return found * 2.0**-_BITS

    def __call__(self, inputs: Tensor, scale: float) -> Tensor:
        """Return phi(x), (B, width)."""
        phi: Tensor = self.on_grid(inputs, scale) * self.weights
        return phi


def _on_grid(values: Tensor, most: float) -> Tensor:
    whole: Tensor = (values.double().clamp(-most, most) * 2**_BITS).round()
    return whole


_ANGLES = (torch.arange(2**_TABLE_BITS, dtype=torch.float64) + 0.5) * 2 * math.pi / 2**_TABLE_BITS
_COSINES = (_ANGLES.cos() * 2**_BITS).round()


def inputs_on_grid(inputs: Tensor) -> Tensor:
    """Return inputs as integers in float64, (B, D)."""
    return _on_grid(inputs.flatten(1), _MOST_INPUT)


def targets_on_grid(targets: Tensor) -> Tensor:
    """Return numbers to predict as integers in float64, (B,)."""
    return _on_grid(targets, MOST_TARGET)


def grid_features(numbers: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """Return the features of inputs on the grid, before they are weighted, (B, 1 + D + J)."""
    turns = (numbers @ frequencies + phases).remainder(_TURN)
    steps = (turns / (_TURN / 2**_TABLE_BITS)).floor().long()
    return torch.cat([torch.full_like(numbers[:, :1], 2.0**_BITS), numbers, _COSINES[steps]], 1)


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums of products of features and targets over rows, of each scale, as integers.

    Adding is exact: `Moments` of rows are the sum of the `Moments` of any parts of them.

    Args:
        features: What was summed.
        num_classes: Of targets; None for numbers.
        sums: (scales, width + outputs, width + outputs) in int64.
    """

    features: RandomFeatures
    num_classes: int | None
    sums: Tensor

    def __post_init__(self) -> None:
        shape = (len(self.features.scales), self.size, self.size)
        if self.sums.dtype != torch.int64 or self.sums.shape != shape:
            raise UploadError(f"moments must be {shape} integers, as the features say")

    @property
    def size(self) -> int:
        """Features and targets of one row."""
        return self.features.width + (self.num_classes or 1)

    @property
    def num_rows(self) -> int:
        """The rows that were summed: the constant's square, on the grid."""
        return int(self.sums[0, 0, 0]) >> 2 * _BITS

    @classmethod
    def of(
        cls, features: RandomFeatures, inputs: Tensor, targets: Tensor, num_classes: int | None
    ) -> Self:
        """Return the sums over rows; targets are classes, or numbers of about unit size."""
        if not bool(inputs.isfinite().all()):
            raise TrainingError("inputs of moments must be finite numbers")
        if num_classes is not None:
            require_classes(targets, num_classes)
            found = torch.nn.functional.one_hot(targets, num_classes).double() * 2**_BITS
        else:
            if len(targets) and not bool(targets.abs().max() <= MOST_TARGET):
                raise TrainingError(
                    f"targets of moments must be within {MOST_TARGET:g}; standardise them first"
                )
            found = targets_on_grid(targets)[:, None]
        size = features.width + found.shape[1]
        sums = torch.zeros(len(features.scales), size, size, dtype=torch.int64)
        for start in range(0, len(inputs), _CHUNK):
            rows = slice(start, start + _CHUNK)
            for total, scale in zip(sums, features.scales, strict=True):
                both = torch.cat([features.on_grid(inputs[rows], scale), found[rows]], 1)
                total += (both.T @ both).long()
        return cls(features, num_classes, sums)

    def add_(self, other: Moments) -> Self:
        """Add the sums over other rows."""
        if (self.features, self.num_classes) != (other.features, other.num_classes):
            raise UploadError("moments of other features do not add")
        if self.num_rows + other.num_rows > _MOST_ROWS:
            raise UploadError(f"moments add up to {_MOST_ROWS:,} rows, and no more")
        self.sums.add_(other.sums)
        return self

    def limited(self, most: float) -> Moments:
        """Return the same scaled down to no more rows than these."""
        if self.num_rows <= most:
            return self
        sums = (self.sums.double() * (int(most) / self.num_rows)).round().long()
        return Moments(self.features, self.num_classes, sums)

    def agreement(self, head: MomentsHead) -> float:
        """Return the correlation, over all outputs, of the targets with what a head says of them.

        The rows are not needed: it follows from their sums of products.
        """
        width = self.features.width
        sums, num = _scaled(self, self.features.scales.index(head.scale))
        means = sums[0] / num  # the first feature is the constant
        cov = sums / num - torch.outer(means, means)
        said = head.weights.T @ cov[:width, :width] @ head.weights
        both = (head.weights * cov[:width, width:]).sum()
        size = (said.trace() * cov[width:, width:].trace()).clamp_min(0.0).sqrt()
        return float(both / size.clamp_min(1e-9))

    def arrays(self) -> dict[str, Tensor]:
        """Return what travels: upper triangles, since the rest is the same."""
        rows, columns = torch.triu_indices(self.size, self.size)
        return {"moments": self.sums[:, rows, columns].contiguous()}

    @classmethod
    def from_arrays(
        cls, features: RandomFeatures, num_classes: int | None, arrays: Mapping[str, Tensor]
    ) -> Self:
        """Return the moments that were sent; refuse what no rows can have."""
        size = features.width + (num_classes or 1)
        rows, columns = torch.triu_indices(size, size)
        sent = arrays.get("moments", torch.empty(0))
        if sent.dtype != torch.int64 or sent.shape != (len(features.scales), len(rows)):
            raise UploadError(
                f"moments must be {len(features.scales)} x {len(rows)} integers, as agreed"
            )
        sums = torch.zeros(len(features.scales), size, size, dtype=torch.int64)
        sums[:, rows, columns] = sent
        sums[:, columns, rows] = sent
        found = cls(features, num_classes, sums)
        found._require_possible()
        return found

    def _require_possible(self) -> None:
        """Refuse sums that no rows have."""
        features, width, unit = self.features, self.features.width, 2 ** (2 * _BITS)
        rows = self.sums[:, 0, 0]
        if not 1 <= self.num_rows <= _MOST_ROWS or bool((rows != self.num_rows * unit).any()):
            raise UploadError("moments are of no rows, too many, or other numbers of rows by scale")
        # No square is above that of the greatest feature in every row, nor a product of two.
        squares = self.sums.diagonal(dim1=1, dim2=2)
        if bool((squares < 0).any()) or bool((squares > self.num_rows * self._most).any()):
            raise UploadError("moments have squares that no row can have")
        bound = (squares.double()[:, :, None] * squares.double()[:, None, :]).sqrt()
        if bool((self.sums.double().abs() > bound * (1 + 1e-9)).any()):
            raise UploadError("moments have products larger than their squares allow")
        # Inputs and targets are the same at every scale, and so are the sums of their products.
        kept = [*range(1 + features.num_inputs), *range(width, self.size)]
        shared = self.sums[:, kept][:, :, kept]
        if bool((shared != shared[0]).any()):
            raise UploadError("moments of one scale are of other rows than those of another")
        if self.num_classes is not None:
            # Each row has one class: squares are counts, and no product of two classes is there.
            classes, counts = self.sums[0, width:, width:], self.sums[0, 0, width:]
            whole = not bool((counts % unit).any()) and int(counts.sum()) == self.num_rows * unit
            if not whole or not torch.equal(classes, counts.diag()):
                raise UploadError("moments do not count each row once by its class")
        # Every feature and target of about unit size.
        roots = self._most.double().sqrt()
        eigenvalues = torch.linalg.eigvalsh(self.sums.double() / (roots[:, None] * roots))
        least, greatest = eigenvalues[:, [0, -1]].unbind(1)
        if bool((least < -1e-9 * greatest).any()):
            raise UploadError("moments are no sums of squares: some direction has less than none")

    @property
    def _most(self) -> Tensor:
        """The greatest square of each feature and target in one row, on the grid."""
        features = self.features
        target = 1.0 if self.num_classes else MOST_TARGET
        counts = (1, features.num_inputs, features.num_features, self.size - features.width)
        bounds = (1.0, _MOST_INPUT, 1.0, target)
        parts = [torch.full((n,), int(m**2)) for n, m in zip(counts, bounds, strict=True)]
        most: Tensor = torch.cat(parts) * 2 ** (2 * _BITS)
        return most

    @property
    def class_rows(self) -> tuple[int, ...] | None:
        """Rows of each class; None for numbers."""
        counts = self.sums[0, 0, self.features.width :] >> 2 * _BITS
        return None if self.num_classes is None else tuple(counts.tolist())

    def num_small_pairs(self, least: int) -> int:
        """Count the pairs of inputs of 0 and 1, and classes, that 1 to `least` - 1 rows share."""
        features, unit = self.features, 2 ** (2 * _BITS)
        kept = [*range(1, 1 + features.num_inputs), *range(features.width, self.size)]
        sums, squares = self.sums[0, 0, kept], self.sums[0].diagonal()[kept]
        # A number that is 0 or 1 is its own square.
        counted = [k for k, is_one in zip(kept, sums == squares, strict=True) if is_one]
        shared = self.sums[0, counted][:, counted] // unit
        few = (shared > 0) & (shared < least)
        return int(few.triu(1).sum())

    def head(self) -> MomentsHead:
        """Return the model of the scale with the most evidence."""
        heads = [_fit(self, index) for index in range(len(self.features.scales))]
        return max(heads, key=lambda head: head.evidence)


@dataclass(frozen=True, slots=True)
class MomentsHead:
    """A predictor in random features.

    Args:
        features: Its features.
        scale: The scale of the most evidence.
        evidence: Its logarithm.
        centre: Mean of the targets, or share of each class, (K,).
        weights: Posterior mean, (width, K).
        spread: A root of the posterior covariance in units of the noise: Var f / noise is the
            square of |phi' spread|, (width, width).
        noise_var: Of one output.
        precision: Inverse of the residuals' covariance, (K, K); classes only.
    """

    features: RandomFeatures
    scale: float
    evidence: float
    centre: Tensor
    weights: Tensor
    spread: Tensor
    noise_var: float
    precision: Tensor | None = None

    def predict(self, inputs: Tensor) -> Predictive:
        """Return predictives of a batch of inputs."""
        starts = range(0, max(1, len(inputs)), _CHUNK)
        chunks = (self.features(inputs[start : start + _CHUNK], self.scale) for start in starts)
        parts = [linear_outputs(phi, self.centre, self.weights, self.spread) for phi in chunks]
        outputs, ratios = (torch.cat(part) for part in zip(*parts, strict=True))
        if self.precision is None:
            epistemic = self.noise_var * ratios
            return Gaussian(
                outputs[:, 0].float(), (self.noise_var + epistemic).float(), epistemic.float()
            )
        return Categorical(class_log_probs(outputs, ratios, self.centre, self.precision).float())


def linear_outputs(
    phi: Tensor, centre: Tensor, weights: Tensor, spread: Tensor
) -> tuple[Tensor, Tensor]:
    """Return E f(x), (B, K), and Var f(x) / noise, (B,), of features (B, width)."""
    return centre + phi @ weights, (phi @ spread).square().sum(1)


def class_log_probs(outputs: Tensor, ratios: Tensor, centre: Tensor, precision: Tensor) -> Tensor:
    """Return log p of each class; one that no site has gets a thousandth or less."""
    away = torch.eye(len(centre), dtype=torch.float64) - outputs[:, None, :]
    distances = torch.einsum("bcd,de,bce->bc", away, precision, away)
    there = centre > 0
    softening = 2 * (1 + ratios[:, None]) * (there.sum() - 1).clamp_min(1).double().sqrt()
    scores = torch.where(there, -distances / softening, -math.inf)
    log_probs = scores.log_softmax(1)
    # Each class that no site has gets a thousandth or less: it is never quite impossible.
    num_absent = (~there).sum().double()
    absent = (0.5 / num_absent.clamp_min(1)).clamp_max(1e-3)
    shares = torch.where(there, (1 - absent * num_absent).float(), absent.float()).log()
    return torch.where(there, log_probs, 0.0) + shares


def _scaled(moments: Moments, index: int) -> tuple[Tensor, float]:
    """Sums of products of one scale in units of features and targets, and of how many rows."""
    sums = moments.sums[index].double()
    num = sums[0, 0].item() / 2 ** (2 * _BITS)
    unit = torch.full((moments.size - moments.features.width,), 2.0**-_BITS, dtype=torch.float64)
    scaled = torch.cat([moments.features.weights, unit])
    return sums * scaled[:, None] * scaled, num


def _fit(moments: Moments, index: int) -> MomentsHead:
    """Bayesian least squares of one scale, with the variances of most evidence."""
    features, width = moments.features, moments.features.width
    sums, num = _scaled(moments, index)
    gram, cross, squares = sums[:width, :width], sums[:width, width:], sums[width:, width:]
    centre = cross[0] / num  # the constant's products are sums of the targets
    cross = cross - torch.outer(gram[:, 0], centre)
    squares = squares - num * torch.outer(centre, centre)
    eigenvalues, vectors = torch.linalg.eigh(gram)
    eigenvalues = eigenvalues.clamp_min(0.0)
    turned = vectors.T @ cross
    outputs = 1 if moments.num_classes is None else max(1, int((centre > 0).sum()) - 1)
    evidence, prior_var, noise_var = _most_evidence(
        eigenvalues, turned.square().sum(1), float(squares.trace()), num * outputs, outputs
    )
    precision = eigenvalues + noise_var / prior_var  # in units of the noise
    weights = vectors @ (turned / precision[:, None])
    residual = squares - cross.T @ weights - weights.T @ cross + weights.T @ gram @ weights
    freedom = max(1.0, num - float((eigenvalues / precision).sum()))
    inverse = None
    if moments.num_classes is not None:
        inverse = torch.linalg.pinv(residual / freedom, rtol=1e-9, hermitian=True)
    return MomentsHead(
        features,
        features.scales[index],
        evidence,
        centre,
        weights,
        vectors / precision.sqrt(),
        noise_var,
        inverse,
    )


def _most_evidence(
    eigenvalues: Tensor, explained: Tensor, total: float, num: float, outputs: int
) -> tuple[float, float, float]:
    """Return the log evidence, the weights' prior variance and the noise's where it is largest.

    Args:
        eigenvalues: Of Phi'Phi.
        explained: Squares of Phi'Y along its eigenvectors, summed over outputs.
        total: Squares of Y.
        num: Numbers that are explained: rows times outputs.
        outputs: Outputs that are not a sum of others.
    """

    def lack(logs: tuple[float, float]) -> float:
        prior_var, noise_var = math.exp(logs[0]), math.exp(logs[1])
        shrunk = eigenvalues / noise_var + 1 / prior_var
        fit = total / noise_var - float((explained / noise_var**2 / shrunk).sum())
        volume = outputs * float((shrunk * prior_var).log().sum())
        return 0.5 * (num * math.log(2 * math.pi * noise_var) + volume + fit)

    bounds = ((-12.0, 12.0), (-20.0, 6.0))
    found = [
        scipy.optimize.minimize(lack, start, method="Nelder-Mead", bounds=bounds)
        for start in _STARTS
    ]
    best = min(found, key=lambda one: float(one.fun))
    return -float(best.fun), math.exp(float(best.x[0])), math.exp(float(best.x[1]))
