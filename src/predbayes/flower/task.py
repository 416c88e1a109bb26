"""A method's task as it travels to nodes, and how an answer is bound to it.

    words     run, round and seed, and the digest of the method with all its settings
    state     what `learn` needs of the method's state, as named arrays
    inputs    the reference inputs, never their labels

An answer repeats the run, and the digest of the task as the node has read it. So what answers
another run, another round, another method or other arrays is told apart, whoever mixed it up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.exchange.federation import Task
from predbayes.exchange.upload import digest_of
from predbayes.flower.wire import read_words, words
from predbayes.methods.method import method_digest, require_method, sends_state
from predbayes.optional import require

_STATE, _INPUTS = "state", "inputs"


@dataclass(frozen=True)  # without slots, where digests are kept
class Question:
    """What every node is asked in one round."""

    run: str
    round: int
    seed: int
    method: str  # its digest
    state: Mapping[str, Tensor]
    inputs: Tensor

    @classmethod
    def of(cls, task: Task, run: str) -> Question:
        """Make the question of a task; a method whose state cannot be sent is refused."""
        state = sends_state(task.method).state_arrays(task.state)
        return cls(run, task.round, task.seed, method_digest(task.method), state, task.inputs)

    @classmethod
    def read(cls, content: Any) -> Question:
        """Read a question from a message."""
        told = read_words(content)
        try:
            (inputs,) = _tensors(content[_INPUTS]).values()
            state = _tensors(content[_STATE])
            numbers = int(told["round"]), int(told["seed"])
            return cls(str(told["run"]), *numbers, str(told["method"]), state, inputs)
        except (KeyError, ValueError, TypeError) as error:
            raise TrainingError("the message holds no task of a method") from error

    def record(self) -> Any:
        """Return the question as it travels."""
        content = words(run=self.run, round=self.round, seed=self.seed, method=self.method)
        content[_STATE] = _arrays(self.state, "the method's state")
        content[_INPUTS] = _arrays({_INPUTS: self.inputs}, "the reference inputs")
        return content

    def task(self, method: Any) -> Task:
        """Return the task for a site that has this method."""
        state = sends_state(method).state_from(self.state)
        return Task(method, state, self.inputs, self.round, self.seed)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that an upload depends on but the site; so not of the run."""
        state = {f"{_STATE}/{name}": array for name, array in self.state.items()}
        return digest_of(f"{self.origin} {self.round}", state)

    @cached_property
    def origin(self) -> str:
        """SHA-256 of what all rounds of a run have in common: method, seed, reference inputs."""
        return digest_of(json.dumps([self.method, self.seed]), {_INPUTS: self.inputs})


def _arrays(tensors: Mapping[str, Tensor], what: str) -> Any:
    app = require("flwr.app", "flower")
    try:
        made = {n: app.Array(t.detach().cpu().contiguous().numpy()) for n, t in tensors.items()}
    except TypeError as error:  # a type that numpy lacks
        raise TrainingError(f"{what} cannot be sent: {error}") from error
    return app.ArrayRecord(made)


def _tensors(record: Any) -> dict[str, Tensor]:
    return {str(name): torch.from_numpy(np.array(a.numpy())) for name, a in record.items()}


def given(method: Any) -> Callable[[Any], Any]:
    """Return a function that gives the method; refuse at once what is neither."""
    if callable(method) and not hasattr(method, "learn"):
        return _checked(method)
    require_method(method)
    return lambda _context: method


def _checked(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def made(context: Any) -> Any:
        method = make(context)
        require_method(method)
        return method

    return made
