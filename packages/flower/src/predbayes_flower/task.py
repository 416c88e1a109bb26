"""A method's task as it travels to nodes, and how an answer is bound to it.

    words     run, round and seed, the digest of the method with all its settings, and that of the
              reference inputs
    state     what `learn` needs of the method's state, as named arrays
    inputs    the reference inputs, never their labels; not if the node has them already

An answer repeats the run, and the digest of the task as the node has read it. So what answers
another run, another round, another method or other arrays is told apart, whoever mixed it up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.exchange.federation import Task
from predbayes.exchange.upload import digest_of
from predbayes.methods.method import method_digest, require_method, sends_state
from predbayes.optional import require
from predbayes_flower.wire import read_words, to_array, to_tensor, words

_STATE, _INPUTS = "state", "inputs"


@dataclass(frozen=True)  # without slots, where digests are kept
class Question:
    """What every node is asked in one round."""

    run: str
    round: int
    seed: int
    method: str  # its digest
    state: Mapping[str, Tensor]
    reference: str  # digest of the reference inputs
    inputs: Tensor | None  # None: the node has them

    @classmethod
    def of(cls, task: Task, run: str) -> Question:
        """Make the question of a task; a method whose state cannot be sent is refused."""
        state, told = sends_state(task.method).state_arrays(task.state), method_digest(task.method)
        inputs = task.inputs
        return cls(run, task.round, task.seed, told, state, digest_of_inputs(inputs), inputs)

    @classmethod
    def read(cls, content: Any) -> Question:
        """Read a question from a message."""
        told = read_words(content)
        try:
            inputs = _tensors(content[_INPUTS])[_INPUTS] if _INPUTS in content else None
            reference = str(told["reference"]) if inputs is None else digest_of_inputs(inputs)
            numbers, state = (int(told["round"]), int(told["seed"])), _tensors(content[_STATE])
            return cls(str(told["run"]), *numbers, str(told["method"]), state, reference, inputs)
        except (KeyError, ValueError, TypeError) as error:
            raise TrainingError("the message holds no task of a method") from error

    def record(self, *, with_inputs: bool = True) -> Any:
        """Return the question as it travels."""
        content = words(
            run=self.run,
            round=self.round,
            seed=self.seed,
            method=self.method,
            reference=self.reference,
        )
        content[_STATE] = _arrays(self.state, "the method's state")
        if with_inputs and self.inputs is not None:
            content[_INPUTS] = _arrays({_INPUTS: self.inputs}, "the reference inputs")
        return content

    def task(self, method: Any, inputs: Tensor) -> Task:
        """Return the task for a site that has this method and these inputs."""
        state = sends_state(method).state_from(self.state)
        return Task(method, state, inputs, self.round, self.seed)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that an upload depends on but the site; so not of the run."""
        state = {f"{_STATE}/{name}": array for name, array in self.state.items()}
        return digest_of(f"{self.origin} {self.round}", state)

    @cached_property
    def origin(self) -> str:
        """SHA-256 of what all rounds of a run have in common: method, seed, reference inputs."""
        return digest_of(json.dumps([self.method, self.seed, self.reference]), {})


def digest_of_inputs(inputs: Tensor) -> str:
    """SHA-256 of reference inputs."""
    return digest_of(_INPUTS, {_INPUTS: inputs})


def _arrays(tensors: Mapping[str, Tensor], what: str) -> Any:
    try:
        made = {name: to_array(tensor) for name, tensor in tensors.items()}
    except TypeError as error:  # a type that numpy lacks
        raise TrainingError(f"{what} cannot be sent: {error}") from error
    return require("flwr.app", "flower").ArrayRecord(made)


def _tensors(record: Any) -> dict[str, Tensor]:
    return {str(name): to_tensor(array) for name, array in record.items()}


def given(method: Any) -> Callable[[Any], Any]:
    """Return a function that gives the method; refuse at once what is neither."""
    is_function = callable(method) and not hasattr(method, "learn")
    if not is_function:
        require_method(method)

    def made(context: Any) -> Any:
        found = method(context) if is_function else method
        require_method(found)
        return found

    return made
