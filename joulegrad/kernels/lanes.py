"""Vector instructions for the loops of `passes`: LANES entries are compared at once, and a word says which passed.

`reach` compares integers: a float's magnitude orders as its bits without the sign (its *key*). `keep` writes down those
that a word names. Where the processor packs lanes in one instruction (AVX-512) that takes the same time whatever the
word; elsewhere it goes from one bit of the word to the next.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from joulegrad.jit import jit
from joulegrad.kernels.bits import trailing_zeros

Keys = NDArray[np.int32]

LANES = 64  # entries compared at once, a bit each in one word
ROW = 16  # entries packed at once: as many as fill a vector
ONE = np.uint64(1)
MAGNITUDE = np.int32(0x7FFFFFFF)
PACKS = llvmlite.binding.llvm_version_info >= (19,) and bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))


def _vector(bits: int, lanes: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(bits), lanes)


def _splat(builder: Any, scalar: Any, lanes: int) -> Any:
    empty = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.IntType(32)(0))
    return builder.shuffle_vector(first, empty, ir.Constant(_vector(32, lanes), None))


def _at(context: Any, builder: Any, array_type: Any, array: Any, at: Any, lanes: int) -> Any:
    """The address of `lanes` integers of an array from `at` on."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), _vector(array_type.dtype.bitwidth, lanes).as_pointer())


def _load(context: Any, builder: Any, array_type: Any, array: Any, at: Any, lanes: int) -> Any:
    loaded = builder.load(_at(context, builder, array_type, array, at, lanes))
    loaded.align = array_type.dtype.bitwidth // 8  # whatever its alignment
    return loaded


def _reaching(
    context: Any, builder: Any, array_type: Any, raw: Any, at: Any, least: Any, lanes: int
) -> tuple[Any, Any]:
    """Floats from `at` on, as integers, and which of their keys are ≥ `least`."""
    loaded = _load(context, builder, array_type, raw, at, lanes)
    keys = builder.and_(loaded, ir.Constant(loaded.type, [int(MAGNITUDE)] * lanes))
    return loaded, builder.icmp_signed(">=", keys, _splat(builder, least, lanes))


def _beyond_cost(
    context: Any, builder: Any, signature: Any, arguments: Any, lanes: int, up: int
) -> tuple[Any, Any, Any]:
    """Floats, their costs, and which keys are beyond price · cost + floor: ≥, rounded down, or >, rounded `up`."""
    raw_array, cost_array, at, price, floor = arguments[:5]
    raw = _load(context, builder, signature.args[0], raw_array, at, lanes)
    keys = builder.and_(raw, ir.Constant(raw.type, [int(MAGNITUDE)] * lanes))
    halves = _load(context, builder, signature.args[1], cost_array, at, lanes)
    bits = builder.add(builder.zext(halves, raw.type), ir.Constant(raw.type, [up] * lanes))
    bits = builder.shl(bits, ir.Constant(raw.type, [16] * lanes))
    cost = builder.bitcast(bits, ir.VectorType(ir.FloatType(), lanes))
    least = builder.fadd(builder.fmul(cost, _splat(builder, price, lanes)), _splat(builder, floor, lanes))
    least = builder.bitcast(least, raw.type)  # rounded to the nearest float, twice
    if up:  # unsigned: where the price is infinite nothing passes, whatever the product
        return raw, halves, builder.icmp_unsigned(">", keys, builder.add(least, ir.Constant(raw.type, [2] * lanes)))
    return raw, halves, builder.icmp_signed(">=", keys, builder.sub(least, ir.Constant(raw.type, [2] * lanes)))


def _pack(
    context: Any, builder: Any, values: Any, passed: Any, array_type: Any, out: Any, n: Any, plus: Any = None
) -> None:
    """Write the values that passed, `plus` a number, side by side to `out` from n on, and anything behind them."""
    lanes, width = values.type.count, values.type.element.width
    kind = ir.FunctionType(values.type, [values.type, passed.type, values.type])
    name = f"llvm.experimental.vector.compress.v{lanes}i{width}"
    compress = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    packed = builder.call(compress, [values, passed, ir.Constant(values.type, ir.Undefined)])
    if array_type.dtype.bitwidth > width:
        packed = builder.zext(packed, _vector(array_type.dtype.bitwidth, lanes))
    if plus is not None:
        number = plus if packed.type.element == plus.type else builder.trunc(plus, packed.type.element)
        packed = builder.add(packed, _splat(builder, number, lanes))
    stored = builder.store(packed, _at(context, builder, array_type, out, n, lanes))
    stored.align = array_type.dtype.bitwidth // 8


def _counted(builder: Any, passed: Any, n: Any) -> Any:
    found = builder.ctpop(builder.bitcast(passed, ir.IntType(passed.type.count)))
    return builder.add(n, builder.zext(found, n.type))


STEPS = ir.Constant(_vector(32, ROW), list(range(ROW)))


