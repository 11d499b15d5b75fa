"""Selection on the CPU: about two readings of the update, whatever k.

To find the k largest of d scores, a sample of them says between which two the k-th largest must lie. A first pass
(`passes.survey`) counts what lies above the upper one and gathers the few scores between the two, among which the
k-th largest is found; a second (`passes.emit`) writes down the entries that reach it. If the sample misled, the first
pass is made once more with a bracket that cannot, so the answer is always the reference's.

Each pass reads 4 bytes an entry (6 with a cost an entry); the second writes 8 for each entry that is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad.cost import Prices
from joulegrad.kernels import codes, passes, threads
from joulegrad.kernels.scores import NotFinite, Scores
from joulegrad.sparse import Codes

__all__ = ["all_finite", "at_least", "largest", "levels", "merge", "scales", "values_of"]

SAMPLE = 1 << 15  # entries at most
SAMPLED = 16  # of so many entries one, but of a small update more: a sixteenth of it is read soon enough
FEWEST = 1 << 11
FEW = 1 << 17  # entries; calling two passes would take longer than they do
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


def all_finite(update: Tensor) -> bool:
    """Whether there is no NaN and no infinity."""
    g = _floats(update)
    return all(threads.each(lambda part: passes.all_finite(g, *part), threads.chunks(len(g))))


def largest(scores: Scores, k: int) -> Tensor:
    """Indices of the min(k, d) largest scores, ties to the lower index."""
    ranked = Ranked.of(scores)
    if k == 0 or k >= ranked.size:
        if not all_finite(scores.update):
            raise NotFinite
        return torch.arange(min(k, ranked.size))
    return torch.from_numpy(_largest(ranked, k))


def at_least(scores: Scores, threshold: float, k: int | None = None) -> Tensor:
    """Indices of all scores ≥ threshold; where they are more than k, the k largest."""
    if k == 0:
        return largest(scores, k)
    ranked = Ranked.of(scores)
    found = ranked.survey(threshold, threshold, 0)
    if k is None or found.above + found.level <= k:
        counts = [level + above for _, level, above in found.counts]
        return torch.from_numpy(ranked.emit(threshold, ranked.size, counts))
    return torch.from_numpy(_largest(ranked, k))


def merge(a: Tensor, b: Tensor) -> Tensor:
    """Two increasing sequences as one."""
    return torch.from_numpy(passes.merge(a.numpy(), b.numpy())) if len(b) else a


def scales(values: Tensor, counts: Tensor, most: int, *, mean: bool) -> Tensor:
    """A layer's scale: its mean magnitude, or its largest over the outermost level."""
    out = np.empty(len(counts), np.float32)
    codes.scales_of(_floats(values), counts.numpy(), most, mean, out)
    return torch.from_numpy(out)


def levels(values: Tensor, counts: Tensor, most: int, scales: Tensor, dither: Tensor | None) -> Tensor:
    """The level nearest to a value, or with dither one of the two around it."""
    out = np.empty(len(values), np.uint8)
    arguments = (_floats(values), counts.numpy(), most, scales.numpy())
    if dither is None:
        codes.nearest_levels(*arguments, out)
    else:
        codes.drawn_levels(*arguments, dither.numpy(), out)
    return torch.from_numpy(out)


def values_of(coded: Codes) -> Tensor:
    """What codes stand for."""
    out = np.empty(len(coded.levels), np.float32)
    codes.values_of(coded.levels.numpy(), coded.counts.numpy(), 2**coded.bits - 1, coded.scales.numpy(), out)
    return torch.from_numpy(out)


class Survey(NamedTuple):
    """What lies where, a part for each thread: the band between two scores, on the upper one, and above it."""

    places: list[Ints]
    scores: list[Doubles]
    counts: list[tuple[int, int, int]]  # in the band, on the upper score, above

    @property
    def band(self) -> int:
        return sum(band for band, _, _ in self.counts)

    @property
    def level(self) -> int:
        return sum(level for _, level, _ in self.counts)

    @property
    def above(self) -> int:
        return sum(above for _, _, above in self.counts)


