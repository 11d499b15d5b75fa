"""Memory and seconds a round with 100, 1,000 and 10,000 clients that remember what they have not sent.

    python benchmarks/many_clients.py        # writes results/many_clients.json

Every client has ten examples of its own and error feedback on a small network; a hundred are sampled a round. What
those who do not train remember lies in a file, so memory should not grow with their number, but for their examples.
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
from statistics import median
from typing import Any

import numpy as np

import machine
from joulegrad import CWMP, ErrorFeedback, LayerType
from joulegrad.lab.data import Data
from joulegrad.lab.experiment import Experiment, LocalSGD
from joulegrad.lab.partition import IID
from joulegrad.lab.simulate import Simulation

RESULTS = Path(__file__).parent / "results" / "many_clients.json"
EXAMPLES = 10  # of each client
SAMPLED = 100


def experiment(clients: int, folder: Path, rounds: int) -> Experiment:
    """Random features, since only sizes matter: 64 of them, ten classes."""
    draws = np.random.default_rng(0)
    x, y = draws.standard_normal((clients * EXAMPLES, 1, 8, 8), np.float32), draws.integers(10, size=clients * EXAMPLES)
    path = folder / f"{clients}.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
    return Experiment(
        model="mlp",
        data=Data(str(path)),
        partition=IID(clients=clients),
        compress=ErrorFeedback(CWMP(density=0.01, cost=LayerType())),
        local=LocalSGD(lr=0.05, momentum=0.9, batch_size=EXAMPLES),
        clients_per_round=SAMPLED,
        rounds=rounds,
        evaluate_every=rounds,
    )


def play(clients: int, rounds: int) -> dict[str, Any]:
    """A run in which every client trains about as often; the most that this process and its workers hold at once."""
    with tempfile.TemporaryDirectory() as folder:
        given, memories = experiment(clients, Path(folder), rounds), Path(folder) / "memories"
        began = time.perf_counter()
        with Simulation(given, memories=memories) as simulation:
            start, seconds, most = time.perf_counter() - began, [], 0
            for t in range(rounds):
                seconds.append(simulation.round()["seconds"]["round"])
                if t % 10 == 0 or t == rounds - 1:
                    most = max(most, held())
            trained = int((simulation.places.now >= 0).sum())
            parameters = simulation.layout.size
        on_disk = 512 * memories.stat().st_blocks
    rest = sorted(seconds[1:-1])
    return {
        "clients": clients,
        "sampled": SAMPLED,
        "parameters": parameters,
        "rounds": rounds,
        "clients_that_trained": trained,
        "start_seconds": start,
        "seconds": median(rest),
        "seconds_last_tenth": median(seconds[-1 - len(rest) // 10 : -1]),
        "peak_bytes": most,
        "bytes_on_disk": on_disk,
    }


def held() -> int:
    """Memory of this process and its children, a page that several share counted once."""
    family = [os.getpid(), *children(os.getpid())]
    return sum(proportional(process) for process in family)


def children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def proportional(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--one", action="store_true", help="play the one size here, and print its row")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(play(arguments.clients[0], arguments.rounds)))
        return
    head = machine.header("benchmarks/many_clients.py", ["--rounds", str(arguments.rounds)])
    rows = []
    for clients in arguments.clients:  # a process each, so that none has what another left
        again = [sys.executable, __file__, "--one", "--clients", str(clients), "--rounds", str(arguments.rounds)]
        found = subprocess.run(again, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(found.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    head["load_average_at_end"] = machine.load_average()
    arguments.out.write_text(json.dumps({"header": head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
