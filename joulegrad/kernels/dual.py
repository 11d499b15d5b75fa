"""Both budgets: the reference's search for the price of energy, on the CPU, among the few entries that it can turn on.

A sample says between which two prices the energy of the best set crosses the budget, and how little its last entry may
be worth. One pass over the update gathers the entries that some price between the two can choose, and the reference's
search goes on among them; as it narrows, entries that every remaining price chooses, or none does, are settled. All
of this is checked, not guessed: what a price leaves of an entry falls as the price rises, in floating point too. Where
the sample misled, the search begins with all entries. Of an update that lies on a GPU only those entries are copied
(`afar.py`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad import exact
from joulegrad.kernels import cpu, passes, reference
from joulegrad.kernels.scores import NotFinite, Scores

__all__ = ["Bracket", "Here", "Source", "budgeted", "solved"]

SAMPLE, WANTED = 1 << 17, 1 << 12  # at most so many entries, enough to choose so many of them
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


class Bracket(NamedTuple):
    """Between which prices of energy to search, what an entry is worth at least there, and how many there may be."""

    low: float
    high: float
    entry_price: float
    room: int


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

    def gather(self, bracket: Bracket, joules: float) -> tuple[Ints, Doubles, Doubles]:
        """Places, worths and costs of the entries that a price of the bracket may choose, in order."""
        ...


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
    for bracket in _brackets(source, k, joules):
        search = _Search(source, bracket, k, joules)
        if search.certain:
            break
    low, high = 0.0, sys.float_info.max if search.binds else 0.0
    while (price := reference.between(low, high)) is not None:
        if search.is_over(price):
            low = price
        else:
            high = price
    sides, reduced = search.sides(low, high)
    dual = reference.dual(high, joules, k, reduced)
    there = scores.update.device
    sides = sides._replace(**{part: getattr(sides, part).to(there) for part in ("shared", "over", "under")})
    return reference.finish(scores, sides, k, joules, dual, largest, merge, search.ceiling)


def _brackets(source: Source, k: int, joules: float) -> Iterator[Bracket]:
    """What a sample says, with room for its error; with room for more; and, if it misled even so, everything."""
    d = source.size
    m = min(SAMPLE, WANTED * d // max(k, 1) + WANTED)
    sample = None if d <= 2 * m else _sample(source, m, k, joules)
    if sample is not None:
        yield from (_bracket(*sample, errors, d / m) for errors in (2.5, 7.0))
    yield Bracket(0.0, sys.float_info.max, 0.0, d)


def _sample(source: Source, m: int, k: int, joules: float) -> tuple[_Sample, float] | None:
    """Some entries that may be chosen, and the price below which there are none; None where they are too few."""
    d = source.size
    w, c = source.sample(m)
    useful = (c <= joules) & (w > 0)
    sample = _Sample(w[useful], c[useful], m * k / d, m * joules / d)
    eighth = _Sample(sample.w[::8], sample.c[::8], sample.places / 8, sample.budget / 8)
    near = eighth.price() / 4
    sample = sample.worth_more_than(near)
    return (sample, near) if min(len(sample.w), sample.places) >= 100 else None


def _bracket(sample: _Sample, near: float, errors: float, scale: float) -> Bracket:
    """Prices that are so many standard errors apart from the sample's, if they are not below `near`."""
    taken = sample.c[sample.w > sample.price() * sample.c]
    if len(taken) == 0:
        return Bracket(0.0, 2 * sample.top(), 0.0, 4096)
    error = errors * math.sqrt(float(np.square(taken).sum())) / float(taken.sum())
    spare = errors * math.sqrt(sample.places)
    low = sample.but(-spare, 1 + error).price() * 0.999
    high = sample.but(spare, 1 - error).price() * 1.001 or 2 * sample.top()
    left = np.sort(sample.w - high * sample.c)[::-1]
    last = int(sample.places + 2 * spare)
    entry_price = float(left[last]) if last < len(left) and left[last] > 0 else 0.0
    if low <= near:
        return Bracket(0.0, high, entry_price, 4096)
    kept = int((sample.w - low * sample.c >= entry_price).sum())
    return Bracket(low, high, entry_price, int(1.25 * kept * scale) + 4096)


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

    def but(self, places: float, budget: float) -> _Sample:
        """The same entries with so many places more, and a budget of so much."""
        return self._replace(places=self.places + places, budget=self.budget * budget)

    def top(self) -> float:
        """The price at which no entry is worth it."""
        return float((self.w / self.c).max(initial=0.0))

    def price(self) -> float:
        """The price of energy that keeps the budget, within a thousandth; 0 where none is needed."""
        high = self.top()
        low = high * 2.0**-32
        if not self._is_over(low):
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

    def __init__(self, source: Source, bracket: Bracket, k: int, joules: float) -> None:
        self.k, self.joules = k, joules
        self.places, self.w, self.c = source.gather(bracket, joules)
        dearest = min(joules, source.dearest)
        self.ceiling = max(float(self.w.max(initial=0.0)), bracket.low * dearest + bracket.entry_price)
        self.verdict = np.zeros(len(self.w), np.int8)
        self.reduced, self.chosen = np.empty(len(self.w)), np.empty(len(self.w), bool)  # room, used again and again
        self.loose = _Loose(np.arange(len(self.w)), self.w.copy(), self.c.copy())
        self.inside, self.paid = 0, Fraction(0)
        self.low, self.high = bracket.low, bracket.high
        over, within = self._best(self.low), self._best(self.high)
        self.binds = over.is_over
        missing = bracket.entry_price > 0 and (within.size < k or within.entry_price < bracket.entry_price)
        self.certain = not (missing or within.is_over or (self.low > 0 and not self.binds))
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

    def sides(self, low: float, high: float) -> tuple[reference.Sides, Tensor]:
        """The best sets at two prices by what they share, and what the second's entries are worth beyond the price."""
        over, under = self._best(low).chosen.copy(), self._best(high).chosen
        energy = self.paid + _total(self.loose.c[over & under])
        self.verdict[self.loose.at] = np.select([over & under, over, under], [1, 2, 3], -1)
        out = np.empty(len(self.w), np.int64), np.empty(len(self.w)), np.empty(len(self.w))
        both, second = passes.collect(self.verdict, self.places, self.w, self.c, high, *out)
        shared, worth, reduced = out[0][:both], out[1][:both], out[2][:second]
        alone = (torch.from_numpy(self.places[self.verdict == side]) for side in (2, 3))
        return reference.Sides(torch.from_numpy(shared), _total(worth), energy, *alone), torch.from_numpy(reduced)

    def _best(self, price: float) -> _Best:
        _, w, c = self.loose
        chosen, reduced = self.chosen[: len(w)], self.reduced[: len(w)]
        places, positive = self.k - self.inside, passes.reduce(w, c, price, reduced)
        threshold = 0.0 if positive <= places else math.inf
        if 0 < places < positive:
            threshold = np.partition(reduced, len(w) - places)[len(w) - places]
        n, energy, least = passes.mark(reduced, c, places, threshold, chosen)
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
        left, chosen = passes.settle(*self.loose, self.low, low_entry, self.high, high_entry, self.verdict, paid)
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

    def gather(self, bracket: Bracket, joules: float) -> tuple[Ints, Doubles, Doubles]:
        """Places, worths and costs of the entries that a price of the bracket may choose, in order."""
        ranked, (low, _, entry_price, room) = self.ranked, bracket

        def one(part: tuple[int, int], room: int) -> tuple[Ints, Doubles, tuple[int, bool]]:
            out = np.empty(room, np.int64), np.empty(room)
            if ranked.rounded is None:
                n, _, special = passes.survey(
                    ranked.g, *part, ranked.ends, ones, keys, never, never, ranked.power, *out
                )
                return *out, (n, special == 0)
            rounded = ranked.rounded
            least: Any = rounded.price(low), rounded.floor(entry_price), ranked.power, low, entry_price, joules
            arguments: Any = (*part, ranked.costs, rounded.halves, *least, *out)
            return *out, passes.gather_each(ranked.g, *arguments)

        if ranked.rounded is None:
            ones, never = np.ones(len(ranked.costs)), np.full(len(ranked.costs), passes.SPECIAL)
            threshold = np.maximum((low * ranked.costs + entry_price) * (1 - 1e-12), sys.float_info.min * 2.0**-52)
            keys = np.where(ranked.costs <= joules, passes.least_keys(threshold, ones, ranked.power), passes.SPECIAL)
        found = ranked.gathered(one, room)
        if not all(finite for _, _, (_, finite) in found):
            raise NotFinite
        places, worths = (np.concatenate([part[i] for part in found]) for i in (0, 1))
        if ranked.rounded is not None:
            return places, worths, ranked.costs[places]
        counts = np.diff(np.searchsorted(places, ranked.ends), prepend=0)
        return places, worths, np.repeat(ranked.costs, counts)
