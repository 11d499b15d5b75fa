"""Updates of every kind that the wire must carry, and how to seal hostile bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import torch

import joulegrad as jg

LAYOUT = jg.Layout.from_shapes(
    {"conv": (16, 3, 3), "norm": (7,), "none": (0,), "one": (), "fc": (40, 25), "bias": (3,)}
)
BATCHNORM = jg.Layout.of(torch.nn.Sequential(torch.nn.Conv2d(1, 3, 2), torch.nn.BatchNorm2d(3)))
SIZES = [s.size for s in LAYOUT.segments]


def sparse(indices, values=None, layout=LAYOUT, dtype=torch.float32) -> jg.SparseUpdate:
    i = torch.as_tensor(np.asarray(indices, dtype=np.int64))
    if values is None:
        values = torch.linspace(-2, 3, len(i))
    return jg.SparseUpdate(i, torch.as_tensor(values).to(dtype), layout.size)


def supports() -> Iterator[tuple[str, np.ndarray]]:
    """Which entries: every density, and arrangements that are hard for one coding or another."""
    rng, d = np.random.default_rng(0), LAYOUT.size
    for density in (0, 0.001, 0.01, 0.05, 0.2, 0.38, 0.5, 0.62, 0.8, 0.95, 0.999, 1):
        yield f"random-{density}", np.flatnonzero(rng.random(d) < density)
    yield "first", np.array([0])
    yield "last", np.array([d - 1])
    yield "ends", np.array([0, d - 1])
    yield "one-layer", np.arange(144, 151)
    yield "arithmetic-7", np.arange(3, d, 7)
    yield "arithmetic-8", np.arange(0, d, 8)
    yield "clusters", np.flatnonzero(np.arange(d) % 100 < 13)
    yield "blocks-16", np.flatnonzero(np.repeat(rng.random(80) < 0.3, 16)[:d])
    yield "blocks-5-cut", np.concatenate([np.arange(152, 157), np.arange(1147, 1152), np.arange(1152, 1155)])
    yield "channels", np.flatnonzero(rng.random(d) < np.where(np.arange(d) // 125 % 4 == 1, 0.4, 0.01))
    yield "all-but-one", np.delete(np.arange(d), 700)
    yield "all-but-last", np.arange(d - 1)


def cases() -> Iterator[tuple[str, jg.SparseUpdate, jg.Layout]]:
    for name, support in supports():
        yield name, sparse(support), LAYOUT
    update = torch.tensor(np.random.default_rng(1).standard_t(2, LAYOUT.size), dtype=torch.float32)
    for bits in (1, 2, 4, 8):
        for density in (0.05, 1.0):
            op = jg.Quantized(jg.TopK(density=density), bits=bits)
            yield f"codes-{bits}-{density}", op(update, op.init(LAYOUT))[0], LAYOUT
    empty = jg.Quantized(jg.TopK(k=0), bits=4)
    yield "codes-of-nothing", empty(update, empty.init(LAYOUT))[0], LAYOUT
    for dtype in ("fp16", "bf16"):
        op = jg.Rounded(jg.TopK(density=0.1), dtype=dtype)
        yield dtype, op(update, op.init(LAYOUT))[0], LAYOUT
    special = [-0.0, 0.0, 1e-45, -1e-40, torch.finfo(torch.float32).max, 1.0]
    yield "special-values", sparse(range(6), special), LAYOUT
    yield "special-halves", sparse(range(4), [-0.0, 6e-8, 65504.0, -1.0], dtype=torch.float16), LAYOUT
    op = jg.Blocks(jg.TopK(k=9), entries=8)
    yield "blocks-rule", op(update, op.init(LAYOUT))[0], LAYOUT
    stats = torch.tensor([0.5, -1.0, 0.0, 1.0, 2.0, 1e-3])
    yield "buffers", sparse([0, 5], layout=BATCHNORM).with_buffers(stats), BATCHNORM
    yield "buffers-alone", sparse([], layout=BATCHNORM).with_buffers(stats), BATCHNORM


def seal(body: bytes, layout: jg.Layout = LAYOUT, *, values: int = 0, flags: int = 0, **changes: int | bytes) -> bytes:
    """A payload around any body, with a right length and checksum unless they are given."""
    fields = {
        "magic": b"JGRD",
        "major": 1,
        "minor": 0,
        "values": values,
        "flags": flags,
        "fingerprint": bytes.fromhex(layout.fingerprint),
        "length": 28 + len(body),
        **changes,
    }
    checksum = fields.pop("checksum", None)
    head = struct.pack("<4sBBBB8sQ", *fields.values())
    if checksum is None:
        checksum = zlib.crc32(head + body)
    return head + struct.pack("<L", checksum) + body
