"""The server app: a strategy with joulegrad around it; the end goes to a file."""

import json
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from joulegrad.flower import Fleet, Sparse

from .model import made

app = ServerApp()


@app.main()
def main(grid, context):
    """Train, and write what came of it."""
    config = context.run_config
    out, nodes, minimum = Path(str(config["out"])), int(config["nodes"]), int(config["minimum"])
    fleet = Fleet(
        deadline_seconds=float(config["deadline-seconds"]) or None, minimum=minimum, poll_seconds=0.1, wait_seconds=90,
        strikes=100,
    )  # fmt: skip
    strategy = Sparse(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=nodes, min_train_nodes=nodes),
        checkpoint=str(config["checkpoint"]) or None, fleet=fleet, seed=0, journal=out.with_suffix(".jsonl"),
    )  # fmt: skip
    first = ArrayRecord(made(str(config["model"])).state_dict())
    result = strategy.start(grid, first, num_rounds=int(config["rounds"]), timeout=120)
    np.savez(out.with_suffix(".part.npz"), **{key: array.numpy() for key, array in result.arrays.items()})
    metrics = {round_: dict(found) for round_, found in result.train_metrics_clientapp.items()}
    told = {"metrics": metrics, "refused": [[r.round, str(r.node), r.reason] for r in strategy.refused]}
    out.with_suffix(".json").write_text(json.dumps(told))
    out.with_suffix(".part.npz").rename(out)
