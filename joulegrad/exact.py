"""Sums of floats that are exact until they are rounded, once: the same in any order, on any machine."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from torch import Tensor

__all__ = ["total"]

FRACTION = (1 << 52) - 1
DIGIT = (1 << 32) - 1


def total(x: Tensor) -> Fraction:
    """Σ x of float64 numbers, exactly. `float` of it is the correctly rounded sum.

    Example:
        >>> from joulegrad import exact
        >>> float(exact.total(torch.tensor([1e30, 1.0, -1e30], dtype=torch.float64)))
        1.0
    """
    import numpy as np

    numbers = x.detach().cpu().contiguous().numpy()
    if len(numbers) < 64:
        return sum(map(Fraction, numbers.tolist()), Fraction(0))
    table = np.zeros((2048, 2), np.int64)
    _compiled()(numbers.view(np.int64), table)
    found = 0
    for e in np.flatnonzero(table.any(axis=1)).tolist():
        low, high = table[e].tolist()
        found += ((high << 32) + low) << e
    return Fraction(found, 1 << 1075)


@lru_cache
def _compiled() -> Callable[[Any, Any], None]:
    from joulegrad.jit import jit

    return jit(_add)


def _add(bits: Any, table: Any) -> None:
    """Add float64 numbers, given as their bits, to a table with a row an exponent.

    Row e holds Σ m of the numbers m · 2^(e − 1075), as two digits of 32 bits, which leave room for 2^31 numbers. Reads
    8 bytes a number; the rows in use stay in the first cache.
    """
    for b in bits:
        exponent, fraction = (b >> 52) & 2047, b & FRACTION
        if exponent:
            fraction |= FRACTION + 1
        else:
            exponent = 1
        low, high = fraction & DIGIT, fraction >> 32
        if b < 0:
            low, high = -low, -high
        table[exponent, 0] += low
        table[exponent, 1] += high
