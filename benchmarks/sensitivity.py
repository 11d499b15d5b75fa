"""What the ratio of costs does: `joulegrad demo`'s network under classifier : other = 0.2 to 10, over several seeds.

Everything but the ratio stays as it is. Accuracy, bytes and the classifier's share of what was sent are what happened;
joules are the bytes on a Raspberry Pi 4's WiFi, so that nothing is judged by the ratio that chose it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import argparse
import json
import tempfile
from dataclasses import replace

import machine
from joulegrad import CWMP, ErrorFeedback, LayerType, Layout, TopK, profiles
from joulegrad.compressor import Compressor
from joulegrad.lab import demo
from joulegrad.lab.models import build
from joulegrad.lab.run import run

RESULTS = Path(__file__).parent / "results" / "sensitivity.json"
RATIOS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LINK = "wifi-rpi4"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    head = machine.header("benchmarks/sensitivity.py", ["--seeds", str(arguments.seeds)])
    head |= {"rounds": demo.BASE.rounds, "clients": demo.CLIENTS, "density": demo.DENSITY, "link": LINK}
    layout = Layout.of(build(demo.BASE.model, (1, 8, 8), 10))
    classifier = LayerType().members(layout)
    ways: list[tuple[str, float | None, Compressor]] = [
        ("Top-K", None, TopK(density=demo.DENSITY)),
        ("ErrorFeedback(Top-K)", None, ErrorFeedback(TopK(density=demo.DENSITY))),
    ]
    for dearer in RATIOS:
        rule = CWMP(density=demo.DENSITY, cost=LayerType(classifier=dearer, other=1.0))
        ways += [("CWMP", dearer, rule), ("ErrorFeedback(CWMP)", dearer, ErrorFeedback(rule))]
    link, rows = profiles.link(LINK), []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            for i, (name, ratio, compress) in enumerate(ways):
                found = run(replace(demo.BASE, compress=compress, seed=seed), Path(folder) / f"{seed}-{i}").rows
                sent = [sum(row["layer_entries"][j] for row in found) for j in range(len(layout.segments))]
                ours = sum(n for n, s in zip(sent, layout.segments, strict=True) if s.name in classifier)
                up = sum(row["bytes_up"] for row in found)
                figures = {
                    "accuracy": found[-1]["accuracy"],
                    "megabytes": up / 1e6,
                    "joules": 8 * up * (1 + link.overhead) * link.up_joules_per_bit(),
                    "classifier_share": ours / sum(sent),
                    "units": sum(row["cost"] for row in found),
                }
                rows.append({"seed": seed, "sends": name, "ratio": ratio, **figures})
                print(rows[-1], flush=True)
    arguments.out.write_text(json.dumps({"header": head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
