"""How each layer's support is written: in which coding, with what header (docs/wire.md).

The codings are these; `plan` takes the shortest.

    none, all  no bits
    gaps       Rice code of the gaps between positions
    holes      the same of the positions that were not sent
    bitmap     a bit an entry
    ranged     gaps whose quotients are range-coded
    adaptive   a code of the gaps that follows them
    blocks     any but the first two over aligned blocks of s positions
"""

from __future__ import annotations

import numpy as np

from joulegrad.jit import jit
from joulegrad.kernels.bits import (
    BLOCK,
    COUNT,
    METHOD,
    OK,
    PADDING,
    TOO_MANY,
    TRUNCATED,
    VARINT,
    Bytes,
    Ints,
    Words,
    adaptive_bits,
    bit_length,
    holes,
    quotients,
    read_adaptive,
    read_bitmap,
    read_gaps,
    read_ranged,
    write_adaptive,
    write_bitmap,
    write_gaps,
    write_ranged,
    write_remainders,
)

NONE, ALL, GAPS, HOLES, BITMAP, RANGED, BLOCKS, ADAPTIVE = range(8)
MOST_B = 31  # of a layer's header
WORTHWHILE = 0.975  # range coding is slower, so it must save 2.5 %


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
def best_b(p: Ints, n: int) -> tuple[int, int]:
    """The Rice parameter that takes the fewest bits, and how many: the cost is convex in b."""
    k, b = len(p), 0
    while b < MOST_B and k << (b + 1) <= n - k:
        b += 1
    bits = k * (1 + b) + quotients(p, b)
    for step in (-1, 1):
        while 0 <= b + step <= MOST_B:
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
    if 5 * k > 3 * n:  # with more holes than that, a bitmap or the adaptive code is shorter
        other, shorter = best_b(holes(p, n), n)
        if shorter < bits:
            method, b, bits = HOLES, other, shorter
    if n < bits:
        method, b, bits = BITMAP, 0, n
    typical = min(max(bit_length((n - k) // k) - 1, 0), MOST_B)
    following = adaptive_bits(p, typical)
    if following < bits:
        method, b, bits = ADAPTIVE, typical, following
    r = 0
    while r < MOST_B and k << (r + 5) <= n:
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
    if method == ADAPTIVE:
        return (write_adaptive(words, at << 3, p, b) + 7) >> 3
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
    elif method == ADAPTIVE:
        status, place = read_adaptive(words, place, last, out, b, n)
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
        if (b and (method <= ALL or method == BITMAP)) or (method == ALL and n == 0):
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
