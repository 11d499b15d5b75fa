"""Many runs from one file: every combination of the values in its table `[sweep]`.

    rounds = 20
    [sweep]
    seed = [0, 1, 2]
    compress = ["TopK(density=0.1)", "ErrorFeedback(CWMP(density=0.1, cost=LayerType()))"]
    "compress.density" = [0.01, 0.1]

Each run is a process of its own in a folder of its own: one that fails leaves the others alone, one that is finished is
skipped, one that was stopped goes on. Beside them lies what this machine's meters say that all of it drew (`sessions`).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from joulegrad.lab import sessions
from joulegrad.lab.experiment import Experiment, changed
from joulegrad.lab.provenance import commit
from joulegrad.lab.store import count_rounds, finished, held, read_rounds
from joulegrad.lab.workers import cores

__all__ = ["LOG", "PLAN", "Job", "plan", "play"]

LOG, PLAN = "log.txt", "sweep.json"
HELD = 3  # the exit code of a run whose folder another process holds
SPARE = 1.25  # times the largest run's memory must be free for one more


class Job(NamedTuple):
    """One run of a sweep."""

    label: str  # what distinguishes it, as key=value
    experiment: Experiment
    settings: Mapping[str, Any]
    folder: Path

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """All whole rounds so far."""
        return read_rounds(self.folder)

    @property
    def finished(self) -> bool:
        """Whether all rounds have been played, and the end was kept."""
        return finished(self.folder, self.experiment.rounds)


def plan(settings: Mapping[str, Any], out: Path) -> list[Job]:
    """All runs, in the order of the file, later keys changing faster; all are checked before the first begins.

    Example:
        >>> jobs = plan({"rounds": 3, "sweep": {"seed": [0, 1], "local.lr": [0.1]}}, Path("out"))
        >>> [job.label for job in jobs]
        ['seed=0 local.lr=0.1', 'seed=1 local.lr=0.1']
    """
    grid = settings.get("sweep")
    if not isinstance(grid, Mapping) or not grid:
        raise ValueError("a sweep needs a table [sweep] of keys, each with a list of values")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"sweep.{key} must be a list of values, got {values!r}")
    base = {key: value for key, value in settings.items() if key != "sweep"}
    jobs = []
    for values in itertools.product(*grid.values()):
        chosen, own = dict(zip(grid, values, strict=True)), base
        for key, value in sorted(chosen.items(), key=lambda pair: pair[0].count(".")):  # parts of what it becomes
            own = changed(own, key, value)
        experiment = Experiment.of(own)
        label = " ".join(f"{key}={value}" for key, value in chosen.items())
        jobs.append(Job(label, experiment, own, out / experiment.fingerprint))
    twice = [job.label for n, job in enumerate(jobs) if job.folder in {other.folder for other in jobs[:n]}]
    if twice:
        raise ValueError(f"two runs of the sweep are the same experiment: {twice[0]}")
    return jobs


class Running(NamedTuple):
    """A run's process."""

    job: Job
    process: subprocess.Popen[bytes]
    logged: int  # bytes of its log before it began


