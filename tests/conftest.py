"""What several test files need: the real CIFAR-10, and a user's own data and models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ROOT / "scratch" / "cifar10"  # where the Makefile looks too
WRITER = Path("shared") / "data" / "cifar10" / "cifar10.py"  # beside the checkout, or above


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory):
    """The real CIFAR-10 in its official layout; in CI the root conftest.py fails a skip."""
    if (OURS / "cifar-10-batches-py").is_dir():
        return OURS
    writer = next((folder / WRITER for folder in ROOT.parents if (folder / WRITER).is_file()), None)
    if writer is None:
        pytest.skip(f"NO REAL CIFAR-10: there is no {OURS}, and no {WRITER} in any folder above {ROOT}")
    written = tmp_path_factory.mktemp("cifar10")
    subprocess.run([sys.executable, str(writer), str(written)], check=True)
    return written


MINE = '''
"""A user's own data and models: two points of view on four points of the plane, and a network with everything."""

import gc

import torch
from torch import nn

from joulegrad.lab.data import Dataset

POINTS = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])  # mean 0 and deviation 1 as they are


def points():
    """The first is client 0's, the others client 1's."""
    train = Dataset(POINTS, torch.tensor([1, 0, 0, 0]), {"who": torch.tensor([0, 1, 1, 1])})
    return train, Dataset(torch.tensor([[1.0, 1.0], [-1.0, 0.875]]), torch.tensor([1, 0]))


class Perceptron(nn.Module):
    """Scores 0 and 4096 x·w: the softmax is 0, 1/2 or 1, exactly, so that all can be worked out by hand."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        z = 4096 * (x @ self.w)
        return torch.stack([torch.zeros_like(z), z], 1)


class Tidy(Perceptron):
    """Collects garbage before every step; with more threads than one it stops, before it can wait for them."""

    def forward(self, x):
        gc.collect()
        if torch.get_num_threads() != 1:
            raise RuntimeError(f"{torch.get_num_threads()} threads where there is one")
        return super().forward(x)


class Everything(nn.Module):
    """Convolution, running statistics and dropout."""

    def __init__(self, shape, classes):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * (shape[1] - 2) * (shape[2] - 2), classes)

    def forward(self, x):
        return self.fc(nn.functional.dropout(torch.relu(self.norm(self.conv(x))).flatten(1), 0.3, self.training))


class Centred(nn.Module):
    """Running statistics of the inputs themselves: the last batch's, as they are."""

    def __init__(self, shape, classes):
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(shape[0], momentum=1.0, affine=False), nn.Linear(shape[0], classes)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.fc(self.drop(self.norm(x)))


class Brittle(nn.Module):
    """Not finite for a client with a large input."""

    def __init__(self, shape, classes):
        super().__init__()
        self.fc = nn.Linear(shape[0], classes)

    def forward(self, x):
        return self.fc(torch.where(x > 3, torch.nan, x))


def outlier():
    """Client 1 has an input far from the others."""
    inputs = torch.zeros(40, 3)
    inputs[:20], inputs[25] = torch.eye(3)[torch.arange(20) % 3], 30.0
    labels = torch.arange(40) % 2
    return Dataset(inputs, labels, {"who": torch.arange(40) // 20}), Dataset(inputs[:20], labels[:20])


def crowd(directory):
    """As many examples as the directory's name says."""
    n = int(directory)
    inputs = torch.randn(n, 50, generator=torch.Generator().manual_seed(0))
    return Dataset(inputs, torch.arange(n) % 10), Dataset(inputs[:100], torch.arange(100) % 10)
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The user's module, in the folder where the test then is."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield tmp_path
    sys.modules.pop("mine", None)
