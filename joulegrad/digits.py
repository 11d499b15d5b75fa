"""Exact sums of float64 numbers in integers, compiled: what `exact` counts in.

A table has a row an exponent: row e counts 2^(e − 1075), in two digits of 32 bits, which leave room for 2^31 numbers.
Tables add up, so threads may fill one each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joulegrad.jit import jit

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

TABLE = (2048, 2)
BLOCK = 1024
MAGNITUDE = (1 << 63) - 1
FRACTION = (1 << 52) - 1
DIGIT = (1 << 32) - 1


@jit
def add(numbers: Doubles, table: Ints) -> None:
    """Add numbers to a table. Reads 8 bytes a number; the rest stays in the first cache.

    Of each block first the multiples of a unit that is 2^-44 of the largest number, at least, then those of a unit that
    is 2^-44 of that. To add 1.5 · 2^52 units to a float rounds it to whole units and leaves them in its bits, as an
    integer; integers add up to the same in any order, so the processor may take many at once. A block that has still
    smaller bits, or numbers at the ends of the range, is added number by number.
    """
    raw, sigmas = numbers.view(np.int64), np.empty(2)
    large, small = np.empty(BLOCK), np.empty(BLOCK)
    units, parts, bits = large.view(np.int64), small.view(np.int64), sigmas.view(np.int64)
    for first in range(0, len(raw), BLOCK):
        x, top = numbers[first : first + BLOCK], np.int64(0)
        for b in raw[first : first + BLOCK]:
            top = max(top, b & MAGNITUDE)
        row = (top >> 52) + 9  # of the unit, and its sigma's exponent: the largest number is less than 2^44 units
        bits[0], bits[1] = row << 52 | 1 << 51, (row - 44) << 52 | 1 << 51
        if row - 44 < 1 or row > 2046 or split(x, sigmas[0], sigmas[1], large, small):
            add_each(raw[first : first + BLOCK], table)
            continue
        for at, sigma, found in ((row, bits[0], units[: len(x)]), (row - 44, bits[1], parts[: len(x)])):
            total = np.int64(0)
            for b in found:
                total += b - sigma
            table[at, 0] += total & DIGIT
            table[at, 1] += total >> 32


@jit
def split(x: Doubles, sigma: float, tau: float, large: Doubles, small: Doubles) -> bool:
    """Each number as a multiple of sigma's unit and one of tau's, added to these; whether anything is left."""
    left = 0
    for i in range(len(x)):
        rounded = x[i] + sigma
        rest = x[i] - (rounded - sigma)
        again = rest + tau
        large[i], small[i] = rounded, again
        left += rest - (again - tau) != 0
    return left != 0


@jit
def add_each(raw: Ints, table: Ints) -> None:
    """Add numbers, given as their bits, one after the other: Σ m of the numbers m · 2^(e − 1075) in row e."""
    for b in raw:
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