def play(
    jobs: list[Job],
    *,
    at_once: int | None = None,
    workers: int | None = None,
    device: str = "cpu",
    ended: Callable[[Job, int], None] = lambda job, code: None,
    watched: Callable[[list[Job]], None] = lambda jobs: None,
) -> dict[str, str]:
    """Play all that are not finished; why those failed that did, by label.

    A run that another process plays is waited for.

    Args:
        jobs: what `plan` gave.
        at_once: how many run at the same time at most; None: a core each on the CPU, one on a GPU. One more begins only
            while there is memory for it.
        workers: processes a run; None: the cores divided among those at once.
        device: "cpu" or "cuda".
        ended: is given each job when it has ended, and its exit code.
        watched: is given what is running, several times a second.
    """
    _note(jobs)
    waiting = [job for job in jobs if not job.finished]
    most = min(at_once or (cores() if device == "cpu" else 1), max(len(waiting), 1))
    each = workers or max(cores() // most, 1)
    if not waiting:
        return {}
    file = waiting[0].folder.parent / sessions.ENERGY
    facts = {"device": device, "at_once": most, "commit": commit()["commit"]}
    left = list(waiting)
    with sessions.recorded(file, facts, lambda: {job.folder.name: count_rounds(job.folder) for job in left}) as kept:

        def looked(running: list[Job]) -> None:
            watched(running)
            kept()

        return _played(waiting, most, each, device, ended, looked)


def _played(
    waiting: list[Job],
    most: int,
    workers: int,
    device: str,
    ended: Callable[[Job, int], None],
    watched: Callable[[list[Job]], None],
) -> dict[str, str]:
    """Why those failed that did."""
    running: list[Running] = []
    failed: dict[str, str] = {}
    needs = 0  # bytes: the most that a run has taken so far
    try:
        while waiting or running:
            began = time.monotonic()
            needs = max([needs, *(_memory(r.process.pid) for r in running)])
            if waiting and len(running) < most and _room(running, needs):
                job = next((job for job in waiting if not held(job.folder)), None)
                if job is not None:
                    waiting.remove(job)
                    if not job.finished:
                        running.append(_started(job, workers, device))
            for r in [r for r in running if r.process.poll() is not None]:
                running.remove(r)
                code = r.process.returncode
                if code == HELD:  # by whoever was quicker
                    waiting.append(r.job)
                    continue
                if code:
                    failed[r.job.label] = _why(r, code)
                ended(r.job, code)
            watched([r.job for r in running])
            time.sleep(max(0.2, 10 * (time.monotonic() - began)))  # long logs take long to read
    except BaseException:
        for r in running:
            r.process.terminate()  # politely: each keeps its round
        for r in running:
            r.process.wait()
        raise
    return failed


def _note(jobs: list[Job]) -> None:
    """Write down what is planned, so that others can tell what is missing: labels by the names of folders."""
    for out in {job.folder.parent for job in jobs}:
        out.mkdir(parents=True, exist_ok=True)
        file = out / PLAN
        try:
            before = dict(json.loads(file.read_text()))
        except (OSError, ValueError, TypeError):
            before = {}
        now = {job.folder.name: job.label for job in jobs if job.folder.parent == out}
        part = file.with_suffix(".part")
        part.write_text(json.dumps({**before, **now}, indent=1))
        part.replace(file)


def _room(running: list[Running], needs: int) -> bool:
    """Whether one more run fits; it is known when each that runs has played a round."""
    return not running or (all(count_rounds(r.job.folder) for r in running) and _available() > SPARE * needs)


BEGIN = """
import signal, sys
from joulegrad.lab.workers import die_with
die_with(int(sys.argv.pop(1)), signal.SIGTERM)
from joulegrad.__main__ import main
main()
"""


def _started(job: Job, workers: int, device: str) -> Running:
    """A process of its own; if this one is killed, it is asked to end."""
    job.folder.mkdir(parents=True, exist_ok=True)
    settings, file = job.folder / "experiment.json", job.folder / LOG
    settings.write_text(json.dumps(job.experiment.to_dict(), indent=1))
    command = [sys.executable, "-c", BEGIN, str(os.getpid()), "run", str(settings), "--out", str(job.folder)]
    command += ["--quiet", "--workers", str(workers), "--device", device]
    with file.open("ab") as log:
        logged = file.stat().st_size
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return Running(job, process, logged)


def _why(ended: Running, code: int) -> str:
    """The last that a failed run said, and the signal that ended it if one did."""
    with (ended.job.folder / LOG).open("rb") as log:
        log.seek(ended.logged)
        lines = log.read().decode(errors="replace").strip().splitlines()
    said = lines[-1] if lines else ""
    if code >= 0:
        return said or f"exit code {code}, without a word"
    hint = ", as the system does where memory runs out" if -code == signal.SIGKILL else ""
    return f"ended by {signal.Signals(-code).name}{hint}" + (f": {said}" if said else "")


def _memory(pid: int) -> int:
    """Bytes that a process and its children have taken at most; 0 where the system does not tell."""
    total = 0
    for process in [pid, *_children(pid)]:
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    return total


def _children(pid: int) -> Iterator[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in map(int, found):
        yield child
        yield from _children(child)


def _available() -> float:
    """Bytes that one more run may take."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), float("inf"))
