"""What is ranked."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from joulegrad.cost import Prices

__all__ = ["NotFinite", "Scores"]


class NotFinite(ArithmeticError):
    """There is a NaN or an infinity in the update: it has no rank."""


class Scores(NamedTuple):
    """s_j = |g_j|^power / c_j, not computed before a kernel wants them; without prices |g_j|^power.

    Prices lie where the update is.
    """

    update: Tensor
    power: int = 1
    prices: Prices | None = None

    @property
    def worth(self) -> Scores:
        """The same without prices."""
        return Scores(self.update, self.power)

    def to(self, device: torch.device) -> Scores:
        """The same on another device; itself if it is there already."""
        return Scores(self.update.to(device), self.power, self.prices and self.prices.to(device))
