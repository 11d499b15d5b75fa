from __future__ import annotations

import json
import math
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import plain_decoder
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import BATCHNORM, LAYOUT, SIZES, cases, seal, sparse, supports

import joulegrad as jg
from joulegrad import decode, encode
from joulegrad.kernels import bits
from joulegrad.wire import errors, header

CASES = list(cases())
GOLDEN = Path(__file__).parent / "golden"


def plainly(payload: bytes, layout: jg.Layout) -> tuple:
    return plain_decoder.decode(payload, [s.size for s in layout.segments], layout.buffer_size, layout.fingerprint)


def agree(update: jg.SparseUpdate, plain: tuple) -> bool:
    indices, values, buffers = plain
    mine = [] if update.buffers is None else update.buffers.tolist()
    return (
        update.indices.tolist() == indices
        and [(v, math.copysign(1, v)) for v in update.values.tolist()] == [(v, math.copysign(1, v)) for v in values]
        and mine == buffers
    )


@pytest.mark.parametrize(("name", "update", "layout"), CASES, ids=[c[0] for c in CASES])
def test_round_trip_to_the_bit_with_both_decoders(name, update, layout):
    payload = encode(update, layout)
    received = decode(payload, layout)
    assert received == update
    assert encode(received, layout) == payload
    assert agree(update, plainly(payload, layout))
    assert decode(bytearray(payload), layout) == decode(memoryview(payload), layout) == update


def floor_bits(update: jg.SparseUpdate, layout: jg.Layout) -> float:
    total = 0.0
    for s in layout.segments:
        k = int(((update.indices >= s.start) & (update.indices < s.stop)).sum())
        if 0 < k < s.size:
            p = k / s.size
            total -= s.size * (p * math.log2(p) + (1 - p) * math.log2(1 - p))
    return total


def within_three_per_cent(update: jg.SparseUpdate, layout: jg.Layout) -> None:
    size = len(encode(update, layout)) - update.values.numel() * update.values.element_size()
    assert size <= 1.03 * floor_bits(update, layout) / 8 + 64 + 4 * len(layout.segments)


BIG = jg.Layout.from_shapes({"stem": (1000,), "body": (300_000,), "head": (50_000,), "bias": (10,)})


@pytest.mark.parametrize(
    "density",
    [0, 1e-4, 1e-3, 0.0035, 0.007, 0.0138, 0.027, 0.055, 0.11, 0.13, 0.2, 0.22, 0.3]
    + [0.36, 0.38, 0.4, 0.5, 0.6, 0.62, 0.64, 0.7, 0.8, 0.9, 0.99, 0.9999, 1],
)
def test_indices_are_within_three_per_cent_of_their_entropy(density):
    support = np.flatnonzero(np.random.default_rng(7).random(BIG.size) < density)
    within_three_per_cent(sparse(support, layout=BIG), BIG)


