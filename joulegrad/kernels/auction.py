"""The compiled loops of the search for both budgets (`dual`): what each reads and writes.

They run over worths w and costs c in float64, and over the few entries that a first pass kept. At a price λ of energy
an entry leaves w − λc; the product and the difference are rounded, each once, as the specification does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulegrad import digits
from joulegrad.jit import jit
from joulegrad.kernels.lanes import MAGNITUDE
from joulegrad.kernels.passes import place_of, score

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

OUT, SURE, LOOSE = range(3)
INFINITE = np.int64(0x7FF0000000000000)  # the bits of infinity; those of what is positive order as it does


@jit
def costs_of(ends: Ints, costs: Doubles, places: Any, first: int, out: Doubles) -> None:
    """The cost of each entry of a part: reads 12 bytes an entry, or one cost a segment, and writes 8."""
    if len(ends) == 0:
        for i in range(len(out)):
            out[i] = costs[place_of(places, first, i)]
        return
    start = 0
    for segment in range(len(ends)):
        out[start : ends[segment]] = costs[segment]
        start = ends[segment]


@jit
def judge(
    g: Floats, c: Doubles, power: int, low: float, high: float, least: float, sure: float, joules: float,
    verdict: Any, at: Ints, table: Ints,
) -> tuple[int, int, int, float]:  # fmt: skip
    """Which entries of a part every price in [low, high] chooses, and which none does; LOOSE is the rest.

    What is left of an entry falls as the price rises. None chooses what leaves less than `least` or nothing at `low`,
    or what the budget does not pay; every one chooses what leaves more than `sure` at `high`, if fewer than there is
    place for leave more than that at `low`. Returns how many these are; how many are SURE and how many LOOSE, whose
    places in the part go to `at`; and the largest worth. Adds the costs of those that are SURE to a table of `digits`.
    Reads 12 bytes an entry and writes one.
    """
    above, chosen, n, top = 0, 0, 0, np.int32(0)
    raw, paid, block = g.view(np.int32), np.empty(digits.BLOCK), digits.BLOCK
    for start in range(0, len(g), block):
        some, price, judged = g[start : start + block], c[start : start + block], verdict[start : start + block]
        for i in range(len(some)):
            w = score(some[i], 1.0, power)
            at_low, at_high = w - low * price[i], w - high * price[i]
            payable = price[i] <= joules
            wanted = payable & (at_low >= least) & (at_low > 0)
            taken = payable & (at_high > sure)
            above += payable & (at_low > sure)
            chosen += taken
            judged[i] = SURE if taken else LOOSE if wanted else OUT
            paid[i] = price[i] if taken else 0.0
        digits.add(paid[: len(some)], table)
        for i in range(len(some)):
            at[n] = start + i
            n += judged[i] == LOOSE
            top = max(top, raw[start + i] & MAGNITUDE if judged[i] != OUT else np.int32(0))
    one = np.empty(1, np.float32)
    one.view(np.int32)[0] = top
    return above, chosen, n, score(one[0], 1.0, power)


@jit
def collect(
    g: Floats, c: Doubles, verdict: Any, places: Any, first: int, power: int, price: float, out: Ints, worth: Ints,
    reduced: Ints,
) -> float:  # fmt: skip
    """Write the entries whose verdict is SURE; add what they are worth, and what a price leaves, to tables of `digits`.

    Returns the least that is left. Reads 17 bytes an entry, and writes 8 for each that is SURE.
    """
    n, least = 0, INFINITE
    w, left, block = np.empty(digits.BLOCK), np.empty(digits.BLOCK), digits.BLOCK
    bits = left.view(np.int64)
    for start in range(0, len(g), block):
        some, paid, judged = g[start : start + block], c[start : start + block], verdict[start : start + block]
        for i in range(len(some)):
            s = score(some[i], 1.0, power)
            sure = judged[i] == SURE
            w[i] = s if sure else 0.0
            left[i] = s - price * paid[i] if sure else 0.0
        digits.add(w[: len(some)], worth)
        digits.add(left[: len(some)], reduced)
        for i in range(len(some)):
            least = min(least, bits[i] if judged[i] == SURE else INFINITE)
        for i in range(len(some)):
            if n < len(out):
                out[n] = place_of(places, first, start + i)
            n += judged[i] == SURE
    bits[0] = least
    return np.float64(left[0])


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
    Writes verdicts SURE and OUT at the entries' places in `loose`, the costs of the chosen to `paid`, and moves the
    other entries to the front. Returns how many stay, and how many were chosen.
    """
    left, chosen = 0, 0
    for i in range(len(loose)):
        at_low = w[i] - low * c[i]
        if w[i] - high * c[i] > low_entry:
            verdict[loose[i]] = SURE
            paid[chosen] = c[i]
            chosen += 1
        elif at_low < high_entry or at_low <= 0:
            verdict[loose[i]] = OUT
        else:
            loose[left], w[left], c[left] = loose[i], w[i], c[i]
            left += 1
    return left, chosen


@jit
def others(
    g: Floats, places: Any, chosen: Ints, ends: Ints, costs: Doubles, power: int, room: float, found: Ints,
    density: Doubles,
) -> int:  # fmt: skip
    """Write the entries of a part that are not among the chosen and that `room` joules pay, and their scores.

    Reads 4 bytes an entry and 8 of each that is chosen, and 12 more of those that are not; returns how many there are.
    """
    n, next_chosen, segment = 0, np.searchsorted(chosen, places[0]) if len(places) else 0, 0
    for i in range(len(places)):
        j = np.int64(places[i])
        if next_chosen < len(chosen) and chosen[next_chosen] == j:
            next_chosen += 1
            continue
        while len(ends) and ends[segment] <= i:
            segment += 1
        c = costs[segment] if len(ends) else costs[j]
        if c <= room:
            found[n], density[n] = j, score(g[i], c, power)
            n += 1
    return n
