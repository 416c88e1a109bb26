"""Messages to nodes and their replies: a few threads that pull, and a queue between.

Over a network a pull waits for a reply that is still on its way, so each thread pulls its own
messages, and one that waits is replaced: it holds up nobody else. Replies that nobody has time for
wait where they are. Of a reply no more is pulled than a message of its kind may be answered with
(`Bounds`). What it answers is what was asked for: a reply's own word for it is its node's.

A reply lies at the SuperLink as objects: pieces of arrays, and what says how they belong together.
Their sizes are not told before they are pulled. So they are counted one by one as they come, and
the one that is too much ends it. What they will be in memory is counted as well before it is made:
an array may name one piece many times.

Flower's grid has no place for this. But over a network it pulls each object through one client of
its own, and `pull` puts a counting one before it. In a simulation replies are in this process
already, and `wire.read_upload` counts them.
"""

from __future__ import annotations

import copy
import json
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
from predbayes_flower import HELLO, UPLOAD
from predbayes_flower.events import Send
from predbayes_flower.round import RoundSettings

_log = logging.getLogger(__name__)

MOST_READY = 16
"""Replies that are here and not taken yet."""

_GATHER_SECONDS = 0.05
_LEAST_PAUSE_SECONDS = 0.02  # of a thread that found no reply

SMALL_BYTES = 1 << 20
"""A file of at most this size comes with a hello."""

ROOM_BYTES = 1_000_000
"""For all that is not a piece of an array: names, shapes, metadata, words."""

_ID_BYTES = 64  # what an object costs beside its content


@dataclass(frozen=True, slots=True)
class MessagePump:
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


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of an array's bytes may come with each kind of reply.

    Args:
        upload: The largest upload that the plan allows.
    """

    upload: int

    def most_bytes(self, kind: str) -> int:
        """Return how many bytes the arrays of a reply may have."""
        if kind == UPLOAD:
            return self.upload
        return min(self.upload, SMALL_BYTES + ROOM_BYTES) if kind == HELLO else 0


def over_network(grid: Any) -> bool:
    """Return whether a grid's messages travel; those of a simulation stay in its process."""
    return hasattr(type(grid), "_runtime_client")


def pull(
    grid: Any, messages: list[str], most_bytes: int, waits: Callable[[], None] = lambda: None
) -> list[Any]:
    """Pull the replies to messages that are there; refuse one whose arrays have more bytes.

    Args:
        grid: Flower's.
        messages: Those that may be answered.
        most_bytes: How many bytes the arrays of a reply may have.
        waits: Is called when a reply turns out not to be there as a whole, which may last.
    """
    if not over_network(grid):
        return list(grid.pull_messages(messages))
    own = copy.copy(grid)
    counting = own._client = _Counting(grid._runtime_client, most_bytes, waits)
    try:
        return list(own.pull_messages(messages))
    except UploadError:
        counting.forget()
        raise


@dataclass(slots=True)
class _Counting:
    """Flower's client, which counts what it pulls; its threads pull a few objects at once."""

    client: Any
    most_bytes: int
    waits: Callable[[], None]
    _waits: bool = False
    _room: int = ROOM_BYTES
    _pulled: int = 0
    _sizes: dict[str, int] = field(default_factory=dict)  # of pieces
    _arrays: list[list[str]] = field(default_factory=list)  # the pieces of each array, in order
    _messages: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def PullMessages(self, request: Any) -> Any:
        """Refuse a reply of too many objects before one of them is pulled."""
        answer = self.client.PullMessages(request)
        self._messages.extend(reply.metadata.message_id for reply in answer.messages_list)
        self._charge(sum(_ID_BYTES for tree in answer.message_object_trees for _ in _nodes(tree)))
        return answer

    def PullObject(self, request: Any) -> Any:
        """Refuse the object with which a reply is too large."""
        answer = self.client.PullObject(request)
        with self._lock:
            self._count(request.object_id, answer.object_content)
            if answer.object_found and not answer.object_available and not self._waits:
                self._waits = True
                self.waits()
        return answer

    def ConfirmMessageReceived(self, request: Any) -> Any:
        """Refuse a reply that would unfold to too much: nothing of it is put together yet."""
        if sum(self._sizes.get(p, 0) for pieces in self._arrays for p in pieces) > self.most_bytes:
            raise _too_large()
        return self.client.ConfirmMessageReceived(request)

    def forget(self) -> None:
        """Let the SuperLink delete what it has of replies that were refused."""
        confirm = require("flwr.proto.message_pb2", "flower").ConfirmMessageReceivedRequest
        for message in self._messages:
            with suppress(Exception):  # then it deletes them when the run ends
                self.client.ConfirmMessageReceived(confirm(message_object_id=message))

    def _count(self, object_id: str, content: bytes) -> None:
        if content.startswith(b"ArrayChunk "):
            self._sizes[object_id] = len(content)
            self._pulled += len(content)
            if self._pulled > self.most_bytes:
                raise _too_large()
            return
        self._charge(len(content))
        if content.startswith(b"Array "):
            self._arrays.append(_pieces(content))

    def _charge(self, num_bytes: int) -> None:
        self._room -= num_bytes
        if self._room < 0:
            raise _too_large()


def _nodes(tree: Any) -> Iterator[Any]:
    yield tree
    for child in tree.children:
        yield from _nodes(child)


def _pieces(content: bytes) -> list[str]:
    """Return the objects that an array is put together of, from its own description."""
    head, _, body = content.partition(b"\0")
    try:
        names = head.decode().split(" ")[1].split(",")
        return [names[int(number)] for number in json.loads(body)["arraychunk_ids"]]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise UploadError("its answer is no upload") from error


def _too_large() -> UploadError:
    return UploadError("its answer is larger than any upload of this plan")
