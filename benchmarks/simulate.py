"""Seconds a round of federated averaging on the CPU: joulegrad, a plain PyTorch loop, Flower and pfl-research.

    python benchmarks/simulate.py --cifar10 DIR --peers DIR --workload A      # then B-CNN, then B-LR

Every tool gets the same examples, the same first model and the same hyper-parameters, and is a process of its own. They
take turns, a few rounds each, so that what else the machine does meets them alike. Each call appends a part, with its
own header, to the result file; delete that to begin again. `--peers` has the peers' environments, each made once:

    python -m venv DIR/flower && DIR/flower/bin/pip install -r benchmarks/peers/requirements-flower.txt
    python -m venv DIR/pfl    && DIR/pfl/bin/pip install -r benchmarks/peers/requirements-pfl.txt
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

import machine
from joulegrad import Layout
from joulegrad.lab import data, models
from joulegrad.lab.data import Data
from joulegrad.lab.experiment import Experiment, LocalSGD
from joulegrad.lab.partition import IID, Dirichlet

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "simulate.json"
FEEDBACK = "ErrorFeedback(CWMP(density=0.01, cost=LayerType()))"
NEVER = 10**6  # rounds: evaluation is nobody's

WORKLOADS = {
    "A": Experiment(
        model="cnn",
        data=Data("cifar10", train_examples=5000),
        partition=Dirichlet(clients=10, alpha=0.5),
        local=LocalSGD(lr=0.05, momentum=0.9, batch_size=64),
    ),
    "B-CNN": Experiment(
        model="cnn",
        data=Data("cifar10"),
        partition=IID(clients=1000),
        clients_per_round=50,
        local=LocalSGD(lr=0.1, momentum=0.0, batch_size=10),
    ),
    "B-LR": Experiment(
        model="logistic",
        data=Data("cifar10"),
        partition=IID(clients=1000),
        clients_per_round=50,
        local=LocalSGD(lr=0.1, momentum=0.0, batch_size=10),
    ),
}


class Tool(NamedTuple):
    """A simulator in one of its settings."""

    script: str
    options: str = ""
    environment: str | None = None  # of `--peers`; None: ours
    processes: int | None = None  # under torchrun
    among: tuple[str, ...] = tuple(WORKLOADS)

    def command(self, peers: Path) -> list[str]:
        """How it is started."""
        start = [sys.executable]
        if self.environment is not None:
            start = [str(peers / self.environment / "bin" / "python")]
        if self.processes is not None:
            start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
        return [*start, str(HERE / "peers" / self.script), *self.options.split()]


CNNS = ("A", "B-CNN")
TOOLS = {
    "joulegrad": Tool("joulegrad_app.py", f"--compress {FEEDBACK.replace(' ', '')}"),
    "joulegrad, bf16": Tool("joulegrad_app.py", f"--compress {FEEDBACK.replace(' ', '')} --bfloat16", among=CNNS),
    "joulegrad, dense": Tool("joulegrad_app.py", "--compress dense"),
    "plain loop, 2 threads": Tool("plain.py", "--threads 2"),
    "plain loop, 1 thread": Tool("plain.py", "--threads 1"),
    "Flower, 2 actors": Tool("flower_app.py", "--actors 2 --threads 1", "flower"),
    "Flower, 1 actor of 2 threads": Tool("flower_app.py", "--actors 1 --threads 2", "flower"),
    "pfl, 2 processes": Tool("pfl_app.py", "--threads 1", "pfl", 2),
    "pfl, 1 process of 2 threads": Tool("pfl_app.py", "--threads 2", "pfl"),
    "Flower, 2 actors, tuned": Tool("flower_app.py", "--actors 2 --threads 1 --tuned", "flower"),
    "pfl, 2 processes, tuned": Tool("pfl_app.py", "--threads 1 --tuned", "pfl", 2),
    "pfl, 2 processes, tuned, bf16": Tool("pfl_app.py", "--threads 1 --tuned --bfloat16", "pfl", 2, among=CNNS),
}


def write(experiment: Experiment, folder: Path) -> None:
    """The workload as arrays, for those who do not read it from an experiment."""
    task = data.load(experiment.data)
    parts = experiment.partition.split(task.train, experiment.seed)
    torch.manual_seed(experiment.seed)  # as `Simulation` begins
    model = models.build(experiment.model, task.shape, task.classes)
    local = experiment.local
    settings = {
        "model": experiment.model,
        "clients": len(parts),
        "sampled": experiment.clients_per_round or len(parts),
        "lr": local.lr,
        "momentum": local.momentum,
        "batch_size": local.batch_size,
        "experiment": experiment.to_dict(),
    }
    order = torch.cat(parts)
    arrays = {
        "x": data.normalised(task, task.train.inputs[order]).numpy(),
        "y": task.train.labels[order].numpy(),
        "x_test": data.normalised(task, task.test.inputs).numpy(),
        "y_test": task.test.labels.numpy(),
        "bounds": np.cumsum([0, *(len(part) for part in parts)]),
        "weights": Layout.of(model).values(model).numpy(),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "settings.json").write_text(json.dumps(settings))


def play(tool: Tool, folder: Path, peers: Path, rounds: int, weigh: bool) -> dict[str, Any]:
    """One run of a tool: what it reports, and the most memory that all its processes held together, if asked for."""
    mark = f"benchmark-{time.monotonic_ns()}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "GLIBC_"))}
    environment |= {"BENCHMARK": mark, "OMP_NUM_THREADS": "1" if tool.processes else "2"}
    if tool.environment is not None:
        environment["PYTHONPATH"] = str(HERE / "peers")  # for Ray's workers
    command = [*tool.command(peers), str(folder), "--rounds", str(rounds), "--began", str(time.time())]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
        most = 0
        while process.poll() is None:
            if weigh:
                most = max(most, proportional_bytes(mark))
            time.sleep(0.2)
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{errors.read()[-3000:]}")
        line = next(line for line in reversed(out.read().splitlines()) if line.startswith('{"start_seconds"'))
    reported: dict[str, Any] = json.loads(line)
    return reported | {"peak_bytes": most or None}


def proportional_bytes(mark: str) -> int:
    """Memory of all processes that were started with this mark, a page that several share counted once."""
    return sum(_proportional(process) for process in _marked(mark))


def _marked(mark: str) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                yield process


def _proportional(process: Path) -> int:
    with suppress(OSError):
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--rounds", type=int, default=5, help="of each tool at each turn; the first is left out")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help="measure memory, which disturbs times, instead of them")
    parser.add_argument("--only", nargs="*", help="tools of which the names contain one of these")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    experiment = WORKLOADS[arguments.workload]
    given = replace(experiment.data, directory=arguments.cifar10)
    experiment = replace(experiment, data=given, rounds=NEVER, evaluate_every=NEVER)
    tools = {
        name: tool
        for name, tool in TOOLS.items()
        if arguments.workload in tool.among and (not arguments.only or any(only in name for only in arguments.only))
    }
    options = ["--workload", arguments.workload, "--rounds", str(arguments.rounds), "--turns", str(arguments.turns)]
    head = machine.header("benchmarks/simulate.py", options + ["--memory"] * arguments.memory)
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"parts": []}
    rows: list[dict[str, Any]] = []
    found["parts"].append({"header": head, "workload": arguments.workload, "memory": arguments.memory, "rows": rows})
    with tempfile.TemporaryDirectory() as folder:
        write(experiment, Path(folder))
        for turn in range(arguments.turns):
            for name, tool in tools.items():
                row = play(tool, Path(folder), arguments.peers, arguments.rounds, arguments.memory)
                rows.append({"workload": arguments.workload, "tool": name, "turn": turn} | row)
                print(json.dumps(rows[-1]), flush=True)
                head["load_average_at_end"] = machine.load_average()
                arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
