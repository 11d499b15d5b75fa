"""Exact scatter-add: sums of float64 terms in integer digits, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from joulegrad.jit import jit

Ints = NDArray[np.int64]

FRACTION = (1 << 52) - 1
DIGIT = (1 << 32) - 1


AHEAD = 24  # rows: by the time that a row is wanted, it has come from memory


@intrinsic
def prefetch(typing_context: Any, window: Any, row: Any) -> Any:
    """Ask for a row of a two-dimensional array before it is wanted."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        stride = builder.extract_value(array.strides, 0)
        start = builder.ptrtoint(array.data, ir.IntType(64))
        place = builder.inttoptr(builder.add(start, builder.mul(arguments[1], stride)), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        builder.call(function, [place, word(1), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(window, types.int64), build


@jit
def place_of(bits: Ints) -> int:
    """The place, in digits of 32 bits, of the highest bit of the largest of float64 terms given as their bits."""
    largest = 0
    for b in bits:
        largest = max(largest, (b >> 52) & 2047)
    return (max(largest, 1) - 1023) >> 5


@jit
def scatter(bits: Ints, indices: Ints, window: Ints, base: int, spilled: Ints) -> int:
    """Add term i to row indices[i] of the window, whose columns are the digits from place `base` up.

    A term m · 2^e with an integer m < 2^53 is cut at the multiples of 2^32 into three digits at most, side by side in
    one row: one cache line. Terms that reach out of the window are not added but named in `spilled`; how many there are
    is returned. Reads 16 bytes a term, and reads and writes its row.
    """
    places, n = window.shape[1], 0
    for i in range(len(bits)):
        if i + AHEAD < len(bits):
            prefetch(window, indices[i + AHEAD])
        b = bits[i]
        exponent, m = (b >> 52) & 2047, b & FRACTION
        if exponent:
            m |= FRACTION + 1
        else:
            exponent = 1
        if m == 0:
            continue
        e = exponent - 1075
        place, shift = (e >> 5) - base, e & 31
        low, above = (m << shift) & DIGIT, m >> (32 - shift)  # the first digit, and the two above it
        middle, high = above & DIGIT, above >> 32
        if place < 0 or place >= places or (middle and place + 1 >= places) or (high and place + 2 >= places):
            spilled[n] = i
            n += 1
            continue
        row = indices[i]
        sign = -1 if b < 0 else 1
        window[row, place] += sign * low
        if middle:
            window[row, place + 1] += sign * middle
        if high:
            window[row, place + 2] += sign * high
    return n


@jit
def read(window: Ints, base: int, first: int, last: int, divisor: float, out: NDArray[np.float32]) -> None:
    """Rows of a window of three digits as floats, from the highest digit down, over a divisor.

    Reads 24 bytes a row and writes 4. A digit's unit is multiplied in halves, for it may be out of a float's range.
    """
    low, middle, high = 2.0 ** (16 * base), 2.0 ** (16 * (base + 1)), 2.0 ** (16 * (base + 2))
    for i in range(first, last):
        total = np.float64(window[i, 2]) * high * high
        total += np.float64(window[i, 1]) * middle * middle
        total += np.float64(window[i, 0]) * low * low
        out[i] = total / divisor
