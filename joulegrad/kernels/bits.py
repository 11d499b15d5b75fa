"""Bits of sorted positions: how the wire writes which entries of a layer were sent (docs/wire.md).

A layer's support is k positions in [0, n), strictly increasing. Bits fill bytes from the lowest bit up, and here
they lie in 64-bit little-endian words; `at` is always a bit's place. Readers never look past `end`, never write past
what the header of the layer announced, and answer with a status instead of raising: compiled code that meets
hostile bytes.

    gaps     Rice code of the gaps g_i = p_i − p_{i−1} − 1: all remainders, b bits each, then all quotients
             g >> b in unary (zeros, then a one)
    holes    the same of the positions that were not sent
    ranged   gaps, with the unary bits range-coded at the probability that the header gives
    bitmap   n bits
    blocks   any of these over aligned blocks of s positions
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from joulegrad.kernels.jit import jit

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

NONE, ALL, GAPS, HOLES, BITMAP, RANGED, BLOCKS = range(7)
OK, TRUNCATED, OUT_OF_RANGE, COUNT, PADDING, METHOD, TOO_MANY, BLOCK, VARINT = range(9)

ONE = np.uint64(1)
ALL_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
WORD32 = np.uint64(0xFFFFFFFF)
TOP = np.uint64(1 << 24)  # the range coder keeps its range above this
WORTHWHILE = 0.975  # range coding is slower, so it must save 2.5 %


@intrinsic
def trailing_zeros(typing_context: Any, x: Any) -> Any:
    """Place of the lowest one (64 if there is none): a single instruction."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), build


@jit
def any_special(raw: NDArray[Any], exponent: int) -> bool:
    """Whether any float, given as its bits, is NaN or infinite: all bits of its exponent are ones."""
    found = False
    for x in raw:
        found |= (x & exponent) == exponent
    return found


@jit
def increasing(indices: Ints, size: int) -> bool:
    """Whether 0 ≤ i_0 < i_1 < … < size."""
    previous = -1
    for i in indices:
        if i <= previous:
            return False
        previous = i
    return previous < size


@jit
def block_of(p: Ints, n: int) -> int:
    """The largest s such that the support is whole aligned blocks of s (the last one may be cut by n)."""
    s = 0
    for i in range(len(p)):
        edges = (
            p[i] if i == 0 or p[i - 1] + 1 < p[i] else 0,
            p[i] + 1 if (i == len(p) - 1 or p[i] + 1 < p[i + 1]) and p[i] + 1 < n else 0,
        )
        for edge in edges:
            while edge:
                s, edge = edge, s % edge
        if s == 1:
            return 1
    return s


@jit
def quotients(p: Ints, b: int) -> int:
    """Σ (g_i >> b): how many zeros the unary part has."""
    total, previous = 0, -1
    for x in p:
        total += (x - previous - 1) >> b
        previous = x
    return total


@jit
def holes(p: Ints, n: int) -> Ints:
    """The positions in [0, n) that are not in p."""
    out = np.empty(n - len(p), np.int64)
    at, x = 0, 0
    for q in p:
        while x < q:
            out[at] = x
            at += 1
            x += 1
        x = q + 1
    while x < n:
        out[at] = x
        at += 1
        x += 1
    return out


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
def remainder(words: Words, at: int, b: int) -> int:
    """The b bits from `at` on, without a branch: shifting by 1 and by 63 − s is shifting by 64 − s for any s."""
    w, s = at >> 6, np.uint64(at & 63)
    low = (words[w] >> s) | ((words[w + 1] << ONE) << (np.uint64(63) - s))
    return np.int64(low & ((ONE << np.uint64(b)) - ONE))


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
            position += remainder(words, low, b)
        low += b
        if position >= n:
            return OUT_OF_RANGE, here
        out[i] = position
    return (OK if before < end else TRUNCATED), before + 1


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
            position += remainder(words, low, b)
            low += b
        if position >= n:
            return OUT_OF_RANGE, at
        out[i] = position
    if low & 7 and data[low >> 3] >> (low & 7):
        return PADDING, low >> 3
    return (OK if code == 0 else PADDING), at


@jit
def best_b(p: Ints, n: int) -> tuple[int, int]:
    """The Rice parameter that takes the fewest bits, and how many: the cost is convex in b."""
    k, b = len(p), 0
    while k << (b + 1) <= n - k:
        b += 1
    bits = k * (1 + b) + quotients(p, b)
    for step in (-1, 1):
        while 0 <= b + step <= 31:
            other = k * (1 + b + step) + quotients(p, b + step)
            if other >= bits:
                break
            b, bits = b + step, other
    return b, bits


@jit
def plan(p: Ints, n: int) -> tuple[int, int, int, int]:
    """(method, b, probability, bits) of the shortest coding without blocks."""
    k = len(p)
    if k == 0:
        return NONE, 0, 0, 0
    if k == n:
        return ALL, 0, 0, 0
    b, bits = best_b(p, n)
    method = GAPS
    if 2 * k > n:
        other, shorter = best_b(holes(p, n), n)
        if shorter < bits:
            method, b, bits = HOLES, other, shorter
    if n < bits:
        method, b, bits = BITMAP, 0, n
    r = 0
    while k << (r + 5) <= n:
        r += 1
    decisions = k + quotients(p, r)
    share = k / decisions
    entropy = -np.log2(share) * k
    if share < 1:
        entropy -= np.log2(1 - share) * (decisions - k)
    ranged = k * r + int(entropy) + 64
    if ranged < WORTHWHILE * bits:
        return RANGED, r, min(max(int(share * 65536 + 0.5), 1), 65535), ranged
    return method, b, 0, bits


