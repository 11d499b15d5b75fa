"""Clients' turns on the CPU: one process a core, one thread each, forked once and kept.

Results do not depend on the number of processes: a turn is a function of the model, the round, the client and what the
client remembers, and the server's mean is exact in any order of arrival.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from joulegrad import Layout
from joulegrad.lab.client import Answer, Answers, Diverged, Examples, Memory, Replica
from joulegrad.lab.data import Task
from joulegrad.lab.dense import Perceptron, together
from joulegrad.lab.experiment import Experiment
from joulegrad.lab.memories import Memories, Place

__all__ = ["Turn", "Workers", "cores", "die_with"]

T = TypeVar("T")

TEST_BATCH = 500  # the same whatever the number of processes, since sums of losses depend on it


class Turn(NamedTuple):
    """One client's part in a round.

    Args:
        client: who.
        place: where it reads and writes what it remembers.
        most: bytes that its battery can send; with more it is lost, and remembers what it did. None: any.
    """

    client: int
    place: Place
    most: int | None = None

    def sends(self, payload: bytes) -> bool:
        """Whether its battery lasts until all of it is sent."""
        return self.most is None or len(payload) <= self.most


class Workers:
    """Processes that play clients' turns.

    Args:
        model: where training begins; its values do not matter.
        parts: which examples each client has.
        memories: what clients remember.
        count: how many processes; None: one a core.
    """

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        layout: Layout,
        model: nn.Module,
        parts: list[Tensor],
        memories: Memories,
        count: int | None = None,
    ) -> None:
        self.parts, self.examples = parts, len(task.test.labels)
        self.weights = torch.zeros(layout.size).share_memory_()
        self.buffers = torch.zeros(layout.buffer_size).share_memory_()
        self.count = min(count or cores(), experiment.clients_per_round or len(parts))
        method = "fork" if "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin" else "spawn"
        self.dense = Perceptron.of(model, experiment, task.shape)
        examples = Examples.of(task, model)
        everything = (experiment, examples, layout, model, parts, memories, self.weights, self.buffers, self.dense)
        self.pool = ProcessPoolExecutor(
            self.count, multiprocessing.get_context(method), _begin, (os.getpid(), *everything)
        )

    def train(self, t: int, turns: list[Turn], weights: Tensor, buffers: Tensor) -> Answers:
        """Answers as they arrive, the client with most examples first to begin."""
        self.weights.copy_(weights)
        self.buffers.copy_(buffers)
        threads = torch.get_num_threads()
        torch.set_num_threads(max(1, min(threads, cores() - self.count)))  # the other cores are the workers'
        try:
            for answers in _results(self.pool.submit(_turns, t, group) for group in self._longest_first(turns)):
                yield from answers
        finally:
            torch.set_num_threads(threads)

    def _longest_first(self, turns: list[Turn]) -> list[list[Turn]]:
        """One turn after the other, or those that are played side by side."""
        if self.dense is None:
            return [[turn] for turn in sorted(turns, key=lambda turn: -len(self.parts[turn.client]))]
        by_client = {turn.client: turn for turn in turns}
        return [[by_client[client] for client in group] for group in together(list(by_client), self.parts)]

    def evaluate(self, weights: Tensor, buffers: Tensor) -> tuple[float, float]:
        """Accuracy and mean loss on the test examples."""
        self.weights.copy_(weights)
        self.buffers.copy_(buffers)
        starts = range(0, self.examples, TEST_BATCH)
        futures = [self.pool.submit(_evaluate, s, min(s + TEST_BATCH, self.examples)) for s in starts]
        for _ in _results(futures):
            pass
        found = [f.result() for f in futures]  # in their order, so that the sum is the same
        return sum(right for right, _ in found) / self.examples, sum(loss for _, loss in found) / self.examples

    def checkpoint(self) -> None:
        """Turns have written everything."""

    def close(self) -> None:
        """End the processes, in the middle of a turn if need be."""
        processes = list((self.pool._processes or {}).values())
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _results(futures: Iterable[Future[T]]) -> Iterator[T]:
    waiting = list(futures)
    try:
        for future in as_completed(waiting):
            yield future.result()
    except BrokenProcessPool:
        raise MemoryError(
            "a worker process ended before its time, most likely for want of memory: try fewer workers"
        ) from None
    finally:
        for future in waiting:
            future.cancel()


class _Worker(NamedTuple):
    replica: Replica
    parts: list[Tensor]
    memories: Memories
    weights: Tensor
    buffers: Tensor
    dense: Perceptron | None


_worker: _Worker


def _begin(
    parent: int,
    experiment: Experiment,
    examples: Examples,
    layout: Layout,
    model: nn.Module,
    parts: list[Tensor],
    memories: Memories,
    weights: Tensor,
    buffers: Tensor,
    dense: Perceptron | None,
) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # and what it asks for is to end, at once
    die_with(parent)
    _keep_memory()
    gc.freeze()  # what the parent left behind is not for this process to end: only the parent has what it stands for
    torch.set_num_threads(1)  # and not more: OpenMP's threads stayed in the parent, and it would wait for them for ever
    _worker = _Worker(Replica(experiment, examples, layout, model), parts, memories, weights, buffers, dense)


def _turns(t: int, turns: list[Turn]) -> list[Answer | Diverged]:
    replica, parts, _, weights, buffers, dense = _worker
    if dense is None:
        return [
            _kept(turn, partial(replica.turn, t, turn.client, parts[turn.client], weights, buffers)) for turn in turns
        ]
    started, clients = time.perf_counter(), [turn.client for turn in turns]
    learned = list(dense.train(t, clients, parts, replica.examples, weights))
    each = (time.perf_counter() - started) / len(turns)
    return [
        _kept(turn, partial(replica.answer, t, turn.client, update, loss, each))
        for turn, (update, loss) in zip(turns, learned, strict=True)
    ]


def _kept(turn: Turn, play: Callable[[Memory | None], tuple[Answer, Memory]]) -> Answer | Diverged:
    """A client's turn between reading and writing what it remembers."""
    memories = _worker.memories
    memory = memories.read(turn.client, turn.place.read)
    try:
        answer, after = play(memory)
    except Diverged as why:
        return why
    if turn.sends(answer.payload):
        memories.write(turn.client, turn.place.write, after)
    return answer


def _evaluate(first: int, last: int) -> tuple[int, float]:
    return _worker.replica.evaluate(_worker.weights, _worker.buffers, first, last)


def die_with(parent: int, by: int = signal.SIGKILL) -> None:
    """Do not outlive a parent that is killed; on Linux."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, by)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def _keep_memory() -> None:
    """Let malloc keep large blocks: without, every activation's memory is mapped and cleared anew (glibc)."""
    with suppress(OSError, AttributeError):
        mallopt: Callable[[int, int], int] = ctypes.CDLL("libc.so.6").mallopt
        mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
