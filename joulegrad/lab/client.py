"""What a client does in a round: load the model, LocalSGD, compress, encode."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import joulegrad
from joulegrad import Layout, kernels
from joulegrad.compressor import State
from joulegrad.lab import data
from joulegrad.lab.data import Dataset, Task
from joulegrad.lab.experiment import Experiment, LocalSGD
from joulegrad.state import state_tensors

__all__ = [
    "Answer",
    "Answers",
    "Diverged",
    "Examples",
    "Memory",
    "Replica",
    "draws",
    "evaluating",
    "not_finite_at",
    "own_buffers",
    "recalled",
    "remembered",
    "reply",
    "shuffled",
]

SAMPLING, LOSSES, SHUFFLING, NOISE = range(4)  # what a generator is for


Memory: TypeAlias = Mapping[str, Tensor]  # what a client keeps: its operator's state, its own buffers
OWN = "own "


class Diverged(ArithmeticError):
    """A client's update is not finite, or the server's model."""

    def __init__(self, message: str, client: int = -1) -> None:
        super().__init__(message, client)
        self.client = client

    def __str__(self) -> str:
        return str(self.args[0])


def not_finite_at(vector: Tensor, layout: Layout) -> str | None:
    """The entry that is the first NaN or infinity, as the layout calls it; None where all are finite."""
    bad = (~torch.isfinite(vector)).nonzero()
    return layout.locate(int(bad[0])) if len(bad) else None


class Answer(NamedTuple):
    """What comes back from a client."""

    client: int
    payload: bytes
    loss: float  # mean over the examples that it trained on
    seconds: dict[str, float]  # train, compress, encode


Answers: TypeAlias = Generator[Answer | Diverged, None, None]  # closed, it need not go on


def draws(experiment: Experiment, purpose: int, *at: int) -> np.random.Generator:
    """The generator of one purpose at one place (round, client, …): nothing is carried over, so nothing is saved."""
    return np.random.default_rng([experiment.seed, purpose, *at])


def shuffled(examples: int, local: LocalSGD, generator: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """The batches of a client's round, as places among its examples."""
    size, steps, epoch = local.batch_size, local.steps, 0
    while (epoch < local.epochs) if steps is None else (steps > 0):
        order = generator.permutation(examples)
        for start in range(0, examples, size):
            if steps is not None:
                if steps == 0:
                    return
                steps -= 1
            yield order[start : start + size]
        epoch += 1


class Examples(NamedTuple):
    """All examples, made ready once: normalised, images as the model reads them; None where it would take much room."""

    task: Task
    train: Tensor | None
    test: Tensor | None
    channels_last: bool  # images are kept as N, H, W, C

    @classmethod
    def of(cls, task: Task, model: nn.Module) -> Examples:
        """Normalise what is not too large to be kept."""
        last = len(task.shape) == 3 and any(isinstance(m, nn.modules.conv._ConvNd) for m in model.modules())
        return cls(task, _ready(task, task.train, last), _ready(task, task.test, last), last)


