"""Federated averaging in Flower's simulation, which runs clients in Ray actors.

Model and data are kept in the actors between their turns: the best case. `--tuned` adds what a user could copy from us.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray listens on this machine alone

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--rounds", type=int, required=True)
parser.add_argument("--began", type=float, required=True)
parser.add_argument("--actors", type=int, required=True)
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--tuned", action="store_true")
parser.add_argument("--bfloat16", action="store_true")

from workload import Workload, keep_memory, now, report

if __name__ == "__main__" and parser.parse_args().tuned:
    keep_memory()  # before torch allocates

from flower_client import client_app
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def server_app(arguments: argparse.Namespace, result: dict[str, Any]) -> ServerApp:
    app = ServerApp()
    work = Workload(arguments.folder)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        ends: list[float] = []
        strategy = FedAvg(
            fraction_train=work.sampled / work.clients, fraction_evaluate=0.0, min_available_nodes=work.clients
        )
        done = strategy.start(
            grid,
            ArrayRecord(work.model().state_dict()),
            num_rounds=arguments.rounds,
            evaluate_fn=lambda _t, _arrays: ends.append(now()),
        )
        model = work.model()
        model.load_state_dict(done.arrays.to_torch_state_dict())
        result.update(ends=ends, accuracy=work.accuracy(model))

    return app


def main() -> None:
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    cores = arguments.actors * arguments.threads
    run_simulation(
        server_app(arguments, result),
        client_app(arguments.folder, arguments.threads, arguments.tuned, arguments.bfloat16),
        num_supernodes=Workload(arguments.folder).clients,
        backend_config={"client_resources": {"num_cpus": arguments.threads}, "init_args": {"num_cpus": cores}},
    )
    report(arguments.began, result["ends"], result["accuracy"])


if __name__ == "__main__":
    main()
