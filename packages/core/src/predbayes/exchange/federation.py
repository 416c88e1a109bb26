"""Asking sites for their contribution: one protocol, and its simplest implementation.

A `Federation` hands a task to every site and yields uploads as they arrive. Methods know nothing of
transport; a transport knows nothing of methods beyond `learn`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from predbayes.arrays import as_rows, as_targets, num_inputs, pair_of
from predbayes.errors import DataError, PredbayesError, TrainingError, no_such
from predbayes.exchange.upload import Upload
from predbayes.learning.training import Rows
from predbayes.progress import at
from predbayes.seeding import generator

_log = logging.getLogger(__name__)
_FAR_OFF = 10.0  # mean or spread of targets, or its inverse, that no setting here is made for


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


@runtime_checkable
class TakesLearner(Protocol):
    """A method that sites with different learners can take part in."""

    def with_learner(self, learner: Any) -> LocalStep:
        """Return the half that runs at a site with a learner of its own."""
        ...


def with_learner(method: Any, learner: Any) -> Any:
    """Return the method for a site with a learner of its own; refuse one that cannot have it."""
    if not isinstance(method, TakesLearner):
        kind = type(method).__name__
        raise TrainingError(f"{kind} has one learner for all sites; learners= is for pools")
    return method.with_learner(learner)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """In place of an upload: a site that the round goes on without."""

    site: str
    reason: str


class Federation(Protocol):
    """A way to reach the sites."""

    def collect(self, task: Task) -> Iterator[Upload | LeftOut]:
        """Each site's upload as it arrives, or in its place that the site is left out."""
        ...


def require_federation(federation: object) -> None:
    """Refuse what cannot hand a task to sites."""
    if isinstance(federation, type) or not callable(getattr(federation, "collect", None)):
        name = federation.__name__ if isinstance(federation, type) else type(federation).__name__
        raise TrainingError(
            f"{name} is no federation: it has no collect(task) by which sites get a method's task; "
            "give a dict of sites, or predbayes_flower.FlowerFederation(grid); end the round of a "
            "study with study.finish()"
        )


@dataclass(frozen=True, slots=True)
class InProcess:
    """Sites in this process, one after another.

    Each site's randomness depends on the run's seed, its name and the round, and on nothing else.

    Args:
        sites: Rows by site: pairs (inputs, targets) of tensors, arrays or tables, dicts of such,
            datasets or loaders.
        learners: What some sites fit in place of the method's own learner, by their names.
        on_error: Whether a site that cannot learn ends the run, ``"raise"``, or is left out of the
            round, ``"skip"``: then a warning and the result say so.
    """

    sites: Mapping[str, Any]
    learners: Mapping[str, Any] = field(default_factory=dict)
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        if not isinstance(self.sites, Mapping):
            kind = type(self.sites).__name__
            raise DataError(f"sites are a dict name -> (inputs, targets), not a {kind}")
        if not self.sites:
            raise DataError("there is no site; sites are a dict name -> (inputs, targets)")
        for name in self.learners:
            if name not in self.sites:
                raise TrainingError(f"learners: {no_such('site', name, self.sites)}")
        if self.on_error not in ("raise", "skip"):
            raise TrainingError(f"on_error must be 'raise' or 'skip', not {self.on_error!r}")

    def collect(self, task: Task) -> Iterator[Upload | LeftOut]:
        """Train and yield one site at a time; nothing is kept."""
        methods = dict.fromkeys(self.sites, task.method)
        for name, learner in self.learners.items():
            methods[name] = with_learner(task.method, learner)
        if self.on_error == "raise":  # all of them, before the first one trains
            for name, rows in self.sites.items():
                require_width(name, rows, task.inputs)
        if task.round == 0:
            self._warn_of_scale()
        reasons = []
        for name, method in methods.items():
            try:
                require_width(name, self.sites[name], task.inputs)
                upload = learn_at(name, self.sites[name], replace(task, method=method))
            except PredbayesError as error:
                if self.on_error == "raise":
                    raise
                reasons.append(str(error))
                yield LeftOut(name, reasons[-1].removeprefix(f"site {name!r}: "))
            else:
                yield upload
        if len(reasons) == len(methods):
            raise TrainingError(f"every site was left out; {reasons[0]}")

    def _warn_of_scale(self) -> None:
        """Warn of the first site with raw targets; a loader is not read."""
        for name, rows in self.sites.items():
            try:
                targets = as_targets(pair_of(rows)[1])
            except DataError:  # a loader, or what will be refused when it is read
                continue
            if warn_of_scale(f"targets of site {name!r}", targets):
                return


def warn_of_scale(what: str, targets: Tensor) -> bool:
    """Warn of numbers that are not standardised, which no setting here is made for."""
    if not targets.is_floating_point() or len(targets) < 2:
        return False
    mean, std = float(targets.mean()), float(targets.std())
    if abs(mean) < _FAR_OFF and 1 / _FAR_OFF < std < _FAR_OFF:
        return False
    _log.warning(
        "%s have mean %.3g and spread %.3g where settings assume about 0 and 1; "
        "standardise them, or use pb.FederatedRegressor, which does",
        what,
        mean,
        std,
    )
    return True


def require_width(name: str, rows: Any, reference: Tensor) -> None:
    """Refuse a site whose inputs are not those of the reference rows; loaders are not read."""
    try:
        inputs = pair_of(rows)[0]
    except DataError:  # a loader, or what will be refused when it is read
        return
    if hasattr(inputs, "shape") and num_inputs(inputs) != num_inputs(reference):
        raise DataError(
            f"site {name!r} has {num_inputs(inputs)} inputs per row, the reference rows "
            f"{num_inputs(reference)}"
        )


def learn_at(name: str, rows: Any, task: Task) -> Upload:
    """Return what a site sends; whatever goes wrong there is an error of ours with its name."""
    rng = generator(task.seed, "site", name, "round", task.round)
    _log.info("site %r learns", name)
    try:
        with at(name, task.round):
            upload = task.method.learn(task.state, as_rows(rows), task.inputs, rng=rng)
    except PredbayesError as error:
        raise type(error)(f"site {name!r}: {error}") from error
    except Exception as error:  # of a network, a dataset or a learner of the user's own
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise TrainingError(f"site {name!r}: {why}") from error
    return upload.named(name)
