"""The header, and the codings that it names."""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from joulegrad.wire.errors import (
    ChecksumMismatch,
    NotAPayload,
    TrailingBytes,
    Truncated,
    UnknownCoding,
    UnsupportedVersion,
)

MAGIC, VERSION = b"JGRD", (1, 0)
LAYOUT = struct.Struct("<4sBBBB8sQL")  # magic, major, minor, values, flags, fingerprint, length, checksum
CHECKSUM_AT = LAYOUT.size - 4
BUFFERS = 1  # the flag: the layout's averaged buffers follow the values


class Floats(NamedTuple):
    """How floats lie in the bytes: little-endian integers whose exponent bits are all ones in NaN and infinity."""

    dtype: torch.dtype
    raw: str
    signed: torch.dtype
    exponent: int

    def any_special(self, raw: NDArray[Any]) -> bool:
        """Whether there is a NaN or an infinity."""
        from joulegrad.kernels import bits

        return bits.any_special(raw, raw.dtype.type(self.exponent))


FLOATS = {
    0: Floats(torch.float32, "<u4", torch.int32, 0x7F800000),
    1: Floats(torch.float16, "<u2", torch.int16, 0x7C00),
    2: Floats(torch.bfloat16, "<u2", torch.int16, 0x7F80),
}
BITS = {1: 3, 2: 4, 4: 5, 8: 6}  # value coding, by bits a code
WIDTH = {0: 32, 1: 16, 2: 16, 3: 1, 4: 2, 5: 4, 6: 8}  # bits a value, by coding
NAMES = ("float32", "float16", "bfloat16", "1-bit codes", "2-bit codes", "4-bit codes", "8-bit codes")


class Header(NamedTuple):
    """What the first 28 bytes say."""

    values: int
    flags: int
    fingerprint: str

    @property
    def bits(self) -> int | None:
        """Bits of a quantised value; None for floats."""
        return WIDTH[self.values] if self.values >= BITS[1] else None


def write(header: Header, body: list[bytes | memoryview]) -> bytes:
    """The whole payload."""
    length = LAYOUT.size + sum(map(len, body))
    fingerprint = bytes.fromhex(header.fingerprint)
    fields = (MAGIC, *VERSION, header.values, header.flags, fingerprint, length)
    checksum = zlib.crc32(LAYOUT.pack(*fields, 0)[:CHECKSUM_AT])
    for part in body:
        checksum = zlib.crc32(part, checksum)
    return b"".join([LAYOUT.pack(*fields, checksum), *body])


def read(payload: memoryview) -> Header:
    """Read the header, and check that these are all of the payload's bytes, unchanged."""
    start = bytes(payload[:4])
    if start != MAGIC[: len(start)]:
        raise NotAPayload(f"a payload starts with {MAGIC!r}, got {start!r}", 0)
    if len(payload) < LAYOUT.size:
        raise Truncated(f"a payload has at least {LAYOUT.size} bytes, got {len(payload)}", len(payload))
    _, major, minor, values, flags, fingerprint, length, checksum = LAYOUT.unpack_from(payload)
    if major != VERSION[0] or minor > VERSION[1]:
        ours = ".".join(map(str, VERSION))
        newer = (major, minor) > VERSION
        advice = "upgrade joulegrad to read it" if newer else "it is older than any that this version reads"
        raise UnsupportedVersion(f"the payload is of format {major}.{minor}, this is {ours}: {advice}", 4)
    if len(payload) < length:
        raise Truncated(f"the payload says it has {length} bytes, got {len(payload)}", len(payload))
    if len(payload) > length:
        raise TrailingBytes(f"the payload says it has {length} bytes, got {len(payload)}", length)
    found = zlib.crc32(payload[LAYOUT.size :], zlib.crc32(payload[:CHECKSUM_AT]))
    if found != checksum:
        raise ChecksumMismatch(f"the payload's checksum is {checksum:08x}, its bytes give {found:08x}", CHECKSUM_AT)
    if values not in WIDTH:
        raise UnknownCoding(f"value coding {values} is none of 0 to {max(WIDTH)}", 6)
    if flags & ~BUFFERS:
        raise UnknownCoding(f"flags {flags:#04x} has bits that the format does not define", 7)
    return Header(values, flags, fingerprint.hex())
