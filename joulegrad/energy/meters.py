"""The meters that there may be: NVML, RAPL, a Jetson's INA3221, a Raspberry Pi 5's PMIC.

Each function gives a `Meter`, or raises `NoMeter` with the reason in words that can be acted on.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from joulegrad.energy.measuring import FAILURES, Meter, NoMeter

__all__ = ["found", "ina3221", "nvml", "pi_pmic", "rapl"]

RAPL_ROOT = Path("/sys/class/powercap")
INA3221_ROOT = Path("/sys/bus/i2c/drivers")
UDEV = (
    'SUBSYSTEM=="powercap", KERNEL=="intel-rapl:*", RUN+="/bin/chgrp power /sys%p/energy_uj", '
    'RUN+="/bin/chmod g+r /sys%p/energy_uj"'
)
INPUTS = ("VDD_IN", "POM_5V_IN", "5V_IN", "VDD_MUX")  # a Jetson's supply; TX1 and TX2 have two, side by side


def found() -> tuple[list[Meter], list[NoMeter]]:
    """The meters of this machine, and why there are no others."""
    meters: list[Meter] = []
    absent: list[NoMeter] = []
    for make in (nvml, rapl, ina3221, pi_pmic):
        try:
            meters.append(make())
        except NoMeter as why:
            absent.append(why)
    return meters, absent


def nvml(api: Any = None) -> Meter:
    """The energy counter of NVIDIA's GPUs since Volta; those of CUDA_VISIBLE_DEVICES, if it is set.

    The counter is in millijoules and moves about every 0.1 s. On an A100 or H100 the sensor behind it looks at a
    quarter of the time only, so that windows of seconds, of even work, are what it is good for.

    Args:
        api: what speaks to the driver; None: the package nvidia-ml-py, or else the driver's own library.

    Reference: Yang, Adamek, Armour, Part-time Power Measurements: nvidia-smi's Lack of Attention, SC 2024.
    """
    if api is None:
        api = _nvml_api()
    try:
        api.nvmlInit()
        handles = _visible(api)
        names = [f"GPU {i}" for i in range(len(handles))]
        for name, handle in zip(names, handles, strict=True):
            try:
                api.nvmlDeviceGetTotalEnergyConsumption(handle)
            except Exception as why:
                raise NoMeter(
                    f"nvml: {name} has no energy counter ({why}); those since Volta have, MIG's parts have not"
                ) from None
    except NoMeter:
        raise
    except Exception as why:  # the package has a class for each of the driver's errors
        raise NoMeter(f"nvml: the driver does not answer ({why})") from None
    if not handles:
        raise NoMeter("nvml: no GPU is visible")

    def read() -> dict[str, float]:
        try:
            millijoules = [api.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
        except Exception as why:
            raise NoMeter(f"the driver does not answer any more ({why})") from None
        return {name: mj / 1e3 for name, mj in zip(names, millijoules, strict=True)}

    return Meter("nvml", read, moves=0.1)


def _visible(api: Any) -> list[Any]:
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return [api.nvmlDeviceGetHandleByIndex(i) for i in range(api.nvmlDeviceGetCount())]
    names = [name.strip() for name in asked.split(",") if name.strip()]
    return [
        api.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else api.nvmlDeviceGetHandleByUUID(name)
        for name in names
        if name != "-1"
    ]


def _nvml_api() -> Any:
    try:
        import pynvml

        return pynvml
    except ModuleNotFoundError:
        from joulegrad.energy.nvml import Driver

        try:
            return Driver()
        except OSError:
            raise NoMeter("nvml: no NVIDIA driver (libnvidia-ml.so.1) is here") from None


def rapl(root: Path = RAPL_ROOT) -> Meter:
    """The energy counters of Intel's and AMD's processors, through Linux: packages, and memory where it is apart.

    Cores and graphics are parts of the package, and the whole platform overlaps it: they are not added.

    Args:
        root: where Linux has them.
    """
    zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if (zone / "name").is_file()]
    chosen = {}
    for zone in zones:
        name = (zone / "name").read_text().strip()
        if name.startswith("package") or name == "dram":
            parent = zone.name.rpartition(":")[0]
            home = (root / parent / "name").read_text().strip() + " " if name == "dram" else ""
            chosen[home + name] = zone
    if not chosen:
        raise NoMeter(f"rapl: there is no {root}/intel-rapl:*; most virtual machines hide the processor's counters")
    try:
        wraps = {name: int((zone / "max_energy_range_uj").read_text()) / 1e6 for name, zone in chosen.items()}
        [(zone / "energy_uj").read_text() for zone in chosen.values()]
    except PermissionError:
        raise NoMeter(
            "rapl: energy_uj may be read by root only (since Linux 5.10, because it can betray secrets to other users; "
            "CVE-2020-8694). To let a group `power` read it, put this line into /etc/udev/rules.d/99-rapl.rules, then "
            f"run udevadm control --reload && udevadm trigger --subsystem-match=powercap --action=add: {UDEV}",
            mendable=True,
        ) from None
    except (OSError, ValueError) as why:
        raise NoMeter(f"rapl: {why}") from None

    def read() -> dict[str, float]:
        return {name: int((zone / "energy_uj").read_text()) / 1e6 for name, zone in chosen.items()}

    return Meter("rapl", read, wraps=wraps, every=5.0)


def ina3221(root: Path = INA3221_ROOT, rails: Sequence[str] | None = None) -> Meter:
    """The power sensor on NVIDIA's Jetson boards, through Linux: the supply of the whole module.

    Args:
        root: where Linux has the drivers `ina3221` (JetPack 5 and later) and `ina3221x` (JetPack 4).
        rails: whose watts are added; None: the supply. An AGX measures parts alone, which you must name.
    """
    watts: dict[str, Callable[[], float]] = {}
    for label in sorted([*root.glob("ina3221*/*/hwmon/hwmon*/in*_label"), *root.glob("ina3221x/*/iio*/rail_name_*")]):
        number = re.sub(r"\D", "", label.name)
        if label.name.startswith("in") and not (label.parent / f"curr{number}_input").exists():
            continue  # the sum of the channels' shunt voltages has a label, too
        try:
            watts.setdefault(label.read_text().strip(), _rail(label.parent, number))
        except OSError as why:
            raise NoMeter(f"ina3221: {why}", mendable=isinstance(why, PermissionError)) from None
    if not watts:
        raise NoMeter(f"ina3221: {root} has no such sensor; Jetson boards have one (the Nano of 2 GB has not)")
    chosen = [name for name in INPUTS if name in watts] if rails is None else list(rails)
    unknown = [name for name in chosen if name not in watts]
    if unknown or not chosen:
        wanted = f"no rail {unknown[0]!r}" if unknown else "no rail that is the supply of the whole"
        raise NoMeter(
            f"ina3221: there is {wanted}; name some with rails=, which are not part of each other: {', '.join(watts)}"
        )

    def read() -> dict[str, float]:
        return {name: watts[name]() for name in chosen}

    return _tried(Meter("ina3221", read, unit="watts", every=0.05, moves=0.05))


def _rail(folder: Path, number: str) -> Callable[[], float]:
    """How to read one rail's watts: of the older driver in mW, of the newer as mA and mV."""
    power = folder / f"in_power{number}_input"
    if power.exists():
        return lambda: int(power.read_text()) / 1e3
    current, volts = folder / f"curr{number}_input", folder / f"in{number}_input"
    return lambda: int(current.read_text()) * int(volts.read_text()) / 1e6


