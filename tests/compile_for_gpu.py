"""Compile every program for a GPU, down to its machine code, where there is none: `test_gpu.py` runs this.

Triton's interpreter takes what its compiler refuses. A signature is made of the names: what each points to is the same
everywhere.
"""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from joulegrad.kernels import gpu, priced, tallies, tiles

HOPPER = GPUTarget("cuda", 90, 32)
BY_DEFAULT = {
    "*fp32": "g",
    "*fp64": "costs paid",
    "*i64": "ends state words drawn few out sums",
    "*i32": "table keys counts listed listed_at bins drawn_at few_at others others_from spans",
    "i64": "bits",
}
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
    compiled(tiles.sample, 4, **how, STEPS=1, BLOCK=128, BINS=gpu.BINS)
    compiled(tiles.bracket, 8, **how, OWN=gpu.OWN, BLOCK=1024, BINS=gpu.BINS, RUNS=gpu.RUNS)
    compiled(tiles.survey, gpu.WARPS, **how, BY_RUN=not each, BLOCK=gpu.BLOCK)
    rest = {"STEPS": 1, "BLOCK": gpu.LIST_BLOCK, "CROWD": gpu.CROWD}
    compiled(tiles.narrow, gpu.LIST_WARPS, **how, **rest, BINS=gpu.BINS)
    compiled(tiles.settle, gpu.LIST_WARPS, **how, **rest, OWN=64, OTHERS=256, RUNS=gpu.RUNS)
    compiled(tiles.emit, gpu.WARPS, **how, OTHERS=not each, BLOCK=gpu.BLOCK)
    compiled(tiles.threshold, 4, **how, RUNS=gpu.RUNS)
    compiled(tallies.add_up, 4, {"g": "*bf16"}, POWER=power, STEPS=3, BLOCK=256, DIGITS=2)
compiled(tallies.draw, 4, {"drawn": "*i32"}, STEPS=3, BLOCK=256, BINS=4096)
compiled(tallies.weigh, gpu.LIST_WARPS, STEPS=3, BLOCK=priced.BLOCK, BINS=4096)
compiled(tallies.pick, gpu.LIST_WARPS, {"few": "*i32"}, STEPS=3, BLOCK=priced.BLOCK)
