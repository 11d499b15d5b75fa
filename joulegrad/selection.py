"""What to send: stateless rules that choose entries of an update.

    TopK            the k entries of largest |g_j|
    CWMP            the k entries of largest |g_j| / c_j: worth per joule
    BudgetedCWMP    the most worth under a count and an energy budget, with a certificate
    Threshold       every entry worth at least so much per joule
    RandomK         k entries drawn at random
    PerLayer        any of them in each layer by itself
    PerChunk        the k entries of largest |g_j| in each run of so many entries
    Blocks          any of them over aligned runs of entries

Each is a frozen dataclass and its own configuration; what it leaves behind is forgotten (see `feedback` for
remembering it).
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from joulegrad import kernels
from joulegrad.compressor import (
    Priced,
    Rule,
    State,
    check_joules,
    check_power,
    check_seed,
    check_size,
    how_many,
    innermost,
    is_count,
    with_innermost,
)
from joulegrad.cost import Cost, Finer, Prices, Uniform, check_cost, is_finite
from joulegrad.kernels import reference
from joulegrad.layout import Layout, Segment
from joulegrad.sparse import SparseUpdate

__all__ = ["CWMP", "Blocks", "BudgetedCWMP", "Certificate", "PerChunk", "PerLayer", "RandomK", "Threshold", "TopK"]


@dataclass(frozen=True)
class TopK(Rule):
    """The k entries of largest magnitude |g_j|.

    Ties go to the lower index; exactly min(k, d) entries are sent, zeros too if there are too few others.

    Args:
        k: how many entries.
        density: instead of k, which fraction of all entries (rounded down, at least one).

    Example:
        >>> op = TopK(k=2)
        >>> sent, _ = op(torch.tensor([1.0, -3.0, 2.0]), op.init(Layout.from_shapes({"w": (3,)})))
        >>> sent.indices
        tensor([1, 2])

    Reference: the paper, equation (1).
    """

    meets_all = True

    k: int | None = None
    density: float | None = None

    def __post_init__(self) -> None:
        check_size(self)

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        """The k largest |g_j|."""
        k = how_many(self, state.prices.layout.size)
        return kernels.largest(kernels.Scores(update), k), state


@dataclass(frozen=True)
class CWMP(Rule):
    """Cost-Weighted Magnitude Pruning: the k entries of largest worth per joule, s_j = |g_j| / c_j.

    Equal costs make it Top-K. Its energy never exceeds Top-K's at the same k, for any g and c (docs/theory.md).
    With a budget, `joules`, it sends the longest prefix of the ranking that meets both |S| ≤ k and μ(S) ≤ joules,
    which is empty when the first in rank is too dear already; `BudgetedCWMP` spends the budget better.

    Args:
        k: how many entries.
        density: instead of k, which fraction of all entries (rounded down, at least one).
        cost: joules per entry (see `joulegrad.cost`).
        power: 1 for the paper's |g| / c; 2 for g² / c, the density that minimises ‖g − m ⊙ g‖₂.
        joules: an energy budget in the cost model's unit; None: no budget.

    Example:
        >>> layout = Layout.from_shapes({"conv": (2,), "head": (2,)})
        >>> op = CWMP(k=2, cost=Table({"conv": 1.0, "head": 5.0}))
        >>> sent, _ = op(torch.tensor([1.0, 0.5, 4.0, 6.0]), op.init(layout))
        >>> sent.indices    # scores: 1.0, 0.5, 0.8, 1.2
        tensor([0, 3])

    Reference: the paper, equations (4) and (5), Algorithm 1.
    """

    meets_all = True

    k: int | None = None
    density: float | None = None
    _: KW_ONLY
    cost: Cost
    power: int = 1
    joules: float | None = None

    def __post_init__(self) -> None:
        check_size(self)
        check_power(self.power)
        check_cost(self.cost)
        if self.joules is not None:
            check_joules(self.joules)

    def prices(self, layout: Layout) -> Prices:
        """What the cost model says."""
        return Prices.of(self.cost, layout)

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        """The k largest |g_j| / c_j, as many of them as the budget allows."""
        state = Priced(state.prices.to(update.device))
        k = how_many(self, state.prices.layout.size)
        scores = kernels.Scores(update, self.power, state.prices)
        if self.joules is None:
            return kernels.largest(scores, k), state
        return kernels.prefix_within(scores, k, self.joules), state


class Certificate(NamedTuple):
    """How good a set is, proved: no set that keeps both budgets is worth more than `bound`.

    Example:
        >>> Certificate(value=9.0, bound=9.5, joules=4.0, energy_price=0.5, entry_price=0.0).gap
        0.5
    """

    value: float  # Σ_{j∈S} |g_j|^power, what was achieved
    bound: float  # the dual's value, an upper bound on what can be
    joules: float  # μ(S), what it costs
    energy_price: float  # λ: what one more joule would be worth
    entry_price: float  # ν: what one more entry would be worth

    @property
    def gap(self) -> float:
        """Bound − value ≥ 0; zero proves that the set is optimal."""
        return self.bound - self.value


class Certified(NamedTuple):
    """State of `BudgetedCWMP`: prices, and the last choice's certificate."""

    prices: Prices
    certificate: Certificate | None


