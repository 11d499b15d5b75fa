"""The price of energy from counts: the host's part of meeting both budgets on a GPU, compiled.

Of each run of equal cost the best set at a price λ holds what is worth at least θ = λc + ν, where the entry price ν is
the least that leaves no more than k. From counts in bins, `bracket` finds prices between which the energy crosses the
budget, and the keys that are in doubt between them; `cross` finds the very two floats, among the entries in doubt. What
it takes for certain of all others it checks at each price that it tries.

Counts in bins bound: an entry of θ's own bin may reach θ or not. Those of a sample may be off by some standard errors
besides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulegrad.jit import jit
from joulegrad.kernels import passes

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

CELLS = 16  # of prices, in each of which the keys in doubt are found apart
LARGEST = 3.4028234663852886e38  # a float
MISLED, SOLVED = 0, 1


@jit
def key_near(worth: float, power: int, one: Any) -> int:
    """The key of a float that is worth about so much, up to one; `one` is room for it."""
    one[0] = min(np.sqrt(worth) if power == 2 else worth, LARGEST)
    return np.int64(one.view(np.int32)[0])


@jit
def double_of(bits: int, one: Any) -> Any:
    """The float64 that has these bits; `one` is room for it."""
    one.view(np.int64)[0] = bits
    return one[0]


@jit
def bits_of(x: float, one: Any) -> Any:
    """The bits of a float64; `one` is room for it."""
    one[0] = x
    return one.view(np.int64)[0]


@jit
def reaching(upto: Doubles, spans: Ints, sizes: Ints, run: int, key: int, surely: bool) -> Any:
    """How many entries of a run surely reach a key that is known up to one, or how many may.

    upto[run, b]: how many have keys in bin b or above. Where no key is in doubt, that is all there is to say.
    """
    low, high, shift = spans[0, run], spans[1, run], spans[2, run]
    key = key + 1 if surely else key - 1
    if key >= high or low >= high:
        return upto[run, -1]
    if key <= low:
        return upto[run, 0] if surely or low <= 1 else np.float64(sizes[run])
    up = (1 << shift) - 1 if surely else 0
    return upto[run, (key - low + up) >> shift]


@jit
def counted(
    upto: Doubles, spans: Ints, sizes: Ints, costs: Doubles, power: int, price: float, entry_price: float,
    surely: bool, errors: float, one: Any,
) -> tuple[float, float]:  # fmt: skip
    """How many entries there surely are at two prices, and their energy; or how many there may be.

    The energy is put too low, or too high, by so many standard errors.
    """
    n, energy, spread = 0.0, 0.0, 0.0
    for run in range(len(costs)):
        key = max(key_near(price * costs[run] + entry_price, power, one), 1)
        some = reaching(upto, spans, sizes, run, key, surely)
        n += some
        energy += some * costs[run]
        spread += some * costs[run] * costs[run]
    away = errors * np.sqrt(spread)
    return n, energy - away if surely else energy + away


@jit
def entry_price_at(
    upto: Doubles, spans: Ints, sizes: Ints, costs: Doubles, power: int, price: float, places: float, surely: bool,
    step: int, one: Any, wide: Any,
) -> float:  # fmt: skip
    """A bound of ν at a price, within `step` between the bits of floats: from below if `surely`, else from above.

    ν is the least that the best entries leave where they fill all places, and 0 where they do not.
    """
    if counted(upto, spans, sizes, costs, power, price, 0.0, surely, 0.0, one)[0] < places:
        return 0.0
    low, high = 0, bits_of(1e308, wide)
    while high - low > step:
        middle = low + ((high - low) >> 1)
        n, _ = counted(upto, spans, sizes, costs, power, price, double_of(middle, wide), surely, 0.0, one)
        if n >= places:
            low = middle
        else:
            high = middle
    return np.float64(double_of(low if surely else high, wide))


@jit
def bracket(
    upto: Doubles, spans: Ints, sizes: Ints, costs: Doubles, power: int, places: float, joules: float, errors: float,
    least: float, most: float, fineness: int, keys: Ints,
) -> tuple[float, float]:  # fmt: skip
    """Prices inside [least, most] between which the energy crosses the budget; the keys in doubt there, a pair a run.

    `errors` is 0 where counts are no sample's. Floats are told apart by so many bits of their mantissa.
    """
    one, wide, step = np.empty(1, np.float32), np.empty(1), 1 << (52 - fineness)
    spare = errors * np.sqrt(places)
    fewer, more = places - spare, places + spare
    inner = upto, spans, sizes, costs, power

    low, high = bits_of(least, wide), bits_of(most, wide)
    while high - low > step:  # the least price at which all that may be chosen is within
        middle = low + ((high - low) >> 1)
        price = double_of(middle, wide)
        entry = entry_price_at(*inner, price, more, True, step, one, wide)
        if counted(*inner, price, entry, False, errors, one)[1] > joules:
            low = middle
        else:
            high = middle
    top = high
    if low == bits_of(least, wide):  # perhaps not even the least price is too low
        entry = entry_price_at(*inner, least, more, True, step, one, wide)
        if counted(*inner, least, entry, False, errors, one)[1] <= joules:
            top = low
    low, high = bits_of(least, wide), top
    while high - low > step:  # the largest price at which what is surely chosen is over
        middle = low + ((high - low) >> 1)
        price = double_of(middle, wide)
        entry = entry_price_at(*inner, price, fewer, False, step, one, wide)
        if counted(*inner, price, entry, True, errors, one)[1] > joules:
            low = middle
        else:
            high = middle
    first, last = double_of(low, wide), double_of(top, wide)

    keys[0], keys[1] = np.int64(passes.SPECIAL), 0
    start = max(first, last / 65536)
    at = first
    above = entry_price_at(*inner, at, fewer, False, step, one, wide)
    for cell in range(CELLS + 1):
        then = last if cell == CELLS else start * (last / start) ** (cell / CELLS) if start > 0 else 0.0
        below = entry_price_at(*inner, then, more, True, step, one, wide)
        for run in range(len(costs)):
            key = key_near(at * costs[run] + below, power, one) - 1
            keys[0, run] = min(keys[0, run], key)
            key = key_near(then * costs[run] + above, power, one) + 2
            keys[1, run] = max(keys[1, run], key)
        at = then
        above = entry_price_at(*inner, at, fewer, False, step, one, wide)
    return first, last


@jit
def over(counts: Ints, costs: Doubles, joules: float) -> int:
    """Whether Σ n c, correctly rounded, is more than so many joules: 1 or 0; −1 where two doubles cannot tell.

    A product of two floats is exact as two floats, and so is a sum (Dekker; Knuth): about 100 bits in all.
    """
    high, low = 0.0, 0.0
    for run in range(len(costs)):
        n, c = np.float64(counts[run]), costs[run]
        if n == 0:
            continue
        if not 1e-290 < c < 1e290:
            return -1
        n_top, c_top = 134217729.0 * n, 134217729.0 * c
        n_top, c_top = n_top - (n_top - n), c_top - (c_top - c)
        product = n * c
        error = (n_top * c_top - product) + n_top * (c - c_top)
        error = (error + (n - n_top) * c_top) + (n - n_top) * (c - c_top)
        total = high + product
        part = total - high
        low += ((high - (total - part)) + (product - part)) + error
        high = total
    total = high + low
    low -= total - high
    half = (np.nextafter(total, np.inf) - total) / 2
    if abs(total - joules) > 8 * half:
        return 1 if total > joules else 0
    if abs(abs(low) - half) < 1e-6 * half or abs(abs(low) - half / 2) < 1e-6 * half:
        return -1  # between two floats, as far as can be seen
    return 1 if total > joules else 0


@jit
def sums(w: Doubles, c: Doubles, price: float, places: int, reduced: Doubles, chosen: Any) -> tuple[int, float]:
    """Mark the best of the entries at a price, `places` of them at most; how many, and what the least leaves."""
    positive = passes.reduce(w, c, price, reduced)
    if places <= 0 or positive == 0:
        chosen[:] = False
        return 0, np.inf
    threshold = 0.0 if positive <= places else np.partition(reduced, len(w) - places)[len(w) - places]
    n, _, least = passes.mark(reduced, c, places, threshold, chosen)
    return n, least


@jit
def cross(
    w: Doubles, run: Ints, counts: Ints, costs: Doubles, nearest: Doubles, next_below: Doubles, places: int,
    joules: float, least: float, most: float, above: Any, within: Any,
) -> tuple[int, float, float, float]:  # fmt: skip
    """The two neighbouring prices between which the best set's energy crosses the budget, among entries in order.

    counts       how many entries of each run are chosen for certain, beside these
    nearest      what the least of them is worth; infinite where there are none
    next_below   what the best of those is worth that are left out for certain; −1 where there are none
    least, most  between which prices the crossing lies, if the bracket holds

    Marks the best sets above the budget and within it. Returns MISLED if the bracket did not hold, or if what was held
    for certain is not; else SOLVED, the two prices, and the entry price at the second.
    """
    n, runs, wide = len(w), len(costs), np.empty(1)
    at, aw, ac, ar = np.arange(n), w.copy(), costs[run], run.copy()
    inside, lowest = counts.copy(), np.full(runs, np.inf)  # with those settled meanwhile, and the least of these
    reduced, chosen = np.empty(n), np.empty(n, np.bool_)
    verdict = np.zeros(n, np.int8)
    left = n
    low, high = 0, bits_of(np.finfo(np.float64).max, wide)
    floor, ceiling = least, most
    floor_entry, ceiling_entry = 0.0, 0.0
    stage = 0  # 0: the least price; 1: the largest; 2: between; 3: what is found above; 4: within
    entry = 0.0
    price = least
    while True:
        m, worst = sums(aw[:left], ac[:left], price, places, reduced[:left], chosen[:left])
        filled = m == places
        tried = inside.copy()
        for i in range(left):
            tried[ar[i]] += chosen[i]
        if filled:
            for r in range(runs):
                worst = min(worst, lowest[r] - price * costs[r])
        entry = worst if filled else 0.0
        for r in range(runs):
            if nearest[r] - price * costs[r] <= entry:
                return MISLED, 0.0, 0.0, 0.0
            best = next_below[r] - price * costs[r]
            if best > 0 and not (filled and best < entry):
                return MISLED, 0.0, 0.0, 0.0
        is_over = over(tried, costs, joules)
        if is_over < 0:
            return MISLED, 0.0, 0.0, 0.0
        if stage == 0:
            if not is_over:
                if least > 0:
                    return MISLED, 0.0, 0.0, 0.0
                low, high, stage = 0, 0, 3
                continue
            floor_entry, stage, price = entry, 1, most
            continue
        if stage == 1:
            if is_over:
                return MISLED, 0.0, 0.0, 0.0
            ceiling_entry, stage = entry, 2
        elif stage == 2:
            if is_over:
                floor, floor_entry = price, entry
            else:
                ceiling, ceiling_entry = price, entry
        else:
            marks = above if stage == 3 else within
            for i in range(n):
                marks[i] = verdict[i] == 1
            for i in range(left):
                marks[at[i]] = chosen[i]
            if stage == 4:
                return SOLVED, double_of(low, wide), double_of(high, wide), entry
            stage, price = 4, double_of(high, wide)
            continue
        kept = 0
        for i in range(left):  # what every remaining price chooses, or none does, is settled
            r = ar[i]
            if aw[i] - ceiling * ac[i] > floor_entry:
                verdict[at[i]] = 1
                inside[r] += 1
                places -= 1
                lowest[r] = min(lowest[r], aw[i])
            elif aw[i] - floor * ac[i] < ceiling_entry or aw[i] - floor * ac[i] <= 0:
                verdict[at[i]] = -1
            else:
                at[kept], aw[kept], ac[kept], ar[kept] = at[i], aw[i], ac[i], r
                kept += 1
        left = kept
        while high - low > 1:
            middle = low + ((high - low) >> 1)
            price = double_of(middle, wide)
            if price <= floor:
                low = middle
            elif price >= ceiling:
                high = middle
            else:
                break
        if high - low <= 1:
            stage, price = 3, double_of(low, wide)


@jit
def from_the_top(bins: Any, above: Doubles, out: Doubles) -> None:
    """Of each run's bins, and of what is above them: how many entries are in each bin or above."""
    runs, n = out.shape
    for run in range(runs):
        out[run, n - 1] = above[run]
        for b in range(n - 2, -1, -1):
            out[run, b] = out[run, b + 1] + bins[run * (n - 1) + b]