@jit
def blocks_of(p: Ints, s: int) -> Ints:
    """Which blocks of s hold the positions."""
    out = np.empty(len(p), np.int64)
    count = 0
    for x in p:
        if count == 0 or out[count - 1] != x // s:
            out[count] = x // s
            count += 1
    return out[:count]


@jit
def write_layer(data: Bytes, words: Words, at: int, p: Ints, n: int, method: int, b: int, probability: int) -> int:
    """Write a layer's positions from byte `at` on; returns the byte after."""
    if method == BITMAP:
        write_bitmap(words, at << 3, p)
        return at + ((n + 7) >> 3)
    if method == RANGED:
        at = (write_remainders(words, at << 3, p, b) + 7) >> 3
        return write_ranged(data, at, p, b, probability)
    if method == GAPS:
        return (write_gaps(words, at << 3, p, b) + 7) >> 3
    if method == HOLES:
        return (write_gaps(words, at << 3, holes(p, n), b) + 7) >> 3
    return at


@jit
def read_layer(
    data: Bytes, words: Words, at: int, end: int, out: Ints, n: int, method: int, b: int, probability: int
) -> tuple[int, int]:
    """Read a layer's positions from byte `at` on into `out`; (status, the byte after, or where it is wrong)."""
    status, k = OK, len(out)
    place, last = at << 3, end << 3
    if method == ALL:
        for i in range(k):
            out[i] = i
    elif method == GAPS:
        status, place = read_gaps(words, place, last, out, b, n)
    elif method == BITMAP:
        status, place = read_bitmap(words, place, last, out, n)
    elif method == RANGED:
        status, after = read_ranged(data, words, at, end, out, b, n, probability)
        place = after << 3
    elif method == HOLES:
        if place + n - k > last:
            return TRUNCATED, end
        missing = np.empty(n - k, np.int64)
        status, place = read_gaps(words, place, last, missing, b, n)
        if status == OK:
            out[:] = holes(missing, n)
    if status != OK:
        return status, place >> 3
    if place & 7 and data[place >> 3] >> (place & 7):
        return PADDING, place >> 3
    return OK, (place + 7) >> 3


@jit
def read_all(
    data: Bytes, words: Words, at: int, end: int, out: Ints, layers: Ints, starts: Ints, sizes: Ints
) -> tuple[int, int, int]:
    """Read every layer's indices into `out`, and its bytes into the last column of `layers`; (status, layer, byte)."""
    done = 0
    for i in range(len(sizes)):
        method, b, probability, s, count, entries, _ = layers[i]
        first = at
        if method == NONE:
            continue
        mine = out[done : done + entries]
        if s == 1:
            status, at = read_layer(data, words, at, end, mine, sizes[i], method, b, probability)
            if status != OK:
                return status, i, at
        else:
            blocks = np.empty(count, np.int64)
            n = (sizes[i] + s - 1) // s
            status, at = read_layer(data, words, at, end, blocks, n, method, b, probability)
            if status != OK:
                return status, i, at
            filled = 0
            for block in blocks:
                for x in range(block * s, min(block * s + s, sizes[i])):
                    if filled == entries:
                        return COUNT, i, at
                    mine[filled] = x
                    filled += 1
            if filled != entries:
                return COUNT, i, at
        for j in range(entries):
            mine[j] += starts[i]
        done += entries
        layers[i, 6] = at - first
    return OK, len(sizes), at


@jit
def read_varint(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """(status, value, the byte after): 7 bits a byte from the lowest up, the shortest form only."""
    value, shift = 0, 0
    while at < end:
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (VARINT if byte == 0 and shift else OK), value, at
        shift += 7
        if shift > 56:
            return VARINT, value, at
    return TRUNCATED, value, at


@jit
def read_headers(data: Bytes, at: int, end: int, sizes: Ints, layers: Ints) -> tuple[int, int, int]:
    """Fill `layers` with (method, b, probability, block, count, entries, -) each; (status, layer, byte)."""
    for i in range(len(sizes)):
        n, s, short = sizes[i], 1, 0
        if at >= end:
            return TRUNCATED, i, at
        method, b = np.int64(data[at]) & 7, np.int64(data[at]) >> 3
        at += 1
        if method == BLOCKS:
            if b > 1:
                return METHOD, i, at - 1
            short = b
            status, s, at = read_varint(data, at, end)
            if status != OK:
                return status, i, at
            if s < 2 or s > n:
                return BLOCK, i, at
            if at >= end:
                return TRUNCATED, i, at
            method, b = np.int64(data[at]) & 7, np.int64(data[at]) >> 3
            at += 1
            if method < GAPS or method == BLOCKS:
                return METHOD, i, at - 1
            if short and n % s == 0:
                return BLOCK, i, at
            n = (n + s - 1) // s
        if method > BLOCKS or (b and (method <= ALL or method == BITMAP)) or (method == ALL and n == 0):
            return METHOD, i, at - 1
        count, probability = 0, 0
        if method == ALL:
            count = n
        elif method != NONE:
            status, count, at = read_varint(data, at, end)
            if status != OK:
                return status, i, at
            if count > n:
                return TOO_MANY, i, at
            if count == 0 or count == n:
                return METHOD, i, at  # none and all have their own methods
        if method == RANGED:
            if at + 2 > end:
                return TRUNCATED, i, end
            probability = np.int64(data[at]) | np.int64(data[at + 1]) << 8
            at += 2
            if probability == 0:
                return METHOD, i, at
        entries = count * s - (n * s - sizes[i] if short else 0)
        if entries > sizes[i]:
            return BLOCK, i, at
        layers[i, 0], layers[i, 1], layers[i, 2] = method, b, probability
        layers[i, 3], layers[i, 4], layers[i, 5] = s, count, entries
    return OK, len(sizes), at
