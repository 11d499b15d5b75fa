"""A second decoder, in plain Python, written from docs/wire.md alone: no numpy, no torch, nothing of joulegrad."""

import struct
import zlib
from itertools import accumulate

LARGEST = 3.4028234663852886e38  # of float32
NONE, ALL, GAPS, HOLES, BITMAP, RANGED, BLOCKS, ADAPTIVE = range(8)


def check(holds):
    if not holds:
        raise ValueError("malformed")


class Reader:
    def __init__(self, data, byte):
        self.data, self.at = data, 8 * byte  # `at` counts bits

    def take(self, bits=1):
        start, self.at = self.at, self.at + bits
        check(self.at <= 8 * len(self.data))
        return int.from_bytes(self.data[start // 8 : -(-self.at // 8)], "little") >> start % 8 & 2**bits - 1

    def finish_byte(self):
        check(self.take(-self.at % 8) == 0)

    def float32(self):
        return struct.unpack("<f", self.take(32).to_bytes(4, "little"))[0]

    def number(self, place=0):
        byte = self.take(8)
        check(place < 8 and (byte > 0 or place == 0))
        return byte if byte < 128 else byte - 128 + (self.number(place + 1) << 7)

    def layer_header(self, n, inside=False):
        """(method, b, n, k, P, inner header); for blocks b is s."""
        byte = self.take(8)
        method, b = byte & 7, byte >> 3
        if method == BLOCKS:
            s = self.number()
            check(not inside and b < 2 and 2 <= s <= n and not (b and n % s == 0))
            inner = self.layer_header(-(-n // s), inside=True)
            return method, s, n, inner[3] * s - (s - n % s if b else 0), 0, inner
        check(b == 0 or method in (GAPS, HOLES, RANGED, ADAPTIVE))
        if method in (NONE, ALL):
            check(not inside and (method == NONE or n > 0))
            return method, b, n, n if method == ALL else 0, 0, None
        k, p = self.number(), self.take(16) if method == RANGED else 0
        check(0 < k < n and (p > 0 or method != RANGED))
        return method, b, n, k, p, None

    def ranged_bits(self, p):
        self.finish_byte()
        width, self.code = 2**32 - 1, sum(self.take(8) << shift for shift in (24, 16, 8, 0))
        while True:
            bound = (width >> 16) * p
            bit = self.code < bound
            self.code, width = (self.code, bound) if bit else (self.code - bound, width - bound)
            while width < 2**24:
                self.code, width = self.code << 8 | self.take(8), width << 8
            yield bit

    def gaps(self, method, b, n, k, p):
        remainders = [self.take(b) for _ in range(k)] if method != ADAPTIVE else []
        bits = self.ranged_bits(p) if method == RANGED else iter(self.take, None)
        mean = 8 * (b + 1)
        for i in range(k):
            zeros = next((x for x, bit in zip(range(n), bits, strict=False) if bit), n)  # before the next 1
            check(zeros < n)
            if method == ADAPTIVE:
                order = max(0, (mean >> 3) - 1)
                gap = 2 ** (order + zeros) + self.take(order + zeros) - 2**order
                mean += gap.bit_length() - (mean >> 3)
            else:
                gap = (zeros << b) + remainders[i]
            yield gap
        check(method != RANGED or self.code == 0)

    def positions(self, header):
        method, b, n, k, p, inner = header
        if method == BLOCKS:
            return [x for j in self.positions(inner) for x in range(j * b, min(j * b + b, n))]
        if method in (NONE, ALL):
            found = range(k)
        elif method == BITMAP:
            found = [x for x in range(n) if self.take()]
        else:
            gaps = self.gaps(method, b, n, n - k if method == HOLES else k, p)
            found = [x - 1 for x in accumulate(gap + 1 for gap in gaps)]
            found = sorted(set(range(n)).difference(found)) if method == HOLES else found
        self.finish_byte()
        check(len(found) == k and max(found, default=-1) < n)
        return found


def decode(payload, sizes, buffers, fingerprint):
    """(indices in the flat vector, values, buffers) as lists of Python numbers."""
    check(len(payload) >= 28)
    magic, major, minor, coding, flags, owner, length, crc = struct.unpack_from("<4sBBBB8sQL", payload)
    check(magic == b"JGRD" and (major, minor) == (1, 0) and length == len(payload))
    check(zlib.crc32(payload[:24] + payload[28:]) == crc and owner.hex() == fingerprint)
    check(coding <= 6 and flags == (buffers > 0))
    reader, bits = Reader(payload, 28), (32, 16, 16, 1, 2, 4, 8)[coding]
    layers = [reader.positions(header) for header in [reader.layer_header(n) for n in sizes]]
    scales = [reader.float32() if coding >= 3 and layer else 0.0 for layer in layers]
    scaled = [(reader.take(bits), scale) for layer, scale in zip(layers, scales, strict=True) for _ in layer]
    reader.finish_byte()
    extra = [reader.float32() for _ in range(buffers)]
    check(reader.at == 8 * length)
    if coding >= 3:
        most = 2**bits - 1
        check(all(str(scale)[0] != "-" and scale * most <= LARGEST for scale in scales))
        raw = [struct.pack("<f", scale * (2 * level - most)) for level, scale in scaled]
    else:
        raw = [(number << 16 * (coding == 2)).to_bytes(2 if coding == 1 else 4, "little") for number, _ in scaled]
    values = [struct.unpack("<e" if coding == 1 else "<f", one)[0] for one in raw]
    check(all(abs(v) <= LARGEST for v in values + extra))
    starts = accumulate(sizes, initial=0)
    return [start + x for start, layer in zip(starts, layers, strict=False) for x in layer], values, extra
