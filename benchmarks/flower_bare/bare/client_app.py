"""A client that sends one array of half-precision numbers, different from the others'."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def upload(message: Message, context: Context) -> Message:
    """Answer with the array."""
    shape = (int(context.run_config["num-rows"]), int(context.run_config["num-classes"]))
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    array = rng.standard_normal(shape, dtype=np.float32).astype(np.float16)
    return Message(RecordDict({"arrays": ArrayRecord({"array": Array(array)})}), reply_to=message)
