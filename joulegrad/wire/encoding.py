"""SparseUpdate → bytes."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad import kernels
from joulegrad.layout import Layout
from joulegrad.sparse import Codes, SparseUpdate, check_increasing
from joulegrad.wire import header

Supported: TypeAlias = tuple[bytes, memoryview, NDArray[np.int64]]  # layers' headers, indices, bounds of layers


def encode(sparse: SparseUpdate, layout: Layout) -> bytes:
    """Write an update as bytes; `len` of them is what it costs to send.

    Each layer's indices take the shortest of the format's codings: within 3 % of Σ_l n_l H(k_l / n_l) bits, plus
    64 bytes and 4 a layer, whatever the support. Where the layout averages buffers, the update must carry them
    (`SparseUpdate.with_buffers`): they are part of what is sent.

    Args:
        sparse: what to send.
        layout: of the model that it belongs to; the receiver must have an equal one.

    Example:
        >>> layout = Layout.from_shapes({"w": (1000,)})
        >>> op = Quantized(TopK(k=10), bits=1)
        >>> sent, _ = op(torch.arange(1000.0), op.init(layout))
        >>> payload = encode(sent, layout)
        >>> len(payload), decode(payload, layout) == sent
        (40, True)
    """
    if sparse.size != layout.size:
        raise ValueError(f"the update has {sparse.size} entries, the layout {layout.size}")
    layers, data, bounds = _everything(sparse, layout) or _some(sparse, layout)
    values, coded = _values(sparse, np.diff(bounds))
    buffers = _buffers(sparse, layout)
    flags = header.BUFFERS if layout.buffers else 0
    return header.write(header.Header(values, flags, layout.fingerprint), [layers, data, *coded, buffers])


def _everything(sparse: SparseUpdate, layout: Layout) -> Supported | None:
    """Of an update with every entry, whose indices need not leave a GPU; None where it has fewer."""
    from joulegrad.kernels import supports

    indices = sparse.indices
    if len(indices) != layout.size or not torch.equal(indices, torch.arange(len(indices), device=indices.device)):
        return None
    heads = bytes(supports.ALL if s.size else supports.NONE for s in layout.segments)
    return heads, memoryview(b""), np.concatenate([[0], layout.ends.numpy()])


def _some(sparse: SparseUpdate, layout: Layout) -> Supported:
    """Of any other update."""
    indices = sparse.indices.cpu()
    check_increasing(indices, layout.size)  # a GPU's have not been checked yet
    found = np.ascontiguousarray(indices.numpy())
    bounds = np.concatenate([[0], np.searchsorted(found, layout.ends.numpy())])
    return *_indices(found, bounds, layout), bounds


def _indices(indices: NDArray[np.int64], bounds: NDArray[np.int64], layout: Layout) -> tuple[bytes, memoryview]:
    """The layers' headers, and their indices."""
    from joulegrad.kernels import supports

    head, plans, capacity = bytearray(), [], 64
    for s, first, last in zip(layout.segments, bounds[:-1], bounds[1:], strict=True):
        p = indices[first:last] - s.start
        n = s.size
        method, b, probability, cost = supports.plan(p, n)
        if method > supports.ALL and (side := supports.block_of(p, n)) > 1:
            blocks, count = supports.blocks_of(p, side), -(-n // side)
            coarse = supports.plan(blocks, count)
            if coarse[3] + 16 < cost:
                short = int(n % side > 0 and blocks[-1] == count - 1)
                head.append(supports.BLOCKS | short << 3)
                head += _varint(side)
                p, n = blocks, count
                method, b, probability, cost = coarse
        head.append(method | b << 3)
        if method > supports.ALL:
            head += _varint(len(p))
        if method == supports.RANGED:
            head += probability.to_bytes(2, "little")
        plans.append((p, n, method, b, probability))
        capacity += cost + len(p) // 64 + 128
    words = np.zeros(capacity // 64 + 2, "<u8")
    data, at = words.view(np.uint8), 0
    for p, n, method, b, probability in plans:
        at = supports.write_layer(data, words, at, p, n, method, b, probability)
    return bytes(head), data[:at].data


def _values(sparse: SparseUpdate, counts: NDArray[np.int64]) -> tuple[int, list[memoryview]]:
    """The value coding, and the bytes of scales and values."""
    if sparse.codes is None:
        coding = next(coding for coding, floats in header.FLOATS.items() if floats.dtype == sparse.values.dtype)
        return coding, [_raw(sparse.values, "values", coding)]
    codes = sparse.codes
    _check_codes(sparse, codes, counts)
    scales = codes.scales.cpu()[torch.from_numpy(counts) > 0]
    levels = codes.levels.cpu().numpy()
    return header.BITS[codes.bits], [_raw(scales, "scales"), _packed(levels, codes.bits)]


def _check_codes(sparse: SparseUpdate, codes: Codes, counts: NDArray[np.int64]) -> None:
    """Only what can be rebuilt may be sent as codes."""
    if codes.bits not in header.BITS:
        raise ValueError(f"codes have 1, 2, 4 or 8 bits, got {codes.bits}")
    if not np.array_equal(codes.counts.cpu().numpy(), counts):
        raise ValueError("the codes' counts are not those of the indices in each layer")
    empty = codes.scales.cpu()[torch.from_numpy(counts) == 0]
    if bool((codes.scales < 0).any()) or not bool(torch.isfinite(codes.scales).all()) or bool(empty.any()):
        raise ValueError("scales must be finite, not negative, and zero where a layer sends nothing")
    rebuilt = SparseUpdate(sparse.indices, kernels.values_of(codes), sparse.size)
    if rebuilt != SparseUpdate(sparse.indices, sparse.values, sparse.size):
        raise ValueError("the update's values are not those of its codes")


def _packed(levels: NDArray[np.uint8], bits: int) -> memoryview:
    """Levels side by side, the first in the lowest bits."""
    if bits == 8:
        return levels.data
    if len(levels) and int(levels.max()) >> bits:
        raise ValueError(f"a level of {int(levels.max())} does not fit {bits} bits")
    each = 8 // bits
    padded = np.zeros(-(-len(levels) // each) * each, np.uint8)
    padded[: len(levels)] = levels
    packed = np.zeros(len(padded) // each, np.uint8)
    for i in range(each):
        packed |= padded[i::each] << np.uint8(i * bits)
    return packed.data


def _buffers(sparse: SparseUpdate, layout: Layout) -> bytes | memoryview:
    had = layout.buffer_size
    has = 0 if sparse.buffers is None else sparse.buffers.numel()
    if has != had:
        raise ValueError(
            f"the layout averages {had} buffer entries and the update carries {has}: attach them with "
            "sparse.with_buffers(layout.buffer_values(model)), or declare Layout.of(model, buffers='local')"
        )
    if sparse.buffers is None:
        return b""
    if sparse.buffers.dtype != torch.float32:
        raise ValueError(f"buffers must be float32, got {sparse.buffers.dtype}")
    return _raw(sparse.buffers, "buffers")


def _raw(tensor: Tensor, what: str, coding: int = 0) -> memoryview:
    """A tensor's bytes, little-endian and where they lie if they are so already; all of them finite."""
    floats = header.FLOATS[coding]
    raw = tensor.detach().cpu().contiguous().view(floats.signed).numpy().astype(floats.raw, copy=False)
    if floats.any_special(raw):
        raise ValueError(f"a payload holds finite numbers only, and there is a NaN or an infinity among the {what}")
    return raw.view(np.uint8).data


def _varint(n: int) -> bytes:
    """7 bits a byte from the lowest up; the highest bit says that more follow."""
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)
