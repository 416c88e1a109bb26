"""What happens while a method runs, told to whoever listens.

    with listening([callback]):        run does this
        with at("Basel"):              a federation, or the distillation: whose epochs follow
            tell(Event("epoch", ...))  the training loop

Callbacks are functions of an `Event`. Without one nothing is computed. `Bar` is the callback that
draws a bar where a person watches.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from predbayes.text import printable

STUDENT = "student"
"""Who trains when the student is distilled; sites go by their names."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Args:
        kind: ``epoch``: an epoch of training is done; ``site``: a site's upload is in; ``pool``:
            the pool is chosen; ``student``: the student is distilled.
        who: The site, or `STUDENT`; empty where the coordinator itself trains.
        round: Which round, from 0.
        epoch: Epochs done.
        num_epochs: Epochs in all.
        loss: Mean loss of the epoch, in nats per row.
        num_rows: The site's rows.
        detail: What was chosen, in words.
        gap: Mean KL from the pool to the student, in nats.
    """

    kind: Literal["epoch", "site", "pool", "student"]
    who: str = ""
    round: int = 0
    epoch: int = 0
    num_epochs: int = 0
    loss: float = math.nan
    num_rows: int = 0
    detail: str = ""
    gap: float = math.nan


Callback = Callable[[Event], object]

_callbacks: ContextVar[tuple[Callback, ...]] = ContextVar("callbacks", default=())
_place: ContextVar[tuple[str, int]] = ContextVar("place", default=("", 0))


def heard() -> bool:
    """Return whether anybody listens."""
    return bool(_callbacks.get())


def tell(event: Event) -> None:
    """Tell everybody who listens, with who trains in which round filled in."""
    who, number = _place.get()
    told = replace(event, who=event.who or who, round=event.round or number)
    for callback in _callbacks.get():
        callback(told)


@contextmanager
def at(who: str, number: int | None = None) -> Iterator[None]:
    """Name who trains inside the block, and in which round if another than around it."""
    token = _place.set((who, _place.get()[1] if number is None else number))
    try:
        yield
    finally:
        _place.reset(token)


@contextmanager
def listening(callbacks: Sequence[Callback], *, bar: bool | None = False) -> Iterator[None]:
    """Tell these callbacks inside the block what happens.

    Args:
        callbacks: Functions of an `Event`.
        bar: Whether to draw a bar on stderr; None is yes where stderr is a terminal.
    """
    with ExitStack() as stack:
        if sys.stderr.isatty() if bar is None else bar:
            callbacks = [*callbacks, stack.enter_context(Bar.drawn())]
        token = _callbacks.set((*_callbacks.get(), *callbacks))
        try:
            yield
        finally:
            _callbacks.reset(token)


@dataclass(slots=True)
class Bar:
    """A bar for whoever trains, and a line for everything that is done."""

    progress: Progress
    task: TaskID

    @classmethod
    @contextmanager
    def drawn(cls) -> Iterator[Bar]:
        """Draw on stderr inside the block."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield cls(progress, progress.add_task("", total=None))

    def __call__(self, event: Event) -> None:
        """Move on by an epoch, or say what is done."""
        if event.kind == "epoch":
            said = printable(f"{event.who or 'coordinator'}: loss {event.loss:.3f}")
            self.progress.update(
                self.task,
                description=said,
                completed=event.epoch,
                total=event.num_epochs,
            )
        else:
            self.progress.console.print(
                printable(_line(event), None), markup=False, highlight=False
            )


def _line(event: Event) -> str:
    if event.kind == "site":
        return f"{event.who}: {event.num_rows:,} rows are in"
    if event.kind == "pool":
        return f"pool: {event.detail}"
    return f"student: {event.gap:.4f} nats from the pool"
