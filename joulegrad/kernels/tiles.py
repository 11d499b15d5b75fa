"""What selection on a GPU is made of, in Triton, and the programs of a search: what each reads, writes, and why.

Every entry has a rank of its own: by its score, |g|^power / c in float64, and of equal scores the lower index first.
So there are no ties to count, however many entries are equal. A *mark* is a place in that order: the bits of a score,
which order as scores do, and an index.

The update is cut into *tiles* of neighbouring entries with one cost, a *run*. There a score reaches a threshold if, and
only if, the float's bits without the sign (its *key*) reach an integer, which is computed once a run. NaN and infinity
have the largest keys of all; a tile that meets any says so.

Programs of one kernel do not wait for each other, but `emit`'s, for the tiles before their own. Nothing says in which
order a GPU starts programs, or that all of them run at once; so a ticket says which tile a program takes. Whoever has
an earlier tile has then begun, a program that has begun is never put off for one that has not, and the first tile waits
for nobody: each wait ends, however few programs there is room for.
"""

from __future__ import annotations

import triton
import triton.language as tl

# The fields of a row's state, int64.
LOW, LOW_AT, HIGH, HIGH_AT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # marks around the k-th
COUNTED = tl.constexpr(10)  # how many are above the high mark, times 2^32, plus how many are between
FEW, CUT = tl.constexpr(11), tl.constexpr(12)  # how many are set aside; the index of the k-th
TICKET, STATUS = tl.constexpr(13), tl.constexpr(14)
FIELDS = tl.constexpr(16)

DONE, NOT_FINITE = tl.constexpr(0), tl.constexpr(1)  # the status

SPECIAL = tl.constexpr(0x7F800000)  # the key of infinity; those of NaN lie above
INFINITE = tl.constexpr(0x7FF0000000000000)  # the bits of an infinite score
NOWHERE = tl.constexpr(0x7FFFFFFF)  # an index above all

LINE = tl.constexpr(4)  # neighbours that one thread looks at: 16 bytes
WINDOW = tl.constexpr(256)  # tiles that `emit` looks back at, at once


@triton.jit
def key_of(g):
    """A float's bits without the sign: they order as magnitudes do."""
    return g.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def score_of(key, cost, POWER: tl.constexpr):
    """|g|^power / c in float64, one rounding a step: the reference's very bits, as an integer."""
    s = key.to(tl.float32, bitcast=True).to(tl.float64)
    if POWER == 2:
        s = s * s
    return (s / cost).to(tl.int64, bitcast=True)


@triton.jit
def drawn_from(i, m, size):
    """The index that is drawn from each of some of m equal runs of indices, by a hash of the run's number."""
    first = size * i.to(tl.int64) // m
    room = size * (i.to(tl.int64) + 1) // m - first
    mixed = i.to(tl.uint32) * 0x9E3779B1
    mixed = (mixed ^ (mixed >> 15)) * 0x85EBCA77
    mixed = mixed ^ (mixed >> 13)
    return (first + mixed.to(tl.int64) % tl.maximum(room, 1)).to(tl.int32)


@triton.jit
def run_of(at, some, ends, runs, steps):
    """The runs that entries lie in: the first that ends after each. So many halvings find one."""
    low = tl.zeros_like(at).to(tl.int32)
    high = low + runs - 1
    for _ in range(steps):
        middle = (low + high) // 2
        later = tl.load(ends + middle, mask=some, other=0) <= at
        low = tl.where(later & (low < high), middle + 1, low)
        high = tl.where(later, high, middle)
    return low


@triton.jit
def cost_at(at, some, costs, ends, runs, steps, EACH: tl.constexpr):
    """What entries cost: each its own, or what its run costs."""
    if EACH:
        cost = tl.load(costs + at, mask=some, other=1.0)
    else:
        cost = tl.load(costs + run_of(at, some, ends, runs, steps), mask=some, other=1.0)
    return cost


