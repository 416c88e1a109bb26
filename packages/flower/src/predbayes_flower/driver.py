"""A round over a grid, whatever it is for: ask nodes, ask again, and hand over what they send.

Flower gives one reply to a message, forgets the replies of nodes that left, and ends the run when
its own server restarts. So a round owns its reliability: `flower.round` decides what to do next,
`flower.pump` sends messages and pulls replies, and the `Driver` stands between them and a
`RoundHandler`, which knows what is asked and takes what comes: a study (`flower.server`), or a
method's federation (`flower.federation`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from predbayes.errors import PredbayesError, UploadError
from predbayes.exchange.strict import require_site_name
from predbayes.text import printable
from predbayes_flower import ACK, HELLO, events
from predbayes_flower.pump import Bounds, MessagePump
from predbayes_flower.round import RoundSettings, RoundState
from predbayes_flower.wire import LACKS_INPUTS, read_words, words

_log = logging.getLogger(__name__)

_CLIENT_RAISED = 2  # Flower's error code; most others mean that the message or its node was lost
_NOT_TRUSTED = 7

Decision = tuple[events.Take, Exception | None]
"""An upload that was kept, and why it is refused; None if it is in."""


class RoundHandler(Protocol):
    """What a round is for."""

    @property
    def most_bytes(self) -> int:
        """Of the arrays of an upload."""

    def question(self, send: events.Send, /) -> Any:
        """Return the record that a node is sent."""

    def keep(self, take: events.Take, content: Any) -> None:
        """Keep what a node sent for `settle`; raise if it is no upload of the site's."""

    def settle(self, wait: bool, /) -> Iterable[Decision]:
        """Say what became of what was kept; wait for what cannot be said yet, or keep it."""

    def already(self) -> frozenset[str]:
        """Return the sites that are in, however they came."""

    def note(self, state: RoundState) -> None:
        """Write down how the round stands."""


