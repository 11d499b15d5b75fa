"""Play an experiment in a folder, from where it stands to its end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from joulegrad.lab.experiment import Experiment
from joulegrad.lab.simulate import Row, Simulation
from joulegrad.lab.store import MEMORIES, Folder, read_rounds

__all__ = ["Outcome", "run"]

SHARE = 0.05  # of the time, at most, that checkpoints may take


class Outcome(NamedTuple):
    """How far a run has come."""

    rows: list[Row]
    finished: bool


def run(
    experiment: Experiment,
    folder: Path,
    *,
    device: str = "cpu",
    workers: int | None = None,
    seen: Callable[[Row], None] = lambda row: None,
    noted: Callable[[str], None] = lambda note: None,
) -> Outcome:
    """Begin or go on; a finished run is only read.

    Ctrl-C, or a polite request to end, lets the round end and keeps it; asked twice, it stops at once, and the
    round is played again next time.

    Args:
        experiment: what is played.
        folder: where; made if it is not there.
        device: "cpu" or "cuda".
        workers: processes on the CPU; None: one a core.
        seen: is given each row when its round is over, first those that were there already.
        noted: is given what was found damaged in the folder, and that a request to stop was heard.
    """
    with Folder(folder, experiment, {"device": device, "workers": workers}) as store, _asked_to_stop(noted) as asked:
        for note in store.notes:
            noted(note)
        rows = read_rounds(folder)
        for row in rows:
            seen(row)
        if len(rows) == experiment.rounds:
            return Outcome(rows, True)
        with Simulation(experiment, device=device, workers=workers, memories=folder / MEMORIES) as simulation:
            store.describe(simulation.facts())
            if store.state is not None:
                simulation.restore(store.state)
            with _kept(folder, simulation):
                return _play(simulation, store, rows, asked, seen)


def _play(
    simulation: Simulation, store: Folder, rows: list[Row], asked: list[int], seen: Callable[[Row], None]
) -> Outcome:
    """Round after round, a checkpoint where one is due, until the last or until somebody asks."""
    clock = _Clock()
    for row in simulation:
        store.append(row)
        rows.append(row)
        seen(row)
        last = simulation.t == simulation.experiment.rounds
        if clock.due() or last or asked:
            with clock:
                store.checkpoint(simulation.state())
        if asked and not last:
            return Outcome(rows, False)
    return Outcome(rows, True)


@contextmanager
def _kept(folder: Path, simulation: Simulation) -> Iterator[None]:
    """Say what is left when the disk is full, or whatever else the system refuses."""
    try:
        yield
    except OSError as why:
        raise OSError(
            f"{folder}, after round {simulation.t}: {why.strerror or why}. The rounds up to the last checkpoint are "
            "whole; mend that, and the same command goes on from there"
        ) from why


class _Clock:
    """Says when a checkpoint is due: when it would take but a small share of the time since the last."""

    def __init__(self) -> None:
        self.last, self.took = time.monotonic(), 0.0

    def due(self) -> bool:
        return self.took <= SHARE * (time.monotonic() - self.last)

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.last = time.monotonic()
        self.took = self.last - self.began


@contextmanager
def _asked_to_stop(noted: Callable[[str], None]) -> Iterator[list[int]]:
    """A list that is empty until somebody asks."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        with suppress(RuntimeError):  # in the middle of writing another line: then unsaid
            noted("this round ends first; asked again, it stops at once")

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever owns it decides
        yield asked
        return
    try:
        yield asked
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
