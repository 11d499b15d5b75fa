"""Both budgets: the reference's search for the price of energy, on the CPU, among the few entries that it can turn on.

A sample says between which two prices the energy of the best set crosses the budget, and how little its last entry may
be worth. One pass over the update keeps the entries that some price between the two can choose (`passes.sift`), and a
sample of these, which is denser, says it again, closer. A pass over what was kept (`auction.judge`) settles the entries
that every price left chooses and those that none does; the reference's search goes on among the others, and settles
more of them as it narrows. A last pass (`auction.collect`) writes down what was chosen, and adds up the certificate.

All of this is checked, not guessed: what a price leaves of an entry falls as the price rises, in floating point too.
Where the sample misled, the search begins with all entries. Of an update that lies on a GPU only what is kept is copied
(`afar.py`).

The first pass reads 4 bytes an entry (6 with a cost an entry) and writes 8 (10) for each that it keeps; the others read
and write 46 for each of these, and 8 more for each that is chosen.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad import digits, exact
from joulegrad.kernels import auction, cpu, passes, reference, threads
from joulegrad.kernels.scores import NotFinite, Scores

__all__ = ["Bracket", "Here", "Source", "budgeted", "solved"]

OVER, UNDER = 3, 4  # verdicts on what only one side of the budget chooses
SAMPLE, WANTED = 1 << 16, 1 << 12  # at most so many entries, enough to choose so many of them
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


class Bracket(NamedTuple):
    """Between which prices of energy to search, and what an entry leaves there if any chooses it, or every one."""

    low: float
    high: float
    least: float  # at `low`, if some price chooses it
    sure: float  # more than that at `high`, if every one does
    room: int  # for the entries that some price chooses


EVERYTHING = Bracket(0.0, sys.float_info.max, 0.0, math.inf, 0)


class Source(Protocol):
    """What the search asks of an update, wherever that is."""

    @property
    def size(self) -> int:
        """How many entries there are."""
        ...

    @property
    def dearest(self) -> float:
        """What the dearest of them costs."""
        ...

    def sample(self, m: int) -> tuple[Doubles, Doubles]:
        """What m of the entries are worth and cost."""
        ...

    def kept(self, bracket: Bracket, joules: float) -> cpu.Ranked | None:
        """The entries that a price of the bracket may choose, and perhaps more; None where they are too many."""
        ...

    def densest(self, chosen: Tensor, room: float, price: float) -> Tensor | None:
        """`reference.densest`, if it is quickly found knowing the price of energy."""
        ...


class Here(NamedTuple):
    """An update on the CPU."""

    ranked: cpu.Ranked

    @property
    def size(self) -> int:
        """How many entries there are."""
        return self.ranked.size

    @property
    def dearest(self) -> float:
        """What the dearest of them costs."""
        return float(self.ranked.costs.max())

    def sample(self, m: int) -> tuple[Doubles, Doubles]:
        """One from each of m equal runs."""
        return self.ranked.sample(m)

    def kept(self, bracket: Bracket, joules: float) -> cpu.Ranked | None:
        """By one pass over the update; everything needs none."""
        ranked = self.ranked
        if bracket == EVERYTHING:
            return ranked
        if ranked.rounded is not None:
            return ranked.sifted_each(*ranked.rounded.line(bracket.low, bracket.least), bracket.room)
        left = np.maximum((bracket.low * ranked.costs + bracket.least) * (1 - 1e-12), sys.float_info.min * 2.0**-52)
        keys = passes.least_keys(left, np.ones(len(left)), ranked.power)
        return ranked.sifted_by(np.where(ranked.costs <= joules, keys, passes.SPECIAL), bracket.room)

    def densest(self, chosen: Tensor, room: float, price: float) -> Tensor | None:
        """Among the entries not far below a price of energy; None where too few or too many lie there."""
        ranked, some = self.ranked, chosen.numpy()

        def one(part: cpu.Part) -> tuple[Ints, Doubles]:
            found, density = np.empty(len(part.g), np.int64), np.empty(len(part.g))
            costs = part.ends, ranked.costs, ranked.power, room
            n = auction.others(part.g, part.places, some, *costs, found, density)
            return found[:n], density[:n]

        for share in (0.95, 0.7):
            few = ranked.sifted(share * price, 2 * len(some) + 4 * reference.REACH)
            if few is None:
                return None
            found, density = (np.concatenate(x) for x in zip(*threads.each(one, few.parts), strict=True))
            above = density > share * price
            found, density = found[above], density[above]
            if len(found) >= reference.REACH:
                order = np.lexsort((found, -density))[: reference.REACH]
                return torch.from_numpy(found[order])
        return None


def budgeted(scores: Scores, k: int, joules: float) -> reference.Budgeted:
    """The most worth under both budgets, with its certificate: the reference's, to the bit."""
    return solved(Here(cpu.Ranked.of(scores)), scores, k, joules, cpu.largest, cpu.merge)


