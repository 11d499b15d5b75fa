"""Both budgets on the GPU, where costs are constant in runs: the host decides, from counts; the update stays.

    draw     a sample, counted in bins of each run's keys        -> host: prices around the crossing, keys in doubt
    survey   one reading: what is above them, and a list of them
    weigh    the list in finer bins                              -> host: the same again, without a sample's error
    pick     the few that are in doubt still                     -> host: the crossing, exactly, and what to choose
    emit     one reading: the indices, in order
    add_up   what they are worth, exactly, for the certificate   -> host

This is for where `frugal.py` has no answer: where both budgets bind, say. The host waits four times, for some ten
thousand counts or a few thousand entries each, and the update is read twice and touched here and there. What is certain
is checked when all is known; where the sample misled, or where too many entries are in doubt, as where very many are
equal, there is no answer here, and `afar.py` has one.

What of the joules is left over goes to the best that they still pay: the list goes down so far, nearly always; where it
does not, the update is copied, on the GPU, and searched once more, as the reference does it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad import exact
from joulegrad.cost import Prices
from joulegrad.kernels import crossing, frugal, gpu, reference, tallies, tiles
from joulegrad.kernels.scores import NotFinite, Scores

__all__ = ["budgeted"]

SAMPLE = 1 << 16  # entries drawn
TABLE, MOST_RUNS = 1 << 14, 256  # bins of all runs together
FEW, LEVELS = 1 << 13, 5  # entries in doubt that the host is given, and how often it may look at bins before
ENOUGH = 1 << 10  # bins of a run that tell a sample's keys apart well enough
BLOCK, MOST_DIGITS = 1024, 8
ERRORS = 4.5  # standard errors of a sample's count that are allowed for

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]
SPECIAL = int(tiles.SPECIAL.value)


class Unanswered(Exception):
    """The few could not be told from the many."""


def budgeted(scores: Scores, k: int, joules: float) -> reference.Budgeted | None:
    """The most worth under both budgets, with its certificate: the reference's, to the bit; None if it is not found."""
    prices = reference.priced(scores)
    if not prices.piecewise or prices.finer is not None or k < 1 or len(scores.update) > gpu.MOST:
        return None
    scores = gpu.aligned(scores)
    plan = gpu.Plan.of(scores)
    if plan.runs > MOST_RUNS:
        return None
    with torch.cuda.device_of(scores.update):
        if (found := frugal.budgeted(scores, plan, k, joules)) is not None:
            return found
        try:
            return _Search(scores, plan, k, joules).answer()
        except Unanswered:
            return None


class _Bins(NamedTuple):
    """Counts by key, of what is in doubt: upto[run, b] have keys in bin b of their run or above."""

    spans: Ints  # of each run: the lowest key, the highest plus one, bits dropped
    upto: Doubles

    def settle(self, keys: Ints) -> tuple[Ints, Ints, Ints]:
        """Pairs of keys moved outwards to the bounds of bins; how many entries reach each."""
        counts = np.empty_like(keys)
        bounds: Ints = crossing.settled(keys, self.spans, self.upto, counts)
        return bounds, counts[0], counts[1]


class _Few(NamedTuple):
    """Entries that the host was given, in order."""

    at: Ints
    w: Doubles
    run: Ints

    def some(self, which: Any) -> _Few:
        """Some of them."""
        return _Few(self.at[which], self.w[which], self.run[which])


