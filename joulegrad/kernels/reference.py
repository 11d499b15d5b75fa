"""The specification of selection: slow, obvious, plain torch.

Every faster kernel must equal these functions on every input:

- scores are float64: |g|^power / c, one rounding a step;
- of equal scores the lower index goes first;
- indices come back strictly increasing (int64), on the update's device;
- sums of joules are the correctly rounded float64 sum, whatever the order (`Prices.total`);
- a NaN or an infinity raises `NotFinite`.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from joulegrad import exact
from joulegrad.cost import Prices
from joulegrad.kernels.scores import NotFinite, Scores
from joulegrad.sparse import Codes

__all__ = [
    "Budgeted",
    "all_finite",
    "at_least",
    "best",
    "budgeted",
    "each_segment",
    "largest",
    "merge",
    "prefix_within",
    "values",
]


def all_finite(update: Tensor) -> bool:
    """Whether there is no NaN and no infinity."""
    return bool(torch.isfinite(update).all())


def values(scores: Scores) -> Tensor:
    """All scores, in float64."""
    update, power, prices = scores
    if not all_finite(update):
        raise NotFinite
    s = update.to(torch.float64).abs()
    s = s * s if power == 2 else s
    return s if prices is None else each_segment(s, prices, lambda part, c: part / c)


def largest(scores: Scores, k: int) -> Tensor:
    """Indices of the min(k, d) largest scores, ties to the lower index."""
    return best(values(scores), k)


def at_least(scores: Scores, threshold: float, k: int | None = None) -> Tensor:
    """Indices of all scores ≥ threshold; where they are more than k, the k largest."""
    s = values(scores)
    chosen = best(s, len(s) if k is None else k)
    return chosen[s[chosen] >= threshold]


def best(s: Tensor, k: int) -> Tensor:
    """Indices of the min(k, d) largest numbers: all above the k-th largest, and of those equal to it the first."""
    d = s.numel()
    if k >= d:
        return torch.arange(d, device=s.device)
    if k == 0:
        return torch.arange(0, device=s.device)
    threshold = s.kthvalue(d - k + 1).values
    taken = s > threshold
    ties = (s == threshold).nonzero().squeeze(1)
    taken[ties[: k - int(taken.sum())]] = True
    return taken.nonzero().squeeze(1)


def prefix_within(scores: Scores, k: int, joules: float, find: Callable[[Scores, int], Tensor] = largest) -> Tensor:
    """Indices of the longest prefix of the ranking with at most k entries and at most `joules`.

    `find` is the kernel that gives the k largest.
    """
    prices = priced(scores)
    chosen = find(scores, k)
    if prices.total(chosen) <= joules:
        return chosen
    ranked = chosen[values_at(scores, chosen).sort(descending=True, stable=True).indices]

    def fits(n: int) -> bool:
        return prices.total(ranked[:n].sort().values) <= joules

    running = prices.at(ranked).cumsum(0)
    guess = int(torch.searchsorted(running, joules, right=True))
    # The running sum finds the place up to rounding; the sum that is reported decides.
    low, high = (guess, len(ranked)) if fits(guess) else (0, guess - 1)
    while low < high:
        middle = low + 1 if low == guess else (low + high + 1) // 2  # the guess is nearly always right
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return ranked[:low].sort().values


def values_at(scores: Scores, indices: Tensor) -> Tensor:
    """The scores of some entries, in float64."""
    update, power, prices = scores
    s = update[indices].to(torch.float64).abs()
    s = s * s if power == 2 else s
    return s if prices is None else s / prices.at(indices)


class Budgeted(NamedTuple):
    """A feasible set, and the proof of how good it is (see `docs/theory.md`)."""

    indices: Tensor
    value: float  # Σ_{j∈S} |g_j|^power
    bound: float  # no feasible set is worth more
    energy_price: float  # λ, worth per joule
    entry_price: float  # ν, worth per entry


class Dual(NamedTuple):
    """D(λ) = λE + Σ_{j∈S(λ)} (w_j − λ c_j), an upper bound whatever λ is."""

    bound: float
    energy_price: float
    entry_price: float


class Sides(NamedTuple):
    """The sets on the two sides of the budget, by what they share; each part increasing."""

    shared: Tensor
    worth: Fraction  # of what is shared, and its energy
    energy: Fraction
    over: Tensor  # only in the set that is over the budget
    under: Tensor  # only in the set that is within


def budgeted(scores: Scores, k: int, joules: float) -> Budgeted:
    """Maximise Σ_{j∈S} w_j, w_j = |g_j|^power, subject to |S| ≤ k and μ(S) ≤ joules, up to two entries' worth.

    At a price λ of energy, the best set S(λ) holds the k largest positive w_j − λ c_j; its energy falls as λ rises.
    Halving finds two neighbouring floats, `low` at which it is above the budget and `high` at which it is not. The two
    sets differ in entries that are worth the same at that price; `finish` makes the best of them. Any price gives an
    upper bound, D(λ) = λE + Σ_{j∈S(λ)} (w_j − λ c_j); it is least where the energy crosses the budget.
    """
    prices = priced(scores)
    w = each_segment(values(scores.worth), prices, lambda part, c: torch.where(c <= joules, part, 0.0))

    def best_at(price: float) -> tuple[Tensor, Tensor]:
        reduced = each_segment(w, prices, lambda part, c: part - price * c)
        chosen = best(reduced, k)
        chosen = chosen[reduced[chosen] > 0]
        return chosen, reduced[chosen]

    low, high = 0.0, 0.0
    if prices.total(best_at(low)[0]) > joules:
        high = sys.float_info.max
    while (price := between(low, high)) is not None:
        if prices.total(best_at(price)[0]) > joules:
            low = price
        else:
            high = price
    over, (under, reduced) = best_at(low)[0], best_at(high)
    common = torch.isin(under, over)
    shared = under[common]
    paid = prices.exact(shared)
    sides = Sides(shared, exact.total(w[shared]), paid, over[~torch.isin(over, under)], under[~common])
    return finish(scores, sides, k, joules, dual(high, joules, k, reduced), largest, merge)


def dual(price: float, joules: float, k: int, reduced: Tensor) -> Dual:
    """The bound D(λ), where the best set's entries are worth `reduced` beyond their price."""
    entry_price = float(reduced.min()) if 0 < len(reduced) == k else 0.0
    return Dual(price * joules + float(exact.total(reduced)), price, entry_price)


