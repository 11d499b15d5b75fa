"""Seconds a round of the paper's experiment on a GPU: ResNet-18, ten clients, 50,000 images, batches of 64, one epoch.

    python benchmarks/simulate_gpu.py --directory DIR --out benchmarks/results/simulate_gpu.json

Compression, encoding, decoding, aggregation and evaluation are part of a round. The dense rows in three precisions
start from the same model and take the same batches: their accuracies say what bfloat16 costs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # this folder last: it has a select.py

import argparse
import itertools
import json
import time
from dataclasses import replace
from statistics import median
from typing import Any, Literal, NamedTuple

import torch

import machine
from joulegrad import CWMP, ErrorFeedback, LayerType, Quantized
from joulegrad.compressor import Compressor
from joulegrad.lab.data import Data
from joulegrad.lab.experiment import DENSE, Experiment, LocalSGD
from joulegrad.lab.partition import Dirichlet
from joulegrad.lab.simulate import Simulation

OPERATORS: dict[str, Compressor] = {
    "CWMP, 1 %": CWMP(density=0.01, cost=LayerType()),
    "ErrorFeedback(1-bit CWMP), 1 %": ErrorFeedback(Quantized(CWMP(density=0.01, cost=LayerType()), bits=1)),
    "dense": DENSE,
}


class Plan(NamedTuple):
    """What is played, and for how many rounds."""

    operator: str
    precision: Literal["bfloat16", "tf32", "float32"]
    rounds: int


PLANS = [  # what matters most first: a time limit may cut the rest
    Plan("CWMP, 1 %", "bfloat16", 6),
    Plan("ErrorFeedback(1-bit CWMP), 1 %", "bfloat16", 6),
    Plan("dense", "bfloat16", 12),
    Plan("dense", "tf32", 12),
    Plan("dense", "float32", 12),
]


def played(experiment: Experiment, n: int) -> dict[str, Any]:
    """The figures of n rounds, and what they took; the first of them, which compiles, apart."""
    began = time.perf_counter()
    torch.cuda.reset_peak_memory_stats()
    with Simulation(experiment, device="cuda") as simulation:
        started = time.perf_counter() - began
        rows = []
        for row in itertools.islice(simulation, n):
            rows.append(row)
            print(f"  round {row['round']}: {row['seconds']}, accuracy {row['accuracy']}", flush=True)
    seconds = [row["seconds"] for row in rows[1:]]
    return {
        "start_seconds": started,
        "first_round_seconds": rows[0]["seconds"]["round"],
        "seconds": {name: median(s[name] for s in seconds) for name in seconds[0]},
        "round_seconds": [s["round"] for s in seconds],
        "accuracy": [row["accuracy"] for row in rows],
        "bytes_up": rows[-1]["bytes_up"],
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10", help="a name or a path, as the key data.name")
    parser.add_argument("--directory", help="as the key data.directory")
    parser.add_argument("--note", default="", help="for the header: what is special about the data")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    base = Experiment(
        model="resnet18",
        data=Data(arguments.data, directory=arguments.directory),
        partition=Dirichlet(10, alpha=0.5),
        local=LocalSGD(lr=0.05, momentum=0.9, batch_size=64),
        rounds=50,
    )
    head = machine.header("benchmarks/simulate_gpu.py", []) | {
        "gpu": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "data": arguments.data if not arguments.note else arguments.note,
    }
    found: list[dict[str, Any]] = []
    for plan in PLANS:
        experiment = replace(base, precision=plan.precision, compress=OPERATORS[plan.operator])
        found.append(plan._asdict() | played(experiment, plan.rounds))
        print(found[-1], flush=True)
        arguments.out.write_text(json.dumps({"header": head, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
