"""The paper's protocol, round by round.

    broadcast        every sampled client gets the model, or what has changed since its last round
    train            LocalSGD on its own examples; its update is what it was given minus what it has
    compress         its operator chooses what to send, and remembers the rest
    encode           a payload: its length is what was sent
    mean             the server decodes, and averages in a stream
    step             the server's rule moves the model

`Simulation` plays it on real payloads and yields a row of figures a round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

import joulegrad
from joulegrad import Layout, Mean, Prices, SparseUpdate
from joulegrad.lab import data, models
from joulegrad.lab.client import LOSSES, SAMPLING, Answer, Diverged, draws, own_buffers, remembered
from joulegrad.lab.experiment import Experiment
from joulegrad.lab.memories import Memories, Places
from joulegrad.lab.workers import Turn, Workers

__all__ = ["Downlink", "Engine", "Row", "Simulation"]

Row = dict[str, Any]  # of JSON's types: a line of the rounds file


class Engine(Protocol):
    """Who plays the clients' turns: processes on the CPU, or a GPU."""

    def train(self, t: int, turns: list[Turn], weights: Tensor, buffers: Tensor) -> Iterator[Answer | Diverged]:
        """What comes back from each client, in any order."""
        ...

    def evaluate(self, weights: Tensor, buffers: Tensor) -> tuple[float, float]:
        """Accuracy and mean loss on the test examples."""
        ...

    def checkpoint(self) -> None:
        """Write to the memories what has been kept elsewhere."""
        ...

    def close(self) -> None:
        """End."""
        ...


