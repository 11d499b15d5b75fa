"""What the server sends so that a client has its model: the whole, or what has changed since its last round.

A delta holds new values at the places that changed, not differences: the client's copy is then the server's to the
last bit. Whichever payload is shorter is sent; buffers always travel whole. A client that was away catches up with one
payload, whatever it missed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

import joulegrad
from joulegrad import Layout, SparseUpdate

__all__ = ["Downlink"]


class Downlink:
    """Counts the bytes of broadcasts; the bytes are those of payloads that are really made.

    Args:
        mode: "dense" or "delta".
        clients: how many.
    """

    def __init__(self, mode: str, layout: Layout, clients: int) -> None:
        self.mode, self.layout = mode, layout
        self.seen = np.full(clients, -1, np.int32)  # which version of the model each client has
        self.since = torch.zeros(layout.size, dtype=torch.int32)  # with which version each entry last changed
        self.whole: int | None = None
        self.deltas: dict[int, int] = {}  # of clients that have seen a version, in this round

    def send(self, client: int, t: int, weights: Tensor, buffers: Tensor) -> int:
        """The bytes to bring a client to version t."""
        seen = int(self.seen[client])
        self.seen[client] = t
        if self.whole is None:  # always as long: every entry as it is
            self.whole = self._length(torch.arange(self.layout.size), weights, buffers)
        if self.mode == "dense" or seen < 0:
            return self.whole
        if seen not in self.deltas:
            changed = (self.since > seen).nonzero().squeeze(1)
            self.deltas[seen] = min(self.whole, self._length(changed, weights, buffers))
        return self.deltas[seen]

    def _length(self, indices: Tensor, weights: Tensor, buffers: Tensor) -> int:
        update = SparseUpdate(indices, weights[indices], self.layout.size)
        return len(joulegrad.encode(update.with_buffers(buffers) if self.layout.buffers else update, self.layout))

    def changed(self, before: Tensor, after: Tensor, version: int) -> None:
        """The server has stepped."""
        self.deltas = {}
        if self.mode == "delta":
            self.since[before.view(torch.int32) != after.view(torch.int32)] = version  # 0.0 and −0.0 differ

    def state(self) -> dict[str, Tensor]:
        """For the checkpoint."""
        return {"seen": torch.from_numpy(self.seen), **({"since": self.since} if self.mode == "delta" else {})}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As the checkpoint says."""
        self.seen = state["seen"].numpy().copy()
        if "since" in state:
            self.since = state["since"].clone()
