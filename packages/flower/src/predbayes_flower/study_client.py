"""The ClientApp of a site: which message of a study is answered by what.

`predbayes_flower.study_client:app` reads the node's configuration, the site's own:

    site      path of its site.toml, with the key and approvals beside it
    data      path of its table
    kit       path of the coordinator's kit
    out       a folder for the upload and what stays at home
    learner   its choice, where the plan leaves it open
    device    for a network

Flower loads an app also in processes that answer no message, and at a node each message starts a
process, so this imports little: what trains comes with the first message that asks for it. What
goes wrong is written to the node's log; the server learns only that something did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predbayes.optional import require
from predbayes.text import printable
from predbayes_flower import ACK, HELLO, UPLOAD
from predbayes_flower.outbox import Outbox, greeting, sending
from predbayes_flower.simulation import node_config
from predbayes_flower.wire import read_words, replying, upload_record, words

if TYPE_CHECKING:
    from predbayes_flower.node import Node

_log = logging.getLogger(__name__)


def make_client_app(node_of: Callable[[Any], Node] | None = None) -> Any:
    """Make a ClientApp.

    Args:
        node_of: Makes the site of a context, for sites that read their rows in a way of their own;
            `Node.of_context`.
    """
    app = require("flwr.clientapp", "flower").ClientApp()

    @app.query(HELLO.partition(".")[2])  # type: ignore[untyped-decorator]
    @replying
    def hello(message: Any, context: Any) -> Any:
        outbox = Outbox(node_config(context.node_config, context.run_config))
        return greeting(outbox, _plan(message), may_bring=node_of is None)

    @app.train(UPLOAD.partition(".")[2])  # type: ignore[untyped-decorator]
    @replying
    def upload(message: Any, context: Any) -> Any:
        from predbayes_flower.node import Node

        node = (node_of or Node.of_context)(context)
        answer = node.answer(_plan(message))
        if not isinstance(answer, Path):
            return words(status=answer)
        return upload_record(answer, sending(node.training.approvals))

    @app.query(ACK.partition(".")[2])  # type: ignore[untyped-decorator]
    @replying
    def ack(message: Any, _context: Any) -> Any:
        told = str(read_words(message.content).get("state", ""))
        _log.info("the coordinator says: %s", printable(told))
        return words(state="noted")

    return app


def _plan(message: Any) -> str:
    return str(read_words(message.content).get("plan", ""))


app = make_client_app()
