"""What clients remember: on disk, for those who have trained, safe while a checkpoint needs it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from joulegrad import ErrorFeedback, TopK
from joulegrad.lab.data import Data
from joulegrad.lab.experiment import Experiment, LocalSGD
from joulegrad.lab.memories import Memories, Place, Places
from joulegrad.lab.partition import IID
from joulegrad.lab.simulate import Simulation

RNG = np.random.default_rng(0)


def memory(value, n=5):
    return {"residual": torch.full((n,), float(value)), "step": torch.tensor(value)}


@pytest.fixture
def two_kinds(tmp_path):
    kinds = Memories([memory(0), memory(0, n=2)], tmp_path / "clients.bin")
    yield kinds
    kinds.close()


def test_what_is_written_is_read_by_client_place_and_kind(two_kinds):
    for client in range(6):
        for place in range(3):
            two_kinds.write(client, place, memory(10 * client + place, n=2 if client % 2 else 5))
    for client in range(6):
        for place in range(3):
            found = two_kinds.read(client, place)
            assert found["residual"].tolist() == [10 * client + place] * (2 if client % 2 else 5)
            assert found["step"] == 10 * client + place
    assert two_kinds.read(0, None) is None
    before = two_kinds.path.read_bytes()
    two_kinds.write(0, None, memory(99))  # a client that vanishes
    assert two_kinds.path.read_bytes() == before


def test_a_changed_shape_is_refused_and_a_file_that_was_cut_short_is_named(two_kinds):
    with pytest.raises(ValueError, match=r"residual of client 1 has changed its shape: \(5,\)"):
        two_kinds.write(1, 0, memory(1, n=5))
    two_kinds.write(0, 1, memory(1))
    with two_kinds.path.open("r+b") as file:
        file.truncate(40)
    with pytest.raises(OSError, match=r"clients.bin is cut short: of what client 0 remembers there are 12 bytes of 28"):
        two_kinds.read(0, 1)


def test_a_disk_that_takes_a_part_is_given_the_rest(two_kinds, monkeypatch):
    import os

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, raw, at: real(fd, bytes(raw)[:7], at))
    two_kinds.write(2, 1, memory(8))
    assert two_kinds.read(2, 1)["residual"].tolist() == [8] * 5


def test_places_of_the_last_two_checkpoints_are_never_written():
    """Played at random, with checkpoints and kills: whichever checkpoint one returns to, what it remembers is there."""
    places, clients = Places(4), range(4)
    content: dict[tuple[int, int], int] = {}  # client, place: what was written there last
    checkpoints = []  # state, and what each client remembered then
    now = dict.fromkeys(clients, 0)  # 0: nothing
    for step in range(1, 3000):
        what = RNG.random()
        if what < 0.7:
            for client in clients:
                if RNG.random() < 0.5:
                    vanishes = RNG.random() < 0.3
                    place = places.turn(client, vanishes)
                    assert (content[client, place.read] if place.read is not None else 0) == now[client]
                    if vanishes:
                        assert place == Place(place.read, None)
                    else:
                        content[client, place.write] = now[client] = step
                    places.moved(client, place)
        elif what < 0.85:
            places.commit()
            checkpoints = [(places.state(), dict(now)), *checkpoints[:1]]
        elif checkpoints:  # killed; the newest may be damaged, and then it is put aside
            checkpoints = checkpoints[int(RNG.random() < 0.3 and len(checkpoints) > 1) :]
            state, now = checkpoints[0][0], dict(checkpoints[0][1])
            places = Places(4)
            places.restore(state)
        for state, then in checkpoints:
            for client, place in enumerate(state["places"].tolist()):
                assert (0 if place < 0 else content[client, place]) == then[client]


def allocated(path):
    return path.stat().st_blocks * 512


def test_memory_grows_with_those_who_train_not_with_those_who_exist(mine, tmp_path):
    """10,000 clients with error feedback, 20 of them a round: as much on the disk, and in memory, as with 1,000."""
    used, resident = {}, {}
    for clients in (1_000, 10_000):
        experiment = Experiment(
            model="logistic", data=Data("mine:crowd", directory="20000"), partition=IID(clients), rounds=3,
            clients_per_round=20, compress=ErrorFeedback(TopK(density=0.1)), local=LocalSGD(batch_size=8),
        )  # fmt: skip
        file = tmp_path / f"clients-{clients}"
        with Simulation(experiment, workers=1, memories=file) as simulation:
            rows = list(simulation)
            state = simulation.state()
            trained = {c for row in rows for c in row["clients"]}
            assert {c for c in range(clients) if simulation.places.now[c] >= 0} == trained
            each = simulation.memories.stride
            used[clients] = allocated(file) / len(trained)
            resident[clients] = sum(t.nbytes for t in state.values())
    assert each == 4 * 510 + 8  # the residual, and which model's it is
    assert file.stat().st_size > 100 * allocated(file)  # nearly all of it is a hole
    assert used[10_000] <= 2 * 4096  # two blocks, for one client may lie across a border
    assert resident[10_000] - resident[1_000] == 9_000 * (4 + 1 + 1)  # the version each has, and two places
