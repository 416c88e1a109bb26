"""Any method over Flower: a `Federation` whose sites are nodes.

Each round sends the method's state to the nodes as arrays, the first one also the reference inputs,
and every node that takes part learns and answers with its upload. `flower.driver` asks, and asks
again where an answer was lost; a node that has learnt already answers from its disk
(`flower.method_client`). A round ends when all who are there have answered, when the quorum has
been in for the grace period, or at the deadline.

An upload is checked and put on the disk as soon as it is here. They are handed over when the round
has ended, one at a time, in the order of the sites' names: sums of floating-point numbers depend on
their order, and who answers first is chance. So memory does not grow with the sites, and the result
has the bits of `InProcess` over the same sites in that order.
"""

from __future__ import annotations

import math
import secrets
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from predbayes.errors import PredbayesError, TrainingError, UploadError
from predbayes.exchange.federation import LeftOut, Task
from predbayes.exchange.upload import Upload
from predbayes.text import printable
from predbayes_flower import HELLO, events
from predbayes_flower.driver import Decision, Driver
from predbayes_flower.pump import over_network
from predbayes_flower.round import SIMULATED, RoundSettings, RoundState
from predbayes_flower.server import unpack_upload
from predbayes_flower.task import Question
from predbayes_flower.wire import read_words, words

_MOST_BYTES = 2_000_000_000


@dataclass(slots=True)
class UploadSpool:
    """Takes the uploads of one round, and keeps them on the disk.

    Args:
        asked: What nodes are asked.
        task: The same, as the method knows it.
        scratch: A folder for the uploads.
        most_bytes: Of the arrays of an upload.
        holders: Nodes that have the reference inputs.
    """

    asked: Question
    task: Task
    scratch: Path
    most_bytes: int
    holders: Collection[int] = ()
    _files: dict[str, Path] = field(default_factory=dict)  # by site
    _decided: list[Decision] = field(default_factory=list)
    _nodes: set[int] = field(default_factory=set)  # that were asked in this round
    _records: dict[bool, Any] = field(default_factory=dict)  # with the reference inputs, without

    def question(self, send: events.Send, /) -> Any:
        """Return the task; a hello only asks who is there.

        A node that has the reference inputs is not sent them, unless it is asked a second time:
        then its disk may be another.
        """
        if send.kind == HELLO:
            return words(run=self.asked.run)
        needs = send.node in self._nodes or send.node not in self.holders
        self._nodes.add(send.node)
        if needs not in self._records:
            self._records[needs] = self.asked.record(with_inputs=needs)
        return self._records[needs]

    def keep(self, take: events.Take, content: Any) -> None:
        """Write an upload to the disk, if it answers the question and the method can take it."""
        told = read_words(content)
        if (told.get("run"), told.get("task")) != (self.asked.run, self.asked.digest):
            raise UploadError("it answers another question: of another run, round or method")
        upload, _ = unpack_upload(content, self.most_bytes)
        if upload.info.site != take.site:
            raise UploadError("its upload is in the name of another site")
        method: Any = self.task.method
        try:  # what does not fit would end the run when it is added to the others
            method.lift(self.task.state, upload, self.task.inputs)
        except PredbayesError:
            raise
        except Exception as error:
            why = printable(f"{type(error).__name__}: {error}")
            raise UploadError(f"it does not fit the method: {why}") from error
        path = self.scratch / f"{len(self._files)}.safetensors"
        upload.save(path)
        self._files[take.site] = path
        self._decided.append((take, None))

    def settle(self, _wait: bool, /) -> Iterable[Decision]:
        """Say what is in: all that was kept."""
        decided, self._decided = self._decided, []
        return decided

    def already(self) -> frozenset[str]:
        """Return the sites that are in."""
        return frozenset(self._files)

    def note(self, state: RoundState) -> None:
        """Write nothing: the log says how the round stands."""

    def uploads(self) -> Iterator[Upload]:
        """Yield what came, in the order of the sites' names."""
        for site in sorted(self._files):
            yield Upload.load(self._files[site])


@dataclass(slots=True)
class FlowerFederation:
    """Sites that are nodes of a Flower federation, for `pb.run` in a ServerApp.

    Their ClientApp is `client_app(method, rows)`, with the same method.

    Args:
        grid: Flower's.
        quorum: Sites with which a round is worth ending; with fewer it fails.
        deadline: Seconds after which a round ends at the latest.
        grace: Seconds for which the others are waited for once the quorum is in.
        sites: The names of those that may take part; if empty, every node that is there.
        most_bytes: Of the arrays of one upload; a larger one is refused.
        pace: How often to look; None: as suits a simulation, or a network.
    """

    grid: Any
    quorum: int = 2
    deadline: float = 3600.0
    grace: float = math.inf
    sites: Collection[str] = ()
    most_bytes: int = _MOST_BYTES
    pace: RoundSettings | None = None
    _run: str = field(default_factory=lambda: secrets.token_hex(16))
    _known: dict[int, str] = field(default_factory=dict)  # sites of nodes that have answered
    _reference: str = ""  # digest of the reference inputs that they were asked with

    def __post_init__(self) -> None:
        if self.quorum < 1 or (self.sites and self.quorum > len(self.sites)):
            most = f" and at most {len(self.sites)}, as many as sites" if self.sites else ""
            raise TrainingError(f"quorum must be at least 1{most}, not {self.quorum}")
        if not (0 < self.deadline < math.inf and self.grace >= 0):
            raise TrainingError("deadline and grace are seconds: a positive number, and 0 or more")

    def collect(self, task: Task) -> Iterator[Upload | LeftOut]:
        """Ask all sites, and yield what they sent when the round has ended, and who is left out."""
        question = Question.of(task, self._run)
        with tempfile.TemporaryDirectory() as scratch:
            holders = self._known if question.reference == self._reference else ()
            spool = UploadSpool(question, task, Path(scratch), self.most_bytes, holders)
            state = Driver(self.grid, spool, self._begun()).run()
            self._known, self._reference = state.members(), question.reference
            if state.num_in < self.quorum:
                raise TrainingError(_too_few(task.round, state, self.quorum))
            yield from spool.uploads()
        yield from (LeftOut(s, how) for s, how in state.standing().items() if how != "in")

    def _begun(self) -> RoundState:
        usual = RoundSettings() if over_network(self.grid) else SIMULATED
        settings = replace(
            self.pace or usual,
            deadline_seconds=self.deadline,
            grace_seconds=self.grace,
            ack_seconds=0.0,  # nodes need not stay for the next round: they are asked anew
        )
        return RoundState(
            frozenset(self.sites),
            settings,
            time.monotonic(),
            quorum=self.quorum,
            open=not self.sites,
            known=self._known,
        )


def _too_few(number: int, state: RoundState, quorum: int) -> str:
    """Say how a round ended without its quorum."""
    others = [f"{site} ({how})" for site, how in state.standing().items() if how != "in"]
    told = f"; not in: {', '.join(others)}" if others else ""
    return f"round {number} ended with {state.num_in} of {quorum} sites of the quorum{told}"
