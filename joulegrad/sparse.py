"""The one thing that travels: some entries of a flat update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Codes", "SparseUpdate"]

VALUE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Codes(NamedTuple):
    """Quantised values as small integers with one scale a layer.

        value = scale_layer · (2 · level − (2^bits − 1)),   level ∈ {0, …, 2^bits − 1}

    Every level is an odd multiple of the scale, so no level is wasted on zero, and one bit is a sign.

    Args:
        bits: 1, 2, 4 or 8.
        levels: one uint8 an entry, in the order of the update's indices.
        scales: one float32 a layer, not negative.
        counts: how many of the entries lie in each layer (int64).

    Example:
        >>> codes = Codes(1, torch.tensor([1, 0, 1], dtype=torch.uint8), torch.tensor([0.5, 2.0]),
        ...               torch.tensor([2, 1]))
        >>> codes.values()
        tensor([ 0.5000, -0.5000,  2.0000])
    """

    bits: int
    levels: Tensor
    scales: Tensor
    counts: Tensor

    def values(self) -> Tensor:
        """Decode: float32, rounded once, the same bits on every device."""
        most: int = 2**self.bits - 1
        odd = (self.levels.to(torch.int32) * 2 - most).to(torch.float32)
        return self.scales.repeat_interleave(self.counts) * odd


@dataclass(frozen=True, eq=False)
class SparseUpdate:
    """m ⊙ g: the selected entries of an update of `size` entries.

    On the CPU the indices are checked; on a GPU that would mean to wait for it, so there only their form is.
    Two updates are equal when everything that would travel is equal, bit for bit (so 0.0 ≠ −0.0).

    Args:
        indices: which entries, strictly increasing (int64).
        values: what they are, as they travel: float32, float16 or bfloat16.
        size: d, the length of the flat update.
        codes: where the values were quantised, the integers that they were made of.
        buffers: the layout's averaged buffers, which travel dense (see `Layout.buffer_values`).

    Example:
        >>> sent = SparseUpdate(torch.tensor([1, 4]), torch.tensor([0.5, -2.0]), size=5)
        >>> sent.to_dense()
        tensor([ 0.0000,  0.5000,  0.0000,  0.0000, -2.0000])
        >>> len(sent)
        2
    """

    indices: Tensor
    values: Tensor
    size: int
    codes: Codes | None = None
    buffers: Tensor | None = None

    def __post_init__(self) -> None:
        if self.indices.dtype != torch.int64 or self.indices.dim() != 1:
            raise ValueError(
                f"indices must be a flat int64 tensor, got {self.indices.dtype} of shape {tuple(self.indices.shape)}"
            )
        if self.values.dtype not in VALUE_DTYPES or self.values.shape != self.indices.shape:
            raise ValueError(
                f"values must be one float32, float16 or bfloat16 an index ({self.indices.numel()}), got "
                f"{self.values.dtype} of shape {tuple(self.values.shape)}"
            )
        if self.indices.device.type == "cpu":
            check_increasing(self.indices, self.size)

    def __len__(self) -> int:
        return self.indices.numel()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparseUpdate):
            return NotImplemented
        return self.size == other.size and all(
            _same_bits(a, b) for a, b in zip(self._tensors(), other._tensors(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def _tensors(self) -> tuple[Tensor | None, ...]:
        codes = (
            (torch.tensor(self.codes.bits), self.codes.levels, self.codes.scales, self.codes.counts)
            if self.codes
            else (None,) * 4
        )
        return (self.indices, self.values, self.buffers, *codes)

    def to_dense(self) -> Tensor:
        """The flat float32 vector with zeros where nothing was sent."""
        dense = torch.zeros(self.size, device=self.values.device)
        dense[self.indices] = self.values.float()
        return dense

    def with_buffers(self, buffers: Tensor) -> SparseUpdate:
        """The same update carrying the model's averaged buffers, as `Layout.buffer_values` reads them.

        Example:
            >>> sent = SparseUpdate(torch.tensor([0]), torch.tensor([1.0]), size=2)
            >>> sent.with_buffers(torch.tensor([0.1])).buffers
            tensor([0.1000])
        """
        return replace(self, buffers=buffers)

    def to(self, device: torch.device | str) -> SparseUpdate:
        """The same update on another device."""

        def moved(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(device)

        codes = self.codes
        if codes is not None:
            codes = Codes(codes.bits, *(t.to(device) for t in codes[1:]))
        return SparseUpdate(self.indices.to(device), self.values.to(device), self.size, codes, moved(self.buffers))


def check_increasing(indices: Tensor, size: int) -> None:
    """Refuse indices, on the CPU, that are not 0 ≤ i_0 < i_1 < … < size."""
    if len(indices) and not (indices[0] >= 0 and indices[-1] < size and _compiled()(indices.numpy())):
        raise ValueError(f"indices must be strictly increasing and inside [0, {size})")


@lru_cache
def _compiled() -> Callable[[Any], bool]:
    from joulegrad.jit import jit

    return jit(_increase)


def _increase(x: Any) -> bool:
    """Whether each number is larger than the one before it; reads 8 bytes a number, without branches on them."""
    falls = 0
    for i in range(1, len(x)):
        falls += x[i] <= x[i - 1]
    return falls == 0


def _same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.is_floating_point():
        as_int = {4: torch.int32, 2: torch.int16, 8: torch.int64}[a.element_size()]
        a, b = a.contiguous().view(as_int), b.contiguous().view(as_int)
    return torch.equal(a, b.to(a.device))