def pi_pmic(run: Callable[[], str] | None = None) -> Meter:
    """The power chip of a Raspberry Pi 5: the sum of its rails, V · A.

    It sees what the board itself draws, and neither the chip's own loss nor what hangs on USB: a meter in the supply
    shows more.

    Args:
        run: what gives the words of `vcgencmd pmic_read_adc`; None: that command.
    """
    ask = run or _vcgencmd

    def read() -> dict[str, float]:
        said = ask()
        pairs = re.findall(r"(\S+)_([AV])\s+(?:current|volt)\(\d+\)=([\d.]+)[AV]", said)
        amperes = {rail: float(x) for rail, unit, x in pairs if unit == "A"}
        volts = {rail: float(x) for rail, unit, x in pairs if unit == "V"}
        both = amperes.keys() & volts.keys()  # the supply and the clock's battery have volts only
        if not both:
            raise NoMeter(f"vcgencmd pmic_read_adc said {said.strip()[:80]!r}, which names no rail")
        return {"board": sum(amperes[rail] * volts[rail] for rail in sorted(both))}

    return _tried(Meter("pi-pmic", read, unit="watts", every=0.1, moves=0.1))


def _vcgencmd() -> str:
    try:
        said = subprocess.run(["vcgencmd", "pmic_read_adc"], capture_output=True, text=True, timeout=2, check=False)
    except FileNotFoundError:
        raise NoMeter("there is no command vcgencmd; a Raspberry Pi 5 has it") from None
    if said.returncode:
        raise NoMeter(f"vcgencmd pmic_read_adc failed: {(said.stderr or said.stdout).strip()}", mendable=True)
    return said.stdout


def _tried(meter: Meter) -> Meter:
    """The meter, if it can be read now."""
    try:
        meter.read()
    except FAILURES as why:
        mendable = isinstance(why, PermissionError) or getattr(why, "mendable", False)
        raise NoMeter(f"{meter.source}: {why}", mendable=mendable) from None
    return meter
