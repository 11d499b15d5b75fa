"""Compile every program for a GPU, down to its machine code, where there is none: `test_gpu.py` runs this.

Triton's interpreter takes what its compiler refuses. A signature is made of the names: what each points to is the same
everywhere.
"""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from joulegrad.kernels import frugal, gpu, priced, ranking, spending, tallies, tiles

HOPPER = GPUTarget("cuda", 90, 32)
BY_DEFAULT = {
    "*fp32": "g",
    "*fp64": "costs paid",
    "*i64": "ends state words drawn few out sums",
    "*i32": "table keys counts listed listed_at bins drawn_at few_at others others_from spans",
    "i64": "bits",
}
OF_SELECTION = {"pieces": "*i32", "boards": "*i32", "scratch": "*i32"}
KINDS = {name: kind for kind, names in BY_DEFAULT.items() for name in names.split()}


def compiled(program, warps, kinds=None, **constants):
    """For memory that is aligned, as it always is."""
    names, kinds = program.arg_names, KINDS | (kinds or {})
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(program, signature, {(names.index(name),): of for name, of in constants.items()}, aligned)
    found = triton.compile(source, target=HOPPER, options={"num_warps": warps})
    sys.stdout.write(f"{program.__name__} {constants}: {len(found.asm['cubin'])} bytes\n")


for power, each in ((1, False), (2, True)):
    how = {"POWER": power, "EACH": each}
    size = {"BLOCK": gpu.TILE, "LIST": gpu.LIST, "BITS": gpu.BITS, "CROWD": gpu.CROWD}
    compiled(ranking.select, gpu.SELECT_WARPS, OF_SELECTION, FROM=0, TO=ranking.EMIT.value, **how, **size)
    compiled(tiles.survey, gpu.WARPS, **how, BY_RUN=not each, BLOCK=gpu.BLOCK)
    compiled(tiles.emit, gpu.WARPS, **how, OTHERS=not each, BLOCK=gpu.BLOCK)
    compiled(tiles.threshold, 4, **how, RUNS=gpu.RUNS)
    compiled(tallies.add_up, 4, {"g": "*bf16"}, POWER=power, BLOCK=256, DIGITS=2)
FRUGAL = {"LIST": gpu.LIST, "BITS": gpu.BITS, "CROWD": gpu.CROWD, "ADDED": frugal.ADDED}
BITS = {"joules_bits": "i64", "scale_bits": "i64"}
compiled(spending.spend, gpu.SELECT_WARPS, OF_SELECTION | BITS, POWER=1, BLOCK=gpu.TILE, **FRUGAL)
compiled(tallies.draw, 4, {"drawn": "*i32"}, BLOCK=256, BINS=4096)
compiled(tallies.weigh, gpu.LIST_WARPS, BLOCK=priced.BLOCK, BINS=4096)
compiled(tallies.pick, gpu.LIST_WARPS, {"few": "*i32"}, BLOCK=priced.BLOCK)
