"""Bytes → SparseUpdate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad import kernels
from joulegrad.layout import Layout
from joulegrad.sparse import Codes, SparseUpdate
from joulegrad.wire import header
from joulegrad.wire.errors import (
    BadScale,
    CountMismatch,
    IndexOutOfRange,
    NonZeroPadding,
    NotFinite,
    OtherModel,
    TooManyEntries,
    TrailingBytes,
    Truncated,
    UnknownCoding,
    WireError,
)


def decode(payload: bytes | bytearray | memoryview, layout: Layout) -> SparseUpdate:
    """Read an update: equal, bit for bit, to what was encoded, or a `WireError` that says what is wrong.

    Whatever the bytes, time and memory are bounded by a small multiple of the payload's and the layout's sizes.

    Args:
        payload: what `encode` wrote, from anyone.
        layout: of our own model.

    Example:
        >>> layout = Layout.from_shapes({"w": (4,)})
        >>> sent = SparseUpdate(torch.tensor([1, 3]), torch.tensor([0.5, -0.0]), size=4)
        >>> decode(encode(sent, layout), layout) == sent
        True
    """
    return parse(payload, layout).update


ENTRIES = 5  # the column of `Parsed.layers` that says how many


class Parsed(NamedTuple):
    """A decoded payload, with what `inspect` tells of it."""

    update: SparseUpdate
    header: header.Header
    layers: NDArray[np.int64]  # (method, b, probability, block, count, entries, bytes) of each layer
    index_bytes: int


def parse(payload: bytes | bytearray | memoryview, layout: Layout) -> Parsed:
    """Decode, and keep the parts."""
    view = memoryview(payload).cast("B")
    head = header.read(view)
    if head.fingerprint != layout.fingerprint:
        raise OtherModel(
            f"the payload was made for the layout {head.fingerprint}, ours is {layout.fingerprint}: "
            "another model, or other layers frozen",
            8,
        )
    if bool(head.flags & header.BUFFERS) != bool(layout.buffers):
        raise UnknownCoding("the buffers flag does not agree with the layout", 7)
    end = len(view)
    layers, at = _layers(view, layout)
    sent = layers[:, 5] > 0
    entries = int(layers[:, 5].sum())
    scales = int(sent.sum()) * 4 if head.bits else 0
    tail = scales + (entries * header.WIDTH[head.values] + 7) // 8 + 4 * layout.buffer_size
    if at + tail > end:
        raise Truncated(f"{entries} entries need {tail} bytes after the indices, and {end - at} are left", end)
    indices = _indices(view, at, end - tail, layers, layout)
    at = end - tail
    values, codes = _values(view, at, head, layers[:, 5])
    buffers = _floats(view, end - 4 * layout.buffer_size, layout.buffer_size) if layout.buffers else None
    update = SparseUpdate(torch.from_numpy(indices), values, layout.size, codes, buffers)
    return Parsed(update, head, layers, end - tail - header.LAYOUT.size)


LONGEST_LAYER = 24  # bytes of one layer's header: two methods, two numbers, a probability


def _layers(view: memoryview, layout: Layout) -> tuple[NDArray[np.int64], int]:
    from joulegrad.kernels import supports

    end = min(len(view), header.LAYOUT.size + LONGEST_LAYER * len(layout.segments))
    layers = np.zeros((len(layout.segments), 7), np.int64)
    _, sizes = _places(layout)
    status, layer, at = supports.read_headers(np.array(view[:end]), header.LAYOUT.size, end, sizes, layers)
    _raise(status, layer, at, layout)
    return layers, at


def _indices(view: memoryview, at: int, end: int, layers: NDArray[np.int64], layout: Layout) -> NDArray[np.int64]:
    from joulegrad.kernels import supports

    words = np.zeros(end // 8 + 2, "<u8")  # a copy, so that compiled code may read whole words past the end
    data = words.view(np.uint8)
    data[:end] = np.frombuffer(view[:end], np.uint8)
    out = np.empty(int(layers[:, 5].sum()), np.int64)
    status, layer, at = supports.read_all(data, words, at, end, out, layers, *_places(layout))
    _raise(status, layer, at, layout)
    if at != end:
        raise TrailingBytes(f"{end - at} bytes between the indices and the values belong to nothing", at)
    return out


def _places(layout: Layout) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each layer starts, and how many entries it has."""
    ends = layout.ends.numpy()
    sizes = np.diff(ends, prepend=0)
    return ends - sizes, sizes


def _raise(status: int, layer: int, at: int, layout: Layout) -> None:
    from joulegrad.kernels import bits

    if status == bits.OK:
        return
    s = layout.segments[layer]
    where = f"{s.name} ({s.size} entries)"
    problems: dict[int, tuple[type[WireError], str]] = {
        bits.TRUNCATED: (Truncated, "the bytes end inside"),
        bits.OUT_OF_RANGE: (IndexOutOfRange, "an index lies beyond"),
        bits.COUNT: (CountMismatch, "another number of entries than announced in"),
        bits.PADDING: (NonZeroPadding, "bits that must be zero are not, after the indices of"),
        bits.METHOD: (UnknownCoding, "an index coding that the format does not have, in"),
        bits.TOO_MANY: (TooManyEntries, "more entries are announced than there are in"),
        bits.BLOCK: (UnknownCoding, "a block size that does not fit"),
        bits.VARINT: (UnknownCoding, "a number that is not written in its shortest form, in"),
    }
    error, text = problems[status]
    raise error(f"{text} {where}", at)


def _values(view: memoryview, at: int, head: header.Header, counts: NDArray[np.int64]) -> tuple[Tensor, Codes | None]:
    entries = int(counts.sum())
    if head.bits is None:
        return _floats(view, at, entries, head.values), None
    sent = counts > 0
    found = np.frombuffer(view, "<f4", int(sent.sum()), at)
    outermost = found.astype(np.float64) * (2**head.bits - 1)
    bad = np.signbit(found) | ~(outermost <= np.finfo(np.float32).max)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise BadScale(f"a scale of {found[first]}; scales are not negative, and no value overflows", at + 4 * first)
    scales = np.zeros(len(counts), np.float32)
    scales[sent] = found
    levels = _unpacked(view, at + found.nbytes, entries, head.bits)
    codes = Codes(head.bits, levels, torch.from_numpy(scales), torch.from_numpy(counts.copy()))
    return kernels.values_of(codes), codes


def _unpacked(view: memoryview, at: int, entries: int, bits: int) -> Tensor:
    """The reverse of packing levels side by side; what is left of the last byte must be zero."""
    each = 8 // bits
    packed = np.frombuffer(view, np.uint8, -(-entries // each), at)
    levels = np.empty(len(packed) * each, np.uint8)
    for i in range(each):
        levels[i::each] = packed >> np.uint8(i * bits) & np.uint8(2**bits - 1)
    if levels[entries:].any():
        raise NonZeroPadding("bits that must be zero are not, after the codes of the values", at + len(packed) - 1)
    return torch.from_numpy(levels[:entries])


def _floats(view: memoryview, at: int, count: int, coding: int = 0) -> Tensor:
    """A copy of `count` floats, all of them finite."""
    floats = header.FLOATS[coding]
    raw = np.frombuffer(view, floats.raw, count, at).astype(floats.raw[1:], copy=True)
    tensor = torch.from_numpy(raw.view(raw.dtype.str.replace("u", "i"))).view(floats.dtype)
    if floats.any_special(raw):
        first = int((~torch.isfinite(tensor)).nonzero()[0])
        raise NotFinite(f"{tensor[first].item()} among the floats, {first} after the first", at + first * raw.itemsize)
    return tensor