class Simulation:
    """One experiment, played: `for row in Simulation(experiment)`.

    Args:
        device: "cpu" or "cuda".
        workers: processes on the CPU; None: one a core. Results are the same for any number.
        memories: file for what clients remember; None: a temporary one.

    Example:
        >>> from joulegrad.lab.experiment import Experiment
        >>> from joulegrad.lab.partition import IID
        >>> experiment = Experiment(model="logistic", partition=IID(clients=4), rounds=2)
        >>> with Simulation(experiment, workers=1) as simulation:
        ...     rows = list(simulation)
        >>> [row["round"] for row in rows], rows[0]["bytes_up"]
        ([1, 2], 10520)
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        device: str = "cpu",
        workers: int | None = None,
        memories: Path | None = None,
    ) -> None:
        self.experiment, self.t = experiment, 0
        self.task = data.load(experiment.data)
        self.parts = experiment.partition.split(self.task.train, experiment.seed)
        with torch.random.fork_rng():
            torch.manual_seed(experiment.seed)
            model = models.build(experiment.model, self.task.shape, self.task.classes)
        self.layout = Layout.of(model, buffers=experiment.buffers)
        self.prices = Prices.of(experiment.cost, self.layout)
        self.weights, self.buffers = self.layout.values(model), self.layout.buffer_values(model)
        self.rule = experiment.server.rule(self.weights)
        self.places = Places(len(self.parts))
        self.downlink = Downlink(experiment.downlink, self.layout, len(self.parts))
        own = own_buffers(model, self.layout)
        empty = [remembered(operator.init(self.layout), own) for operator in experiment.operators]
        self.memories = Memories(empty, memories)
        self.engine = _engine(self, model, device, workers)

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, and forget what was temporary."""
        self.engine.close()
        self.memories.close()

    def __iter__(self) -> Iterator[Row]:
        while self.t < self.experiment.rounds:
            yield self.round()

    def round(self) -> Row:
        """Algorithm 1, once."""
        started, t, experiment = time.perf_counter(), self.t, self.experiment
        clients = self._sampled()
        vanishing = self._vanishing(clients)
        bytes_down = sum(self.downlink.send(client, t, self.weights, self.buffers) for client in clients)
        turns = [Turn(c, self.places.turn(c, c in vanishing)) for c in clients]
        heard = _Heard(self.prices)
        answers = self.engine.train(t, turns, self.weights, self.buffers)
        mean = self._mean(heard.each(self._arriving(answers, vanishing, heard), self.layout))
        self.t += 1
        for turn in turns:
            if turn.client not in heard.lost:
                self.places.moved(*turn)
        if mean is not None:
            self._step(mean)
        done = time.perf_counter()
        heard.seconds["aggregate"] += done - heard.last
        row: Row = {"round": self.t, "accuracy": None, "loss": None}
        if self.t % experiment.evaluate_every == 0 or self.t == experiment.rounds:
            row["accuracy"], row["loss"] = self.engine.evaluate(self.weights, self.buffers)
            heard.seconds["evaluate"] = time.perf_counter() - done
        heard.seconds["round"] = time.perf_counter() - started
        return row | heard.row() | {
            "clients": clients, "lost": sorted(vanishing | heard.lost), "bytes_down": bytes_down,
            "seconds": {name: round(s, 6) for name, s in heard.seconds.items()},
        }  # fmt: skip

    def _sampled(self) -> list[int]:
        n, everybody = self.experiment.clients_per_round, len(self.parts)
        if n is None:
            return list(range(everybody))
        generator = draws(self.experiment, SAMPLING, self.t)
        return sorted(generator.choice(everybody, n, replace=False).tolist())

    def _vanishing(self, clients: list[int]) -> set[int]:
        chances = draws(self.experiment, LOSSES, self.t).random(len(clients))
        return {c for c, chance in zip(clients, chances, strict=True) if chance < self.experiment.dropout}

    def _arriving(self, answers: Iterator[Answer | Diverged], vanishing: set[int], heard: _Heard) -> Iterator[Answer]:
        """The answers that the server gets."""
        for answer in answers:
            if isinstance(answer, Diverged):
                if self.experiment.on_nan == "stop":
                    raise answer
                heard.lost.add(answer.client)
            elif answer.client not in vanishing:
                yield answer

    def _mean(self, arriving: Iterator[tuple[Answer, SparseUpdate]]) -> Mean | None:
        """Σ_k p_k (m_k ⊙ g_k); None where nothing arrived."""
        equal = self.experiment.weights == "equal"
        weighted = ((sent, 1 if equal else len(self.parts[answer.client])) for answer, sent in arriving)
        first = next(weighted, None)
        return None if first is None else joulegrad.mean(_chained(first, weighted))

    def _step(self, mean: Mean) -> None:
        before = self.weights.clone()
        self.weights.grad = mean.update
        self.rule.step()
        if mean.buffers is not None:
            self.buffers = mean.buffers
        self.downlink.changed(before, self.weights, self.t)

    def state(self) -> dict[str, Tensor]:
        """All that the next round depends on. What is drawn is a function of the seed and the round: nothing of it."""
        self.engine.checkpoint()
        self.places.commit()
        rule = {
            f"rule {name}": torch.as_tensor(value).clone()
            for name, value in self.rule.state.get(self.weights, {}).items()
            if value is not None
        }
        tensors = {"weights": self.weights, "buffers": self.buffers, "round": torch.tensor(self.t)}
        return tensors | rule | self.places.state() | self.downlink.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on after `state`."""
        self.t = int(state["round"])
        self.weights.copy_(state["weights"])
        self.buffers = state["buffers"].clone()
        rule = {name.removeprefix("rule "): t.clone() for name, t in state.items() if name.startswith("rule ")}
        if rule:
            saved = self.rule.state_dict()
            self.rule.load_state_dict({**saved, "state": {0: rule}})
        self.places.restore(state)
        self.downlink.restore(state)


class _Heard:
    """What a round's answers add up to."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.bytes = self.entries = self.examples = self.answers = 0
        self.losses: list[float] = []
        self.joules: list[float] = []
        self.layers = torch.zeros(len(prices.layout.segments), dtype=torch.int64)
        self.lost: set[int] = set()
        self.last = 0.0  # when the last answer had been added
        self.seconds = dict.fromkeys(("train", "compress", "encode", "decode", "aggregate"), 0.0)

    def each(self, answers: Iterator[Answer], layout: Layout) -> Iterator[tuple[Answer, SparseUpdate]]:
        """Decode, and count."""
        for answer in answers:
            started = time.perf_counter()
            sent = joulegrad.decode(answer.payload, layout)
            decoded = time.perf_counter()
            upto = torch.searchsorted(sent.indices, layout.ends)
            self.layers += upto.diff(prepend=upto.new_zeros(1))
            self.joules.append(self.prices.total(sent.indices))
            self.losses.append(answer.loss)
            self.bytes, self.entries = self.bytes + len(answer.payload), self.entries + len(sent)
            self.answers += 1
            self.seconds["decode"] += decoded - started
            for name, seconds in answer.seconds.items():
                self.seconds[name] += seconds
            began = time.perf_counter()
            yield answer, sent
            self.seconds["aggregate"] += time.perf_counter() - began
        self.last = time.perf_counter()

    def row(self) -> Row:
        """As a row has it."""
        return {
            "train_loss": math.fsum(sorted(self.losses)) / self.answers if self.answers else None,
            "bytes_up": self.bytes, "entries": self.entries, "cost": math.fsum(sorted(self.joules)),
            "layer_entries": self.layers.tolist(), "starved_layers": int((self.layers == 0).sum()),
        }  # fmt: skip


