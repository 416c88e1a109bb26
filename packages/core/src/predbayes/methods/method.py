"""The shape of a method; `predbayes.api.run` runs one.

    init    at the coordinator   what everybody may see before the round
    learn   at each site         state, own rows, reference inputs -> upload
    lift    at the coordinator   one upload -> a summand
    finish  at the coordinator   the sum of the summands -> new state

Summands add in place, so a method that `streams` keeps one upload at a time whatever the number
of sites. Labels of reference rows pass through `init` and `finish` only, never through the
state: the state may be sent to sites. More rounds repeat the last three.

Over a network a site is sent what `learn` needs of the state, as named arrays, and nothing else:

    state_arrays   at the coordinator   state -> named arrays
    state_from     at each site         named arrays -> a state to learn from
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import Predictor
from predbayes.learning.training import Rows
from predbayes.pools.pool import RoundState
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Predictive
from predbayes.summand import Summand

_PARTS = ("families", "streams", "init", "learn", "lift", "finish")

State = TypeVar("State")
Total = TypeVar("Total", bound=Summand)


@dataclass(frozen=True, slots=True)
class ModelState(RoundState):
    """The state of a method of weights: a global model, and what the round's result predicts."""

    weights: WeightSamples  # M = 1
    drawn: WeightSamples | None = field(default=None, kw_only=True)  # an ensemble's networks


class Method(Protocol[State, Total]):
    """A federated method; its hyperparameters are its fields."""

    @property
    def families(self) -> frozenset[type[Predictive]]:
        """The predictive families it works for."""

    @property
    def streams(self) -> bool:
        """True if memory stays flat as sites grow in number."""

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> State:
        """The state that the first round starts from."""

    def learn(self, state: State, rows: Rows, inputs: Tensor, *, rng: torch.Generator) -> Upload:
        """Fit the site's rows and return what the site sends."""

    def lift(self, state: State, upload: Upload, inputs: Tensor) -> Total:
        """An upload as a summand."""

    def finish(
        self, state: State, total: Total, reference: ReferenceRows, *, rng: torch.Generator
    ) -> State:
        """The state after the round."""


@runtime_checkable
class HasModel(Protocol):
    """A method that ends with something that predicts new inputs, not reference rows alone."""

    def model(self, state: Any) -> Predictor:
        """What predicts, read off the state after the last round."""


@runtime_checkable
class SendsState(Protocol):
    """A method that sites on other machines can take part in."""

    def state_arrays(self, state: Any) -> Mapping[str, Tensor]:
        """Return what `learn` needs of a state; no more of it leaves the coordinator."""

    def state_from(self, arrays: Mapping[str, Tensor]) -> Any:
        """Return a state to learn from, made of what `state_arrays` returned."""


def sends_state(method: object) -> SendsState:
    """Return the method, or refuse it in one line if its state cannot be sent."""
    if isinstance(method, SendsState):
        return method
    raise TrainingError(
        f"{type(method).__name__} cannot be sent to sites: it lacks state_arrays(state), which "
        "returns what learn needs as named tensors, and state_from(arrays), which reads them"
    )


def method_digest(method: object) -> str:
    """SHA-256 of a method with all its settings, the same on every machine.

    Functions, such as one that builds a network, count by their names.
    """
    kind = type(method)
    told = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(method))
    return hashlib.sha256(f"{kind.__module__}.{kind.__qualname__} {told}".encode()).hexdigest()


def require_method(method: object) -> None:
    """Refuse what is no method before any site trains."""
    if isinstance(method, type):
        raise TrainingError(f"{method.__name__} is a class; give an instance of it")
    name = type(method).__name__
    missing = [part for part in _PARTS if not hasattr(method, part)]
    if missing == ["learn"]:  # all that a pool lacks
        raise TrainingError(f"{name} is a pool; wrap it: pb.Pooled(learner, pool)")
    if missing:
        raise TrainingError(
            f"{name} has no {missing[0]}; a method has families, streams, init, learn, lift and "
            "finish"
        )
