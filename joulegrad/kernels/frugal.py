"""Both budgets on a GPU where the joules bind and the count does not: the host's part, one wait, and no search.

The program of `spending.py` finds the entries that the joules pay, in the order of worth for cost, and adds up what
they are worth. Here it is proved, from counts, that they are the reference's: `reference.finish` rounds the two sides
of the budget, and here these are the entries worth more than λc, and the same with those that are worth just as much.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from joulegrad.cost import Prices
from joulegrad.kernels import gpu, phases, reference, spending
from joulegrad.kernels.scores import NotFinite, Scores

__all__ = ["budgeted"]

ADDED = 256  # entries whose worth is added up at once
UNIT, FINE = 15, 30  # bits of the dearest cost, in the sample and in bins
SURE = 1e-290  # prices below, and above its reciprocal, have too few bits


def budgeted(scores: Scores, plan: gpu.Plan, k: int, joules: float) -> reference.Budgeted | None:
    """The most worth under both budgets, with its certificate; None where this is not the way to it."""
    costs = _Costs.of(scores, plan)
    if not gpu.FUSED or costs.dearest > joules or not SURE < costs.cheapest <= costs.dearest < 1 / SURE:
        return None
    update, d = scores.update, len(scores.update)
    m = min(d, gpu.SAMPLE)
    wanted, skew = joules * m / d, costs.mean_square / costs.mean
    slack = gpu.SPARE * skew + (0 if m == d else gpu.ERRORS * math.sqrt(wanted * skew))
    if wanted - costs.mean * m > slack:
        return None
    unit, known = 2**UNIT / costs.dearest, wanted > gpu.CERTAIN * skew
    high = max(int((wanted - slack) * unit), 0) if known else -1
    turns = 1 if known else 2  # without a mark above, bins are too wide at first
    given = {"POWER": scores.power, "BLOCK": gpu.TILE, "LIST": gpu.LIST, "BITS": gpu.BITS, "CROWD": gpu.CROWD}
    given["ADDED"] = ADDED
    like = update, *plan.likes, *[0] * 8, 1 << 62, 1 << 62, 0
    pieces, parts, size = plan.pieces(gpu.at_once(spending.spend, like, given, gpu.PLAIN))
    capacity = min(-(-int(size * (2 * slack / costs.mean + 2) * gpu.SKEW / m + gpu.ROOM) // 16) * 16, size)
    runs = -(-plan.runs // 16) * 16
    first = 2 * phases.FIELDS.value + 4 * spending.DIGITS.value
    boards = torch.zeros(first + 2 * runs + (turns << gpu.BITS + 1), dtype=torch.int32, device=update.device)
    words = 5 * (-(-m // 16) * 16) + 3 * gpu.CROWD + -(-parts // 16) * 16 + 2 * parts * capacity
    scratch = torch.empty(words, dtype=torch.int32, device=update.device)
    out = torch.empty(k, dtype=torch.int64, device=update.device)
    gpu.launch(
        spending.spend, (parts, 1), gpu.SELECT_WARPS,
        update, plan.costs, plan.ends, pieces, boards, scratch, out, d, plan.runs, plan.steps, k, m,
        min(int((wanted + slack) * unit), 2**31 - 1), high, capacity,
        _bits(joules), _bits(2**FINE / costs.dearest), turns, **given, options=gpu.PLAIN,
    )  # fmt: skip
    found = boards[: first + 2 * runs].cpu()
    fields = found[:first].view(torch.int64).tolist()
    if fields[phases.BAD.value]:
        raise NotFinite
    if fields[spending.UNSURE.value] or fields[spending.FOUND.value] > k:
        return None
    counts = found[first:].view(2, runs).sum(0).tolist()
    return _Found(fields, counts[: plan.runs], costs, scores.power).proved(out, k, joules)


class _Costs:
    """What the runs cost, on the host: kept as long as the prices are."""

    def __init__(self, plan: gpu.Plan) -> None:
        self.each = [float(c) for c in plan.paid]
        self.exactly = [Fraction(c) for c in self.each]
        sizes = [b - a for a, b in zip([0, *plan.stops.tolist()], plan.stops.tolist(), strict=False)]
        d = sum(sizes)
        self.cheapest, self.dearest = min(self.each), max(self.each)
        self.mean = sum(n * c for n, c in zip(sizes, self.each, strict=True)) / d
        self.mean_square = sum(n * c * c for n, c in zip(sizes, self.each, strict=True)) / d

    @classmethod
    def of(cls, scores: Scores, plan: gpu.Plan) -> _Costs:
        """Of these prices."""
        prices = reference.priced(scores)
        if prices not in _KEPT:
            _KEPT[prices] = cls(plan)
        return _KEPT[prices]


_KEPT: WeakKeyDictionary[Prices, _Costs] = WeakKeyDictionary()


class _Found:
    """What the GPU counted and added up, and what follows from it."""

    def __init__(self, fields: Sequence[int], counts: Sequence[int], costs: _Costs, power: int) -> None:
        self.fields, self.counts, self.costs, self.power = fields, counts, costs, power
        self.paid, self.tied = fields[spending.FOUND.value], fields[spending.TIED.value]
        self.tied_paid = fields[spending.TIED_PAID.value]
        self.lowest = fields[spending.LOWEST.value]

    def proved(self, out: Tensor, k: int, joules: float) -> reference.Budgeted | None:
        """The set and its certificate, if it is the reference's: as `reference.finish` has it, step by step."""
        cost = _double(self.fields[spending.COST.value])
        worth = _worth(self.fields[spending.KEY.value], self.power)
        most = _worth(self.fields[phases.LARGEST.value], self.power)
        price = math.nextafter(_largest_price(worth, cost), math.inf) if worth else 0.0
        if not SURE < price < 1 / SURE or sum(self.counts) != self.paid:
            return None
        spent = sum((n * c for n, c in zip(self.counts, self.costs.exactly, strict=True) if n), Fraction(0))
        shared = spent - self.tied_paid * Fraction(cost)  # of those that every price up to the next one chooses
        fits = (
            self.paid - self.tied_paid + self.tied <= k
            and float(shared) <= joules < float(shared + self.tied * Fraction(cost))
            and self.tied_paid == _that_fit(self.tied, cost, shared, joules)
            and not (self.paid < k and joules - float(spent) >= self.costs.cheapest)  # nothing else can be paid
        )
        highest = (_bits(most) >> 52) - self.lowest + 53
        if not fits or highest > 32 * spending.DIGITS.value:
            return None
        value, beyond = float(self.sum(0)), float(self.sum(1))
        if value < most:  # one entry alone may be worth more
            return None
        bound = price * joules + beyond
        return reference.Budgeted(out[: self.paid], value, max(bound, value), price, 0.0)

    def sum(self, which: int) -> Fraction:
        """One of the two sums, exactly."""
        several, first = spending.DIGITS.value, phases.FIELDS.value
        digits = self.fields[first + which * several :][:several]
        whole: Fraction = sum(n << (32 * i) for i, n in enumerate(digits)) * Fraction(2) ** (self.lowest - 1075)
        return whole


def _that_fit(tied: int, cost: float, shared: Fraction, joules: float) -> int:
    """How many of equally dear entries `reference._mixture` takes beside what is shared."""
    left, total, n = joules - float(shared), cost, 0
    while n < tied and total <= left:  # a running sum in float64, as torch.cumsum adds one
        n, total = n + 1, total + cost
    while n and float(shared + n * Fraction(cost)) > joules:
        n -= 1
    return n


def _largest_price(worth: float, cost: float) -> float:
    """The largest float λ at which an entry is worth more than fl(λc)."""
    price = worth / cost
    while price * cost >= worth:
        price = math.nextafter(price, 0.0)
    while math.nextafter(price, math.inf) * cost < worth:
        price = math.nextafter(price, math.inf)
    return price


def _worth(key: int, power: int) -> float:
    w: float = struct.unpack("<f", struct.pack("<i", key))[0]
    return w * w if power == 2 else w


def _bits(x: float) -> int:
    found: int = struct.unpack("<q", struct.pack("<d", x))[0]
    return found


def _double(bits: int) -> float:
    found: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return found
