"""What the programs of `ranking.py` and `spending.py` are made of: the phases that they share.

A program owns a part of the update: a few *pieces* of one cost each, neighbours. A *mark* is a place in the ranking,
the bits of a score and an index: the highest score goes first, and of equal ones the lower index, so there are no ties.
A program's *list* holds the keys (`tiles.py`) and indices of what lies between two marks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from joulegrad.kernels.tiles import INFINITE, LINE, SPECIAL, cost_at, drawn_from, key_of, score_of

# The fields of a row's board, int64, all of them 0 at first.
LOW, LOW_AT, HIGH, HIGH_AT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # the sample's marks
ABOVE, BETWEEN = tl.constexpr(4), tl.constexpr(5)  # how many rank before the high mark; down to the low one
BAD = tl.constexpr(6)  # whether something is not finite
FEW = tl.constexpr(7)  # how many are set aside
KTH, KTH_AT = tl.constexpr(8), tl.constexpr(9)
GATE = tl.constexpr(10)  # how often programs came to meet
LARGEST = tl.constexpr(12)  # key, where it is asked for
ANY = tl.constexpr(11)  # of the first row: whether any row is bad
KEPT = tl.constexpr(16)  # where phases that are launches of their own keep what they know: two times 8
FIELDS = tl.constexpr(32)

DRAWN = tl.constexpr(32)  # entries that a program draws at once


@triton.jit
def meet(board, turn, programs):
    """Wait until all programs of a row have come here so often; what they wrote before can be read then."""
    tl.debug_barrier()
    tl.atomic_add(board + GATE, 1, sem="release")
    while tl.atomic_add(board + GATE, 0, sem="acquire") < turn * programs:
        pass
    tl.debug_barrier()


@triton.jit
def draw(
    g, base, costs, ends, runs, steps, size, m, tops, at_of, bits_of, part, programs,
    POWER: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Scores of entries drawn one from each of m equal runs, by a hash of the run's number.

    What is not finite counts as 0. Reads a cache line for each.
    """
    for start in range(part * DRAWN, m, programs * DRAWN):
        i = start + tl.arange(0, DRAWN)
        at = drawn_from(i, m, size)
        key = key_of(tl.load(g + base + at, mask=i < m, other=0.0))
        cost = cost_at(at, i < m, costs, ends, runs, steps, EACH)
        bits = score_of(tl.where(key < SPECIAL, key, 0), cost, POWER)
        tl.store(tops + i, (bits >> 32).to(tl.int32), mask=i < m)
        tl.store(at_of + i, at, mask=i < m)
        tl.store(bits_of + i, bits, mask=i < m)


@triton.jit
def least_keys(low, high, cost, POWER: tl.constexpr):
    """The least keys of a run whose scores reach `low`, exceed it, reach `high`, exceed it.

    The float that is worth about so much for the cost is one of its neighbours; where they say that it is not, since
    such numbers have too few bits, all keys are searched.
    """
    which = tl.arange(0, 4)
    target = tl.where(which < 2, low, high) + which % 2
    about = tl.minimum(target, INFINITE - 1).to(tl.float64, bitcast=True) * cost
    if POWER == 2:
        about = tl.sqrt(about)
    about = tl.minimum(about, 3.4028234663852886e38).to(tl.float32).to(tl.int32, bitcast=True)
    least, most = tl.maximum(about - 3, 0), tl.minimum(about + 4, SPECIAL)  # of those that it may be
    held = (least == 0) | (score_of(tl.maximum(least - 1, 0), cost, POWER) < target)
    held &= (most == SPECIAL) | (score_of(most, cost, POWER) >= target)
    least, most = tl.where(held, least, 0), tl.where(held, most, SPECIAL)
    while tl.max(most - least, 0) > 0:
        middle = least + (most - least) // 2
        below = (score_of(middle, cost, POWER) < target) & (least < most)
        most = tl.where(below, most, tl.minimum(middle, most))
        least = tl.where(below, middle + 1, least)
    return (
        tl.sum(tl.where(which == 0, least, 0), 0), tl.sum(tl.where(which == 1, least, 0), 0),
        tl.sum(tl.where(which == 2, least, 0), 0), tl.sum(tl.where(which == 3, least, 0), 0),
    )  # fmt: skip


@triton.jit
def just_after(at, first, last):
    """An index plus one, or the nearest that a piece has, or its end."""
    return (tl.minimum(tl.maximum(at, first - 1), last - 1) + 1).to(tl.int32)


