"""The specification of selection: slow, obvious, plain torch.

Every faster kernel must equal these functions on every input:

- scores are float64: |g|^power / c, one rounding a step;
- of equal scores the lower index goes first;
- indices come back strictly increasing (int64), on the update's device;
- sums of joules are the correctly rounded float64 sum, whatever the order (`Prices.total`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from joulegrad.cost import Prices

__all__ = ["Budgeted", "at_least", "budgeted", "first_nonfinite", "largest", "prefix_within", "scores"]


def first_nonfinite(g: Tensor) -> int | None:
    """The lowest index of a NaN or an infinity, None where there is none."""
    finite = torch.isfinite(g)
    return None if bool(finite.all()) else int((~finite).nonzero()[0])


def scores(g: Tensor, power: int, prices: Prices | None = None) -> Tensor:
    """s_j = |g_j|^power / c_j in float64; without prices, |g_j|^power."""
    s = g.to(torch.float64).abs()
    s = s * s if power == 2 else s
    if prices is None:
        return s
    return _each_segment(s, prices, lambda part, c: part / c)


def largest(s: Tensor, k: int) -> Tensor:
    """Indices of the min(k, d) largest: all above the k-th largest, and of those equal to it the first."""
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


def at_least(s: Tensor, threshold: float, k: int | None = None) -> Tensor:
    """Indices of all scores ≥ threshold; where they are more than k, the k largest."""
    if k is None:
        return (s >= threshold).nonzero().squeeze(1)
    best = largest(s, k)
    return best[s[best] >= threshold]


def prefix_within(s: Tensor, k: int, joules: float, prices: Prices) -> Tensor:
    """Indices of the longest prefix of the ranking with at most k entries and at most `joules`."""
    best = largest(s, k)
    ranked = best[s[best].sort(descending=True, stable=True).indices]
    return _longest_prefix(ranked, joules, prices).sort().values


class Budgeted(NamedTuple):
    """A feasible set, and the proof of how good it is (see `docs/theory.md`)."""

    indices: Tensor
    value: float  # Σ_{j∈S} |g_j|^power
    bound: float  # no feasible set is worth more
    energy_price: float  # λ, worth per joule
    entry_price: float  # ν, worth per entry


def budgeted(worth: Tensor, k: int, joules: float, prices: Prices) -> Budgeted:
    """Maximise Σ_{j∈S} worth_j subject to |S| ≤ k and μ(S) ≤ joules, up to two entries' worth.

    The Lagrangian dual D(λ) = λE + Σ of the k largest positive (worth_j − λ c_j) is convex and piecewise
    linear in λ; every λ gives an upper bound. Its minimum lies where the chosen set's energy crosses E. Two
    sets bracket it, `over` (too much energy, λ too low) and `under`; the next λ is where their two tangents
    meet. When D lies on the tangents there, both sets are optimal at that λ, and the best mixture of the two
    (which the LP's basic solution is, with at most two fractional entries) is rounded down.
    """
    # An entry that costs more than the whole budget is in no feasible set.
    worth = _affordable(worth, prices, joules)

    def best_at(price: float) -> tuple[Tensor, Tensor]:
        reduced = _each_segment(worth, prices, lambda w, c: w - price * c)
        chosen = largest(reduced, k)
        chosen = chosen[reduced[chosen] > 0]
        return chosen, reduced[chosen]

    def line(chosen: Tensor) -> tuple[float, float]:
        return math.fsum(worth[chosen].tolist()), prices.total(chosen)

    over, _ = best_at(0.0)
    value, energy = line(over)
    if energy <= joules:
        return Budgeted(over, value, value, 0.0, float(worth[over].min()) if 0 < len(over) == k else 0.0)
    over_at, under_at = 0.0, float(_each_segment(worth, prices, lambda w, c: w / c).max())
    under = over[:0]
    (v_over, e_over), (v_under, e_under) = (value, energy), (0.0, 0.0)
    bound, at, entry_price = under_at * joules, under_at, 0.0
    for step in range(200):
        halve = step % 4 == 3  # tangents alone can close in from one side only
        price = (over_at + under_at) / 2 if halve else (v_over - v_under) / (e_over - e_under)
        if not over_at < price < under_at:
            break
        chosen, reduced = best_at(price)
        dual = price * joules + math.fsum(reduced.tolist())
        if dual < bound:
            bound, at = dual, price
            entry_price = float(reduced.min()) if 0 < len(chosen) == k else 0.0
        value, energy = line(chosen)
        tangents = v_over + price * (joules - e_over)
        if energy > joules:
            over, over_at, v_over, e_over = chosen, price, value, energy
        else:
            under, under_at, v_under, e_under = chosen, price, value, energy
        if not halve and dual <= tangents + 1e-13 * abs(tangents):
            break
    dominant = worth.argmax().unsqueeze(0)[: min(k, 1)]  # one entry may outweigh all that the mixture keeps
    candidates = [under, _mixture(over, under, k, joules, prices), dominant]
    filled = [_filled(chosen, worth, k, joules, prices) for chosen in candidates]
    value, best = max(((line(s)[0], i) for i, s in enumerate(filled)), key=lambda pair: pair[0])
    return Budgeted(filled[best], value, max(bound, value), at, entry_price)


def _mixture(over: Tensor, under: Tensor, k: int, joules: float, prices: Prices) -> Tensor:
    """Round the mixture of two sets that are optimal at the same λ.

    They differ in entries whose worth is λc + ν: dearer is worth more. So, of those sorted by cost, take the
    dearest run of consecutive ones that fits beside what the two sets share: one swap further would break
    the budget, hence less than one entry's worth is lost.
    """
    shared = under[torch.isin(under, over)]
    either, times = torch.cat([over, under]).unique(return_counts=True)
    loose = either[times == 1]
    cost = prices.at(loose)
    order = cost.sort(stable=True).indices
    loose, cost = loose[order], cost[order]
    room = joules - prices.total(shared)
    n = min(k - len(shared), len(loose))
    total = torch.cat([cost.new_zeros(1), cost.cumsum(0)])
    runs = total[n:] - total[: len(total) - n]  # energy of the run of n that starts at each place
    fitting = int(torch.searchsorted(runs, room, right=True))
    if fitting > 0:
        start = int(torch.searchsorted(runs, runs[fitting - 1]))  # of equally dear runs the first
        picked = loose[start : start + n]
    else:
        picked = loose[: int(torch.searchsorted(total, room, right=True)) - 1]
    while len(picked) and prices.total(torch.cat([shared, picked])) > joules:  # the last bit of the sums
        picked = picked[:-1]
    return torch.cat([shared, picked]).sort().values


def _filled(chosen: Tensor, worth: Tensor, k: int, joules: float, prices: Prices) -> Tensor:
    """Spend what is left: the longest prefix of the ranking by worth per joule, among what still fits."""
    density = _each_segment(worth, prices, lambda w, c: w / c)
    density[chosen] = 0.0
    while len(chosen) < k:
        room = joules - prices.total(chosen)
        density = _affordable(density, prices, room)
        fits = largest(density, k - len(chosen))
        fits = fits[density[fits] > 0]
        ranked = fits[density[fits].sort(descending=True, stable=True).indices]
        added = _longest_prefix(ranked, joules, prices, chosen)
        if not len(added):
            break
        density[added] = 0.0
        chosen = torch.cat([chosen, added])
    return chosen.sort().values


def _longest_prefix(ranked: Tensor, joules: float, prices: Prices, beside: Tensor | None = None) -> Tensor:
    """As many of the ranked entries, in order, as the budget allows beside those that are in already."""

    def fits(n: int) -> bool:
        taken = ranked[:n] if beside is None else torch.cat([beside, ranked[:n]])
        return prices.total(taken) <= joules

    room = joules if beside is None else joules - prices.total(beside)
    running = prices.at(ranked).cumsum(0)
    guess = int(torch.searchsorted(running, room, right=True))
    # The running sum finds the place up to rounding; the sum that is reported decides.
    low, high = (guess, len(ranked)) if fits(guess) else (0, guess - 1)
    while low < high:
        middle = low + 1 if low == guess else (low + high + 1) // 2  # the guess is nearly always right
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return ranked[:low]


def _affordable(x: Tensor, prices: Prices, joules: float) -> Tensor:
    """x_j where c_j ≤ joules, 0 elsewhere."""
    return _each_segment(x, prices, lambda part, c: torch.where(c <= joules, part, 0.0))


def _each_segment(x: Tensor, prices: Prices, f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """f(x_j, c_j) for all j, without ever spelling out costs that are constant in a segment."""
    if not prices.piecewise:
        return f(x, prices.joules)
    parts = x.split([s.size for s in prices.layout.segments])
    return torch.cat([f(part, c) for part, c in zip(parts, prices.joules, strict=True)])
