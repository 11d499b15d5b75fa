"""Bytes divided among layers: each layer's density chosen so that together they err least."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad import kernels
from joulegrad.compressor import Priced, Rule, check_size, how_many
from joulegrad.sizes import SCALED, support_bits

__all__ = ["LayerWise"]

REACH = 4  # a layer's density is the rule's own, times 2^-REACH to 2^REACH in steps of √2, or nothing at all
UNITS = 10_000  # into which the budget is divided; costs are rounded up


@dataclass(frozen=True)
class LayerWise(Rule):
    """Each layer at its own density: the least error for the bytes that one density for all layers would take.

        min Σ_l ‖g_l − top_{k_l}(g_l)‖²   s.t.   Σ_l bits_l(k_l) ≤ Σ_l bits_l(density · n_l)

    by dynamic programming over a ladder of densities a layer; bits are those that the codec takes for k random entries
    of a layer, and their values. It never errs more than `PerLayer(TopK(density))`. Counted in entries instead of bytes
    the best division is `TopK` over the whole update: what it can gain on that is the index bits of dense layers.

    Args:
        density: which one would take as many bytes.
        value_bits: of a value on the wire: 32, 16, or the bits of the `Quantized` around it.

    Example:
        >>> layout = Layout.from_shapes({"loud": (100,), "quiet": (100,)})
        >>> g = torch.cat([torch.linspace(1.0, 2.0, 100), torch.linspace(0.01, 0.02, 100)])
        >>> sent, _ = LayerWise(density=0.1)(g, LayerWise(density=0.1).init(layout))
        >>> bool((sent.indices < 100).all()), len(sent)
        (True, 20)

    Reference: Markov et al., L-GreCo: Layerwise-Adaptive Gradient Compression, 2024; it minimises bytes at the error
    that one density would make, now and then; here it is the error at its bytes, in every update.
    """

    k = None  # a density alone

    density: float
    _: KW_ONLY
    value_bits: int = 32

    def __post_init__(self) -> None:
        check_size(self)
        if self.value_bits not in (*SCALED, 16, 32) or isinstance(self.value_bits, bool):
            raise ValueError(f"value_bits must be 1, 2, 4, 8, 16 or 32, got {self.value_bits!r}")

    def choose(self, update: Tensor, state: Priced) -> tuple[Tensor, Priced]:
        """The largest |g_j| of each layer, as many as are allotted to it."""
        segments = state.prices.layout.segments
        parts = [update[s.start : s.stop] for s in segments]
        own = [how_many(self, s.size) for s in segments]
        ladders = [_ladder(k, s.size) for k, s in zip(own, segments, strict=True)]
        bits = [_bits(s.size, ladder, self.value_bits) for s, ladder in zip(segments, ladders, strict=True)]
        errors = [_errors(part, ladder) for part, ladder in zip(parts, ladders, strict=True)]
        order = sorted(range(len(segments)), key=lambda i: segments[i].name)  # so that layers may move
        uniform = [ladder.index(k) for k, ladder in zip(own, ladders, strict=True)]
        places = _divided([bits[i] for i in order], [errors[i] for i in order], [uniform[i] for i in order])
        chosen: list[Tensor] = [parts[0].new_zeros(0, dtype=torch.int64)] * len(segments)
        for i, place in zip(order, places, strict=True):
            chosen[i] = kernels.largest(kernels.Scores(parts[i]), ladders[i][place]) + segments[i].start
        return torch.cat(chosen), state


@lru_cache(maxsize=4096)
def _ladder(k: int, size: int) -> tuple[int, ...]:
    """Counts to choose from: none, and those around k."""
    steps = range(-2 * REACH, 2 * REACH + 1)
    return tuple(sorted({0, *(min(max(round(k * 2 ** (i / 2)), 1), size) for i in steps)}))


@lru_cache(maxsize=4096)
def _bits(size: int, ladder: tuple[int, ...], value_bits: int) -> NDArray[np.float64]:
    """What each count is expected to take on the wire."""
    scale = 32 if value_bits in SCALED else 0
    return np.array([support_bits(size, k) + value_bits * k + (scale if k else 0) for k in ladder])


def _errors(part: Tensor, ladder: tuple[int, ...]) -> NDArray[np.float64]:
    """Σ g² of what each count leaves behind."""
    squares = part.double().square().sort(descending=True).values.cumsum(0)
    kept = squares[torch.tensor(ladder[1:], device=part.device) - 1].cpu().numpy()
    total = float(squares[-1])
    return np.concatenate([[total], total - kept])


def _divided(bits: list[NDArray[np.float64]], errors: list[NDArray[np.float64]], uniform: list[int]) -> list[int]:
    """Each layer's place on its ladder; the uniform one where rounding costs up has made the division worse.

    least[b] is the least error of the layers so far with at most b units; taken[l][b] says by which place of layer l.
    """
    budget = sum(float(b[u]) for b, u in zip(bits, uniform, strict=True))
    least, taken = np.zeros(UNITS + 1), []
    costs = [np.ceil(b * (UNITS / budget)).astype(np.int64) for b in bits]
    for cost, error in zip(costs, errors, strict=True):
        options = np.full((len(cost), UNITS + 1), np.inf)
        for option, c, e in zip(options, cost.tolist(), error.tolist(), strict=True):
            if c <= UNITS:
                option[c:] = least[: UNITS + 1 - c] + e
        taken.append(options.argmin(0))
        least = options.min(0)
    if least[-1] >= sum(float(e[u]) for e, u in zip(errors, uniform, strict=True)):
        return uniform
    places, left = [], UNITS
    for cost, place in zip(reversed(costs), reversed(taken), strict=True):
        places.append(int(place[left]))
        left -= int(cost[places[-1]])
    return places[::-1]
