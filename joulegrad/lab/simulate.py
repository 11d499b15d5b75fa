"""The paper's protocol, round by round.

    broadcast        every sampled client gets the model, what has changed since its last round, or what an operator
                     chooses of it
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

import joulegrad
from joulegrad import Layout, Mean, Prices, SparseUpdate
from joulegrad.lab import data, models
from joulegrad.lab.accounts import Accounts
from joulegrad.lab.client import (
    LOSSES,
    SAMPLING,
    Answer,
    Answers,
    Diverged,
    draws,
    not_finite_at,
    own_buffers,
    remembered,
)
from joulegrad.lab.data import Task
from joulegrad.lab.downlink import downlink
from joulegrad.lab.experiment import Experiment
from joulegrad.lab.memories import Memories, Places
from joulegrad.lab.workers import Turn, Workers
from joulegrad.wire import header
from joulegrad.wire.decoding import ENTRIES, parse
from joulegrad.wire.inspection import entropy

__all__ = ["Engine", "Row", "Simulation"]

Row = dict[str, Any]  # of JSON's types: a line of the rounds file
COUNTED = 20_000  # numbers: a header says who has which classes up to so many


class Engine(Protocol):
    """Who plays the clients' turns: processes on the CPU, or a GPU."""

    def train(self, t: int, turns: list[Turn], weights: Tensor, buffers: Tensor) -> Answers:
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
        engine: makes another engine than these, of the simulation and its model.

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
        engine: Callable[[Simulation, torch.nn.Module], Engine] | None = None,
    ) -> None:
        self.experiment, self.device, self.t = experiment, device, 0
        self.task = data.load(experiment.data)
        self.parts = experiment.partition.split(self.task.train, experiment.seed)
        _check(experiment, self.task, self.parts, device)
        with torch.random.fork_rng():
            torch.manual_seed(experiment.seed)
            model = models.build(experiment.model, self.task.shape, self.task.classes)
        self.layout = Layout.of(model, buffers=experiment.buffers)
        self.prices = Prices.of(experiment.cost, self.layout)
        self.weights, self.buffers = self.layout.values(model), self.layout.buffer_values(model)
        self.rule = experiment.server.rule(self.weights)
        self.places = Places(len(self.parts))
        self.downlink = downlink(experiment, self.layout, len(self.parts), self.weights)
        self.accounts = Accounts(experiment, model, self.task.shape, [len(part) for part in self.parts])
        own = own_buffers(model, self.layout)
        empty = [remembered(operator.init(self.layout), own) for operator in experiment.operators]
        self.memories = Memories(empty, memories)
        try:
            self.engine = engine(self, model) if engine else _engine(self, model, device, workers)
        except BaseException:
            self.memories.close()
            raise

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
        able = self.accounts.able(t, clients)  # all, but those whose battery is flat
        vanishing = self._vanishing(clients)
        bytes_down = {client: self.downlink.send(client, t, self.weights, self.buffers) for client in able}
        places = {client: self.places.turn(client, client in vanishing) for client in able}
        turns = [Turn(c, places[c], self.accounts.most(c, bytes_down[c])) for c in able]
        heard = _Heard(self.prices)
        with closing(self.engine.train(t, turns, self.received, self.buffers)) as answers:  # now, whatever goes wrong
            mean = self._mean(heard.each(self._arriving(answers, bytes_down, vanishing, heard), self.layout))
        self.t += 1
        for turn in turns:
            if turn.client not in heard.lost:
                self.places.moved(turn.client, turn.place)
        before = self.weights.clone()
        if mean is not None:
            self._step(mean)
        self.downlink.changed(before, self.weights, self.buffers, self.t)
        done = time.perf_counter()
        heard.seconds["aggregate"] += done - heard.last
        row: Row = {"round": self.t, "accuracy": None, "loss": None}
        if self.t % experiment.evaluate_every == 0 or self.t == experiment.rounds:
            row["accuracy"], row["loss"] = self._evaluated()
            heard.seconds["evaluate"] = time.perf_counter() - done
        heard.seconds["round"] = time.perf_counter() - started
        return row | heard.row() | self.accounts.row(clients, heard.seconds) | {
            "clients": clients, "lost": sorted(vanishing | heard.lost | self.accounts.flat),
            "bytes_down": sum(bytes_down.values()),
            "seconds": {name: round(s, 6) for name, s in heard.seconds.items()},
        }  # fmt: skip

    @property
    def received(self) -> Tensor:
        """The weights that up-to-date clients have: the server's, or what its operator has sent of them."""
        return self.downlink.received(self.weights)

    def facts(self) -> Row:
        """What a result needs to be read: names and sizes behind its lists."""
        kernels = joulegrad.kernels.chosen(torch.device(self.device)).__name__
        return {
            "kernels": kernels.removeprefix("joulegrad."),
            "layers": {s.name: s.size for s in self.layout.segments},
            "buffer_entries": self.layout.buffer_size,
            "classes": self.task.classes,
            "train_examples": len(self.task.train.labels),
            "test_examples": len(self.task.test.labels),
            "clients": len(self.parts),
            "class_counts": self._class_counts(),
        }

    def _class_counts(self) -> list[list[int]] | None:
        """Of each client, how many examples of each class it has; None where that would be a long list."""
        labels, classes = self.task.train.labels, self.task.classes
        if len(self.parts) * classes > COUNTED:
            return None
        return [labels[part].bincount(minlength=classes).tolist() for part in self.parts]

    def _sampled(self) -> list[int]:
        n, everybody = self.experiment.clients_per_round, len(self.parts)
        if n is None:
            return list(range(everybody))
        generator = draws(self.experiment, SAMPLING, self.t)
        return sorted(generator.choice(everybody, n, replace=False).tolist())

    def _vanishing(self, clients: list[int]) -> set[int]:
        chances = draws(self.experiment, LOSSES, self.t).random(len(clients))
        return {c for c, chance in zip(clients, chances, strict=True) if chance < self.experiment.dropout}

    def _arriving(
        self, answers: Answers, bytes_down: Mapping[int, int], vanishing: set[int], heard: _Heard
    ) -> Iterator[Answer]:
        """The answers that the server gets; everybody pays for what it did."""
        for answer in answers:
            client, made = answer.client, None if isinstance(answer, Diverged) else answer
            if isinstance(answer, Diverged) and self.experiment.on_nan == "stop":
                raise answer
            lasted = self.accounts.turn(client, bytes_down[client], made, arrives=client not in vanishing)
            if made is None or not lasted:
                heard.lost.add(client)
            elif client not in vanishing:
                yield made

    def _mean(self, arriving: Iterator[tuple[Answer, SparseUpdate]]) -> Mean | None:
        """Σ_k p_k (m_k ⊙ g_k); None where nothing arrived."""
        equal = self.experiment.weights == "equal"
        weighted = ((sent, 1 if equal else len(self.parts[answer.client])) for answer, sent in arriving)
        first = next(weighted, None)
        return None if first is None else joulegrad.mean(_chained(first, weighted))

    def _step(self, mean: Mean) -> None:
        self.weights.grad = mean.update
        self.rule.step()
        if mean.buffers is not None:
            self.buffers = mean.buffers

    def _evaluated(self) -> tuple[float, float | None]:
        """Accuracy and loss of the model that clients have, whatever the server's own is.

        The loss is None where it is not finite, and nobody wants to stop for it.
        """
        accuracy, loss = self.engine.evaluate(self.received, self.buffers)
        if math.isfinite(loss):
            return accuracy, loss
        if self.experiment.on_nan == "drop":
            return accuracy, None
        place = not_finite_at(self.weights, self.layout)
        where = f", and its weights are not finite, first at {place}" if place else ""
        raise Diverged(f"round {self.t}, server: the loss of the model on the test examples is {loss:g}{where}")

    def state(self) -> dict[str, Tensor]:
        """All that the next round depends on. What is drawn is a function of the seed and the round: nothing of it.

        A checkpoint: what clients remember now is kept until two more have been made.
        """
        self.engine.checkpoint()
        self.memories.sync()
        self.places.commit()
        rule = {
            f"rule {name}": torch.as_tensor(value).clone()
            for name, value in self.rule.state.get(self.weights, {}).items()
            if value is not None
        }
        tensors = {"weights": self.weights, "buffers": self.buffers, "round": torch.tensor(self.t)}
        return tensors | rule | self.places.state() | self.downlink.state() | self.accounts.state()

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
        self.accounts.restore(state)


