"""What a payload is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

from joulegrad.layout import Layout
from joulegrad.wire import header
from joulegrad.wire.decoding import parse

METHODS = ("none", "all", "gaps", "holes", "bitmap", "ranged", "blocks", "adaptive")


@dataclass(frozen=True)
class Layer:
    """How one layer's part of a payload is coded."""

    name: str
    size: int
    entries: int
    coding: str
    bits: int  # of its indices, without its header
    entropy_bits: float  # n H(k / n)


@dataclass(frozen=True)
class Inspection:
    """A payload taken apart; sizes in bytes.

    Example:
        >>> layout = Layout.from_shapes({"w": (1000,)})
        >>> sent = SparseUpdate(torch.arange(100, 200), torch.ones(100), size=1000)
        >>> found = inspect(encode(sent, layout), layout)
        >>> found.entries, found.values, found.value_bytes, found.layers[0].coding
        (100, 'float32', 400, 'blocks of 100, gaps')
    """

    version: str
    fingerprint: str
    values: str
    total_bytes: int
    index_bytes: int  # with the layers' headers
    value_bytes: int  # with the scales
    buffer_bytes: int
    layers: tuple[Layer, ...]

    @property
    def entries(self) -> int:
        """How many entries were sent."""
        return sum(layer.entries for layer in self.layers)

    @property
    def entropy_bits(self) -> float:
        """Σ_l n_l H(k_l / n_l): what the indices would take if each layer's were drawn at random."""
        return math.fsum(layer.entropy_bits for layer in self.layers)


def inspect(payload: bytes | bytearray | memoryview, layout: Layout) -> Inspection:
    """Take a payload apart: what each layer's indices cost, beside the entropy bound n H(k / n).

    Example:
        >>> layout = Layout.from_shapes({"w": (3,)})
        >>> sent = SparseUpdate(torch.tensor([1]), torch.tensor([0.5]), size=3)
        >>> inspect(encode(sent, layout), layout).total_bytes
        35
    """
    parsed = parse(payload, layout)
    layers = []
    for s, (method, _, _, block, _, entries, size) in zip(layout.segments, parsed.layers.tolist(), strict=True):
        coding = METHODS[method] if block == 1 else f"blocks of {block}, {METHODS[method]}"
        layers.append(Layer(s.name, s.size, entries, coding, 8 * size, s.size * entropy(entries, s.size)))
    buffers = 4 * layout.buffer_size
    return Inspection(
        version=".".join(map(str, header.VERSION)),
        fingerprint=parsed.header.fingerprint,
        values=header.NAMES[parsed.header.values],
        total_bytes=len(payload),
        index_bytes=parsed.index_bytes,
        value_bytes=len(payload) - header.LAYOUT.size - parsed.index_bytes - buffers,
        buffer_bytes=buffers,
        layers=tuple(layers),
    )


def entropy(k: int, n: int) -> float:
    """H(k / n) in bits an entry."""
    if k in (0, n):
        return 0.0
    p = k / n
    return -(p * math.log2(p) + (1 - p) * math.log2(1 - p))
