"""A number that says its unit, where it comes from, how sure it is, and between what it may lie."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

__all__ = ["GRADES", "UNITS", "ProfileError", "Quantity", "allowed_units", "convert", "nearest", "parsed", "readable"]

GRADES = {
    "measured": "with a meter, by us or by you",
    "published": "read in the source that is named",
    "recalled": "what the source is known to say; it was not read again",
    "assumed": "nobody's figure: a reasoned guess, and the source says how",
}

UNITS: dict[str, dict[str, float]] = {  # by what they measure: each unit, in the first of them
    "power": {"W": 1.0, "mW": 1e-3, "kW": 1e3},
    "energy": {"J": 1.0, "mJ": 1e-3, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6},
    "energy per bit": {
        "J/bit": 1.0, "mJ/bit": 1e-3, "uJ/bit": 1e-6, "µJ/bit": 1e-6, "nJ/bit": 1e-9, "pJ/bit": 1e-12, "fJ/bit": 1e-15,
        "mW/Mbps": 1e-9, "mW/(Mbit/s)": 1e-9, "J/MB": 1.25e-7, "kWh/GB": 4.5e-4,
    },
    "data rate": {
        "bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "bps": 1.0, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9,
    },
    "size": {
        "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
    },
    "memory speed": {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "GiB/s": 2.0**30},
    "computing speed": {
        "FLOP/s": 1.0, "kFLOP/s": 1e3, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15,
    },
}  # fmt: skip
KEYS = ("value", "unit", "source", "grade", "range")


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the file, the field, what was given and what is allowed."""


@dataclass(frozen=True)
class Quantity:
    """A figure with its unit and its evidence, low ≤ value ≤ high.

    Args:
        value: the figure, in `unit`.
        unit: that of the field which holds it, whatever the file was written in.
        source: the work, the page or the reasoning that it comes from.
        grade: "measured", "published", "recalled" or "assumed".
        low: the least that it may be, in `unit`.
        high: the most that it may be, in `unit`.

    Example:
        >>> Quantity(2.7, "W", "a power meter at the socket", "measured", 2.6, 2.9).grade
        'measured'
    """

    value: float
    unit: str
    source: str
    grade: str
    low: float
    high: float

    def __post_init__(self) -> None:
        for name, given in (("value", self.value), ("low", self.low), ("high", self.high)):
            if not _is_number(given) or given < 0:
                raise ProfileError(f"{name} must be a finite number ≥ 0, got {given!r}")
        if not self.low <= self.value <= self.high:
            raise ProfileError(f"range is {[self.low, self.high]}, which does not hold the value {self.value:g}")
        if self.grade not in GRADES:
            raise ProfileError(f"grade is {self.grade!r}{nearest(self.grade, GRADES)} Allowed: {', '.join(GRADES)}")
        if not isinstance(self.source, str) or not self.source.strip():
            raise ProfileError("source is empty: name the work, the page, or how the figure was reasoned")

    def __str__(self) -> str:
        return readable(self.value, self.unit)


def quantity(given: Any, unit: str) -> Quantity:
    """What a file holds of one field, in the field's own unit.

    Args:
        given: a table of value, unit, source, grade and range.
        unit: what it is converted to.

    Example:
        >>> given = {"value": 2700, "unit": "mW", "range": [2600, 2900], "grade": "measured", "source": "a meter"}
        >>> quantity(given, "W")
        Quantity(value=2.7, unit='W', source='a meter', grade='measured', low=2.6, high=2.9)
    """
    if not isinstance(given, Mapping):
        raise ProfileError(f"is {given!r}; expected a table of {', '.join(KEYS)}")
    if missing := [key for key in KEYS if key not in given]:
        raise ProfileError(f"has no {missing[0]}; a figure needs {', '.join(KEYS)}")
    for key in given:
        if key not in KEYS:
            raise ProfileError(f"has an unknown key {key!r}{nearest(key, KEYS)} Allowed: {', '.join(KEYS)}")
    value, bounds = given["value"], given["range"]
    if not (isinstance(bounds, list | tuple) and len(bounds) == 2):
        raise ProfileError(f"range is {bounds!r}; expected [least, most] in the unit of the value")
    factor = convert(given["unit"], unit)
    if bad := [x for x in (value, *bounds) if not _is_number(x)]:
        raise ProfileError(f"value and range must be finite numbers, got {bad[0]!r}")
    value, low, high = (float(f"{float(x) * factor:.15g}") for x in (value, *bounds))  # 283.17, not 283.17000000000002
    return Quantity(value, unit, given["source"], given["grade"], low, high)


