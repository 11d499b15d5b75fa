"""The client app: ordinary, but for the list of mods."""

import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from joulegrad.flower import compress

from .model import OPERATOR, made, step

GATES = Path(os.environ["JOULEGRAD_TEST_FLEET"])  # files by which a test and its nodes wait for each other
OPERATORS = {name: compress(operator) for name, operator in OPERATOR.items()}


def compressed(message, context, call_next):
    """By the model's own operator; a hostile node then does what it wants."""
    reply = OPERATORS[str(context.run_config["model"])](message, context, call_next)
    if context.node_config.get("hostile") and reply.has_content():
        [array] = reply.content["arrays"].values()
        old, when = GATES / f"heard-{context.node_id}", int(message.content["config"]["server-round"])
        if when == 1:
            old.write_bytes(array.data)
        lies = (old.read_bytes(), array.data[:16] + os.urandom(99), array.data[:-5])  # replayed, noise, cut
        data = lies[when % 3]
        reply.content["arrays"] = ArrayRecord({"joulegrad": Array("uint8", (len(data),), array.stype, data)})
    return reply


app = ClientApp(mods=[compressed])


@app.train()
def train(message, context):
    """One step; a gate `hold-I-R` makes node I stay in round R until it is gone."""
    who, when = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
    (GATES / f"begun-{who}-{when}").touch()
    until = time.monotonic() + 120
    while (GATES / f"hold-{who}-{when}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    name = str(context.run_config["model"])
    model = made(name)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    step(name, model, who, when)
    metrics = MetricRecord({"num-examples": 10 + who, "loss": float(np.float32(1.5))})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
