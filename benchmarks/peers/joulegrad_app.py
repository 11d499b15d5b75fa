"""The same in joulegrad: every client's update is compressed, encoded, decoded, averaged exactly and accounted for."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from workload import Workload, now, report

from joulegrad.lab.experiment import Experiment
from joulegrad.lab.simulate import Simulation


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--began", type=float, required=True)
    parser.add_argument("--compress", required=True)
    parser.add_argument("--bfloat16", action="store_true")
    arguments = parser.parse_args()
    settings = json.loads((arguments.folder / "settings.json").read_text())
    experiment = Experiment.of(settings["experiment"] | {"compress": arguments.compress})
    if arguments.bfloat16:
        experiment = replace(experiment, precision="bfloat16")
    with Simulation(experiment) as simulation:
        ends = [now()]
        for _ in range(arguments.rounds):
            simulation.round()
            ends.append(now())
        work = Workload(arguments.folder)
        model = work.model()
        flat, at = simulation.weights, 0
        for parameter in model.parameters():
            parameter.data.copy_(flat[at : at + parameter.numel()].view(parameter.shape))
            at += parameter.numel()
        report(arguments.began, ends, work.accuracy(model))


if __name__ == "__main__":
    main()
