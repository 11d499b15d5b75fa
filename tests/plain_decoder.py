"""A second decoder, in plain Python, written from docs/wire.md alone: no numpy, no torch, nothing of joulegrad."""

import struct
import zlib

LARGEST = 3.4028234663852886e38  # of float32


def check(holds):
    if not holds:
        raise ValueError("malformed")


class Bits:
    def __init__(self, data, at):
        self.data, self.at = data, 8 * at

    def take(self, count=1):
        check(self.at + count <= 8 * len(self.data))
        places = range(self.at, self.at + count)
        self.at += count
        return sum((self.data[x // 8] >> x % 8 & 1) << i for i, x in enumerate(places))

    def end(self):
        check(self.take(-self.at % 8) == 0)
        return self.at // 8


class RangeCoder:
    def __init__(self, data, at, p):
        self.data, self.at, self.p, self.width = data, at + 4, p, 2**32 - 1
        self.code = int.from_bytes(data[at : at + 4], "big")

    def take(self):
        bound = (self.width >> 16) * self.p
        bit = self.code < bound
        self.code, self.width = (self.code, bound) if bit else (self.code - bound, self.width - bound)
        while self.width < 2**24:
            check(self.at < len(self.data))
            self.width, self.code, self.at = self.width << 8, self.code << 8 | self.data[self.at], self.at + 1
        return int(bit)

    def end(self):
        check(self.code == 0)
        return self.at


def unary(coder, most):
    zeros = 0
    while not coder.take():
        zeros += 1
        check(zeros <= most)
    return zeros


def number(data, at):
    value = 0
    for i in range(8):
        check(at + i < len(data))
        value |= (data[at + i] & 127) << 7 * i
        if data[at + i] < 128:
            check(i == 0 or data[at + i] > 0)
            return value, at + i + 1
    return check(False)


def layer_header(data, at, n, inside=False):
    """(method, b, n, k, P, inner header), and the place after; for blocks b is s."""
    check(at < len(data))
    method, b, k, p, inner = data[at] & 7, data[at] >> 3, 0, 0, None
    at += 1
    if method == 6:
        s, at = number(data, at)
        check(not inside and b < 2 and 2 <= s <= n and not (b and n % s == 0))
        inner, at = layer_header(data, at, -(-n // s), True)
        k = inner[3] * s - (s - n % s if b else 0)
        return (6, s, n, k, 0, inner), at
    check((method > 1 or not inside) and (b == 0 or method in (2, 3, 5, 7)))
    if method == 1:
        k = n
    elif method >= 2:
        k, at = number(data, at)
        check(0 < k < n)
    if method == 5:
        p, at = int.from_bytes(data[at : at + 2], "little"), at + 2
    check(p > 0 or method != 5)
    check(n > 0 or method != 1)
    return (method, b, n, k, p, None), at


def positions(data, at, header):
    method, b, n, k, p, inner = header
    if method == 6:
        blocks, at = positions(data, at, inner)
        found = [x for j in blocks for x in range(j * b, min(j * b + b, n))]
    elif method <= 1:
        found = list(range(k))
    elif method == 4:
        bits = Bits(data, at)
        found = [x for x in range(n) if bits.take()]
        at = bits.end()
    else:
        bits, found, x, mean = Bits(data, at), [], -1, 8 * (b + 1)
        count = n - k if method == 3 else k
        remainders = [bits.take(b) for _ in range(count)] if method != 7 else []
        coder = RangeCoder(data, bits.end(), p) if method == 5 else bits
        for i in range(count):
            if method == 7:
                order = max(0, mean // 8 - 1)
                width = order + unary(bits, n)
                gap = 2**width + bits.take(width) - 2**order
                mean += gap.bit_length() - mean // 8
            else:
                gap = remainders[i] + (unary(coder, n - x) << b)
            x += 1 + gap
            check(x < n)
            found.append(x)
        at = coder.end()
        found = sorted(set(range(n)).difference(found)) if method == 3 else found
    check(len(found) == k)
    return found, at


def decode(payload, sizes, buffers, fingerprint):
    """(indices in the flat vector, values, buffers) as lists of Python numbers."""
    check(len(payload) >= 28)
    magic, major, minor, coding, flags, owner, length, crc = struct.unpack_from("<4sBBBB8sQL", payload)
    check(magic == b"JGRD" and (major, minor) == (1, 0) and length == len(payload))
    check(zlib.crc32(payload[:24] + payload[28:]) == crc and owner.hex() == fingerprint)
    check(coding <= 6 and flags == (buffers > 0))
    at, headers, indices, counts = 28, [], [], []
    for n in sizes:
        header, at = layer_header(payload, at, n)
        headers.append(header)
    for i, header in enumerate(headers):
        found, at = positions(payload, at, header)
        indices += [sum(sizes[:i]) + x for x in found]
        counts.append(len(found))
    scales = struct.unpack_from(f"<{sum(k > 0 for k in counts)}f", payload, at) if coding > 2 else ()
    check(all(str(s)[0] != "-" for s in scales))
    bits = Bits(payload, at + 4 * len(scales))
    width = (32, 16, 16, 1, 2, 4, 8)[coding]
    raw = [bits.take(width) for _ in indices]
    at = bits.end()
    if coding == 1:
        values = [struct.unpack("<e", struct.pack("<H", r))[0] for r in raw]
    elif coding <= 2:
        values = [struct.unpack("<f", struct.pack("<I", r << (32 - width)))[0] for r in raw]
    else:
        each = [s for s, k in zip(scales, filter(None, counts), strict=True) for _ in range(k)]
        check(all(s * (2**width - 1) <= LARGEST for s in scales))
        products = [s * (2 * r - 2**width + 1) for s, r in zip(each, raw, strict=True)]
        values = list(struct.unpack(f"<{len(raw)}f", struct.pack(f"<{len(raw)}f", *products)))
    check(at + 4 * buffers == length)
    extra = list(struct.unpack_from(f"<{buffers}f", payload, at))
    check(all(abs(v) <= LARGEST for v in values + extra))
    return indices, values, extra
