"""What clients remember between their turns, in one file: only those who train are in memory.

Each client has three places. Two hold what the last two checkpoints remember; turns write the third, so that both
checkpoints stay whole whatever is killed. The file is sparse: a client that has never trained takes no room.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Memories", "Place", "Places"]

PLACES = 3
NOWHERE = -1


class Place(NamedTuple):
    """Where a client's turn reads and writes; None: it has never trained, it vanishes."""

    read: int | None
    write: int | None


class Memories:
    """Named tensors of fixed shapes, one set a place; several processes may read and write at once.

    Args:
        empty: for each kind of client, named tensors of the shapes that its memories have; client i is of kind
            i modulo their number.
        path: of the file; None: a temporary one, gone at `close`.
    """

    def __init__(self, empty: list[Mapping[str, Tensor]], path: Path | None) -> None:
        self.empty = [dict(kind) for kind in empty]
        self.stride = max(sum(t.numel() * t.element_size() for t in kind.values()) for kind in empty)
        self.temporary = path is None
        self.path = path or _temporary()
        self.path.touch()
        self.file = self.path.open("r+b", buffering=0)

    def __reduce__(self) -> tuple[object, ...]:
        return Memories, (self.empty, self.path)

    def read(self, client: int, place: int | None) -> dict[str, Tensor] | None:
        """What the client remembers; None: it has never trained."""
        if place is None:
            return None
        raw, found, at = np.empty(self.stride, np.uint8), {}, 0
        got = os.preadv(self.file.fileno(), [raw.data], self._offset(client, place))
        for name, like in self._kind(client).items():
            size = like.numel() * like.element_size()
            if at + size > got:
                raise OSError(
                    f"{self.path} is cut short: of what client {client} remembers there are {got} bytes of "
                    f"{self.stride}. The run cannot go on; delete its folder to begin again"
                )
            found[name] = torch.from_numpy(raw[at : at + size]).view(like.dtype).view(like.shape)
            at += size
        return found

    def write(self, client: int, place: int | None, memory: Mapping[str, Tensor]) -> None:
        """Keep what the client remembers; a full disk is an OSError here."""
        kind = self._kind(client)
        for name, like in kind.items():
            if memory[name].shape != like.shape or memory[name].dtype != like.dtype:
                raise ValueError(f"{name} of client {client} has changed its shape: {tuple(memory[name].shape)}")
        if place is not None and self.stride:
            at = self._offset(client, place)
            for name in kind:
                raw = memory[name].contiguous().reshape(-1).view(torch.uint8).numpy()
                _write_all(self.file.fileno(), raw, at)
                at += raw.nbytes

    def sync(self) -> None:
        """Wait until everything written is on the disk; a temporary file is not worth it."""
        if not self.temporary:
            os.fsync(self.file.fileno())

    def close(self) -> None:
        """Give the file back."""
        self.file.close()
        if self.temporary:
            self.path.unlink()

    def _kind(self, client: int) -> dict[str, Tensor]:
        return self.empty[client % len(self.empty)]

    def _offset(self, client: int, place: int) -> int:
        return (client * PLACES + place) * self.stride


def _temporary() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="joulegrad-")
    os.close(descriptor)
    return Path(name)


def _write_all(descriptor: int, raw: NDArray[np.uint8], at: int) -> None:
    """One call may write less than it is given, near the end of a disk for one."""
    left = raw.data
    while left:
        n = os.pwrite(descriptor, left, at)
        left, at = left[n:], at + n


class Places:
    """Which place each client is at, now and in the last two checkpoints."""

    def __init__(self, clients: int) -> None:
        self.now, self.last, self.before = (np.full(clients, NOWHERE, np.int8) for _ in range(3))

    def turn(self, client: int, vanishes: bool) -> Place:
        """Where a turn reads and writes."""
        read = int(self.now[client])
        taken = {int(self.last[client]), int(self.before[client])}
        free = next(p for p in range(PLACES) if p not in taken)
        return Place(None if read == NOWHERE else read, None if vanishes else free)

    def moved(self, client: int, place: Place) -> None:
        """The turn is over."""
        if place.write is not None:
            self.now[client] = place.write

    def commit(self) -> None:
        """What is now will be what a checkpoint remembers."""
        self.before, self.last = self.last, self.now.copy()

    def state(self) -> dict[str, Tensor]:
        """For the checkpoint, which is made after `commit`."""
        return {"places": torch.from_numpy(self.last.copy()), "places before": torch.from_numpy(self.before.copy())}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As the checkpoint says."""
        self.last, self.before = (state[name].numpy().copy() for name in ("places", "places before"))
        self.now = self.last.copy()