class Replica:
    """A model in which every client's turn is played, on the CPU.

    Its parameters and gradients are parts of two flat vectors, so that a step of SGD is a few operations whatever the
    number of layers; convolutions lie channels-last, which is how the CPU computes them fastest.
    """

    def __init__(self, experiment: Experiment, examples: Examples, layout: Layout, model: nn.Module) -> None:
        self.experiment, self.layout, self.model, self.examples = experiment, layout, model, examples
        self.task = examples.task
        self.parameters, self.weights, self.gradients = _flattened(model, layout)
        for module in model.modules():
            if isinstance(module, nn.Flatten):
                module.register_forward_pre_hook(_gradients_channels_last)
        self.velocity = torch.empty_like(self.weights)
        self.states = [operator.init(layout) for operator in experiment.operators]
        self.own = own_buffers(model, layout)
        self.fresh = {name: b.clone() for name, b in self.own.items()}

    def turn(
        self, t: int, client: int, part: Tensor, broadcast: Tensor, buffers: Tensor, memory: Memory | None
    ) -> tuple[Answer, Memory]:
        """One client's round; its new memory is for the caller to keep, or to forget if the client vanishes."""
        started = time.perf_counter()
        state = recalled(self.states[client % len(self.states)], self.own, self.fresh, memory)
        loss = self.train(t, client, part, broadcast, buffers)
        update, mine = broadcast - self.values(), self.layout.buffer_values(self.model)
        trained = time.perf_counter() - started
        answer, state = reply(self.experiment, self.layout, t, client, update, mine, state, loss, trained)
        return answer, remembered(state, self.own)

    def answer(
        self, t: int, client: int, update: Tensor, loss: float, trained: float, memory: Memory | None
    ) -> tuple[Answer, Memory]:
        """The rest of a turn whose training was done elsewhere, in `trained` seconds, by a model without buffers."""
        state = recalled(self.states[client % len(self.states)], self.own, self.fresh, memory)
        answer, state = reply(self.experiment, self.layout, t, client, update, update[:0], state, loss, trained)
        return answer, remembered(state, self.own)

    def train(self, t: int, client: int, part: Tensor, broadcast: Tensor, buffers: Tensor) -> float:
        """LocalSGD from the broadcast model: w ← w − lr · v with v ← momentum · v + ∇ + weight_decay · w."""
        local, experiment = self.experiment.local, self.experiment
        self.load(broadcast, buffers)
        self.model.train()
        noise = int(draws(experiment, NOISE, t, client).integers(2**62))
        torch.default_generator.manual_seed(noise)  # dropout layers ask it; the GPUs' generators are left alone
        augmenting = torch.Generator().manual_seed(noise)
        rate, loss, seen, first = local.lr_at(t, experiment.rounds), torch.zeros(()), 0, True
        for batch in shuffled(len(part), local, draws(experiment, SHUFFLING, t, client)):
            chosen = part[torch.from_numpy(batch)]
            if local.augment:
                inputs = self._batch(None, data.augment(self.task.train.inputs[chosen], augmenting), None)
            else:
                inputs = self._batch(self.examples.train, self.task.train.inputs, chosen)
            self.gradients.zero_()
            with self.precision():
                error = nn.functional.cross_entropy(self.model(inputs), self.task.train.labels[chosen])
            error.backward()
            with torch.no_grad():
                loss += error.detach() * len(chosen)
                self._step(rate, first)
            seen, first = seen + len(chosen), False
        return float(loss) / max(seen, 1)

    def _step(self, rate: float, first: bool) -> None:
        local = self.experiment.local
        gradient = self.gradients
        if local.weight_decay:
            gradient.add_(self.weights, alpha=local.weight_decay)
        if local.momentum:
            gradient = self.velocity.copy_(gradient) if first else self.velocity.mul_(local.momentum).add_(gradient)
        self.weights.add_(gradient, alpha=-rate)

    def evaluate(self, weights: Tensor, buffers: Tensor, first: int, last: int) -> tuple[int, float]:
        """Of the test examples from first to last: how many are right, and the sum of losses."""
        self.load(weights, buffers)
        evaluating(self.model, self.experiment)
        chosen = torch.arange(first, last)
        labels = self.task.test.labels[first:last]
        with torch.no_grad(), self.precision():
            scores = self.model(self._batch(self.examples.test, self.task.test.inputs, chosen)).float()
            loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
        return int((scores.argmax(1) == labels).sum()), float(loss)

    def load(self, weights: Tensor, buffers: Tensor) -> None:
        """Write a flat vector, in the layout's order, into the parameters."""
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self.layout.views(weights).values(), strict=True):
                parameter.copy_(view)
        if self.layout.buffers:
            self.layout.assign_buffers(self.model, buffers)

    def values(self) -> Tensor:
        """The parameters in the layout's order."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def precision(self) -> AbstractContextManager[object]:
        """Autocast where asked for."""
        if self.experiment.precision == "bfloat16":
            return torch.autocast("cpu", torch.bfloat16)
        return nullcontext()

    def _batch(self, ready: Tensor | None, inputs: Tensor, chosen: Tensor | None) -> Tensor:
        """Some inputs as the model wants them, from those made ready if there are."""
        if ready is not None and chosen is not None:
            inputs = ready.index_select(0, chosen)
            return inputs.permute(0, 3, 1, 2) if self.examples.channels_last else inputs
        inputs = data.normalised(self.task, inputs if chosen is None else inputs[chosen])
        return inputs.contiguous(memory_format=torch.channels_last) if self.examples.channels_last else inputs


def reply(
    experiment: Experiment,
    layout: Layout,
    t: int,
    client: int,
    update: Tensor,
    buffers: Tensor,
    state: State,
    loss: float,
    trained: float,
) -> tuple[Answer, State]:
    """Compress and encode what a client has learned in `trained` seconds, wherever that was."""
    if not (math.isfinite(loss) and kernels.all_finite(update)):
        place = not_finite_at(update, layout)
        where = f", first at {place}" if place else ""
        raise Diverged(
            f"round {t + 1}, client {client}: what it learned is not finite{where} (training loss {loss:g}); a smaller "
            'local.lr may help, or on_nan = "drop"',
            client,
        )
    started = time.perf_counter()
    sent, state = experiment.operator(client)(update, state)
    if layout.buffers:
        sent = sent.with_buffers(buffers)
    compressed = time.perf_counter()
    payload = joulegrad.encode(sent, layout)
    seconds = {"train": trained, "compress": compressed - started, "encode": time.perf_counter() - compressed}
    return Answer(client, payload, loss, seconds), state


def evaluating(model: nn.Module, experiment: Experiment) -> None:
    """Out of training; where running statistics stay on the clients, each batch is normalised by itself."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(experiment.buffers == "local")


