"""The shape of a pool: from what each site predicts on the reference rows to one predictive.

    init     before the round         what the pool may need from the reference rows: a prior
    lift     one site's predictives   -> a summand
    finish   the sum of the summands  -> the pool, tuned on the labelled rows, on all rows

A pool knows neither how a site learnt nor how its predictives were sent. That is the other half of
a method, `predbayes.methods.pooled.Pooled`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from predbayes.errors import PoolError, TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.predictive.pooling import Contribution
from predbayes.predictive.selection import Choice
from predbayes.predictive.tuning import TunedPool
from predbayes.summand import Summand

BOTH_FAMILIES: frozenset[type[Predictive]] = frozenset({Categorical, Gaussian})


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """What every state has: after a round, predictives on the reference rows."""

    pooled: Predictive | None = None

    @property
    def predictive(self) -> Predictive:
        """The result on all reference rows, labelled ones first."""
        if self.pooled is None:
            raise PoolError("no round has been run yet, so there is no pool")
        return self.pooled


@dataclass(frozen=True, slots=True)
class PoolState(RoundState):
    """The prior, which everybody may see, and after the round what came of it."""

    prior: Predictive | None = None
    num_contrast: int | None = None  # of the first rows, which gates are learnt from; None: all
    beta: float = math.nan
    tuned: TunedPool | None = None  # None where nothing was tuned, or not by the convex solve
    choice: Choice | None = None  # of a pool that was selected from several


Total = TypeVar("Total", bound=Summand)


class Pool(Protocol[Total]):
    """A pool; its hyperparameters are its fields.

    Three attributes may be left out: `gates` is True if sites send their gates, `count_classes` if
    they say how many rows of each class they have, and `own` is the coordinator's own model, or how
    it is made, of a pool in which it takes part.
    """

    @property
    def families(self) -> frozenset[type[Predictive]]:
        """The predictive families it works for."""

    @property
    def streams(self) -> bool:
        """True if memory stays flat as sites grow in number."""

    def init(self, reference: ReferenceRows) -> PoolState:
        """Return the state before the round; refuse reference rows that cannot work."""

    def lift(self, state: PoolState, site: Contribution) -> Total:
        """Return one site's predictives as a summand."""

    def finish(
        self, state: PoolState, total: Total, reference: ReferenceRows, *, rng: torch.Generator
    ) -> PoolState:
        """Return the state with the pool on all reference rows."""


class OwnModel(Protocol):
    """Gives the coordinator's own model of the labelled rows, on all reference inputs."""

    def __call__(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        num_folds: int,
        num_repeats: int,
        rng: torch.Generator,
    ) -> Predictive:
        """Return predictives that are honest on the labelled rows, which come first."""


def require_labels(reference: ReferenceRows, what: str) -> None:
    """Refuse to tune without labels."""
    if not len(reference.targets):
        raise TrainingError(f"{what} is tuned on labelled reference rows, and there are none")