@jit
def keys_at(density: float, costs: Doubles, power: int) -> Ints:
    """The keys, up to one, of floats that are worth so much for what they cost."""
    out, one = np.empty(len(costs), np.int64), np.empty(1, np.float32)
    for run in range(len(costs)):
        out[run] = key_near(density * costs[run], power, one)
    return out


@jit
def density_of(
    upto: Doubles, spans: Ints, sizes: Ints, costs: Doubles, power: int, taken: Ints, wanted: float, floor: float
) -> float:
    """About the largest worth for cost that so many surely reach that are not taken; `floor` where they do not.

    Runs that cost infinitely much are not looked at.
    """
    one, wide = np.empty(1, np.float32), np.empty(1)
    low, high = bits_of(floor, wide), bits_of(1e308, wide)
    while high - low > 1 << 44:
        middle = low + ((high - low) >> 1)
        n = 0.0
        for run in range(len(costs)):
            if costs[run] < np.inf:
                key = max(key_near(double_of(middle, wide) * costs[run], power, one), 1)
                n += max(reaching(upto, spans, sizes, run, key, True) - taken[run], 0.0)
        if n >= wanted:
            low = middle
        else:
            high = middle
    return np.float64(double_of(low, wide))


@jit
def settled(keys: Ints, spans: Ints, upto: Doubles, counts: Ints) -> Ints:
    """Pairs of keys, a pair a run, moved outwards to the bounds of bins; to `counts`, how many entries reach each."""
    out = np.empty_like(keys)
    for run in range(keys.shape[1]):
        low, high, shift = spans[0, run], spans[1, run], spans[2, run]
        first = (min(max(keys[0, run], low), high) - low) >> shift
        last = (min(max(keys[1, run], low), high) - low + (1 << shift) - 1) >> shift
        last = min(last, upto.shape[1] - 1)
        out[0, run], out[1, run] = low + (first << shift), min(low + (last << shift), high)
        counts[0, run], counts[1, run] = np.int64(upto[run, first]), np.int64(upto[run, last])
    return out


@jit
def spans_of(bounds: Ints, bins: int) -> Ints:
    """Bounds of keys, and the bits to drop so that each run has bins enough."""
    out = np.empty((3, bounds.shape[1]), np.int64)
    out[:2] = bounds
    for run in range(bounds.shape[1]):
        shift = 0
        while (bounds[1, run] - bounds[0, run] - 1) >> shift >= bins:
            shift += 1
        out[2, run] = shift
    return out


@jit
def within(keys: Ints, payable: Any) -> None:
    """Keep keys between the least of a number and that of infinity, in order; of runs that nobody can pay, none."""
    for run in range(keys.shape[1]):
        if payable[run]:
            keys[0, run] = min(max(keys[0, run], 1), np.int64(passes.SPECIAL))
            keys[1, run] = min(max(keys[1, run], keys[0, run]), np.int64(passes.SPECIAL))
        else:
            keys[:, run] = np.int64(passes.SPECIAL)
