"""A run survives: killed at any moment, torn, full or refused, it goes on and comes to the same end, to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from joulegrad.lab import run as player
from joulegrad.lab import store, sweep
from joulegrad.lab.experiment import Experiment
from joulegrad.lab.memories import Memories

TOML = """
rounds = 16
model = "mlp"
partition = "Dirichlet(clients=6, alpha=0.5)"
compress = ["ErrorFeedback(Quantized(CWMP(density=0.02, cost=LayerType()), bits=1))", "MomentumCorrection(TopK(k=50))"]
clients_per_round = 4
dropout = 0.2
downlink = "delta"

[server]
optimizer = "Adam"
lr = 0.01
"""
SHORT = {"rounds": 4, "model": "logistic", "partition": "IID(clients=3)", "compress": "ErrorFeedback(TopK(k=20))"}


def what_is_left(folder: Path):
    """Rows without their seconds, and all that the next round would depend on: weights, rule, what clients remember."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in store.read_rounds(folder)]
    experiment = Experiment.of(store.read_header(folder)["experiment"])
    with store.Folder(folder, experiment, {}) as opened:
        state = dict(opened.state)
    places = state.pop("places"), state.pop("places before")  # which copy is the newest depends on the checkpoints made
    layout = joulegrad_layout(experiment)
    memories = Memories([operator_memory(op, layout) for op in experiment.operators], folder / store.MEMORIES)
    for client, place in enumerate(places[0].tolist()):
        found = memories.read(client, None if place < 0 else place) or {}
        state |= {f"{client} {name}": tensor for name, tensor in found.items()}
    memories.close()
    return rows, state


def joulegrad_layout(experiment):
    from joulegrad import Layout
    from joulegrad.lab import data, models

    task = data.load(experiment.data)
    return Layout.of(models.build(experiment.model, task.shape, task.classes))


def operator_memory(operator, layout):
    from joulegrad.lab.client import remembered

    return remembered(operator.init(layout), {})


def assert_same(one: Path, two: Path):
    (rows, state), (rows_2, state_2) = what_is_left(one), what_is_left(two)
    assert rows == rows_2
    assert state.keys() == state_2.keys()
    assert [name for name, tensor in state.items() if not torch.equal(tensor, state_2[name])] == []


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "joulegrad", *arguments]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(c) for c in found.read_text().split()] if found.exists() else []


@pytest.mark.skipif(sys.platform != "linux", reason="kills whole families of processes by /proc")
def test_killed_at_random_moments_it_comes_to_the_same_end(tmp_path):
    (tmp_path / "mine.toml").write_text(TOML)
    subprocess.run(command("run", "mine.toml", "--out", "whole", "--quiet"), cwd=tmp_path, check=True)
    rng, kills, before = random.Random(int(time.time())), 0, -1
    while True:
        play = subprocess.Popen(command("run", "mine.toml", "--out", "killed", "--quiet"), cwd=tmp_path)
        try:
            while play.poll() is None and store.count_rounds(tmp_path / "killed") <= before:
                time.sleep(0.001)  # until this process has come further than the one before it
            time.sleep(rng.random() * 0.3)
        finally:
            family = children(play.pid)
            play.kill()
            play.wait()
        while any(map(alive, family)):  # workers do not outlive it
            time.sleep(0.01)
        if play.returncode == 0:
            break
        assert play.returncode == -signal.SIGKILL
        kills, before = kills + 1, store.count_rounds(tmp_path / "killed")
    assert kills >= 2
    assert_same(tmp_path / "whole", tmp_path / "killed")


@pytest.fixture
def whole(tmp_path):
    """A finished run, and its experiment."""
    experiment = Experiment.of(SHORT)
    player.run(experiment, tmp_path / "whole", workers=1)
    return tmp_path / "whole", experiment


def stopped(experiment: Experiment, folder: Path, after: int, monkeypatch) -> None:
    """Play so many rounds, with a checkpoint after each, and break off."""

    class Enough(Exception):
        pass

    def seen(row):
        if row["round"] == after + 1:
            raise Enough

    monkeypatch.setattr(player, "SHARE", 1e9)
    with pytest.raises(Enough):
        player.run(experiment, folder, workers=1, seen=seen)


def newest(folder: Path) -> Path:
    return store._checkpoints(folder)[0]


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