@dataclass(frozen=True)
class BudgetedCWMP(Rule):
    """The most worth under both constraints: max Σ_{j∈S} |g_j|  s.t.  |S| ≤ k (C1),  μ(S) ≤ joules (C2).

    Solved through the Lagrangian dual, whose multipliers λ and ν price energy and entries: worth the optimum up
    to the two largest entries, and `state.certificate` says how close it is. Entries that are zero are never
    sent, so a zero update or a budget below the cheapest entry gives the empty set.

    Args:
        k: how many entries at most.
        density: instead of k, which fraction of all entries (rounded down, at least one).
        cost: joules per entry (see `joulegrad.cost`).
        joules: how much energy at most, in the cost model's unit.
        power: 1 for the paper's objective Σ|g|; 2 for Σg².

    Example:
        >>> layout = Layout.from_shapes({"conv": (2,), "head": (2,)})
        >>> op = BudgetedCWMP(k=2, joules=6.0, cost=Table({"conv": 1.0, "head": 5.0}))
        >>> sent, state = op(torch.tensor([1.0, 0.5, 4.0, 6.0]), op.init(layout))
        >>> sent.indices, state.certificate.value, state.certificate.gap
        (tensor([0, 3]), 7.0, 0.0)

    Reference: the paper, equation (3) with (C1) and (C2); docs/theory.md for the certificate.
    """

    meets_all = True

    k: int | None = None
    density: float | None = None
    _: KW_ONLY
    cost: Cost
    joules: float
    power: int = 1

    def __post_init__(self) -> None:
        check_size(self)
        check_power(self.power)
        check_cost(self.cost)
        check_joules(self.joules)

    def prices(self, layout: Layout) -> Prices:
        """What the cost model says."""
        return Prices.of(self.cost, layout)

    def start(self, prices: Prices) -> Certified:
        """The state to begin with: no certificate yet."""
        return Certified(prices, None)

    def choose(self, update: Tensor, state: Certified) -> tuple[Tensor, Certified]:
        """The best set, with its certificate in the state."""
        prices = state.prices.to(update.device)
        k = how_many(self, prices.layout.size)
        best = kernels.budgeted(kernels.Scores(update, self.power, prices), k, self.joules)
        certificate = Certificate(
            best.value, best.bound, prices.total(best.indices), best.energy_price, best.entry_price
        )
        return best.indices, Certified(prices, certificate)


@dataclass(frozen=True)
class Threshold(Rule):
    """Every entry worth at least `at` per joule, |g_j|^power / c_j ≥ at.

    One threshold for all clients is one energy price λ for the fleet, which splits a fleet's joules optimally;
    with `Uniform()` costs it is a plain magnitude threshold.

    Args:
        at: the least score that is sent; 0 sends everything.
        cost: joules per entry (see `joulegrad.cost`).
        power: 1 for |g| / c; 2 for g² / c.
        k: at most so many entries, the best ones; None: no limit.
        density: the same limit as a fraction of all entries.

    Example:
        >>> op = Threshold(at=2.0)
        >>> sent, _ = op(torch.tensor([1.0, -3.0, 2.0]), op.init(Layout.from_shapes({"w": (3,)})))
        >>> sent.indices
        tensor([1, 2])

    Reference: the paper, Lemma 1 (λ is the threshold).
    """

    meets_all = True

    at: float
    _: KW_ONLY
    cost: Cost = Uniform()
    power: int = 1
    k: int | None = None
    density: float | None = None

    def __post_init__(self) -> None:
        check_size(self, required=False)
        check_power(self.power)
        check_cost(self.cost)
        if not is_finite(self.at) or self.at < 0:
            raise ValueError(f"at must be a finite number ≥ 0, got {self.at!r}")

    def prices(self, layout: Layout) -> Prices:
        """What the cost model says."""
        return Prices.of(self.cost, layout)

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        """All scores ≥ at, the k best of them if there are more."""
        state = Priced(state.prices.to(update.device))
        limited = self.k is not None or self.density is not None
        k = how_many(self, state.prices.layout.size) if limited else None
        return kernels.at_least(kernels.Scores(update, self.power, state.prices), self.at, k), state


