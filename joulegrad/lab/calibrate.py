"""Find out what this device's work costs, with its own meter: windows of work, a fit, and how well it foretells others.

    E = P_rest · t + P_awake · t_awake + e_product · FLOP + e_convolution · FLOP + e_cache · bits + e_memory · bits

A device is fitted by work that does mostly one thing, and tested on work that it was not fitted on: selection, a
training step, scatter, encoding. Nothing is written that the meter cannot tell.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import joulegrad
from joulegrad.energy import Meter, NoMeter, measure, meters
from joulegrad.energy.measuring import settled
from joulegrad.lab import workloads
from joulegrad.lab.provenance import commit, version_of
from joulegrad.lab.regression import Coefficient, Fit, Prediction, Unresolved, Window, fit, shortest
from joulegrad.lab.workloads import (
    AWAKE,
    CACHE,
    CONVOLVED,
    FLOP,
    MEMORY,
    REST,
    SENT,
    TRAINING,
    Machine,
    Made,
    Workload,
)
from joulegrad.profiles import DeviceProfile, Quantity

__all__ = ["Calibration", "calibrate", "machine_of", "meter_of", "profile", "report"]

LEAD = 0.5  # seconds of work before each window: the meter is late, and clocks take a while
CPU_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
CHUNK = 0.05  # seconds of work between two looks at the clock
SHOWN = {  # how coefficients are read: factor, unit
    REST: (1.0, "W"), AWAKE: (1.0, "W"), FLOP: (1e12, "pJ/FLOP"), CONVOLVED: (1e12, "pJ/FLOP"),
    CACHE: (1e12, "pJ/bit"), MEMORY: (1e12, "pJ/bit"), SENT: (1e9, "nJ/bit"),
}  # fmt: skip


@dataclass
class Calibration:
    """How far it has come.

    Args:
        machine: where.
        name: of the device, as it calls itself.
        ram_bytes: its main memory.
        source: of the joules.
        windows: those that were fitted.
        tests: those that were not.
        failed: work that could not be done, and why.
        untold: work of which the fit can say nothing, and why.
        fit: None as long as there is none, and `why` says why.
    """

    machine: Machine
    name: str
    ram_bytes: float
    source: str
    windows: list[Window] = field(default_factory=list)
    tests: list[Window] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)
    fit: Fit | None = None
    why: str = "not all that is to be fitted has been measured"

    def predictions(self) -> list[Prediction]:
        """What the fit says of work that it has not seen; of what it can say nothing, `untold` says why."""
        found: list[Prediction] = []
        if self.fit is None:
            return found
        for test in self.tests:
            try:
                found.append(self.fit.predict(test))
            except Unresolved as why:
                self.untold[test.name] = str(why)
        return found

    @property
    def busy_watts(self) -> float | None:
        """Drawn in training: what a ledger charges for a second of selecting or encoding, too."""
        watts = [test.watts for test in self.tests if test.name == TRAINING]
        return sum(watts) / len(watts) if watts else None

    def refit(self) -> None:
        """Take in what has been measured since."""
        try:
            found = fit(self.windows)
        except Unresolved as why:
            self.fit, self.why = None, str(why)
            return
        told = [name for name, c in found.coefficients.items() if c.joules is not None and name != REST]
        self.fit, self.why = (found, "") if told else (None, "the meter tells no work from rest")


def meter_of(device: str, source: str | None = None) -> Meter:
    """The meter that sees this device.

    Args:
        device: "cpu" or "cuda".
        source: the name of one; None: the first that is here of those that see it.
    """
    seeing = {"cuda": ("nvml", "ina3221"), "cpu": ("rapl", "ina3221", "pi-pmic")}[device]
    wanted = seeing if source is None else (source,)
    makers: dict[str, Callable[[], Meter]] = {
        "nvml": meters.nvml, "rapl": meters.rapl, "ina3221": meters.ina3221, "pi-pmic": meters.pi_pmic,
    }  # fmt: skip
    if unknown := [name for name in wanted if name not in makers]:
        raise ValueError(f"meter {unknown[0]!r} is none of {', '.join(makers)}")
    why = []
    for name in wanted:
        try:
            return makers[name]()
        except NoMeter as absent:
            why.append(str(absent))
    raise NoMeter("; ".join(why))


def machine_of(device: str, precision: str, like: DeviceProfile) -> tuple[Machine, str, float]:
    """The machine, its name and its bytes of main memory; what it does not say itself is as in `like`."""
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        cache = float(getattr(properties, "L2_cache_size", 0)) or like.cache_bytes.value
        machine = Machine(device, precision, cache, like.line_bytes.value)
        return machine, properties.name, float(properties.total_memory)
    levels = [_read(level) or "" for level in CPU_CACHE.glob("index*/size")]
    cache = max((1024.0 * int(text[:-1]) for text in levels if text.endswith("K")), default=like.cache_bytes.value)
    line = float(_read(CPU_CACHE / "index0/coherency_line_size") or like.line_bytes.value)
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return Machine(device, precision, cache, line), _processor(), memory


def calibrate(
    found: Calibration,
    meter: Meter,
    *,
    seconds: float = 5.0,
    repeats: int = 3,
    limit: float | None = None,
    send: str | None = None,
    fitted: Sequence[Made] | None = None,
    held_out: Sequence[Made] | None = None,
    seen: Callable[[Window], None] = lambda window: None,
    kept: Callable[[], None] = lambda: None,
) -> None:
    """Measure window after window, and fit anew after each.

    Args:
        found: what is filled in.
        meter: which sees the device.
        seconds: of each window.
        repeats: how often each kind of work is measured; rest once, before all else.
        limit: seconds after which no window is begun; None: none.
        send: "host:port" to send to, if sending is to be measured.
        fitted: the work to fit by; None: `workloads.fitted()`.
        held_out: the work to test on; None: `workloads.held_out()`.
        seen: is given each window.
        kept: is called when there is more to keep.
    """
    if seconds < shortest(meter.moves):
        raise ValueError(
            f"windows of {seconds:g} s are too short for {meter.source}, which moves every {meter.moves:g} s: at least "
            f"{shortest(meter.moves):g} s"
        )
    began, ready = time.perf_counter(), dict[Made, Workload]()
    by = [*(workloads.fitted() if fitted is None else fitted), *([workloads.sending(send)] if send else [])]
    tests = list(workloads.held_out() if held_out is None else held_out)
    _precise(found.machine)
    for made in [workloads.rest, *(made for _ in range(repeats) for made in (*by, *tests))]:
        if limit is not None and time.perf_counter() - began > limit - seconds - LEAD:
            break
        name = made.__name__
        if name in found.failed:
            continue
        try:
            if made not in ready:
                ready[made] = made(found.machine)
            window = _measured(ready[made], meter, seconds)
        except NoMeter:
            raise
        except Exception as why:  # one kind of work that cannot be done here must not cost all others
            found.failed[name] = f"{type(why).__name__}: {why}"
            continue
        (found.tests if made in tests else found.windows).append(window)
        if all(work in ready or work.__name__ in found.failed for work in by):
            found.refit()
        seen(window)
        kept()


def _measured(workload: Workload, meter: Meter, seconds: float) -> Window:
    """One window of one kind of work, after a while of the same."""
    _chunk(workload, 1)  # what is compiled is compiled now
    chunk, until = 1, time.perf_counter() + LEAD
    while time.perf_counter() < until:
        if _chunk(workload, chunk) < CHUNK / 2:
            chunk *= 2
    steps = 0
    with measure(meter) as reading:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            _chunk(workload, chunk)
            steps += chunk
    if reading.joules is None or reading.seconds is None:
        raise NoMeter(reading.note)
    amounts = {name: steps * amount for name, amount in workload.amounts.items()} | {REST: reading.seconds}
    if workload.awake:
        amounts[AWAKE] = reading.seconds
    return Window(workload.name, reading.seconds, reading.joules, amounts, meter.moves)


def _chunk(workload: Workload, steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        workload.step()
    settled()
    return time.perf_counter() - began


def _precise(machine: Machine) -> None:
    if machine.device == "cuda":
        tf32 = machine.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def profile(found: Calibration, like: DeviceProfile, name: str) -> DeviceProfile:
    """The device's profile: what was measured, and the rest as in another's, with the other's own grades.

    Args:
        found: what was measured.
        like: where the rest is taken from.
        name: of the profile.
    """
    if found.fit is None:
        raise Unresolved(found.why)
    when = datetime.now(UTC).date().isoformat()
    how = f"joulegrad calibrate, {when}, {found.name}, {found.source}"
    fields: dict[str, Any] = {}
    for key, term in (("idle_watts", REST), ("sram_pj_per_bit", CACHE), ("dram_pj_per_bit", MEMORY)):
        coefficient, (factor, unit) = found.fit.coefficients.get(term), SHOWN[term]
        if coefficient is not None and coefficient.joules is not None:
            value, low, high = (factor * x for x in (coefficient.joules, coefficient.low, coefficient.high))
            fields[key] = Quantity(value, unit, f"{how}: fitted, and 95 % of its bootstrap", "measured", low, high)
    rates: list[tuple[str, str, Callable[[Window], float], str]] = [
        ("busy_watts", TRAINING, lambda w: w.watts, "W"),
        ("train_flops_per_second", TRAINING, _flop_rate, "FLOP/s"),
        ("ram_bytes_per_second", "memory", lambda w: w.amounts[MEMORY] / 8 / w.seconds, "B/s"),
    ]
    for key, work, rate, unit in rates:
        values = [rate(window) for window in (*found.windows, *found.tests) if window.name == work]
        if values:
            what = f"{how}: {work}, {found.machine.precision}, mean and extremes of {len(values)} windows"
            value = sum(values) / len(values)
            fields[key] = Quantity(value, unit, what, "measured", min(value, *values), max(value, *values))
    for key, value in (("ram_bytes", found.ram_bytes), ("cache_bytes", found.machine.cache_bytes)):
        fields[key] = Quantity(value, "B", f"{how}: as the system says", "measured", value, value)
    return replace(like, name=name, summary=f"{found.name}, calibrated on {when} by {found.source}", **fields)


def _flop_rate(window: Window) -> float:
    """Operations a second, whatever they are part of."""
    return (window.amounts.get(FLOP, 0.0) + window.amounts.get(CONVOLVED, 0.0)) / window.seconds


def report(found: Calibration) -> dict[str, Any]:
    """All of it, for a file: the machine, each window, coefficients, residuals, predictions."""
    header = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": found.name,
        "meter": found.source,
        "precision": found.machine.precision,
        "cache_bytes": found.machine.cache_bytes,
        "line_bytes": found.machine.line_bytes,
        "python": platform.python_version(),
        "joulegrad": joulegrad.__version__,
        **{package: version_of(package) for package in ("torch", "numpy", "scipy", "numba", "triton")},
        **commit(),
    }
    windows = [_window(window, "fitted") for window in found.windows]
    windows += [_window(window, "held out") for window in found.tests]
    told: dict[str, Any] = {"header": header, "windows": windows, "why_no_fit": found.why}
    if found.fit is not None:
        told["coefficients"] = {name: _shown(name, c) for name, c in found.fit.coefficients.items()}
        told |= {"condition": found.fit.condition, "spread": found.fit.spread, "misfit": found.fit.misfit}
        told["residuals"] = found.fit.residuals
        told["predictions"] = [_foretold(p, found.busy_watts) for p in found.predictions()]
    return told | {"failed": found.failed, "untold": found.untold}


def _foretold(found: Prediction, busy_watts: float | None) -> dict[str, Any]:
    """As a file has it; beside it what a ledger would charge, from the seconds."""
    ledger = None if busy_watts is None else busy_watts * found.seconds
    return found._asdict() | {"error": found.error, "by_busy_watts": ledger}


def _shown(name: str, found: Coefficient) -> dict[str, Any]:
    factor, unit = SHOWN[name]
    value = None if found.joules is None else factor * found.joules
    return {"value": value, "low": factor * found.low, "high": factor * found.high, "unit": unit, "why_not": found.why}


def _window(window: Window, use: str) -> dict[str, Any]:
    return window._asdict() | {"amounts": dict(window.amounts), "watts": window.watts, "use": use}


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _processor() -> str:
    lines = (_read(Path("/proc/cpuinfo")) or "").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, platform.machine())
