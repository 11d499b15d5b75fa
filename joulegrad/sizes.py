"""How many bits a payload is expected to take, before there is one: the arithmetic of the codec on random supports.

`kernels/supports.py` takes the shortest coding of the positions that it is given; here they are k of n drawn at random,
so the sizes are expectations. Real updates cluster, and take fewer bits (docs/wire.md says how many).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma, log2

from joulegrad.layout import Layout

__all__ = ["payload_bytes", "support_bits"]

HEADER = 28  # bytes in front of a payload
SCALED = (1, 2, 4, 8)  # bits a value that go with one float32 scale a layer
MOST_B = 31  # as a layer's header holds it
WORTHWHILE = 0.975  # a range code must save 2.5 %


def support_bits(n: int, k: float) -> float:
    """Bits of a layer's indices and its header, the first byte of which every layer has, not counted.

    Args:
        n: entries of the layer.
        k: how many of them are sent, 0 ≤ k ≤ n; an expectation need not be whole.

    Example:
        >>> round(support_bits(1_000_000, 10_000) / 10_000, 2)   # the entropy bound is 8.08
        8.11
        >>> support_bits(1_000, 1_000)
        0.0
    """
    if k <= 0 or k >= n:
        return 0.0
    best, extra = min(_rice(n, k), float(n)), 0
    if 5 * k > 3 * n:
        best = min(best, _rice(n, n - k))
    r = 0
    while r < MOST_B and k * 2 ** (r + 5) <= n:
        r += 1
    decisions = k + _quotients(n, k, r)
    share = k / decisions
    entropy = -log2(share) * k - (log2(1 - share) * (decisions - k) if share < 1 else 0)
    ranged = k * r + entropy + 64
    if ranged < WORTHWHILE * best:
        best, extra = ranged, 16
    number = 8 * max(1, -(-int(k).bit_length() // 7))
    return number + extra + best + 4  # a layer's part ends with a whole byte


def payload_bytes(layout: Layout, counts: Sequence[float], value_bits: int = 32) -> float:
    """Bytes of a whole payload, buffers and all, in which so many entries of each layer are sent.

    Args:
        layout: the model's.
        counts: entries sent of each of its segments.
        value_bits: 32, 16, or 1 to 8, with which goes a scale a layer.

    Example:
        >>> layout = Layout.from_shapes({"conv": (64, 64, 3, 3), "fc": (10, 512)})
        >>> round(payload_bytes(layout, [369, 51]))
        2139
        >>> payload_bytes(layout, [36_864, 5_120])   # everything: 28 + 2 + 4 a value
        167966.0
    """
    bits = 0.0
    for s, k in zip(layout.segments, counts, strict=True):
        bits += 8 + support_bits(s.size, k) + value_bits * k + (32 if k > 0 and value_bits in SCALED else 0)
    return HEADER + bits / 8 + 4 * layout.buffer_size


def _rice(n: int, k: float) -> float:
    """The expected length of Rice-coded gaps, at the best parameter: convex in it."""
    b = max(int(log2(max(n / k, 1))) - 1, 0)
    bits = k * (1 + b) + _quotients(n, k, b)
    while b < MOST_B and (other := k * (2 + b) + _quotients(n, k, b + 1)) < bits:
        b, bits = b + 1, other
    return bits


def _quotients(n: int, k: float, b: int) -> float:
    """E Σ ⌊gap / 2^b⌋ over the k gaps of a random support: k Σ_m C(n − m 2^b, k) / C(n, k)."""
    step, whole, total = 1 << b, lgamma(n + 1) - lgamma(n - k + 1), 0.0
    for x in range(step, int(n - k) + 1, step):
        chance = exp(lgamma(n - x + 1) - lgamma(n - x - k + 1) - whole)
        total += chance
        if chance < 1e-6:
            break
    return k * total
