"""Runs from their folders: those that can be read, those that cannot, and those that are still missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from joulegrad.lab.store import HEADER, ROUNDS, finished, held, read_header, read_rounds
from joulegrad.lab.sweep import LOG, PLAN

__all__ = ["Found", "Run", "State", "read"]

State = Literal["finished", "running", "unfinished"]
NEEDED = ("round", "accuracy", "bytes_up", "bytes_down", "entries", "cost")  # of each row; all else may be absent


@dataclass(frozen=True)
class Run:
    """One run's folder, read.

    Args:
        folder: where it lies.
        header: what was asked for, versions, commit, machine.
        rows: all whole rounds so far.
        state: whether it has come to its end, and if not, whether a process writes there now.
        notes: what about it is damaged, though the rest can be read.
    """

    folder: Path
    header: Mapping[str, Any]
    rows: list[dict[str, Any]]
    state: State
    notes: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """How many were asked for."""
        return int(self.header["experiment"]["rounds"])

    @property
    def seed(self) -> int:
        """Of everything that was drawn."""
        return int(self.header["experiment"].get("seed", 0))


@dataclass(frozen=True)
class Found:
    """What lies in some folders.

    Args:
        runs: that have at least one round, in the order in which they began.
        begun: folders of runs without a whole round yet, and what they last said.
        broken: folders that cannot be read, and why.
        missing: runs of a sweep that have not begun.
    """

    runs: list[Run] = field(default_factory=list)
    begun: list[tuple[Path, str]] = field(default_factory=list)
    broken: list[tuple[Path, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> list[Run]:
        """Runs that have rounds left."""
        return [run for run in self.runs if run.state != "finished"]


def read(paths: Iterable[Path]) -> Found:
    """All runs among some folders and below them; a damaged one never hides the others.

    Example:
        >>> read([Path("nowhere")])
        Traceback (most recent call last):
        ValueError: nowhere is not there
    """
    found = Found()
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} is not there")
        if not path.is_dir():
            raise ValueError(f"{path} is a file; give a run's folder, or a folder of runs")
        here = sorted({file.parent for name in (HEADER, ROUNDS, "experiment.json") for file in path.rglob(name)})
        for folder in here:
            if folder not in [run.folder for run in found.runs]:
                _add(found, folder)
        found.missing.extend(_missing(path))
        if not here and not found.missing:
            raise ValueError(f"no run lies in {path}")
    found.runs.sort(key=lambda run: str(run.header.get("started")))
    return found


def _add(found: Found, folder: Path) -> None:
    if not (folder / HEADER).exists() and not (folder / ROUNDS).exists():
        found.begun.append((folder, _last_words(folder)))
        return
    try:
        header = read_header(folder)
        rows, notes = read_rounds(folder), []
        rounds = int(header["experiment"]["rounds"])
        lines = (folder / ROUNDS).read_bytes().count(b"\n") if (folder / ROUNDS).exists() else 0
        if lines > len(rows):
            notes.append(f"line {len(rows) + 1} of {ROUNDS} is damaged; of its {lines} rounds, {len(rows)} are shown")
        _check(rows)
    except (ValueError, OSError, KeyError, TypeError) as why:
        said = f"its header has no {why}" if isinstance(why, KeyError) else str(why)
        found.broken.append((folder, said))
        return
    if not rows:
        found.begun.append((folder, notes[0] if notes else _last_words(folder)))
        return
    state: State = "finished" if finished(folder, rounds) else "running" if held(folder) else "unfinished"
    found.runs.append(Run(folder, header, rows, state, tuple(notes)))


def _check(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        absent = [name for name in NEEDED if name not in row]
        if absent:
            raise ValueError(f"round {row['round']} has no {absent[0]!r}: another program wrote it, or another version")


def _last_words(folder: Path) -> str:
    """What a run that has no round said last."""
    try:
        lines = (folder / LOG).read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "no round yet"


def _missing(path: Path) -> list[str]:
    """Runs of the sweeps below a folder that have no folder of their own yet."""
    labels = []
    for plan in sorted(path.rglob(PLAN)):
        try:
            jobs = json.loads(plan.read_text())
            labels += [str(label) for name, label in jobs.items() if not (plan.parent / name).is_dir()]
        except (ValueError, AttributeError):
            labels.append(f"unknown: {plan} is damaged")
    return labels
