"""How a network's outputs become a predictive, and the loss that trains it.

A likelihood is a value without state: it says how many outputs the network must have, wraps the
network where the noise itself is learnt, gives the mean NLL of a batch, and turns the outputs of M
weight samples into one predictive, the average over samples:

    softmax     p(y = c | x) = mean_m softmax(f_m(x))_c
    log odds    the softmax of two outputs, of (0, f_m(x)), or of (log C, f_m(x)), for a gate
    Gaussian    mean = mean_m f_m(x),   variance = var_m f_m(x) + mean_m noise_m(x)
    hazards     p(event in interval j | x) = mean_m h_mj(x) prod_(i<j) (1 - h_mi(x)), where f_m(x)
                are the log odds of the hazards h_m(x)

(Paper: alg:dBpredbayes, step 3.) For the Gaussian the two parts of the variance are kept apart:
the first is what more data would remove.

A teacher's predictives are learnt from as soft targets: the loss is their cross-entropy,

    E_teacher[ -log student ] = KL(teacher || student) + entropy(teacher)

which has the gradient of the KL and is cheaper, because all it needs of the teacher is computed
once: probabilities, or a mean and a variance.

Balanced, a softmax is trained under the class shares of the site and predicts without them
(balanced softmax; Ren et al., 2020):

    loss = -log softmax(f(x) + log share)_y,    share_c = (n_c + 1) / (N + C)

By Bayes' rule f is then the class's log-likelihood of x: what the site says under a uniform prior,
in which sites of other class shares agree.

Released: the authors train with the squared error and add a fixed variance of 2.0 to standardised
targets: `FixedNoise.released()`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from predbayes.errors import DataError, TrainingError
from predbayes.predictive.families import (
    Categorical,
    Gaussian,
    Predictive,
    Survival,
    average,
    require_classes,
    require_times,
)

NOISE_PARAMETER = "raw_noise"
"""Name of the noise parameter of an attached network."""

MIN_NOISE_VAR = 1e-4
"""Least learnt noise: a hundredth of the standard deviation of standardised targets."""

P = TypeVar("P", Categorical, Gaussian, Survival)


class Likelihood(Protocol):
    """The interface between a network and a predictive family."""

    @property
    def family(self) -> type[Predictive]:
        """The family of the predictives."""

    @property
    def num_outputs(self) -> int:
        """The number of outputs that the user's network must have."""

    def attach(self, net: nn.Module) -> nn.Module:
        """Return the network with whatever the likelihood itself must learn."""

    def check(self, targets: Tensor) -> None:
        """Refuse targets that cannot be learnt: of the wrong kind, shape or range."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of a batch; outputs (B, O)."""

    def soft_targets(self, teacher: Predictive) -> Tensor:
        """Return what `soft_loss` needs of a teacher, (B, D); refuse one of another family."""

    def soft_loss(self, outputs: Tensor, soft_targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch with its teacher; outputs (B, O)."""

    def predictive(self, outputs: Tensor) -> Predictive:
        """Return one predictive from the outputs (M, B, O) of M weight samples."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """Classification into ``num_classes``; ``balanced``: as if they were equally frequent."""

    num_classes: int
    balanced: bool = False

    @property
    def family(self) -> type[Categorical]:
        """Categorical."""
        return Categorical

    @property
    def num_outputs(self) -> int:
        """One logit per class."""
        return self.num_classes

    def attach(self, net: nn.Module) -> nn.Module:
        """Return the network itself."""
        return net

    def check(self, targets: Tensor) -> None:
        """Refuse what is not a class index from 0 to C - 1 for each row."""
        _require_column(targets)
        require_classes(targets, self.num_classes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy in nats."""
        return nn.functional.cross_entropy(_read(outputs, self.num_classes), targets)

    def balanced_loss(self, class_rows: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss under the class shares of a site with so many rows of each class."""
        log_shares = ((class_rows + 1) / (class_rows + 1).sum()).log()

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            return self.loss(outputs + log_shares.to(outputs.device), targets)

        return loss

    def soft_targets(self, teacher: Predictive) -> Tensor:
        """Return the teacher's probabilities."""
        return _require_family(teacher, Categorical).moments()

    def soft_loss(self, outputs: Tensor, soft_targets: Tensor) -> Tensor:
        """Return the cross-entropy in nats."""
        return self.loss(outputs, soft_targets)

    def predictive(self, outputs: Tensor) -> Categorical:
        """Average the samples' probabilities, in log space."""
        log_probs = _read(outputs, self.num_classes).log_softmax(-1)
        return Categorical(log_probs.logsumexp(0) - math.log(len(outputs)))


@dataclass(frozen=True, slots=True)
class LogOdds:
    """Own rows told from contrast rows, class 0, by a network that was built for another task.

    For two classes the first two outputs are the logits, or an only output the log odds of class 1;
    others are not read. ``by_class`` each output is the logit of one of the classes 1 to C, and
    class 0 has log C. So a gate can be learnt with any network (`predbayes.learning.gate`).
    """

    num_outputs: int = 1
    by_class: bool = False

    @property
    def family(self) -> type[Categorical]:
        """Categorical."""
        return Categorical

    def attach(self, net: nn.Module) -> nn.Module:
        """Return the network itself."""
        return net

    def check(self, targets: Tensor) -> None:
        """Refuse what is none of the classes."""
        self._softmax.check(targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy in nats."""
        return self._softmax.loss(self._logits(outputs), targets)

    def soft_targets(self, teacher: Predictive) -> Tensor:
        """Return the teacher's probabilities."""
        return self._softmax.soft_targets(teacher)

    def soft_loss(self, outputs: Tensor, soft_targets: Tensor) -> Tensor:
        """Return the cross-entropy in nats."""
        return self.loss(outputs, soft_targets)

    def predictive(self, outputs: Tensor) -> Categorical:
        """Average the samples' probabilities, in log space."""
        return self._softmax.predictive(self._logits(outputs))

    @property
    def _softmax(self) -> Softmax:
        return Softmax(1 + self.num_outputs if self.by_class else 2)

    def _logits(self, outputs: Tensor) -> Tensor:
        if not self.by_class and outputs.shape[-1] > 1:
            return outputs[..., :2]
        # Where nothing is learnt yet the odds are even, however many classes own rows have.
        even = math.log(self.num_outputs) if self.by_class else 0.0
        return nn.functional.pad(outputs, (1, 0), value=even)


@dataclass(frozen=True, slots=True)
class Hazards:
    """Time to an event, by the log odds of its hazard in each of ``num_intervals``."""

    num_intervals: int

    @property
    def family(self) -> type[Survival]:
        """Survival."""
        return Survival

    @property
    def num_outputs(self) -> int:
        """One log odds per interval."""
        return self.num_intervals

    def attach(self, net: nn.Module) -> nn.Module:
        """Return the network itself."""
        return net

    def check(self, targets: Tensor) -> None:
        """Refuse what is not a time in intervals for each row."""
        _require_column(targets)
        require_times(targets, self.num_intervals)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the NLL of the intervals that rows were seen in."""
        return -Survival(_read(outputs, self.num_intervals)).log_prob(targets).mean()

    def soft_targets(self, teacher: Predictive) -> Tensor:
        """Return the teacher's probability of each interval, and of no event."""
        return _require_family(teacher, Survival).moments()

    def soft_loss(self, outputs: Tensor, soft_targets: Tensor) -> Tensor:
        """Return the cross-entropy in nats of the interval of the event."""
        log_moments = Survival(_read(outputs, self.num_intervals)).log_moments()
        return -(soft_targets * log_moments).sum(-1).mean()

    def predictive(self, outputs: Tensor) -> Survival:
        """Average the samples' probabilities."""
        outputs = _read(outputs, self.num_intervals)
        if len(outputs) == 1:
            return Survival(outputs[0])
        mean = average([Survival(one.double()) for one in outputs])
        assert isinstance(mean, Survival)
        return Survival(mean.log_odds.to(outputs.dtype))


class _Regression(ABC):
    """What likelihoods of numbers share: all but where the noise comes from."""

    __slots__ = ()

    @property
    def family(self) -> type[Gaussian]:
        """Gaussian."""
        return Gaussian

    @abstractmethod
    def moments(self, outputs: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:
        """Return mean and noise variance of each output."""

    def check(self, targets: Tensor) -> None:
        """Refuse what is not a finite number for each row."""
        _require_column(targets)
        if not targets.is_floating_point():
            raise DataError(f"targets of a regression are {targets.dtype}; convert with .float()")
        if not bool(targets.isfinite().all()):
            raise DataError("targets contain NaN or infinity; drop or impute those rows")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the Gaussian NLL at the noise of training."""
        return _gaussian_nll(*self.moments(outputs, training=True), targets)

    def soft_targets(self, teacher: Predictive) -> Tensor:
        """Return the teacher's mean and variance."""
        gaussian = _require_family(teacher, Gaussian)
        return torch.stack([gaussian.mean, gaussian.var], -1)

    def soft_loss(self, outputs: Tensor, soft_targets: Tensor) -> Tensor:
        """Return the Gaussian cross-entropy at the noise of training."""
        mean, var = self.moments(outputs, training=True)
        teacher_mean, teacher_var = soft_targets.unbind(-1)
        # E (y - f)^2 is the squared distance of the means plus the teacher's variance.
        return _gaussian_nll(mean, var, teacher_mean) + 0.5 * (teacher_var / var).mean()

    def predictive(self, outputs: Tensor) -> Gaussian:
        """Return the moments of the samples' mixture, at the noise of prediction."""
        means, noise_vars = self.moments(outputs, training=False)
        # Numerics: torch warns of a variance where there is no row.
        epistemic = means.var(0, correction=0) if means.numel() else means[0]
        return Gaussian(means.mean(0), epistemic + noise_vars.mean(0), epistemic)


@dataclass(frozen=True, slots=True)
class LearnedNoise(_Regression):
    """Regression with a noise variance that is learnt with the weights.

    One for all inputs, a parameter beside the network's; or, ``per_input``, one that depends on the
    input, the network's second output. It stays above ``least_var``.
    """

    per_input: bool = False
    least_var: float = MIN_NOISE_VAR

    @property
    def num_outputs(self) -> int:
        """The mean, and the raw noise where it depends on the input."""
        return 2 if self.per_input else 1

    def attach(self, net: nn.Module) -> nn.Module:
        """Return the network, with a noise parameter where it has no variance head."""
        return net if self.per_input else _WithNoise(net)

    def moments(self, outputs: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return mean and learnt noise, which is the same in training and prediction."""
        outputs = _read(outputs, 2)
        # Numerics: softplus grows linearly; a large step cannot overflow as an exponential would.
        return outputs[..., 0], nn.functional.softplus(outputs[..., 1]) + self.least_var


@dataclass(frozen=True, slots=True)
class FixedNoise(_Regression):
    """Regression with noise variances that are given, one to train with and one to predict with."""

    train_var: float = 1.0
    predict_var: float = 1.0

    @classmethod
    def released(cls) -> FixedNoise:
        """Return that of the authors: squared error in training, variance 2 in prediction."""
        return cls(train_var=0.5, predict_var=2.0)

    @property
    def num_outputs(self) -> int:
        """The mean."""
        return 1

    def attach(self, net: nn.Module) -> nn.Module:
        """Return the network itself."""
        return net

    def moments(self, outputs: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:
        """Return mean and given noise."""
        mean = _read(outputs, 1)[..., 0]
        return mean, torch.full_like(mean, self.train_var if training else self.predict_var)


class _WithNoise(nn.Module):
    """A network for the mean, and one raw noise parameter for all inputs."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.raw_noise = nn.Parameter(torch.zeros(1))  # NOISE_PARAMETER

    def forward(self, inputs: Tensor) -> Tensor:
        mean = self.net(inputs)
        return torch.cat([mean, self.raw_noise.expand_as(mean)], -1)


def _gaussian_nll(mean: Tensor, var: Tensor, targets: Tensor) -> Tensor:
    return -Gaussian(mean, var).log_prob(targets).mean()


def _read(outputs: Tensor, expected: int) -> Tensor:
    """Outputs as they are, or in torch's default float where they come in half precision."""
    if outputs.shape[-1] != expected:
        raise TrainingError(
            f"the network and its noise have {outputs.shape[-1]} outputs where the likelihood "
            f"reads {expected}; build the network with likelihood.num_outputs outputs"
        )
    # Numerics: of a network under autocast; in bfloat16 probabilities sum to 1 within .008 only.
    return outputs.to(torch.get_default_dtype()) if outputs.element_size() < 4 else outputs


def _require_family(teacher: Predictive, family: type[P]) -> P:
    if not isinstance(teacher, family):
        raise TrainingError(
            f"the teacher is {type(teacher).__name__}, the student's likelihood "
            f"{family.__name__}; choose a student of the teacher's family"
        )
    return teacher


def _require_column(targets: Tensor) -> None:
    if targets.ndim != 1:
        raise DataError(f"targets have shape {tuple(targets.shape)}; give one number per row")
