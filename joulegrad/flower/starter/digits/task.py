"""The model, the data of each node, and how it learns: nothing of Flower or joulegrad."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

TEST = 360  # the last examples are for everybody's test


def model() -> nn.Module:
    """A small convolutional network; the same first values everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 36, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def examples(part: int | None, parts: int = 1) -> tuple[Tensor, Tensor]:
    """A node's examples: every `parts`-th, from `part` on; None: the test's."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    return (x[-TEST:], y[-TEST:]) if part is None else (x[part:-TEST:parts], y[part:-TEST:parts])


def train(net: nn.Module, x: Tensor, y: Tensor, lr: float, epochs: int, seed: int) -> float:
    """Plain SGD; the mean loss of the last epoch."""
    optimizer, generator, loss = torch.optim.SGD(net.parameters(), lr, momentum=0.9), torch.Generator(), torch.zeros(())
    generator.manual_seed(seed)
    net.train()
    for _ in range(epochs):
        batches = torch.randperm(len(x), generator=generator).split(32)
        losses = []
        for batch in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        loss = torch.stack(losses).mean()
    return float(loss)


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share that is right."""
    net.eval()
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())
