"""How far running experiments are, from their files alone: the runs are not asked, and notice nothing.

Files are read again only where they have grown, and from where they were read to.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from joulegrad.lab.report.spent import ledger
from joulegrad.lab.store import HEADER, ROUNDS, finished, held
from joulegrad.lab.sweep import LOG, PLAN

__all__ = ["Follower", "Progress"]

RECENT = 10  # rounds: how long the next will take is how long these took


@dataclass
class Progress:
    """One run, as its files say.

    Args:
        folder: its folder, there or not.
        label: what distinguishes it.
        asked: how many rounds it will have; None where it has not said.
        accuracies: of the rounds that were evaluated.
        seconds: of each round.
        bytes_up: sent by all clients so far.
        cost: Σc so far: modelled.
        joules: of the uplink so far: coded; None where no ledger is kept.
        state: "finished", "running", "stopped", "waiting" (no round yet) or "damaged".
        said: what it last said, where it has stopped or is damaged.
    """

    folder: Path
    label: str
    asked: int | None = None
    accuracies: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bytes_up: int = 0
    cost: float = 0.0
    joules: float | None = 0.0
    state: str = "waiting"
    said: str = ""
    read: int = 0  # bytes of the rounds file

    @property
    def rounds(self) -> int:
        """Played so far."""
        return len(self.seconds)

    @property
    def left(self) -> float | None:
        """Seconds until it ends, as its last rounds were; the first also compiles and starts processes."""
        if self.asked is None or not self.seconds:
            return None
        return (self.asked - self.rounds) * fmean(self.seconds[1:][-RECENT:] or self.seconds)


class Follower:
    """All runs below some folders, read as they grow: call `look` as often as you like.

    Args:
        paths: runs, or folders of runs; a sweep's may appear later.

    Example:
        >>> Follower([Path("nowhere")]).look()
        Traceback (most recent call last):
        ValueError: nowhere is not there
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = list(paths)
        self.runs: dict[Path, Progress] = {}
        self.took = 0.0  # seconds: the last look

    def look(self) -> list[Progress]:
        """Every run as it stands now, in the order of the sweep's file where there is one."""
        began = time.perf_counter()
        for path in self.paths:
            if not path.is_dir():
                raise ValueError(
                    f"{path} is {'a file; give a run or a folder of runs' if path.exists() else 'not there'}"
                )
            for folder, label in _planned(path).items():
                self.runs.setdefault(folder, Progress(folder, label))
            for header in sorted(path.rglob(HEADER)):
                self.runs.setdefault(header.parent, Progress(header.parent, header.parent.name))
        if not self.runs:
            raise ValueError(f"no run lies in {', '.join(map(str, self.paths))}")
        for run in self.runs.values():
            if run.state not in ("finished", "damaged"):
                _advance(run)
        self.took = time.perf_counter() - began
        return list(self.runs.values())


def _planned(path: Path) -> dict[Path, str]:
    """The folders and labels of the sweeps below a folder."""
    found = {}
    for plan in sorted(path.rglob(PLAN)):
        try:
            found.update({plan.parent / name: str(label) for name, label in json.loads(plan.read_text()).items()})
        except (OSError, ValueError, AttributeError):
            continue  # being written, or damaged: the runs that have begun are found without it
    return found


def _advance(run: Progress) -> None:
    """Read what has been added."""
    if run.asked is None and (run.folder / HEADER).exists():
        try:
            run.asked = int(json.loads((run.folder / HEADER).read_text())["experiment"]["rounds"])
        except (ValueError, KeyError, TypeError):
            run.state, run.said = "damaged", f"its {HEADER} cannot be read"
            return
    rounds = run.folder / ROUNDS
    size = rounds.stat().st_size if rounds.exists() else 0
    if size < run.read:
        _forget(run)
    if size > run.read and not _added(run, rounds):
        _forget(run)
        if not _added(run, rounds):
            run.state, run.said = "damaged", f"line {run.rounds + 1} of {ROUNDS} cannot be read"
            return
    if run.asked is not None and run.rounds >= run.asked and finished(run.folder, run.asked):
        run.state = "finished"
    elif run.folder.is_dir() and _held(run.folder, rounds):
        run.state = "running"
    elif run.rounds or (run.folder / LOG).exists():
        run.state, run.said = "stopped", _said(run.folder)


def _forget(run: Progress) -> None:
    """It was resumed from an earlier checkpoint: what follows is played again."""
    run.__dict__.update(Progress(run.folder, run.label, run.asked).__dict__)


def _held(folder: Path, rounds: Path) -> bool:
    """Whether a process writes there; where the lock is not ours to try, whether one did a minute ago."""
    try:
        return held(folder)
    except OSError:
        return rounds.exists() and time.time() - rounds.stat().st_mtime < 60


def _added(run: Progress, rounds: Path) -> bool:
    """Read the whole lines that are new; False where one is not a round, or not the next."""
    with rounds.open("rb") as file:
        file.seek(run.read)
        added = file.read()
    whole = added[: added.rfind(b"\n") + 1]
    for line in whole.splitlines():
        try:
            row: dict[str, Any] = json.loads(line)
            if row["round"] != run.rounds + 1:
                return False
            if row["accuracy"] is not None:
                run.accuracies.append(float(row["accuracy"]))
            run.seconds.append(float(row.get("seconds", {}).get("round", 0.0)))
            run.bytes_up, run.cost = run.bytes_up + int(row["bytes_up"]), run.cost + float(row["cost"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        lines = ledger(row)
        uplink = None if lines is None else lines.get(("uplink", "coded"), 0.0)
        run.joules = None if uplink is None or run.joules is None else run.joules + uplink
    run.read += len(whole)
    return True


def _said(folder: Path) -> str:
    try:
        lines = (folder / LOG).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
