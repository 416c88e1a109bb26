"""A Flower grid in this process: messages go to a ClientApp at once, replies wait to be pulled.

For speed of unit tests; beside it stand tests with real SuperLinks and SuperNodes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity


class DoubleGrid:
    """Nodes by number, each with a ClientApp and a node configuration of its own."""

    def __init__(self, app: Any, configs: dict[int, dict[str, Any]]) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app = app
        self.configs = configs
        self.online = set(configs)
        self.replies: dict[str, Message] = {}
        self.asked: list[tuple[int, str]] = []  # node and kind of every message
        self.faults: dict[tuple[int, str], list[int | None]] = {}  # codes of the next replies
        self.on_push: Callable[[int, str], None] | None = None
        self.altered: dict[tuple[int, str], Callable[[Any], None]] = {}  # what a reply holds
        self.claims: dict[int, str] = {}  # which message a node says that it answers
        self._lock = threading.Lock()

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = []
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            number = f"{len(self.asked)}"
            message.metadata.__dict__["_message_id"] = number
            self.asked.append((node, kind))
            if self.on_push is not None:
                self.on_push(node, kind)
            reply = self._reply(node, kind, message)
            if reply is not None:
                claimed = self.claims.get(node, number)
                reply.metadata.__dict__["_reply_to_message_id"] = claimed
                with self._lock:
                    self.replies[number] = reply
            pushed.append(number)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        with self._lock:
            return [self.replies.pop(i) for i in message_ids if i in self.replies]

    def _reply(self, node: int, kind: str, message: Message) -> Message | None:
        codes = self.faults.get((node, kind), [])
        if codes:
            code = codes.pop(0)
            return None if code is None else Message(Error(code, "fault"), reply_to=message)
        context = Context(
            run_id=1,
            node_id=node,
            node_config=self.configs[node],
            state=RecordDict(),
            run_config={},
        )
        reply = self.app(message, context)
        if (node, kind) in self.altered:
            self.altered[node, kind](reply.content)
        return reply
