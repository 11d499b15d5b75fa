"""Costs that follow what is sent: each layer priced at the density of the last update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from joulegrad.compressor import Rule, State, innermost
from joulegrad.cost import Prices
from joulegrad.layout import Layout

__all__ = ["Repriced"]


class Followed(NamedTuple):
    """State of `Repriced`: the first prices, the inner rule's state, and how much was sent of each layer."""

    prices: Prices
    inner: State
    sent: Tensor  # entries a segment; -1 before the first update


@dataclass(frozen=True)
class Repriced(Rule):
    """A rule whose costs depend on densities, at the densities of the last update: c_{t+1} = c(|S_t ∩ l| / n_l).

    The denser a layer has become, the fewer bits its indices take and the more its memory lines are shared, so the
    cheaper its entries are next time. The first update is priced at the density that the cost itself names.

    Args:
        inner: a rule with a cost that has `at(counts, layout)`, as `Device` has.

    Example:
        >>> layout = Layout.from_shapes({"conv": (100,), "fc": (100,)})
        >>> op = Repriced(CWMP(k=20, cost=Device("rpi4", "wifi-rpi4", density=0.1)))
        >>> g = torch.linspace(1.0, 2.0, 200)
        >>> sent, state = op(g, op.init(layout))
        >>> state.sent      # what the next update is priced by
        tensor([ 0, 20])
    """

    inner: Rule

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Rule):
            raise ValueError(
                f"Repriced goes around a selection rule with a cost, such as CWMP, and inside everything else; got "
                f"{self.inner!r}"
            )
        cost = getattr(innermost(self), "cost", None)
        if not callable(getattr(cost, "at", None)):
            raise ValueError(f"Repriced needs a rule whose cost depends on densities, as Device(…) does; got {cost!r}")

    def prices(self, layout: Layout) -> Prices:
        """What the cost says before anything is sent."""
        return self.inner.prices(layout)

    def start(self, prices: Prices) -> Followed:
        """The state to begin with."""
        return Followed(prices, self.inner.start(prices), torch.full((len(prices.layout.segments),), -1))

    def choose(self, update: Tensor, state: Followed) -> tuple[Tensor, Followed]:
        """The inner rule's choice at the prices of the last update's densities."""
        layout, inner = state.prices.layout, state.inner
        if int(state.sent[0]) >= 0:
            cost = innermost(self).cost.at(state.sent.tolist(), layout)
            inner = self.inner.start(Prices.of(cost, layout))
        indices, inner = self.inner.choose(update, inner)
        upto = torch.searchsorted(indices.cpu(), layout.ends)
        return indices, Followed(state.prices, inner, upto.diff(prepend=upto.new_zeros(1)))
