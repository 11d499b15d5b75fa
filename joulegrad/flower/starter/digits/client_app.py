"""The client app. joulegrad is in one line: the list of mods."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits import task
from joulegrad import CWMP, ErrorFeedback, LayerType
from joulegrad.flower import compress

app = ClientApp(mods=[compress(ErrorFeedback(CWMP(density=0.02, cost=LayerType())))])


def _mine(context: Context) -> tuple[int, int]:
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Learn from the examples of this node."""
    net, (part, parts), config = task.model(), _mine(context), context.run_config
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = task.examples(part, parts)
    when = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
    loss = task.train(net, x, y, float(config["lr"]), int(config["local-epochs"]), seed=1000 * part + when)
    metrics = MetricRecord({"num-examples": len(x), "train-loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Try the model on the examples of this node."""
    net, (part, parts) = task.model(), _mine(context)
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = task.examples(part, parts)
    metrics = MetricRecord({"num-examples": len(x), "accuracy": task.accuracy(net, x, y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
