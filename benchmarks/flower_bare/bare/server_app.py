"""A server that asks every client once and counts the answers and their bytes, as they come."""

from __future__ import annotations

import logging
import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

_POLL_SECONDS = 0.1
_COUNTED = ("clients", "bytes")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask, pull until everybody has answered."""
    num_clients, num_bytes = (int(context.run_config[f"num-{name}"]) for name in _COUNTED)
    while len(nodes := list(grid.get_node_ids())) < num_clients:
        time.sleep(_POLL_SECONDS)
    asking = RecordDict({"words": ConfigRecord({"plan": "0" * 64})})
    asked = [Message(asking, dst_node_id=node, message_type="train") for node in nodes]
    waiting = set(grid.push_messages(asked))
    while waiting:
        replies = list(grid.pull_messages(waiting))
        waiting -= {reply.metadata.reply_to_message_id for reply in replies}
        if any(reply.has_error() for reply in replies):
            raise RuntimeError("a client failed")
        if any(_num_bytes(reply) != num_bytes for reply in replies):
            raise RuntimeError("a client did not send as many bytes as it was told to")
        if not replies:
            time.sleep(_POLL_SECONDS)
    logging.getLogger("flwr").info("%d answers", num_clients)


def _num_bytes(reply: Message) -> int:
    """Return the bytes of the arrays of an answer."""
    arrays = reply.content.array_records["arrays"].values()
    return sum(array.numpy().nbytes for array in arrays)
