"""Selection on a GPU, beside torch.topk: what a user calls, and the same replayed as a CUDA graph.

    python benchmarks/select_gpu.py --out benchmarks/results/select_gpu.json [--repeats N]

The update and the costs are those of `select.py`. All methods run in turn within each repeat; each is waited for.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # this folder last: it has a select.py

import argparse
import json
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

import joulegrad as jg
import machine
from joulegrad import kernels
from joulegrad.kernels import Scores, reference
from joulegrad.lab.models import resnet18

DENSITIES = (0.01, 0.05, 0.1, 0.2)
CLIENTS = 10
Methods = dict[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    layout = jg.Layout.of(resnet18(), buffers="local")
    rows: list[dict[str, Any]] = []
    for case, methods in cases(layout):
        rows += measured(case, methods, 3 if case["input"] == "two budgets" else options.repeats)
        print(case, {r["method"]: f"{1e6 * r['seconds']:.0f} µs" for r in rows if r["case"] == case}, flush=True)
    head = machine.header("benchmarks/select_gpu.py", []) | {
        "gpu": torch.cuda.get_device_name(),
        "entries": layout.size,
        "repeats": options.repeats,
    }
    options.out.write_text(json.dumps({"header": head, "rows": rows}, indent=1) + "\n")


def measured(case: dict[str, Any], methods: Methods, repeats: int) -> Iterator[dict[str, Any]]:
    """Median, least and largest seconds of each method, after two calls that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for method in (*methods.values(), *methods.values()):
        method()
    for _ in range(repeats):
        for name, method in methods.items():
            torch.cuda.synchronize()
            start = perf_counter()
            method()
            torch.cuda.synchronize()
            seconds[name].append(perf_counter() - start)
    for name, taken in seconds.items():
        yield {"case": case, "method": name, "seconds": median(taken), "least": min(taken), "largest": max(taken)}


def cases(layout: jg.Layout) -> Iterator[tuple[dict[str, Any], Methods]]:
    rng = np.random.default_rng(0)
    update, gpu = heavy_tailed(layout, rng), torch.device("cuda")
    prices = jg.Prices.of(jg.LayerType(), layout).to(gpu)
    each = jg.Prices.of(jg.PerEntry(torch.from_numpy(rng.lognormal(0, 0.5, layout.size))), layout).to(gpu)
    spelled_out = prices.at(torch.arange(layout.size, device=gpu)).float()
    for density in DENSITIES:
        yield {"input": "update", "density": density}, selection(update, prices, each, spelled_out, density)
    for density in (DENSITIES[0], DENSITIES[-1]):
        yield {"input": "two budgets", "density": density}, budgeted(update, prices, density)
    several = torch.stack([update * (1 + 0.1 * i) for i in range(CLIENTS)])
    for density in DENSITIES:
        yield {"input": f"{CLIENTS} updates", "density": density}, at_once(several, prices, spelled_out, density)
    for name, hostile in adversarial(update, rng).items():
        for density in (DENSITIES[0], DENSITIES[-1]):
            yield {"input": name, "density": density}, exact(hostile, prices, spelled_out, density)


def heavy_tailed(layout: jg.Layout, rng: np.random.Generator) -> Tensor:
    """Student's t with three degrees of freedom, and a lognormal scale a layer."""
    sizes = [s.size for s in layout.segments]
    scale = np.repeat(rng.lognormal(0, 1, len(sizes)), sizes)
    return torch.tensor(rng.standard_t(3, layout.size) * scale, dtype=torch.float32, device="cuda")


def selection(update: Tensor, prices: jg.Prices, each: jg.Prices, costs: Tensor, density: float) -> Methods:
    k = int(density * len(update))
    layers, entries = Scores(update, 1, prices), Scores(update, 1, each)
    operator = jg.CWMP(density=density, cost=jg.LayerType())
    state = operator.init(prices.layout)
    _, state = operator(update, state)
    for scores in (layers, entries):
        if not torch.equal(kernels.largest(scores, k), reference.largest(scores, k)):
            raise RuntimeError("the kernels differ from the reference")
    return {
        "CWMP": lambda: kernels.largest(layers, k),
        "CWMP, as a graph": captured(lambda: kernels.largest(layers, k)),
        "CWMP, a cost an entry": lambda: kernels.largest(entries, k),
        "CWMP operator": lambda: operator(update, state),
        "torch.topk": lambda: torch.topk(update.abs() / costs, k, sorted=False),
        "torch.topk and sort": lambda: torch.topk(update.abs() / costs, k, sorted=False).indices.sort(),
        "torch.topk and sort, as a graph": captured(
            lambda: torch.topk(update.abs() / costs, k, sorted=False).indices.sort()
        ),
        "one reading": lambda: update.sum(),
    }


def budgeted(update: Tensor, prices: jg.Prices, density: float) -> Methods:
    k, scores = int(density * len(update)), Scores(update, 1, prices)
    joules = 0.7 * prices.total(kernels.largest(scores.worth, k))
    return {
        "CWMP": lambda: kernels.largest(scores, k),
        "BudgetedCWMP": lambda: kernels.budgeted(scores, k, joules),
    }


def at_once(updates: Tensor, prices: jg.Prices, costs: Tensor, density: float) -> Methods:
    k = int(density * updates.shape[1])
    return {
        "CWMP": lambda: kernels.largest(Scores(updates, 1, prices), k),
        "torch.topk, one by one": lambda: [torch.topk(u.abs() / costs, k, sorted=False) for u in updates],
        "one reading": lambda: updates.sum(),
    }


def adversarial(update: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
    """Updates on which a sample or a pivot may do badly."""
    d = len(update)
    huge = update.clone()
    huge[: d // 5] *= 1e6
    return {
        "all equal": torch.ones_like(update),
        "sorted": update.sort().values,
        "one huge layer": huge,
        "90 % zeros": update * torch.from_numpy(rng.random(d) < 0.1).to(update.device),
        "two values": torch.from_numpy(np.where(rng.random(d) < 0.5, 1.0, 2.0)).float().to(update.device),
    }


def exact(update: Tensor, prices: jg.Prices, costs: Tensor, density: float) -> Methods:
    k = int(density * len(update))
    scores = Scores(update, 1, prices)
    return {
        "CWMP": lambda: kernels.largest(scores, k),
        "torch.topk": lambda: torch.topk(update.abs() / costs, k, sorted=False),
    }


def captured(call: Callable[[], Any]) -> Callable[[], None]:
    """The same work as a CUDA graph, replayed."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
        call()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            call()
    return graph.replay


if __name__ == "__main__":
    main()
