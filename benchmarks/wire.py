"""Bytes and time of the wire format beside what other libraries send, on random and on real supports.

    make benchmarks                                 # CIFAR10=DIR where the images are
    python benchmarks/wire.py --cifar10 DIR
    python benchmarks/wire.py --quick               # random supports only, three repeats, into scratch/

Every method carries the same update both ways, and the round trip is checked to be exact before anything is timed. All
methods take turns within each repeat, on one thread, and medians are kept. Peers are timed in their two parts, indices
and values, because most of what a general compressor does with an update is to try float32 values that do not shrink.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import argparse
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from torch import Tensor

from joulegrad import CWMP, LayerType, Layout, PerLayer, Quantized, RandomK, Rule, SparseUpdate, TopK, decode, encode
from joulegrad.wire import inspect
from machine import header, load_average
from updates import MODELS, ROOT, check, update_of

RESULTS = ROOT / "benchmarks" / "results" / "wire.json"
SEED = 0
REPEATS = 7
IID = (0.0001, 0.001, 0.01, 0.1, 0.5)
REAL = (0.01, 0.1)
LENGTH = 8  # bytes in which every peer says how long its indices are

Indices = NDArray[np.int64]
Values = NDArray[np.float32]
Seconds = dict[str, float]


@dataclass(frozen=True)
class Support:
    """One thing to send: a rule applied to an update."""

    model: str
    rule: str
    density: float
    update: Tensor
    layout: Layout
    select: Rule


@dataclass(frozen=True)
class Peer:
    """What others do: indices written in some plain form, and perhaps compressed, as the values then are too."""

    name: str
    write: Callable[[Indices, int], NDArray[Any]]
    read: Callable[[bytes, int], Indices]
    compress: Callable[[NDArray[Any]], bytes]
    decompress: Callable[[memoryview], bytes]

    def encode(self, indices: Indices, values: Values, size: int) -> tuple[bytes, Seconds]:
        """The payload, and how long its parts took."""
        start = perf_counter()
        head = self.compress(self.write(indices, size))
        between = perf_counter()
        payload = b"".join([len(head).to_bytes(LENGTH, "little"), head, self.compress(values)])
        return payload, {"encode_seconds": perf_counter() - start, "encode_index_seconds": between - start}

    def decode(self, payload: bytes, size: int) -> tuple[Indices, Values, Seconds]:
        """Indices and values as arrays of their own, and how long the parts took."""
        start = perf_counter()
        view = memoryview(payload)
        end = LENGTH + int.from_bytes(view[:LENGTH], "little")
        indices = self.read(self.decompress(view[LENGTH:end]), size)
        between = perf_counter()
        values = np.frombuffer(self.decompress(view[end:]), "<f4").copy()
        seconds = {"decode_seconds": perf_counter() - start, "decode_index_seconds": between - start}
        return indices, values, seconds


def write_bitmap(indices: Indices, size: int) -> NDArray[np.uint8]:
    bits = np.zeros(size, np.uint8)
    bits[indices] = 1
    return np.packbits(bits)


def read_bitmap(data: bytes, size: int) -> Indices:
    return np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), count=size))


def write_int32(indices: Indices, size: int) -> NDArray[np.int32]:
    return indices.astype("<i4")


def read_int32(data: bytes, size: int) -> Indices:
    return np.frombuffer(data, "<i4").astype(np.int64)


def write_int64(indices: Indices, size: int) -> Indices:
    return indices


def read_int64(data: bytes, size: int) -> Indices:
    return np.frombuffer(data, "<i8").copy()


def write_gaps(indices: Indices, size: int) -> NDArray[np.int32]:
    return np.diff(indices, prepend=0).astype("<i4")


def read_gaps(data: bytes, size: int) -> Indices:
    return np.cumsum(np.frombuffer(data, "<i4"), dtype=np.int64)


def as_bytes(array: NDArray[Any]) -> bytes:
    return array.tobytes()


def as_is(data: memoryview) -> bytes:
    return bytes(data)


def zlib6(array: NDArray[Any]) -> bytes:
    return zlib.compress(array.data, 6)


def unzlib(data: memoryview) -> bytes:
    return zlib.decompress(data)


def zstd3(array: NDArray[Any]) -> bytes:
    return bytes(ZSTD.compress(array.data))


def unzstd(data: memoryview) -> bytes:
    return bytes(UNZSTD.decompress(data))


ZSTD = zstandard.ZstdCompressor(level=3)
UNZSTD = zstandard.ZstdDecompressor()
PEERS = (
    Peer("int32", write_int32, read_int32, as_bytes, as_is),  # GRACE, BytePS
    Peer("int64", write_int64, read_int64, as_bytes, as_is),  # FedLab
    Peer("bitmap, zlib 6", write_bitmap, read_bitmap, zlib6, unzlib),
    Peer("gaps, zlib 6", write_gaps, read_gaps, zlib6, unzlib),
    Peer("gaps, zstd 3", write_gaps, read_gaps, zstd3, unzstd),
)


def supports(cifar10: Path | None) -> Iterator[Support]:
    """Random supports over ResNet-18's layers; then, given the images, what rules choose of real updates."""
    torch.manual_seed(SEED)
    layout = Layout.of(MODELS["resnet18"](), buffers="local")
    noise = torch.randn(layout.size, generator=torch.Generator().manual_seed(SEED))
    for density in IID:
        yield Support("resnet18", "random", density, noise, layout, RandomK(density=density, seed=SEED))
    if cifar10 is None:
        return
    for model in MODELS:
        update, layout = update_of(model, cifar10)
        for density in REAL:
            topk, cwmp = TopK(density=density), CWMP(density=density, cost=LayerType())
            rules: dict[str, Rule] = {
                "TopK": topk,
                "CWMP": cwmp,
                "PerLayer(TopK)": PerLayer(topk),
                "PerLayer(CWMP)": PerLayer(cwmp),
            }
            for name, rule in rules.items():
                yield Support(model, name, density, update, layout, rule)


