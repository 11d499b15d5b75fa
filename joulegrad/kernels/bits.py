"""Bits of sorted positions: how the wire writes which entries of a layer were sent (docs/wire.md).

A layer's support is k positions in [0, n), strictly increasing. Bits fill bytes from the lowest bit up, and here
they lie in 64-bit little-endian words; `at` is always a bit's place. Readers never look past `end`, never write past
what the header of the layer announced, and answer with a status instead of raising: compiled code that meets
hostile bytes.

    gaps      Rice code of the gaps g_i = p_i − p_{i−1} − 1: all remainders, b bits each, then all quotients
              g >> b in unary (zeros, then a one)
    ranged    gaps, with the unary bits range-coded at the probability that the header gives
    bitmap    n bits
    adaptive  exponential Golomb code of the gaps, one after the other, of an order that follows them
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from joulegrad.jit import jit

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

OK, TRUNCATED, OUT_OF_RANGE, COUNT, PADDING, METHOD, TOO_MANY, BLOCK, VARINT = range(9)

ONE = np.uint64(1)
ALL_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
WORD32 = np.uint64(0xFFFFFFFF)
TOP = np.uint64(1 << 24)  # the range coder keeps its range above this
WIDEST = 56  # bits of the widest remainder that a reader follows: no layer has as many entries


@intrinsic
def trailing_zeros(typing_context: Any, x: Any) -> Any:
    """Place of the lowest one (64 if there is none): a single instruction."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), build


@intrinsic
def leading_zeros(typing_context: Any, x: Any) -> Any:
    """How many zeros lie above the highest one (64 if there is none): a single instruction."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), build


@jit
def bit_length(x: int) -> int:
    """As int.bit_length, of what is not negative."""
    return 64 - np.int64(leading_zeros(np.uint64(x)))


@jit
def any_special(raw: NDArray[Any], exponent: int) -> bool:
    """Whether any float, given as its bits, is NaN or infinite: all bits of its exponent are ones."""
    found = False
    for x in raw:
        found |= (x & exponent) == exponent
    return found


@jit
def quotients(p: Ints, b: int) -> int:
    """Σ (g_i >> b): how many zeros the unary part has."""
    total, previous = 0, -1
    for x in p:
        total += (x - previous - 1) >> b
        previous = x
    return total


@jit
def adaptive_bits(p: Ints, b: int) -> int:
    """How many bits `write_adaptive` takes."""
    mean, previous, bits = (b + 1) << 3, -1, 0
    for x in p:
        gap = x - previous - 1
        previous = x
        b = order(mean)
        bits += 2 * bit_length(gap + (1 << b)) - 1 - b
        mean = follow(mean, gap)
    return bits


@jit
def order(mean: int) -> int:
    """The order of the next code, from the running mean of the gaps' bit lengths, in eighths."""
    return max(0, (mean >> 3) - 1)


@jit
def follow(mean: int, gap: int) -> int:
    """The running mean after one more gap."""
    return mean + bit_length(gap) - (mean >> 3)


@jit
def holes(p: Ints, n: int) -> Ints:
    """The positions in [0, n) that are not in p, which is not empty; no branch depends on where they are."""
    out = np.empty(n - len(p) + 1, np.int64)
    at, met, last = 0, 0, len(p) - 1
    for x in range(n):
        out[at] = x
        sent = np.int64(p[min(met, last)] == x)
        met += sent
        at += 1 - sent
    return out[:at]


@jit
def write_gaps(words: Words, at: int, p: Ints, b: int) -> int:
    """Remainders, then unary quotients; returns the place after."""
    at = write_remainders(words, at, p, b)
    previous = -1
    for x in p:
        at += (x - previous - 1) >> b
        words[at >> 6] |= ONE << np.uint64(at & 63)
        at += 1
        previous = x
    return at


@jit
def write_remainders(words: Words, at: int, p: Ints, b: int) -> int:
    """The lowest b bits of every gap."""
    if b == 0:
        return at
    mask, previous = (1 << b) - 1, -1
    for x in p:
        low = np.uint64((x - previous - 1) & mask)
        previous = x
        w, s = at >> 6, at & 63
        words[w] |= low << np.uint64(s)
        if s + b > 64:
            words[w + 1] |= low >> np.uint64(64 - s)
        at += b
    return at


@jit
def write_adaptive(words: Words, at: int, p: Ints, b: int) -> int:
    """Gap by gap: as many zeros as g + 2^b is longer than 2^b, a one, the rest of g + 2^b; returns the place after."""
    mean, previous = (b + 1) << 3, -1
    for x in p:
        gap = x - previous - 1
        previous = x
        b = order(mean)
        width = bit_length(gap + (1 << b)) - 1
        at += width - b
        code = np.uint64((gap + (1 << b) - (1 << width)) << 1 | 1)
        w, s = at >> 6, np.uint64(at & 63)
        words[w] |= code << s
        words[w + 1] |= (code >> ONE) >> (np.uint64(63) - s)
        at += width + 1
        mean = follow(mean, gap)
    return at


@jit
def write_bitmap(words: Words, at: int, p: Ints) -> None:
    """One bit a position."""
    for x in p:
        words[(at + x) >> 6] |= ONE << np.uint64((at + x) & 63)


