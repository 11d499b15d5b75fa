"""Clients of small dense networks learn side by side what each would learn alone."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from joulegrad import Layout
from joulegrad.lab import data
from joulegrad.lab.client import Examples, Replica
from joulegrad.lab.data import Data
from joulegrad.lab.dense import WIDTH, Perceptron, together
from joulegrad.lab.experiment import Experiment, LocalSGD
from joulegrad.lab.partition import IID
from joulegrad.lab.simulate import Simulation

TASK = data.load(Data("digits"))
BASE = Experiment(local=LocalSGD(lr=0.1, momentum=0.0, batch_size=10))


def network(*sizes, bias=True):
    layers = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return nn.Sequential(OrderedDict((str(i), layer) for i, layer in enumerate(layers[:-1])))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a worker has
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("sizes", [(64, 10), (64, 36, 10), (64, 40, 20, 10)], ids=str)
@pytest.mark.parametrize(
    "local",
    [
        BASE.local,
        replace(BASE.local, momentum=0.9),
        replace(BASE.local, weight_decay=1e-2),
        replace(BASE.local, momentum=0.5, weight_decay=1e-2, epochs=2),
        replace(BASE.local, steps=3, batch_size=32),
    ],
    ids=["plain", "momentum", "weight decay", "both, two epochs", "three steps"],
)
def test_side_by_side_is_as_alone(local, sizes, bias):
    """To the bit, so that every engine comes to the same model."""
    torch.manual_seed(1)
    experiment, model = replace(BASE, local=local), network(*sizes, bias=bias)
    layout, examples = Layout.of(model), Examples.of(TASK, model)
    weights, parts = layout.values(model).clone(), list(torch.arange(7 * 25).split(25))
    several = Perceptron.of(model, experiment, TASK.shape).train(2, list(range(7)), parts, examples, weights)
    alone = Replica(experiment, examples, layout, model)
    for client, (update, loss) in enumerate(several):
        expected = alone.train(2, client, parts[client], weights, torch.zeros(0))
        assert torch.equal(update, weights - alone.values())
        assert update.abs().max() > 1e-3
        assert loss == pytest.approx(expected, rel=1e-5)


def test_the_same_for_any_number_of_workers():
    experiment = replace(BASE, model="logistic", partition=IID(clients=20), rounds=2, clients_per_round=19)
    after = []
    for workers in (1, 2, 3):
        with Simulation(experiment, workers=workers) as simulation:
            rows = [{name: v for name, v in row.items() if name != "seconds"} for row in simulation]
            after.append((rows, simulation.weights.tolist()))
    assert after[0] == after[1] == after[2]


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 10)),
        nn.Sequential(nn.Flatten(2), nn.Linear(64, 10)),
        nn.Sequential(nn.Linear(8, 10)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 3000), nn.ReLU(), nn.Linear(3000, 10)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)),
    ],
    ids=["norm", "tanh", "ends in a ReLU", "odd rows", "another Flatten", "not flattened", "large", "convolution"],
)
def test_other_networks_learn_alone(model):
    assert Perceptron.of(model, BASE, TASK.shape) is None


def test_frozen_and_shared_layers_learn_alone():
    frozen = network(64, 10)
    next(frozen.parameters()).requires_grad_(False)
    middle = nn.Linear(64, 64)
    shared = nn.Sequential(nn.Flatten(), middle, nn.ReLU(), middle, nn.ReLU(), nn.Linear(64, 10))
    assert Perceptron.of(frozen, BASE, TASK.shape) is None
    assert Perceptron.of(shared, BASE, TASK.shape) is None


def test_augmentation_and_bfloat16_learn_alone():
    assert Perceptron.of(network(64, 10), replace(BASE, precision="bfloat16"), TASK.shape) is None
    assert Perceptron.of(network(64, 10), replace(BASE, local=replace(BASE.local, augment=True)), TASK.shape) is None


@pytest.mark.parametrize("n", [1, WIDTH, WIDTH + 1, 50, 100])
def test_groups_have_everybody_once_and_are_even(n):
    groups = together(list(range(n)), [torch.arange(5)] * n)
    assert sorted(client for group in groups for client in group) == list(range(n))
    sizes = {len(group) for group in groups}
    assert max(sizes) <= WIDTH
    assert max(sizes) - min(sizes) <= 1
    assert len(groups) & (len(groups) - 1) == 0
