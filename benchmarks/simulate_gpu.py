"""Seconds a round of the paper's experiment on a GPU: ResNet-18, ten clients, 50,000 images, batches of 64, one epoch.

    PYTHONPATH=. python benchmarks/simulate_gpu.py --cifar10 DIR --out FILE.json

Compression, encoding, decoding, aggregation and evaluation are part of a round.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # this folder last: it has a select.py

import argparse
import json
import time
from dataclasses import replace
from statistics import median
from typing import Any

import torch

import machine
from joulegrad import CWMP, ErrorFeedback, LayerType, Quantized
from joulegrad.compressor import Compressor
from joulegrad.lab import cuda
from joulegrad.lab.data import Data
from joulegrad.lab.experiment import DENSE, Experiment, LocalSGD
from joulegrad.lab.partition import Dirichlet
from joulegrad.lab.simulate import Simulation

OPERATORS: dict[str, Compressor] = {
    "CWMP, 1 %": CWMP(density=0.01, cost=LayerType()),
    "ErrorFeedback(1-bit CWMP), 1 %": ErrorFeedback(Quantized(CWMP(density=0.01, cost=LayerType()), bits=1)),
    "dense": DENSE,
}


def rounds(experiment: Experiment, lanes: int, n: int) -> dict[str, Any]:
    """The rows of n rounds, and what they took."""
    cuda.LANES = lanes
    began = time.perf_counter()
    torch.cuda.reset_peak_memory_stats()
    with Simulation(experiment, device="cuda") as simulation:
        started = time.perf_counter() - began
        rows = [simulation.round() for _ in range(n)]
    seconds = [row["seconds"] for row in rows[1:]]
    return {
        "start_seconds": started,
        "first_round_seconds": rows[0]["seconds"]["round"],
        "seconds": {name: median(s[name] for s in seconds) for name in seconds[0]},
        "accuracy": [row["accuracy"] for row in rows],
        "bytes_up": rows[-1]["bytes_up"],
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lanes", type=int, nargs="*", default=[5])
    parser.add_argument("--precisions", nargs="*", default=["bfloat16", "tf32", "float32"])
    arguments = parser.parse_args()
    base = Experiment(
        model="resnet18",
        data=Data("cifar10", directory=arguments.cifar10),
        partition=Dirichlet(10, alpha=0.5),
        local=LocalSGD(lr=0.05, momentum=0.9, batch_size=64),
        rounds=50,
    )
    head = machine.header("benchmarks/simulate_gpu.py", []) | {"gpu": torch.cuda.get_device_name()}
    found: list[dict[str, Any]] = []
    for precision in arguments.precisions:
        for lanes in arguments.lanes:
            for name, compress in OPERATORS.items():
                experiment = replace(base, precision=precision, compress=compress)
                row = {"operator": name, "precision": precision, "lanes": lanes}
                found.append(row | rounds(experiment, lanes, arguments.rounds))
                print(found[-1], flush=True)
                arguments.out.write_text(json.dumps({"header": head, "rows": found}, indent=1))
            if precision != "bfloat16":
                break


if __name__ == "__main__":
    main()