@dataclass(slots=True)
class Driver:
    """Carries a round out.

    Args:
        grid: Flower's.
        handler: What the round is for.
        state: Decides what to do next.
    """

    grid: Any
    handler: RoundHandler
    state: RoundState
    pump: MessagePump = field(init=False)
    _lacked: set[int] = field(default_factory=set)  # nodes that had lost the reference inputs

    def __post_init__(self) -> None:
        self.pump = MessagePump(self.grid, self.settings, Bounds(self.handler.most_bytes))

    @property
    def settings(self) -> RoundSettings:
        """How long to wait, and how often to look."""
        return self.state.settings

    def run(self) -> RoundState:
        """Ask, take, ask again; return how the round ended."""
        self._notice()
        self.handler.note(self.state)
        with self.pump.open():
            while True:
                self.handle(events.Time(time.monotonic()))
                if self.state.ended:
                    break
                wait = min(self.state.left, self.settings.poll_seconds)
                for sent, reply in self.pump.replies(wait):
                    self.handle(self.event(sent, reply), reply)
                self.settle()
            self.settle(wait=True)
            self._notice()
            self.report()
            self._acknowledge()
        return self.state

    def handle(self, event: events.Event, reply: Any = None) -> None:
        """Tell the state of an event, and do what follows."""
        actions = self.state.on(event)
        self._send([action for action in actions if isinstance(action, events.Send)])
        for action in actions:
            match action:
                case events.Take():
                    self._keep(action, reply)
                case events.Warn(text):
                    _log.warning("%s", text)
                case "look":
                    self.handle(events.Nodes(frozenset(self.grid.get_node_ids())))
                case "report":
                    self._notice()
                    self.report()

    def event(self, sent: events.Send, reply: Any) -> events.Event:
        """Return what a reply says."""
        if isinstance(reply, UploadError):
            _log.warning("refused: %s: %s", sent.site or f"node {sent.node}", reply)
            if sent.kind == HELLO:
                return events.Introduced(sent.node)
            return events.Answered(sent.node, "refused")
        if sent.kind == HELLO:
            return self._introduced(sent.node, reply)
        if not reply.has_error() and read_words(reply.content).get("status") == LACKS_INPUTS:
            return self._lacks(sent)
        return events.Answered(sent.node, _outcome(sent.site, reply))

    def settle(self, *, wait: bool = False) -> None:
        """Let the handler say what became of what it has kept."""
        for take, refusal in self.handler.settle(wait):
            self._decide(take, refusal)

    def report(self) -> None:
        """Say how the round stands."""
        by_state: dict[str, list[str]] = {}
        for site, state in self.state.standing().items():
            by_state.setdefault(state, []).append(site)
        told = "; ".join(f"{state}: {_names(names)}" for state, names in by_state.items())
        _log.info("%s; %.0f s to the deadline", told or "nobody is there", self.state.left)
        self.handler.note(self.state)

    def _send(self, sends: list[events.Send]) -> None:
        states = self.state.sites
        contents = [
            words(state=states[send.site]) if send.kind == ACK else self.handler.question(send)
            for send in sends
        ]
        for send in self.pump.send(list(zip(sends, contents, strict=True))):
            self.handle(events.Closed(send.node, send.kind))

    def _introduced(self, node: int, reply: Any) -> events.Introduced:
        if reply.has_error():
            _log.warning("node %s did not say who it is: %s", node, _error(reply))
            return events.Introduced(node)
        told = read_words(reply.content)
        site = str(told.get("site", ""))
        if not self._may_be(site):
            _log.warning("%s", stranger(node, site))
            return events.Introduced(node)
        brings = told.get("status") == "upload"
        return events.Introduced(node, site, told.get("approved") is True, brings)

    def _lacks(self, sent: events.Send) -> events.Answered:
        """Ask a node anew that has lost its inputs; what it is asked next has them."""
        again = sent.node in self._lacked
        self._lacked.add(sent.node)
        return events.Answered(sent.node, "failed" if again else "lost")

    def _may_be(self, site: str) -> bool:
        """Whether a node may say that it is this site."""
        if not self.state.open:
            return site in self.state.admitted
        try:
            return bool(require_site_name(site))
        except UploadError:
            return False

    def _keep(self, take: events.Take, reply: Any) -> None:
        try:
            self.handler.keep(take, reply.content)
        except OSError:
            raise  # our disk, not the site's doing
        except Exception as error:
            # Whatever a node may send, it ends neither the round nor the others' part in it.
            known = isinstance(error, PredbayesError)
            self._decide(take, error if known else UploadError("its answer is no upload"))

    def _decide(self, take: events.Take, refusal: Exception | None) -> None:
        if refusal is None:
            _log.info("%s: in", take.site)
        else:
            _log.warning("refused: %s: %s", take.site, refusal)
        self.handle(events.Decided(take.node, take.site, accepted=refusal is None))

    def _notice(self) -> None:
        """Note which sites are in, also those that came another way meanwhile."""
        self.handle(events.InStudy(self.handler.already()))

    def _acknowledge(self) -> None:
        """Tell nodes what became of their upload, and give them a moment to note it."""
        self.handle("closing")
        end = time.monotonic() + self.settings.ack_seconds
        while self.state.untold and (left := end - time.monotonic()) > 0:
            for sent, _ in self.pump.replies(left):
                if sent.kind == ACK:
                    self.handle(events.Closed(sent.node, ACK))


def _outcome(site: str, reply: Any) -> events.Outcome:
    """Return what a site answered when it was asked for its upload."""
    if reply.has_error():
        _log.warning("%s: %s", site, _error(reply))
        return "failed" if reply.error.code == _CLIENT_RAISED else "lost"
    told = read_words(reply.content)
    status = told.get("status")
    if status == "upload":
        return "upload"
    _log.info("%s: %s", site, printable(str(status)))
    return status if status in ("not approved", "awaiting release") else "failed"


def stranger(node: int, site: str) -> str:
    """Say of a node that is nobody's why it has no part.

    Examples:
        >>> stranger(7, "Bern")
        'node 7 is of no admitted site: Bern'
        >>> stranger(7, "")
        'node 7 names no site; its own log says why'
    """
    if site:
        return f"node {node} is of no admitted site: {printable(site, 60)}"
    return f"node {node} names no site; its own log says why"


def _error(reply: Any) -> str:
    code = int(reply.error.code)
    return "it does not trust this app" if code == _NOT_TRUSTED else f"error {code}"


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 5 else f"{len(names)} sites"