def solved(
    source: Source,
    scores: Scores,
    k: int,
    joules: float,
    largest: Callable[[Scores, int], Tensor],
    merge: Callable[[Tensor, Tensor], Tensor],
) -> reference.Budgeted:
    """The same by way of a source, and of the kernels that serve where the update is."""
    for among, bracket in _brackets(source, k, joules):
        search = _Search(among, bracket, source.dearest, k, joules)
        if search.certain:
            break
    low, high = 0.0, sys.float_info.max if search.binds else 0.0
    while (price := reference.between(low, high)) is not None:
        if search.is_over(price):
            low = price
        else:
            high = price
    sides, dual = search.sides(low, high)

    there = scores.update.device
    sides = sides._replace(**{part: getattr(sides, part).to(there) for part in ("shared", "over", "under")})

    def beside(scores: Scores, chosen: Tensor, room: float) -> Tensor:
        found = source.densest(chosen, room, dual.energy_price)
        return reference.densest(scores, chosen, room, largest) if found is None else found

    return reference.finish(scores, sides, k, joules, dual, largest, merge, search.ceiling, beside)


def _brackets(source: Source, k: int, joules: float) -> Iterator[tuple[cpu.Ranked, Bracket]]:
    """What a sample says of the entries that may be chosen, and one of these alone; if they mislead, everything."""
    for errors in (3.0, 10.0):
        wide = _bracket(source, k, joules, errors)
        few = None if wide is None else source.kept(wide, joules)
        if wide is not None and few is not None:
            close = _bracket(Here(few), k, joules, 3.0)
            if close is not None:
                low, least = max(wide.low, close.low), max(wide.least, close.least)
                yield few, close._replace(low=low, least=least, sure=max(close.sure, least))
            yield few, wide
    everything = source.kept(EVERYTHING, joules)
    if everything is not None:
        yield everything, EVERYTHING


