"""The shape of a method, and how one is run.

    init    at the coordinator   what everybody may see before the round
    learn   at each site         state, own rows, reference inputs -> upload
    lift    at the coordinator   one upload -> a summand
    finish  at the coordinator   the sum of the summands -> new state

Summands add in place, so a method that `streams` keeps one upload at a time whatever the number
of sites. Labels of reference rows pass through `init` and `finish` only, never through the
state: the state may be sent to sites. More rounds repeat the last three.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.exchange.federation import Federation, Task, require_federation
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.training import Rows
from predbayes.predictive.families import Predictive
from predbayes.seeding import generator
from predbayes.summand import Summand, fold

State = TypeVar("State")
Total = TypeVar("Total", bound=Summand)


class Method(Protocol[State, Total]):
    """A federated method; its hyperparameters are its fields."""

    @property
    def families(self) -> frozenset[type[Predictive]]:
        """The predictive families it works for."""
        ...

    @property
    def streams(self) -> bool:
        """Whether memory stays flat as sites grow in number."""
        ...

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> State:
        """The state that the first round starts from."""
        ...

    def learn(self, state: State, rows: Rows, inputs: Tensor, *, rng: torch.Generator) -> Upload:
        """What a site sends."""
        ...

    def lift(self, state: State, upload: Upload, inputs: Tensor) -> Total:
        """An upload as a summand."""
        ...

    def finish(
        self, state: State, total: Total, reference: ReferenceRows, *, rng: torch.Generator
    ) -> State:
        """The state after the round."""
        ...


def _require_method(method: object) -> None:
    """Refuse what is no method before any site trains."""
    if isinstance(method, type):
        raise TrainingError(f"{method.__name__} is a class; give an instance of it")
    for part in ("families", "streams", "init", "learn", "lift", "finish"):
        if not hasattr(method, part):
            raise TrainingError(
                f"{type(method).__name__} has no {part}; a method has families, streams, init, "
                "learn, lift and finish"
            )


def run(
    method: Method[State, Total],
    federation: Federation,
    reference: ReferenceRows,
    *,
    seed: int,
    num_rounds: int = 1,
) -> State:
    """Run a method over a federation, folding uploads as they arrive."""
    _require_method(method)
    require_federation(federation)
    if num_rounds < 1:
        raise TrainingError(f"a method is run for at least one round, not {num_rounds}")
    state = method.init(reference, rng=generator(seed, "init"))
    for index in range(num_rounds):
        task = Task(method, state, reference.inputs, index)
        uploads = federation.collect(task)
        total = fold(method.lift(state, upload, reference.inputs) for upload in uploads)
        state = method.finish(state, total, reference, rng=generator(seed, "finish", index))
    return state