def convert(given: Any, unit: str) -> float:
    """What a figure in one unit is multiplied by to be in another of the same kind.

    Example:
        >>> convert("mW/Mbps", "nJ/bit")
        1.0
        >>> convert("GHz", "W")
        Traceback (most recent call last):
        joulegrad.profiles.quantity.ProfileError: unit is 'GHz', which is no unit of power. Allowed: W, mW, kW
    """
    kind, factors = next((kind, factors) for kind, factors in UNITS.items() if unit in factors)
    if not isinstance(given, str) or given not in factors:
        raise ProfileError(
            f"unit is {given!r}, which is no unit of {kind}{nearest(str(given), factors)} "
            f"Allowed: {', '.join(allowed_units(unit))}"
        )
    return 1.0 if given == unit else factors[given] / factors[unit]


def parsed(text: str, unit: str) -> float:
    """A figure as it is typed, a number and its unit, in another unit of the same kind.

    Example:
        >>> parsed("10 Wh", "J"), parsed("2Mbit/s", "bit/s")
        (36000.0, 2000000.0)
        >>> parsed("3000 mAh", "J")
        Traceback (most recent call last):
        joulegrad.profiles.quantity.ProfileError: '3000 mAh': unit is 'mAh', which is no unit of energy. Allowed: J,
        mJ, kJ, MJ, Wh, kWh
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([^\s\d.].*?)\s*", text)
    try:
        value = float(found.group(1)) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not math.isfinite(value):
        raise ProfileError(f"{text!r} is no number with its unit, of which there are {', '.join(allowed_units(unit))}")
    try:
        return value * convert(found.group(2), unit)
    except ProfileError as why:
        raise ProfileError(f"{text!r}: {why}") from None


def readable(value: float, unit: str) -> str:
    """A figure in three digits, with a prefix where its unit takes one.

    Example:
        >>> readable(3.3e10, "FLOP/s"), readable(0.0144, "W"), readable(0.95, "pJ/bit")
        ('33.0 GFLOP/s', '14.4 mW', '0.95 pJ/bit')
    """
    if unit in ("pJ/bit", "nJ/bit"):
        return f"{value:,.3g} {unit}" if value < 1e3 else f"{value / 1e3:,.3g} {'nJ' if unit[0] == 'p' else 'µJ'}/bit"
    if unit == "B" and value < 10_000:
        return f"{value:,.0f} B"
    if unit == "B":
        for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if value >= size:
                return f"{value / size:.4g} {name}"
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m")):
        if value >= scale:
            return f"{value / scale:#.3g}".rstrip(".") + f" {prefix}{unit}"
    return f"{value * 1e6:.3g} µ{unit}" if value else f"0 {unit}"


def allowed_units(unit: str) -> list[str]:
    """The units that may be given where this one is meant.

    Example:
        >>> allowed_units("W")
        ['W', 'mW', 'kW']
    """
    return list(next(factors for factors in UNITS.values() if unit in factors))


def nearest(given: str, valid: Iterable[str]) -> str:
    """What may have been meant, to go on with after a wrong name.

    Example:
        >>> nearest("published!", GRADES)
        "; did you mean 'published'?"
        >>> nearest("xyz", GRADES)
        '.'
    """
    folded = {name.lower(): name for name in valid}
    near = difflib.get_close_matches(str(given).lower(), list(folded), n=1, cutoff=0.5)
    return f"; did you mean {folded[near[0]]!r}?" if near else "."


def _is_number(x: object) -> bool:
    return not isinstance(x, bool) and isinstance(x, Real) and math.isfinite(x)
