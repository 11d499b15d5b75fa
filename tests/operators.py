"""Every operator, in several settings: a new operator is one row, and every law of `laws.py` runs on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import joulegrad as jg
from joulegrad import CWMP, Blocks, BudgetedCWMP, PerLayer, RandomK, Threshold, TopK

K, JOULES = 17, 40.03  # no sum of the laws' prices: a budget that is met exactly turns on the last bit of c


@dataclass(frozen=True)
class Row:
    """An operator, and what the laws need to know of it.

    make    the operator for a cost model and a factor on its joules
    twin    what it must equal when every entry costs 1
    most    how many entries it may send at most
    joules  its energy budget, None where it has none
    random  it draws: where layers lie changes the draw
    alone   it must not go inside ErrorFeedback
    """

    name: str
    make: Callable[[jg.Cost, float], jg.Compressor]
    twin: Callable[[], jg.Compressor]
    most: int
    joules: float | None = None
    random: bool = False
    alone: bool = False


def free(op: jg.Compressor, name: str, most: int, *, random: bool = False, alone: bool = False) -> Row:
    """An operator without a cost model is its own twin."""
    return Row(name, lambda cost, f: op, lambda: op, most, random=random, alone=alone)


# Under equal costs Blocks(CWMP) is not Blocks(TopK): a layer's short last block costs less, so twins are CWMP.
SIZE = 170  # laws.LAYOUT: layers of 72, 8, 80 and 10 entries


class SendAll:
    """What a user might write: no rule, no priced state, and the update itself as values."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SendAll)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "SendAll()"

    def init(self, layout: jg.Layout) -> tuple[()]:
        return ()

    def __call__(self, update: torch.Tensor, state: tuple[()]) -> tuple[jg.SparseUpdate, tuple[()]]:
        return jg.SparseUpdate(torch.arange(len(update)), update, len(update)), state


@dataclass(frozen=True)
class Steady:
    """A cost that could follow densities, and does not: what `Repriced` needs of a cost, and nothing more."""

    cost: jg.Cost

    def joules(self, layout: jg.Layout) -> torch.Tensor:
        return self.cost.joules(layout)

    def at(self, counts: list[int], layout: jg.Layout) -> Steady:
        assert len(counts) == len(layout.segments)
        return self


