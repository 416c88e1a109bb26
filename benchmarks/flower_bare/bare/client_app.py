"""A client that sends one array of bytes, different from the others'."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def upload(message: Message, context: Context) -> Message:
    """Answer with the array."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    array = np.frombuffer(rng.bytes(int(context.run_config["num-bytes"])), np.uint8)
    return Message(RecordDict({"arrays": ArrayRecord({"array": Array(array)})}), reply_to=message)