class Ranked(NamedTuple):
    """An update and its costs as compiled code wants them."""

    g: NDArray[np.float32]
    ends: Ints  # of segments; none where there is a cost an entry
    costs: Doubles  # one a segment, or one an entry
    power: int
    rounded: Rounded | None  # costs in two bytes, where there is one an entry

    @classmethod
    def of(cls, scores: Scores) -> Ranked:
        g, prices = _floats(scores.update), scores.prices
        if prices is None:
            return cls(g, np.array([len(g)]), np.ones(1), scores.power, None)
        if prices.piecewise:
            return cls(g, prices.layout.ends.numpy(), prices.joules.numpy(), scores.power, None)
        return cls(g, np.empty(0, np.int64), prices.joules.numpy(), scores.power, _rounded(prices, scores.power))

    @property
    def size(self) -> int:
        return len(self.g)

    def sample(self, m: int) -> tuple[Doubles, Doubles]:
        """What m of the entries are worth and cost, one from each of m equal runs."""
        worths, costs = np.empty(m), np.empty(m)
        passes.sample(self.g, self.ends, self.costs, self.power, worths, costs)
        return worths, costs

    def keys(self, threshold: float) -> NDArray[np.int32]:
        """The least keys that reach a score, one a segment; none where there is a cost an entry."""
        costs = self.costs if len(self.ends) else self.costs[:0]
        return passes.least_keys(np.full(len(costs), threshold), costs, self.power)

    def keys_above(self, threshold: float) -> NDArray[np.int32]:
        """The least keys that exceed a score; only NaN and infinity exceed an infinite one."""
        if threshold == math.inf:
            return np.full(len(self.ends), passes.SPECIAL)
        return self.keys(np.nextafter(threshold, math.inf))

    def survey(self, lower: float, upper: float, room: int) -> Survey:
        """What lies in lower < s < upper, at s = upper, and above; `room` is what the band is expected to have."""
        keys, beyond = self.keys(upper), self.keys_above(upper)
        over = self.keys_above(lower) if lower < upper else keys

        def one(part: tuple[int, int], room: int) -> tuple[Ints, Doubles, tuple[int, int, int]]:
            out = np.empty(room, np.int64), np.empty(room)
            if self.rounded is None:
                return *out, passes.survey(self.g, *part, self.ends, self.costs, over, keys, beyond, self.power, *out)
            halves, price = self.rounded.halves, self.rounded.price(min(lower, upper))
            return *out, passes.survey_each(self.g, *part, self.costs, halves, price, lower, upper, self.power, *out)

        return Survey(*map(list, zip(*self.gathered(one, room), strict=True)))

    def gathered(self, one: Callable[[tuple[int, int], int], tuple[Ints, Doubles, Any]], room: int) -> list[Any]:
        """What a pass gathers in each part, with its counts, the first of which says how many it would gather."""
        parts = threads.chunks(self.size)
        found = threads.each(one, parts, [min(room, last - first) for first, last in parts])
        if any(counts[0] > len(places) for places, _, counts in found):
            found = threads.each(one, parts, [counts[0] for _, _, counts in found])
        return [(places[: counts[0]], scores[: counts[0]], counts) for places, scores, counts in found]

    def emit(self, threshold: float, last_tie: int, counts: list[int]) -> Ints:
        """Places of the scores above the threshold, and of those on it up to place `last_tie`; a count a part."""
        parts, ends = threads.chunks(self.size), np.cumsum([0, *counts])
        out = np.empty(ends[-1], np.int64)
        ties, above = self.keys(threshold), self.keys_above(threshold)

        def some(first: int, last: int, keys: NDArray[np.int32], threshold: float, out: Ints) -> tuple[int, bool]:
            if self.rounded is None:
                return passes.emit(self.g, first, last, self.ends, keys, out)
            halves, price = self.rounded.halves, self.rounded.price(threshold)
            return passes.emit_each(self.g, first, last, self.costs, halves, price, threshold, self.power, out)

        def one(part: tuple[int, int], out: Ints) -> bool:
            first, last = part
            middle = min(max(last_tie + 1, first), last)
            n, finite = some(first, middle, ties, threshold, out)
            return finite and some(middle, last, above, float(np.nextafter(threshold, math.inf)), out[n:])[1]

        if not all(threads.each(one, parts, [out[a:b] for a, b in pairwise(ends)])):
            raise NotFinite
        return out

    def ties(self, level: float, n: int) -> tuple[int, list[int]] | None:
        """The place of the n-th entry whose score is `level`, and how many of the n each part has."""
        keys, beyond, place, counts = self.keys(level), self.keys_above(level), -1, []
        for first, last in threads.chunks(self.size):
            before = n
            if place < 0:
                arguments = (self.ends, self.costs, keys, beyond, self.power, level, n)
                place, n = passes.nth_equal(self.g, first, last, *arguments)
            counts.append(before - n)
        return None if place < 0 else (place, counts)