ROWS = [
    free(SendAll(), "users-own", SIZE),
    free(jg.ErrorFeedback(SendAll()), "feedback-users-own", SIZE),
    free(jg.MomentumCorrection(SendAll()), "momentum-users-own", SIZE),
    free(TopK(k=K), "topk", K),
    free(TopK(density=0.1), "topk-density", 17),
    free(TopK(k=0), "topk-none", 0),
    free(TopK(k=10**9), "topk-all", SIZE),
    free(jg.PerChunk(k=3, entries=16), "per-chunk", 36),
    free(jg.PerChunk(density=0.2, entries=10), "per-chunk-density", 34),
    free(jg.PerChunk(k=0, entries=10), "per-chunk-none", 0),
    free(jg.PerChunk(k=99, entries=7), "per-chunk-all", SIZE),
    free(jg.LayerWise(density=0.1), "layer-wise", 24),
    free(jg.Quantized(jg.LayerWise(density=0.1, value_bits=1), bits=1), "layer-wise-1", SIZE),
    Row(
        "clipped",
        lambda c, f: jg.Clipped(CWMP(k=K, cost=c), norm=3.0),
        lambda: jg.Clipped(TopK(k=K), norm=3.0),
        K,
        alone=True,
    ),
    Row(
        "deep-gradient-compression",
        lambda c, f: jg.Clipped(
            jg.MomentumCorrection(jg.WarmUp(PerLayer(CWMP(density=0.05, cost=c)), start=0.25, steps=4)), norm=3.0
        ),
        lambda: jg.Clipped(
            jg.MomentumCorrection(jg.WarmUp(PerLayer(TopK(density=0.05)), start=0.25, steps=4)), norm=3.0
        ),
        43,
        alone=True,
    ),
    free(RandomK(k=K, seed=3), "random", K, random=True),
    free(RandomK(k=K, seed=3, unbiased=True), "random-unbiased", K, random=True, alone=True),
    Row("cwmp", lambda c, f: CWMP(k=K, cost=c), lambda: TopK(k=K), K),
    Row("cwmp-squares", lambda c, f: CWMP(k=K, cost=c, power=2), lambda: TopK(k=K), K),
    Row("cwmp-all", lambda c, f: CWMP(density=1.0, cost=c), lambda: TopK(density=1.0), SIZE),
    Row("cwmp-joules", lambda c, f: CWMP(k=60, cost=c, joules=JOULES * f), lambda: TopK(k=40), 60, joules=JOULES),
    Row("budgeted", lambda c, f: BudgetedCWMP(k=60, cost=c, joules=JOULES * f), lambda: TopK(k=40), 60, joules=JOULES),
    Row("budgeted-loose", lambda c, f: BudgetedCWMP(k=K, cost=c, joules=1e6 * f), lambda: TopK(k=K), K, joules=1e6),
    Row(
        "budgeted-squares",
        lambda c, f: BudgetedCWMP(k=K, cost=c, joules=JOULES * f, power=2),
        lambda: TopK(k=K),
        K,
        joules=JOULES,
    ),
    Row(
        "threshold",
        lambda c, f: Threshold(at=0.4 / f, cost=c),
        lambda: Threshold(at=0.4),
        SIZE,
    ),
    Row("threshold-k", lambda c, f: Threshold(at=0.4 / f, cost=c, k=5), lambda: Threshold(at=0.4, k=5), 5),
    Row("per-layer", lambda c, f: PerLayer(CWMP(density=0.1, cost=c)), lambda: PerLayer(TopK(density=0.1)), 17),
    Row(
        "per-layer-budgeted",
        lambda c, f: PerLayer(BudgetedCWMP(k=6, cost=c, joules=10.0 * f)),
        lambda: PerLayer(TopK(k=6)),
        24,
        joules=40.0,
    ),
    Row("repriced", lambda c, f: jg.Repriced(CWMP(k=K, cost=Steady(c))), lambda: TopK(k=K), K),
    Row(
        "feedback-repriced-budgeted",
        lambda c, f: jg.ErrorFeedback(jg.Repriced(BudgetedCWMP(k=60, cost=Steady(c), joules=JOULES * f))),
        lambda: jg.ErrorFeedback(TopK(k=40)),
        60,
        joules=JOULES,
    ),
    Row(
        "repriced-blocks",
        lambda c, f: jg.Repriced(Blocks(CWMP(k=3, cost=Steady(c)), entries=7)),
        lambda: Blocks(CWMP(k=3, cost=jg.Uniform()), entries=7),
        21,
    ),
    free(PerLayer(RandomK(k=3)), "per-layer-random", 12, random=True),
    Row(
        "blocks",
        lambda c, f: Blocks(CWMP(k=3, cost=c), entries=7),
        lambda: Blocks(CWMP(k=3, cost=jg.Uniform()), entries=7),
        21,
    ),
    Row(
        "blocks-joules",
        lambda c, f: Blocks(CWMP(k=9, cost=c, joules=JOULES * f), entries=8),
        lambda: Blocks(CWMP(k=9, cost=jg.Uniform(), joules=JOULES), entries=8),
        72,
        joules=JOULES,
    ),
    Row(
        "blocks-budgeted-squares",
        lambda c, f: Blocks(BudgetedCWMP(k=9, cost=c, joules=JOULES * f, power=2), entries=4),
        lambda: Blocks(BudgetedCWMP(k=9, cost=jg.Uniform(), joules=JOULES, power=2), entries=4),
        36,
        joules=JOULES,
    ),
    Row(
        "blocks-odd-joules",
        lambda c, f: Blocks(CWMP(k=60, cost=c, joules=20.3 * f), entries=3),
        lambda: Blocks(CWMP(k=60, cost=jg.Uniform(), joules=20.3), entries=3),
        180,
        joules=20.3,
    ),
    Row(
        "per-layer-blocks",
        lambda c, f: PerLayer(Blocks(CWMP(k=1, cost=c), entries=5)),
        lambda: PerLayer(Blocks(CWMP(k=1, cost=jg.Uniform()), entries=5)),
        20,
    ),
    Row("feedback", lambda c, f: jg.ErrorFeedback(CWMP(k=K, cost=c)), lambda: jg.ErrorFeedback(TopK(k=K)), K),
    Row(
        "feedback-decay",
        lambda c, f: jg.ErrorFeedback(BudgetedCWMP(k=K, cost=c, joules=JOULES * f), decay=0.9),
        lambda: jg.ErrorFeedback(TopK(k=K), decay=0.9),
        K,
        joules=JOULES,
    ),
    Row(
        "momentum",
        lambda c, f: jg.MomentumCorrection(CWMP(k=K, cost=c), momentum=0.9),
        lambda: jg.MomentumCorrection(TopK(k=K), momentum=0.9),
        K,
    ),
    Row(
        "warm-up",
        lambda c, f: jg.WarmUp(CWMP(density=0.05, cost=c), start=0.5, steps=2),
        lambda: jg.WarmUp(TopK(density=0.05), start=0.5, steps=2),
        85,
    ),
    *(
        Row(
            f"quantized-{bits}",
            lambda c, f, bits=bits: jg.Quantized(CWMP(k=K, cost=c), bits=bits),
            lambda bits=bits: jg.Quantized(TopK(k=K), bits=bits),
            K,
        )
        for bits in (1, 2, 4, 8)
    ),
    *(
        Row(
            f"quantized-{bits}-stochastic",
            lambda c, f, bits=bits: jg.Quantized(CWMP(k=K, cost=c), bits=bits, rounding="stochastic", seed=5),
            lambda bits=bits: jg.Quantized(TopK(k=K), bits=bits, rounding="stochastic", seed=5),
            K,
            random=True,
        )
        for bits in (1, 4)
    ),
    Row("rounded-bf16", lambda c, f: jg.Rounded(CWMP(k=K, cost=c)), lambda: jg.Rounded(TopK(k=K)), K),
    Row(
        "rounded-fp16",
        lambda c, f: jg.Rounded(CWMP(k=K, cost=c), dtype="fp16"),
        lambda: jg.Rounded(TopK(k=K), dtype="fp16"),
        K,
    ),
    Row(
        "the-whole-chain",
        lambda c, f: jg.ErrorFeedback(
            jg.WarmUp(jg.Quantized(PerLayer(Blocks(CWMP(density=0.1, cost=c), entries=2)), bits=1), start=0.5, steps=3)
        ),
        lambda: jg.ErrorFeedback(
            jg.WarmUp(jg.Quantized(PerLayer(Blocks(TopK(density=0.1), entries=2)), bits=1), start=0.5, steps=3)
        ),
        100,
    ),
]
