"""Selection on the CPU: one reading of the update, and some of what is kept.

To find the k largest of d scores, a sample of them says between which two the k-th largest must lie. One pass over the
update (`passes.sift`) writes down every entry above the lower one; all that follows looks at these alone. A second pass
(`passes.survey`) counts what lies above the upper score and gathers the few between the two, among which the k-th
largest is found; a third (`passes.emit`) writes the places of the entries that reach it. If the sample misled, the last
two are made over the whole update, with a bracket that cannot; so the answer is always the reference's.

The first pass reads 4 bytes an entry (6 with a cost an entry) and writes 8 (10) for each that it keeps; the others
read these, and the third writes 8 for each that is chosen.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad.cost import Prices
from joulegrad.kernels import codes, lanes, passes, threads
from joulegrad.kernels.scores import NotFinite, Scores
from joulegrad.sparse import Codes

__all__ = ["all_finite", "at_least", "largest", "levels", "merge", "scales", "values_of"]

SAMPLE = 1 << 14  # entries at most
SAMPLED = 16  # of so many entries one, but of a small update more: a sixteenth of it is read soon enough
FEWEST = 1 << 11
MANY = 1 << 31  # entries whose places do not fit in four bytes
NORMAL = 2.0**-1000  # below, scores may be rounded so much that cheaper comparisons say nothing of them
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
    _, level, above = found.total()
    if k is None or level + above <= k:
        counts = [Cut(len(part.g), n[1] + n[2]) for part, n in zip(ranked.parts, found.counts, strict=True)]
        return torch.from_numpy(ranked.emit(threshold, counts))
    return torch.from_numpy(_largest(ranked, k))


def merge(a: Tensor, b: Tensor) -> Tensor:
    """Two increasing sequences as one."""
    return torch.from_numpy(passes.merge(a.numpy(), b.numpy())) if len(b) else a


def scales(values: Tensor, counts: Tensor, most: int, *, mean: bool) -> Tensor:
    """A layer's scale: its mean magnitude, or its largest over the outermost level."""
    out = np.empty(len(counts), np.float32)
    v, n = _floats(values), counts.numpy()
    threads.each(lambda run: codes.scales_of(v[run.entries], n[run.layers], most, mean, out[run.layers]), _runs(n))
    return torch.from_numpy(out)


def levels(values: Tensor, counts: Tensor, most: int, scales: Tensor, dither: Tensor | None) -> Tensor:
    """The level nearest to a value, or with dither one of the two around it."""
    out = np.empty(len(values), np.uint8)
    v, n, scale, drawn = _floats(values), counts.numpy(), scales.numpy(), None if dither is None else dither.numpy()

    def one(run: Run) -> None:
        arguments = v[run.entries], n[run.layers], most, scale[run.layers]
        if drawn is None:
            codes.nearest_levels(*arguments, out[run.entries])
        else:
            codes.drawn_levels(*arguments, drawn[run.entries], out[run.entries])

    threads.each(one, _runs(n))
    return torch.from_numpy(out)


def values_of(coded: Codes) -> Tensor:
    """What codes stand for."""
    out = np.empty(len(coded.levels), np.float32)
    level, n, scale, most = coded.levels.numpy(), coded.counts.numpy(), coded.scales.numpy(), 2**coded.bits - 1

    def one(run: Run) -> None:
        codes.values_of(level[run.entries], n[run.layers], most, scale[run.layers], out[run.entries])

    threads.each(one, _runs(n))
    return torch.from_numpy(out)


class Run(NamedTuple):
    """Some consecutive layers, and their entries among all that were sent: a thread's share of a quantisation."""

    layers: slice
    entries: slice


def _runs(counts: Ints) -> list[Run]:
    ends = np.concatenate([[0], np.cumsum(counts)])
    cuts = [int(np.searchsorted(ends, last)) for _, last in threads.chunks(int(ends[-1]))[:-1]]
    return [Run(slice(a, b), slice(ends[a], ends[b])) for a, b in pairwise([0, *cuts, len(counts)])]


