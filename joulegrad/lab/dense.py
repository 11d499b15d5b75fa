"""Turns of several clients at once, where the network is dense and small: one batched product a layer.

The steps of logistic regression and of small perceptrons are so short that calling them takes longer than they do. So
clients with equally many examples, who take equally many steps, learn side by side: layer by layer their weights are
one tensor, clients x outputs x inputs, and the gradients of all are one product,

    ∂ loss / ∂ W = δᵀ x        δ = ∂ loss / ∂ (x Wᵀ + b)

The operations and their order are autograd's and `Replica`'s, so what a client learns is what it would learn alone, up
to the order in which a library adds inside a product. Who learns beside whom depends on the round alone: results are
the same to the bit for any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn

from joulegrad.lab import data
from joulegrad.lab.client import SHUFFLING, Examples, draws, shuffled
from joulegrad.lab.experiment import Experiment, LocalSGD

__all__ = ["Perceptron", "together"]

WIDTH = 8  # clients side by side; their weights and a batch each stay in a core's cache
ALIGNED = 4  # inputs: rows of other lengths a library may add up in another order, by where in memory they begin
SMALL = 1 << 17  # parameters; in larger networks products take the time, whoever calls them


def together(clients: Sequence[int], parts: list[Tensor]) -> list[list[int]]:
    """Clients with equally many examples in groups of at most WIDTH, those with most first.

    There are 2^n groups of one size, as even as can be, so that they divide among cores.

    Example:
        >>> together([0, 1, 2, 3], [torch.arange(n) for n in (5, 9, 5, 5)])
        [[1], [0, 2, 3]]
    """
    sizes: dict[int, list[int]] = {}
    for client in clients:
        sizes.setdefault(len(parts[client]), []).append(client)
    groups = []
    for _, alike in sorted(sizes.items(), reverse=True):
        count = 1
        while count * WIDTH < len(alike):
            count *= 2
        groups += [alike[len(alike) * i // count : len(alike) * (i + 1) // count] for i in range(count)]
    return groups


class Perceptron:
    """A network of linear layers with ReLUs between them, trained for several clients at once.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> Perceptron.of(model, Experiment(), shape=(1, 2, 2)).shapes
        [(8, 4, True), (2, 8, True)]
        >>> Perceptron.of(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), Experiment(), shape=(4,)) is None
        True
    """

    def __init__(self, linear: list[nn.Linear], experiment: Experiment) -> None:
        self.shapes = [(layer.out_features, layer.in_features, layer.bias is not None) for layer in linear]
        self.experiment = experiment

    @classmethod
    def of(cls, model: nn.Module, experiment: Experiment, shape: tuple[int, ...]) -> Perceptron | None:
        """None where the model is anything else, or the experiment wants what is not done here."""
        if experiment.precision != "float32" or experiment.local.augment:
            return None
        linear, parameters = _linear_layers(model), list(model.parameters())
        own = sum(1 + (layer.bias is not None) for layer in linear)
        whole = own == len(parameters) and all(p.requires_grad for p in parameters)
        whole &= all(layer.in_features % ALIGNED == 0 for layer in linear)
        if not (linear and whole and linear[0].in_features == prod(shape)):
            return None
        return cls(linear, experiment) if sum(p.numel() for p in parameters) <= SMALL else None

    def train(
        self, t: int, clients: list[int], parts: list[Tensor], examples: Examples, broadcast: Tensor
    ) -> Iterator[tuple[Tensor, float]]:
        """Of each client, its update and its mean loss: LocalSGD as `Replica.train` does it."""
        local, n = self.experiment.local, len(clients)
        rate, source = local.lr_at(t, self.experiment.rounds), examples.task.train
        layers = list(self._spread(broadcast, n))
        loss, seen = torch.zeros(n), 0
        each = (shuffled(len(parts[c]), local, draws(self.experiment, SHUFFLING, t, c)) for c in clients)
        for batches in zip(*each, strict=True):
            chosen = torch.cat([parts[c][torch.from_numpy(b)] for c, b in zip(clients, batches, strict=True)])
            ready, labels = examples.train, source.labels[chosen].view(n, -1, 1)
            inputs = (
                data.normalised(examples.task, source.inputs[chosen])
                if ready is None
                else ready.index_select(0, chosen)
            )
            loss += _step(layers, inputs.view(n, labels.shape[1], -1), labels, local, rate)
            seen += labels.shape[1]
        learned = torch.cat([part.reshape(n, -1) for layer in layers for part in layer.parts], 1)
        updates = torch.sub(broadcast, learned, out=learned)
        yield from zip(updates, (loss / max(seen, 1)).tolist(), strict=True)

    def _spread(self, flat: Tensor, n: int) -> Iterator[Layer]:
        """The layers of a flat vector, n times."""
        at = 0
        for outputs, inputs, biased in self.shapes:
            weight = flat[at : at + outputs * inputs].view(outputs, inputs).repeat(n, 1, 1)
            at += outputs * inputs
            bias = flat[at : at + outputs].repeat(n, 1, 1) if biased else None
            at += outputs * biased
            yield Layer([weight] if bias is None else [weight, bias])


class Layer:
    """A linear layer of several clients, with its gradients and momenta."""

    def __init__(self, parts: list[Tensor]) -> None:
        self.parts = parts  # the weights, clients x outputs x inputs, and the biases, clients x 1 x outputs
        self.gradients = [torch.empty_like(part) for part in parts]
        self.velocities: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, x Wᵀ + b."""
        weight, *bias = self.parts
        turned = weight.transpose(1, 2)
        return torch.baddbmm(bias[0], x, turned) if bias else torch.bmm(x, turned)

    def backward(self, delta: Tensor, x: Tensor) -> None:
        """∂ loss / ∂ W = δᵀ x, ∂ loss / ∂ b = Σ δ."""
        weight, *bias = self.gradients
        torch.bmm(delta.transpose(1, 2), x, out=weight)
        for b in bias:
            torch.sum(delta, 1, keepdim=True, out=b)

    def step(self, local: LocalSGD, rate: float) -> None:
        """SGD: w ← w − lr · v with v ← momentum · v + ∇ + weight_decay · w."""
        if local.weight_decay:
            torch._foreach_add_(self.gradients, self.parts, alpha=local.weight_decay)
        if not local.momentum:
            torch._foreach_add_(self.parts, self.gradients, alpha=-rate)
            return
        if self.velocities:
            torch._foreach_mul_(self.velocities, local.momentum)
            torch._foreach_add_(self.velocities, self.gradients)
        else:
            self.velocities = [gradient.clone() for gradient in self.gradients]
        torch._foreach_add_(self.parts, self.velocities, alpha=-rate)


