"""Runs' folders written by hand, so that every figure of a report can be worked out on paper."""

from __future__ import annotations

import json
from pathlib import Path

from joulegrad.lab.experiment import Experiment
from joulegrad.lab.store import HEADER, ROUNDS

LAYERS = {"conv.weight": 900, "fc.weight": 100}


def header(compress="TopK(density=0.1)", seed=0, rounds=3, **settings):
    experiment = {**Experiment(rounds=rounds, seed=seed).to_dict(), "compress": compress, **settings}
    return {
        "experiment": experiment,
        "commit": "c0ffee",
        "versions": {"joulegrad": "0.1.0", "torch": "2.13.0", "triton": None},
        "python": "3.11.7",
        "started": f"2026-11-19T20:00:{seed:02d}+00:00",
        "layers": LAYERS,
        "classes": 2,
        "clients": 2,
        "class_counts": [[30, 10], [0, 60]],
    }


def row(t, accuracy, cost, bytes_up, **more):
    sent = [80, 0]
    return {
        "round": t,
        "accuracy": accuracy,
        "loss": 1.0,
        "train_loss": 1.0,
        "bytes_up": bytes_up,
        "index_bytes": 20,
        "value_bytes": 320,
        "entropy_bytes": 25.0,
        "bytes_down": 8000,
        "entries": 80,
        "cost": cost,
        "density": 0.04,
        "layer_entries": sent,
        "layer_density": [80 / 1800, 0.0],
        "starved_layers": 1,
        "clients": [0, 1],
        "lost": [],
        "seconds": {"round": 0.5},
        **more,
    }


def write(folder: Path, accuracies, *, cost=100.0, bytes_up=1000, finished=True, more=None, **settings):
    """A run with a round for each accuracy, each at the same cost."""
    folder.mkdir(parents=True)
    rounds = settings.pop("rounds", len(accuracies))
    (folder / HEADER).write_text(json.dumps(header(rounds=rounds, **settings)))
    rows = [row(t, accuracy, cost, bytes_up, **(more or {})) for t, accuracy in enumerate(accuracies, 1)]
    (folder / ROUNDS).write_text("".join(json.dumps(each) + "\n" for each in rows))
    if finished:
        (folder / f"checkpoint-{len(rows):05d}-00000000.safetensors").touch()
    return folder


def small_sweep(out: Path) -> Path:
    """Two methods at two densities, three seeds each, all finished: CWMP reaches what Top-K does at half the cost."""
    for seed in range(3):
        lift = 0.01 * seed
        for density, gain in ((0.01, 0.0), (0.1, 0.1)):
            write(
                out / f"topk-{density}-{seed}",
                [0.3 + lift + gain, 0.5 + lift + gain, 0.6 + lift + gain, 0.7 + lift + gain],
                compress=f"TopK(density={density})", seed=seed, cost=1000 * density * 10,
                bytes_up=int(10_000 * density),
            )  # fmt: skip
            write(
                out / f"cwmp-{density}-{seed}",
                [0.3 + lift + gain, 0.5 + lift + gain, 0.6 + lift + gain, 0.7 + lift + gain],
                compress=f"CWMP(density={density}, cost=LayerType())", seed=seed, cost=500 * density * 10,
                bytes_up=int(10_000 * density),
            )  # fmt: skip
    return out
