"""Who has what: a training set divided among clients.

A partition is a frozen dataclass with one method, `split(dataset, seed)`: for each client the places of its
examples, increasing (int64). Every example goes to exactly one client, and the seed decides alone: the same
on every machine.

Where a client must have a minimum, those below it take examples, one at a time and at random, from whoever has
most. That always ends, and leaves the draw as it was for the others; drawing again until it fits may never end.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from joulegrad.lab.data import Dataset, Task
from joulegrad.lab.naming import nearest

__all__ = ["IID", "ByColumn", "Dirichlet", "Partition", "Quantity", "Shards", "picture"]

_Array = np.ndarray[Any, Any]


class Partition(Protocol):
    """What a partition is: one method."""

    def split(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """For each client the places of its examples."""
        ...


@dataclass(frozen=True)
class IID:
    """Equal parts at random: sizes differ by one at most.

    Example:
        >>> dataset = Dataset(torch.zeros(5, 2), torch.tensor([0, 0, 1, 1, 1]))
        >>> IID(clients=2).split(dataset, seed=0)
        [tensor([0, 1, 3]), tensor([2, 4])]
    """

    clients: int

    def __post_init__(self) -> None:
        _check_count("IID(clients)", self.clients)

    def split(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """For each client the places of its examples."""
        n = _enough(self, dataset, 1)
        return _tensors(np.array_split(_rng(seed).permutation(n), self.clients))


@dataclass(frozen=True)
class Dirichlet:
    """Classes of uneven parts: of each class the clients have shares p ~ Dir(α).

    Args:
        clients: how many.
        alpha: α; large: alike; 0.1: most clients have a few classes.
        minimum: every client has at least so many examples.

    Example:
        >>> dataset = Dataset(torch.zeros(100, 2), torch.arange(100) % 2)
        >>> parts = Dirichlet(clients=4, alpha=0.5, minimum=10).split(dataset, seed=0)
        >>> [dataset.labels[part].bincount(minlength=2).tolist() for part in parts]
        [[18, 25], [6, 4], [2, 11], [24, 10]]

    Reference: Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution, 2019; drawn for each
    class, as by Yurochkin et al., 2019.
    """

    clients: int
    alpha: float = 0.5
    minimum: int = 10

    def __post_init__(self) -> None:
        _check_count("Dirichlet(clients)", self.clients)
        _check_count("Dirichlet(minimum)", self.minimum)
        _check_positive("Dirichlet(alpha)", self.alpha)

    def split(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """For each client the places of its examples."""
        _enough(self, dataset, self.minimum)
        rng, labels = _rng(seed), dataset.labels.numpy()
        parts: list[list[_Array]] = [[] for _ in range(self.clients)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            for part, piece in zip(parts, _shared(members, self.alpha, self.clients, rng), strict=True):
                part.append(piece)
        return _tensors(_levelled([np.concatenate(p) for p in parts], self.minimum, rng))


@dataclass(frozen=True)
class Shards:
    """A few classes each: examples in order of class are cut into equal shards, `shards` of which a client gets.

    Example:
        >>> dataset = Dataset(torch.zeros(40, 2), torch.arange(40) % 4)
        >>> parts = Shards(clients=4, shards=2).split(dataset, seed=0)
        >>> [dataset.labels[part].bincount(minlength=4).tolist() for part in parts]
        [[0, 0, 5, 5], [5, 5, 0, 0], [0, 5, 5, 0], [5, 0, 0, 5]]

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017.
    """

    clients: int
    shards: int = 2

    def __post_init__(self) -> None:
        _check_count("Shards(clients)", self.clients)
        _check_count("Shards(shards)", self.shards)

    def split(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """For each client the places of its examples."""
        n, rng = _enough(self, dataset, self.shards), _rng(seed)
        shuffled = rng.permutation(n)
        ordered = shuffled[np.argsort(dataset.labels.numpy()[shuffled], kind="stable")]
        pieces = np.array_split(ordered, self.clients * self.shards)
        dealt = rng.permutation(len(pieces)).reshape(self.clients, self.shards)
        return _tensors([np.concatenate([pieces[i] for i in hand]) for hand in dealt])


@dataclass(frozen=True)
class Quantity:
    """Alike in kind, not in number: the clients have shares p ~ Dir(α) of all examples, at random.

    Args:
        clients: how many.
        alpha: α; large: equal numbers; 0.1: a few clients have nearly all.
        minimum: every client has at least so many examples.

    Example:
        >>> dataset = Dataset(torch.zeros(100, 2), torch.arange(100) % 2)
        >>> [len(part) for part in Quantity(clients=4, alpha=0.5, minimum=10).split(dataset, seed=0)]
        [10, 26, 54, 10]

    Reference: Li et al., Federated Learning on Non-IID Data Silos, 2022.
    """

    clients: int
    alpha: float = 0.5
    minimum: int = 10

    def __post_init__(self) -> None:
        _check_count("Quantity(clients)", self.clients)
        _check_count("Quantity(minimum)", self.minimum)
        _check_positive("Quantity(alpha)", self.alpha)

    def split(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """For each client the places of its examples."""
        n, rng = _enough(self, dataset, self.minimum), _rng(seed)
        parts = _shared(rng.permutation(n), self.alpha, self.clients, rng)
        return _tensors(_levelled(parts, self.minimum, rng))


@dataclass(frozen=True)
class ByColumn:
    """As the data are by nature: one client for each value of a column, in increasing order; the seed is not used.

    Example:
        >>> dataset = Dataset(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), {"writer": torch.tensor([7, 3, 3, 7])})
        >>> ByColumn("writer").split(dataset, seed=0)
        [tensor([1, 2]), tensor([0, 3])]
    """

    column: str

    def split(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """For each client the places of its examples."""
        if self.column not in dataset.columns:
            there = ", ".join(dataset.columns) or "none"
            raise ValueError(
                f"ByColumn: the training set has no column {self.column!r}; it has {there}"
                f"{nearest(self.column, dataset.columns)}"
            )
        values = dataset.columns[self.column].numpy()
        ends = np.unique(np.sort(values), return_index=True)[1][1:]
        return _tensors(np.split(np.argsort(values, kind="stable"), ends))


def picture(task: Task, parts: list[Tensor], path: str | Path) -> None:
    """Draw how many examples of each class every client has, and write it to `path` (.png, .svg or .pdf)."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts = np.stack([np.bincount(task.train.labels[p].numpy(), minlength=task.classes) for p in parts], 1)
    figure = Figure(figsize=(min(4 + 0.25 * len(parts), 12), min(3 + 0.2 * task.classes, 8)), layout="constrained")
    sizes, matrix = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    sizes.bar(np.arange(len(parts)), counts.sum(0), width=0.9 if len(parts) < 100 else 1.0, color="0.45")
    sizes.set_ylabel("examples")
    sizes.set_title(f"{task.name}: {counts.sum():,} training examples, {len(parts):,} clients")
    # one hue, light to dark: read alike with and without colour vision
    drawn = matrix.imshow(counts, cmap="Blues", aspect="auto", interpolation="nearest", vmin=0, origin="lower")
    matrix.set_xlabel("client")
    matrix.set_ylabel("class")
    for axis in (matrix.xaxis, matrix.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(drawn, ax=matrix, label="examples of the class")
    figure.savefig(path, dpi=150)


def _rng(seed: int) -> np.random.Generator:
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number from 0, got {seed!r}")
    return np.random.default_rng([seed, 0x9A27])  # a stream of its own: others may use the same seed


def _shared(members: _Array, alpha: float, clients: int, rng: np.random.Generator) -> list[_Array]:
    """Cut into consecutive pieces whose shares are drawn from Dir(α)."""
    shares = rng.dirichlet(np.full(clients, alpha))
    ends = np.rint(shares.cumsum()[:-1] * len(members)).astype(np.int64)
    return np.split(members, ends)


def _levelled(parts: list[_Array], minimum: int, rng: np.random.Generator) -> list[_Array]:
    """Those below the minimum take, one at a time and at random, from whoever has most."""
    lists = [rng.permutation(part).tolist() for part in parts]
    most = [(-len(examples), client) for client, examples in enumerate(lists)]
    heapq.heapify(most)
    for examples in lists:
        while len(examples) < minimum:
            size, giver = heapq.heappop(most)
            if -size != len(lists[giver]):  # it has taken since it was put there
                heapq.heappush(most, (-len(lists[giver]), giver))
                continue
            examples.append(lists[giver].pop())
            heapq.heappush(most, (-len(lists[giver]), giver))
    return [np.array(examples, np.int64) for examples in lists]


def _tensors(parts: list[_Array]) -> list[Tensor]:
    return [torch.from_numpy(np.sort(part).astype(np.int64)) for part in parts]


def _enough(partition: IID | Dirichlet | Shards | Quantity, dataset: Dataset, each: int) -> int:
    """How many examples there are, if that gives every client as many as it needs."""
    n = len(dataset.labels)
    if partition.clients * each > n:
        raise ValueError(
            f"{type(partition).__name__}: {partition.clients:,} clients with at least {each:,} examples each need "
            f"{partition.clients * each:,}; the training set has {n:,}"
        )
    return n


def _check_count(what: str, given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"{what} must be a positive whole number, got {given!r}")


def _check_positive(what: str, given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < float("inf"):
        raise ValueError(f"{what} must be a positive number, got {given!r}")
