"""The compiled loops of selection on the CPU: what each reads, writes, and why it is one pass.

A float's magnitude orders as the integer of its bits without the sign (its *key*), so |g_j|^power / c_j ≥ t is one
integer comparison with a key that is computed once a segment. NaN and infinity have the largest keys of all, hence
they pass every threshold and are met, at no cost, where the few entries that passed are looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from joulegrad.jit import jit
from joulegrad.kernels.bits import trailing_zeros

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Keys = NDArray[np.int32]
Ints = NDArray[np.int64]

LANES = 64  # entries compared at once, a bit each in one word
ONE = np.uint64(1)
MAGNITUDE = np.int32(0x7FFFFFFF)
SPECIAL = np.int32(0x7F800000)  # the key of infinity; those of NaN lie above


def _splat(builder: Any, scalar: Any) -> Any:
    lanes = ir.VectorType(scalar.type, LANES)
    empty, zeros = ir.Constant(lanes, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.shuffle_vector(builder.insert_element(empty, scalar, ir.IntType(32)(0)), empty, zeros)


def _load(context: Any, builder: Any, array_type: Any, array: Any, at: Any, bits: int) -> Any:
    """LANES integers of an array from `at` on, whatever their alignment."""
    data = context.make_array(array_type)(context, builder, array).data
    lanes = ir.VectorType(ir.IntType(bits), LANES)
    loaded = builder.load(builder.bitcast(builder.gep(data, [at]), lanes.as_pointer()))
    loaded.align = bits // 8
    return loaded


def _keys(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    raw = _load(context, builder, array_type, array, at, 32)
    return builder.and_(raw, ir.Constant(raw.type, [int(MAGNITUDE)] * LANES))


def _as_word(builder: Any, passed: Any) -> Any:
    return builder.bitcast(passed, ir.IntType(LANES))


@intrinsic
def reach(typing_context: Any, raw: Any, at: Any, least: Any) -> Any:
    """Which of the LANES floats from `at` on have keys ≥ `least`: a word, the first in its lowest bit."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        keys = _keys(context, builder, signature.args[0], *arguments[:2])
        return _as_word(builder, builder.icmp_signed(">=", keys, _splat(builder, arguments[2])))

    return types.uint64(raw, types.int64, types.int32), build


@intrinsic
def reach_each(typing_context: Any, raw: Any, costs: Any, at: Any, price: Any, floor: Any) -> Any:
    """The same where each entry has its own least magnitude: price · cost, and no less than `floor`.

    Costs are the upper halves of floats, rounded down (`low_halves`). The product is rounded to the nearest float, so
    its key is lowered by one: nothing that should pass is kept out.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        raw_array, cost_array, at, price, floor = arguments
        keys = _keys(context, builder, signature.args[0], raw_array, at)
        wide = ir.VectorType(ir.IntType(32), LANES)
        halves = builder.zext(_load(context, builder, signature.args[1], cost_array, at, 16), wide)
        bits = builder.shl(halves, ir.Constant(wide, [16] * LANES))
        cost = builder.bitcast(bits, ir.VectorType(ir.FloatType(), LANES))
        least = builder.fmul(cost, _splat(builder, price))
        lowered = builder.sub(builder.bitcast(least, wide), ir.Constant(wide, [1] * LANES))
        bottom = builder.bitcast(_splat(builder, floor), wide)
        lowered = builder.select(builder.icmp_signed(">", bottom, lowered), bottom, lowered)
        return _as_word(builder, builder.icmp_signed(">=", keys, lowered))

    return types.uint64(raw, costs, types.int64, types.float32, types.float32), build


@intrinsic
def ones(typing_context: Any, word: Any) -> Any:
    """How many bits of a word are one."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), build


@jit
def score(x: float, cost: float, power: int) -> float:
    """|g|^power / c in float64, one rounding a step: the reference's very bits."""
    s = np.float64(abs(x))
    return (s * s if power == 2 else s) / cost


@jit
def least_key(threshold: float, cost: float, power: int, one: Floats) -> int:
    """The smallest key whose score is ≥ threshold; SPECIAL where no finite number's is.

    Scores grow with keys, so it is found by halving; `one` is room for a single float.
    """
    bits = one.view(np.int32)
    low, high = 0, np.int64(SPECIAL)
    while low < high:
        middle = (low + high) >> 1
        bits[0] = middle
        if score(one[0], cost, power) >= threshold:
            high = middle
        else:
            low = middle + 1
    return low


@jit
def least_keys(thresholds: Doubles, costs: Doubles, power: int) -> Keys:
    """`least_key` of each segment."""
    out, one = np.empty(len(costs), np.int32), np.empty(1, np.float32)
    for i in range(len(costs)):
        out[i] = least_key(thresholds[i], costs[i], power, one)
    return out


@jit
def sample(g: Floats, ends: Ints, costs: Doubles, power: int, worths: Doubles, paid: Doubles) -> None:
    """|g|^power and c of entries drawn one from each of len(worths) equal runs: reads a cache line each.

    A hash of the run's number says which, so that no period of the data can hide; what is not finite counts as 0.
    """
    d, m, segment = len(g), len(worths), 0
    each = len(ends) == 0
    for i in range(m):
        first, last = d * i // m, d * (i + 1) // m
        mixed = np.uint64(i) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        j = first + np.int64((mixed >> np.uint64(33)) % np.uint64(last - first))
        if each:
            paid[i] = costs[j]
        else:
            while ends[segment] <= j:
                segment += 1
            paid[i] = costs[segment]
        worths[i] = score(g[j], 1.0, power) if np.isfinite(g[j]) else 0.0


@jit
def word_at(raw: Keys, at: int, stop: int, least: int) -> int:
    """`reach` for the entries from `at` up to `stop`, LANES of them at most."""
    if at + LANES <= stop:
        return reach(raw, at, least)
    word = np.uint64(0)
    for i in range(stop - at):
        word |= np.uint64((raw[at + i] & MAGNITUDE) >= least) << np.uint64(i)
    return word


@jit
def survey(
    g: Floats, first: int, last: int, ends: Ints, costs: Doubles, lower: Keys, upper: Keys, beyond: Keys, power: int,
    places: Ints, scores: Doubles,
) -> tuple[int, int, int]:  # fmt: skip
    """Of the entries in [first, last): gather the band [lower, upper), count [upper, beyond) and [beyond, ∞).

    Keys are a segment's. Reads 4 bytes an entry, writes 16 for each in the band, and only counts once `places` is
    full. Returns how many there are of each.
    """
    raw = g.view(np.int32)
    band, level, above, room = 0, 0, 0, len(places)
    segment = np.searchsorted(ends, first, side="right")
    while first < last:
        stop = min(last, ends[segment])
        while first < stop:
            passed = word_at(raw, first, stop, lower[segment])
            if passed:
                high = word_at(raw, first, stop, upper[segment])
                top = word_at(raw, first, stop, beyond[segment])
                above += np.int64(ones(top))
                level += np.int64(ones(high)) - np.int64(ones(top))
                between = passed & ~high
                while between:
                    j = first + np.int64(trailing_zeros(between))
                    between &= between - ONE
                    if band < room:
                        places[band] = j
                        scores[band] = score(g[j], costs[segment], power)
                    band += 1
            first = min(first + LANES, stop)
        segment += 1
    return band, level, above


@jit
def survey_each(
    g: Floats, first: int, last: int, costs: Doubles, halves: Any, price: float, lower: float, upper: float, power: int,
    places: Ints, scores: Doubles,
) -> tuple[int, int, int]:  # fmt: skip
    """The same with a cost an entry: the band is lower < s < upper; a NaN or an infinity counts as above.

    `price` is the least |g| that `lower` asks of a cost of 1. Reads 6 bytes an entry, and the full cost for the exact
    comparison only where the rounded one lets the entry pass.
    """
    raw = g.view(np.int32)
    band, level, above, room = 0, 0, 0, len(places)
    while first < last:
        passed = word_at_each(raw, halves, first, last, price, np.float32(0))
        while passed:
            j = first + np.int64(trailing_zeros(passed))
            passed &= passed - ONE
            s = score(g[j], costs[j], power)
            if s > upper or (raw[j] & MAGNITUDE) >= SPECIAL:
                above += 1
            elif s == upper:
                level += 1
            elif s > lower:
                if band < room:
                    places[band] = j
                    scores[band] = s
                band += 1
        first += LANES
    return band, level, above


@jit
def word_at_each(raw: Keys, halves: Any, at: int, stop: int, price: float, floor: float) -> int:
    """`reach_each` for the entries from `at` up to `stop`; the last few all pass."""
    if at + LANES <= stop:
        return reach_each(raw, halves, at, price, floor)
    return (ONE << np.uint64(stop - at)) - ONE


@jit
def emit(g: Floats, first: int, last: int, ends: Ints, keys: Keys, out: Ints) -> tuple[int, bool]:
    """Write the places in [first, last) whose key reaches their segment's; how many, and whether all are finite.

    Reads 4 bytes an entry and writes 8 for each that it keeps.
    """
    raw, room = g.view(np.int32), len(out)
    n, finite, segment = 0, True, np.searchsorted(ends, first, side="right")
    while first < last:
        stop, least = min(last, ends[segment]), keys[segment]
        while first < stop:
            word = word_at(raw, first, stop, least)
            while word and n < room:
                j = first + np.int64(trailing_zeros(word))
                word &= word - ONE
                finite &= (raw[j] & MAGNITUDE) < SPECIAL
                out[n] = j
                n += 1
            first = min(first + LANES, stop)
        segment += 1
    return n, finite


@jit
def emit_each(
    g: Floats, first: int, last: int, costs: Doubles, halves: Any, price: float, threshold: float, power: int, out: Ints
) -> tuple[int, bool]:
    """The same with a cost an entry: places whose score is ≥ threshold."""
    raw, room = g.view(np.int32), len(out)
    n, finite = 0, True
    while first < last:
        passed = word_at_each(raw, halves, first, last, price, np.float32(0))
        while passed:
            j = first + np.int64(trailing_zeros(passed))
            passed &= passed - ONE
            finite &= (raw[j] & MAGNITUDE) < SPECIAL
            if n < room and score(g[j], costs[j], power) >= threshold:
                out[n] = j
                n += 1
        first += LANES
    return n, finite


@jit
def nth_equal(
    g: Floats, first: int, last: int, ends: Ints, costs: Doubles, keys: Keys, beyond: Keys, power: int,
    level: float, n: int,
) -> tuple[int, int]:  # fmt: skip
    """The place of the n-th entry in [first, last) whose score is `level`, and 0; or -1 and how many are lacking.

    Stops there: where many entries are equal, that is soon. With a cost an entry there are neither ends nor keys.
    """
    raw = g.view(np.int32)
    if len(ends) == 0:
        for j in range(first, last):
            n -= score(g[j], costs[j], power) == level
            if n == 0:
                return j, 0
        return -1, n
    segment = np.searchsorted(ends, first, side="right")
    while first < last:
        stop = min(last, ends[segment])
        while first < stop:
            equal = word_at(raw, first, stop, keys[segment]) & ~word_at(raw, first, stop, beyond[segment])
            found = np.int64(ones(equal))
            if found >= n:
                for _ in range(n - 1):
                    equal &= equal - ONE
                return first + np.int64(trailing_zeros(equal)), 0
            n -= found
            first = min(first + LANES, stop)
        segment += 1
    return -1, n


@jit
def gather_each(
    g: Floats, first: int, last: int, costs: Doubles, halves: Any, price: float, floor: float, power: int,
    energy_price: float, entry_price: float, budget: float, places: Ints, worths: Doubles,
) -> tuple[int, bool]:  # fmt: skip
    """Gather what may be worth its price: w ≥ λc + ν and w > λc, of entries that the budget pays at all.

    `price` and `floor` are the least |g| that λ asks of a cost of 1, and ν of any. Only counts once `places` is full.
    """
    raw, room = g.view(np.int32), len(places)
    n, finite = 0, True
    while first < last:
        passed = word_at_each(raw, halves, first, last, price, floor)
        while passed:
            j = first + np.int64(trailing_zeros(passed))
            passed &= passed - ONE
            finite &= (raw[j] & MAGNITUDE) < SPECIAL
            w, c = score(g[j], 1.0, power), costs[j]
            reduced = w - energy_price * c
            if reduced > 0 and reduced >= entry_price and c <= budget:
                if n < room:
                    places[n] = j
                    worths[n] = w
                n += 1
        first += LANES
    return n, finite