def _bracket(source: Source, k: int, joules: float, errors: float) -> Bracket | None:
    """By a sample, so many standard errors wide; None where it would hold too few that are chosen."""
    d = source.size
    m = min(SAMPLE, WANTED * d // max(k, 1) + WANTED)
    if d <= 2 * m:
        return None
    w, c = source.sample(m)
    useful = (c <= joules) & (w > 0)
    sample = _Sample(w[useful], c[useful], m * k / d, m * joules / d)
    if min(len(sample.w), sample.places) < 100:
        return None
    eighth = _Sample(sample.w[::8], sample.c[::8], sample.places / 8, sample.budget / 8)
    near = eighth.price() / 4
    low, high, least, sure, kept = _prices(sample.worth_more_than(near), errors)
    if low <= near:
        low, high, least, sure, kept = _prices(sample, errors)
    return Bracket(low, high, least, sure, int(1.25 * kept * d / m) + 4096)


def _prices(sample: _Sample, errors: float) -> Bracket:
    """The bracket, and how many of the sample it keeps.

    A sample errs in how many entries are chosen, and so in their energy too; in what they cost on average it errs less.
    """
    price = sample.price()
    taken = sample.c[sample.w - price * sample.c >= sample.left(price, int(sample.places), 0.0)]
    error = errors / math.sqrt(max(len(taken), 1))
    apart = error * (float(taken.std() / taken.mean()) if len(taken) else 1.0)
    shares = 1 - error, 1 + error
    low = min(sample.times(share, share * (1 + apart)).price(price) for share in shares) * 0.9999
    high = max(sample.times(share, share * (1 - apart)).price(price) for share in shares) * 1.0001
    least = sample.left(high, int(sample.places * (1 + 1.5 * error)) + 1, 0.0)
    sure = max(least, sample.left(low, int(sample.places * (1 - 1.5 * error)), math.inf))
    return Bracket(low, high, least, sure, int((sample.w - low * sample.c >= least).sum()))


class _Sample(NamedTuple):
    """Worths and costs of some entries, and their share of both budgets."""

    w: Doubles
    c: Doubles
    places: float
    budget: float

    def worth_more_than(self, price: float) -> _Sample:
        """Only the entries that are worth more than a price of energy."""
        some = self.w > price * self.c
        return self._replace(w=self.w[some], c=self.c[some])

    def times(self, places: float, budget: float) -> _Sample:
        """The same entries with so many times the places, and so many times the budget."""
        return self._replace(places=self.places * places, budget=self.budget * budget)

    def top(self) -> float:
        """The price at which no entry is worth it."""
        return float((self.w / self.c).max(initial=0.0))

    def left(self, price: float, places: int, otherwise: float) -> float:
        """What the last of so many entries leaves at a price; otherwise something else."""
        left = self.w - price * self.c
        if not 0 < places < len(left):
            return 0.0 if places >= len(left) else otherwise
        return max(float(np.partition(left, len(left) - places)[len(left) - places]), 0.0)

    def price(self, near: float = 0.0) -> float:
        """The price of energy that keeps the budget, within a thousandth; 0 where none is needed."""
        high = self.top()
        low = high * 2.0**-32
        if near > 0 and self._is_over(near / 1.25) and not self._is_over(near * 1.25):
            low, high = near / 1.25, near * 1.25
        elif not self._is_over(low):
            return 0.0
        while high > 1.001 * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._is_over(middle) else (low, middle)
        return high

    def _is_over(self, price: float) -> bool:
        reduced, n = self.w - price * self.c, int(self.places)
        least = 0.0
        if 0 < n < len(reduced):
            least = max(np.partition(reduced, len(reduced) - n)[len(reduced) - n], 0.0)
        return n > 0 and float(self.c[(reduced >= least) & (reduced > 0)].sum()) > self.budget


class _Search:
    """The best sets at prices of a bracket, among the entries that can be in them.

    certain  the bracket holds: the budget is crossed inside, and no entry is missing
    binds    even at the bracket's low end the best set is over the budget
    ceiling  no entry that the budget pays is worth more
    """

    def __init__(self, ranked: cpu.Ranked, bracket: Bracket, dearest: float, k: int, joules: float) -> None:
        self.ranked, self.k, self.joules = ranked, k, joules
        self.low, self.high, least, _, _ = bracket
        table = np.zeros(digits.TABLE, np.int64)
        self.judged = _judged(ranked, bracket, joules, table)
        self.inside, self.paid = sum(part.sure for part in self.judged), exact.read(table)
        self.ceiling = max(self.low * min(joules, dearest) + least, *(part.top for part in self.judged))
        self.w, self.c = (np.concatenate([part[i] for part in self.judged]) for i in (0, 1))
        self.verdict = np.full(len(self.w), auction.LOOSE, np.uint8)
        self.reduced, self.chosen = np.empty(len(self.w)), np.empty(len(self.w), bool)  # room, used again and again
        self.loose = _Loose(np.arange(len(self.w)), self.w.copy(), self.c.copy())
        over, within = self._best(self.low), self._best(self.high)
        self.binds = over.is_over
        crowded = self.inside > 0 and sum(part.above for part in self.judged) >= k
        missing = least > 0 and (within.size < k or within.entry_price < least)
        self.certain = not (crowded or missing or within.is_over or (self.low > 0 and not self.binds))
        self.low_entry, self.high_entry = over.entry_price, within.entry_price
        if self.certain and self.binds:
            self._settle()

    def is_over(self, price: float) -> bool:
        """Whether the best set at this price costs more than the budget; narrows the bracket to it."""
        if price <= self.low:
            return True
        if price >= self.high:
            return False
        best = self._best(price)
        if best.is_over:
            self.low, self.low_entry = price, best.entry_price
        else:
            self.high, self.high_entry = price, best.entry_price
        self._settle()
        return best.is_over

    def sides(self, low: float, high: float) -> tuple[reference.Sides, reference.Dual]:
        """The best sets at two prices by what they share, and the bound that the second one gives."""
        over, under = self._best(low).chosen.copy(), self._best(high).chosen
        energy = self.paid + _total(self.loose.c[over & under])
        self.verdict[self.loose.at] = np.select([over & under, over, under], [auction.SURE, OVER, UNDER], auction.OUT)
        places = np.concatenate(
            [part.of(judged.at) for part, judged in zip(self.ranked.parts, self.judged, strict=True)]
        )
        alone = [torch.from_numpy(places[self.verdict == side]) for side in (OVER, UNDER)]
        only = self.verdict == UNDER
        left = self.w[only] - high * self.c[only]
        shared, worth, reduced, least = self._collected(high)
        least, size = min(least, left.min(initial=math.inf)), len(shared) + len(left)
        bound = high * self.joules + float(reduced + _total(left))
        entry_price = least if 0 < size == self.k else 0.0
        return reference.Sides(shared, worth, energy, *alone), reference.Dual(bound, high, entry_price)

    def _collected(self, price: float) -> tuple[Tensor, Fraction, Fraction, float]:
        """The entries that both sides share, what they are worth, what a price leaves of them, and the least left."""
        stops = np.cumsum([0, *(len(part.at) for part in self.judged)])
        counts = []
        for part, (first, last) in zip(self.judged, pairwise(stops), strict=True):
            also = part.at[self.verdict[first:last] == auction.SURE]
            part.verdict[also] = auction.SURE
            counts.append(part.sure + len(also))
        ends = np.cumsum([0, *counts])
        out, tables = np.empty(ends[-1], np.int64), np.zeros((2, len(counts), *digits.TABLE), np.int64)

        def one(part: cpu.Part, judged: _Judged, out: Ints, worth: Ints, reduced: Ints) -> float:
            entries = part.g, judged.costs, judged.verdict, part.places, part.first, self.ranked.power
            return auction.collect(*entries, price, out, worth, reduced)

        runs = [out[a:b] for a, b in pairwise(ends)]
        least = threads.each(one, self.ranked.parts, self.judged, runs, list(tables[0]), list(tables[1]))
        worth, reduced = (exact.read(table.sum(0)) for table in tables)
        return torch.from_numpy(out), worth, reduced, min(least)

    def _best(self, price: float) -> _Best:
        _, w, c = self.loose
        chosen, reduced = self.chosen[: len(w)], self.reduced[: len(w)]
        places, positive = self.k - self.inside, auction.reduce(w, c, price, reduced)
        threshold = 0.0 if positive <= places else math.inf
        if 0 < places < positive:
            threshold = np.partition(reduced, len(w) - places)[len(w) - places]
        n, energy, least = auction.mark(reduced, c, places, threshold, chosen)
        about = float(self.paid) + energy
        if abs(about - self.joules) > 1e-9 * (about + self.joules):
            is_over = about > self.joules
        else:
            is_over = float(self.paid + _total(c[chosen])) > self.joules
        return _Best(chosen, self.inside + n, is_over, least if 0 < n == places else 0.0)

    def _settle(self) -> None:
        """Set aside the loose entries that no price between low and high is in doubt about."""
        at, w, c = self.loose
        low_entry = self.low_entry if self.inside < self.k else math.inf
        high_entry = self.high_entry if self.inside < self.k else math.inf
        paid = np.empty(min(len(w), self.k - self.inside))
        left, chosen = auction.settle(*self.loose, self.low, low_entry, self.high, high_entry, self.verdict, paid)
        self.inside += chosen
        self.paid += _total(paid[:chosen])
        self.loose = _Loose(at[:left], w[:left], c[:left])


class _Loose(NamedTuple):
    """The entries that are still in doubt: their places among those gathered, worths and costs."""

    at: Ints
    w: Doubles
    c: Doubles


def _total(x: Doubles) -> Fraction:
    return exact.total(torch.from_numpy(np.ascontiguousarray(x)))


class _Best(NamedTuple):
    """The best set at a price."""

    chosen: NDArray[np.bool_]  # of the loose entries
    size: int  # with those that are settled
    is_over: bool
    entry_price: float


class _Judged(NamedTuple):
    """A part of the entries: which are loose, and how many every price of the bracket chooses."""

    w: Doubles  # of those that are loose
    c: Doubles
    at: Ints  # where they are in the part
    costs: Doubles  # of all entries of the part
    verdict: NDArray[np.uint8]  # on each of them
    above: int  # how many leave more than enough to be chosen at every price, at the lowest
    sure: int
    top: float  # the largest worth


def _judged(ranked: cpu.Ranked, bracket: Bracket, joules: float, table: Ints) -> list[_Judged]:
    """Judge the entries of each part; the costs of those that are sure are added to a table of `digits`."""
    low, high, least, sure, _ = bracket
    tables = np.zeros((len(ranked.parts), *digits.TABLE), np.int64)

    def one(part: cpu.Part, table: Ints) -> _Judged | None:
        if not passes.all_finite(part.g, 0, len(part.g)):
            return None
        costs, verdict = np.empty(len(part.g)), np.empty(len(part.g), np.uint8)
        at = np.empty(len(part.g), np.int64)
        auction.costs_of(part.ends, ranked.costs, part.places, part.first, costs)
        prices = ranked.power, low, high, least, sure, joules
        above, chosen, n, top = auction.judge(part.g, costs, *prices, verdict, at, table)
        at = at[:n]
        w = np.abs(part.g[at].astype(np.float64))
        return _Judged(w * w if ranked.power == 2 else w, costs[at], at, costs, verdict, above, chosen, top)

    judged = threads.each(one, ranked.parts, list(tables))
    if any(part is None for part in judged):
        raise NotFinite
    table += tables.sum(0)
    return judged
