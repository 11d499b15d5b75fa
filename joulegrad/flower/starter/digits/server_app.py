"""The server app. joulegrad is in one line: Sparse around the strategy."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits import task
from joulegrad.flower import Fleet, Sparse

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say how good the model is after each round."""
    config = context.run_config
    nodes = int(config["nodes"])
    strategy = Sparse(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes),
        fleet=Fleet(deadline_seconds=float(config["deadline-seconds"]), minimum=int(config["minimum"])),
        checkpoint=str(config["checkpoint"]) or None,
        journal=str(config["journal"]) or None,
    )
    strategy.start(
        grid, ArrayRecord(task.model().state_dict()), num_rounds=int(config["rounds"]), evaluate_fn=evaluated
    )


def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """On the test's examples, which no node has."""
    net = task.model()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": task.accuracy(net, *task.examples(None))})
