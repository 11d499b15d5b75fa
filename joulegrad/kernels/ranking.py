"""The k largest on a GPU, in one program: about two readings of the update.

    draw     a sample, one entry from each of m equal runs of indices
    rank     two of them by their ranks: marks between which the k-th must lie
    survey   one reading: how many rank before the marks; a list of what lies between them, counted in bins
    narrow   the bin in which the k-th is; while that is crowded, its entries in finer bins
    settle   the few of that bin, set aside
    choose   the k-th, by comparing each of the few with each
    emit     one reading: the indices of all that rank at the k-th or before it, in order

Every part of the update, and its list, is one program's from the first phase to the last. So nobody waits for a
neighbour while indices are written: where a program's begin is known from counts. Between two phases all programs of a
row meet (`meet`), which asks for all of them to run at once: a cooperative launch says so. Where it cannot be had, as
in Triton's interpreter, each phase is a launch of its own, and the same otherwise.

If the sample misled, the marks move to where the k-th must be instead, and the part of the update takes the place of
its list; so it does where the list is too long. Each narrowing tells apart 2^11 scores for one; so the k-th is found
whatever they are, and only an update that is not finite has no answer: −1 then stands for every index.
"""

from __future__ import annotations

import triton
import triton.language as tl

from joulegrad.kernels.phases import (
    ABOVE,
    BAD,
    BETWEEN,
    FEW,
    FIELDS,
    HIGH,
    HIGH_AT,
    KEPT,
    KTH,
    KTH_AT,
    LOW,
    LOW_AT,
    begun,
    draw,
    emit,
    meet,
    own_entries,
    ranks_by,
    shift_of,
    survey,
)
from joulegrad.kernels.tiles import INFINITE, NOWHERE

DRAW, RANK, SURVEY, COUNT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
NARROW, SETTLE, CHOOSE, EMIT = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6), tl.constexpr(7)

OWN, WIDE = tl.constexpr(8), tl.constexpr(1024)  # a sample's entries that are ranked at once, and beside how many
MOST_TURNS = tl.constexpr(64)  # of narrowing: more than any mark has bits


@triton.jit
def rank(board, m, rank_low, rank_high, tops, at_of, bits_of, part, programs):
    """Keep as marks those of the sample that have two ranks, counted from 0.

    Each program counts how many rank before each of a few: m² comparisons in all, of the upper halves of scores, for a
    mark may lie anywhere. Of equal ones the first goes first.
    """
    for start in range(part * OWN, m, programs * OWN):
        i = start + tl.arange(0, OWN)
        own = tl.load(tops + i, mask=i < m, other=-1, cache_modifier=".cg")
        ahead = tl.zeros([OWN, WIDE], tl.int32)
        for other in range(0, m, WIDE):
            j = other + tl.arange(0, WIDE)
            that = tl.load(tops + j, mask=j < m, other=-2, cache_modifier=".cg")[None, :]
            if start // WIDE == other // WIDE:
                ahead += (that + (j[None, :] < i[:, None]).to(tl.int32) > own[:, None]).to(tl.int32)
            else:
                earlier = tl.minimum(tl.maximum(start - other, 0), 1)  # equal ones go first
                ahead += (that > (own - earlier)[:, None]).to(tl.int32)
        place = tl.sum(ahead, 1)
        bits = tl.load(bits_of + i, mask=i < m, other=0, cache_modifier=".cg")
        at = tl.load(at_of + i, mask=i < m, other=0, cache_modifier=".cg").to(tl.int64)
        nowhere = tl.zeros([OWN], tl.int32)
        tl.store(board + LOW + nowhere, bits, mask=(place == rank_low) & (i < m))
        tl.store(board + LOW_AT + nowhere, at, mask=(place == rank_low) & (i < m))
        tl.store(board + HIGH + nowhere, bits, mask=(place == rank_high) & (i < m))
        tl.store(board + HIGH_AT + nowhere, at, mask=(place == rank_high) & (i < m))