class Part(NamedTuple):
    """A run of the update, or what a pass kept of it: a thread's share."""

    g: NDArray[np.float32]
    ends: Ints  # of segments, in this part; none where there is a cost an entry
    halves: NDArray[np.uint16]  # costs in two bytes, where there is one an entry
    first: int  # entry of the update
    places: NDArray[Any]  # which entries of the update; empty where they are `first` and those that follow

    def of(self, at: Ints) -> Ints:
        """Which entries of the update are at some places of the part."""
        return self.places[at].astype(np.int64) if len(self.places) else at + self.first


class Survey(NamedTuple):
    """What lies where, a part for each thread: the band between two scores, on the upper one, and above it."""

    at: list[Ints]  # in the part
    scores: list[Doubles]
    counts: list[tuple[int, int, int]]  # in the band, on the upper score, above

    def total(self) -> tuple[int, int, int]:
        """The counts of all parts."""
        band, level, above = (sum(counts) for counts in zip(*self.counts, strict=True))
        return band, level, above


class Cut(NamedTuple):
    """A part's share of what is chosen: which of the entries on the threshold, and how many entries in all."""

    ties: int  # those before this place of the part
    size: int


class Ranked(NamedTuple):
    """An update and its costs as compiled code wants them."""

    g: NDArray[np.float32]
    ends: Ints  # of segments; none where there is a cost an entry
    costs: Doubles  # one a segment, or one an entry
    power: int
    rounded: Rounded | None  # costs in two bytes, where there is one an entry
    parts: list[Part]

    @classmethod
    def of(cls, scores: Scores) -> Ranked:
        g, prices = _floats(scores.update), scores.prices
        if prices is None:
            return cls._cut(g, np.array([len(g)]), np.ones(1), scores.power, None)
        if prices.piecewise:
            return cls._cut(g, prices.layout.ends.numpy(), prices.joules.numpy(), scores.power, None)
        return cls._cut(g, np.empty(0, np.int64), prices.joules.numpy(), scores.power, _rounded(prices, scores.power))

    @classmethod
    def _cut(cls, g: NDArray[np.float32], ends: Ints, costs: Doubles, power: int, rounded: Rounded | None) -> Ranked:
        nowhere, halves = (
            np.empty(0, np.int64 if len(g) > MANY else np.int32),
            np.empty(0, np.uint16) if rounded is None else rounded.halves,
        )
        parts = [Part(g[a:b], np.clip(ends - a, 0, b - a), halves[a:b], a, nowhere) for a, b in threads.chunks(len(g))]
        return cls(g, ends, costs, power, rounded, parts)

    @property
    def size(self) -> int:
        return sum(len(part.g) for part in self.parts)

    def sample(self, m: int) -> tuple[Doubles, Doubles]:
        """What m of the entries are worth and cost, one from each of m equal runs."""
        worths, costs = np.empty(m), np.empty(m)
        stops = np.cumsum([0, *(len(part.g) for part in self.parts)]) * m // self.size

        def some(part: Part, worths: Doubles, costs: Doubles) -> None:
            whole = part.g, part.first, part.places, part.ends, self.costs, self.power
            passes.sample(*whole, worths, costs)

        runs = [slice(a, b) for a, b in pairwise(stops)]
        threads.each(some, self.parts, [worths[run] for run in runs], [costs[run] for run in runs])
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

    def sifted(self, lower: float, room: int) -> Ranked | None:
        """Only the entries whose score exceeds `lower`, and perhaps some more; None where they are more than `room`."""
        if self.rounded is None:
            return self.sifted_by(self.keys_above(lower), room)
        return self.sifted_each(self.rounded.price(lower), np.float32(0), room)

    def sifted_by(self, keys: NDArray[np.int32], room: int) -> Ranked | None:
        """Only the entries whose keys reach their segment's."""

        def one(part: Part) -> tuple[Part, int]:
            places, kept = self._room(part, room)
            ends = np.empty(len(part.ends), np.int64)
            n = passes.sift(part.g, part.first, part.ends, keys, places, kept, ends)
            return Part(kept[:n], ends, part.halves, part.first, places[:n]), n

        return self._of(threads.each(one, self.parts), room)

    def sifted_each(self, price: Any, floor: Any, room: int) -> Ranked | None:
        """Only the entries that may have |g| ≥ price · cost + floor."""

        def one(part: Part) -> tuple[Part, int]:
            places, kept = self._room(part, room)
            halves = np.empty(len(kept), np.uint16)
            n = passes.sift_each(part.g, part.first, part.halves, price, floor, places, kept, halves)
            return Part(kept[:n], part.ends, halves[:n], part.first, places[:n]), n

        return self._of(threads.each(one, self.parts), room)

    def _room(self, part: Part, room: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
        n = min(room, len(part.g)) + lanes.LANES
        return np.empty(n, part.places.dtype), np.empty(n, np.float32)

    def _of(self, found: list[tuple[Part, int]], room: int) -> Ranked | None:
        return self._replace(parts=[part for part, _ in found]) if sum(n for _, n in found) <= room else None

    def survey(self, lower: float, upper: float, room: int) -> Survey:
        """What lies in lower < s < upper, at s = upper, and above; `room` is what the band is expected to have."""
        keys, beyond = self.keys(upper), self.keys_above(upper)
        over = self.keys_above(lower) if lower < upper else keys

        def one(part: Part, room: int) -> tuple[Ints, Doubles, tuple[int, int, int]]:
            at, scores = np.empty(room, np.int64), np.empty(room)
            if self.rounded is None:
                counts = passes.survey(part.g, part.ends, self.costs, over, keys, beyond, self.power, at, scores)
            else:
                prices = self.rounded.prices(min(lower, upper), upper)
                whole = part.g, part.first, part.places, self.costs, part.halves
                counts = passes.survey_each(*whole, prices, lower, upper, self.power, at, scores)
            return at[: counts[0]], scores[: counts[0]], counts

        found = threads.each(one, self.parts, [min(room, len(part.g)) for part in self.parts])
        if any(counts[0] > len(at) for at, _, counts in found):
            found = threads.each(one, self.parts, [len(part.g) for part in self.parts])
        return Survey(*map(list, zip(*found, strict=True)))

    def emit(self, threshold: float, cuts: list[Cut]) -> Ints:
        """The entries whose scores are above the threshold, and those on it that the cuts name."""
        ends = np.cumsum([0, *(cut.size for cut in cuts)])
        out, ties, above = np.empty(ends[-1], np.int64), self.keys(threshold), self.keys_above(threshold)
        higher = float(np.nextafter(threshold, math.inf))

        def one(part: Part, cut: Cut, out: Ints) -> bool:
            if self.rounded is None:
                return passes.emit(part.g, part.first, part.places, part.ends, ties, above, cut.ties, out)[1]
            whole = part.g, part.first, part.places, self.costs, part.halves
            prices = self.rounded.prices(threshold, higher)
            return passes.emit_each(*whole, prices, threshold, higher, self.power, cut.ties, out)[1]

        if not all(threads.each(one, self.parts, cuts, [out[a:b] for a, b in pairwise(ends)])):
            raise NotFinite
        return out

    def cuts(self, level: float, n: int, counts: list[int]) -> list[Cut] | None:
        """Beside `counts` others, the first n entries whose score is `level`; None where they are fewer."""
        keys, beyond, cuts = self.keys(level), self.keys_above(level), []
        for part, count in zip(self.parts, counts, strict=True):
            if n == 0:
                cuts.append(Cut(0, count))
                continue
            arguments = part.ends, self.costs, keys, beyond, self.power, level, n
            j, left = passes.nth_equal(part.g, part.first, part.places, *arguments)
            cuts.append(Cut(len(part.g) if j < 0 else j + 1, count + n - left))
            n = left
        return cuts if n == 0 else None


def _largest(ranked: Ranked, k: int) -> Ints:
    bracket, room, kept = _bracket(ranked, k)
    among = ranked
    if bracket.lower < bracket.upper and 2 * kept < ranked.size:
        few = ranked.sifted(bracket.lower, kept)
        if few is not None and few.size > k:
            among, (bracket, room, _) = few, _bracket(few, k)
    lower, upper = bracket
    while True:
        found = among.survey(lower, upper, room)
        band, level, above = found.total()
        if above >= k:
            if upper == math.inf:
                raise NotFinite
            lower, upper = upper, math.inf
        elif above + level >= k:
            return among.emit(upper, among.cuts(upper, k - above, [n[2] for n in found.counts]) or [])
        elif above + level + band >= k:
            return among.emit(*_within(among, found, k - above - level))
        elif cuts := among.cuts(lower, k - above - level - band, [sum(n) for n in found.counts]):
            return among.emit(lower, cuts)
        else:
            lower, upper = -1.0, lower


class Bracket(NamedTuple):
    """Two scores between which the k-th largest lies, if the sample did not mislead."""

    lower: float
    upper: float


def _bracket(ranked: Ranked, k: int) -> tuple[Bracket, int, int]:
    """By a sample; and how many scores are expected between the two, and from the lower one up, at most."""
    d = ranked.size
    m = min(d, SAMPLE, max(d // SAMPLED, FEWEST))
    worths, costs = ranked.sample(m)
    sample, rank = np.sort(worths / costs)[::-1], (m * k - 1) // d
    slack = 0 if m == d else int(4 * math.sqrt(m * (k / d) * (1 - k / d))) + 8
    lower = float(sample[rank + slack]) if rank + slack < m else -1.0
    upper = float(sample[rank - slack]) if rank >= slack else math.inf
    return Bracket(lower, upper), 3 * slack * d // m + 1024, (rank + 3 * slack) * d // m + 1024


def _within(ranked: Ranked, found: Survey, rank: int) -> tuple[float, list[Cut]]:
    """The rank-th largest score of the band, and what each part has of those that reach it."""
    band = np.concatenate(found.scores)
    threshold = float(np.partition(band, len(band) - rank)[len(band) - rank])
    ties, cuts = rank - int((band > threshold).sum()), []
    for at, scores, (_, level, above) in zip(*found, strict=True):
        on = at[scores == threshold][:ties]
        ties -= len(on)
        higher = above + level + int((scores > threshold).sum())
        cuts.append(Cut(int(on[-1]) + 1 if len(on) else 0, higher + len(on)))
    return threshold, cuts


class Rounded(NamedTuple):
    """Costs in two bytes each, rounded down, in a unit that puts them in the middle of a float's range."""

    halves: NDArray[np.uint16]
    unit: float
    power: int

    def price(self, threshold: float) -> Any:
        """The least |g| that a score ≥ threshold asks of a cost of 1, rounded down."""
        return _float_below(self._least(threshold) * (1 - 2.0**-20))

    def prices(self, lower: float, upper: float) -> tuple[Any, Any, Any]:
        """The same of `lower`; and, rounded up, what certainly is more than `upper` asks of a cost of 1 and of any."""
        above = self._least(upper) * (1 + 2.0**-20) if upper >= NORMAL else math.inf
        floor = above * 2.0**-125  # costs below 2^-126 are kept as 0
        return self.price(lower), _float_above(above), _float_above(floor)

    def _least(self, threshold: float) -> float:
        least = threshold * self.unit if threshold >= NORMAL else 0.0
        return math.sqrt(least) if self.power == 2 else least

    def line(self, price: float, least: float) -> tuple[Any, Any]:
        """What w ≥ price · c + least asks at least, linear in rounded costs: of a cost of 1, and of any; rounded down.

        With power 2 it asks |g| ≥ √(price · c + least), which is convex in √c; so its tangent at the unit lies below.
        """
        price = self._least(price) ** self.power
        top = math.sqrt(price + least) if self.power == 2 and price + least > 0 else 1.0
        return tuple(_float_below(min(x / top, 3e38) * (1 - 2.0**-20)) for x in (price, least))


def _float_below(x: float) -> Any:
    return np.nextafter(np.float32(min(x, 3e38)), np.float32(0))


def _float_above(x: float) -> Any:
    return np.nextafter(np.float32(x if x < 3e38 else math.inf), np.float32(math.inf))


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