class Drawn(NamedTuple):
    """State of `RandomK`: how many draws there have been."""

    prices: Prices
    step: Tensor


@dataclass(frozen=True)
class RandomK(Rule):
    """k entries drawn without replacement, each set of k equally likely.

    The draw is a function of `seed`, the layout and the number of calls: no global generator is touched, and
    clients that share a seed send the same entries. `unbiased=True` scales values by d/k, so that E[m ⊙ g] = g.

    Args:
        k: how many entries.
        density: instead of k, which fraction of all entries (rounded down, at least one).
        seed: of the operator's own generator.
        unbiased: scale what is sent by d/k.

    Example:
        >>> op = RandomK(k=2, seed=1, unbiased=True)
        >>> sent, state = op(torch.ones(6), op.init(Layout.from_shapes({"w": (6,)})))
        >>> len(sent), sent.values
        (2, tensor([3., 3.]))

    Reference: Stich, Cordonnier, Jaggi, Sparsified SGD with Memory, 2018.
    """

    k: int | None = None
    density: float | None = None
    _: KW_ONLY
    seed: int = 0
    unbiased: bool = False

    def __post_init__(self) -> None:
        check_size(self)
        check_seed(self.seed)

    def start(self, prices: Prices) -> Drawn:
        """The state to begin with."""
        return Drawn(prices, torch.tensor(0))

    def choose(self, update: Tensor, state: Drawn) -> tuple[Tensor, Drawn]:
        """The draw of this step."""
        layout, step = state.prices.layout, int(state.step)
        generator = np.random.default_rng([self.seed, int(layout.fingerprint, 16), step])
        draw = generator.choice(layout.size, how_many(self, layout.size), replace=False, shuffle=False)
        indices = torch.from_numpy(np.sort(draw).astype(np.int64)).to(update.device)
        return indices, Drawn(state.prices, torch.tensor(step + 1))

    def __call__(self, update: Tensor, state: Drawn) -> tuple[SparseUpdate, Drawn]:
        """Send them, scaled by d/k if unbiased."""
        sent, state = super().__call__(update, state)
        if self.unbiased and len(sent):
            values = sent.values * (sent.size / len(sent))
            if not kernels.all_finite(values):
                raise ValueError(f"an entry times d/k = {sent.size / len(sent):g} is too large for {values.dtype}")
            sent = replace(sent, values=values)
        return sent, state


class Nested(NamedTuple):
    """State of a rule made of another: one inner state, or one a layer."""

    prices: Prices
    inner: State


@dataclass(frozen=True)
class PerLayer(Rule):
    """Any rule in each layer by itself: S = ∪_l S_l, with k, density and joules meant per layer.

    Costs are those of the whole model (a classifier stays a classifier).

    Args:
        inner: a rule of this module.

    Example:
        >>> layout = Layout.from_shapes({"conv": (3,), "head": (2,)})
        >>> op = PerLayer(TopK(k=1))
        >>> sent, _ = op(torch.tensor([1.0, 3.0, 2.0, 0.1, 0.2]), op.init(layout))
        >>> sent.indices
        tensor([1, 4])
    """

    inner: Rule

    def __post_init__(self) -> None:
        _check_rule(self)

    def prices(self, layout: Layout) -> Prices:
        """What the inner rule's cost model says of the whole model."""
        return self.inner.prices(layout)

    def start(self, prices: Prices) -> Nested:
        """One inner state a layer."""
        layers = range(len(prices.layout.segments))
        return Nested(prices, tuple(self.inner.start(prices.segment(i)) for i in layers))

    def choose(self, update: Tensor, state: Nested) -> tuple[Tensor, Nested]:
        """Each layer's choice, at its place in the whole."""
        chosen, states = [], []
        for s, inner in zip(state.prices.layout.segments, state.inner, strict=True):
            indices, inner = self.inner.choose(update[s.start : s.stop], inner)
            chosen.append(indices + s.start)
            states.append(inner)
        return torch.cat(chosen), Nested(state.prices, tuple(states))