def priced(scores: Scores) -> Prices:
    """The prices, which a budget of joules needs."""
    if scores.prices is None:
        raise ValueError("a budget of joules needs prices")
    return scores.prices


def between(low: float, high: float) -> float | None:
    """The float whose bits are halfway between those of two that are not negative; None between neighbours."""
    a, b = (struct.unpack("<q", struct.pack("<d", x))[0] for x in (low, high))
    return struct.unpack("<d", struct.pack("<q", (a + b) // 2))[0] if b - a > 1 else None


def merge(a: Tensor, b: Tensor) -> Tensor:
    """Two increasing sequences as one."""
    return torch.cat([a, b]).sort().values


REACH = 1024  # how far down the ranking the joules that are left over look for entries that they can pay


def finish(
    scores: Scores,
    sides: Sides,
    k: int,
    joules: float,
    dual: Dual,
    largest: Callable[[Scores, int], Tensor],
    merge: Callable[[Tensor, Tensor], Tensor],
    ceiling: float = math.inf,
) -> Budgeted:
    """Round the two sides of the budget to one feasible set, and spend what is left beside it.

    The set within the budget, the mixture of both sides, or the one entry that is worth more than either. No entry is
    worth more than `ceiling`: where the set already is, nobody needs to look for that one.
    """
    prices = priced(scores)
    mixed = _mixture(sides, k - len(sides.shared), joules, prices)
    beside, worth = max(((part, _worth(scores, part)) for part in (sides.under, mixed)), key=lambda pair: pair[1])
    chosen, worth, spent = merge(sides.shared, beside), sides.worth + worth, sides.energy + prices.exact(beside)
    if k and float(worth) < ceiling:
        affordable = payable(scores, joules).worth
        dominant = largest(affordable, 1)
        if (alone := _worth(affordable, dominant)) > worth:
            chosen, worth, spent = dominant, alone, prices.exact(dominant)
    room = joules - float(spent)
    if len(chosen) < k and room >= prices.cheapest:
        update = scores.update.clone()
        update[chosen] = 0
        left = payable(scores._replace(update=update), room)
        ranked = largest(left, REACH)
        density, order = values_at(left, ranked).sort(descending=True, stable=True)
        added = _that_fit(ranked[order[density > 0]], k - len(chosen), joules, spent, prices)
        chosen, worth = merge(chosen, added), worth + _worth(scores, added)
    value = float(worth)
    return Budgeted(chosen, value, max(dual.bound, value), dual.energy_price, dual.entry_price)


def _worth(scores: Scores, indices: Tensor) -> Fraction:
    return exact.total(values_at(scores.worth, indices))


def payable(scores: Scores, joules: float) -> Scores:
    """The scores, 0 where an entry costs more than there is."""
    prices = priced(scores)
    if bool((prices.joules <= joules).all()):
        return scores
    update = each_segment(scores.update, prices, lambda part, c: torch.where(c <= joules, part, 0.0))
    return scores._replace(update=update)


def _mixture(sides: Sides, room: int, joules: float, prices: Prices) -> Tensor:
    """Round the mixture of two sets that are optimal at the same λ, by what they do not share.

    Those entries' worth is λc + ν: dearer is worth more. So, of those sorted by cost, take the dearest run of
    consecutive ones that fits beside what is shared: one swap further would break the budget, hence less than one
    entry's worth is lost.
    """
    loose = torch.cat([sides.over, sides.under]).sort().values
    cost = prices.at(loose)
    order = cost.sort(stable=True).indices
    loose, cost = loose[order], cost[order]
    n, left = min(room, len(loose)), joules - float(sides.energy)
    total = torch.cat([cost.new_zeros(1), cost.cumsum(0)])
    runs = total[n:] - total[: len(total) - n]  # energy of the run of n that starts at each place
    fitting = int(torch.searchsorted(runs, left, right=True))
    if fitting > 0:
        start = int(torch.searchsorted(runs, runs[fitting - 1]))  # of equally dear runs the first
        picked = loose[start : start + n]
    else:
        picked = loose[: int(torch.searchsorted(total, left, right=True)) - 1]
    while len(picked) and float(sides.energy + prices.exact(picked.sort().values)) > joules:  # the last bit of the sums
        picked = picked[:-1]
    return picked.sort().values


def _that_fit(ranked: Tensor, places: int, joules: float, spent: Fraction, prices: Prices) -> Tensor:
    """Those of the ranked entries, in order, that the joules still pay."""
    added: list[int] = []
    costs: Iterable[Fraction]
    if prices.finer is None:
        costs = map(Fraction, prices.at(ranked).tolist())
    else:
        costs = (prices.exact(one.unsqueeze(0)) for one in ranked)
    for i, cost in zip(ranked.tolist(), costs, strict=True):
        if len(added) < places and float(spent + cost) <= joules:
            spent += cost
            added.append(i)
    return torch.tensor(sorted(added), dtype=torch.int64, device=ranked.device)


def each_segment(x: Tensor, prices: Prices, f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """f(x_j, c_j) for all j, without ever spelling out costs that are constant in a segment."""
    if not prices.piecewise:
        return f(x, prices.joules)
    parts = x.split([s.size for s in prices.layout.segments])
    return torch.cat([f(part, c) for part, c in zip(parts, prices.joules, strict=True)])


def scales(values: Tensor, counts: Tensor, most: int, *, mean: bool) -> Tensor:
    """A layer's scale: its mean magnitude, or its largest over the outermost level; rounded down, against overflow.

    The sum of magnitudes is taken in order, in float64.
    """
    wanted = torch.segment_reduce(values.double().abs(), "mean" if mean else "max", lengths=counts, initial=0)
    wanted = torch.where(counts > 0, wanted, 0.0) / (1 if mean else most)
    scale = wanted.to(torch.float32)
    return torch.where(scale.double() > wanted, torch.nextafter(scale, torch.zeros_like(scale)), scale)


def levels(values: Tensor, counts: Tensor, most: int, scales: Tensor, dither: Tensor | None) -> Tensor:
    """The level nearest to a value, of two equally near the inner one; with dither, one of the two around it."""
    v = values.double()
    size = v.abs() / scales.double().clamp_min(torch.finfo(torch.float64).tiny).repeat_interleave(counts)
    if dither is not None:
        return ((most + size.copysign(v)) / 2 + dither).floor().clamp(0, most).to(torch.uint8)
    step = ((size - 1) / 2 - 0.5).ceil().clamp(0, most // 2)  # levels from the innermost outwards
    return torch.where(v > 0, most // 2 + 1 + step, most // 2 - step).to(torch.uint8)


def values_of(codes: Codes) -> Tensor:
    """What codes stand for."""
    return codes.values()
