"""Joules of what runs inside a `with`, or None and the reason: never a guess, never 0 for what was not measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from subprocess import SubprocessError
from threading import Event, Lock, Thread

__all__ = ["Meter", "NoMeter", "Reading", "measure", "settled"]

PLAUSIBLE_WATTS = 1000.0  # of one counter: a processor's package draws less, so a wrap takes longer than range / this
FEW = 10  # moves of the sensor: with fewer in a window, the note says how far off it may be
FAILURES = (OSError, ValueError, KeyError, SubprocessError, RuntimeError)  # of a sensor that vanished or was locked


class NoMeter(RuntimeError):
    """There is no such meter here, and why.

    Args:
        mendable: whether it is there and only may not be read.
    """

    def __init__(self, why: str, *, mendable: bool = False) -> None:
        super().__init__(why)
        self.mendable = mendable


@dataclass(frozen=True)
class Meter:
    """A sensor: how to read it, and what a reading means.

    Args:
        source: its name: "nvml", "rapl", "ina3221", "pi-pmic", or your own.
        read: what it says now of each device, in joules since some time ago, or in watts.
        unit: which of the two.
        wraps: of counters: after how many joules each device's begins again at 0; none: it never does.
        every: seconds between two readings in the background; None: none are needed.
        moves: seconds between two moves of the sensor itself.

    Example:
        >>> level = iter([5.0, 7.5])
        >>> meter = Meter("mine", lambda: {"board": next(level)}, moves=0.0)
        >>> with measure(meter) as reading:
        ...     pass
        >>> reading.joules, reading.source
        (2.5, 'mine')
    """

    source: str
    read: Callable[[], Mapping[str, float]]
    unit: str = "joules"
    wraps: Mapping[str, float] = field(default_factory=dict)
    every: float | None = None
    moves: float = 0.001


@dataclass
class Reading:
    """What was measured between the beginning and the end of a `with measure()`.

    Args:
        joules: None where nothing was measured; `note` says why.
        seconds: how long it took; None until it is over.
        source: which meter, or several joined by "+"; None where there is none.
        note: why there are no joules, or what to know of them.
        by: the joules of each device: GPU, package, rail.
        above: the reading at rest whose watts were subtracted, if asked.
    """

    joules: float | None = None
    seconds: float | None = None
    source: str | None = None
    note: str = ""
    by: dict[str, float] = field(default_factory=dict)
    above: Reading | None = None

    @property
    def watts(self) -> float | None:
        """Joules per second."""
        return None if self.joules is None or not self.seconds else self.joules / self.seconds

    def __str__(self) -> str:
        window = "" if self.seconds is None else f" over {self.seconds:.3g} s"
        if self.joules is None:
            return f"not measured{window}: {self.note or 'the window is still open'}"
        rest = "" if self.above is None else f", above {self.above.watts:.4g} W at rest over {self.above.seconds:.3g} s"
        return f"{self.joules:.4g} J{window}, measured by {self.source}{rest}{f' ({self.note})' if self.note else ''}"


@contextmanager
def measure(meters: Meter | Iterable[Meter] | None = None, *, above: Reading | None = None) -> Iterator[Reading]:
    """Measure the joules of what runs inside: E = E(end) − E(begin), or ∫ P dt, less P_rest · t if asked.

    A meter sees a whole device, and all that runs there. Windows may lie inside one another, and several threads may
    measure at once; each reading is right for itself, and two that overlap must not be added. Work that was given to a
    GPU before the end is waited for.

    Args:
        meters: one or several; None: all that are found here, whose joules are added.
        above: a reading at rest, whose watts are subtracted.

    Example:
        >>> with measure() as rest:
        ...     time.sleep(0.01)
        >>> with measure(above=rest) as reading:
        ...     _ = torch.ones(10).sum()
        >>> reading.joules is None or reading.source is not None  # here, there may be no meter
        True
    """
    reading, left_out = Reading(), ""
    if meters is None:
        from joulegrad.energy.meters import found

        meters, absent = found()
        left_out = "; ".join(str(why) for why in absent if why.mendable or not meters)
    tallies = [Tally(meter) for meter in ([meters] if isinstance(meters, Meter) else meters)]
    reading.source = "+".join(dict.fromkeys(t.meter.source for t in tallies)) or None
    done = Event()
    threads = [Thread(target=t.watch, args=(done,), daemon=True) for t in tallies if t.meter.every is not None]
    settled()
    began = time.perf_counter()
    for tally in tallies:
        tally.begin()
    for thread in threads:
        thread.start()
    try:
        yield reading
    finally:
        settled()
        for tally in tallies:
            tally.sample()
        reading.seconds = time.perf_counter() - began
        done.set()
        for thread in threads:
            thread.join()
        _close(reading, tallies, left_out, above)


class Tally:
    """What one meter has counted since a window began."""

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.monotonic) -> None:
        self.meter, self.clock = meter, clock
        self.joules: dict[str, float] = {}
        self.last: Mapping[str, float] = {}
        self.at = self.longest = 0.0  # of the last reading; the longest time between two
        self.readings = 0
        self.lost: str | None = None  # why there will be no joules
        self.lock = Lock()

    def begin(self) -> None:
        """The first reading."""
        with self.lock:
            self._guarded(self._first)

    def sample(self) -> None:
        """One more reading; after a failed one, none."""
        with self.lock:
            if self.lost is None:
                self._guarded(self._next)

    def watch(self, done: Event) -> None:
        """Read in the background until the window ends."""
        while not done.wait(self.meter.every):
            self.sample()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except FAILURES as why:
            self.lost = f"{self.meter.source}: {_said(why)}"

    def _first(self) -> None:
        self.last, self.at = dict(self.meter.read()), self.clock()
        self.joules = dict.fromkeys(self.last, 0.0)
        self.readings = 1

    def _next(self) -> None:
        found, now = dict(self.meter.read()), self.clock()
        gap = now - self.at
        for device, before in self.last.items():
            if device not in found:
                raise NoMeter(f"{device} vanished while it was being measured")
            if self.meter.unit == "watts":
                self.joules[device] += gap * (before + found[device]) / 2
            else:
                self.joules[device] += self._counted(device, found[device] - before, gap)
        self.last, self.at, self.longest = found, now, max(self.longest, gap)
        self.readings += 1

    def _counted(self, device: str, joules: float, gap: float) -> float:
        """What a counter has moved, if it began again at most once."""
        wrap = self.meter.wraps.get(device)
        if wrap is not None and gap * PLAUSIBLE_WATTS > wrap:
            raise NoMeter(f"{device} was not read for {gap:.0f} s, in which its counter may have begun again unseen")
        if joules >= 0:
            return joules
        if wrap is None:
            raise NoMeter(f"{device}'s counter went back by {-joules:.6g} J: it was reset")
        if not 0 <= joules + wrap <= wrap / 2:
            raise NoMeter(f"{device}'s counter went back by {-joules:.6g} J, which is no wrap at {wrap:.6g} J")
        return joules + wrap


def _close(reading: Reading, tallies: list[Tally], left_out: str, above: Reading | None) -> None:
    """Fill in a reading whose window has ended."""
    lost = [t.lost for t in tallies if t.lost is not None]
    still = [
        f"{t.meter.source}: it did not move in {reading.seconds:.3g} s, too short a time for it"
        for t in tallies
        if t.lost is None and not sum(t.joules.values())
    ]
    reading.by = {device: joules for t in tallies if t.lost is None for device, joules in t.joules.items() if joules}
    if lost or still or not tallies:
        reading.note = "; ".join([*lost, *still, *([left_out] if left_out else [])]) or "no meter was given"
        return
    joules, seconds = sum(reading.by.values()), reading.seconds or 0.0
    notes = [note for t in tallies if (note := _coarse(t, seconds))] + ([left_out] if left_out else [])
    if above is not None:
        if above.watts is None or above.source != reading.source:
            what = above.note if above.watts is None else f"it was measured by {above.source}, this by {reading.source}"
            reading.note = f"the reading at rest cannot be subtracted: {what}"
            return
        joules -= above.watts * seconds
        reading.above = above
        if joules <= 0:
            notes.append("no more than at rest: below what the meter can tell")
    reading.joules, reading.note = joules, "; ".join(notes)


def _coarse(tally: Tally, seconds: float) -> str:
    """What to know of a window that was short for its meter, or badly watched."""
    meter, joules = tally.meter, sum(tally.joules.values())
    if meter.unit == "watts":
        every = meter.every or seconds
        if tally.longest > FEW * every:
            return f"{meter.source} was once not read for {tally.longest:.2g} s"
        few = tally.readings <= FEW
        return f"{meter.source} was read only {tally.readings} times in {seconds:.2g} s" if few else ""
    if seconds < FEW * meter.moves:
        off = joules * meter.moves / seconds
        return f"{meter.source} moves every {meter.moves:g} s: ± {off:.2g} J in a window of {seconds:.2g} s"
    return ""


def settled() -> None:
    """Wait for what GPUs were given to do, if torch is using any; one that it has not used is not woken."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(device):
                torch.cuda.synchronize(device)


def _said(why: BaseException) -> str:
    if isinstance(why, PermissionError):
        return f"{why.filename} may not be read any more"
    if isinstance(why, KeyError):
        return f"it does not say {why} any more"
    if isinstance(why, OSError) and why.filename:
        return f"{why.filename}: {why.strerror}"
    return str(why) or type(why).__name__