def _check(experiment: Experiment, task: Task, parts: list[Tensor], device: str) -> None:
    """What can only be known when the data are there."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}")
    n, local = experiment.clients_per_round, experiment.local
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty:
        raise ValueError(f"client {empty[0]} has no examples (and {len(empty) - 1} more); every client needs some")
    if n is not None and n > len(parts):
        raise ValueError(f"clients_per_round is {n:,}, but the partition has {len(parts):,} clients")
    if local.augment and len(task.shape) != 3:
        raise ValueError(f"local.augment crops and mirrors images; an input of {task.name} has shape {task.shape}")
    if device == "cpu" and experiment.precision == "tf32":
        raise ValueError("precision 'tf32' is a GPU's; on the CPU there are 'float32' and 'bfloat16'")


class _Heard:
    """What a round's answers add up to."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.bytes = self.entries = self.examples = self.answers = self.index_bytes = 0
        self.losses: list[float] = []
        self.entropy: list[float] = []  # bits: what each answer's indices would take, drawn at random layer by layer
        self.joules: list[float] = []
        self.layers = torch.zeros(len(prices.layout.segments), dtype=torch.int64)
        self.lost: set[int] = set()
        self.last = 0.0  # when the last answer had been added
        self.seconds = dict.fromkeys(("train", "compress", "encode", "decode", "aggregate"), 0.0)

    def each(self, answers: Iterator[Answer], layout: Layout) -> Iterator[tuple[Answer, SparseUpdate]]:
        """Decode, and count."""
        for answer in answers:
            started = time.perf_counter()
            parsed = parse(answer.payload, layout)
            sent = parsed.update
            decoded = time.perf_counter()
            counts = parsed.layers[:, ENTRIES]  # of each layer
            self.layers += torch.from_numpy(counts)
            self.joules.append(self.prices.total(sent.indices))
            self.losses.append(answer.loss)
            self.bytes, self.entries = self.bytes + len(answer.payload), self.entries + len(sent)
            self.index_bytes += parsed.index_bytes
            pairs = zip(counts.tolist(), layout.segments, strict=True)
            self.entropy.append(math.fsum(s.size * entropy(k, s.size) for k, s in pairs))
            self.answers += 1
            self.seconds["decode"] += decoded - started
            for name, seconds in answer.seconds.items():
                self.seconds[name] += seconds
            began = time.perf_counter()
            yield answer, sent
            self.seconds["aggregate"] += time.perf_counter() - began
        self.last = time.perf_counter()

    def row(self) -> Row:
        """As a row has it; sums of floats are exact, so that the order of arrival does not matter."""
        layout, n = self.prices.layout, self.answers
        pairs = zip(self.layers.tolist(), layout.segments, strict=True)
        return {
            "train_loss": math.fsum(self.losses) / n if n else None,
            "bytes_up": self.bytes, "entries": self.entries, "cost": math.fsum(self.joules),
            "index_bytes": self.index_bytes,
            "value_bytes": self.bytes - self.index_bytes - n * (header.LAYOUT.size + 4 * layout.buffer_size),
            "entropy_bytes": math.fsum(self.entropy) / 8,
            "density": self.entries / (n * layout.size) if n else None,
            "layer_entries": self.layers.tolist(),
            "layer_density": [k / (n * s.size) for k, s in pairs] if n else None,
            "starved_layers": int((self.layers == 0).sum()),
        }  # fmt: skip


def _chained(first: tuple[SparseUpdate, float], rest: Iterator[tuple[SparseUpdate, float]]) -> Iterator[Any]:
    yield first
    yield from rest


def _engine(simulation: Simulation, model: torch.nn.Module, device: str, workers: int | None) -> Engine:
    s = simulation
    if device == "cuda":
        from joulegrad.lab.cuda import Gpu

        return Gpu(s.experiment, s.task, s.layout, model, s.parts, s.memories)
    return Workers(s.experiment, s.task, s.layout, model, s.parts, s.memories, workers)
