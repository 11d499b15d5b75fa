"""What a client lives on, when it is not the mains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

__all__ = ["Battery"]


@dataclass(frozen=True)
class Battery:
    """A capacity, and what is harvested: charge ← min(capacity, charge + harvest_t) before round t.

    Args:
        joules: the capacity.
        harvest: joules gained before each round; after the last one, the first again; none: it only empties.
        full: how full it is at first, in [0, 1].
        least: below this share of its capacity the client takes no part, in [0, 1).

    Example:
        >>> from joulegrad.energy import Battery
        >>> battery = Battery(joules=100.0, harvest=(0.0, 30.0), full=0.5)
        >>> charge = battery.first
        >>> for t in range(4):
        ...     charge = battery.charged(charge, t)
        >>> charge
        100.0
    """

    joules: float
    harvest: tuple[float, ...] = ()
    full: float = 1.0
    least: float = 0.0

    def __post_init__(self) -> None:
        if not (is_number(self.joules) and self.joules > 0):
            raise ValueError(f"Battery(joules) must be a positive number, got {self.joules!r}")
        if not isinstance(self.harvest, tuple) or not all(is_number(j) and j >= 0 for j in self.harvest):
            raise ValueError(f"Battery(harvest) must be joules ≥ 0, one number a round, got {self.harvest!r}")
        if not (is_number(self.full) and 0 <= self.full <= 1):
            raise ValueError(f"Battery(full) must be a share in [0, 1], got {self.full!r}")
        if not (is_number(self.least) and 0 <= self.least < 1):
            raise ValueError(f"Battery(least) must be a share in [0, 1), got {self.least!r}")

    @property
    def first(self) -> float:
        """The charge before the first round, in joules."""
        return self.full * self.joules

    def charged(self, charge: float, t: int) -> float:
        """The charge when round t begins, counted from 0."""
        return min(self.joules, charge + self.harvest[t % len(self.harvest)]) if self.harvest else charge

    def enough(self, charge: float) -> bool:
        """Whether a client with this charge takes part."""
        return charge > 0 and charge >= self.least * self.joules


def is_number(given: Any) -> bool:
    """Whether it is a finite number, and neither true nor false."""
    return isinstance(given, Real) and given is not True and given is not False and math.isfinite(given)
