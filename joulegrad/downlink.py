"""What the server sends so that a client has its model: the whole, or what has changed since.

A delta holds new values at the places that changed, not differences:

    w_j = v_j  for every j that changed after version a

so that the client's copy is then the server's to the last bit, whichever version from a on it was. Whichever payload is
shorter is sent; buffers always travel whole. A client that was away catches up with one payload, whatever it missed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joulegrad.layout import Layout
from joulegrad.sparse import SparseUpdate
from joulegrad.wire import decode, encode

__all__ = ["Versions", "received"]


class Versions:
    """With which version of a model each entry last changed, and the payloads that follow from it.

    Example:
        >>> layout, old, new = Layout.from_shapes({"w": (3,)}), torch.zeros(3), torch.tensor([0.0, 2.0, 0.0])
        >>> versions = Versions(layout)
        >>> versions.changed(old, new, 1)
        >>> payload = versions.delta(0, new, torch.empty(0))
        >>> received(payload, layout, old)[0]
        tensor([0., 2., 0.])
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.since = torch.zeros(layout.size, dtype=torch.int32)

    def changed(self, before: Tensor, after: Tensor, version: int) -> None:
        """The server has stepped to a version."""
        self.since[before.view(torch.int32) != after.view(torch.int32)] = version  # 0.0 and −0.0 differ

    def whole(self, weights: Tensor, buffers: Tensor) -> bytes:
        """Every entry, as it is: always as long."""
        return self._payload(torch.arange(self.layout.size), weights, buffers)

    def delta(self, seen: int, weights: Tensor, buffers: Tensor) -> bytes:
        """What has changed since a version."""
        return self._payload((self.since > seen).nonzero().squeeze(1), weights, buffers)

    def _payload(self, indices: Tensor, weights: Tensor, buffers: Tensor) -> bytes:
        update = SparseUpdate(indices, weights[indices], self.layout.size)
        return encode(update.with_buffers(buffers) if self.layout.buffers else update, self.layout)


def received(payload: bytes, layout: Layout, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The client's side: its weights with the new values in their places, and the buffers.

    Args:
        payload: the whole, or a delta.
        layout: of the model.
        weights: what the client has; None: nothing, so that the payload must be the whole.
    """
    update = decode(payload, layout)
    if weights is None and len(update) < layout.size:
        raise ValueError(f"a delta of {len(update):,} entries came to a client that has no model yet")
    new = torch.empty(layout.size) if weights is None else weights.clone()
    new[update.indices] = update.values.float()
    return new, torch.empty(0) if update.buffers is None else update.buffers
