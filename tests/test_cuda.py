"""The GPU engine's bookkeeping, played by a GPU made of the CPU: lanes, threads and memories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from joulegrad import CWMP, ErrorFeedback, LayerType, Quantized
from joulegrad.lab import cuda
from joulegrad.lab.client import Diverged
from joulegrad.lab.experiment import Experiment, LocalSGD
from joulegrad.lab.partition import Dirichlet
from joulegrad.lab.simulate import Simulation

REMEMBERING = ErrorFeedback(Quantized(CWMP(density=0.05, cost=LayerType()), bits=4))
BASE = Experiment(
    model="mlp", partition=Dirichlet(7, alpha=0.5, minimum=3), local=LocalSGD(lr=0.05, momentum=0.9, batch_size=16),
    compress=REMEMBERING, rounds=4,
)  # fmt: skip


class Stream:
    """Everything is done at once."""

    def synchronize(self) -> None:
        pass


class Mark:
    """A CUDA event."""

    def __init__(self, blocking: bool) -> None:
        self.recorded = False

    def record(self, stream: Stream) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded


class Graph:
    """Replays what its lane would do."""

    replays = 0

    def replay(self) -> None:
        Graph.replays += 1
        self.step()


class AsTorch:
    """The torch that `cuda.py` sees: a GPU is there, and it is the CPU."""

    cuda = SimpleNamespace(
        is_available=lambda: True, current_device=lambda: 0, synchronize=lambda: None, Stream=Stream, Event=Mark,
        CUDAGraph=Graph, stream=lambda stream: nullcontext(), graph=lambda graph, stream: nullcontext(),
    )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, *_: object) -> torch.device:
        return torch.device("cpu")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU made of the CPU."""
    capture = cuda.Lane.capture

    def captured(lane: cuda.Lane, inputs: Tensor) -> None:
        capture(lane, inputs)
        lane.graph.step = lambda: lane._eager(lane.inputs, lane.labels)

    monkeypatch.setattr(cuda, "torch", AsTorch())
    monkeypatch.setattr(cuda.Lane, "capture", captured)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(cuda, "AHEAD", 2)


@contextmanager
def played(experiment: Experiment, device: str, **settings: Any) -> Iterator[Simulation]:
    with Simulation(experiment, device=device, **settings) as simulation:
        yield simulation


def rows(experiment: Experiment, device: str, **settings: Any) -> list[dict[str, Any]]:
    with played(experiment, device, **settings) as simulation:
        return list(simulation)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"clients_per_round": 3, "dropout": 0.3},
        {"model": "cnn", "rounds": 2},
        {"local": LocalSGD(lr=0.05, batch_size=10_000)},  # nobody has a whole batch: nothing is captured
        {"local": LocalSGD(lr=0.05, momentum=0.9, batch_size=16, steps=5, weight_decay=0.1, schedule="cosine")},
    ],
    ids=str,
)  # fmt: skip
def test_it_plays_what_the_cpu_plays(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that are fewer than clients, and take their turns in any order, give the rounds of the CPU's workers."""
    experiment = replace(BASE, **change)
    monkeypatch.setattr(cuda, "LANES", 2)
    Graph.replays = 0
    expected, found = rows(experiment, "cpu", workers=1), rows(experiment, "cuda")
    assert bool(Graph.replays) == (experiment.local.batch_size < 10_000)
    for theirs, ours in zip(expected, found, strict=True):
        assert (ours["clients"], ours["lost"]) == (theirs["clients"], theirs["lost"])
        assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.02)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.02)
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=0.01)
        assert ours["entries"] == theirs["entries"]


def test_what_clients_remember_outlives_the_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Memories that do not fit, and those of a process that ended, are read back from the file."""
    monkeypatch.setattr(cuda, "ROOM", 1)
    whole = rows(BASE, "cuda")
    with played(BASE, "cuda", memories=tmp_path / "memories") as first:
        begun = [first.round(), first.round()]
        state = first.state()
    with played(BASE, "cuda", memories=tmp_path / "memories") as second:
        second.restore(state)
        begun += list(second)
    for a, b in zip(whole, begun, strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def test_a_client_that_diverges_stops_the_run_and_frees_its_lane() -> None:
    """What the listener raises ends the training of the others, and the next round can be played."""
    wild = replace(BASE, local=LocalSGD(lr=1e30, batch_size=16))
    with played(wild, "cuda") as simulation:
        with pytest.raises(Diverged, match="not finite"):
            simulation.round()
        engine = simulation.engine
        assert isinstance(engine, cuda.Gpu)
        assert sum(1 for _ in iter(lambda: engine.free.empty() or engine.free.get(), True)) == len(engine.lanes)
    dropped = rows(replace(wild, on_nan="drop", rounds=1), "cuda")
    assert dropped[0]["lost"]


def test_an_error_in_any_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the thread that trains nor those that compress may fail in silence."""
    for name in ("load", "paced"):
        with monkeypatch.context() as broken:
            broken.setattr(cuda.Lane, name, lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError), played(BASE, "cuda") as simulation:
                simulation.round()
    monkeypatch.setattr(cuda, "reply", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError), played(BASE, "cuda") as simulation:
        simulation.round()
