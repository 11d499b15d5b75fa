"""Both budgets on a GPU where the joules bind and the count does not: one launch, two readings of the update.

Then the best set at a price λ of energy holds all that is worth more than λc: the entries that are worth most for what
they cost, down to some place in the ranking of `ranking.py`. So the search is for the first entry that the joules no
longer pay, by adding up costs where that program counts:

    draw, rank   a sample's marks around the place, by the costs of what ranks before
    survey       one reading: what ranks before, by run of equal cost; a list of what lies between, its costs in bins
    settle       the few of the bin in which the joules end, set aside
    choose       the first of them that is not paid, by adding up the costs of those before it
    emit         one reading: the indices of all that are, and what they are worth, exactly

The host is given counts and sums, some hundred bytes and eight a run. It says from these, exactly, whether the set is
the reference's (`frugal.py`); where there is any doubt, the search of `priced.py` is the way.
"""

from __future__ import annotations

import triton
import triton.language as tl

from joulegrad.kernels.phases import (
    BAD,
    DRAWN,
    FEW,
    FIELDS,
    HIGH,
    HIGH_AT,
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
from joulegrad.kernels.ranking import OWN, WIDE
from joulegrad.kernels.tallies import digits_of
from joulegrad.kernels.tiles import INFINITE, NOWHERE, cost_at, key_of, run_of

UNSURE = tl.constexpr(16)  # whether there is a doubt
PLACE = tl.constexpr(17)  # of the first entry not paid, among the few, plus 1
FOUND = tl.constexpr(18)  # how many are paid
KEY, COST = tl.constexpr(19), tl.constexpr(20)  # of that entry: its key, the bits of what it costs
TIED, TIED_PAID = tl.constexpr(21), tl.constexpr(22)  # how many have its price; of these, how many are paid
LOWEST = tl.constexpr(23)  # exponent of the sums' unit
DIGITS = tl.constexpr(4)


@triton.jit
def weigh_drawn(at_of, weights, m, costs, ends, runs, steps, scale, part, programs):
    """What the sample's entries cost, in units of which the dearest has 2^15."""
    for start in range(part * DRAWN, m, programs * DRAWN):
        i = start + tl.arange(0, DRAWN)
        cost = cost_at(tl.load(at_of + i, mask=i < m, other=0), i < m, costs, ends, runs, steps, False)
        tl.store(weights + i, tl.maximum((cost * scale * 0.000030517578125).to(tl.int32), 1), mask=i < m)


@triton.jit
def rank_by_cost(board, m, low_cost, high_cost, tops, weights, at_of, bits_of, part, programs):
    """Keep as marks those of the sample at which the costs of what ranks before, added up, come to two amounts."""
    for start in range(part * OWN, m, programs * OWN):
        i = start + tl.arange(0, OWN)
        own = tl.load(tops + i, mask=i < m, other=-1, cache_modifier=".cg")
        spent = tl.zeros([OWN, WIDE], tl.int32)
        for other in range(0, m, WIDE):
            j = other + tl.arange(0, WIDE)
            that = tl.load(tops + j, mask=j < m, other=-2, cache_modifier=".cg")[None, :]
            cost = tl.load(weights + j, mask=j < m, other=0, cache_modifier=".cg")[None, :]
            spent += tl.where(that + (j[None, :] < i[:, None]).to(tl.int32) > own[:, None], cost, 0)
        before = tl.sum(spent, 1)
        after = before + tl.load(weights + i, mask=i < m, other=0, cache_modifier=".cg")
        bits = tl.load(bits_of + i, mask=i < m, other=0, cache_modifier=".cg")
        at = tl.load(at_of + i, mask=i < m, other=0, cache_modifier=".cg").to(tl.int64)
        nowhere = tl.zeros([OWN], tl.int32)
        here = (before <= low_cost) & (low_cost < after)
        tl.store(board + LOW + nowhere, bits, mask=here)
        tl.store(board + LOW_AT + nowhere, at, mask=here)
        here = (before <= high_cost) & (high_cost < after)
        tl.store(board + HIGH + nowhere, bits, mask=here)
        tl.store(board + HIGH_AT + nowhere, at, mask=here)


@triton.jit
def add_costs(
    g, costs, ends, runs, steps, size, low, low_at, high, high_at, n, listed, scale, bins,
    POWER: tl.constexpr, LIST: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Add up what the listed entries cost, in bins of their scores, the best first."""
    shift = shift_of(low, low_at, high, high_at, size, BITS)
    for start in range(0, n, LIST):
        bits, at, some = own_entries(g, 0, costs, ends, runs, steps, start, n, 0, listed, True, POWER, False, LIST)
        inside = some & ranks_by(bits, at, low, low_at) & (~ranks_by(bits, at, high, high_at))
        weight = (cost_at(at, some, costs, ends, runs, steps, False) * scale).to(tl.int64)
        tl.atomic_add(bins + tl.where(inside, (high - bits) >> shift, 0), weight, mask=inside, sem="relaxed")


@triton.jit
def energy_of(counts, runs, costs, LIST: tl.constexpr):
    """Σ n c over all runs, in float64."""
    energy = tl.zeros([LIST], tl.float64)
    for start in range(0, runs, LIST):
        r = start + tl.arange(0, LIST)
        n = tl.load(counts + r, mask=r < runs, other=0, cache_modifier=".cg")
        energy += n.to(tl.float64) * tl.load(costs + r, mask=r < runs, other=0.0)
    return tl.sum(energy, 0)


@triton.jit
def settle_by_run(
    g, costs, ends, runs, steps, low, low_at, high, high_at, n, listed, board, few, few_at, counts, first_run, last_run,
    POWER: tl.constexpr, LIST: tl.constexpr, CROWD: tl.constexpr,
):  # fmt: skip
    """Set aside the few between two marks; how many of the program's entries rank before them, counted by run, too."""
    before = 0
    for start in range(0, n, LIST):
        bits, at, some = own_entries(g, 0, costs, ends, runs, steps, start, n, 0, listed, True, POWER, False, LIST)
        beyond = some & ranks_by(bits, at, high, high_at)
        inside = some & ranks_by(bits, at, low, low_at) & (~beyond)
        place = tl.atomic_add(board + FEW + tl.zeros([LIST], tl.int32), 1, mask=inside, sem="relaxed")
        tl.store(few + place, bits, mask=inside & (place < CROWD))
        tl.store(few_at + place, at, mask=inside & (place < CROWD))
        run = run_of(at, some, ends, runs, steps)
        for r in range(first_run, last_run + 1):
            found = tl.sum((beyond & (run == r)).to(tl.int32), 0)
            tl.atomic_add(counts + r, found, sem="relaxed")
            before += found
    return before


@triton.jit
def first_not_paid(
    board, few, few_at, inside, energy, joules, costs, ends, runs, steps, part, programs, CROWD: tl.constexpr
):
    """The first of the few, in their order, that the joules do not pay: each program adds up for each of its own."""
    j = tl.arange(0, CROWD)
    bits = tl.load(few + j, mask=j < inside, other=-1, cache_modifier=".cg")
    at = tl.load(few_at + j, mask=j < inside, other=0, cache_modifier=".cg")
    cost = cost_at(at, j < inside, costs, ends, runs, steps, False)
    for i in range(part, inside, programs):
        own, own_at = tl.load(few + i, cache_modifier=".cg"), tl.load(few_at + i, cache_modifier=".cg")
        before = (j < inside) & ranks_by(bits, at, own, own_at - 1)
        spent = energy + tl.sum(tl.where(before, cost, 0.0), 0)
        then = spent + tl.sum(tl.where(j == i, cost, 0.0), 0)
        if (spent <= joules) & (joules < then):
            tl.atomic_max(board + PLACE, i + 1)


@triton.jit
def worth_of(key, POWER: tl.constexpr):
    """|g|^power, exactly."""
    w = key.to(tl.float32, bitcast=True).to(tl.float64)
    if POWER == 2:
        w = w * w
    return w


@triton.jit
def price_of(w, cost):
    """The bits of the largest price λ at which an entry is worth more than fl(λc)."""
    about = (w / cost).to(tl.int64, bitcast=True) + tl.arange(0, 8) - 4
    priced = (about > 0) & (tl.maximum(about, 0).to(tl.float64, bitcast=True) * cost < w)
    return tl.max(tl.where(priced, about, 0), 0)


@triton.jit
def add_up_own(
    g, costs, ends, runs, steps, price, lowest, out, begin, end, sums,
    POWER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Σ w of a program's entries, and Σ (w − fl(λc)) of those for which it is positive, as digits of 32 bits.

    Reads 8 bytes, and a float, for each.
    """
    digit = tl.arange(0, DIGITS).to(tl.int64)
    worths, beyond = tl.zeros([DIGITS, BLOCK], tl.int64), tl.zeros([DIGITS, BLOCK], tl.int64)
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        at = tl.load(out + i, mask=i < end, other=0).to(tl.int32)
        w = worth_of(key_of(tl.load(g + at, mask=i < end, other=0.0)), POWER)
        paid = price * cost_at(at, i < end, costs, ends, runs, steps, False)
        left = tl.where((i < end) & (w > paid), w - paid, 0.0)
        worths += digits_of(w.to(tl.int64, bitcast=True), digit, lowest, i < end)
        beyond += digits_of(left.to(tl.int64, bitcast=True), digit, lowest, (i < end) & (w > paid))
    tl.atomic_add(sums + digit, tl.sum(worths, 1), sem="relaxed")
    tl.atomic_add(sums + DIGITS + digit, tl.sum(beyond, 1), sem="relaxed")


@triton.jit
def lowest_of(price, costs, runs, LIST: tl.constexpr):
    """The least exponent of what the price makes of a cost: every worth above it, and what is left, is whole there."""
    least = tl.full([LIST], 2047, tl.int64)
    for start in range(0, runs, LIST):
        r = start + tl.arange(0, LIST)
        paid = price * tl.load(costs + r, mask=r < runs, other=1.0)
        exponent = (paid.to(tl.int64, bitcast=True) >> 52) & 2047
        least = tl.minimum(least, tl.where(r < runs, exponent, 2047))
    return tl.maximum(tl.min(least, 0), 1)


@triton.jit
def note(
    g, board, few, few_at, inside, kth, kth_at, bits, price, cost, low, high, more, costs, ends, runs, steps,
    POWER: tl.constexpr, CROWD: tl.constexpr,
):  # fmt: skip
    """Of the few: count by run those that are paid, and those that have the price at which the joules end.

    There is a doubt where scores and prices do not say the same, by their last bits; where an entry of another cost has
    the very price; and near a mark, beyond which there might be more of either kind.
    """
    j = tl.arange(0, CROWD)
    of_j = tl.load(few + j, mask=j < inside, other=-1, cache_modifier=".cg")
    at = tl.load(few_at + j, mask=j < inside, other=0, cache_modifier=".cg")
    run = run_of(at, j < inside, ends, runs, steps)
    c = tl.load(costs + run, mask=j < inside, other=1.0)
    w = worth_of(key_of(tl.load(g + at, mask=j < inside, other=0.0)), POWER)
    paid = (j < inside) & ranks_by(of_j, at, kth, kth_at)
    at_least, above = w > bits.to(tl.float64, bitcast=True) * c, w > price * c
    tied = (j < inside) & at_least & (~above)
    odd = (paid & (~at_least)) | ((j < inside) & (~paid) & above) | (tied & (c != cost))
    near = (high - kth < 8) | (kth - low < 8)
    tl.atomic_add(more + run, 1, mask=paid, sem="relaxed")
    tl.store(board + TIED, tl.sum(tied.to(tl.int64), 0))
    tl.store(board + TIED_PAID, tl.sum((tied & paid).to(tl.int64), 0))
    tl.atomic_or(board + UNSURE, tl.where(near, 1, tl.max(odd.to(tl.int64), 0)).to(tl.int64))


@triton.jit(
    do_not_specialize=[
        "size",
        "runs",
        "steps",
        "k",
        "m",
        "low_cost",
        "high_cost",
        "capacity",
        "joules_bits",
        "scale_bits",
    ]
)
def spend(
    g, costs, ends, pieces, boards, scratch, out, size, runs, steps, k, m, low_cost, high_cost, capacity,
    joules_bits, scale_bits, turns, POWER: tl.constexpr, BLOCK: tl.constexpr, LIST: tl.constexpr, BITS: tl.constexpr,
    CROWD: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """All phases. `boards`, all 0 at first: fields, sums, counts of runs twice, bins a turn.

    No product may be fused with what is subtracted from it: w − fl(λc) is rounded as the reference rounds it.
    """
    part, programs = tl.program_id(0), tl.num_programs(0)
    joules, scale = joules_bits.to(tl.float64, bitcast=True), scale_bits.to(tl.float64, bitcast=True)
    board = boards.to(tl.pointer_type(tl.int64))
    sums = board + FIELDS
    counts = boards + 2 * FIELDS + 4 * DIGITS
    more = counts + tl.cdiv(runs, 16) * 16
    bins = (more + tl.cdiv(runs, 16) * 16).to(tl.pointer_type(tl.int64))
    of_sample, of_programs = tl.cdiv(m, 16) * 16, tl.cdiv(programs, 16) * 16
    bits_of, tops, at_of = scratch.to(tl.pointer_type(tl.int64)), scratch + 2 * of_sample, scratch + 3 * of_sample
    weights = scratch + 4 * of_sample
    few = (weights + of_sample).to(tl.pointer_type(tl.int64))
    few_at = weights + of_sample + 2 * CROWD
    befores = few_at + CROWD
    listed = (befores + of_programs).to(tl.pointer_type(tl.int64)) + part.to(tl.int64) * capacity
    pieces_from = pieces
    pieces += of_programs + 16
    from_piece, to_piece = tl.load(pieces_from + part), tl.load(pieces_from + part + 1) - 1
    first = tl.load(pieces + 3 * from_piece)
    first_run, last_run = tl.load(pieces + 3 * from_piece + 2), tl.load(pieces + 3 * to_piece + 2)

    draw(g, 0, costs, ends, runs, steps, size, m, tops, at_of, bits_of, part, programs, POWER, False)
    tl.debug_barrier()
    weigh_drawn(at_of, weights, m, costs, ends, runs, steps, scale, part, programs)
    meet(board, 1, programs)
    rank_by_cost(board, m, low_cost, high_cost, tops, weights, at_of, bits_of, part, programs)
    meet(board, 2, programs)
    low, low_at = tl.load(board + LOW, cache_modifier=".cg"), tl.load(board + LOW_AT, cache_modifier=".cg")
    high, high_at = tl.load(board + HIGH, cache_modifier=".cg"), tl.load(board + HIGH_AT, cache_modifier=".cg")
    high, high_at = tl.where(high_cost < 0, INFINITE, high), tl.where(high_cost < 0, -1, high_at)
    above, n = survey(
        g, 0, costs, pieces, pieces_from, board, boards, low, low_at, high, high_at, listed, capacity, counts, part,
        POWER, False, True, BLOCK,
    )  # fmt: skip
    tl.debug_barrier()
    if (n > capacity) | (low >= high):
        tl.atomic_or(board + UNSURE, 1)
    left = low * 0  # of the joules, for what lies between the marks
    energy = joules * 0.0
    sure = (n <= capacity) & (low < high)
    for turn in range(turns):
        here = bins + (turn << BITS)
        if sure:
            add_costs(
                g, costs, ends, runs, steps, size, low, low_at, high, high_at, n, listed, scale, here,
                POWER, LIST, BITS,
            )  # fmt: skip
        meet(board, 3 + turn, programs)
        if turn == 0:
            energy = energy_of(counts, runs, costs, LIST)
            left = ((joules - energy) * scale).to(tl.int64)
            sure = (tl.load(board + UNSURE, cache_modifier=".cg") == 0) & (
                tl.load(board + BAD, cache_modifier=".cg") == 0
            )
            sure = sure & (energy <= joules)
        each = tl.load(here + tl.arange(0, 1 << BITS), cache_modifier=".cg")
        reached = tl.cumsum(each, 0) <= left
        found = tl.sum(reached.to(tl.int32), 0).to(tl.int64)  # the bin in which the joules end
        sure = sure & (found < (1 << BITS))
        left -= tl.sum(tl.where(reached, each, 0), 0)
        shift = shift_of(low, low_at, high, high_at, size, BITS)
        least = high - ((found + 1) << shift) + 1
        low_at = tl.where(least > low, NOWHERE, low_at)
        low = tl.maximum(least, low)
        high_at = tl.where(found > 0, -1, high_at)
        high = high - (found << shift)
        sure = sure & (low < high)
    before = above
    if sure:
        before += settle_by_run(
            g, costs, ends, runs, steps, low, low_at, high, high_at, n, listed, board, few, few_at, more,
            first_run, last_run, POWER, LIST, CROWD,
        )  # fmt: skip
    tl.store(befores + part, before)
    meet(board, 3 + turns, programs)
    inside = tl.load(board + FEW, cache_modifier=".cg").to(tl.int32)
    sure = sure & (inside <= CROWD)
    if sure:
        first_not_paid(
            board, few, few_at, inside, energy + energy_of(more, runs, costs, LIST), joules, costs, ends, runs, steps,
            part, programs, CROWD,
        )  # fmt: skip
    meet(board, 4 + turns, programs)
    place = tl.load(board + PLACE, cache_modifier=".cg").to(tl.int32) - 1
    sure = sure & (place >= 0)
    if sure:
        kth, kth_at = tl.load(few + place, cache_modifier=".cg"), tl.load(few_at + place, cache_modifier=".cg") - 1
        begin = begun(befores, few, few_at, inside, kth, kth_at, first, part, LIST, CROWD)
        end = begun(befores, few, few_at, inside, kth, kth_at, NOWHERE, programs, LIST, CROWD)
        key = key_of(tl.load(g + kth_at + 1))
        cost = tl.load(costs + run_of(kth_at + 1, True, ends, runs, steps))
        bits = price_of(worth_of(key, POWER), cost)
        price = (bits + 1).to(tl.float64, bitcast=True)
        lowest = lowest_of(price, costs, runs, LIST)
        if part == 0:
            note(
                g, board, few, few_at, inside, kth, kth_at, bits, price, cost, low, high, more,
                costs, ends, runs, steps, POWER, CROWD,
            )  # fmt: skip
            tl.store(board + FOUND, end.to(tl.int64))
            tl.store(board + KEY, key.to(tl.int64))
            tl.store(board + COST, cost.to(tl.int64, bitcast=True))
            tl.store(board + LOWEST, lowest)
        if end <= k:
            emit(g, 0, costs, pieces, pieces_from, kth, kth_at.to(tl.int64), out, begin, part, POWER, False, BLOCK)
            tl.debug_barrier()
            after = tl.load(pieces + 3 * to_piece + 1)
            own_end = begun(befores, few, few_at, inside, kth, kth_at, after, part + 1, LIST, CROWD)
            add_up_own(g, costs, ends, runs, steps, price, lowest, out, begin, own_end, sums, POWER, ADDED)
    elif part == 0:
        tl.atomic_or(board + UNSURE, 1)
