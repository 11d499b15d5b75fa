"""The bytes that travel: `encode` and `decode`, lossless, compact, safe. docs/wire.md specifies every byte.

    header   28 bytes: magic, version, value coding, flags, layout fingerprint, length, checksum
    layers   a few bytes each: how the layer's indices are coded, and how many entries it has
    indices  each layer's in the shortest of Rice-coded gaps or holes, a bitmap, an adaptive code, a range code, blocks
    scales   one float32 a layer with entries, where values are quantised
    values   float32, float16, bfloat16, or codes of 1, 2, 4 or 8 bits
    buffers  the layout's averaged buffers, float32

`len(payload)` is the only byte count in the project. Nothing is executed or unpickled, and every length is checked
against the layout before memory is taken, so that hostile bytes raise a `WireError` in bounded time and memory.
"""

from joulegrad.wire.decoding import decode
from joulegrad.wire.encoding import encode
from joulegrad.wire.errors import WireError
from joulegrad.wire.inspection import inspect

__all__ = ["WireError", "decode", "encode", "inspect"]