@intrinsic
def reach(typing_context: Any, raw: Any, at: Any, least: Any) -> Any:
    """Which of the LANES floats from `at` on have keys ≥ `least`: a word, the first in its lowest bit."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, passed = _reaching(context, builder, signature.args[0], *arguments, LANES)
        return builder.bitcast(passed, ir.IntType(LANES))

    return types.uint64(raw, types.int64, types.int32), build


@intrinsic
def reach_each(typing_context: Any, raw: Any, costs: Any, at: Any, price: Any, floor: Any) -> Any:
    """The same where each entry has its own least magnitude: price · cost + floor.

    Costs are the upper halves of floats, rounded down (`low_halves`). Product and sum are rounded to the nearest float,
    so the key is lowered by two: nothing that should pass is kept out.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, passed = _beyond_cost(context, builder, signature, arguments, LANES, 0)
        return builder.bitcast(passed, ir.IntType(LANES))

    return types.uint64(raw, costs, types.int64, types.float32, types.float32), build


@intrinsic
def exceed_each(typing_context: Any, raw: Any, costs: Any, at: Any, price: Any, floor: Any) -> Any:
    """Which entries certainly have more than their own least magnitude, price · cost + floor.

    Here costs are rounded up, to the next half: nothing passes that should not.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, passed = _beyond_cost(context, builder, signature, arguments, LANES, 1)
        return builder.bitcast(passed, ir.IntType(LANES))

    return types.uint64(raw, costs, types.int64, types.float32, types.float32), build


@intrinsic
def ones(typing_context: Any, word: Any) -> Any:
    """How many bits of a word are one."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), build


@intrinsic
def sift_row(typing_context: Any, raw: Any, at: Any, least: Any, first: Any, places: Any, kept: Any, n: Any) -> Any:
    """Write down those of the ROW floats from `at` on whose keys are ≥ `least`, and their places, first + at and on.

    Writes to `places` and `kept` from n on, and anything up to ROW beyond; returns the new n.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        raw, at, least, first, places, kept, n = arguments
        floats, passed = _reaching(context, builder, signature.args[0], raw, at, least, ROW)
        _pack(context, builder, STEPS, passed, signature.args[4], places, n, builder.add(first, at))
        _pack(context, builder, floats, passed, signature.args[5], kept, n)
        return _counted(builder, passed, n)

    return types.int64(raw, types.int64, types.int32, types.int64, places, kept, types.int64), build


@intrinsic
def sift_row_each(
    typing_context: Any, raw: Any, costs: Any, at: Any, price: Any, floor: Any, first: Any, places: Any, kept: Any,
    kept_costs: Any, n: Any,
) -> Any:  # fmt: skip
    """The same of those that `reach_each` names, with their rounded costs."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, (first, places, kept, kept_costs, n) = arguments[2], arguments[5:]
        floats, halves, passed = _beyond_cost(context, builder, signature, arguments, ROW, 0)
        _pack(context, builder, STEPS, passed, signature.args[6], places, n, builder.add(first, at))
        _pack(context, builder, floats, passed, signature.args[7], kept, n)
        _pack(context, builder, halves, passed, signature.args[8], kept_costs, n)
        return _counted(builder, passed, n)

    numbers = types.int64, types.float32, types.float32, types.int64
    return types.int64(raw, costs, *numbers, places, kept, kept_costs, types.int64), build


@intrinsic
def pack(typing_context: Any, source: Any, at: Any, word: Any, out: Any, n: Any) -> Any:
    """Write those of the LANES integers of `source` from `at` on that the word names to `out` from n on; the new n.

    Where the source is a number instead of an array, the integers are that number + at, the next, and so on. Writes
    anything to the places of `out` up to LANES from n on.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, at, word, out, n = arguments
        for i in range(0, LANES, ROW):
            place = builder.add(at, at.type(i))
            values, plus = STEPS, None
            if isinstance(signature.args[0], types.Array):
                values = _load(context, builder, signature.args[0], source, place, ROW)
            else:
                plus = builder.add(source, place)
            some = builder.trunc(builder.lshr(word, word.type(i)), ir.IntType(ROW))
            passed = builder.bitcast(some, _vector(1, ROW))
            _pack(context, builder, values, passed, signature.args[3], out, n, plus)
            n = _counted(builder, passed, n)
        return n

    return types.int64(source, types.int64, types.uint64, out, types.int64), build


@jit
def word_at(raw: Keys, at: int, stop: int, least: int) -> int:
    """`reach` for the entries from `at` up to `stop`, LANES of them at most."""
    if at + LANES <= stop:
        return reach(raw, at, least)
    if at + LANES <= len(raw):
        return reach(raw, at, least) & ((ONE << np.uint64(stop - at)) - ONE)
    word = np.uint64(0)
    for i in range(stop - at):
        word |= np.uint64((raw[at + i] & MAGNITUDE) >= least) << np.uint64(i)
    return word


@jit
def keep(source: Any, at: int, word: int, out: Any, n: int) -> int:
    """Write those of the LANES numbers from `at` on that the word names to `out` from n on; the new n.

    Once `out` is full it only counts.
    """
    if PACKS:  # noqa: SIM102 (numba drops what a constant alone rules out)
        if at + LANES <= len(source) and n + LANES <= len(out):
            return pack(source, at, word, out, n)
    while word:
        if n < len(out):
            out[n] = source[at + np.int64(trailing_zeros(word))]
        word &= word - ONE
        n += 1
    return n


@jit
def keep_places(at: int, word: int, out: Any, n: int) -> int:
    """The same of the places themselves: `at`, the next, and so on."""
    if PACKS:  # noqa: SIM102
        if n + LANES <= len(out):
            return pack(np.int64(0), at, word, out, n)
    while word:
        if n < len(out):
            out[n] = at + np.int64(trailing_zeros(word))
        word &= word - ONE
        n += 1
    return n
