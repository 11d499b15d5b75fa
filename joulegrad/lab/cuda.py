"""Clients' turns on one GPU: several at once, each a captured graph replayed on a stream of its own.

A step of a small network is hundreds of tiny kernels, which take longer to launch than to run. So a step is captured
once a lane and replayed, and several lanes share the GPU, a thread each; while some train, others compress and encode.
Results are those of the CPU up to rounding, and not the same to the bit from run to run: libraries choose kernels by
their speed, and lanes that drop out at random share one generator.
"""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from threading import Lock

import numpy as np
import torch
from torch import Tensor, nn

from joulegrad import Layout
from joulegrad.lab import data
from joulegrad.lab.client import (
    NOISE,
    SHUFFLING,
    Answer,
    Answers,
    Diverged,
    draws,
    evaluating,
    own_buffers,
    recalled,
    remembered,
    reply,
    shuffled,
)
from joulegrad.lab.data import Dataset, Task
from joulegrad.lab.experiment import Experiment
from joulegrad.lab.memories import Memories
from joulegrad.lab.workers import Turn

__all__ = ["Gpu"]

LANES = 5  # beyond, the GPU is busy
WARM_UP = 3  # steps before a capture: libraries choose their kernels, optimizers make their tensors
TOGETHER = 128  # batches that are gathered and normalised at once
TEST_BATCH = 2000
ROOM = 2**34  # bytes of memories that stay on the GPU; the rest lies in the file


