"""Following runs by their files: rounds that are added, resumed, torn; at any width; without touching them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from fcntl import ioctl

import made_runs
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from joulegrad.cli import app
from joulegrad.cli.watching import spark, time_left
from joulegrad.lab import sweep
from joulegrad.lab.progress import Follower, Progress


@pytest.fixture
def runs(tmp_path):
    """One is finished, one is being played, one was stopped, one has not begun."""
    out = tmp_path / "runs"
    made_runs.write(out / "done", [0.3, 0.6, 0.9], more={"joules": {"coded": {"uplink": 0.5}}})
    made_runs.write(out / "now", [0.25, 0.5], rounds=6, finished=False, seed=1)
    made_runs.write(out / "cut", [0.1], rounds=6, finished=False, seed=2)
    (out / "cut" / sweep.LOG).write_text("starting\nclient 3 has no examples\n")
    labels = {"done": "seed=0", "now": "seed=1", "cut": "seed=2", "later": "seed=3"}
    (out / sweep.PLAN).write_text(json.dumps(labels))
    with FileLock(out / "now" / "lock"):
        yield out


def test_where_each_run_stands(runs):
    done, now, cut, later = Follower([runs]).look()
    assert [run.state for run in (done, now, cut, later)] == ["finished", "running", "stopped", "waiting"]
    assert [run.label for run in (done, now, cut, later)] == ["seed=0", "seed=1", "seed=2", "seed=3"]
    assert (done.rounds, done.bytes_up, done.cost, done.joules) == (3, 3000, 300.0, 1.5)
    assert (now.rounds, now.asked, now.accuracies, now.joules) == (2, 6, [0.25, 0.5], None)
    assert now.left == 4 * 0.5
    assert cut.said == "client 3 has no examples"
    assert (later.asked, later.left) == (None, None)


def test_what_is_added_is_read_and_nothing_twice(runs):
    follower = Follower([runs])
    follower.look()
    read = follower.runs[runs / "now"].read
    file = runs / "now" / "rounds.jsonl"
    line = json.dumps(made_runs.row(3, 0.75, 100.0, 1000)) + "\n"
    with file.open("a") as rounds:
        rounds.write(line[:40])
        rounds.flush()
        assert follower.look()[1].rounds == 2  # half a line is not a round
        rounds.write(line[40:])
    now = follower.look()[1]
    assert (now.rounds, now.accuracies[-1], now.bytes_up) == (3, 0.75, 3000)
    assert now.read == read + len(line)


@pytest.mark.parametrize("replayed", [1, 5], ids=["shorter", "longer"])
def test_a_run_that_resumes_from_before_is_read_anew(runs, replayed):
    follower = Follower([runs])
    follower.look()
    rows = [json.dumps(made_runs.row(t, 0.01 * t, 7.0, 9)) + "\n" for t in range(1, replayed + 1)]
    (runs / "now" / "rounds.jsonl").write_text("".join(rows))
    if replayed == 5:  # as long as it had been read to, and no round ends there
        follower.runs[runs / "now"].read -= 10
    now = follower.look()[1]
    assert (now.rounds, now.state) == (replayed, "running")
    if replayed == 1:
        assert now.bytes_up == 9


def test_what_is_damaged_is_said(runs):
    (runs / "now" / "rounds.jsonl").write_text("nonsense\n")
    (runs / "cut" / "header.json").write_text("{")
    _, now, cut, _ = Follower([runs]).look()
    assert (now.state, now.said) == ("damaged", "line 1 of rounds.jsonl cannot be read")
    assert (cut.state, cut.said) == ("damaged", "its header.json cannot be read")


def test_files_are_only_read(runs):
    def all_of():
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in runs.rglob("*") if path.name != "lock"}

    before = all_of()
    follower = Follower([runs])
    for _ in range(3):
        follower.look()
    assert all_of() == before


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 240])
def test_it_fits_at_any_width(runs, width):
    result = CliRunner().invoke(app, ["watch", str(runs), "--once"], env={"COLUMNS": str(width)})
    assert result.exit_code == 0, result.output
    assert max(len(line.rstrip()) for line in result.output.splitlines()) <= width
    flat = " ".join(result.output.split())
    for words in ("4 runs: 1 running, 1 stopped, 1 waiting, 1 finished", "2/6", "50.0%", "0/?"):
        assert words in flat
    assert ("▃▅" in flat or "▂▅" in flat) == (width >= 160)
    if width >= 60:
        assert "seed=2: client 3 has no examples" in flat


def test_mistakes(tmp_path):
    for path, words in ((tmp_path / "no", "is not there"), (tmp_path, "no run lies in")):
        result = CliRunner().invoke(app, ["watch", str(path), "--once"], env={"COLUMNS": "300"})
        assert result.exit_code == 2
        assert words in result.output


def test_the_time_left_is_that_of_the_slowest_or_of_all():
    running = [Progress("a", "a", 10, seconds=[1.0] * 5, state="running") for _ in range(2)]
    assert time_left(running) == 5
    waiting = [Progress("b", "b", state="waiting") for _ in range(4)]
    assert time_left([*running, *waiting]) == 5 + 4 * 10 / 2  # each of them takes as long as these do in all
    assert time_left(waiting) is None


def test_a_curve_in_letters():
    assert spark([n / 100 for n in range(101)], 8) == "▁▂▃▄▅▆▇█"
    assert spark([1.0], 5) == "█"
    assert spark([], 5) == spark([0.5], 0) == ""


def test_a_terminal_is_followed_resized_and_left(runs):
    """In a terminal of its own: it draws, draws anew for another size, and ends when all runs have."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 120, 0, 0))
    command = [sys.executable, "-m", "joulegrad", "watch", str(runs), "--every", "0.1"]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # in the background shells ignore it
    )  # fmt: skip
    os.close(slave)
    os.set_blocking(master, False)

    def wait_for(words: str) -> str:
        seen, until = "", time.monotonic() + 120
        while words not in seen and time.monotonic() < until:
            try:
                seen += os.read(master, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:
                break  # it has ended
        assert words in seen, seen[-2000:]
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)

    try:
        assert "Σc" in wait_for("0/?")
        ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 50, 0, 0))
        process.send_signal(signal.SIGWINCH)
        with (runs / "now" / "rounds.jsonl").open("a") as rounds:
            rounds.write(json.dumps(made_runs.row(3, 0.75, 100.0, 1000)) + "\n")
        shown = wait_for("3/6")
        assert "Σc" not in shown[shown.rindex("4 runs") :]
        process.send_signal(signal.SIGINT)
        wait_for("seed=2: client 3")
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:  # reading on: a full terminal would hold it up
            with suppress(BlockingIOError, OSError):
                os.read(master, 65536)
            time.sleep(0.05)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