def _step(layers: list[Layer], x: Tensor, labels: Tensor, local: LocalSGD, rate: float) -> Tensor:
    """One step of SGD on the mean cross-entropy of each client's batch; the sums of losses."""
    given = [x]
    for layer in layers[:-1]:
        given.append(layer.forward(given[-1]).relu_())
    log_p = layers[-1].forward(given[-1]).log_softmax(2)
    pull = torch.zeros_like(log_p).scatter_(2, labels, -1 / labels.shape[1])
    delta = torch._log_softmax_backward_data(pull, log_p, 2, log_p.dtype)
    for layer, seen in zip(reversed(layers), reversed(given), strict=True):
        layer.backward(delta, seen)
        if seen is not x:
            delta = torch.ops.aten.threshold_backward(torch.bmm(delta, layer.parts[0]), seen, 0)
        layer.step(local, rate)
    return -log_p.gather(2, labels).sum((1, 2))


def _linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The layers of Flatten, Linear, ReLU, Linear, …, Linear; none where it is anything else."""
    leaves = list(_leaves(model))
    while leaves and type(leaves[0]) is nn.Flatten and leaves[0].start_dim == 1:
        leaves = leaves[1:]
    linear, between = leaves[::2], leaves[1::2]
    fits = len(linear) == len(between) + 1 and all(type(m) is nn.ReLU for m in between)
    return [m for m in linear if type(m) is nn.Linear] if fits and all(type(m) is nn.Linear for m in linear) else []


def _leaves(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of nested Sequentials in their order, one that is none as it is."""
    if type(model) is nn.Sequential:
        for child in model:
            yield from _leaves(child)
    else:
        yield model
