"""Messages to nodes and their replies: a few threads that pull, and a queue between.

Over a network a pull waits for a reply that is still on its way, so each thread pulls its own
messages, and one that waits is replaced: it holds up nobody else. Replies that nobody has time for
wait where they are. Of a reply no more is pulled than a message of its kind may be answered with
(`flower.bounds`). What it answers is what was asked for: a reply's own word for it is its node's.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from predbayes.errors import UploadError
from predbayes.optional import require
from predbayes_flower.bounds import Bounds, pull
from predbayes_flower.events import Send
from predbayes_flower.round import RoundSettings

_log = logging.getLogger(__name__)

MOST_READY = 16
"""Replies that are here and not taken yet."""

_GATHER_SECONDS = 0.05
_LEAST_PAUSE_SECONDS = 0.02  # of a thread that found no reply


@dataclass(frozen=True, slots=True)
class Post:
    """Sends messages over a grid and hands out replies, in the order in which they come."""

    grid: Any
    settings: RoundSettings
    bounds: Bounds
    _sent: dict[str, Send] = field(default_factory=dict)  # by message, without a reply yet
    _wanted: queue.Queue[str] = field(default_factory=queue.Queue)
    _ready: queue.Queue[tuple[str, Any]] = field(default_factory=lambda: queue.Queue(MOST_READY))
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Pull replies inside the block; the threads end with it."""
        for _ in range(self.settings.num_threads):
            self._start()
        try:
            yield
        finally:
            self._stop.set()

    def send(self, messages: Sequence[tuple[Send, Any]]) -> list[Send]:
        """Send messages with their contents; return those that could not be sent."""
        if not messages:
            return []
        message = require("flwr.app", "flower").Message
        ttl = self.settings.deadline_seconds + 3600  # round trip; a long training must not expire
        made = [
            message(content, dst_node_id=send.node, message_type=send.kind, ttl=ttl)
            for send, content in messages
        ]
        failed = []
        for (send, _), pushed in zip(messages, self.grid.push_messages(made), strict=True):
            if pushed:
                self._sent[pushed] = send
                self._wanted.put(pushed)
            else:
                failed.append(send)
        return failed

    def replies(self, seconds: float) -> Iterator[tuple[Send, Any]]:
        """Yield the replies that come within a moment of the first, which is waited for.

        In the place of a reply that was refused before all of it was here stands the reason.
        """
        with suppress(queue.Empty):
            message, reply = self._ready.get(timeout=seconds)
            # Handled together: each time the study's lock is taken and its ledger read.
            end = time.monotonic() + _GATHER_SECONDS
            while True:
                sent = self._sent.pop(message, None)
                if sent is not None:
                    yield sent, reply
                message, reply = self._ready.get(timeout=max(0.0, end - time.monotonic()))

    def _start(self) -> None:
        threading.Thread(target=self._pull, daemon=True).start()

    def _pull(self) -> None:
        replaced = threading.Event()

        def replace() -> None:
            replaced.set()
            self._start()

        while not self._stop.is_set() and not replaced.is_set():
            wanted = _several(self._wanted, self.settings.num_per_pull)
            replies = self._pull_once(wanted, replace) if wanted else {}
            for answered in replies.items():
                self._hand_over(answered)
            for message in wanted:
                if message not in replies:
                    self._wanted.put(message)
            if not replies:
                # All messages are looked at once in a while, however many there are; but in a
                # simulation whoever looks takes the time of those who work.
                pause = self.settings.poll_seconds / (1 + self._wanted.qsize())
                self._stop.wait(max(pause, _LEAST_PAUSE_SECONDS))

    def _pull_once(self, wanted: list[str], waits: Callable[[], None]) -> dict[str, Any]:
        """Return the replies that are there, by the messages that they answer."""
        kinds = {self._sent[message].kind for message in wanted}
        most = max(self.bounds.most_bytes(kind) for kind in kinds)
        try:
            replies = pull(self.grid, wanted, most, waits)
        except UploadError as refusal:
            return dict.fromkeys(wanted, refusal)
        except Exception as error:
            # A thread that ended would pull no more. Whether there still is a run to go on with
            # is seen where nodes are looked for, in the thread that can end it.
            _log.warning("a reply could not be pulled: %s", type(error).__name__)
            return {}
        if len(wanted) == 1:
            return dict(zip(wanted, replies, strict=False))
        told = {reply.metadata.reply_to_message_id: reply for reply in replies}
        return {message: told[message] for message in wanted if message in told}

    def _hand_over(self, answered: tuple[str, Any]) -> None:
        """Give a reply to the thread that handles them, when it has time."""
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._ready.put(answered, timeout=0.5)
                return


def _several(items: queue.Queue[str], most: int) -> list[str]:
    """Return up to so many of a queue; the first is waited for a moment."""
    taken: list[str] = []
    with suppress(queue.Empty):
        taken.append(items.get(timeout=0.5))
        while len(taken) < most:
            taken.append(items.get_nowait())
    return taken