def hard_supports() -> dict[str, np.ndarray]:
    """Arrangements that are as bad as can be for Rice codes: gaps that just fill a quotient, huge and tiny mixed."""
    rng, d = np.random.default_rng(3), BIG.size
    jumps = np.cumsum(rng.choice([1, 2000], 3000))
    return {
        "multiples-of-64": np.arange(1063, d, 64),
        "multiples-of-100": np.arange(0, d, 100),
        "clusters": np.flatnonzero(np.arange(d) % 5000 < 50),
        "half-empty": np.arange(0, d // 2, 3),
        "two-gaps": jumps[jumps < d],
        "pairs": np.flatnonzero(np.arange(d) % 97 < 2),
        "one-run": np.arange(2000, 90_000),
        "random-then-dense": np.concatenate([np.sort(rng.choice(200_000, 500, replace=False)), np.arange(250_000, d)]),
        "alternating": np.arange(0, d, 2),
        "ever-larger": np.cumsum(np.arange(1, 800)),
        "channels": np.flatnonzero(rng.random(d) < np.where(np.arange(d) // 4096 % 8 == 3, 0.1, 0.002)),
        "blocks-of-16": 1000 + np.flatnonzero(np.repeat(rng.random(300_000 // 16) < 0.01, 16)),
    }


@pytest.mark.parametrize("name", hard_supports())
def test_no_arrangement_is_costly(name):
    update = sparse(hard_supports()[name], layout=BIG)
    within_three_per_cent(update, BIG)
    assert decode(encode(update, BIG), BIG) == update


def test_blocks_are_coded_as_blocks():
    blocks = jg.inspect(encode(sparse(hard_supports()["blocks-of-16"], layout=BIG), BIG), BIG)
    assert blocks.layers[1].coding.startswith("blocks of 16")
    assert blocks.index_bytes < 0.2 * blocks.entropy_bits / 8  # one index serves sixteen entries


def test_clustered_supports_are_coded_adaptively():
    found = jg.inspect(encode(sparse(hard_supports()["channels"], layout=BIG), BIG), BIG)
    assert found.layers[1].coding == "adaptive"
    assert found.index_bytes < 0.95 * found.entropy_bits / 8  # no bound where entries are not drawn at random
    inside = np.repeat(hard_supports()["channels"][:2000] // 8, 8) * 8 + np.tile(np.arange(8), 2000)
    found = jg.inspect(encode(sparse(np.unique(inside), layout=BIG), BIG), BIG)
    assert found.layers[1].coding == "blocks of 8, adaptive"


@pytest.mark.parametrize("gaps", [[2**33, 3, 2**35, 0, 2**34], [0] * 300 + [2**36] + [1] * 40, [2**20] * 9 + [2**37]])
def test_gaps_that_no_word_holds(gaps):
    huge = jg.Layout.from_shapes({"w": (2**38,)})
    positions = np.cumsum(np.array(gaps) + 1) - 1
    words = np.zeros(200, np.uint64)
    for b in (0, 5, 31):
        words[:] = 0
        end = bits.write_adaptive(words, 7, positions, b)
        assert end - 7 == bits.adaptive_bits(positions, b)
        read = np.empty_like(positions)
        assert bits.read_adaptive(words, 7, end, read, b, huge.size) == (bits.OK, end)
        assert np.array_equal(read, positions)
        assert bits.read_adaptive(words, 7, end - 1, read, b, huge.size)[0] == bits.TRUNCATED
        assert bits.read_adaptive(words, 7, end, read, b, int(positions[-1]))[0] == bits.OUT_OF_RANGE
    update = sparse(positions, layout=huge)
    assert decode(encode(update, huge), huge) == update


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_update_comes_back(data):
    sizes = data.draw(st.lists(st.integers(0, 70), min_size=1, max_size=5).filter(any))
    layout = jg.Layout.from_shapes({f"l{i}": (n,) for i, n in enumerate(sizes)})
    indices = sorted(data.draw(st.sets(st.integers(0, layout.size - 1))))
    floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
    values = data.draw(st.lists(floats, min_size=len(indices), max_size=len(indices)))
    update = sparse(indices, torch.tensor(values, dtype=torch.float32), layout)
    payload = encode(update, layout)
    assert decode(payload, layout) == update
    assert agree(update, plainly(payload, layout))
    bits = data.draw(st.sampled_from([1, 2, 4, 8]))
    dense = update.to_dense()
    op = jg.Quantized(jg.TopK(k=len(indices)), bits=bits)
    coded, _ = op(dense, op.init(layout))
    payload = encode(coded, layout)
    assert decode(payload, layout) == coded
    assert agree(coded, plainly(payload, layout))


def test_sizes_are_what_they_should_be():
    one = jg.Layout.from_shapes({"w": (1_000_000,)})
    assert len(encode(sparse([], layout=one), one)) == 29
    assert len(encode(sparse([77], layout=one), one)) < 28 + 2 + 3 + 4 + 1
    dense = sparse(range(LAYOUT.size))
    assert len(encode(dense, LAYOUT)) == 28 + len(SIZES) + 4 * LAYOUT.size
    op = jg.Quantized(jg.TopK(density=1.0), bits=1)
    signs, _ = op(torch.linspace(-1, 2, 10**6), op.init(one))
    assert len(encode(signs, one)) == 28 + 1 + 4 + 10**6 // 8  # a 1-bit code costs 1 bit


HEAD = bytes([0] * 6)  # no entries in any layer


@pytest.mark.parametrize(
    ("payload", "error", "message"),
    [
        (b"", errors.Truncated, "at least 28 bytes, got 0"),
        (b"JGRD", errors.Truncated, "got 4"),
        (b"PK\x03\x04" + bytes(40), errors.NotAPayload, "starts with b'JGRD', got b'PK"),
        (seal(HEAD, major=2), errors.UnsupportedVersion, r"format 2.0, this is 1.0: upgrade joulegrad to read it"),
        (seal(HEAD, minor=1), errors.UnsupportedVersion, r"format 1.1, this is 1.0: upgrade"),
        (seal(HEAD, major=0), errors.UnsupportedVersion, "older than any"),
        (seal(HEAD, length=2**31), errors.Truncated, "says it has 2147483648 bytes, got 34"),
        (seal(HEAD, length=2**64 - 1), errors.Truncated, "says it has 18446744073709551615 bytes"),
        (seal(HEAD)[:-1], errors.Truncated, "says it has 34 bytes, got 33"),
        (seal(HEAD) + b"\0", errors.TrailingBytes, "says it has 34 bytes, got 35"),
        (seal(HEAD, checksum=1), errors.ChecksumMismatch, "checksum is 00000001"),
        (seal(HEAD, values=7), errors.UnknownCoding, "value coding 7"),
        (seal(HEAD, flags=2), errors.UnknownCoding, "flags 0x02"),
        (seal(HEAD, flags=1), errors.UnknownCoding, "buffers flag does not agree with the layout"),
        (seal(HEAD, fingerprint=bytes(8)), errors.OtherModel, "layout 0000000000000000, ours is"),
        (seal(HEAD[:3]), errors.Truncated, "the bytes end inside one"),
        (seal(HEAD + b"\0"), errors.TrailingBytes, "1 bytes between the indices and the values"),
        (seal(bytes([7]) + HEAD), errors.UnknownCoding, "an index coding that the format does not have, in conv"),
        (seal(bytes([8]) + HEAD[1:]), errors.UnknownCoding, "conv"),  # b where there is none
        (seal(bytes([0, 0, 1, 0, 0, 0])), errors.UnknownCoding, "in none"),  # all of nothing
        (seal(bytes([2, 145, 1]) + HEAD[1:]), errors.TooManyEntries, r"than there are in conv \(144 entries\)"),
        (seal(bytes([2, 144, 1]) + HEAD[1:]), errors.UnknownCoding, "conv"),  # all of them is method 1
        (seal(bytes([2, 0]) + HEAD[1:]), errors.UnknownCoding, "conv"),
        (seal(bytes([2, 129, 0]) + HEAD[1:]), errors.UnknownCoding, "not written in its shortest form, in conv"),
        (seal(bytes([2] + [255] * 12)), errors.UnknownCoding, "shortest form"),
        (seal(bytes([2, 129])), errors.Truncated, "inside conv"),
        (seal(bytes([5, 3, 0, 0]) + HEAD[1:] + bytes(40)), errors.UnknownCoding, "conv"),  # probability 0
        (seal(bytes([5, 3, 1])), errors.Truncated, "conv"),
        (seal(bytes([6, 1, 2, 1]) + HEAD[1:]), errors.UnknownCoding, "a block size that does not fit conv"),
        (seal(bytes([6, 145, 1, 2, 1]) + HEAD[1:]), errors.UnknownCoding, "block size"),
        (seal(bytes([14, 16, 2, 1]) + HEAD[1:]), errors.UnknownCoding, "block size"),  # no short block in 144 / 16
        (seal(bytes([22, 16, 2, 1]) + HEAD[1:]), errors.UnknownCoding, "an index coding"),
        (seal(bytes([6, 16, 6, 2, 2, 1]) + HEAD[1:]), errors.UnknownCoding, "an index coding"),  # blocks of blocks
        (seal(bytes([6, 16, 1]) + HEAD[1:]), errors.UnknownCoding, "an index coding"),
        (seal(bytes([6, 16])), errors.Truncated, "conv"),
        (seal(bytes([1]) + HEAD[1:] + bytes(575)), errors.Truncated, "144 entries need 576 bytes after the indices"),
        (seal(bytes([2, 1]) + HEAD[1:] + b"\0" + bytes(4)), errors.Truncated, "inside conv"),
        (seal(bytes([2 | 7 << 3, 1]) + HEAD[1:] + b"\x00\x02" + bytes(4)), errors.IndexOutOfRange, "beyond conv"),
        (
            seal(bytes([2 | 31 << 3, 1]) + HEAD[1:] + b"\xff\xff\xff\xff\xff" + bytes(4)),
            errors.IndexOutOfRange,
            "beyond conv",
        ),
        (seal(bytes([2, 1]) + HEAD[1:] + b"\x03" + bytes(4)), errors.NonZeroPadding, "after the indices of conv"),
        (seal(bytes([4, 2]) + HEAD[1:] + b"\x01" + bytes(17) + bytes(8)), errors.CountMismatch, "conv"),
        (seal(bytes([4, 2]) + HEAD[1:] + b"\x07" + bytes(17) + bytes(8)), errors.CountMismatch, "conv"),
        (seal(bytes([0, 4, 1, 0, 0, 0, 0]) + b"\x81" + bytes(4)), errors.NonZeroPadding, "norm"),
        (seal(bytes([4, 2]) + HEAD[1:] + bytes(10) + bytes(8)), errors.Truncated, "conv"),
        (seal(bytes([5, 1, 1, 0]) + HEAD[1:] + b"\xff" * 8 + bytes(4)), errors.IndexOutOfRange, "conv"),
        (seal(bytes([5, 1, 0, 128]) + HEAD[1:] + b"\x00\x00\x00\x01" + bytes(4)), errors.NonZeroPadding, "conv"),
        (seal(bytes([5, 1, 0, 128]) + HEAD[1:] + b"\x00\x00" + bytes(4)), errors.Truncated, "conv"),
        (
            seal(bytes([7, 3]) + HEAD[1:] + b"\x80" + bytes(12)),
            errors.Truncated,
            "inside conv",
        ),  # a last code of one bit
        (seal(bytes([7, 1]) + HEAD[1:] + bytes(1) + bytes(4)), errors.Truncated, "conv"),  # zeros, and no one
        (seal(bytes([7 | 31 << 3, 1]) + HEAD[1:] + b"\x01" + bytes(4)), errors.Truncated, "conv"),
        (seal(bytes([7, 1]) + HEAD[1:] + b"\x80" + bytes(4)), errors.Truncated, "conv"),
        (seal(bytes([7, 1]) + HEAD[1:] + b"\x80\x24" + bytes(4)), errors.IndexOutOfRange, "beyond conv"),
        (seal(bytes([7, 1]) + HEAD[1:] + bytes(8) + b"\x01" + bytes(12)), errors.IndexOutOfRange, "conv"),
        (seal(bytes([7, 1]) + HEAD[1:] + b"\x03" + bytes(4)), errors.NonZeroPadding, "after the indices of conv"),
        (
            # A layer of 1000 in blocks of 3: the last block has one entry, and b says that it was not sent.
            seal(bytes([0, 0, 0, 0, 6, 3, 2 | 8 << 3, 1, 0]) + b"\x4d\x02" + bytes(12)),
            errors.CountMismatch,
            "fc",
        ),
        (seal(bytes([1]) + HEAD[1:] + b"\x00\x00\xc0\x7f" + bytes(572)), errors.NotFinite, "nan among the floats"),
        (
            seal(bytes([1]) + HEAD[1:] + bytes(4) + b"\x00\x00\x80\xff" + bytes(568)),
            errors.NotFinite,
            "-inf .*, 1 after",
        ),
        (seal(bytes([0, 0, 0, 1, 0, 0]) + b"\x00\x7c", values=1), errors.NotFinite, "inf among"),
        (seal(bytes([0, 0, 0, 1, 0, 0]) + b"\x80\x7f", values=2), errors.NotFinite, "inf among"),
        (seal(bytes([0, 0, 0, 1, 0, 0]) + struct.pack("<f", -1.0) + b"\1", values=3), errors.BadScale, "-1.0"),
        (seal(bytes([0, 0, 0, 1, 0, 0]) + struct.pack("<f", -0.0) + b"\1", values=3), errors.BadScale, "-0.0"),
        (seal(bytes([0, 0, 0, 1, 0, 0]) + struct.pack("<f", math.nan) + b"\1", values=3), errors.BadScale, "nan"),
        (seal(bytes([0, 0, 0, 1, 0, 0]) + struct.pack("<f", 3e38) + b"\1", values=6), errors.BadScale, "overflows"),
        (seal(bytes([0, 0, 0, 1, 0, 0]) + struct.pack("<f", 1.0) + b"\2", values=3), errors.NonZeroPadding, "codes"),
    ],
)
def test_malformed_payloads_name_what_is_wrong(payload, error, message):
    with pytest.raises(errors.WireError, match=message) as caught:
        decode(payload, LAYOUT)
    assert type(caught.value) is error
    assert 0 <= caught.value.offset <= len(payload)
    if error is not errors.UnsupportedVersion:
        with pytest.raises((ValueError, struct.error)):
            plainly(payload, LAYOUT)


def test_malformed_buffers():
    good = encode(sparse([0], layout=BATCHNORM).with_buffers(torch.ones(6)), BATCHNORM)
    bad = seal(good[28:-4] + b"\x00\x00\x80\x7f", BATCHNORM, flags=1)
    with pytest.raises(errors.NotFinite, match="inf among the floats, 5 after the first"):
        decode(bad, BATCHNORM)
    with pytest.raises(errors.Truncated):
        decode(seal(good[28:-4], BATCHNORM, flags=1), BATCHNORM)


def test_every_error_is_met_in_the_table():
    (table,) = test_malformed_payloads_name_what_is_wrong.pytestmark
    met = {error for _, error, _ in table.args[1]}
    family = {getattr(errors, name) for name in errors.__all__} - {errors.WireError}
    assert met == family


def test_errors_pickle():
    error = pickle.loads(pickle.dumps(errors.Truncated("why", 7)))
    assert (type(error), str(error), error.offset) == (errors.Truncated, "why", 7)


def test_a_flipped_bit_anywhere_is_seen():
    payload = encode(sparse(dict(supports())["random-0.05"]), LAYOUT)
    for i in range(8 * len(payload)):
        flipped = bytearray(payload)
        flipped[i // 8] ^= 1 << i % 8
        with pytest.raises(errors.WireError):
            decode(flipped, LAYOUT)


def test_every_truncation_is_seen():
    payload = encode(sparse(dict(supports())["random-0.05"]), LAYOUT)
    for n in range(len(payload)):
        with pytest.raises(errors.Truncated):
            decode(payload[:n], LAYOUT)


def test_a_huge_claim_takes_no_memory():
    huge = jg.Layout.from_shapes({"w": (10**9,)})
    decode(encode(sparse([5], layout=huge), huge), huge)  # compiled before memory is measured
    for payload in (
        seal(bytes([1]), huge),  # all 10⁹ entries in 29 bytes
        seal(bytes([2]) + b"\xff\xff\xff\xff\x02", huge),
        seal(bytes([3, 1]), huge),
        seal(bytes([4, 1]), huge),
        seal(bytes([0]), huge, length=2**31),
    ):
        tracemalloc.start()
        with pytest.raises(errors.Truncated):
            decode(payload, huge)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100_000


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_hostile_bytes_raise_nothing_but_wire_errors(case, data):
    _, update, layout = case
    body = bytearray(encode(update, layout)[28:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, min(len(body) - 1, 60))))
        match data.draw(st.sampled_from(["set", "insert", "delete"])):
            case "set" if body:
                body[at] = data.draw(st.integers(0, 255))
            case "insert":
                body.insert(at, data.draw(st.integers(0, 255)))
            case "delete" if body:
                del body[at]
    values = data.draw(st.integers(0, 6))
    payload = seal(bytes(body), layout, values=values, flags=int(bool(layout.buffers)))
    try:
        found = decode(payload, layout)
    except errors.WireError:
        with pytest.raises((ValueError, struct.error)):
            plainly(payload, layout)
    else:
        assert agree(found, plainly(payload, layout))
        assert decode(encode(found, layout), layout) == found


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("v*/*.bin")), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_golden_payloads_decode_for_ever(path):
    expected = json.loads((path.parent / "expected.json").read_text())[path.stem]
    layout = {"plain": LAYOUT, "batchnorm": BATCHNORM}[expected["layout"]]
    payload = path.read_bytes()
    found = decode(payload, layout)
    assert found.indices.tolist() == expected["indices"]
    assert str(found.values.dtype) == expected["dtype"]
    assert [v.hex() for v in found.values.tolist()] == expected["values"]
    assert (None if found.codes is None else found.codes.levels.tolist()) == expected["levels"]
    assert (None if found.buffers is None else [b.hex() for b in found.buffers.tolist()]) == expected["buffers"]
    assert agree(found, plainly(payload, layout))


def test_there_are_golden_payloads_of_every_case():
    stems = {p.stem for p in (GOLDEN / "v1.0").glob("*.bin")}
    assert stems == {name for name, _, _ in CASES}


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (jg.SparseUpdate(torch.tensor([0]), torch.ones(1), 5), "the update has 5 entries, the layout 1155"),
        (sparse([1], [math.nan]), "finite numbers only, .* among the values"),
        (sparse([1], [math.inf], dtype=torch.bfloat16), "finite numbers only"),
        (sparse([1]).with_buffers(torch.ones(2)), "averages 0 buffer entries and the update carries 2"),
    ],
)
def test_what_cannot_be_encoded(update, message):
    with pytest.raises(ValueError, match=message):
        encode(update, LAYOUT)


@pytest.mark.parametrize("wrong", [[3, 2], [3, 3], [-1], [1155]])
def test_indices_that_are_none_are_refused_wherever_they_come_from(wrong):
    with pytest.raises(ValueError, match=r"strictly increasing and inside \[0, 1155\)"):
        sparse(wrong)
    unchecked = sparse(range(len(wrong)))  # as an update that comes from a GPU
    object.__setattr__(unchecked, "indices", torch.tensor(wrong))
    with pytest.raises(ValueError, match=r"strictly increasing and inside \[0, 1155\)"):
        encode(unchecked, LAYOUT)


def test_buffers_are_never_forgotten():
    with pytest.raises(ValueError, match=r"averages 6 buffer entries and the update carries 0: attach them with"):
        encode(sparse([0], layout=BATCHNORM), BATCHNORM)
    with pytest.raises(ValueError, match="among the buffers"):
        encode(sparse([0], layout=BATCHNORM).with_buffers(torch.full((6,), math.nan)), BATCHNORM)


def test_codes_that_do_not_make_the_values_are_refused():
    op = jg.Quantized(jg.TopK(k=5), bits=4)
    sent, _ = op(torch.randn(LAYOUT.size), op.init(LAYOUT))
    codes = sent.codes
    for broken, message in (
        (codes._replace(levels=codes.levels ^ 1), "values are not those of its codes"),
        (codes._replace(levels=codes.levels + 16), r"does not fit|values are not"),
        (codes._replace(counts=codes.counts.flip(0)), "counts are not those of the indices"),
        (codes._replace(scales=-codes.scales), "scales must be finite, not negative"),
        (codes._replace(scales=codes.scales + 1.0), "zero where a layer sends nothing"),
        (codes._replace(bits=3), "1, 2, 4 or 8 bits, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            encode(jg.SparseUpdate(sent.indices, sent.values, sent.size, broken), LAYOUT)


def test_the_whole_loop_on_a_real_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    layout = jg.Layout.of(model)
    before = layout.values(model)
    model(torch.randn(8, 1, 8, 8)).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    compress = jg.ErrorFeedback(jg.Quantized(jg.CWMP(density=0.1, cost=jg.LayerType()), bits=1))
    sent, _ = compress(before - layout.values(model), compress.init(layout))
    payload = encode(sent.with_buffers(layout.buffer_values(model)), layout)
    received = decode(payload, layout)
    mean = jg.mean([(received, 8)])
    assert torch.equal(mean.update, sent.to_dense())
    assert torch.equal(mean.buffers, layout.buffer_values(model))
    assert len(payload) < 28 + 3 * 6 + 4 * 6 + 4 * 8 + len(sent) * 6 / 8 + 30


def test_header_and_bits_agree_on_what_there_is():
    assert header.LAYOUT.size == 28
    assert set(header.WIDTH) == set(range(len(header.NAMES)))
