"""The one training loop, and the batches it runs over.

Every learner and the distillation call `train`; what differs is the optimiser, the objective and
what happens before and after a step. A site's data are a pair of tensors, which stay on the
device and are shuffled by index, or any `DataLoader`, read batch by batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from predbayes.arrays import LoaderRows, as_rows
from predbayes.errors import DataError, DivergedError, TrainingError
from predbayes.learning.norms import set_training
from predbayes.progress import Event, heard, tell
from predbayes.seeding import isolated

Rows = tuple[Tensor, Tensor] | LoaderRows | DataLoader[Any]
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
    """Batches of a loader, moved to a device; their size and order are the loader's."""

    rows: LoaderRows
    device: torch.device
    check: Callable[[Tensor], None]  # refuses targets

    @property
    def num_rows(self) -> int:
        """Rows per epoch."""
        return self.rows.num_rows

    def __len__(self) -> int:
        return len(self.rows)

    def epoch(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: ARG002
        """All batches of the loader once."""
        for inputs, targets in self.rows:
            _require_pairs(inputs, targets)
            self.check(targets)
            # A loader of arrays yields float64.
            kind = torch.get_default_dtype() if inputs.is_floating_point() else inputs.dtype
            yield inputs.to(self.device, kind), _indices(targets.to(self.device))


def count_rows(rows: Rows) -> int:
    """Count a site's rows."""
    own = as_rows(rows)
    return own.num_rows if isinstance(own, LoaderRows) else len(own[0])


def gather(rows: Rows, *, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """All inputs and targets of a site on the CPU, also where they come from a loader."""
    own = as_rows(rows)
    if isinstance(own, LoaderRows):
        with isolated(rng):  # a shuffling loader draws from torch's global generator
            batches = list(own)
        if not batches:
            raise DataError("the site's loader yields no rows")
        inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    else:
        inputs, targets = own
    _require_pairs(inputs, targets)
    return inputs.detach().cpu(), targets.detach().cpu()


def as_batches(
    rows: Rows, *, batch_size: int, device: torch.device, check: Callable[[Tensor], None]
) -> Batches:
    """Batches of either kind of data on a device; ``check`` refuses targets."""
    own = as_rows(rows)
    if isinstance(own, LoaderRows):
        if not len(own):
            raise DataError("the site's loader yields no rows")
        return LoaderBatches(own, device, check)
    inputs, targets = own
    check(targets)
    return TensorBatches(inputs.to(device), _indices(targets.to(device)), batch_size)


def _indices(targets: Tensor) -> Tensor:
    """Class indices as torch's losses take them; numbers as they are."""
    return targets if targets.is_floating_point() else targets.long()


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
    autocast: bool = False,
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
        autocast: Run the model in bfloat16 where torch's autocast does; weights stay as they are.
    """
    set_training(model)
    parameters = list(model.parameters())
    forward = _autocast(model) if autocast else model
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
                loss = objective(forward(inputs), targets)
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


def clip(model: nn.Module, norm: float) -> None:
    """Shorten a model's gradient to a length, if it is longer."""
    nn.utils.clip_grad_norm_(model.parameters(), norm)


def _autocast(model: nn.Module) -> Callable[[Tensor], Tensor]:
    device = next(model.parameters()).device.type

    def forward(inputs: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            outputs: Tensor = model(inputs)
        return outputs.to(torch.get_default_dtype())  # losses need their digits

    return forward
