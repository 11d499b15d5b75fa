"""Coverage-guided fuzzing of `decode` with atheris: `make fuzz`. Nothing but a WireError may come out.

The first byte chooses how hostile the rest is: raw bytes, or a body sealed with a right header and checksum, so that
the fuzzer gets past them. What decodes must encode and decode to itself, and equal the plain decoder's reading.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import atheris

# The plain decoder is run on every input too: compiled code shows the fuzzer no branches, Python does.
with atheris.instrument_imports(include=["joulegrad.wire", "plain_decoder"]):
    import plain_decoder
    from wire_cases import BATCHNORM, LAYOUT, cases, seal

    from joulegrad import SparseUpdate, WireError, decode, encode


def one_input(data: bytes) -> None:
    if not data:
        return
    layout = BATCHNORM if data[0] & 8 else LAYOUT
    payload = data[1:] if data[0] & 7 == 7 else seal(data[1:], layout, values=data[0] & 7, flags=data[0] >> 3 & 1)
    update: SparseUpdate | None = None
    try:
        update = decode(payload, layout)
    except WireError as error:
        if not 0 <= error.offset <= len(payload):
            raise RuntimeError(f"offset {error.offset} of {len(payload)}") from error
    try:
        sizes = [s.size for s in layout.segments]
        indices, values, _ = plain_decoder.decode(payload, sizes, layout.buffer_size, layout.fingerprint)
    except (ValueError, struct.error):
        if update is not None:
            raise RuntimeError("ours reads what the plain decoder refuses") from None
        return
    if update is None or update.indices.tolist() != indices or update.values.tolist() != values:
        raise RuntimeError("the decoders disagree")
    if decode(encode(update, layout), layout) != update:
        raise RuntimeError("what was decoded does not survive a round trip")


def corpus(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, update, layout in cases():
        payload = encode(update, layout)
        head = payload[6] | (8 if layout is BATCHNORM else 0)
        (folder / name).write_bytes(bytes([head]) + payload[28:])


if __name__ == "__main__":
    corpus(Path(sys.argv[-1]))
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