def measure(support: Support, repeats: int) -> list[dict[str, Any]]:
    """One row a method: bytes, and medians of seconds over all repeats."""
    layout = support.layout
    plain = applied(support.select, support)
    ours = {"float32": plain}
    for bits in (1, 8):
        ours[f"{bits} bit"] = applied(Quantized(support.select, bits=bits), support)
    indices, values = plain.indices.numpy(), plain.values.numpy()
    payloads = {name: encode(sent, layout) for name, sent in ours.items()}
    packed = {peer: peer.encode(indices, values, layout.size)[0] for peer in PEERS}
    for name, sent in ours.items():
        exact(decode(payloads[name], layout) == sent, "joulegrad", support)
    for peer, payload in packed.items():
        i, v, _ = peer.decode(payload, layout.size)
        same = i.dtype == np.int64 and np.array_equal(i, indices)
        exact(same and np.array_equal(v.view(np.int32), values.view(np.int32)), peer.name, support)

    taken: dict[tuple[str, str], list[Seconds]] = {}
    for _ in range(repeats):
        for name, sent in ours.items():
            start = perf_counter()
            payload = encode(sent, layout)
            between = perf_counter()
            decode(payload, layout)
            seconds = {"encode_seconds": between - start, "decode_seconds": perf_counter() - between}
            taken.setdefault(("joulegrad", name), []).append(seconds)
        for peer in PEERS:
            payload, encoding = peer.encode(indices, values, layout.size)
            *_, decoding = peer.decode(payload, layout.size)
            taken.setdefault((peer.name, "float32"), []).append(encoding | decoding)

    about = {"model": support.model, "rule": support.rule, "density": support.density}
    about |= {"size": layout.size, "layers": len(layout.segments)}
    rows = []
    for name, payload in payloads.items():
        found = inspect(payload, layout)
        sizes = {
            "entries": found.entries,
            "whole_bytes": len(payload),
            "index_bytes": len(payload) - found.value_bytes,  # all that is not values: headers too
            "entropy_bytes": found.entropy_bits / 8,
        }
        rows.append(about | {"method": "joulegrad", "values": name} | sizes | medians(taken["joulegrad", name]))
    bound = inspect(payloads["float32"], layout).entropy_bits / 8
    for peer, payload in packed.items():
        sizes = {
            "entries": len(indices),
            "whole_bytes": len(payload),
            "index_bytes": LENGTH + int.from_bytes(payload[:LENGTH], "little"),
            "entropy_bytes": bound,
        }
        rows.append(about | {"method": peer.name, "values": "float32"} | sizes | medians(taken[peer.name, "float32"]))
    return rows


def applied(op: Rule | Quantized, support: Support) -> SparseUpdate:
    """What an operator sends of the support's update, in its first round."""
    sent: SparseUpdate
    sent, _ = op(support.update, op.init(support.layout))
    return sent


def exact(same: bool, method: str, support: Support) -> None:
    if not same:
        raise RuntimeError(f"{method} did not give back what was sent: {support.model}, {support.rule}")


def medians(taken: list[Seconds]) -> Seconds:
    return {name: round(median(one[name] for one in taken), 7) for name in taken[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if not given.quick:
        try:
            check(given.cifar10)
        except FileNotFoundError as why:
            parser.error(str(why))
    repeats = 3 if given.quick else REPEATS
    out = ROOT / "scratch" / "wire.json" if given.quick else RESULTS

    cases = list(supports(None if given.quick else given.cifar10))  # training comes first: it may take every core
    torch.set_num_threads(1)
    head = header("benchmarks/wire.py", sys.argv[1:]) | {"seed": SEED, "repeats": repeats, "threads": 1}
    rows = []
    for support in cases:
        measured = measure(support, repeats)
        rows += measured
        print(f"{support.model}, {support.rule}, {support.density:.2%}")
        for row in measured:
            print("  {method:15} {values:8} {whole_bytes:>12,} bytes".format(**row), end="")
            print("  {encode_seconds:8.4f} s  {decode_seconds:8.4f} s".format(**row))
    head["load_average_at_end"] = load_average()
    lines = ",\n".join(json.dumps(row) for row in rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f'{{"header": {json.dumps(head, indent=1)},\n"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
