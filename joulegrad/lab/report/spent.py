"""What a round cost, in each of the currencies that runs are compared in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

__all__ = ["AXES", "Axis", "ledger", "totals"]

Row = Mapping[str, Any]


class Axis(NamedTuple):
    """A currency: how a row is read, and how its figures are labelled."""

    key: str
    title: str  # of the switch
    label: str  # of the axis
    unit: str
    source: str  # how the figures came to be: modelled, coded, measured
    of: Callable[[Row], float | None]
    absent: str = ""  # what is said where no row has it

    def spent(self, rows: Iterable[Row]) -> list[float] | None:
        """The total after each round; None where any round's is not known."""
        return totals(self.of(row) for row in rows)


def totals(figures: Iterable[float | None]) -> list[float] | None:
    """Sums so far; None where any is unknown: absent is not zero."""
    known = list(figures)
    return None if None in known else list(accumulate(float(figure or 0.0) for figure in known))


def ledger(row: Row) -> dict[tuple[str, str], float | None] | None:
    """The round's joules by phase and source; None where no ledger was kept, or of a phase that a meter could not say.

    Example:
        >>> ledger({"round": 1}) is None
        True
        >>> ledger({"joules": {"coded": {"uplink": 0.5}, "modelled": {"train": 2.0}}})
        {('uplink', 'coded'): 0.5, ('train', 'modelled'): 2.0}
    """
    found = row.get("joules")
    if not isinstance(found, Mapping):
        return None
    return {(phase, source): joules for source, phases in found.items() for phase, joules in phases.items()}


def _uplink(row: Row) -> float | None:
    lines = ledger(row)
    return None if lines is None else lines.get(("uplink", "coded"), 0.0)  # nothing was sent


def _everything(row: Row) -> float | None:
    """None where a part is not known, or where a phase has two sources, and would count twice."""
    lines = ledger(row)
    if lines is None or None in lines.values() or len({phase for phase, _ in lines}) < len(lines):
        return None
    return math.fsum(joules for joules in lines.values() if joules is not None)


NO_LEDGER = "not measured or configured: these experiments have no ledger"
AXES = (
    Axis("units", "Energy, paper's units", "Σc of what was sent", "units", "modelled", lambda row: row["cost"]),
    Axis("uplink_joules", "Uplink joules", "energy of the uplink", "J", "coded", _uplink, NO_LEDGER),
    Axis(
        "all_joules",
        "All joules",
        "energy of the whole ledger",
        "J",
        "coded and modelled, added up",
        _everything,
        NO_LEDGER,
    ),
    Axis("bytes_up", "Bytes sent", "payloads, all clients", "B", "coded", lambda row: row["bytes_up"]),
    Axis(
        "bytes_both",
        "Bytes, both ways",
        "payloads and what came down, all clients",
        "B",
        "coded",
        lambda row: row["bytes_up"] + row["bytes_down"],
    ),
)
