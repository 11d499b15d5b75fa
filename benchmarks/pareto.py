"""Play examples/pareto.toml, and every entry sent beside it: what the docs' pictures of a report are drawn from.

    python benchmarks/pareto.py --out scratch/pareto

What is there already is only read. Writes results/pareto.json: what `joulegrad report` shows of these runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import argparse
import json

from joulegrad.lab import experiment, report, sweep
from joulegrad.lab.report.content import content

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "benchmarks/results/pareto.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "scratch/pareto")
    out: Path = parser.parse_args().out
    settings = experiment.load(ROOT / "examples/pareto.toml")
    dense = {**settings, "sweep": {"seed": settings["sweep"]["seed"]}}
    failed = sweep.play(sweep.plan(dense, out) + sweep.plan(settings, out))
    if failed:
        sys.exit(f"failed: {failed}")
    found = content(report.read([out]), title="examples/pareto.toml")
    for run in found["runs"]:
        run["folder"] = Path(run["folder"]).name
    for place in ("started", "seconds"):  # of each run: of no use here
        for run in found["runs"]:
            del run[place]
    RESULT.write_text(
        json.dumps(found, indent=None, separators=(",", ":")).replace('},{"name":', '},\n{"name":') + "\n"
    )
    print(f"{RESULT.relative_to(ROOT)}: {len(found['runs'])} runs")


if __name__ == "__main__":
    main()
