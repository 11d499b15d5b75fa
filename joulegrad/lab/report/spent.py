"""What a round cost, in each of the currencies that runs are compared in."""

from __future__ import annotations

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


def ledger(row: Row) -> dict[str, tuple[float | None, str]] | None:
    """The round's ledger: of each of its lines the joules, None where they are not known, and their source."""
    found = row.get("ledger")
    if not isinstance(found, Mapping):
        return None
    lines: dict[str, tuple[float | None, str]] = {}
    for name, line in found.items():
        if isinstance(line, Mapping):
            lines[name] = (line.get("joules"), str(line.get("source", "")))
        elif line is None or isinstance(line, int | float):
            lines[name] = (line, "")
    return lines


def _uplink(row: Row) -> float | None:
    lines = ledger(row)
    return None if lines is None else lines.get("uplink", (None, ""))[0]


AXES = (
    Axis("units", "Energy, paper's units", "Σc of what was sent", "units", "modelled", lambda row: row["cost"]),
    Axis(
        "uplink_joules", "Uplink joules", "energy of the uplink", "J", "coded", _uplink,
        "not configured: these runs have no ledger, as no device and link was named",
    ),
    Axis("bytes_up", "Bytes sent", "payloads, all clients", "B", "coded", lambda row: row["bytes_up"]),
)  # fmt: skip
