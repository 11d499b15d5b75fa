"""Partitions: every example once, minima kept, decided by the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joulegrad.lab.data import Data, Dataset, load
from joulegrad.lab.partition import IID, ByColumn, Dirichlet, Quantity, Shards, picture


def dataset(labels, **columns):
    return Dataset(torch.zeros(len(labels), 1), torch.tensor(labels), {n: torch.tensor(c) for n, c in columns.items()})


def is_partition(parts, n):
    assert all(p.dtype == torch.int64 and (p.diff() > 0).all() for p in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(n))


@st.composite
def cases(draw):
    """A partition, a dataset that is large enough for it, how many clients and what each must have at least."""
    labels = draw(st.lists(st.integers(0, 5), min_size=1, max_size=120))
    clients = draw(st.integers(1, len(labels)))
    each = draw(st.integers(1, len(labels) // clients))
    alpha = draw(st.sampled_from([5e-324, 1e-3, 0.1, 0.5, 1.0, 100.0, 1e300]))
    kinds = [
        (IID(clients), len(labels) // clients),
        (Dirichlet(clients, alpha, each), each),
        (Quantity(clients, alpha, each), each),
        (Shards(clients, each), each),
    ]
    return *draw(st.sampled_from(kinds)), clients, dataset(labels), draw(st.integers(0, 2**64))


@settings(max_examples=300)
@given(cases())
def test_every_example_goes_to_one_client_and_every_client_has_its_minimum(case):
    partition, minimum, clients, data, seed = case
    parts = partition.split(data, seed)
    assert len(parts) == clients
    is_partition(parts, len(data.labels))
    assert min(map(len, parts)) >= minimum
    again = partition.split(data, seed)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60))
def test_a_column_makes_a_client_of_each_value(values):
    data = dataset([0] * len(values), who=values)
    parts = ByColumn("who").split(data, seed=0)
    is_partition(parts, len(values))
    assert [set(data.columns["who"][p].tolist()) for p in parts] == [{v} for v in sorted(set(values))]


LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (IID(3), [[0, 3, 5, 6], [2, 4, 8, 11], [1, 7, 9, 10]]),
        (Dirichlet(3, 0.5, 2), [[4, 11], [2, 3, 8, 9], [0, 1, 5, 6, 7, 10]]),
        (Shards(3, 2), [[0, 1, 3, 10], [2, 4, 7, 8], [5, 6, 9, 11]]),
        (Quantity(3, 0.5, 2), [[0, 1, 2, 3, 5, 7, 8, 11], [6, 9], [4, 10]]),
    ],
)
def test_a_seed_means_the_same_everywhere(partition, expected):
    assert [p.tolist() for p in partition.split(dataset(LABELS), seed=1)] == expected


@pytest.mark.parametrize("partition", [IID(4), Dirichlet(4), Shards(4), Quantity(4)])
def test_another_seed_divides_differently(partition):
    data = dataset(LABELS * 10)
    one, two = partition.split(data, seed=0), partition.split(data, seed=1)
    assert any(not torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_alpha_says_how_much_clients_differ():
    data = dataset(LABELS * 1000)

    def classes_of_a_client(partition):
        counts = np.stack([data.labels[p].bincount(minlength=3).numpy() for p in partition.split(data, seed=0)])
        shares = counts / counts.sum(1, keepdims=True)
        return np.mean(1 / (shares**2).sum(1))  # 1: one class only; 3: all alike

    assert classes_of_a_client(Dirichlet(50, 1000.0)) > 2.9
    assert 1.3 < classes_of_a_client(Dirichlet(50, 0.5)) < 2.2
    assert classes_of_a_client(Dirichlet(50, 0.01, minimum=1)) < 1.2
    assert classes_of_a_client(Quantity(50, 0.5)) > 2.3


def test_shards_hold_few_classes():
    data = dataset(LABELS * 100)
    parts = Shards(clients=20, shards=2).split(data, seed=0)
    assert {len(p) for p in parts} == {60}
    assert max(len(data.labels[p].unique()) for p in parts) <= 4  # two shards, each across one border at most


def test_a_minimum_is_reached_without_drawing_again_where_that_would_never_end():
    data = dataset([0, 1] * 1000)
    assert {len(p) for p in Dirichlet(200, alpha=1e-3, minimum=10).split(data, seed=0)} == {10}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IID(0), r"IID\(clients\) must be a positive whole number, got 0"),
        (lambda: IID(2.0), r"IID\(clients\) must be a positive whole number, got 2\.0"),
        (lambda: Dirichlet(2, alpha=0), r"Dirichlet\(alpha\) must be a positive number, got 0"),
        (lambda: Dirichlet(2, alpha=float("nan")), r"Dirichlet\(alpha\) must be a positive number, got nan"),
        (lambda: Dirichlet(2, minimum=0), r"Dirichlet\(minimum\) must be a positive whole number, got 0"),
        (lambda: Shards(2, shards=-1), r"Shards\(shards\) must be a positive whole number, got -1"),
        (lambda: Quantity(2, alpha="1"), r"Quantity\(alpha\) must be a positive number, got '1'"),
        (lambda: IID(2).split(dataset(LABELS), -1), r"seed must be a whole number from 0, got -1"),
        (lambda: IID(13).split(dataset(LABELS), 0), r"13 clients with at least 1 examples each need 13; .* has 12"),
        (
            lambda: Dirichlet(4).split(dataset(LABELS), 0),
            r"4 clients with at least 10 examples each need 40; .* has 12",
        ),
        (lambda: Shards(4, 4).split(dataset(LABELS), 0), r"4 clients with at least 4 examples each need 16; .* has 12"),
        (lambda: ByColumn("who").split(dataset([0]), 0), r"no column 'who'; it has none"),
        (lambda: ByColumn("writter").split(dataset([0], writer=[1]), 0), r"it has writer; did you mean 'writer'\?"),
    ],
)
def test_mistakes_are_said_in_the_callers_words(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_who_has_what_is_drawn(tmp_path, suffix):
    task = load(Data("digits"))
    path = tmp_path / f"clients.{suffix}"
    picture(task, Dirichlet(10).split(task.train, seed=0), path)
    assert path.stat().st_size > 1000
