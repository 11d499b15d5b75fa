"""One deliberately broken operator a law: each must fail its law, or the law proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import laws
import torch
from operators import JOULES, SIZE, K, Row
from torch import Tensor

import joulegrad as jg
from joulegrad import kernels
from joulegrad.compressor import Priced
from joulegrad.kernels import reference


@dataclass(frozen=True)
class OneTooMany(jg.Rule):
    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        return reference.best(update.abs(), K + 1), state


@dataclass(frozen=True)
class Unsorted(jg.Rule):
    """Gets past the check of SparseUpdate, which is made on the CPU alone."""

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        return reference.best(update.abs(), K), state

    def __call__(self, update: Tensor, state: Priced) -> tuple[jg.SparseUpdate, Priced]:
        sent, state = super().__call__(update, state)
        object.__setattr__(sent, "indices", sent.indices.flip(0))
        return sent, state


@dataclass(frozen=True)
class Moody(jg.Rule):
    """Draws from the global generator."""

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        return torch.randperm(len(update))[:K].sort().values, state


@dataclass(frozen=True)
class Spoiler(jg.Rule):
    """Writes into the update."""

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        chosen = reference.best(update.abs(), K)
        update[chosen] += 1.0
        return chosen, state


@dataclass(frozen=True)
class Forgetful:
    """Drops a tenth of the residual, and does not say so."""

    remembers = True
    inner: jg.Compressor = field(default_factory=lambda: jg.TopK(k=K))

    def init(self, layout: jg.Layout) -> Any:
        return jg.ErrorFeedback(self.inner).init(layout)

    def __call__(self, update: Tensor, state: Any) -> tuple[jg.SparseUpdate, Any]:
        sent, state = jg.ErrorFeedback(self.inner)(update, state)
        return sent, state._replace(residual=0.9 * state.residual)


@dataclass(frozen=True)
class Amnesiac(Forgetful):
    """Remembers in itself and not in its state, so that what is saved is not all."""

    memory: list[Tensor] = field(default_factory=list)

    def __call__(self, update: Tensor, state: Any) -> tuple[jg.SparseUpdate, Any]:
        self.memory.append(update)
        mean = torch.stack(self.memory[-3:]).mean(0)
        return self.inner(mean, self.inner.init(state.layout))[0], state


@dataclass(frozen=True)
class Scored(jg.Rule):
    """Ranks by some other score."""

    cost: jg.Cost
    score: Callable[[Tensor, Tensor], Tensor]

    def prices(self, layout: jg.Layout) -> jg.Prices:
        return jg.Prices.of(self.cost, layout)

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        everything = torch.arange(len(update))
        s = self.score(update.double().abs(), state.prices.at(everything))
        return reference.best(s, K), state


@dataclass(frozen=True)
class Spendthrift(jg.Rule):
    """Keeps nearly to its budget: what is spent may be a tenth more."""

    cost: jg.Cost

    def prices(self, layout: jg.Layout) -> jg.Prices:
        return jg.Prices.of(self.cost, layout)

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        scores = kernels.Scores(update, 1, state.prices)
        return kernels.prefix_within(scores, SIZE, 1.1 * JOULES), state


@dataclass(frozen=True)
class StrideBlind(jg.Rule):
    """Reads memory as if it were contiguous."""

    def __call__(self, update: Tensor, state: Priced) -> tuple[jg.SparseUpdate, Priced]:
        return super().__call__(torch.as_strided(update, (len(update),), (1,)), state)

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        return reference.best(update.abs(), K), state


def by_place(g: Tensor, c: Tensor) -> Tensor:
    return g / c * (1 + torch.arange(len(g)))


def difference(g: Tensor, c: Tensor) -> Tensor:
    return g - c


def by_price_of_neighbours(g: Tensor, c: Tensor) -> Tensor:
    return g * (2 + torch.arange(len(g)).double().sin())


def row(make: Callable[..., Any]) -> Row:
    return Row("broken", make, lambda: jg.TopK(k=K), K)


BROKEN: list[tuple[Callable[[Row], None], Row]] = [
    (laws.budget_kept, row(lambda c, f: OneTooMany())),
    (laws.budget_kept, Row("broken", lambda c, f: Spendthrift(c), lambda: jg.TopK(k=K), SIZE, joules=JOULES)),
    (laws.indices_increase, row(lambda c, f: Unsorted())),
    (laws.deterministic, row(lambda c, f: Moody())),
    (laws.inputs_untouched, row(lambda c, f: Spoiler())),
    (laws.sent_plus_residual_is_given, row(lambda c, f: Forgetful())),
    (laws.equal_costs_make_it_topk, row(lambda c, f: Scored(c, by_price_of_neighbours))),
    (laws.units_do_not_matter, row(lambda c, f: Scored(c, difference))),
    (laws.layers_may_move, row(lambda c, f: Scored(c, by_place))),
    (laws.pickles, row(lambda c, f: Scored(c, lambda g, c: g / c))),
    (laws.strides_do_not_matter, row(lambda c, f: StrideBlind())),
    (laws.resumes, row(lambda c, f: Amnesiac())),
]