@jit
def write_ranged(out: Bytes, at: int, p: Ints, b: int, probability: int) -> int:
    """Range-code the unary quotients, a one having `probability` / 65536; returns the byte after."""
    low, width, scale = np.uint64(0), WORD32, np.uint64(probability)
    previous = -1
    for x in p:
        for zeros_left in range((x - previous - 1) >> b, -1, -1):
            bound = (width >> np.uint64(16)) * scale
            if zeros_left == 0:
                width = bound
            else:
                low += bound
                width -= bound
                if low > WORD32:  # a carry: it ripples through the bytes that are out already
                    low &= WORD32
                    j = at - 1
                    while out[j] == 255:
                        out[j] = 0
                        j -= 1
                    out[j] += 1
            while width < TOP:
                out[at] = np.uint8(low >> np.uint64(24))
                at += 1
                low = (low << np.uint64(8)) & WORD32
                width <<= np.uint64(8)
        previous = x
    for _ in range(4):
        out[at] = np.uint8(low >> np.uint64(24))
        at += 1
        low = (low << np.uint64(8)) & WORD32
    return at


@jit
def fetch(words: Words, at: int) -> int:
    """The 64 bits from `at` on, without a branch: shifting by 1 and by 63 − s is shifting by 64 − s for any s."""
    w, s = at >> 6, np.uint64(at & 63)
    return np.uint64((words[w] >> s) | ((words[w + 1] << ONE) << (np.uint64(63) - s)))


@jit
def lowest(word: int, b: int) -> int:
    """The b lowest bits."""
    return np.int64(word & ((ONE << np.uint64(b)) - ONE))


@jit
def read_gaps(words: Words, at: int, end: int, out: Ints, b: int, n: int) -> tuple[int, int]:
    """Fill `out` with positions; (status, the place after). Reads each bit once."""
    k, most = len(out), n >> b
    low, at = at, at + k * b
    if at + k > end:
        return TRUNCATED, end
    w, before, position = at >> 6, at - 1, -1
    word = words[w] & (ALL_ONES << np.uint64(at & 63))
    for i in range(k):
        while word == 0:
            w += 1
            if w << 6 >= end:
                return TRUNCATED, end
            word = words[w]
        here = (w << 6) + np.int64(trailing_zeros(word))
        word &= word - ONE
        quotient = here - before - 1
        before = here
        if quotient > most:
            return OUT_OF_RANGE, here
        position += 1 + (quotient << b)
        if b:
            position += lowest(fetch(words, low), b)
        low += b
        if position >= n:
            return OUT_OF_RANGE, here
        out[i] = position
    return (OK if before < end else TRUNCATED), before + 1


@jit
def read_adaptive(words: Words, at: int, end: int, out: Ints, b: int, n: int) -> tuple[int, int]:
    """Fill `out` with positions; (status, the place after). One fetch a gap, or two where it is very large."""
    if at + len(out) > end:
        return TRUNCATED, end
    mean, position = (b + 1) << 3, -1
    for i in range(len(out)):
        b = order(mean)
        word = fetch(words, at)
        zeros = np.int64(trailing_zeros(word))
        width = b + zeros
        at += zeros + 1
        if zeros + 1 + width <= 64:
            word = (word >> np.uint64(zeros)) >> ONE
        elif at > end:
            return TRUNCATED, end
        elif width > WIDEST:
            return OUT_OF_RANGE, at
        else:
            word = fetch(words, at)
        at += width
        if at > end:
            return TRUNCATED, end
        gap = lowest(word, width) + (1 << width) - (1 << b)
        position += 1 + gap
        if position >= n:
            return OUT_OF_RANGE, at
        out[i] = position
        mean = follow(mean, gap)
    return OK, at


@jit
def read_bitmap(words: Words, at: int, end: int, out: Ints, n: int) -> tuple[int, int]:
    """Fill `out` with the places of the ones among n bits; (status, the place after)."""
    if at + n > end:
        return TRUNCATED, end
    found = 0
    for w in range(at >> 6, ((at + n - 1) >> 6) + 1):
        word = words[w]
        if w << 6 < at:
            word &= ALL_ONES << np.uint64(at & 63)
        while word != 0:
            p = (w << 6) + np.int64(trailing_zeros(word)) - at
            word &= word - ONE
            if p >= n:
                break
            if found == len(out):
                return COUNT, at + p
            out[found] = p
            found += 1
    return (OK if found == len(out) else COUNT), at + n


@jit
def read_ranged(
    data: Bytes, words: Words, at: int, end: int, out: Ints, b: int, n: int, probability: int
) -> tuple[int, int]:
    """Fill `out` with positions; (status, the byte after). The bytes must end where the range coder does."""
    low, at = at << 3, at + ((len(out) * b + 7) >> 3)
    if at + 4 > end:
        return TRUNCATED, end
    code, width, scale = np.uint64(0), WORD32, np.uint64(probability)
    for _ in range(4):
        code = (code << np.uint64(8)) | np.uint64(data[at])
        at += 1
    position, step = -1, 1 << b
    for i in range(len(out)):
        position += 1
        while True:
            bound = (width >> np.uint64(16)) * scale
            one = code < bound
            if one:
                width = bound
            else:
                code -= bound
                width -= bound
                position += step
                if position >= n:
                    return OUT_OF_RANGE, at
            while width < TOP:
                if at >= end:
                    return TRUNCATED, end
                code = (code << np.uint64(8)) | np.uint64(data[at])
                at += 1
                width <<= np.uint64(8)
            if one:
                break
        if b:
            position += lowest(fetch(words, low), b)
            low += b
        if position >= n:
            return OUT_OF_RANGE, at
        out[i] = position
    if low & 7 and data[low >> 3] >> (low & 7):
        return PADDING, low >> 3
    return (OK if code == 0 else PADDING), at
