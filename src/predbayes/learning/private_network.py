r"""A small network under differential privacy of people: DP-SGD, for thousands of people.

The descent, the noise and the grid are those of `learning.private`; the model is

    softmax(W_2 relu(W_1 x))

with constants among x and among the hidden units, and the gradient of each row by itself is that of
`torch.func`, in blocks of bounded size. In each of T steps each person is in the batch with
probability q, which the plan agrees as `size / least`: the people of a batch at the smallest site
that may take part, over the people there. A larger site has larger batches, the same noise and so
a better model. What it spends is accounted by `learning.composition`.

W_1 begins with normal numbers of the site's secret, W_2 at 0: the first predictions are even. Where
people are few for so much noise, steps are smaller (`Descent.scale`), by numbers that have noise
already. Rate, shrinkage, hidden units and the bound of noise were chosen on MNIST.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from predbayes.learning.accounting import Guarantee
from predbayes.learning.composition import Sampled, sampled_for
from predbayes.learning.named import PRIVATE_NETWORK
from predbayes.learning.private import (
    COUNT_SHARE,
    GRID,
    INPUT_BOUND,
    Array,
    Descent,
    Noise,
    PrivateLogistic,
    bounded,
    count_deviation,
    people_and_noise,
    told_people,
)
from predbayes.learning.training import Rows
from predbayes.predictive.families import Categorical


@dataclass(frozen=True, slots=True)
class PrivateNetwork:
    """The network of the module's docstring, as a local learner.

    Args:
        num_classes: Classes of the task.
        guarantee: What is promised; None: no noise, to compare with.
        secret: The key of the noise. Empty: one is drawn from `rng`, which is no secret where the
            seed is known.
        probability: q.
        steps: T.
        clip: C.
        rate: Of a step, in clipping norms.
        shrinkage: Of the weights, in each step.
        hidden: Hidden units.
        most_noise: Deviation that noise may give a weight over all steps: where it would be more,
            which the noisy number of people tells, steps are smaller.
    """

    num_classes: int
    guarantee: Guarantee | None
    secret: bytes = b""
    probability: float = 0.05
    steps: int = 300
    clip: float = 2.0
    rate: float = 4.0
    shrinkage: float = 0.002
    hidden: int = 32
    most_noise: float = 0.3

    name: ClassVar[str] = PRIVATE_NETWORK
    keeps_groups: ClassVar[bool] = True

    @property
    def settings(self) -> str:
        """All that the noise is for: other settings have noise of their own."""
        agreed = (self.num_classes, self.guarantee, self.probability, self.steps, self.clip)
        own = (self.rate, self.shrinkage, self.hidden, self.most_noise)
        # The deviation, too: one noise in two sizes would tell the sum beneath.
        noise = (self.step_deviation, INPUT_BOUND, COUNT_SHARE, GRID)
        return repr(("dp-network 1", *agreed, *own, *noise))

    @property
    def sampled(self) -> Sampled | None:
        """How batches are drawn and how noisy they are: what the promise is accounted by."""
        if self.guarantee is None:
            return None
        return sampled_for(
            self.guarantee,
            probability=self.probability,
            steps=self.steps,
            count_mu=math.sqrt(COUNT_SHARE) * self.guarantee.mu,
        )

    @property
    def step_deviation(self) -> float:
        """Sigma."""
        sampled = self.sampled
        return 0.0 if sampled is None else sampled.noise * self.clip

    @property
    def count_deviation(self) -> float:
        """sigma_n."""
        return count_deviation(self.guarantee)

    @property
    def descent(self) -> Descent:
        """All that is agreed of the steps."""
        return Descent(
            self.steps, self.clip, self.rate, self.shrinkage, self.step_deviation,
            self.count_deviation, self.probability, self.most_noise,
        )  # fmt: skip

    def fit(
        self, rows: Rows, *, rng: torch.Generator, groups: Tensor | None = None
    ) -> PrivateNetworkModel:
        """Descend; rows of a group are one person's, if the promise is of people."""
        people, noise = people_and_noise(
            rows, self.num_classes, self.guarantee, secret=self.secret, groups=groups, rng=rng
        )
        net = Net(people.width, self.hidden, self.num_classes)
        weights, counted = self.descent.descend(people, net.start(noise), net.gradients, noise)
        return PrivateNetworkModel(net, torch.from_numpy(weights), told_people(counted))


PrivateLearner = PrivateLogistic | PrivateNetwork
"""What a plan can name that promises differential privacy of people."""


@dataclass(frozen=True, slots=True)
class Net:
    """A network with one hidden layer, whose weights are one vector."""

    width: int  # of the inputs, their constant among them
    hidden: int
    num_classes: int

    @property
    def num_weights(self) -> int:
        """Numbers of its vector."""
        return self.hidden * self.width + self.num_classes * (self.hidden + 1)

    def start(self, noise: Noise) -> Array:
        """Return the weights before the first step: of a secret, and of no row."""
        weights = np.zeros(self.num_weights)
        drawn = noise.normals(self.hidden * self.width, "start")
        weights[: drawn.size] = drawn * math.sqrt(2 / self.width)
        return weights

    def logits(self, weights: Tensor, features: Tensor) -> Tensor:
        """Return the logits (..., classes) of features (..., width)."""
        num_first = self.hidden * self.width
        first = weights[:num_first].reshape(self.hidden, self.width)
        second = weights[num_first:].reshape(self.num_classes, self.hidden + 1)
        units = torch.relu(features @ first.T)
        return units @ second[:, :-1].T + second[:, -1]

    def gradients(self, weights: Array, features: Array, wanted: Array) -> Array:
        """Return the gradients of the loss, row by row."""
        parts = (torch.from_numpy(part) for part in (weights, features, wanted))
        of_rows: Array = vmap(grad(self._loss), in_dims=(None, 0, 0))(*parts).numpy()
        return of_rows

    def _loss(self, weights: Tensor, features: Tensor, wanted: Tensor) -> Tensor:
        return -(self.logits(weights, features).log_softmax(-1) * wanted).sum()


@dataclass(frozen=True, slots=True)
class PrivateNetworkModel:
    """A network of which everything may be told."""

    net: Net
    weights: Tensor
    people: int  # how many there are, with noise

    def predict(self, inputs: Tensor) -> Categorical:
        """Probabilities of each class."""
        logits = self.net.logits(self.weights, torch.from_numpy(bounded(inputs)))
        return Categorical(logits.log_softmax(-1).float())
