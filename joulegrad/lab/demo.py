"""Five ways to send updates, side by side, on embedded data: what `joulegrad demo` plays."""

from __future__ import annotations

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

__all__ = ["TITLE", "Result", "pictures", "play", "rounds_in_all"]

CLIENTS = 10
DENSITY = 0.02
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
    "Top-K, 2 %": TopK(density=DENSITY),
    "CWMP, 2 %": CWMP(density=DENSITY, cost=COST),
    "BudgetedCWMP, 2 %": BudgetedCWMP(density=DENSITY, cost=COST, joules=1.0),
    "ErrorFeedback(1-bit CWMP), 2 %": ErrorFeedback(Quantized(CWMP(density=DENSITY, cost=COST), bits=1)),
}
TITLE = f"digits, 10 clients, Dirichlet(0.5), {BASE.rounds} rounds; energy in the paper's units (classifier 5, other 1)"


class Result(NamedTuple):
    """How one way fared."""

    name: str
    rows: list[dict[str, Any]]

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
    out: Path, workers: int | None, seen: Callable[[str, Mapping[str, Any]], None] = lambda name, row: None
) -> list[Result]:
    """Each way in a folder of its own; what is there already is only read.

    BudgetedCWMP is given three quarters of what Top-K spent in a client's round, on average.
    """
    results: list[Result] = []
    for name, compress in WAYS.items():
        if isinstance(compress, BudgetedCWMP):
            spent = next(result.cost for result in results if result.name.startswith("Top-K"))
            compress = replace(compress, joules=round(0.75 * spent / (BASE.rounds * CLIENTS)))
        experiment = replace(BASE, compress=compress)
        outcome = run(experiment, out / experiment.fingerprint, workers=workers, seen=partial(seen, name))
        results.append(Result(name, outcome.rows))
    return results


def pictures(results: list[Result], out: Path) -> list[Path]:
    """Accuracy against bytes, and against energy."""
    lines = {result.name: result.rows for result in results}
    paths = [out / "accuracy-by-bytes.png", out / "accuracy-by-energy.png"]
    drawing.against(lines, "bytes_up", "MB sent by all clients so far", paths[0], scale=1e-6)
    drawing.against(lines, "cost", "energy of what was sent so far (the paper's units)", paths[1])
    return paths
