"""What the server sends so that a client has its model, counted in the payloads that are really made.

Exact       the dense model, or what has changed since (`joulegrad.downlink`): a client has the server's model
Compressed  what an operator chooses of each round's movement: all clients have one model, and it trails the server's
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

import joulegrad
from joulegrad import Layout, SparseUpdate, kernels
from joulegrad.compressor import Compressor
from joulegrad.downlink import Versions
from joulegrad.lab.client import Diverged, not_finite_at
from joulegrad.lab.experiment import Experiment
from joulegrad.state import state_tensors

__all__ = ["Compressed", "Downlink", "Exact", "downlink"]

SEED_BYTES = 8  # from which a client draws the first model
STATE = "downlink "


class Downlink(Protocol):
    """The server's broadcasts."""

    def send(self, client: int, t: int, weights: Tensor, buffers: Tensor) -> int:
        """The bytes to bring a client to version t, the model before round t."""
        ...

    def changed(self, before: Tensor, after: Tensor, buffers: Tensor, version: int) -> None:
        """The server has stepped to a version."""
        ...

    def received(self, weights: Tensor) -> Tensor:
        """The weights of a client that is up to date, where the server's are these."""
        ...

    def state(self) -> dict[str, Tensor]:
        """For the checkpoint."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As the checkpoint says."""
        ...


def downlink(experiment: Experiment, layout: Layout, clients: int, weights: Tensor) -> Downlink:
    """What the experiment asks for, from the first model on."""
    drawn = experiment.initial == "drawn"
    if isinstance(experiment.downlink, str):
        return Exact(experiment.downlink, layout, clients, drawn=drawn)
    return Compressed(experiment.downlink, layout, clients, weights, drawn=drawn)


class Exact:
    """The server's model, to the last bit.

    Args:
        mode: "dense" or "delta".
        clients: how many.
        drawn: whether a client has the first model for the seed's bytes.
    """

    def __init__(self, mode: str, layout: Layout, clients: int, *, drawn: bool = False) -> None:
        self.mode, self.versions, self.drawn = mode, Versions(layout), drawn
        self.seen = np.full(clients, -1, np.int32)  # which version of the model each client has
        self.whole: int | None = None
        self.deltas: dict[int, int] = {}  # of clients that have seen a version, in this round

    def send(self, client: int, t: int, weights: Tensor, buffers: Tensor) -> int:
        """The whole, or what has changed since the client's version."""
        seen, seed = int(self.seen[client]), 0
        self.seen[client] = t
        if self.whole is None:  # always as long: every entry as it is
            self.whole = len(self.versions.whole(weights, buffers))
        if seen < 0 and self.drawn:
            seen, seed = 0, SEED_BYTES
            if t == 0:
                return seed
        if self.mode == "dense" or seen < 0:
            return self.whole
        if seen not in self.deltas:
            self.deltas[seen] = len(self.versions.delta(seen, weights, buffers))
        return min(self.whole, seed + self.deltas[seen])

    def changed(self, before: Tensor, after: Tensor, buffers: Tensor, version: int) -> None:
        """Deltas of another version are of no use."""
        self.deltas = {}
        if self.mode == "delta":
            self.versions.changed(before, after, version)

    def received(self, weights: Tensor) -> Tensor:
        """The server's."""
        return weights

    def state(self) -> dict[str, Tensor]:
        """Who has which version, and since when each entry is as it is."""
        return {"seen": torch.from_numpy(self.seen), **({"since": self.versions.since} if self.mode == "delta" else {})}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As the checkpoint says."""
        self.seen = state["seen"].numpy().copy()
        if "since" in state:
            self.versions.since = state["since"].clone()


class Compressed:
    """One payload a round for everybody: v_{t+1} = v_t + C(w_{t+1} − w_t), where v_t is what clients have.

    The operator's state is the server's memory: with `ErrorFeedback`, w − v is its residual, and nothing is lost;
    without, what is not sent never is. Every payload is encoded, decoded, and applied as clients apply it. Buffers
    travel whole in it. A client that was away gets all payloads that it missed, or the dense model if that is shorter.

    Args:
        operator: C.
        clients: how many.
        weights: w_0 = v_0.
        drawn: whether a client has the first model for the seed's bytes.

    Example:
        >>> layout = Layout.from_shapes({"w": (3,)})
        >>> old, new, none = torch.zeros(3), torch.tensor([1.0, 3.0, 0.0]), torch.empty(0)
        >>> down = Compressed(joulegrad.ErrorFeedback(joulegrad.TopK(k=1)), layout, 1, old)
        >>> down.changed(old, new, none, 1)
        >>> down.received(new)
        tensor([0., 3., 0.])
        >>> down.changed(new, new, none, 2)     # the server stands still, and its residual comes
        >>> down.received(new)
        tensor([1., 3., 0.])

    Reference: Tang et al., DoubleSqueeze, 2019; Sattler et al., Robust and Communication-Efficient Federated Learning
    from Non-i.i.d. Data, 2020, for the cache of broadcasts.
    """

    def __init__(
        self, operator: Compressor, layout: Layout, clients: int, weights: Tensor, *, drawn: bool = False
    ) -> None:
        self.operator, self.layout, self.drawn = operator, layout, drawn
        self.first = self.memory = operator.init(layout)
        self.model = weights.clone()
        self.seen = np.full(clients, -1, np.int32)
        self.upto = np.zeros(1, np.int64)  # bytes of all payloads up to each version
        self.whole: int | None = None

    def send(self, client: int, t: int, weights: Tensor, buffers: Tensor) -> int:
        """The payloads that the client missed, or the whole."""
        seen, seed = int(self.seen[client]), 0
        self.seen[client] = t
        if self.whole is None:
            self.whole = len(Versions(self.layout).whole(self.model, buffers))
        if seen < 0:
            if not self.drawn:
                return self.whole
            seen, seed = 0, SEED_BYTES
        return min(self.whole, seed + int(self.upto[t] - self.upto[seen]))

    def changed(self, before: Tensor, after: Tensor, buffers: Tensor, version: int) -> None:
        """Compress the movement, and apply what every client will apply."""
        movement = after - before
        if not kernels.all_finite(movement):
            place = not_finite_at(movement, self.layout)
            raise Diverged(f"round {version}, server: its step is not finite, first at {place}")
        sent, self.memory = self.operator(movement, self.memory)
        payload = joulegrad.encode(sent.with_buffers(buffers) if self.layout.buffers else sent, self.layout)
        got: SparseUpdate = joulegrad.decode(payload, self.layout)
        self.model[got.indices] += got.values.float()
        self.upto = np.append(self.upto, self.upto[-1] + len(payload))

    def received(self, weights: Tensor) -> Tensor:
        """What has been sent, added up."""
        return self.model

    def state(self) -> dict[str, Tensor]:
        """Clients' model, the server's memory, and who has seen which version."""
        memory = {STATE + name: tensor.clone() for name, tensor in state_tensors(self.memory).items()}
        counts = {"seen": torch.from_numpy(self.seen), "upto": torch.from_numpy(self.upto)}
        return {"received": self.model, **counts, **memory}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As the checkpoint says."""
        self.model = state["received"].clone()
        self.seen, self.upto = (state[name].numpy().copy() for name in ("seen", "upto"))
        memory = {n.removeprefix(STATE): tensor for n, tensor in state.items() if n.startswith(STATE)}
        self.memory = joulegrad.load_state_dict(self.first, memory)
