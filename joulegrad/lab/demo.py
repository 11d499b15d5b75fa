"""Five ways to send updates, side by side, on embedded data: what `joulegrad demo` plays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from joulegrad import CWMP, BudgetedCWMP, ErrorFeedback, LayerType, Quantized, TopK
from joulegrad.compressor import Compressor
from joulegrad.lab import pictures as drawing
from joulegrad.lab.experiment import DENSE, Experiment, LocalSGD
from joulegrad.lab.partition import Dirichlet
from joulegrad.lab.run import run
from joulegrad.lab.store import finished

__all__ = ["CAVEATS", "Result", "pictures", "play", "rounds_in_all", "title"]

CLIENTS = 10
DENSITY = 0.02
SHARE = 0.75  # of what Top-K spent: BudgetedCWMP's budget
COST = LayerType(classifier=5.0, other=1.0)
BASE = Experiment(
    model="mlp",
    partition=Dirichlet(CLIENTS, alpha=0.5),
    local=LocalSGD(lr=0.05, momentum=0.9, batch_size=32, epochs=2),
    rounds=20,
    cost=COST,
)
WAYS: dict[str, Compressor] = {
    "everything": DENSE,
    "Top-K": TopK(density=DENSITY),
    "CWMP": CWMP(density=DENSITY, cost=COST),
    "BudgetedCWMP": BudgetedCWMP(density=DENSITY, cost=COST, joules=1.0),
    "ErrorFeedback(1-bit CWMP)": ErrorFeedback(Quantized(CWMP(density=DENSITY, cost=COST), bits=1)),
}
CAVEATS = (
    "MB sent are all clients' payloads in all rounds; the model that goes down is dense for all, and not counted.",
    "Energy is modelled: millions of the paper's units, 5 for a classifier entry and 1 for any other, the very prices "
    "that CWMP chooses by. BudgetedCWMP may spend three quarters of what Top-K spent.",
    "One seed, 359 test digits: a point or two is chance. Another seed: joulegrad demo --seed 1",
)


def title(seed: int) -> str:
    """What was compared."""
    return (
        f"digits; {CLIENTS} clients, Dirichlet(0.5); {BASE.rounds} rounds; seed {seed}; 79,754 parameters, 89% of them "
        f"classifier. All but the first send {DENSITY:.0%} of their entries."
    )


class Result(NamedTuple):
    """How one way fared."""

    name: str
    rows: list[dict[str, Any]]
    read: bool  # it had been played before

    @property
    def accuracy(self) -> float:
        """Of the last round."""
        return float(self.rows[-1]["accuracy"])

    @property
    def megabytes(self) -> float:
        """Sent by all clients, in 10^6 bytes."""
        return float(sum(row["bytes_up"] for row in self.rows)) / 1e6

    @property
    def cost(self) -> float:
        """Σc of what was sent."""
        return float(sum(row["cost"] for row in self.rows))


def rounds_in_all() -> int:
    """How many rounds will be played."""
    return len(WAYS) * BASE.rounds


def play(
    out: Path,
    *,
    seed: int = 0,
    workers: int | None = None,
    seen: Callable[[str, Mapping[str, Any]], None] = lambda name, row: None,
) -> list[Result]:
    """Each way in a folder of its own; what is there already is only read.

    BudgetedCWMP is given three quarters of what Top-K spent in a client's round, on average.
    """
    results: list[Result] = []
    for name, compress in WAYS.items():
        if isinstance(compress, BudgetedCWMP):
            spent = next(result.cost for result in results if result.name == "Top-K")
            compress = replace(compress, joules=round(SHARE * spent / (BASE.rounds * CLIENTS)))
        experiment = replace(BASE, compress=compress, seed=seed)
        folder = out / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}-{experiment.fingerprint}"
        read = finished(folder, experiment.rounds)
        outcome = run(experiment, folder, workers=workers, seen=partial(seen, name))
        if not outcome.finished:
            raise KeyboardInterrupt  # asked to stop: between two ways as within one
        results.append(Result(name, outcome.rows, read))
    return results


def pictures(results: list[Result], out: Path) -> list[Path]:
    """Accuracy against bytes, and against energy."""
    lines = {result.name: result.rows for result in results}
    paths = [out / "accuracy-by-bytes.png", out / "accuracy-by-energy.png"]
    drawing.against(lines, "bytes_up", "sent by all clients so far, MB", paths[0], scale=1e-6)
    drawing.against(lines, "cost", "energy of what was sent, millions of the paper's units", paths[1], scale=1e-6)
    return paths
