"""Sums of floats that are exact until they are rounded, once: the same in any order, on any machine."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["read", "total"]


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
    from joulegrad import digits

    table = np.zeros(digits.TABLE, np.int64)
    digits.add(numbers, table)
    return read(table)


def read(table: NDArray[np.int64]) -> Fraction:
    """What has been added to a table of `digits`."""
    found = 0
    for e in np.flatnonzero(table.any(axis=1)).tolist():
        low, high = table[e].tolist()
        found += ((high << 32) + low) << e
    return Fraction(found, 1 << 1075)
