"""Selection, the whole client step, and aggregation on the CPU, beside torch.topk, np.argpartition and dense means.

    python benchmarks/select.py [--repeats N] [--quick]

An update of ResNet-18's size, heavy-tailed with a scale a layer. All methods run in turn within each repeat, so that
what else the machine does meets them alike. Writes `benchmarks/results/select.json`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # this folder last: this is not the standard select

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import joulegrad as jg
import machine
from joulegrad import kernels
from joulegrad.kernels import Scores
from joulegrad.lab.models import resnet18

DENSITIES = (0.01, 0.05, 0.1, 0.2)
SEED = 0
Methods = dict[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="one density, two repeats, nothing written")
    options = parser.parse_args()
    repeats = 2 if options.quick else options.repeats
    head = machine.header("benchmarks/select.py", sys.argv[1:])
    layout = jg.Layout.of(resnet18(), buffers="local")
    rows: list[dict[str, Any]] = []
    for case, methods in cases(layout, DENSITIES[:1] if options.quick else DENSITIES):
        rows += measured(case, methods, repeats)
        print(case, {r["method"]: f"{1000 * r['seconds']:.1f} ms" for r in rows if r["case"] == case}, flush=True)
    head |= {
        "load_average_at_end": machine.load_average(),
        "entries": layout.size,
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "seed": SEED,
    }
    if not options.quick:
        path = Path(__file__).parent / "results" / "select.json"
        path.write_text(json.dumps({"header": head, "rows": rows}, indent=1) + "\n")


def measured(case: dict[str, Any], methods: Methods, repeats: int) -> Iterator[dict[str, Any]]:
    """Median, least and largest seconds of each method, after one call that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for method in methods.values():
        method()
    for _ in range(repeats):
        for name, method in methods.items():
            start = time.perf_counter()
            method()
            seconds[name].append(time.perf_counter() - start)
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        yield {"case": case, "method": name, "seconds": middle, "least": min(taken), "largest": max(taken)}


def cases(layout: jg.Layout, densities: tuple[float, ...]) -> Iterator[tuple[dict[str, Any], Methods]]:
    rng = np.random.default_rng(SEED)
    update = heavy_tailed(layout, rng)
    each = jg.PerEntry(torch.from_numpy(rng.lognormal(0, 0.5, layout.size)))
    for density in densities:
        yield {"input": "update", "density": density}, selection(update, layout, each, density)
    for density in densities:
        yield {"input": "client step", "density": density}, client_step(update, layout, density)
    for name, hostile in adversarial(update, rng).items():
        for density in (densities[0], densities[-1]):
            yield {"input": name, "density": density}, exact(hostile, layout, density)
    yield {"input": "server", "density": 0.01}, server(layout, rng)


def heavy_tailed(layout: jg.Layout, rng: np.random.Generator) -> Tensor:
    """Student's t with three degrees of freedom, and a lognormal scale a layer."""
    sizes = [s.size for s in layout.segments]
    scale = np.repeat(rng.lognormal(0, 1, len(sizes)), sizes)
    return torch.tensor(rng.standard_t(3, layout.size) * scale, dtype=torch.float32)


def spelled_out(layout: jg.Layout) -> Tensor:
    """The paper's costs, one float32 an entry, as peers take them."""
    return jg.Prices.of(jg.LayerType(), layout).at(torch.arange(layout.size)).float()


def peers(update: Tensor, layout: jg.Layout, density: float) -> Methods:
    costs, k = spelled_out(layout), int(density * layout.size)
    g, c = update.numpy(), costs.numpy()
    return {
        "torch.topk": lambda: torch.topk(update.abs() / costs, k),
        "np.argpartition": lambda: np.argpartition(np.abs(g) / c, layout.size - k)[layout.size - k :],
    }