@triton.jit
def marks_of(board, m, rank_low, rank_high):
    """The sample's marks; a rank outside the sample is a mark beyond which nothing lies."""
    low, low_at = tl.load(board + LOW, cache_modifier=".cg"), tl.load(board + LOW_AT, cache_modifier=".cg")
    high, high_at = tl.load(board + HIGH, cache_modifier=".cg"), tl.load(board + HIGH_AT, cache_modifier=".cg")
    all_below, none_above = rank_low >= m, rank_high < 0
    low, low_at = tl.where(all_below, 0, low), tl.where(all_below, NOWHERE, low_at)
    return low, low_at, tl.where(none_above, INFINITE, high), tl.where(none_above, -1, high_at)


@triton.jit
def count(
    g, base, costs, ends, runs, steps, size, low, low_at, high, high_at, n, first, listed, is_list, bins,
    POWER: tl.constexpr, EACH: tl.constexpr, LIST: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Count a program's entries between two marks in bins, the best first: 8 bytes are read for each, and its cost."""
    shift = shift_of(low, low_at, high, high_at, size, BITS)
    for start in range(0, n, LIST):
        bits, at, some = own_entries(
            g, base, costs, ends, runs, steps, start, n, first, listed, is_list, POWER, EACH, LIST
        )
        inside = some & ranks_by(bits, at, low, low_at) & (~ranks_by(bits, at, high, high_at))
        place = tl.where(low == high, at - high_at - 1, high - bits) >> shift
        tl.atomic_add(bins + tl.where(inside, place, 0), 1, mask=inside, sem="relaxed")


@triton.jit
def narrowed(low, low_at, high, high_at, wanted, size, bins, BITS: tl.constexpr):
    """The marks around the bin in which the one wanted is; which of that bin it is, and how many these are."""
    shift = shift_of(low, low_at, high, high_at, size, BITS)
    b = tl.arange(0, 1 << BITS)
    each = tl.load(bins + b, cache_modifier=".cg")
    upto = tl.cumsum(each, 0)
    found = tl.sum((upto < wanted).to(tl.int32), 0).to(tl.int64)
    wanted -= tl.sum(tl.where(b < found, each, 0), 0)
    inside = tl.sum(tl.where(b == found, each, 0), 0).to(tl.int64)
    nearer, further = found << shift, (found + 1) << shift
    if low == high:
        low_at = tl.minimum(low_at, high_at + further)
        high_at = high_at + nearer
    else:
        low_at = tl.where(high - further + 1 > low, NOWHERE, low_at)
        low = tl.maximum(high - further + 1, low)
        high_at = tl.where(found > 0, -1, high_at)
        high = high - nearer
    return low, low_at, high, high_at, wanted, inside


@triton.jit
def where_it_is(board, k):
    """Which of those between the marks the k-th is; or of those before them (−1), or after (1)."""
    above, between = tl.load(board + ABOVE, cache_modifier=".cg"), tl.load(board + BETWEEN, cache_modifier=".cg")
    wanted = k - above
    side = tl.where(wanted <= 0, -1, tl.where(wanted > between, 1, 0)).to(tl.int64)
    return tl.where(side < 0, k, tl.where(side > 0, wanted - between, wanted)), side


@triton.jit
def settle(
    g, base, costs, ends, runs, steps, low, low_at, high, high_at, n, first, listed, is_list,
    board, few, few_at, POWER: tl.constexpr, EACH: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """Set aside the few between two marks, in no order; how many of the program's entries rank before them."""
    before = tl.zeros([LIST], tl.int32)
    for start in range(0, n, LIST):
        bits, at, some = own_entries(
            g, base, costs, ends, runs, steps, start, n, first, listed, is_list, POWER, EACH, LIST
        )
        beyond = some & ranks_by(bits, at, high, high_at)
        inside = some & ranks_by(bits, at, low, low_at) & (~beyond)
        place = tl.atomic_add(board + FEW + tl.zeros([LIST], tl.int32), 1, mask=inside, sem="relaxed")
        tl.store(few + place, bits, mask=inside)
        tl.store(few_at + place, at, mask=inside)
        before += beyond.to(tl.int32)
    return tl.sum(before, 0)


@triton.jit
def choose(board, few, few_at, inside, wanted, part, programs, CROWD: tl.constexpr):
    """The one wanted of the few: each program counts how many rank before each of its own."""
    j = tl.arange(0, CROWD)
    bits = tl.load(few + j, mask=j < inside, other=-1, cache_modifier=".cg")
    at = tl.load(few_at + j, mask=j < inside, other=0, cache_modifier=".cg")
    for i in range(part, inside, programs):
        own, own_at = tl.load(few + i, cache_modifier=".cg"), tl.load(few_at + i, cache_modifier=".cg")
        if tl.sum(ranks_by(bits, at, own, own_at).to(tl.int32), 0) == wanted:
            tl.store(board + KTH, own)
            tl.store(board + KTH_AT, own_at.to(tl.int64))


@triton.jit
def keep(kept, low, low_at, high, high_at, wanted, inside, whole):
    """Write down what the next launch needs to know."""
    tl.store(kept, low)
    tl.store(kept + 1, low_at)
    tl.store(kept + 2, high)
    tl.store(kept + 3, high_at)
    tl.store(kept + 4, wanted)
    tl.store(kept + 5, inside)
    tl.store(kept + 6, whole)


@triton.jit(do_not_specialize=["size", "runs", "steps", "k", "m", "rank_low", "rank_high", "capacity", "turn"])
def select(
    g, costs, ends, pieces, boards, scratch, out, size, runs, steps, k, m, rank_low, rank_high, capacity, turn,
    FROM: tl.constexpr, TO: tl.constexpr, POWER: tl.constexpr, EACH: tl.constexpr,
    BLOCK: tl.constexpr, LIST: tl.constexpr, BITS: tl.constexpr, CROWD: tl.constexpr,
):  # fmt: skip
    """Some phases, one or all, for each row of updates.

    `pieces`: where each program's begin, then first, last, run of each. `boards`: all 0; of each row its fields, and
    then of each row three times 2^BITS counts, of which one is counted in, one is read, one is cleared. `scratch`: see
    `gpu.py`. Where a phase is a launch of its own, `turn` says which narrowing it is.
    """
    part, programs = tl.program_id(0), tl.num_programs(0)
    row = tl.program_id(1).to(tl.int64)
    fused: tl.constexpr = FROM != TO
    BINS: tl.constexpr = 1 << BITS
    base = row * size
    board = boards.to(tl.pointer_type(tl.int64)) + row * FIELDS
    bins = boards + tl.num_programs(1) * (2 * FIELDS) + row * (3 * BINS)
    of_sample, of_programs = tl.cdiv(m, 16) * 16, tl.cdiv(programs, 16) * 16
    scratch += row * (4 * of_sample + 3 * CROWD + 3 * of_programs + 2 * programs.to(tl.int64) * capacity)
    bits_of, tops, at_of = scratch.to(tl.pointer_type(tl.int64)), scratch + 2 * of_sample, scratch + 3 * of_sample
    scratch += 4 * of_sample
    few, few_at = scratch.to(tl.pointer_type(tl.int64)), scratch + 2 * CROWD
    aboves = scratch + 3 * CROWD
    lengths, befores = aboves + of_programs, aboves + 2 * of_programs
    listed = (aboves + 3 * of_programs).to(tl.pointer_type(tl.int64)) + part.to(tl.int64) * capacity
    pieces_from = pieces
    pieces += of_programs + 16
    first = tl.load(pieces + 3 * tl.load(pieces_from + part))
    after = tl.load(pieces + 3 * tl.load(pieces_from + part + 1) - 2)

    if FROM <= DRAW:
        draw(g, base, costs, ends, runs, steps, size, m, tops, at_of, bits_of, part, programs, POWER, EACH)
    if fused:
        meet(board, 1, programs)
    if (FROM <= RANK) & (TO >= RANK):
        rank(board, m, rank_low, rank_high, tops, at_of, bits_of, part, programs)
    if fused:
        meet(board, 2, programs)
    low, low_at, high, high_at = marks_of(board, m, rank_low, rank_high)
    wanted, whole = low * 0, low * 0
    inside = low * 0 + NOWHERE
    above, n = 0, 0
    if (FROM <= SURVEY) & (TO >= SURVEY):
        above, n = survey(
            g, base, costs, pieces, pieces_from, board, boards, low, low_at, high, high_at, listed,
            capacity, lengths, part, POWER, EACH, False, BLOCK,
        )  # fmt: skip
        if fused:
            tl.debug_barrier()  # the list is read by other threads than wrote it
        else:
            tl.store(aboves + part, above)
            tl.store(lengths + part, n)
            keep(board + KEPT, low, low_at, high, high_at, wanted, inside, whole)
    if FROM > SURVEY:
        above, n = tl.load(aboves + part), tl.load(lengths + part)
        kept = board + KEPT + turn % 2 * 8
        low, low_at, high, high_at = tl.load(kept), tl.load(kept + 1), tl.load(kept + 2), tl.load(kept + 3)
        wanted, inside, whole = tl.load(kept + 4), tl.load(kept + 5), tl.load(kept + 6)

    if (FROM <= NARROW) & (TO >= COUNT):
        more, given = inside >= 0, turn
        while more & (inside > CROWD) & (turn < MOST_TURNS):
            here = bins + turn % 3 * BINS
            if FROM <= COUNT:
                is_list = (n <= capacity) & (whole == 0)
                count(
                    g, base, costs, ends, runs, steps, size, low, low_at, high, high_at,
                    tl.where(is_list, n, after - first), first, listed, is_list, here,
                    POWER, EACH, LIST, BITS,
                )  # fmt: skip
                for start in range(part * LIST, BINS, programs * LIST):
                    b = start + tl.arange(0, LIST)
                    tl.store(bins + (turn + 1) % 3 * BINS + b, 0, mask=b < BINS)
            if fused:
                meet(board, 3 + turn, programs)
            if TO >= NARROW:
                if turn == 0:
                    wanted, whole = where_it_is(board, k)
                if tl.load(board + BAD, cache_modifier=".cg") != 0:
                    inside = low * 0
                elif (turn == 0) & (whole != 0):  # the marks move to where the k-th must be
                    low, low_at, high, high_at = (
                        tl.where(whole < 0, high, 0), tl.where(whole < 0, high_at, NOWHERE),
                        tl.where(whole < 0, INFINITE, low), tl.where(whole < 0, -1, low_at),
                    )  # fmt: skip
                else:
                    low, low_at, high, high_at, wanted, inside = narrowed(
                        low, low_at, high, high_at, wanted, size, here, BITS
                    )
            turn += 1
            more = more & fused
        if TO == NARROW:
            keep(board + KEPT + (given + 1) % 2 * 8, low, low_at, high, high_at, wanted, inside, whole)
        if TO >= SETTLE:
            inside = tl.where(inside > CROWD, 0, inside)  # which cannot be, and must not hurt

    is_list = (n <= capacity) & (whole == 0)
    if (FROM <= SETTLE) & (TO >= SETTLE):
        before = settle(
            g, base, costs, ends, runs, steps, low, low_at, high, high_at,
            tl.where(inside == 0, 0, tl.where(is_list, n, after - first)), first, listed, is_list,
            board, few, few_at, POWER, EACH, LIST,
        )  # fmt: skip
        tl.store(befores + part, before + tl.where(whole == 0, tl.where(is_list, above, 0), 0))
    if fused:
        meet(board, 3 + turn, programs)
    if (FROM <= CHOOSE) & (TO >= CHOOSE):
        choose(board, few, few_at, inside.to(tl.int32), wanted, part, programs, CROWD)
    if fused:
        meet(board, 4 + turn, programs)
    if TO >= EMIT:
        out += row * k
        if inside == 0:
            for start in range(part * LIST, k, programs * LIST):
                i = start + tl.arange(0, LIST)
                tl.store(out + i, tl.full([LIST], -1, tl.int64), mask=i < k)
        else:
            kth, kth_at = tl.load(board + KTH, cache_modifier=".cg"), tl.load(board + KTH_AT, cache_modifier=".cg")
            begin = begun(befores, few, few_at, inside.to(tl.int32), kth, kth_at, first, part, LIST, CROWD)
            emit(g, base, costs, pieces, pieces_from, kth, kth_at, out, begin, part, POWER, EACH, BLOCK)
