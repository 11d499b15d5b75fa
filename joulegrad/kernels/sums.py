"""Exact scatter-add: sums of float64 terms in integers of 128 bits, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from joulegrad.jit import jit
from joulegrad.kernels.bits import bit_length

Ints = NDArray[np.int64]

FRACTION = (1 << 52) - 1


LARGEST = 103  # bits of the largest term, which leave room for 2^24 of them
TERMS = 1024  # computed at once, in the first cache
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
def unit_of(bits: Ints) -> int:
    """The unit, as a power of two that 2^32 divides, for sums like the largest of float64 terms given as their bits.

    The largest term has between 64 and 96 bits in that unit.
    """
    largest = 0
    for b in bits:
        largest = max(largest, (b >> 52) & 2047)
    return ((max(largest, 1) - 1022 - 64) >> 5) << 5


@jit
def clear(window: Ints, first: int, last: int) -> None:
    """Zeros in the rows [first, last): a thread each, so that the memory's pages come to all of them at once."""
    window[first:last] = 0


@jit
def scatter(values: Any, scale: float, weight: float, indices: Ints, window: Ints, unit: int, spilled: Ints) -> int:
    """Add the term value · scale · weight to row indices[i] of the window: an integer of 128 bits, in units of 2^unit.

    A term is m · 2^e with an integer m < 2^53. Those that are not whole units, or so large that 2^24 of them might not
    fit, are not added but named in `spilled`, as are those that are not finite; how many there are is returned. Reads
    12 bytes a term of a float32, and reads and writes its row of 16.
    """
    n, terms = 0, np.empty(TERMS)
    raw = terms.view(np.int64)
    for start in range(0, len(values), TERMS):
        some = values[start : start + TERMS]
        for i in range(len(some)):
            terms[i] = np.float64(some[i]) * scale * weight
        for i in range(start, start + len(some)):
            if i + AHEAD < len(values):
                prefetch(window, indices[i + AHEAD])
            b = raw[i - start]
            exponent, m = (b >> 52) & 2047, b & FRACTION
            if exponent:
                m |= FRACTION + 1
            else:
                exponent = 1
            if m == 0:
                continue
            shift = exponent - 1075 - unit
            if -53 < shift < 0 and m & ((1 << -shift) - 1) == 0:
                m, shift = m >> -shift, 0
            if shift < 0 or shift > LARGEST - 53 or exponent == 2047:
                spilled[n] = i
                n += 1
                continue
            low, high = m << shift, (m >> (63 - shift)) >> 1
            if b < 0:
                low, high = -low, -high - (low != 0)
            row = indices[i]
            total = window[row, 0] + low
            window[row, 0] = total
            window[row, 1] += high + (np.uint64(total) < np.uint64(low))
    return n


@jit
def read(window: Ints, unit: int, first: int, last: int, divisor: float, out: Any) -> None:
    """Rows of a window as the nearest float64, over a divisor: reads 16 bytes a row and writes 4, or 8."""
    powers = np.empty((64, 2))  # 2^(unit + length) in two factors, for it may be out of a float's range
    for length in range(64):
        half = (unit + length) // 2
        powers[length] = 2.0**half, 2.0 ** (unit + length - half)
    for i in range(first, last):
        low, high = window[i, 0], window[i, 1]
        negative = high < 0
        if negative:
            low, high = -low, -high - (low != 0)
        top, length = np.uint64(low), 0
        if high:
            length = bit_length(high)
            lower, left = top, np.uint64(64 - length)
            top = np.uint64(high) << left | lower >> np.uint64(length)
            top |= np.uint64((lower << left) != 0)  # whether anything is below: it only breaks ties
        total = np.float64(top) * powers[length, 0] * powers[length, 1]
        out[i] = (-total if negative else total) / divisor