TEARS = {
    "a torn last line": (lambda f: _cut(f / store.ROUNDS, 9), None),
    "a last line of nothing": (lambda f: _add(f / store.ROUNDS, b"\0" * 40), None),
    "a line twice": (lambda f: _add(f / store.ROUNDS, _last_line(f)), None),
    "a checkpoint cut short": (lambda f: _cut(newest(f), 100), "is damaged and was put aside"),
    "a checkpoint with a bit changed": (lambda f: flip(newest(f)), "is damaged and was put aside"),
    "a checkpoint that was being written": (lambda f: _add(f / "checkpoint-00003-0.safetensors.part", b"x"), None),
    "rounds lost that a checkpoint needs": (
        lambda f: _cut(f / store.ROUNDS, 3 * len(_last_line(f)) // 2),
        "was put aside",
    ),
    "no checkpoint at all": (lambda f: [c.unlink() for c in store._checkpoints(f)], None),
}


def _cut(file: Path, last: int) -> None:
    raw = file.read_bytes()
    assert len(raw) > last
    file.write_bytes(raw[:-last])


def _add(file: Path, raw: bytes) -> None:
    with file.open("ab") as out:
        out.write(raw)


def _last_line(folder: Path) -> bytes:
    return (folder / store.ROUNDS).read_bytes().splitlines(keepends=True)[-1]


@pytest.mark.parametrize("tear", TEARS)
def test_what_is_torn_is_seen_and_played_again(whole, tmp_path, monkeypatch, tear):
    finished, experiment = whole
    stopped(experiment, tmp_path / "torn", 3, monkeypatch)
    harm, said = TEARS[tear]
    harm(tmp_path / "torn")
    notes: list[str] = []
    assert player.run(experiment, tmp_path / "torn", workers=1, noted=notes.append).finished
    assert_same(finished, tmp_path / "torn")
    assert (said is None and notes == []) or any(said in note for note in notes)


def test_a_damaged_header_is_said_and_nothing_is_touched(whole):
    folder, experiment = whole
    (folder / store.HEADER).write_text("{")
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    with pytest.raises(store.Damaged, match=r"header.json is damaged; delete the folder to begin again"):
        player.run(experiment, folder, workers=1)
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before


def test_rounds_without_a_header_are_nobodys(whole):
    folder, experiment = whole
    (folder / store.HEADER).unlink()
    with pytest.raises(store.Damaged, match=r"has rounds but no header.json, so nobody knows whose"):
        player.run(experiment, folder, workers=1)


def test_a_full_disk_loses_nothing(tmp_path):
    """A limit on the size of files, 1 MB, stands for the disk: what clients remember does not fit, then does."""
    experiment, finished = Experiment.of({**SHORT, "model": "mlp"}), tmp_path / "whole"
    player.run(experiment, finished, workers=1)
    (tmp_path / "mine.json").write_text(json.dumps(experiment.to_dict()))
    full = subprocess.run(
        ["bash", "-c", 'ulimit -f 1000; exec "$@"', "bash", *command("run", "mine.json", "--out", "full")],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "COLUMNS": "300"},
    )  # fmt: skip
    assert full.returncode == 1, full.stderr
    assert "File too large" in full.stderr
    assert "the same command goes on from there" in full.stderr
    assert "Traceback" not in full.stderr
    assert player.run(experiment, tmp_path / "full", workers=1).finished
    assert_same(finished, tmp_path / "full")


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(whole, tmp_path, monkeypatch):
    finished, experiment = whole
    stopped(experiment, tmp_path / "full", 2, monkeypatch)
    before = store._checkpoints(tmp_path / "full")

    def no_room(path: Path, raw: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write", no_room)
        with pytest.raises(OSError, match=r"after round 3: No space left on device. The rounds up to the last"):
            player.run(experiment, tmp_path / "full", workers=1)
    assert set(before[:1]) <= set(store._checkpoints(tmp_path / "full"))
    assert player.run(experiment, tmp_path / "full", workers=1).finished
    assert_same(finished, tmp_path / "full")


def test_a_folder_that_may_not_be_written_is_named(tmp_path):
    """By a file where the folder should be: root, who runs the tests in CI, may write anywhere."""
    (tmp_path / "taken").write_text("")
    refused = subprocess.run(command("run", "--out", "taken/run"), cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "taken/run: Not a directory" in refused.stderr


def test_a_sweep_skips_what_is_finished_and_goes_on_with_what_is_not(tmp_path, monkeypatch):
    settings = {**SHORT, "sweep": {"seed": [0, 1, 2]}}
    jobs = sweep.plan(settings, tmp_path / "sweep")
    player.run(jobs[0].experiment, jobs[0].folder, workers=1)
    untouched = (jobs[0].folder / store.ROUNDS).stat()
    stopped(jobs[1].experiment, jobs[1].folder, 2, monkeypatch)
    ended: list[tuple[str, int]] = []
    failed = sweep.play(jobs, at_once=2, workers=1, ended=lambda job, code: ended.append((job.label, code)))
    assert failed == {}
    assert sorted(ended) == [("seed=1", 0), ("seed=2", 0)]
    assert (jobs[0].folder / store.ROUNDS).stat().st_mtime_ns == untouched.st_mtime_ns
    for n, job in enumerate(jobs):
        player.run(job.experiment, tmp_path / f"alone {n}", workers=1)
        assert_same(tmp_path / f"alone {n}", job.folder)


@pytest.mark.skipif(sys.platform != "linux", reason="ends a family of processes by Linux's own means")
def test_a_sweep_that_is_killed_leaves_no_process_and_goes_on(tmp_path):
    (tmp_path / "grid.toml").write_text(TOML + "\n[sweep]\nseed = [0, 1]\n")
    began = subprocess.Popen(command("sweep", "grid.toml", "--out", "grid", "--quiet"), cwd=tmp_path)
    try:
        while began.poll() is None and not any((tmp_path / "grid").glob("*/rounds.jsonl")):
            time.sleep(0.01)
        assert began.poll() is None
        family = children(began.pid)
    finally:
        began.kill()
        began.wait()
    assert family
    while any(map(alive, family)):
        time.sleep(0.01)
    subprocess.run(command("sweep", "grid.toml", "--out", "grid", "--quiet"), cwd=tmp_path, check=True)
    folders = sorted((tmp_path / "grid").glob("*/rounds.jsonl"))
    assert [store.count_rounds(f.parent) for f in folders] == [16, 16]
