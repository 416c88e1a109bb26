"""What happens while a method runs, told to whoever listens.

    with listening([callback]):        run does this
        tell_step("score the model")   a study's finish: what begins
        with at("Basel"):              a federation, or the distillation: whose epochs follow
            tell(Event("epoch", ...))  the training loop

Callbacks are functions of an `Event`. Without one, and without a log at level INFO, nothing is
computed. `Bar` is the callback that draws a bar where a person watches, `Lines` the one that writes
lines where there is no terminal. The log has a line for
everything that is done, and where that takes long one every ten seconds:

    logging.basicConfig(); logging.getLogger("predbayes").setLevel("INFO")
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from predbayes.text import printable

if TYPE_CHECKING:  # commands that draw no bar start without it
    from rich.progress import Progress, TaskID

_log = logging.getLogger(__name__)
_LOG_SECONDS = 10.0  # between two lines on a training that goes on
_LINE_SECONDS = 3.0  # without a line after which one on a training is written, where it is watched

STUDENT = "student"
"""Who trains when the student is distilled; sites go by their names."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Args:
        kind: ``epoch``: an epoch of training is done; ``member``: an estimator of an ensemble is
            fitted; ``column``: a column of a table is read; ``site``: a site's upload is in;
            ``left out``: the round goes on without a site; ``pool``: the pool is chosen;
            ``student``: the student is distilled; ``step``: a part of a study's finish begins.
        who: The site, or `STUDENT`; empty where the coordinator itself trains.
        round: Which round, from 0.
        epoch: Epochs, members or columns done.
        num_epochs: Epochs, members or columns in all.
        loss: Mean loss of the epoch, in nats per row.
        num_rows: The site's rows.
        detail: What was chosen, what is done to columns, which step begins, or why a site is left
            out, in words.
        gap: Mean KL from the pool to the student, in nats.
    """

    kind: Literal["epoch", "member", "column", "site", "left out", "pool", "student", "step"]
    who: str = ""
    round: int = 0
    epoch: int = 0
    num_epochs: int = 0
    loss: float = math.nan
    num_rows: int = 0
    detail: str = ""
    gap: float = math.nan


Callback = Callable[[Event], object]
T = TypeVar("T")

_callbacks: ContextVar[tuple[Callback, ...]] = ContextVar("callbacks", default=())
_place: ContextVar[tuple[str, int]] = ContextVar("place", default=("", 0))
_logged: ContextVar[float] = ContextVar("logged", default=-math.inf)  # when, of who trains


def heard() -> bool:
    """Return whether anybody listens, or reads the log."""
    return bool(_callbacks.get()) or _log.isEnabledFor(logging.INFO)


def tell(event: Event) -> None:
    """Tell everybody who listens, and the log, with who trains in which round filled in."""
    who, number = _place.get()
    told = replace(event, who=event.who or who, round=event.round or number)
    _write(told)
    for callback in _callbacks.get():
        callback(told)


def each_column(columns: Collection[T], doing: str) -> Iterator[T]:
    """Yield the columns of a table, and tell after each how many are done.

    Args:
        columns: Of one table.
        doing: What is done to them, such as ``reading``.
    """
    for number, column in enumerate(columns, start=1):
        yield column
        tell(Event("column", epoch=number, num_epochs=len(columns), detail=doing))


def tell_step(what: str) -> None:
    """Tell which part of a study's finish begins."""
    tell(Event("step", detail=what))


@contextmanager
def at(who: str, number: int | None = None) -> Iterator[None]:
    """Name who trains inside the block, and in which round if another than around it."""
    token = _place.set((who, _place.get()[1] if number is None else number))
    logged = _logged.set(time.monotonic())
    try:
        yield
    finally:
        _place.reset(token)
        _logged.reset(logged)


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
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeRemainingColumn(),
        )
        # What a command prints goes where it was sent, such as to a file, and not to the bar.
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
            yield cls(progress, progress.add_task("", total=None))

    def __call__(self, event: Event) -> None:
        """Move on by an epoch, a member or a column, or say what is done."""
        if event.kind in _GOING_ON:
            loss = "" if math.isnan(event.loss) else f": loss {event.loss:.3f}"
            whose = event.who or event.detail or "coordinator"
            self.progress.update(
                self.task,
                description=printable(f"{whose}{loss}"),
                completed=event.epoch,
                total=event.num_epochs,
            )
        else:
            self.progress.console.print(
                printable(_line(event), None), markup=False, highlight=False
            )


_GOING_ON = ("epoch", "member", "column")


@dataclass(slots=True)
class Lines:
    """A line for everything that is done, and of a training that goes on one every few seconds.

    For whoever watches without a terminal that can draw a bar, such as the log of a job.

    Args:
        write: Takes a line.
        clock: Seconds of a clock; another one in tests.
    """

    write: Callable[[str], object]
    clock: Callable[[], float] = time.monotonic
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin to count the seconds without a line."""
        self._last = self.clock()

    def __call__(self, event: Event) -> None:
        """Write a line, unless it is one of many."""
        now = self.clock()
        if event.kind in _GOING_ON and now < self._last + _LINE_SECONDS:
            return
        self._last = now
        self.write(printable(_line(event), None))


def _write(event: Event) -> None:
    """Write a line to the log, unless it is one of many of a training that goes on."""
    if event.kind in _GOING_ON:
        now = time.monotonic()
        if now < _logged.get() + _LOG_SECONDS:
            return
        _logged.set(now)
    level = logging.WARNING if event.kind == "left out" else logging.INFO
    _log.log(level, "%s", printable(_line(event), None))


def _line(event: Event) -> str:
    if event.kind in _GOING_ON:
        loss = "" if math.isnan(event.loss) else f", loss {event.loss:.3f}"
        whose = f"{event.who or event.detail}: " if event.who or event.detail else ""
        return f"{whose}{event.kind} {event.epoch} of {event.num_epochs}{loss}"
    if event.kind == "site":
        return f"{event.who}: {event.num_rows:,} rows are in"
    if event.kind == "left out":
        return f"{event.who} is left out of round {event.round + 1}: {event.detail}"
    if event.kind == "pool":
        return f"pool: {event.detail}"
    if event.kind == "step":
        return event.detail
    return f"student: {event.gap:.4f} nats from the pool"
