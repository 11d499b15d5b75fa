"""What a sweep drew, by this machine's own meters: a row for each time that it was played, beside its runs.

    energy.json     [{"started": …, "seconds": …, "joules": …, "source": "nvml", "runs": {folder: [from, to]}, …}, …]

A meter sees the whole machine or the whole GPU, whatever else runs there; runs that share it share its joules, so they
are kept for the session and never divided among runs. Where there is no meter, joules are None, and the note says why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from joulegrad.energy.measuring import Meter, NoMeter, Tally
from joulegrad.energy.meters import found

__all__ = ["ENERGY", "Total", "read", "recorded", "total", "write"]

ENERGY = "energy.json"
EVERY = 20.0  # seconds between two writings: what a machine that is taken away can lose
IN_THE_BACKGROUND = 1.0  # seconds between two readings of a counter that wraps slowly or never


@contextmanager
def recorded(
    file: Path,
    facts: Mapping[str, Any],
    rounds: Callable[[], Mapping[str, int]],
    meters: tuple[list[Meter], list[NoMeter]] | None = None,
) -> Iterator[Callable[[], None]]:
    """Keep a row of what is drawn inside; what it yields is called often, and writes now and then.

    Args:
        file: where the rows are; one more is added.
        facts: more for the row: device, commit.
        rounds: how many rounds each run has now.
        meters: those that there are, and why there are no others; None: what is found here.
    """
    there, absent = found() if meters is None else meters
    tallies = [Tally(meter) for meter in there]
    before = dict(rounds())
    read(file)  # it is refused now if it is damaged, and not when there is something to write
    row: dict[str, Any] = {"started": _now(), "ended": None, "seconds": 0.0, **facts}
    done = Event()
    threads = [Thread(target=_watch, args=(tally, done), daemon=True) for tally in tallies]
    began = written = time.monotonic()
    for tally in tallies:
        tally.begin()
    for thread in threads:
        thread.start()

    def keep() -> None:
        for tally in tallies:
            tally.sample()
        now = dict(rounds())
        row.update(_said(tallies, absent), ended=_now(), seconds=round(time.monotonic() - began, 3))
        row["runs"] = {name: [before.get(name, 0), n] for name, n in now.items() if n != before.get(name, 0)}
        write(file, [*(each for each in read(file) if each["started"] != row["started"]), row])

    def now_and_then() -> None:
        nonlocal written
        if time.monotonic() - written >= EVERY:
            keep()
            written = time.monotonic()

    try:
        yield now_and_then
    finally:
        done.set()
        keep()


def _watch(tally: Tally, done: Event) -> None:
    while not done.wait(tally.meter.every or IN_THE_BACKGROUND):
        tally.sample()


def _said(tallies: list[Tally], absent: Iterable[NoMeter]) -> dict[str, Any]:
    """The joules so far; None where a meter failed or there is none."""
    lost = [tally.lost for tally in tallies if tally.lost is not None]
    by = {name: joules for tally in tallies for name, joules in tally.joules.items() if joules}
    left_out = [str(why) for why in absent if why.mendable or not tallies]
    still = [] if by or lost or not tallies else ["no meter has moved"]
    return {
        "joules": None if lost or not by else sum(by.values()),
        "source": "+".join(dict.fromkeys(tally.meter.source for tally in tallies)) or None,
        "by": by,
        "note": "; ".join([*lost, *still, *left_out]),
    }


def read(file: Path) -> list[dict[str, Any]]:
    """The rows of a file, none where it is not there; ValueError if it is damaged."""
    try:
        rows = json.loads(file.read_text())
    except FileNotFoundError:
        return []
    except ValueError:
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "started" in row for row in rows):
        raise ValueError(f"{file} is damaged: it is no list of sessions")
    return rows


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    """All rows, or the file as it was."""
    part = file.with_name(file.name + ".part")
    part.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    part.replace(file)


class Total(NamedTuple):
    """What sessions add up to.

    Args:
        joules: of the sessions that were measured; None where none was.
        seconds: of those.
        sessions: how many those are.
        unmeasured: how many others there are.
        shared_seconds: in which two ran at once, and which are counted once.
    """

    joules: float | None
    seconds: float
    sessions: int
    unmeasured: int
    shared_seconds: float


def total(rows: Iterable[Mapping[str, Any]]) -> Total:
    """Add sessions up; where two overlap they saw the same device, so that time is counted once.

    Of a session that overlaps with one before it, the joules are taken in proportion to the time that is its own.

    Example:
        >>> hour = {"started": "2026-11-19T10:00:00+00:00", "seconds": 3600.0, "joules": 720_000.0}
        >>> half = {"started": "2026-11-19T10:30:00+00:00", "seconds": 3600.0, "joules": 720_000.0}
        >>> total([hour, half])
        Total(joules=1080000.0, seconds=5400.0, sessions=2, unmeasured=0, shared_seconds=1800.0)
    """
    rows = sorted(rows, key=lambda row: _epoch(row["started"]))
    measured = [row for row in rows if row.get("joules") is not None]
    joules = seconds = shared = 0.0
    until = float("-inf")
    for row in measured:
        start = _epoch(row["started"])
        end = start + row["seconds"]
        own = max(0.0, end - max(start, until))
        joules += row["joules"] * (own / row["seconds"] if row["seconds"] else 1.0)
        seconds, shared, until = seconds + own, shared + row["seconds"] - own, max(until, end)
    n = len(measured)
    return Total(joules if n else None, seconds, n, len(rows) - n, shared)


def _epoch(started: str) -> float:
    return datetime.fromisoformat(started).timestamp()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