@dataclass(frozen=True)
class PerChunk(Rule):
    """The k entries of largest |g_j| in each run of `entries` consecutive ones by itself.

    Chunks start with their layer and do not cross into the next, so that a layer's last one may be short. Nothing is
    ranked across chunks: they can be worked on side by side, wherever they lie.

    Args:
        k: how many entries of each chunk.
        density: instead of k, which fraction of each chunk (rounded down, at least one).
        entries: how many make a chunk.

    Example:
        >>> op = PerChunk(k=1, entries=2)
        >>> sent, _ = op(torch.tensor([9.0, 8.0, -1.0, 1.0, 0.5]), op.init(Layout.from_shapes({"w": (5,)})))
        >>> sent.indices
        tensor([0, 2, 4])

    Reference: Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo, 2025.
    """

    k: int | None = None
    density: float | None = None
    _: KW_ONLY
    entries: int = 4096

    def __post_init__(self) -> None:
        check_size(self)
        _check_entries(self.entries)

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        """The k largest |g_j| of each chunk."""
        chosen = []
        for s in state.prices.layout.segments:
            last = s.stop - s.size % self.entries  # where the short one begins
            whole, short = update[s.start : last].view(-1, self.entries), update[last : s.stop].view(1, -1)
            for start, rows in ((s.start, whole), (last, short)):
                if rows.numel():
                    chosen.append(start + _largest_of_each(rows.abs(), how_many(self, rows.shape[1])))
        return torch.cat(chosen), state


def _largest_of_each(rows: Tensor, k: int) -> Tensor:
    """Places of each row's k largest in the whole, ties to the lower index: `reference.best`, side by side."""
    if k == 0:
        return torch.arange(0, device=rows.device)
    threshold = rows.topk(k, dim=1).values[:, -1:]
    above, ties = rows > threshold, rows == threshold
    room = k - above.sum(1, keepdim=True)
    return (above | (ties & (ties.cumsum(1) <= room))).flatten().nonzero().squeeze(1)


@dataclass(frozen=True)
class Blocks(Rule):
    """Any rule over aligned runs of entries: a block's worth is Σ|g_j|^power, its cost Σc_j.

    Memory is read in lines and one index serves a whole block. Blocks start with their layer and do not cross
    into the next (a layer's last one may be short). The inner rule chooses among blocks: its k counts blocks,
    its density is a fraction of them, its joules stay joules.

    Args:
        inner: a rule of this module.
        entries: how many entries make a block.

    Example:
        >>> op = Blocks(TopK(k=1), entries=2)
        >>> sent, _ = op(torch.tensor([0.0, 3.0, 2.0, 2.0, 1.0]), op.init(Layout.from_shapes({"w": (5,)})))
        >>> sent.indices    # worth of the blocks: 3, 4, 1
        tensor([2, 3])
    """

    inner: Rule
    entries: int = 16

    def __post_init__(self) -> None:
        _check_rule(self)
        _check_entries(self.entries)

    def prices(self, layout: Layout) -> Prices:
        """What the inner rule's cost model says of the whole model."""
        return self.inner.prices(layout)

    def start(self, prices: Prices) -> Nested:
        """The inner rule's state, over a layout whose entries are the blocks."""
        segments, at = [], 0
        for s in prices.layout.segments:
            segments.append(Segment(s.name, (math.ceil(s.size / self.entries),), s.kind, at))
            at = segments[-1].stop
        blocks = Layout(tuple(segments))
        finer = Finer(prices, *self._blocks(prices.layout))
        each = prices.at(torch.arange(prices.layout.size))
        costs = torch.segment_reduce(each, "sum", lengths=finer.lengths)
        return Nested(prices, self.inner.start(Prices(blocks, costs, False, finer)))

    def choose(self, update: Tensor, state: Nested) -> tuple[Tensor, Nested]:
        """The entries of the blocks that the inner rule chooses."""
        blocks = Finer(state.prices, *(t.to(update.device) for t in self._blocks(state.prices.layout)))
        rule, inner = innermost(self), self.inner
        worth = reference.values(kernels.Scores(update, getattr(rule, "power", 1)))
        worth = torch.segment_reduce(worth, "sum", lengths=blocks.lengths)
        if hasattr(rule, "power"):
            inner = with_innermost(inner, power=1)  # worth has been raised to it already
        chosen, inner_state = inner.choose(worth, state.inner)
        return blocks.entries(chosen), Nested(state.prices, inner_state)

    def _blocks(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """Where each block starts, and how many entries it has."""
        starts = torch.cat([torch.arange(s.start, s.stop, self.entries) for s in layout.segments])
        return starts, torch.diff(starts, append=torch.tensor([layout.size]))


def _check_entries(entries: int) -> None:
    if not is_count(entries) or entries < 1:
        raise ValueError(f"entries must be a whole number ≥ 1, got {entries!r}")


def _check_rule(wrapper: PerLayer | Blocks) -> None:
    name = type(wrapper).__name__
    if not isinstance(wrapper.inner, Rule):
        raise ValueError(
            f"{name} chooses entries, so it goes around a selection rule (TopK, CWMP, …) and inside everything "
            f"else; got {wrapper.inner!r}"
        )
    if getattr(innermost(wrapper), "unbiased", False):
        raise ValueError(f"RandomK(unbiased=True) scales values, which {name} would lose: it chooses entries only")
