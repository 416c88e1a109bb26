"""Asking sites for their contribution: one protocol, and its simplest implementation.

A `Federation` hands a task to every site and yields uploads as they arrive. Methods know nothing of
transport; a transport knows nothing of methods beyond `learn`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from predbayes.arrays import as_rows, num_inputs
from predbayes.errors import DataError, PredbayesError, TrainingError
from predbayes.exchange.upload import Upload
from predbayes.learning.training import Rows
from predbayes.progress import at
from predbayes.seeding import generator


class LocalStep(Protocol):
    """The half of a method that runs at a site."""

    def learn(self, state: Any, rows: Rows, inputs: Tensor, *, rng: torch.Generator) -> Upload:
        """Return what the site sends, given its rows and the reference inputs."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """What every site is asked to do, and all that it is told."""

    method: LocalStep
    state: Any
    inputs: Tensor  # reference inputs, never their labels
    round: int = 0
    seed: int = 0  # of the run; a site's randomness derives from it


class Federation(Protocol):
    """A way to reach the sites."""

    def collect(self, task: Task) -> Iterator[Upload]:
        """Each site's upload as it arrives."""
        ...


def require_federation(federation: object) -> None:
    """Refuse what cannot hand a task to sites."""
    if isinstance(federation, type) or not callable(getattr(federation, "collect", None)):
        name = federation.__name__ if isinstance(federation, type) else type(federation).__name__
        raise TrainingError(
            f"{name} is no federation: it has no collect(task) by which sites get a method's task; "
            "give a dict of sites; end the round of a study with study.finish()"
        )


@dataclass(frozen=True, slots=True)
class InProcess:
    """Sites in this process, one after another.

    Each site's randomness depends on the run's seed, its name and the round, and on nothing else.

    Args:
        sites: Rows by site: pairs (inputs, targets) of tensors, arrays or tables, or loaders.
    """

    sites: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.sites, Mapping):
            kind = type(self.sites).__name__
            raise DataError(f"sites are a dict name -> (inputs, targets), not a {kind}")
        if not self.sites:
            raise DataError("there is no site; sites are a dict name -> (inputs, targets)")

    def collect(self, task: Task) -> Iterator[Upload]:
        """Train and yield one site at a time; nothing is kept."""
        for name, rows in self.sites.items():  # all of them, before the first one trains
            _require_width(name, rows, task.inputs)
        for name, rows in self.sites.items():
            yield _learn_at(name, rows, task)


def _require_width(name: str, rows: Any, reference: Tensor) -> None:
    """Refuse a site whose inputs are not those of the reference rows; loaders are not read."""
    inputs = rows[0] if isinstance(rows, tuple | list) and len(rows) == 2 else None
    if hasattr(inputs, "shape") and num_inputs(inputs) != num_inputs(reference):
        raise DataError(
            f"site {name!r} has {num_inputs(inputs)} inputs per row, the reference rows "
            f"{num_inputs(reference)}"
        )


def _learn_at(name: str, rows: Any, task: Task) -> Upload:
    rng = generator(task.seed, "site", name, "round", task.round)
    try:
        with at(name, task.round):
            upload = task.method.learn(task.state, as_rows(rows), task.inputs, rng=rng)
    except PredbayesError as error:
        raise type(error)(f"site {name!r}: {error}") from error
    return upload.named(name)
