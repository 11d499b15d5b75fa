"""Clients' turns on one GPU: several at once, each a captured graph replayed on a stream of its own.

A step of a small network is hundreds of tiny kernels, which take longer to launch than to run. So a step is captured
once a lane and replayed, and several lanes share the GPU. One thread enqueues all training: cuDNN keeps its plans by
thread, and replays take it no time. What a client has learned is compressed and encoded by others meanwhile.
Results are those of the CPU up to rounding, and not the same to the bit from run to run: some gradients are added in
the order of arrival, and lanes that drop out at random share one generator.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from threading import Event, Lock
from typing import NamedTuple, TypeVar

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

T = TypeVar("T")

LANES = 5  # beyond, the GPU is busy, and the longest client would begin its turn no earlier than the others
AHEAD = 8  # steps that a lane is given at once; two such pieces are on their way
WARM_UP = 3  # steps before a capture: libraries choose their kernels, optimizers make their tensors
TOGETHER = 128  # batches that are gathered and normalised at once
TEST_BATCH = 2000
ROOM = 2**34  # bytes of memories that stay on the GPU; the rest lies in the file


class Lane:
    """One model on the GPU, with its stream, and the step that was captured for it."""

    def __init__(self, experiment: Experiment, layout: Layout, model: nn.Module, device: torch.device) -> None:
        self.experiment, self.layout = experiment, layout
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
        self.given: deque[torch.cuda.Event] = deque()  # the ends of the pieces that are on their way

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

    def paced(self) -> None:
        """A piece has been enqueued; wait for the one before the last: a full queue would keep everybody waiting."""
        self.given.append(torch.cuda.Event(blocking=True))
        self.given[-1].record(self.stream)
        if len(self.given) > 2:
            self.given.popleft().synchronize()

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

    def _eager(self, inputs: Tensor, labels: Tensor) -> None:
        with autocast(self.experiment):
            error = nn.functional.cross_entropy(self.model(inputs), labels)
        self.rule.zero_grad(set_to_none=True)
        error.backward()
        self.rule.step()
        self.loss += error.detach() * len(labels)


class Round(NamedTuple):
    """What all turns of a round share."""

    t: int
    weights: Tensor
    buffers: Tensor
    heard: SimpleQueue[Answer | BaseException]  # what came back, or why nothing will
    finishing: list[Future[None]]


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
        self.train_set, self.test_set = (_resident(part, self.device) for part in (task.train, task.test))
        self.states = [operator.init(layout) for operator in experiment.operators]
        self.fresh = {name: b.clone().to(self.device) for name, b in own_buffers(model, layout).items()}
        self.kept: dict[int, tuple[int, dict[str, Tensor]]] = {}  # client: place, memory; oldest first
        self.unwritten: set[int] = set()
        self.keeping = Lock()
        count = min(LANES, experiment.clients_per_round or len(parts))
        self.driver = ThreadPoolExecutor(1, thread_name_prefix="training")
        self.finishers = ThreadPoolExecutor(count, thread_name_prefix="finishing")
        self.free: SimpleQueue[Lane] = SimpleQueue()
        self.lanes = self._driven(lambda: [self._lane(model) for _ in range(count)])
        for lane in self.lanes:
            self.free.put(lane)

    def train(self, t: int, turns: list[Turn], weights: Tensor, buffers: Tensor) -> Answers:
        """Answers as they come, the client with most examples first to begin."""
        this = Round(t, weights.to(self.device), buffers.to(self.device), SimpleQueue(), [])
        torch.cuda.synchronize()
        left = Event()  # nobody listens any more
        driving = self.driver.submit(self._drive, this, turns, left)
        try:
            for _ in turns:
                answer = this.heard.get()
                if isinstance(answer, BaseException) and not isinstance(answer, Diverged):
                    raise answer
                yield answer
        finally:
            left.set()
            driving.result()

    def evaluate(self, weights: Tensor, buffers: Tensor) -> tuple[float, float]:
        """Accuracy and mean loss on the test examples."""
        return self._driven(lambda: self._evaluate(weights.to(self.device), buffers.to(self.device)))

    def checkpoint(self) -> None:
        """Write what the file does not have yet."""
        for client in self.unwritten:
            self._write(client)
        self.unwritten.clear()

    def close(self) -> None:
        """End the threads."""
        self.driver.shutdown(cancel_futures=True)
        self.finishers.shutdown(cancel_futures=True)

    def _driven(self, work: Callable[[], T]) -> T:
        """Do it in the thread that trains, where cuDNN's plans are."""
        return self.driver.submit(work).result()

    def _lane(self, model: nn.Module) -> Lane:
        lane, size = Lane(self.experiment, self.layout, model, self.device), self.experiment.local.batch_size
        if any(len(part) >= size for part in self.parts):
            lane.capture(self._inputs(torch.arange(size, device=self.device) % len(self.train_set.labels), None))
        return lane

    def _drive(self, this: Round, turns: list[Turn], left: Event) -> None:
        """Give every lane its next piece in turn, until all clients have trained, or nobody listens."""
        waiting = deque(sorted(turns, key=lambda turn: -len(self.parts[turn.client])))
        playing: deque[tuple[Lane, Iterator[None]]] = deque()
        try:
            while (waiting or playing) and not left.is_set():
                if waiting and (not playing or not self.free.empty()):
                    lane, turn = self.free.get(), waiting.popleft()
                    playing.append((lane, self._turn(this, turn, lane)))
                lane, pieces = playing.popleft()
                with torch.cuda.stream(lane.stream):
                    ended = next(pieces, True)
                if not ended:
                    lane.paced()
                    playing.append((lane, pieces))
        except BaseException as why:  # handed on to whoever listens
            this.heard.put(why)
        for lane, _ in playing:
            self.free.put(lane)
        wait(this.finishing)

    def _turn(self, this: Round, turn: Turn, lane: Lane) -> Iterator[None]:
        """One client's training, enqueued piece by piece; another thread waits for it, and frees the lane."""
        began, client = time.perf_counter(), turn.client
        state = recalled(self.states[client % len(self.states)], lane.own, self.fresh, self._memory(turn))
        lane.load(this.weights, this.buffers)
        yield from self._train(this.t, client, lane)
        update = this.weights - torch.cat([p.detach().reshape(-1) for p in lane.parameters])
        buffers = self.layout.buffer_values(lane.model)

        def finish() -> None:
            try:
                with torch.cuda.stream(lane.stream):
                    lane.stream.synchronize()
                    loss, trained = float(lane.loss), time.perf_counter() - began
                    after = reply(self.experiment, self.layout, this.t, client, update, buffers, state, loss, trained)
                    answer: Answer | BaseException = after[0]
                    if turn.place.write is not None and turn.sends(after[0].payload):
                        self._keep(client, turn.place.write, dict(remembered(after[1], lane.own)))
                    lane.stream.synchronize()
            except BaseException as why:  # Diverged, or worse: for the thread that listens
                answer = why
            self.free.put(lane)
            this.heard.put(answer)

        this.finishing.append(self.finishers.submit(finish))

    def _train(self, t: int, client: int, lane: Lane) -> Iterator[None]:
        """LocalSGD; what the lane's loss comes to is the mean over all examples."""
        experiment, part = self.experiment, self.parts[client]
        local = experiment.local
        noise = int(draws(experiment, NOISE, t, client).integers(2**62))
        augmenting = torch.Generator().manual_seed(noise) if local.augment else None
        lane.rate.fill_(local.lr_at(t, experiment.rounds))
        lane.model.train()
        batches = list(shuffled(len(part), local, draws(experiment, SHUFFLING, t, client)))
        order = np.concatenate(batches) if batches else np.empty(0, np.int64)
        chosen = part[torch.from_numpy(order).pin_memory().to(self.device, non_blocking=True)]
        for first in range(0, len(batches), TOGETHER):
            some = batches[first : first + TOGETHER]
            n = sum(map(len, some))
            here, chosen = chosen[:n], chosen[n:]
            inputs, labels, at = self._inputs(here, augmenting), self.train_set.labels[here], 0
            for i, batch in enumerate(some, 1):
                lane.step(inputs[at : at + len(batch)], labels[at : at + len(batch)])
                at += len(batch)
                if i % AHEAD == 0:
                    yield
        lane.loss /= max(len(order), 1)

    def _evaluate(self, weights: Tensor, buffers: Tensor) -> tuple[float, float]:
        lane, right, loss = self.lanes[0], torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        labels = self.test_set.labels
        torch.cuda.synchronize()
        with torch.cuda.stream(lane.stream), torch.no_grad():
            lane.load(weights, buffers)
            evaluating(lane.model, self.experiment)
            for first in range(0, len(labels), TEST_BATCH):
                some = slice(first, first + TEST_BATCH)
                inputs = _normalised(self.task, self.test_set.inputs[some])
                with autocast(self.experiment):
                    scores = lane.model(inputs).float()
                right += (scores.argmax(1) == labels[some]).sum()
                loss += nn.functional.cross_entropy(scores, labels[some], reduction="sum")
            return float(right) / len(labels), float(loss) / len(labels)

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


def _resident(source: Dataset, device: torch.device) -> Dataset:
    """All examples on the GPU as they are: bytes stay bytes."""
    return Dataset(source.inputs.to(device), source.labels.to(device))


def _normalised(task: Task, inputs: Tensor) -> Tensor:
    inputs = data.normalised(task, inputs)
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs
