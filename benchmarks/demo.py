"""What `joulegrad demo` compares, over several seeds: results/demo.json, from which the README's table is made."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import argparse
import json
import tempfile

import machine
from joulegrad.lab import demo

RESULTS = Path(__file__).parent / "results" / "demo.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    head = machine.header("benchmarks/demo.py", ["--seeds", str(arguments.seeds)])
    head |= {"rounds": demo.BASE.rounds, "clients": demo.CLIENTS, "density": demo.DENSITY}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            for result in demo.play(Path(folder), seed=seed):
                figures = {"accuracy": result.accuracy, "megabytes": result.megabytes, "cost": result.cost}
                rows.append({"seed": seed, "sends": result.name, **figures})
                print(rows[-1], flush=True)
    arguments.out.write_text(json.dumps({"header": head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
