"""What the server sends so that a client has its model, counted: see `joulegrad.downlink`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from joulegrad import Layout
from joulegrad.downlink import Versions

__all__ = ["Downlink"]


class Downlink:
    """Counts the bytes of broadcasts; the bytes are those of payloads that are really made.

    Args:
        mode: "dense" or "delta".
        clients: how many.
    """

    def __init__(self, mode: str, layout: Layout, clients: int) -> None:
        self.mode, self.versions = mode, Versions(layout)
        self.seen = np.full(clients, -1, np.int32)  # which version of the model each client has
        self.whole: int | None = None
        self.deltas: dict[int, int] = {}  # of clients that have seen a version, in this round

    def send(self, client: int, t: int, weights: Tensor, buffers: Tensor) -> int:
        """The bytes to bring a client to version t."""
        seen = int(self.seen[client])
        self.seen[client] = t
        if self.whole is None:  # always as long: every entry as it is
            self.whole = len(self.versions.whole(weights, buffers))
        if self.mode == "dense" or seen < 0:
            return self.whole
        if seen not in self.deltas:
            self.deltas[seen] = min(self.whole, len(self.versions.delta(seen, weights, buffers)))
        return self.deltas[seen]

    def changed(self, before: Tensor, after: Tensor, version: int) -> None:
        """The server has stepped."""
        self.deltas = {}
        if self.mode == "delta":
            self.versions.changed(before, after, version)

    def state(self) -> dict[str, Tensor]:
        """For the checkpoint."""
        return {"seen": torch.from_numpy(self.seen), **({"since": self.versions.since} if self.mode == "delta" else {})}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As the checkpoint says."""
        self.seen = state["seen"].numpy().copy()
        if "since" in state:
            self.versions.since = state["since"].clone()
