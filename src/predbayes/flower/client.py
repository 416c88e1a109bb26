"""A ClientApp: which message is answered by what of `predbayes.flower.node`.

Flower loads an app also in processes that answer no message, so this imports little: torch and the
rest come with the first message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from predbayes.flower import ACK, HELLO, UPLOAD
from predbayes.optional import require

if TYPE_CHECKING:
    from predbayes.flower.node import Node


def make_client_app(node_of: Callable[[Any], Node] | None = None) -> Any:
    """A ClientApp for the sites that ``node_of`` makes of contexts; `Node.of_context`."""
    app = require("flwr.clientapp", "flower").ClientApp()

    @app.query(HELLO.partition(".")[2])  # type: ignore[untyped-decorator]
    def hello(message: Any, context: Any) -> Any:
        from predbayes.flower.node import answer_hello

        return _reply(message, lambda: answer_hello(_node(context), message))

    @app.train(UPLOAD.partition(".")[2])  # type: ignore[untyped-decorator]
    def upload(message: Any, context: Any) -> Any:
        from predbayes.flower.node import answer_upload

        return _reply(message, lambda: answer_upload(_node(context), message))

    @app.query(ACK.partition(".")[2])  # type: ignore[untyped-decorator]
    def ack(message: Any, _context: Any) -> Any:
        from predbayes.flower.node import answer_ack

        return _reply(message, lambda: answer_ack(message))

    def _node(context: Any) -> Node:
        if node_of is not None:
            return node_of(context)
        from predbayes.flower.node import Node

        return Node.of_context(context)

    return app


def _reply(message: Any, answer: Callable[[], Any]) -> Any:
    from predbayes.flower.node import guarded

    return require("flwr.app", "flower").Message(guarded(answer), reply_to=message)