class _Board(NamedTuple):
    """What the GPU counts, and the host reads at once: a search's state, two counts a run, bins."""

    whole: Any  # int32: a tensor, or once it is read an array
    runs: int

    @property
    def state(self) -> Any:
        """As `tiles.py` names its fields."""
        return self.whole[: 2 * tiles.FIELDS.value].view(torch.int64 if isinstance(self.whole, Tensor) else np.int64)

    @property
    def counts(self) -> Any:
        """How many are above, and the largest key."""
        return self.whole[2 * tiles.FIELDS.value :][: 2 * self.runs]

    @property
    def bins(self) -> Any:
        """Of all runs, one after the other."""
        return self.whole[2 * tiles.FIELDS.value + -(-2 * self.runs // 16) * 16 :]

    def read(self) -> _Board:
        """What is there; waits for the GPU."""
        return _Board(self.whole.cpu().numpy(), self.runs)


class _Search:
    """One search: what is known of the runs, and where on the GPU the rest is."""

    def __init__(self, scores: Scores, plan: gpu.Plan, k: int, joules: float) -> None:
        self.scores, self.plan, self.k, self.joules = scores, plan, k, joules
        self.d, self.power, self.device = len(scores.update), scores.power, scores.update.device
        self.costs, self.stops = plan.paid, plan.stops
        self.sizes = np.diff(self.stops, prepend=0)
        self.payable = self.costs <= joules
        self.bins = max(16, 1 << (TABLE // plan.runs).bit_length() - 1)
        self.least, self.most = 0.0, 1e308  # prices between which the crossing lies
        self.above = np.zeros(plan.runs, np.int64)  # entries of each run whose keys are above those in doubt

    def answer(self) -> reference.Budgeted:
        """All steps, in their order."""
        self.survey(*self.sampled())
        bounds = self.narrowed()
        return _Choice(self, bounds, self.picked(bounds)).finished()

    def sampled(self) -> tuple[Ints, int]:
        """Keys in doubt, as a sample says; how many entries may have them."""
        plan, m = self.plan, min(self.d, SAMPLE)
        share, errors = m / self.d, 0.0 if m == self.d else ERRORS
        spans = self.spans(np.where(self.payable, [[0], [SPECIAL]], SPECIAL))
        state, where = sent(self.device, _state(m), spans.astype(np.int32))
        board = self.board()
        self.listed, self.room = gpu.carved(torch.int32, self.device, m, m), m
        gpu.launch(
            tallies.draw, (-(-m // 256), 1), 4,
            self.scores.update, self.d, plan.ends, plan.runs, plan.steps, where, board.bins, *self.listed, m,
            BLOCK=256, BINS=self.bins,
        )  # fmt: skip
        while True:
            bins = self.upto(spans, board.read(), self.above)
            keys, self.least, self.most = self.bracket(bins, share, errors)
            bounds, below, above = bins.settle(keys)
            finer = self.spans(bounds)
            if self.bins >= ENOUGH or not (finer[2] < spans[2] - 1).any():
                return keys, int((below - above).sum() / share)
            spans, self.above = finer, above
            state, where = sent(self.device, _state(m), spans.astype(np.int32))
            board = self.board()
            self.weigh(state, where, board)

    def survey(self, keys: Ints, expected: int) -> None:
        """Count all entries above the keys in doubt; list those that have them, and count them in bins."""
        runs, self.room = self.plan.runs, min(self.d, expected * 5 // 4 + gpu.ROOM)
        self.listed = gpu.carved(torch.int32, self.device, self.room, self.room)
        self.spans_listed = self.spans(keys)
        both = np.repeat(keys, 2, axis=1).astype(np.int32)
        state, marks, where = sent(self.device, _state(0), both, self.spans_listed.astype(np.int32))
        board = self.board()
        self.state = board.state
        self.state.copy_(state)
        (self.words,) = gpu.carved(torch.int64, self.device, self.plan.tiles)
        gpu.survey(self.plan, self.scores, self.state, marks, self.words, self.listed, self.room, board.counts)
        self.weigh(self.state, where, board)
        found = board.read()
        if found.state[tiles.STATUS.value] & tiles.NOT_FINITE.value:
            raise NotFinite
        if found.state[tiles.COUNTED.value] & tiles.NOWHERE.value > self.room:
            raise Unanswered
        self.above, self.largest = found.counts[:runs].astype(np.int64), found.counts[runs:]
        self.found = self.upto(self.spans_listed, found, self.above)

    def narrowed(self) -> Ints:
        """Bounds of the keys in doubt, so close that few entries have them."""
        bins = self.found
        for _ in range(LEVELS):
            keys, self.least, self.most = self.bracket(bins, 1.0, 0.0)
            bounds, self.below, self.above = bins.settle(keys)
            for reach in 2 ** np.arange(12):  # the last to be chosen is wanted among the few, since it has the price ν
                if self.above.sum() < self.k:
                    break
                wider = np.where(self.payable, bounds[1] + (reach << bins.spans[2]), bounds[1])
                bounds, self.below, self.above = bins.settle(np.stack([bounds[0], wider]))
            if (self.below - self.above).sum() <= FEW:
                return bounds
            spans = self.spans(bounds)
            if not (spans[2] < bins.spans[2]).any():
                break
            (where,) = sent(self.device, spans.astype(np.int32))
            board = self.board()
            self.weigh(self.state, where, board)
            bins = self.upto(spans, board.read(), self.above)
        raise Unanswered

    def picked(self, bounds: Ints) -> _Few:
        """The listed entries that have certain keys."""
        (where,) = sent(self.device, np.concatenate([bounds, np.zeros_like(bounds[:1])]).astype(np.int32))
        few = torch.zeros(2 * tiles.FIELDS.value + 2 * FEW, dtype=torch.int32, device=self.device)
        state, keys, at = few.split([2 * tiles.FIELDS.value, FEW, FEW])
        state = state.view(torch.int64)
        state[tiles.COUNTED.value] = self.state[tiles.COUNTED.value]
        gpu.launch(
            tallies.pick, (gpu.LIST_PROGRAMS, 1), gpu.LIST_WARPS,
            *self.listed, self.room, state, self.plan.ends, self.plan.runs, self.plan.steps, where, keys, at, FEW,
            BLOCK=BLOCK,
        )  # fmt: skip
        found = few.cpu().numpy()
        n = int(found[2 * tiles.FEW.value])
        if n > FEW:
            raise Unanswered
        keys, at = found[2 * tiles.FIELDS.value :][:n], found[2 * tiles.FIELDS.value + FEW :][:n]
        order = np.argsort(at)
        at = at[order].astype(np.int64)
        return _Few(at, worth(keys[order], self.power), np.searchsorted(self.stops, at, side="right"))

    def bracket(self, bins: _Bins, share: float, errors: float) -> tuple[Ints, float, float]:
        """Keys in doubt and prices around the crossing, as counts in bins say."""
        keys = np.empty((2, self.plan.runs), np.int64)
        finest = int(bins.spans[2].min(where=bins.spans[0] < bins.spans[1], initial=31))
        least, most = crossing.bracket(
            bins.upto, bins.spans, self.sizes, self.costs, self.power, self.k * share, self.joules * share, errors,
            self.least, self.most, min(max(26 - finest, 4), 50), keys,
        )  # fmt: skip
        crossing.within(keys, self.payable)
        return keys, least, most

    def spans(self, bounds: Ints) -> Ints:
        """Bounds of keys, and the bits to drop so that each run has bins enough."""
        found: Ints = crossing.spans_of(bounds, self.bins)
        return found

    def upto(self, spans: Ints, found: _Board, above: Ints) -> _Bins:
        """From counts in bins: how many entries have keys in each bin or above."""
        out = np.empty((self.plan.runs, self.bins + 1))
        crossing.from_the_top(found.bins, above.astype(np.float64), out)
        return _Bins(spans, out)

    def board(self) -> _Board:
        """An empty one."""
        runs = self.plan.runs
        size = 2 * tiles.FIELDS.value + -(-2 * runs // 16) * 16 + runs * self.bins
        return _Board(torch.zeros(size, dtype=torch.int32, device=self.device), runs)

    def weigh(self, state: Tensor, where: Tensor, board: _Board) -> None:
        """Count the list in bins."""
        gpu.launch(
            tallies.weigh, (gpu.LIST_PROGRAMS, 1), gpu.LIST_WARPS,
            *self.listed, self.room, state, self.plan.ends, self.plan.runs, self.plan.steps, where, board.bins,
            BLOCK=BLOCK, BINS=self.bins,
        )  # fmt: skip


class _Choice:
    """What to choose, once only few entries are in doubt: `reference.finish`, by counts and by those few."""

    def __init__(self, search: _Search, bounds: Ints, few: _Few) -> None:
        self.search, self.bounds, self.few = search, bounds, few
        self.home = _at_home(reference.priced(search.scores))
        above, within = np.empty(len(few.at), np.bool_), np.empty(len(few.at), np.bool_)
        left_out = (bounds[0] > 1) & search.payable
        status, _, self.price, self.entry_price = crossing.cross(
            few.w, few.run, search.above, search.costs,
            np.where(search.above > 0, worth(bounds[1], search.power), np.inf),
            np.where(left_out, worth(bounds[0] - 1, search.power), -1.0),
            search.k - int(search.above.sum()), search.joules, search.least, search.most, above, within,
        )  # fmt: skip
        if status != crossing.SOLVED:
            raise Unanswered
        self.over, self.within = above, within

    def finished(self) -> reference.Budgeted:
        """Round the two sides to one set, spend what is left, and prove how good it is."""
        search, few = self.search, self.few
        certain, shared = int(search.above.sum()), self.over & self.within
        energy = self.energy(search.above) + self.energy(self.by_run(shared))
        mixed = self.mixture(search.k - certain - int(shared.sum()), energy)
        beside = max((self.within & ~shared, mixed), key=lambda part: total(few.w[part]))
        self.chosen = shared | beside
        chosen, spent = few.some(self.chosen), energy + self.energy(self.by_run(beside))
        self.undominated(chosen)
        places, room = search.k - certain - len(chosen.at), search.joules - float(spent)
        if places > 0 and room >= self.home.cheapest:
            added = self.that_fit(few.some(~self.chosen), places, room, spent)
            order = np.argsort(at := np.concatenate([chosen.at, added.at]))
            return self.certified(at[order], np.concatenate([chosen.w, added.w]))
        return self.certified(chosen.at, chosen.w)

    def mixture(self, room: int, energy: Fraction) -> Any:
        """As `reference.finish` does: of the entries of one side alone, the dearest consecutive ones that fit."""
        joules, loose = self.search.joules, np.flatnonzero(self.over ^ self.within)
        cost = self.search.costs[self.few.run[loose]]
        order = cost.argsort(kind="stable")
        loose, cost = loose[order], cost[order]
        n, left = min(room, len(loose)), joules - float(energy)
        upto = np.concatenate([[0.0], cost.cumsum()])
        runs = upto[n:] - upto[: len(upto) - n]
        fitting = int(np.searchsorted(runs, left, side="right"))
        if fitting > 0:
            start = int(np.searchsorted(runs, runs[fitting - 1]))
            picked, paid = loose[start : start + n], cost[start : start + n]
        else:
            n = int(np.searchsorted(upto, left, side="right")) - 1
            picked, paid = loose[:n], cost[:n]
        while len(picked) and float(energy + total(paid)) > joules:  # for the last bit of the sums
            picked, paid = picked[:-1], paid[:-1]
        chosen = np.zeros(len(self.over), np.bool_)
        chosen[picked] = True
        return chosen

    def by_run(self, which: Any) -> Ints:
        """How many of the few lie in each run."""
        return np.bincount(self.few.run[which], minlength=self.search.plan.runs)

    def energy(self, counts: Ints) -> Fraction:
        """Σ n c, exactly."""
        pairs = zip(counts.tolist(), self.search.costs.tolist(), strict=True)
        return sum((n * Fraction(c) for n, c in pairs if n), Fraction(0))

    def undominated(self, chosen: _Few) -> None:
        """No single entry that the joules pay is worth more than all that are chosen, or there is no answer here."""
        search = self.search
        largest = worth(search.largest, search.power)[search.payable & (search.largest > 0)].max(initial=0.0)
        least = np.where(search.above > 0, worth(self.bounds[1], search.power), 0.0)
        if float(chosen.w.sum() + (search.above * least).sum()) * (1 - 1e-9) < largest:
            raise Unanswered

    def that_fit(self, rest: _Few, places: int, room: float, spent: Fraction) -> _Few:
        """The entries that are left out but that the joules still pay, the best for their cost first."""
        search = self.search
        alive = search.costs <= room
        ranked = self.next_best(rest.some(alive[rest.run]), alive.copy(), room)
        added: list[int] = []
        for i, run in enumerate(ranked.run.tolist()):
            if not alive[run]:
                continue
            cost = Fraction(float(search.costs[run]))
            if float(spent + cost) <= search.joules:
                spent += cost
                added.append(i)
                if len(added) == places:
                    break
            else:
                alive[run] = False
                if not alive.any():
                    break
        return ranked.some(np.array(added, np.int64))

    def next_best(self, rest: _Few, payable: Any, room: float) -> _Few:
        """The first `reference.REACH` by worth for cost that are not chosen, of runs that can be paid, in that order.

        The list holds all that are worth more for their cost than the best beneath it.
        """
        search = self.search
        bottom = search.spans_listed[0]
        beneath = payable & (bottom > 1)
        floor = float((worth(bottom - 1, search.power) / search.costs)[beneath].max(initial=0.0))
        density = crossing.density_of(
            search.found.upto, search.spans_listed, search.sizes, np.where(payable, search.costs, np.inf),
            search.power, search.below, float(reference.REACH), floor,
        )  # fmt: skip
        if density <= floor and beneath.any():
            return self.searched(room)
        least = crossing.keys_at(density, search.costs, search.power) - 2
        bounds = np.where(
            payable, np.stack([np.clip(least, np.maximum(bottom, 1), self.bounds[0]), self.bounds[0]]), SPECIAL
        )
        more = search.picked(bounds)
        found = _Few(*(np.concatenate(pair) for pair in zip(rest, more, strict=True)))
        value = found.w / search.costs[found.run]
        some = (value >= density) & (value > 0)
        found, value = found.some(some), value[some]
        if len(value) < reference.REACH and density > 0:
            return self.searched(room)
        return found.some(np.lexsort((found.at, -value))[: reference.REACH])

    def searched(self, room: float) -> _Few:
        """The same as the reference does it, where the list does not reach so far down."""
        search, update = self.search, self.search.scores.update.clone()
        update[self.emitted(self.few.at[self.chosen])] = 0
        left = reference.payable(search.scores._replace(update=update), room)
        ranked = gpu.largest(left, reference.REACH)
        density, order = reference.values_at(left, ranked).sort(descending=True, stable=True)
        at = ranked[order[density > 0]]
        w = reference.values_at(left.worth, at).cpu().numpy()
        return _Few(at.cpu().numpy(), w, np.searchsorted(search.stops, at.cpu().numpy(), side="right"))

    def emitted(self, others: Ints) -> Tensor:
        """The indices of the certain entries and of others, in order."""
        search, plan = self.search, self.search.plan
        bounds = np.repeat(self.bounds[[1, 1]], 2, axis=1)
        marks, named = sent(search.device, bounds.astype(np.int32), others.astype(np.int32))
        out = torch.empty(1, int(search.above.sum()) + len(others), dtype=torch.int64, device=search.device)
        beside = (named, torch.searchsorted(named, plan.starts, out_int32=True)) if len(others) else None
        search.words.zero_()
        gpu.emit(plan, search.scores, search.state, marks, search.words, out, beside)
        self.marks = marks
        return out.squeeze(0)

    def certified(self, others: Ints, worths: Doubles) -> reference.Budgeted:
        """The set, what it is worth, and the bound D(λ), both exact until they are rounded, once."""
        search, few = self.search, self.few
        out = self.emitted(others)
        paid = self.price * search.costs
        held, beyond = self.added_up(out, paid)
        value = float(held + total(worths))
        within = few.some(self.within)
        beyond += total(within.w - paid[within.run])
        bound = self.price * search.joules + float(beyond)
        return reference.Budgeted(out, value, max(bound, value), self.price, self.entry_price)

    def added_up(self, out: Tensor, paid: Doubles) -> tuple[Fraction, Fraction]:
        """Of the certain entries Σ w and Σ (w − p), as integers in a unit in which all of them are whole."""
        search, held = self.search, self.search.above > 0
        if not held.any():
            return Fraction(0), Fraction(0)
        least, most = (worth(keys, search.power)[held] for keys in (self.bounds[1], search.largest))
        worth_from = int(exponent(least).min()) + (29 if search.power == 1 else 5)  # bits that squares, too, leave 0
        beyond_from = min([worth_from, *exponent(paid[held & (paid > 0)]).tolist()])
        digits = -(-(int(exponent(most).max()) - beyond_from + 53) // 32)
        digits = 1 << (digits - 1).bit_length()
        if digits > MOST_DIGITS:
            raise Unanswered
        (there,) = sent(search.device, paid)
        sums = torch.zeros(2, digits, dtype=torch.int64, device=search.device)
        plan = search.plan
        gpu.launch(
            tallies.add_up, (gpu.LIST_PROGRAMS, 1), 4,
            search.scores.update, plan.ends, plan.runs, plan.steps, self.marks, there,
            out, len(out), worth_from, beyond_from, sums,
            POWER=search.power, BLOCK=256, DIGITS=digits,
        )  # fmt: skip
        found = sums.tolist()
        first, second = (sum(n << (32 * i) for i, n in enumerate(row)) for row in found)
        return Fraction(first) * unit(worth_from), Fraction(second) * unit(beyond_from)


def unit(lowest: int) -> Fraction:
    """What the lowest bit of a float64 is worth that has this exponent."""
    return Fraction(2) ** (lowest - 1075)


def exponent(x: Doubles) -> Ints:
    """As float64 holds it, 1 at least."""
    found: Ints = np.maximum(np.ascontiguousarray(x).view(np.int64) >> 52 & 2047, 1)
    return found


def worth(keys: NDArray[Any], power: int) -> Doubles:
    """|g|^power of the floats that have these keys."""
    w = np.ascontiguousarray(keys).astype(np.int32).view(np.float32).astype(np.float64)
    return w * w if power == 2 else w


def total(x: Doubles) -> Fraction:
    """Σ x, exactly."""
    return exact.total(torch.from_numpy(np.ascontiguousarray(x)))


KINDS = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64, np.dtype(np.float64): torch.float64}


def sent(device: torch.device, *arrays: NDArray[Any]) -> list[Tensor]:
    """Arrays, flat, on the device, in one piece that no one waits for."""
    places = [0]
    for a in arrays:
        places.append(places[-1] + -(-a.nbytes // 64) * 64)
    whole = torch.empty(places[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = whole.numpy()
    for a, at in zip(arrays, places, strict=False):
        memory[at : at + a.nbytes] = a.ravel().view(np.uint8)
    whole = whole.to(device, non_blocking=True)
    return [whole[at : at + a.nbytes].view(KINDS[a.dtype]) for a, at in zip(arrays, places, strict=False)]


def _state(listed: int) -> Ints:
    state = np.zeros(tiles.FIELDS.value, np.int64)
    state[[tiles.LOW_AT.value, tiles.HIGH_AT.value, tiles.CUT.value]] = tiles.NOWHERE.value
    state[tiles.COUNTED.value] = listed
    return state


_HOME: WeakKeyDictionary[Prices, Prices] = WeakKeyDictionary()


def _at_home(prices: Prices) -> Prices:
    """The prices on the host, kept as long as they are."""
    if prices not in _HOME:
        _HOME[prices] = prices.to(torch.device("cpu"))
    return _HOME[prices]
