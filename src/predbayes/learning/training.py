"""The one training loop, and the batches it runs over.

Every learner and the distillation call `train`; what differs is the optimiser, the objective and
what happens before and after a step. A site's data are a pair of tensors, which stay on the
device and are shuffled by index, or any `DataLoader` of (inputs, targets).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from predbayes.errors import DataError, DivergedError, TrainingError
from predbayes.progress import Event, heard, tell
from predbayes.seeding import isolated

Rows = tuple[Tensor, Tensor] | DataLoader[Any]
"""A site's data: inputs and targets in memory, or a loader that yields them in batches."""

Objective = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> mean loss."""


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device of this name; ``"auto"`` is a GPU where there is one, else the CPU."""
    if device == "auto":
        mps_or_cpu = "mps" if torch.backends.mps.is_available() else "cpu"
        device = "cuda" if torch.cuda.is_available() else mps_or_cpu
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise TrainingError(f"device {str(device)!r} cannot be used: {reason}") from error
    return found


class Batches(Protocol):
    """One pass over a site's rows at a time."""

    @property
    def num_rows(self) -> int:
        """The number of rows that an epoch visits."""

    def __len__(self) -> int:
        """How many batches an epoch has."""

    def epoch(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """All rows once, in a random order."""


@dataclass(frozen=True, slots=True)
class TensorBatches:
    """Batches cut from tensors in memory, in a new order each epoch."""

    inputs: Tensor
    targets: Tensor
    batch_size: int  # at most

    def __post_init__(self) -> None:
        _require_pairs(self.inputs, self.targets)
        if self.inputs.is_floating_point():
            if self.inputs.dtype != torch.get_default_dtype():
                wanted = torch.get_default_dtype()
                raise DataError(f"inputs are {self.inputs.dtype}; convert them to {wanted}")
            if not bool(self.inputs.isfinite().all()):
                raise DataError("inputs contain NaN or infinity; drop or impute those rows")

    @property
    def num_rows(self) -> int:
        """Rows per epoch."""
        return len(self.inputs)

    def __len__(self) -> int:
        return math.ceil(len(self.inputs) / self.batch_size)

    def epoch(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """All rows once, in an order drawn from ``rng``."""
        order = torch.randperm(len(self.inputs), generator=rng).to(self.inputs.device)
        # Of nearly equal size: a last batch of a few rows would weigh as much as a full one.
        for rows in torch.tensor_split(order, len(self)):
            # Three times as fast as indexing; gathering a whole epoch at once is slower than both.
            yield self.inputs.index_select(0, rows), self.targets.index_select(0, rows)


@dataclass(frozen=True, slots=True)
class LoaderBatches:
    """Batches of a `DataLoader`, moved to a device; their size and order are the loader's."""

    loader: DataLoader[Any]
    device: torch.device

    @property
    def num_rows(self) -> int:
        """Rows per epoch."""
        return count_rows(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: ARG002
        """All batches of the loader once."""
        for inputs, targets in self.loader:
            yield inputs.to(self.device), targets.to(self.device)


def count_rows(rows: Rows) -> int:
    """Count a site's rows."""
    if not isinstance(rows, DataLoader):
        return len(rows[0])
    if not hasattr(rows.sampler, "__len__") or not hasattr(rows.dataset, "__len__"):
        raise DataError("a loader's dataset must have a length: it is the site's number of rows")
    return len(cast(Sized, rows.sampler))


def gather(rows: Rows, *, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """All inputs and targets of a site on the CPU, also where they come from a loader."""
    if isinstance(rows, DataLoader):
        with isolated(rng):  # a shuffling loader draws from torch's global generator
            batches = [(inputs, targets) for inputs, targets in rows]
        if not batches:
            raise DataError("the site's loader yields no rows")
        inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    else:
        inputs, targets = _in_memory(rows)
    _require_pairs(inputs, targets)
    return inputs.detach().cpu(), targets.detach().cpu()


def as_batches(
    rows: Rows, *, batch_size: int, device: torch.device, check: Callable[[Tensor], None]
) -> Batches:
    """Batches of either kind of data on a device; ``check`` refuses targets in memory."""
    if isinstance(rows, DataLoader):
        return LoaderBatches(rows, device)
    inputs, targets = _in_memory(rows)
    check(targets)
    return TensorBatches(inputs.to(device), targets.to(device), batch_size)


def _in_memory(rows: Rows) -> tuple[Tensor, Tensor]:
    if not isinstance(rows, tuple) or not all(isinstance(part, Tensor) for part in rows):
        raise DataError("a site's rows are a pair of tensors (inputs, targets), or a DataLoader")
    return rows


def _require_pairs(inputs: Tensor, targets: Tensor) -> None:
    if len(inputs) != len(targets) or not len(inputs):
        raise DataError(
            f"{len(inputs)} inputs with {len(targets)} targets; give one target for each input, "
            "and at least one"
        )


def train(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    *,
    num_epochs: int,
    rng: torch.Generator,
    before_step: Callable[[int], None] | None = None,
    after_backward: Callable[[], None] | None = None,
    after_step: Callable[[int], None] | None = None,
    after_epoch: Callable[[int], None] | None = None,
    resume: Callable[[], int] | None = None,
) -> None:
    """Minimise the mean objective over the batches, in place.

    Args:
        model: Left in training mode, with its last weights.
        objective: Of the model's outputs and the batch's targets.
        batches: What to visit.
        optimizer: Over the model's parameters.
        num_epochs: Passes over the batches.
        rng: Order of the rows, and whatever the model itself draws (dropout).
        before_step: Called with the number of the step, from 0; where a schedule acts.
        after_backward: Called when gradients are there; where a penalty adds its own.
        after_step: Called after the step; where samples are taken.
        after_epoch: Called with the number of epochs done; where a checkpoint is kept.
        resume: Puts model, optimiser and generators where an earlier run left them, and returns the
            number of epochs that were done.
    """
    model.train()
    parameters = list(model.parameters())
    loss = torch.zeros(())
    told = heard()
    with isolated(rng, parameters[0].device if parameters else None):
        first = 0 if resume is None else resume()
        step = first * len(batches)
        for epoch in range(first, num_epochs):
            total = torch.zeros(())
            for inputs, targets in batches.epoch(rng):
                if before_step is not None:
                    before_step(step)
                for parameter in parameters:  # a tenth of a small step faster than zero_grad
                    parameter.grad = None
                loss = objective(model(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                if after_backward is not None:
                    after_backward()
                if told:
                    total = total + loss.detach()
                optimizer.step()
                if after_step is not None:
                    after_step(step)
                step += 1
            if not math.isfinite(loss.item()):
                raise DivergedError(f"training diverged at step {step}; lower the step size")
            if told:
                mean = float(total) / len(batches)
                tell(Event("epoch", epoch=epoch + 1, num_epochs=num_epochs, loss=mean))
            if after_epoch is not None:
                after_epoch(epoch + 1)
