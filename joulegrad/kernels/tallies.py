"""The programs with which both budgets are met on a GPU: they count, pick and add up, so that the host can decide.

A run of equal cost is an order of keys (`tiles.py`), and the best set at any price of energy holds, of each run, the
largest keys down to a threshold. So all that the search needs to know is how many entries of each run reach a key.
*Spans* say of each run which keys are still in doubt, [low, high), and how many bits of them a bin drops.
"""

from __future__ import annotations

import triton
import triton.language as tl

from joulegrad.kernels.tiles import COUNTED, FEW, NOWHERE, SPECIAL, drawn_from, key_of, run_of


@triton.jit
def in_span(key, run, some, spans, runs):
    """Which entries' keys are in doubt, and how far above the lowest such key each is."""
    low = tl.load(spans + run, mask=some, other=0)
    high = tl.load(spans + runs + run, mask=some, other=0)
    return some & (key >= low) & (key < high), key - low


@triton.jit
def to_bins(key, at, some, ends, runs, steps, spans, bins, BINS: tl.constexpr):
    """Count entries that are in doubt in their run's bins."""
    run = run_of(at, some, ends, runs, steps)
    inside, above = in_span(key, run, some, spans, runs)
    shift = tl.load(spans + 2 * runs + run, mask=some, other=0)
    place = run * BINS + tl.where(inside, above >> shift, 0)
    tl.atomic_add(bins + place, 1, mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["size", "runs", "steps", "m"])
def draw(
    g, size, ends, runs, steps, spans, bins, drawn, drawn_at, m,
    BLOCK: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Draw one entry from each of m equal runs of indices, by a hash of the run's number, and count it in its bin.

    What is not finite counts as 0. Reads a cache line for each.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = drawn_from(i, m, size)
    key = key_of(tl.load(g + at, mask=i < m, other=0.0))
    key = tl.where(key < SPECIAL, key, 0)
    tl.store(drawn + i, key, mask=i < m)
    tl.store(drawn_at + i, at, mask=i < m)
    to_bins(key, at, i < m, ends, runs, steps, spans, bins, BINS)


@triton.jit(do_not_specialize=["runs", "steps", "room"])
def weigh(
    listed, listed_at, room, state, ends, runs, steps, spans, bins,
    BLOCK: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Count the listed entries in the bins of their runs: reads 8 bytes for each."""
    n = tl.minimum(tl.load(state + COUNTED) & NOWHERE, room).to(tl.int32)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        key, at = tl.load(listed + i, mask=i < n, other=0), tl.load(listed_at + i, mask=i < n, other=0)
        to_bins(key, at, i < n, ends, runs, steps, spans, bins, BINS)


@triton.jit(do_not_specialize=["runs", "steps", "room", "most"])
def pick(
    listed, listed_at, room, state, ends, runs, steps, spans, few, few_at, most,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Set aside those of the listed entries that are in doubt, in no order: reads 8 bytes for each that is listed."""
    n = tl.minimum(tl.load(state + COUNTED) & NOWHERE, room).to(tl.int32)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        key, at = tl.load(listed + i, mask=i < n, other=0), tl.load(listed_at + i, mask=i < n, other=0)
        inside, _ = in_span(key, run_of(at, i < n, ends, runs, steps), i < n, spans, runs)
        place = tl.atomic_add(state + FEW + tl.zeros([BLOCK], tl.int32), 1, mask=inside, sem="relaxed").to(tl.int32)
        tl.store(few + place, key, mask=inside & (place < most))
        tl.store(few_at + place, at, mask=inside & (place < most))


@triton.jit
def digits_of(bits, digit, lowest, some):
    """Digits of 32 bits of numbers ≥ 0 in float64, by their bits: of the integers that they are in units of 2^lowest.

    `lowest` counts like a float's exponent, and no number has a bit below it.
    """
    exponent = (bits >> 52) & 2047
    whole = (bits & 0xFFFFFFFFFFFFF) | tl.where(exponent > 0, 0x10000000000000, 0).to(tl.int64)
    down = (32 * digit + lowest)[:, None] - tl.maximum(exponent, 1)[None, :]
    found = whole[None, :] >> tl.minimum(tl.maximum(down, 0), 63)
    found = found << tl.minimum(tl.maximum(-down, 0), 63)
    return tl.where(some[None, :] & (down > -32), found & 0xFFFFFFFF, 0)


@triton.jit(do_not_specialize=["runs", "steps", "n", "worth_from", "beyond_from"])
def add_up(
    g, ends, runs, steps, keys, paid, out, n, worth_from, beyond_from, sums,
    POWER: tl.constexpr, BLOCK: tl.constexpr, DIGITS: tl.constexpr,
):  # fmt: skip
    """Σ w and Σ (w − p) of the kept entries whose keys reach their run's, exactly, as digits of 32 bits.

    w − p is rounded once, as the reference rounds it; w is exact, so a fused multiply-add makes no difference. Sums of
    digits have 64 bits, which leave room for 2^31 entries. Reads 8 bytes, and a float, for each that is kept.
    """
    digit = tl.arange(0, DIGITS).to(tl.int64)
    worths, beyond = tl.zeros([DIGITS, BLOCK], tl.int64), tl.zeros([DIGITS, BLOCK], tl.int64)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        at = tl.load(out + i, mask=i < n, other=0)
        key = key_of(tl.load(g + at, mask=i < n, other=0.0))
        run = run_of(at, i < n, ends, runs, steps)
        some = (i < n) & (key >= tl.load(keys + 2 * run, mask=i < n, other=0))
        w = key.to(tl.float32, bitcast=True).to(tl.float64)
        if POWER == 2:
            w = w * w
        left = tl.where(some, w - tl.load(paid + run, mask=i < n, other=0.0), 0.0)
        worths += digits_of(w.to(tl.int64, bitcast=True), digit, worth_from, some)
        beyond += digits_of(left.to(tl.int64, bitcast=True), digit, beyond_from, some)
    tl.atomic_add(sums + digit, tl.sum(worths, 1), sem="relaxed")
    tl.atomic_add(sums + DIGITS + digit, tl.sum(beyond, 1), sem="relaxed")