class Downlink:
    """What the server sends so that a client has its model: the whole, or what has changed since its last round.

    A delta holds new values at the places that changed, not differences: the client's copy is then the server's to the
    last bit. Whichever payload is shorter is sent; buffers always travel whole.
    """

    def __init__(self, mode: str, layout: Layout, clients: int) -> None:
        self.mode, self.layout = mode, layout
        self.seen = np.full(clients, -1, np.int32)  # which version of the model each client has
        self.since = torch.zeros(layout.size, dtype=torch.int32)  # with which version each entry last changed
        self.whole: int | None = None
        self.deltas: dict[int, int] = {}

    def send(self, client: int, t: int, weights: Tensor, buffers: Tensor) -> int:
        """The bytes to bring a client to version t."""
        seen = int(self.seen[client])
        self.seen[client] = t
        if self.whole is None:  # always as long: every entry as it is
            self.whole = self._length(torch.arange(self.layout.size), weights, buffers)
        if self.mode == "dense" or seen < 0:
            return self.whole
        if seen not in self.deltas:
            changed = (self.since > seen).nonzero().squeeze(1)
            self.deltas[seen] = min(self.whole, self._length(changed, weights, buffers))
        return self.deltas[seen]

    def _length(self, indices: Tensor, weights: Tensor, buffers: Tensor) -> int:
        update = SparseUpdate(indices, weights[indices], self.layout.size)
        return len(joulegrad.encode(update.with_buffers(buffers) if self.layout.buffers else update, self.layout))

    def changed(self, before: Tensor, after: Tensor, version: int) -> None:
        """The server has stepped."""
        self.deltas = {}
        if self.mode == "delta":
            self.since[before != after] = version

    def state(self) -> dict[str, Tensor]:
        """For the checkpoint."""
        return {"seen": torch.from_numpy(self.seen), **({"since": self.since} if self.mode == "delta" else {})}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As the checkpoint says."""
        self.seen = state["seen"].numpy().copy()
        if "since" in state:
            self.since = state["since"].clone()


def _chained(first: tuple[SparseUpdate, float], rest: Iterator[tuple[SparseUpdate, float]]) -> Iterator[Any]:
    yield first
    yield from rest


def _engine(simulation: Simulation, model: torch.nn.Module, device: str, workers: int | None) -> Engine:
    s = simulation
    if device == "cuda":
        from joulegrad.lab.cuda import Gpu

        return Gpu(s.experiment, s.task, s.layout, model, s.parts, s.memories)
    if device != "cpu":
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}")
    return Workers(s.experiment, s.task, s.layout, model, s.parts, s.memories, workers)