@triton.jit
def lines_at(g, base, start, first, last, costs, POWER: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """Neighbouring entries, a line of four a thread: keys of all first ones, of all second ones, and so on.

    With a cost an entry there are their scores besides, else the keys again. `base + start` is a multiple of 16, so
    that a line is read at once. Outside of the piece there is −1.
    """
    line, i = tl.arange(0, BLOCK // LINE)[:, None] * LINE, tl.arange(0, LINE)[None, :]
    from_here = g + (base + start) // 16 * 16
    if (start >= first) & (start + BLOCK <= last):
        key = key_of(tl.load(from_here + (line + i)))
    else:
        at = start + (line + i)
        inside = (at >= first) & (at < last)
        key = tl.where(inside, key_of(tl.load(from_here + (line + i), mask=inside, other=0.0)), -1)
    keys = fours(key, BLOCK)
    values = keys
    if EACH:
        at = start + (line + i)
        cost = tl.load(costs + at, mask=key >= 0, other=1.0)
        values = fours(tl.where(key >= 0, score_of(key, cost, POWER), -1), BLOCK)
    return keys, values


@triton.jit
def fours(x, BLOCK: tl.constexpr):
    """The first of each line, the second, and so on."""
    even, odd = tl.split(tl.reshape(x, [BLOCK // LINE, 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def ranks_by(bits, at, mark, mark_at):
    """Which scores rank at a mark or before it."""
    return (bits > mark) | ((bits == mark) & (at <= mark_at))


@triton.jit
def survey(
    g, base, costs, pieces, pieces_from, board, boards, low, low_at, high, high_at, listed, capacity, counts, part,
    POWER: tl.constexpr, EACH: tl.constexpr, BY_RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count what ranks at the high mark or before it, and list what follows, down to the low mark.

    Reads 4 bytes an entry (12 with a cost an entry), and writes 8 for each that it lists: its key and index. A list
    that has no room for all is of no use; its true length says so. On demand each run is counted apart, too, and the
    largest key kept. A piece is cut where the marks' indices are, so that
    in each part of it what reaches a mark is what reaches a number.
    """
    above, largest = tl.zeros([BLOCK // LINE], tl.int32), tl.zeros([BLOCK // LINE], tl.int32)
    n, so_far = 0, 0
    for piece in range(tl.load(pieces_from + part), tl.load(pieces_from + part + 1)):
        begin, end, run = tl.load(pieces + 3 * piece), tl.load(pieces + 3 * piece + 1), tl.load(pieces + 3 * piece + 2)
        after_low, after_high = just_after(low_at, begin, end), just_after(high_at, begin, end)
        if EACH:
            reach, exceed, reach_high, exceed_high = low, low + 1, high, high + 1
        else:
            reach, exceed, reach_high, exceed_high = least_keys(low, high, tl.load(costs + run), POWER)
        for side in range(3):
            first = tl.where(side == 0, begin, tl.minimum(after_low, after_high))
            first = tl.where(side == 2, tl.maximum(after_low, after_high), first)
            last = tl.where(side == 0, tl.minimum(after_low, after_high), end)
            last = tl.where(side == 1, tl.maximum(after_low, after_high), last)
            down_to = tl.where(last <= after_low, reach, exceed)
            up_to = tl.where(last <= after_high, reach_high, exceed_high)
            aligned = ((base + first) // 16 * 16 - base).to(tl.int32)
            for start in range(aligned, tl.where(first < last, last, aligned), BLOCK):
                keys, values = lines_at(g, base, start, first, last, costs, POWER, EACH, BLOCK)
                between = tl.zeros([BLOCK // LINE], tl.int32)
                for i in tl.static_range(LINE):
                    above += (values[i] >= up_to).to(tl.int32)
                    between += ((values[i] >= down_to) & (values[i] < up_to)).to(tl.int32)
                    largest = tl.maximum(largest, keys[i])
                found = tl.sum(between, 0)
                if (found > 0) & (n + found <= capacity):
                    place = n + tl.cumsum(between, 0) - between
                    line = start + tl.arange(0, BLOCK // LINE) * LINE
                    for i in tl.static_range(LINE):
                        listing = (values[i] >= down_to) & (values[i] < up_to)
                        tl.store(listed + place, (keys[i].to(tl.int64) << 32) | (line + i), mask=listing)
                        place += listing.to(tl.int32)
                n += found
        if BY_RUN:
            counted = tl.sum(above, 0)
            tl.atomic_add(counts + run, counted - so_far, sem="relaxed")
            so_far = counted
    if BY_RUN:
        tl.atomic_max(board + LARGEST, tl.max(largest, 0).to(tl.int64), sem="relaxed")
    if tl.max(largest, 0) >= SPECIAL:
        tl.atomic_or(board + BAD, 1)
        tl.atomic_or(boards.to(tl.pointer_type(tl.int64)) + ANY, 1)
    beyond = tl.sum(above, 0)
    tl.atomic_add(board + ABOVE, beyond.to(tl.int64), sem="relaxed")
    tl.atomic_add(board + BETWEEN, n.to(tl.int64), sem="relaxed")
    return beyond, n


@triton.jit
def own_entries(
    g, base, costs, ends, runs, steps, start, n, first, listed, is_list,
    POWER: tl.constexpr, EACH: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """Scores and indices of a program's own list, or where that is of no use of its part of the update."""
    i = start + tl.arange(0, LIST)
    some = i < n
    pair = tl.load(listed + i, mask=some & is_list, other=0)
    at = tl.where(is_list, pair.to(tl.int32), first + i)
    key = key_of(tl.load(g + base + at, mask=some & (not is_list), other=0.0))
    key = tl.where(is_list, (pair >> 32).to(tl.int32), key)
    return score_of(key, cost_at(at, some, costs, ends, runs, steps, EACH), POWER), at, some


@triton.jit
def shift_of(low, low_at, high, high_at, size, BITS: tl.constexpr):
    """How many bits to drop so that all between two marks falls into 2^BITS bins: of scores; if equal, of indices."""
    span = tl.where(low == high, tl.minimum(low_at, size - 1) - high_at - 1, high - low)
    exponent = (tl.maximum(span, 1).to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1023  # of 2; one more, perhaps
    return tl.maximum(exponent - (BITS - 1), 0)


@triton.jit
def begun(befores, few, few_at, inside, kth, kth_at, first, part, LIST: tl.constexpr, CROWD: tl.constexpr):
    """How many indices the programs before this one write: what they counted, and what they own of the few."""
    found = tl.zeros([LIST], tl.int32)
    for start in range(0, part, LIST):
        i = start + tl.arange(0, LIST)
        found += tl.load(befores + i, mask=i < part, other=0, cache_modifier=".cg")
    j = tl.arange(0, CROWD)
    bits = tl.load(few + j, mask=j < inside, other=-1, cache_modifier=".cg")
    at = tl.load(few_at + j, mask=j < inside, other=0, cache_modifier=".cg")
    chosen = (j < inside) & (at < first) & ranks_by(bits, at, kth, kth_at)
    return tl.sum(found, 0) + tl.sum(chosen.to(tl.int32), 0)


@triton.jit
def emit(
    g, base, costs, pieces, pieces_from, kth, kth_at, out, begin, part,
    POWER: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the indices of what ranks at the k-th or before it, in order.

    Reads 4 bytes an entry (12 with a cost an entry) and writes 8 for each that it keeps.
    """
    for piece in range(tl.load(pieces_from + part), tl.load(pieces_from + part + 1)):
        first, end, run = tl.load(pieces + 3 * piece), tl.load(pieces + 3 * piece + 1), tl.load(pieces + 3 * piece + 2)
        after = just_after(kth_at, first, end)
        if EACH:
            reach, exceed = kth, kth + 1
        else:
            reach, exceed, _, _ = least_keys(kth, kth, tl.load(costs + run), POWER)
        for side in range(2):
            start_at, last = tl.where(side == 0, first, after), tl.where(side == 0, after, end)
            down_to = tl.where(side == 0, reach, exceed)
            aligned = ((base + start_at) // 16 * 16 - base).to(tl.int32)
            for start in range(aligned, tl.where(start_at < last, last, aligned), BLOCK):
                _keys, values = lines_at(g, base, start, start_at, last, costs, POWER, EACH, BLOCK)
                kept = tl.zeros([BLOCK // LINE], tl.int32)
                for i in tl.static_range(LINE):
                    kept += (values[i] >= down_to).to(tl.int32)
                place = begin + tl.cumsum(kept, 0) - kept
                line = start + tl.arange(0, BLOCK // LINE) * LINE
                for i in tl.static_range(LINE):
                    found = values[i] >= down_to
                    tl.store(out + place, (line + i).to(tl.int64), mask=found)
                    place += found.to(tl.int32)
                begin += tl.sum(kept, 0)