@triton.jit
def store_keys(keys, runs, costs, bits, POWER: tl.constexpr, RUNS: tl.constexpr):
    """The least key of each run whose score reaches `bits`, and the least whose score exceeds it.

    As many keys lie below as the answer says. Its hexadecimal digits are found from the highest down, by 15 trials.
    """
    for start in range(0, 2 * runs, 2 * RUNS):
        place = start + tl.arange(0, 2 * RUNS)
        cost = tl.load(costs + place // 2, mask=place < 2 * runs, other=1.0)
        target = bits + place % 2
        least = tl.zeros([2 * RUNS], tl.int64)
        trial = tl.arange(0, 16)
        for digit in tl.static_range(8):
            key = least[:, None] + (trial[None, :].to(tl.int64) << (28 - 4 * digit)) - 1
            possible = (trial[None, :] > 0) & (key < SPECIAL)
            score = score_of(tl.where(possible, key, 0).to(tl.int32), cost[:, None], POWER)
            below = possible & (score < target[:, None])
            least += tl.sum(below.to(tl.int32), 1).to(tl.int64) << (28 - 4 * digit)
        tl.store(keys + place, least.to(tl.int32), mask=place < 2 * runs)


@triton.jit
def lines_of(table, tile, tiles, BLOCK: tl.constexpr):
    """Where each line of a tile begins, LINE neighbours that one thread looks at; the tile's first and last, its run.

    A thread adds up its own lines by itself, so that little is left to be added up between threads.
    """
    first, last = tl.load(table + tile), tl.load(table + tiles + tile)
    at = first // 16 * 16 + tl.arange(0, BLOCK // LINE) * LINE
    return at, first, last, tl.load(table + 2 * tiles + tile)


@triton.jit
def bound_of(keys, last, mark_at):
    """The least key that ranks at a mark or before it, in a tile that lies on one side of the mark's index."""
    return tl.where(last - 1 <= mark_at, tl.load(keys), tl.load(keys + 1))


@triton.jit
def split(first, last, mark_at):
    """Whether a mark's index lies inside a tile, so that equal keys on its two sides rank differently."""
    return (first <= mark_at) & (mark_at < last - 1)


@triton.jit
def at_or_before(key, at, inside, costs, keys, bits, mark_at, POWER: tl.constexpr, EACH: tl.constexpr):
    """Whether entries rank at a mark or before it; those outside their tile do not, NaN and infinity do."""
    if EACH:
        score = score_of(key, tl.load(costs + at, mask=inside, other=1.0), POWER)
        found = (score > bits) | ((score == bits) & (at <= mark_at)) | (key >= SPECIAL)
    else:
        found = (key >= tl.load(keys + 1)) | ((key >= tl.load(keys)) & (at <= mark_at))
    return inside & found


@triton.jit(do_not_specialize=["size", "runs", "room"])
def survey(
    g, size, costs, table, runs, keys, state, words, counts, listed, listed_at, room,
    POWER: tl.constexpr, EACH: tl.constexpr, BY_RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count what ranks at the high mark or before it, and list what follows, down to the low mark.

    Reads 4 bytes an entry (12 with a cost an entry), and writes 8 for each that it lists: its key and index. What it
    reads a second time, to list it, is near. On demand it counts each run apart, too, and finds its largest key.
    """
    tile, row, tiles = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    g += row * size
    state += row * FIELDS
    listed += row * room
    listed_at += row * room
    at, first, last, run = lines_of(table, tile, tiles, BLOCK)
    low, low_at = tl.load(state + LOW), tl.load(state + LOW_AT).to(tl.int32)
    high, high_at = tl.load(state + HIGH), tl.load(state + HIGH_AT).to(tl.int32)
    own = keys + row * 4 * runs + 2 * run
    plain = (last - first == BLOCK) & (not split(first, last, low_at)) & (not split(first, last, high_at)) & (not EACH)
    least, exceeding = 0, 0
    if plain:
        least, exceeding = bound_of(own, last, low_at), bound_of(own + 2 * runs, last, high_at)
    reached, above, largest = tl.zeros_like(at), tl.zeros_like(at), tl.zeros_like(at)
    for i in tl.static_range(LINE):
        if plain:
            key = key_of(tl.load(g + at + i))
            reached += (key >= least).to(tl.int32)
            above += (key >= exceeding).to(tl.int32)
        else:
            inside = (at + i >= first) & (at + i < last)
            key = key_of(tl.load(g + at + i, mask=inside, other=0.0))
            reached += at_or_before(key, at + i, inside, costs, own, low, low_at, POWER, EACH).to(tl.int32)
            above += at_or_before(key, at + i, inside, costs, own + 2 * runs, high, high_at, POWER, EACH).to(tl.int32)
        largest = tl.maximum(largest, key)
    between = reached - above
    n = tl.sum(between + (above << 16), 0).to(tl.int64)  # tiles have fewer than 2^15 entries
    highest = tl.max(largest, 0)
    if highest >= SPECIAL:
        tl.atomic_or(state + STATUS, NOT_FINITE)
    if BY_RUN:
        tl.atomic_add(counts + run, (n >> 16).to(tl.int32), sem="relaxed")
        tl.atomic_max(counts + runs + run, highest, sem="relaxed")
    tl.store(words + row * tiles + tile, tl.zeros([], tl.int64))
    base = tl.atomic_add(state + COUNTED, (n & 65535) + ((n >> 16) << 32), sem="relaxed") & NOWHERE
    if (n & 65535) > 0:
        place = base.to(tl.int32) + tl.cumsum(between, 0) - between
        for i in tl.static_range(LINE):
            if plain:
                key = key_of(tl.load(g + at + i))
                found = (key >= least) & (key < exceeding)
            else:
                inside = (at + i >= first) & (at + i < last)
                key = key_of(tl.load(g + at + i, mask=inside, other=0.0))
                found = at_or_before(key, at + i, inside, costs, own, low, low_at, POWER, EACH)
                found &= ~at_or_before(key, at + i, inside, costs, own + 2 * runs, high, high_at, POWER, EACH)
            tl.store(listed + place, key, mask=found & (place < room))
            tl.store(listed_at + place, at + i, mask=found & (place < room))
            place += found.to(tl.int32)


@triton.jit(do_not_specialize=["bits", "runs"])
def threshold(bits, costs, runs, keys, state, POWER: tl.constexpr, EACH: tl.constexpr, RUNS: tl.constexpr):
    """Both marks after the last entry that has a score: what reaches it is above, and nothing between."""
    field = tl.arange(0, FIELDS)
    at = tl.where((field == LOW_AT) | (field == HIGH_AT) | (field == CUT), NOWHERE, 0).to(tl.int64)
    tl.store(state + field, tl.where((field == LOW) | (field == HIGH), bits, at))
    if not EACH:
        store_keys(keys, runs, costs, bits, POWER, RUNS)
        store_keys(keys + 2 * runs, runs, costs, bits, POWER, RUNS)


@triton.jit
def kept_before(words, tile, own):
    """How many entries all tiles before this one keep, whose own number is published for those after it.

    A tile's word is 0 until its number n is known, then 4n + 1, and 4m + 2 once the number m of all up to it is. Going
    back, numbers are added up to the first such sum. Each word is written and read whole, past the caches of one
    multiprocessor, and says all there is to know; so no order among words is asked for.
    """
    found = tl.zeros([], tl.int64)
    last = tile - 1
    tl.store(words + tile, own * 4 + tl.where(tile == 0, 2, 1), cache_modifier=".cg")
    i = tl.arange(0, WINDOW)
    while last >= 0:
        word = tl.load(words + last - i, mask=last >= i, other=2, volatile=True)
        nearest = tl.min(tl.where(word & 3 == 2, i, WINDOW))
        if tl.sum((((word & 3) == 0) & (i < nearest)).to(tl.int32)) == 0:
            found += tl.sum(tl.where(i <= nearest, word >> 2, 0))
            last = tl.where(nearest < WINDOW, -1, last - WINDOW)
    if tile > 0:
        tl.store(words + tile, (found + own) * 4 + 2, cache_modifier=".cg")
    return found


@triton.jit
def named(at, others, begin, end):
    """Which entries are in a part of a list, which is short: about one a tile, as a rule."""
    found = at < 0
    for other in range(begin, end):
        found |= at == tl.load(others + other)
    return found


@triton.jit(do_not_specialize=["size", "runs", "k"])
def emit(
    g, size, costs, table, runs, keys, state, words, others, others_from, out, k,
    POWER: tl.constexpr, EACH: tl.constexpr, OTHERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the indices of what ranks at the k-th or before it, in order; −1 everywhere where there is no answer.

    Reads 4 bytes an entry (12 with a cost an entry) and writes 8 for each that it keeps. On demand it keeps others that
    are named by their indices, too: a list, and where in it each tile's begin.
    """
    row, tiles = tl.program_id(1).to(tl.int64), tl.num_programs(0)
    g += row * size
    state += row * FIELDS
    out += row * k
    if tl.load(state + STATUS) != DONE:
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.zeros([BLOCK], tl.int64) - 1, mask=i < k)
    else:
        tile = tl.atomic_add(state + TICKET, 1, sem="relaxed").to(tl.int32)
        if tile == tiles - 1:
            tl.store(state + TICKET, 0)
        at, first, last, run = lines_of(table, tile, tiles, BLOCK)
        bits, cut = tl.load(state + LOW), tl.load(state + CUT).to(tl.int32)
        own = keys + row * 4 * runs + 2 * run
        plain = (last - first == BLOCK) & (not split(first, last, cut)) & (not EACH)
        least = 0
        if plain:
            least = bound_of(own, last, cut)
        begin, end = 0, 0
        if OTHERS:
            begin, end = tl.load(others_from + tile), tl.load(others_from + tile + 1)
        kept = tl.zeros_like(at)
        for i in tl.static_range(LINE):
            if plain:
                found = key_of(tl.load(g + at + i)) >= least
            else:
                inside = (at + i >= first) & (at + i < last)
                key = key_of(tl.load(g + at + i, mask=inside, other=0.0))
                found = at_or_before(key, at + i, inside, costs, own, bits, cut, POWER, EACH)
            if OTHERS:
                found |= named(at + i, others, begin, end)
            kept += found.to(tl.int32)
        out += kept_before(words + row * tiles, tile, tl.sum(kept, 0).to(tl.int64))
        place = tl.cumsum(kept, 0) - kept
        for i in tl.static_range(LINE):
            if plain:
                found = key_of(tl.load(g + at + i)) >= least
            else:
                inside = (at + i >= first) & (at + i < last)
                key = key_of(tl.load(g + at + i, mask=inside, other=0.0))
                found = at_or_before(key, at + i, inside, costs, own, bits, cut, POWER, EACH)
            if OTHERS:
                found |= named(at + i, others, begin, end)
            tl.store(out + place, (at + i).to(tl.int64), mask=found)
            place += found.to(tl.int32)