def selection(update: Tensor, layout: jg.Layout, each: jg.Cost, density: float) -> Methods:
    """Kernels alone, and the operator with its checks and the gather."""
    k = int(density * layout.size)
    layers, entries = (Scores(update, 1, jg.Prices.of(cost, layout)) for cost in (jg.LayerType(), each))
    budgets = [0.7 * s.prices.total(kernels.largest(s.worth, k)) for s in (layers, entries) if s.prices is not None]
    operator = jg.CWMP(density=density, cost=jg.LayerType())
    state = operator.init(layout)
    return {
        "CWMP": lambda: kernels.largest(layers, k),
        "CWMP, a cost an entry": lambda: kernels.largest(entries, k),
        "BudgetedCWMP": lambda: kernels.budgeted(layers, k, budgets[0]),
        "BudgetedCWMP, a cost an entry": lambda: kernels.budgeted(entries, k, budgets[1]),
        "CWMP operator": lambda: operator(update, state),
        **peers(update, layout, density),
        "copy of g": lambda: update.clone(),
        "one reading": lambda: float(update.sum()),
    }


def client_step(update: Tensor, layout: jg.Layout, density: float) -> Methods:
    """What a client does after training: the selection alone, and with all that goes around it."""
    cwmp = jg.CWMP(density=density, cost=jg.LayerType())
    operators: dict[str, jg.Compressor] = {
        "CWMP": cwmp,
        "Quantized(CWMP), 1 bit": jg.Quantized(cwmp, bits=1),
        "ErrorFeedback(CWMP)": jg.ErrorFeedback(cwmp),
        "ErrorFeedback(Quantized(CWMP)), 1 bit": jg.ErrorFeedback(jg.Quantized(cwmp, bits=1)),
        "ErrorFeedback(Quantized(CWMP)), 4 bits": jg.ErrorFeedback(jg.Quantized(cwmp, bits=4)),
        "MomentumCorrection(CWMP)": jg.MomentumCorrection(cwmp),
    }
    states = {name: operator.init(layout) for name, operator in operators.items()}

    def step(name: str) -> Callable[[], Any]:
        return lambda: operators[name](update, states[name])

    return {name: step(name) for name in operators}


def adversarial(update: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
    """Updates on which a sample or a pivot may do badly."""
    d = len(update)
    huge = update.clone()
    huge[: d // 5] *= 1e6
    return {
        "all equal": torch.ones(d),
        "sorted": update.sort().values,
        "reversed": update.sort(descending=True).values,
        "one huge layer": huge,
        "90 % zeros": update * torch.from_numpy(rng.random(d) < 0.1),
        "two values": torch.from_numpy(np.where(rng.random(d) < 0.5, 1.0, 2.0)).float(),
    }


def exact(update: Tensor, layout: jg.Layout, density: float) -> Methods:
    scores = Scores(update, 1, jg.Prices.of(jg.LayerType(), layout))
    k = int(density * layout.size)
    return {"CWMP": lambda: kernels.largest(scores, k), **peers(update, layout, density)}


def server(layout: jg.Layout, rng: np.random.Generator) -> Methods:
    """A hundred clients at 1 %: their updates, their payloads, and dense vectors (ten, each taken ten times)."""
    operator = jg.Quantized(jg.CWMP(density=0.01, cost=jg.LayerType()), bits=1)
    state = operator.init(layout)
    dense = [heavy_tailed(layout, rng) for _ in range(10)]
    sent = [operator(g, state)[0] for g in dense]
    payloads = [jg.encode(s, layout) for s in sent]

    def running() -> Tensor:
        total = torch.zeros(layout.size)
        for i in range(100):
            total.add_(dense[i % 10], alpha=(1 + i) / 5050)
        return total

    return {
        "mean of 100 updates": lambda: jg.mean([(sent[i % 10], 1 + i) for i in range(100)]),
        "mean of 100 payloads": lambda: jg.mean((jg.decode(payloads[i % 10], layout), 1 + i) for i in range(100)),
        "dense, torch.stack and mean": lambda: torch.stack([dense[i % 10] for i in range(100)]).mean(0),
        "dense, running sum": running,
    }


if __name__ == "__main__":
    main()