class Lane:
    """One model on the GPU, with its stream, and the step that was captured for it."""

    def __init__(self, experiment: Experiment, layout: Layout, model: nn.Module, device: torch.device) -> None:
        self.experiment, self.layout, self.device = experiment, layout, device
        self.stream = torch.cuda.Stream()
        self.model = copy.deepcopy(model).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        named = dict(self.model.named_parameters())
        self.parameters = [named[s.name] for s in layout.segments]
        self.own = own_buffers(self.model, layout)
        local = experiment.local
        self.rate = torch.tensor(local.lr, device=device)
        self.rule = torch.optim.SGD(
            self.parameters, lr=self.rate, momentum=local.momentum, weight_decay=local.weight_decay, fused=True
        )
        self.loss = torch.zeros((), device=device)
        self.inputs: Tensor | None = None  # of the captured step
        self.labels = torch.zeros(local.batch_size, dtype=torch.int64, device=device)
        self.graph = torch.cuda.CUDAGraph()

    def load(self, weights: Tensor, buffers: Tensor) -> None:
        """Begin a turn: the broadcast model, momentum at rest."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, list(self.layout.views(weights).values()))
            if self.layout.buffers:
                self.layout.assign_buffers(self.model, buffers)
            momenta = [s["momentum_buffer"] for s in self.rule.state.values() if s.get("momentum_buffer") is not None]
            if momenta:
                torch._foreach_zero_(momenta)
        self.loss.zero_()

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """One step of SGD: the captured one where the batch is whole."""
        if len(labels) < len(self.labels) or self.inputs is None:
            self._eager(inputs, labels)
            return
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        self.graph.replay()

    def _eager(self, inputs: Tensor, labels: Tensor) -> None:
        with autocast(self.experiment):
            error = nn.functional.cross_entropy(self.model(inputs), labels)
        self.rule.zero_grad(set_to_none=True)
        error.backward()
        self.rule.step()
        self.loss += error.detach() * len(labels)

    def capture(self, inputs: Tensor) -> None:
        """Record a step for batches like this one; what it leaves in the model is overwritten by `load`."""
        self.inputs = None
        self.model.train()
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self._eager(inputs, self.labels)
            self.stream.synchronize()
            kept = inputs.clone(memory_format=torch.preserve_format)
            with torch.cuda.graph(self.graph, stream=self.stream):
                self._eager(kept, self.labels)
        self.inputs = kept
        self.stream.synchronize()


class Gpu:
    """One GPU that plays clients' turns.

    Args:
        model: where training begins; its values do not matter.
        parts: which examples each client has.
        memories: what clients remember, where it does not fit the GPU and between processes.
    """

    def __init__(
        self, experiment: Experiment, task: Task, layout: Layout, model: nn.Module, parts: list[Tensor],
        memories: Memories,
    ) -> None:  # fmt: skip
        if not torch.cuda.is_available():
            raise ValueError("device 'cuda' was asked for, and torch finds no GPU that it can use")
        self.device = torch.device("cuda", torch.cuda.current_device())
        tf32 = experiment.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        self.experiment, self.layout, self.memories = experiment, layout, memories
        self.parts = [part.to(self.device) for part in parts]
        self.task = task._replace(mean=task.mean.to(self.device), std=task.std.to(self.device))
        self.train_set, self.test_set = (_resident(task, part, self.device) for part in (task.train, task.test))
        self.states = [operator.init(layout) for operator in experiment.operators]
        self.fresh = {name: b.clone().to(self.device) for name, b in own_buffers(model, layout).items()}
        self.kept: dict[int, tuple[int, dict[str, Tensor]]] = {}  # client: place, memory; oldest first
        self.unwritten: set[int] = set()
        count = min(LANES, experiment.clients_per_round or len(parts))
        self.lanes = [Lane(experiment, layout, model, self.device) for _ in range(count)]
        self.free: SimpleQueue[Lane] = SimpleQueue()
        for lane in self.lanes:
            self.free.put(lane)
        self.threads = ThreadPoolExecutor(count, thread_name_prefix="lane")
        self.keeping = Lock()
        size = experiment.local.batch_size
        if any(len(part) >= size for part in parts):
            whole = self._inputs(torch.arange(size, device=self.device) % len(task.train.labels), None)
            with torch.backends.cudnn.flags(benchmark=True, allow_tf32=tf32):  # for whole batches alone: each
                for lane in self.lanes:  # other size would be tried out anew, in each thread
                    lane.capture(whole)

    def train(self, t: int, turns: list[Turn], weights: Tensor, buffers: Tensor) -> Answers:
        """Answers as they come, the client with most examples first to begin."""
        broadcast, averaged = weights.to(self.device), buffers.to(self.device)
        torch.cuda.synchronize()
        longest_first = sorted(turns, key=lambda turn: -len(self.parts[turn.client]))
        futures = [self.threads.submit(self._turn, t, turn, broadcast, averaged) for turn in longest_first]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def _turn(self, t: int, turn: Turn, broadcast: Tensor, averaged: Tensor) -> Answer | Diverged:
        """One client's round on a lane that is free; others go on meanwhile."""
        lane = self.free.get()
        try:
            with torch.cuda.stream(lane.stream):
                return self._play(t, turn, lane, broadcast, averaged)
        finally:
            self.free.put(lane)

    def _play(self, t: int, turn: Turn, lane: Lane, broadcast: Tensor, averaged: Tensor) -> Answer | Diverged:
        began, client, place = time.perf_counter(), turn.client, turn.place
        state = recalled(self.states[client % len(self.states)], lane.own, self.fresh, self._memory(turn))
        lane.load(broadcast, averaged)
        loss = self._train(t, client, lane)
        update = broadcast - torch.cat([p.detach().reshape(-1) for p in lane.parameters])
        buffers = self.layout.buffer_values(lane.model)
        lane.stream.synchronize()
        trained = time.perf_counter() - began
        try:
            answer, state = reply(self.experiment, self.layout, t, client, update, buffers, state, loss, trained)
        except Diverged as why:
            return why
        if place.write is not None and turn.sends(answer.payload):
            self._keep(client, place.write, dict(remembered(state, lane.own)))
        lane.stream.synchronize()
        return answer

    def _train(self, t: int, client: int, lane: Lane) -> float:
        """LocalSGD; the mean loss."""
        experiment, part, seen = self.experiment, self.parts[client], 0
        local = experiment.local
        noise = int(draws(experiment, NOISE, t, client).integers(2**62))
        augmenting = torch.Generator().manual_seed(noise) if local.augment else None
        lane.rate.fill_(local.lr_at(t, experiment.rounds))
        lane.model.train()
        batches = list(shuffled(len(part), local, draws(experiment, SHUFFLING, t, client)))
        for some in (batches[i : i + TOGETHER] for i in range(0, len(batches), TOGETHER)):
            chosen = part[torch.from_numpy(np.concatenate(some)).to(self.device)]
            inputs, labels, at = self._inputs(chosen, augmenting), self.train_set.labels[chosen], 0
            for batch in some:
                lane.step(inputs[at : at + len(batch)], labels[at : at + len(batch)])
                at += len(batch)
            seen += at
        return float(lane.loss) / max(seen, 1)

    def evaluate(self, weights: Tensor, buffers: Tensor) -> tuple[float, float]:
        """Accuracy and mean loss on the test examples."""
        lane, right, loss = self.lanes[0], torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        labels = self.test_set.labels
        with torch.cuda.stream(lane.stream), torch.no_grad():
            lane.load(weights.to(self.device), buffers.to(self.device))
            evaluating(lane.model, self.experiment)
            for first in range(0, len(labels), TEST_BATCH):
                some = slice(first, first + TEST_BATCH)
                inputs = self.test_set.inputs[some]
                if inputs.dtype == torch.uint8:
                    inputs = _normalised(self.task, inputs)
                with autocast(self.experiment):
                    scores = lane.model(inputs).float()
                right += (scores.argmax(1) == labels[some]).sum()
                loss += nn.functional.cross_entropy(scores, labels[some], reduction="sum")
            return float(right) / len(labels), float(loss) / len(labels)

    def checkpoint(self) -> None:
        """Write what the file does not have yet."""
        for client in self.unwritten:
            self._write(client)
        self.unwritten.clear()

    def close(self) -> None:
        """End the threads."""
        self.threads.shutdown(cancel_futures=True)

    def _inputs(self, chosen: Tensor, augmenting: torch.Generator | None) -> Tensor:
        inputs = self.train_set.inputs[chosen]
        if augmenting is not None:
            inputs = data.augment(inputs, augmenting)
        return _normalised(self.task, inputs)

    def _memory(self, turn: Turn) -> dict[str, Tensor] | None:
        if turn.client in self.kept:
            return self.kept[turn.client][1]
        return self.memories.read(turn.client, turn.place.read)

    def _keep(self, client: int, place: int, memory: dict[str, Tensor]) -> None:
        with self.keeping:
            self._keep_alone(client, place, memory)

    def _keep_alone(self, client: int, place: int, memory: dict[str, Tensor]) -> None:
        self.kept.pop(client, None)
        self.kept[client] = place, memory
        self.unwritten.add(client)
        each = sum(m.numel() * m.element_size() for m in memory.values())
        while len(self.kept) > 1 and each * len(self.kept) > ROOM:
            oldest = next(iter(self.kept))
            if oldest in self.unwritten:
                self._write(oldest)
                self.unwritten.remove(oldest)
            del self.kept[oldest]

    def _write(self, client: int) -> None:
        place, memory = self.kept[client]
        self.memories.write(client, place, {name: m.cpu() for name, m in memory.items()})


def autocast(experiment: Experiment) -> torch.autocast:
    """bfloat16 where asked for; without a cache of cast weights, which a captured graph must not share."""
    return torch.autocast("cuda", torch.bfloat16, experiment.precision == "bfloat16", cache_enabled=False)


def _resident(task: Task, source: Dataset, device: torch.device) -> Dataset:
    """All examples on the GPU as they are: bytes stay bytes."""
    return Dataset(source.inputs.to(device), source.labels.to(device))


def _normalised(task: Task, inputs: Tensor) -> Tensor:
    inputs = data.normalised(task, inputs)
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs
