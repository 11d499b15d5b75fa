"""The compiled loops of selection on the CPU: what each reads, writes, and why it is one pass.

A float's magnitude orders as the integer of its bits without the sign (its *key*), so |g_j|^power / c_j ≥ t is one
integer comparison with a key that is computed once a segment. NaN and infinity have the largest keys of all, hence
they pass every threshold and are met, at no cost, where the few entries that passed are looked at.

A pass runs over a part: a run of the update, or what `sift` kept of it. Place j of a part is entry places[j] of the
update; without places it is entry first + j.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulegrad.jit import jit
from joulegrad.kernels.bits import trailing_zeros
from joulegrad.kernels.lanes import (
    LANES,
    MAGNITUDE,
    ONE,
    PACKS,
    ROW,
    Keys,
    exceed_each,
    keep,
    keep_places,
    ones,
    reach_each,
    sift_row,
    sift_row_each,
    word_at,
)

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

SPECIAL = np.int32(0x7F800000)  # the key of infinity; those of NaN lie above


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
        same = i > 0 and thresholds[i] == thresholds[i - 1] and costs[i] == costs[i - 1]
        out[i] = out[i - 1] if same else least_key(thresholds[i], costs[i], power, one)
    return out


@jit
def place_of(places: Any, first: int, j: int) -> int:
    """Which entry of the update is at place j of a part."""
    return np.int64(places[j]) if len(places) else first + j


@jit
def sample(
    g: Floats, first: int, places: Any, ends: Ints, costs: Doubles, power: int, worths: Doubles, paid: Doubles
) -> None:
    """|g|^power and c of entries of a part, one from each of len(worths) equal runs: reads a cache line each.

    A hash of the run's number says which, so that no period of the data can hide; what is not finite counts as 0.
    """
    d, m, segment = len(g), len(worths), 0
    each = len(ends) == 0
    for i in range(m):
        start, stop = d * i // m, d * (i + 1) // m
        mixed = np.uint64(i) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        j = start + np.int64((mixed >> np.uint64(33)) % np.uint64(stop - start))
        if each:
            paid[i] = costs[place_of(places, first, j)]
        else:
            while ends[segment] <= j:
                segment += 1
            paid[i] = costs[segment]
        worths[i] = score(g[j], 1.0, power) if np.isfinite(g[j]) else 0.0


@jit
def sift(g: Floats, first: int, ends: Ints, least: Keys, places: Any, kept: Floats, kept_ends: Ints) -> int:
    """Write down the entries whose keys reach their segment's: places, floats, and where each segment ends among them.

    Reads 4 bytes an entry and writes 8 for each that it keeps, only counting once `places` is full.
    """
    raw, out = g.view(np.int32), kept.view(np.int32)
    at, n = 0, 0
    for segment in range(len(ends)):
        stop = ends[segment]
        if PACKS:
            while at + ROW <= stop and n + ROW <= len(places):
                n = sift_row(raw, at, least[segment], first, places, out, n)
                at += ROW
        while at < stop:
            word = word_at(raw, at, stop, least[segment])
            keep_places(first + at, word, places, n)
            n = keep(raw, at, word, out, n)
            at = min(at + LANES, stop)
        kept_ends[segment] = n
    return n


@jit
def sift_each(
    g: Floats, first: int, halves: Any, price: float, floor: float, places: Any, kept: Floats, kept_halves: Any
) -> int:
    """The same with a cost an entry: those that may have |g| ≥ price · cost + floor, with their rounded costs.

    Reads 6 bytes an entry and writes 10 for each that it keeps.
    """
    raw, out = g.view(np.int32), kept.view(np.int32)
    at, n = 0, 0
    if PACKS:
        while at + ROW <= len(g) and n + ROW <= len(places):
            n = sift_row_each(raw, halves, at, price, floor, first, places, out, kept_halves, n)
            at += ROW
    while at < len(g):
        word = word_at_each(raw, halves, at, price, floor)
        keep_places(first + at, word, places, n)
        keep(raw, at, word, out, n)
        n = keep(halves, at, word, kept_halves, n)
        at += LANES
    return n


@jit
def survey(
    g: Floats, ends: Ints, costs: Doubles, lower: Keys, upper: Keys, beyond: Keys, power: int, at: Ints, scores: Doubles
) -> tuple[int, int, int]:
    """Gather the band [lower, upper), where in the part and its scores; count [upper, beyond) and [beyond, ∞).

    Keys are a segment's. Reads 4 bytes an entry, writes 16 for each in the band, and only counts once `at` is full.
    Returns how many there are of each.
    """
    raw = g.view(np.int32)
    band, level, above, room = 0, 0, 0, len(at)
    i = 0
    for segment in range(len(ends)):
        stop = ends[segment]
        while i < stop:
            passed = word_at(raw, i, stop, lower[segment])
            if passed:
                high = word_at(raw, i, stop, upper[segment])
                top = word_at(raw, i, stop, beyond[segment])
                above += np.int64(ones(top))
                level += np.int64(ones(high)) - np.int64(ones(top))
                between = passed & ~high
                while between:
                    j = i + np.int64(trailing_zeros(between))
                    between &= between - ONE
                    if band < room:
                        at[band] = j
                        scores[band] = score(g[j], costs[segment], power)
                    band += 1
            i = min(i + LANES, stop)
    return band, level, above


@jit
def survey_each(
    g: Floats, first: int, places: Any, costs: Doubles, halves: Any, prices: tuple[Any, Any, Any], lower: float,
    upper: float, power: int, at: Ints, scores: Doubles,
) -> tuple[int, int, int]:  # fmt: skip
    """The same with a cost an entry: the band is lower < s < upper; a NaN or an infinity counts as above.

    `prices` are the least |g| that `lower` asks of a cost of 1, and what is more than `upper` asks of it and of any.
    Reads 6 bytes an entry, and the full cost for the exact comparison only where the rounded one leaves a doubt.
    """
    raw = g.view(np.int32)
    found, above, room = 0, 0, len(at)
    for i in range(0, len(g), LANES):
        passed = word_at_each(raw, halves, i, prices[0], np.float32(0))
        sure = sure_at_each(raw, halves, i, prices[1], prices[2])
        above += np.int64(ones(sure))
        passed &= ~sure
        while passed:  # no branch on the score: costs far apart come from memory side by side
            j = i + np.int64(trailing_zeros(passed))
            passed &= passed - ONE
            if found < room:
                at[found] = j
                scores[found] = score(g[j], costs[place_of(places, first, j)], power)
            found += 1
    if found > room:
        return found, 0, 0
    band, level = 0, 0
    for i in range(found):
        j, s = at[i], scores[i]
        if s > upper or (raw[j] & MAGNITUDE) >= SPECIAL:
            above += 1
        elif s == upper:
            level += 1
        elif s > lower:
            at[band], scores[band] = j, s
            band += 1
    return band, level, above


@jit
def word_at_each(raw: Keys, halves: Any, at: int, price: float, floor: float) -> int:
    """`reach_each` for the LANES entries from `at` on; where there are less, all pass."""
    if at + LANES <= len(raw):
        return reach_each(raw, halves, at, price, floor)
    return (ONE << np.uint64(len(raw) - at)) - ONE


@jit
def sure_at_each(raw: Keys, halves: Any, at: int, price: float, floor: float) -> int:
    """`exceed_each` for the LANES entries from `at` on; where there are less, none does."""
    if at + LANES <= len(raw):
        return exceed_each(raw, halves, at, price, floor)
    return np.uint64(0)


@jit
def emit(
    g: Floats, first: int, places: Any, ends: Ints, ties: Keys, above: Keys, cut: int, out: Ints
) -> tuple[int, bool]:
    """Write the entries whose keys reach `ties`, from place `cut` of the part on `above`, of their segments.

    Returns how many, and whether all are finite. Reads 4 bytes an entry, 4 more where there are places, and writes 8
    for each that it keeps.
    """
    raw = g.view(np.int32)
    at, n, finite = 0, 0, True
    for segment in range(len(ends)):
        for stop, least in ((min(cut, ends[segment]), ties[segment]), (ends[segment], above[segment])):
            while at < stop:
                word = word_at(raw, at, stop, least)
                finite &= word_at(raw, at, stop, SPECIAL) == 0
                n = keep(places, at, word, out, n) if len(places) else keep_places(first + at, word, out, n)
                at = min(at + LANES, stop)
    return n, finite


@jit
def emit_each(
    g: Floats, first: int, places: Any, costs: Doubles, halves: Any, prices: tuple[Any, Any, Any], threshold: float,
    above: float, power: int, cut: int, out: Ints,
) -> tuple[int, bool]:  # fmt: skip
    """The same with a cost an entry: scores ≥ threshold, from place `cut` on ≥ above; `prices` as in `survey_each`."""
    raw = g.view(np.int32)
    n, finite = 0, True
    for at in range(0, len(g), LANES):
        word = word_at_each(raw, halves, at, prices[0], np.float32(0))
        doubt = word & ~sure_at_each(raw, halves, at, prices[1], prices[2])
        while doubt:
            j = at + np.int64(trailing_zeros(doubt))
            finite &= (raw[j] & MAGNITUDE) < SPECIAL
            low = score(g[j], costs[place_of(places, first, j)], power) < (threshold if j < cut else above)
            word &= ~(np.uint64(low) << np.uint64(j - at))
            doubt &= doubt - ONE
        finite &= word_at(raw, at, len(raw), SPECIAL) == 0
        n = keep(places, at, word, out, n) if len(places) else keep_places(first + at, word, out, n)
    return n, finite


@jit
def nth_equal(
    g: Floats, first: int, places: Any, ends: Ints, costs: Doubles, keys: Keys, beyond: Keys, power: int, level: float,
    n: int,
) -> tuple[int, int]:  # fmt: skip
    """The place in the part of the n-th entry whose score is `level`, and 0; or -1 and how many are lacking.

    Stops there: where many entries are equal, that is soon. With a cost an entry there are neither ends nor keys.
    """
    raw = g.view(np.int32)
    if len(ends) == 0:
        for j in range(len(g)):
            n -= score(g[j], costs[place_of(places, first, j)], power) == level
            if n == 0:
                return j, 0
        return -1, n
    at = 0
    for segment in range(len(ends)):
        stop = ends[segment]
        while at < stop:
            equal = word_at(raw, at, stop, keys[segment]) & ~word_at(raw, at, stop, beyond[segment])
            found = np.int64(ones(equal))
            if found >= n:
                for _ in range(n - 1):
                    equal &= equal - ONE
                return at + np.int64(trailing_zeros(equal)), 0
            n -= found
            at = min(at + LANES, stop)
    return -1, n


@jit
def merge(a: Ints, b: Ints) -> Ints:
    """Two increasing sequences as one, where the second is short: reads and writes 8 bytes a number, in runs."""
    out = np.empty(len(a) + len(b), np.int64)
    done = 0
    for i in range(len(b)):
        upto = done + np.searchsorted(a[done:], b[i])
        out[done + i : upto + i] = a[done:upto]
        out[upto + i] = b[i]
        done = upto
    out[done + len(b) :] = a[done:]
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
    one, most = np.empty(1, np.float32), np.float64(np.finfo(np.float32).max)
    bits = one.view(np.uint32)
    for i in range(len(costs)):
        c = costs[i] / unit
        c = np.sqrt(c) if power == 2 else c
        c *= 1 - 2.0**-50
        if c < 2.0**-126:
            c = 0.0
        one[0] = min(c * (1 - 2.0**-23), most)
        out[i] = bits[0] >> np.uint32(16)