@jit
def reduce(w: Doubles, c: Doubles, price: float, out: Doubles) -> int:
    """What a price of energy leaves of entries, w − λc; how many are positive."""
    n = 0
    for i in range(len(w)):
        out[i] = w[i] - price * c[i]
        n += out[i] > 0
    return n


@jit
def mark(reduced: Doubles, c: Doubles, k: int, threshold: float, chosen: Any) -> tuple[int, float, float]:
    """Mark those above the threshold, and of those on it the first, k at most.

    Returns how many, Σ c of them up to rounding, and the least of them.
    """
    ties, n, energy, least = k, 0, 0.0, np.inf
    for x in reduced:
        ties -= x > threshold
    for i in range(len(reduced)):
        x = reduced[i]
        tie = x == threshold and ties > 0 and x > 0
        ties -= tie
        chosen[i] = tie or x > threshold
        if chosen[i]:
            n += 1
            energy += c[i]
            least = min(least, x)
    return n, energy, least


@jit
def settle(
    loose: Ints, w: Doubles, c: Doubles, low: float, low_entry: float, high: float, high_entry: float,
    verdict: Any, paid: Doubles,
) -> tuple[int, int]:  # fmt: skip
    """Take out of the loose entries those that are chosen at every price in [low, high], or at none.

    What is left of an entry, w − λc, falls as λ rises, and so does the entry price ν: between those at the two ends.
    Writes verdicts 1 and −1 at the entries' places in `loose`, the costs of the chosen to `paid`, and moves the rest of
    the entries to the front. Returns how many stay, and how many were chosen.
    """
    left, chosen = 0, 0
    for i in range(len(loose)):
        at_low = w[i] - low * c[i]
        if w[i] - high * c[i] > low_entry:
            verdict[loose[i]] = 1
            paid[chosen] = c[i]
            chosen += 1
        elif at_low < high_entry or at_low <= 0:
            verdict[loose[i]] = -1
        else:
            loose[left], w[left], c[left] = loose[i], w[i], c[i]
            left += 1
    return left, chosen


@jit
def collect(
    verdict: Any, places: Ints, w: Doubles, c: Doubles, price: float, shared: Ints, worth: Doubles, reduced: Doubles
) -> tuple[int, int]:
    """Of entries in both sets (1) places and worths, of these and those in the second alone (3) what a price leaves."""
    both, second = 0, 0
    for i in range(len(verdict)):
        if verdict[i] == 1:
            shared[both] = places[i]
            worth[both] = w[i]
            both += 1
        if verdict[i] == 1 or verdict[i] == 3:
            reduced[second] = w[i] - price * c[i]
            second += 1
    return both, second


@jit
def merge(a: Ints, b: Ints) -> Ints:
    """Two increasing sequences as one."""
    out = np.empty(len(a) + len(b), np.int64)
    i, j = 0, 0
    for n in range(len(out)):
        if j == len(b) or (i < len(a) and a[i] < b[j]):
            out[n] = a[i]
            i += 1
        else:
            out[n] = b[j]
            j += 1
    return out


@jit
def all_finite(g: Floats, first: int, last: int) -> bool:
    """Whether there is no NaN and no infinity among them: reads 4 bytes an entry."""
    raw = g.view(np.int32)
    while first < last:
        if word_at(raw, first, last, SPECIAL):
            return False
        first += LANES
    return True


@jit
def low_halves(costs: Doubles, unit: float, power: int, out: Any) -> None:
    """C / unit (its square root for power 2) as the upper half of a float32, rounded down; 2 bytes an entry.

    Too small for a float it becomes 0, too large the largest there is: lower than it should be, so that an entry may
    pass the first comparison in vain but is never lost.
    """
    one = np.empty(1, np.float32)
    bits = one.view(np.uint32)
    for i in range(len(costs)):
        c = costs[i] / unit
        c = np.sqrt(c) if power == 2 else c
        c *= 1 - 2.0**-50
        if c < 2.0**-126:
            c = 0.0
        one[0] = min(c * (1 - 2.0**-23), 3e38)
        out[i] = bits[0] >> np.uint32(16)