def _largest(ranked: Ranked, k: int) -> Ints:
    d = ranked.size
    m = min(d, SAMPLE, max(d // SAMPLED, FEWEST))
    worths, costs = ranked.sample(m)
    sample, rank = np.sort(worths / costs)[::-1], (m * k - 1) // d
    slack = 0 if m == d else int(4 * math.sqrt(m * (k / d) * (1 - k / d))) + 8
    lower = sample[rank + slack] if rank + slack < m else -1.0
    upper = sample[rank - slack] if rank >= slack else math.inf
    room = 3 * slack * d // m + 1024
    if d <= FEW and (chosen := _among_few(ranked, k, lower, k + room)) is not None:
        return chosen
    while True:
        found = ranked.survey(lower, upper, room)
        above, upto_level = found.above, found.above + found.level
        if above >= k:
            if upper == math.inf:
                raise NotFinite
            lower, upper = upper, math.inf
        elif upto_level >= k:
            place, ties = ranked.ties(upper, k - above) or (-1, [])
            return ranked.emit(upper, place, [n[2] + t for n, t in zip(found.counts, ties, strict=True)])
        elif upto_level + found.band >= k:
            return _within(ranked, found, k - upto_level)
        elif (tied := ranked.ties(lower, k - upto_level - found.band)) is not None:
            place, ties = tied
            return ranked.emit(lower, place, [sum(n) + t for n, t in zip(found.counts, ties, strict=True)])
        else:
            lower, upper = -1.0, lower


def _among_few(ranked: Ranked, k: int, lower: float, room: int) -> Ints | None:
    """The k largest of all above `lower`, gathered in a single pass; None where they are not k."""
    found = ranked.survey(lower, math.inf, room)
    if found.above:
        raise NotFinite
    if found.band < k:
        return None
    places, scores = np.concatenate(found.places), np.concatenate(found.scores)
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    taken = scores > threshold
    taken[np.flatnonzero(scores == threshold)[: k - np.count_nonzero(taken)]] = True
    chosen: Ints = places[taken]
    return chosen


def _within(ranked: Ranked, found: Survey, rank: int) -> Ints:
    """Emit down to the rank-th largest score of the band."""
    band = np.concatenate(found.scores)
    threshold = float(np.partition(band, len(band) - rank)[len(band) - rank])
    ties = np.concatenate(found.places)[band == threshold][: rank - int((band > threshold).sum())]
    counts = []
    for places, scores, (_, level, above) in zip(*found, strict=True):
        taken = (scores > threshold) | ((scores == threshold) & (places <= ties[-1]))
        counts.append(above + level + int(taken.sum()))
    return ranked.emit(threshold, int(ties[-1]), counts)


class Rounded(NamedTuple):
    """Costs in two bytes each, rounded down, in a unit that puts them in the middle of a float's range."""

    halves: NDArray[np.uint16]
    unit: float
    power: int

    def price(self, threshold: float) -> Any:
        """The least |g| that a cost of 1 asks for, rounded down."""
        least = max(threshold, 0.0) * self.unit
        least = (math.sqrt(least) if self.power == 2 else least) * (1 - 2.0**-20)
        return _float_below(least)

    def floor(self, worth: float) -> Any:
        """The least |g| that is worth so much, rounded down."""
        return _float_below((math.sqrt(worth) if self.power == 2 else worth) * (1 - 2.0**-20))


def _float_below(x: float) -> Any:
    return np.nextafter(np.float32(min(x, 3e38)), np.float32(0))


_KEPT: WeakKeyDictionary[Prices, dict[int, Rounded]] = WeakKeyDictionary()


def _rounded(prices: Prices, power: int) -> Rounded:
    """Computed once for the prices of a model, and kept as long as they are."""
    kept = _KEPT.setdefault(prices, {})
    if power not in kept:
        costs = prices.joules.numpy()
        halves, unit = np.empty(len(costs), np.uint16), float(np.median(costs[:: max(1, len(costs) // 1024)]))
        passes.low_halves(costs, unit, power, halves)
        kept[power] = Rounded(halves, unit, power)
    return kept[power]


def _floats(update: Tensor) -> NDArray[np.float32]:
    floats: NDArray[np.float32] = update.detach().to(torch.float32).contiguous().numpy()
    return floats