def own_buffers(model: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """What of a model stays with each client."""
    buffers = dict(model.named_buffers())
    return {name: buffers[name] for name in layout.local}


def recalled(first: State, own: Mapping[str, Tensor], fresh: Mapping[str, Tensor], memory: Memory | None) -> State:
    """The operator's state that a client remembers; what the model keeps for itself goes into its buffers."""
    for name, buffer in own.items():
        buffer.copy_(fresh[name] if memory is None else memory[OWN + name])
    if memory is None:
        return first
    return joulegrad.load_state_dict(first, {n: m for n, m in memory.items() if not n.startswith(OWN)})


def remembered(state: State, own: Mapping[str, Tensor]) -> Memory:
    """An operator's state, which nobody changes any more, and a model's own buffers, as named tensors."""
    return {**state_tensors(state), **{OWN + name: buffer.clone() for name, buffer in own.items()}}


WORTH_KEEPING = 2**30  # bytes


def _ready(task: Task, source: Dataset, channels_last: bool) -> Tensor | None:
    """All inputs normalised, unless they are many: then each batch is, when its turn comes."""
    if 4 * source.inputs.numel() > WORTH_KEEPING:
        return None
    inputs = data.normalised(task, source.inputs)
    return inputs.permute(0, 2, 3, 1).contiguous() if channels_last else inputs


def _flattened(model: nn.Module, layout: Layout) -> tuple[list[nn.Parameter], Tensor, Tensor]:
    """Lay a model's parameters and their gradients into two flat vectors, side by side; each keeps its shape."""
    named = dict(model.named_parameters())
    parameters = [named[s.name] for s in layout.segments]
    weights, gradients = torch.zeros(layout.size), torch.zeros(layout.size)
    for s, p in zip(layout.segments, parameters, strict=True):
        if p.dtype != torch.float32:
            raise ValueError(f"the simulator trains float32 parameters; {s.name} is {p.dtype}")
        place = _channels_last(weights[s.start : s.stop], s.shape)
        place.copy_(p.detach())
        p.data, p.grad = place, _channels_last(gradients[s.start : s.stop], s.shape)
    return parameters, weights, gradients


def _gradients_channels_last(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """What comes back through a Flatten is channels-first; turned once here, not in every operation before it."""
    x = inputs[0]
    if x.dim() == 4 and x.requires_grad and x.is_contiguous(memory_format=torch.channels_last):
        x.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))


def _channels_last(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    if len(shape) != 4:
        return flat.view(shape)
    outputs, inputs, height, width = shape
    return flat.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
