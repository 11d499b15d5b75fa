"""What works here, and what does not: what `joulegrad doctor` shows."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

import joulegrad
from joulegrad import kernels
from joulegrad.lab.workers import cores

EXTRAS = {
    "lab": ("sklearn", "scipy", "safetensors", "typer", "rich", "matplotlib", "PIL", "pooch", "requests", "filelock"),
    "report": ("plotly",),
    "flower": ("flwr",),
    "nvml": ("pynvml",),
}
OPTIONAL = {"tensorboard": "joulegrad run --tensorboard", "pyarrow": "joulegrad table -o FILE.parquet"}


class Fact(NamedTuple):
    """One line: a name, what was found, and whether it is as it should be."""

    name: str
    found: str
    good: bool = True


def facts() -> Iterator[Fact]:
    """Versions, threads, the kernels that serve each device, the compiler's cache, and what is not installed."""
    yield Fact("joulegrad", joulegrad.__version__)
    yield Fact("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("torch", "numpy", "numba", "triton"):
        found = _version(package)
        needed = package != "triton"
        yield Fact(package, found or ("missing" if needed else "not installed"), found is not None or not needed)
    yield Fact("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores (torch.set_num_threads changes it)")
    yield Fact("selection on the CPU", f"{_kernel(torch.device('cpu'))}, compiled by numba")
    yield from _gpu()
    yield _cache()
    yield from _calls()
    yield from _meters()
    yield Fact("simulator", f"{cores()} processes by default on the CPU, one a core")
    for extra, modules in EXTRAS.items():
        missing = [m for m in modules if importlib.util.find_spec(m) is None]
        yield Fact(f"joulegrad[{extra}]", f"missing: pip install 'joulegrad[{extra}]'" if missing else "installed")
    for package, use in OPTIONAL.items():
        found = _version(package)
        yield Fact(package, found or f"not installed; only {use} needs it: pip install {package}")


def _kernel(device: torch.device) -> str:
    return kernels.chosen(device).__name__.removeprefix("joulegrad.")


def _gpu() -> Iterator[Fact]:
    if not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        yield Fact("selection on a GPU", f"no GPU that torch can use ({built}): everything works, on the CPU")
        return
    name, kernel = torch.cuda.get_device_name(), _kernel(torch.device("cuda"))
    if kernel == "kernels.reference":
        why = "for want of Triton: pip install triton" if torch.version.cuda else "since Triton's are for NVIDIA's GPUs"
        yield Fact("selection on a GPU", f"{kernel} on {name}: plain torch, slower, {why}")
        yield Fact("both budgets on a GPU", "a search on the CPU; only entries in doubt are copied")
        return
    yield Fact("selection on a GPU", f"{kernel} on {name}, compiled by Triton {_version('triton')}")
    yield Fact("both budgets on a GPU", "kernels.priced where costs are constant in layers, else a search on the CPU")


def _meters() -> Iterator[Fact]:
    """What can measure joules, and why nothing else can."""
    from joulegrad.energy import meters

    here, absent = meters.found()
    for meter in here:
        yield Fact("joules", f"measured by {meter.source}: {', '.join(meter.read())}")
    for why in absent:
        if why.mendable or not here:
            yield Fact("joules", f"not measured by {why}")


def _cache() -> Fact:
    """Where compiled code is kept for the next process."""
    from joulegrad.kernels import passes

    cache = getattr(passes.survey, "_cache", None)
    folder = getattr(cache, "cache_path", None)
    if folder is None:
        return Fact("compiled code", "kept nowhere: each process compiles for itself; set NUMBA_CACHE_DIR", good=False)
    return Fact("compiled code", f"kept in {Path(folder)}")


def _calls() -> Iterator[Fact]:
    """What a process pays once, for compiling or for reading what was compiled; and what a call takes after that."""
    layout = joulegrad.Layout.from_shapes({"conv": (200_000,), "head": (1000,)})
    cost = joulegrad.Table({"conv": 1.0, "head": 5.0})
    compress = joulegrad.ErrorFeedback(joulegrad.Quantized(joulegrad.CWMP(density=0.01, cost=cost), bits=1))
    state, update = compress.init(layout), torch.linspace(-1, 1, layout.size)
    for name in ("first call", "next call"):
        start = time.perf_counter()
        sent, _ = compress(update, state)
        joulegrad.decode(joulegrad.encode(sent, layout), layout)
        yield Fact(name, f"{time.perf_counter() - start:.3f} s to select, quantise, encode and decode 201,000 entries")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
