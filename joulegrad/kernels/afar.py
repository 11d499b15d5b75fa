"""Both budgets for an update that is not on the CPU: the search is the CPU's, and asks only for the entries in doubt.

What a price of energy may choose is told apart where the update is, in plain torch: some twenty readings, no kernel of
our own. Of each entry that may be chosen 24 bytes are copied, its place, worth and cost, and nothing of any other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad.kernels import reference
from joulegrad.kernels.dual import Bracket
from joulegrad.kernels.scores import NotFinite, Scores

__all__ = ["There"]

Doubles = NDArray[np.float64]


class There(NamedTuple):
    """An update elsewhere, as `dual.Source` asks for it."""

    scores: Scores

    @property
    def size(self) -> int:
        """How many entries there are."""
        return len(self.scores.update)

    @property
    def dearest(self) -> float:
        """What the dearest of them costs."""
        return float(reference.priced(self.scores).joules.max())

    def sample(self, m: int) -> tuple[Doubles, Doubles]:
        """One from each of m equal runs; a hash of the run's number says which, what is not finite counts as 0."""
        d, device = self.size, self.scores.update.device
        i = torch.arange(m + 1, device=device)
        starts = i * d // m
        hashed = i[:-1] * 0x9E3779B1 % 2**32
        at = starts[:-1] + (hashed ^ (hashed >> 15)) % starts.diff()
        worth = reference.values_at(self.scores.worth, at).nan_to_num(0.0, 0.0, 0.0)
        return worth.cpu().numpy(), reference.priced(self.scores).at(at).cpu().numpy()

    def gather(self, bracket: Bracket, joules: float) -> tuple[NDArray[np.int64], Doubles, Doubles]:
        """Of the entries that a price of the bracket may choose, in order: places, worths and costs."""
        update, power, _ = self.scores
        prices = reference.priced(self.scores)

        def may_be_chosen(g: Tensor, cost: Tensor) -> Tensor:
            worth = g.to(torch.float64).abs()
            reduced = (worth * worth if power == 2 else worth) - bracket.low * cost
            return (reduced > 0) & (reduced >= bracket.entry_price) & (cost <= joules)

        if not reference.all_finite(update):
            raise NotFinite
        at = reference.each_segment(update, prices, may_be_chosen).nonzero().squeeze(1)
        worth, cost = reference.values_at(self.scores.worth, at), prices.at(at)
        return at.cpu().numpy(), worth.cpu().numpy(), cost.cpu().numpy()
