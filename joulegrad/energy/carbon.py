"""Grams of CO2e, from joules and how the electricity was made."""

from __future__ import annotations

import json
from importlib import resources
from typing import NamedTuple

from joulegrad.energy.battery import is_number

__all__ = ["WORLD", "Carbon", "carbon"]

WORLD = 475.0  # g/kWh: the world's average in 2019, International Energy Agency
JOULES_PER_KWH = 3.6e6


class Carbon(NamedTuple):
    """Grams of CO2e, and by which figure."""

    grams: float
    grams_per_kwh: float
    source: str

    def __str__(self) -> str:
        return f"{self.grams:.3g} g of CO2e at {self.grams_per_kwh:g} g/kWh, {self.source}"


def carbon(joules: float, grams_per_kwh: float | None = None, *, country: str | None = None) -> Carbon:
    """J / 3.6e6 · g/kWh: an average, of which a kilowatt-hour more or less may be far.

    Args:
        joules: the energy.
        grams_per_kwh: of your electricity; None: the country's, or else the world's, and the result says so.
        country: three letters, as in codecarbon's table; needs `pip install codecarbon`.

    Example:
        >>> from joulegrad.energy import carbon
        >>> carbon(3.6e6, 56.0).grams
        56.0
        >>> print(carbon(1000.0))
        0.132 g of CO2e at 475 g/kWh, the world's average of 2019: give your own grams_per_kwh
    """
    if not is_number(joules):
        raise ValueError(f"joules must be a finite number, got {joules!r}; what was not measured has no CO2e")
    if grams_per_kwh is not None and country is not None:
        raise ValueError("give either grams_per_kwh or a country, not both")
    if country is not None:
        return _of(joules, _country(country), f"the average of {country.upper()} in codecarbon's table")
    if grams_per_kwh is None:
        return _of(joules, WORLD, "the world's average of 2019: give your own grams_per_kwh")
    if not is_number(grams_per_kwh) or grams_per_kwh < 0:
        raise ValueError(f"grams_per_kwh must be a finite number ≥ 0, got {grams_per_kwh!r}")
    return _of(joules, grams_per_kwh, "as given")


def _of(joules: float, grams_per_kwh: float, source: str) -> Carbon:
    return Carbon(joules / JOULES_PER_KWH * grams_per_kwh, float(grams_per_kwh), source)


def _country(country: str) -> float:
    try:
        table = resources.files("codecarbon") / "data" / "private_infra" / "global_energy_mix.json"
        mix = json.loads(table.read_text())
    except ModuleNotFoundError:
        raise ValueError(f"country={country!r} needs codecarbon's table: pip install codecarbon") from None
    except (OSError, ValueError) as why:
        raise ValueError(f"country={country!r}: this codecarbon has no table that can be read ({why})") from None
    if country.upper() not in mix:
        raise ValueError(f"country {country!r} is not in codecarbon's table; three letters, such as FRA")
    grams = mix[country.upper()].get("carbon_intensity")
    if grams is None:
        raise ValueError(f"codecarbon's table has no carbon intensity for {country.upper()}")
    return float(grams)
