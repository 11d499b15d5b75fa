"""The arithmetic of selection, by where the update lies.

reference    the specification: slow, obvious, plain torch on any device
cpu          numba: about two readings of the update
gpu          Triton: the same, where there is a GPU of NVIDIA's and Triton is installed
dual         both budgets, by a search on the CPU; afar and priced are its ways to an update that is on a GPU

Every kernel returns the reference's result, to the bit, on every input; `chosen` says which one serves a device.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from joulegrad.kernels import reference
from joulegrad.kernels.reference import Budgeted
from joulegrad.kernels.scores import NotFinite, Scores
from joulegrad.sparse import Codes

__all__ = [
    "Budgeted",
    "NotFinite",
    "Scores",
    "all_finite",
    "at_least",
    "budgeted",
    "chosen",
    "largest",
    "prefix_within",
]


def chosen(device: torch.device, dtype: torch.dtype = torch.float32) -> ModuleType:
    """The kernels that serve updates there; float64, the worth of blocks, is the reference's."""
    if device.type == "cpu" and dtype != torch.float64:
        from joulegrad.kernels import cpu

        return cpu
    if device.type == "cuda" and dtype != torch.float64 and _triton():
        from joulegrad.kernels import gpu

        return gpu
    return reference


@lru_cache
def _triton() -> bool:
    return torch.version.cuda is not None and importlib.util.find_spec("triton") is not None


def _of(update: Tensor) -> ModuleType:
    return chosen(update.device, update.dtype)


def all_finite(update: Tensor) -> bool:
    """Whether there is no NaN and no infinity."""
    return bool(_of(update).all_finite(update))


def largest(scores: Scores, k: int) -> Tensor:
    """Indices of the min(k, d) largest scores, ties to the lower index."""
    found: Tensor = _of(scores.update).largest(scores, k)
    return found


def at_least(scores: Scores, threshold: float, k: int | None = None) -> Tensor:
    """Indices of all scores ≥ threshold; where they are more than k, the k largest."""
    found: Tensor = _of(scores.update).at_least(scores, threshold, k)
    return found


def prefix_within(scores: Scores, k: int, joules: float) -> Tensor:
    """Indices of the longest prefix of the ranking with at most k entries and at most `joules`."""
    return reference.prefix_within(scores, k, joules, largest)


def budgeted(scores: Scores, k: int, joules: float) -> Budgeted:
    """The most worth under both budgets, up to two entries, with a bound that no feasible set exceeds."""
    if scores.update.dtype == torch.float64:
        return reference.budgeted(scores, k, joules)
    from joulegrad.kernels import dual

    if _of(scores.update).__name__ == "joulegrad.kernels.gpu":
        from joulegrad.kernels import priced

        if (found := priced.budgeted(scores, k, joules)) is not None:
            return found
    if scores.update.device.type == "cpu":
        return dual.budgeted(scores, k, joules)
    from joulegrad.kernels import afar

    return dual.solved(afar.There(scores), scores, k, joules, largest, reference.merge)


def scales(values: Tensor, counts: Tensor, most: int, *, mean: bool) -> Tensor:
    """A layer's scale: its mean magnitude, or its largest over the outermost level `most`."""
    found: Tensor = _of(values).scales(values, counts, most, mean=mean)
    return found


def levels(values: Tensor, counts: Tensor, most: int, scales: Tensor, dither: Tensor | None = None) -> Tensor:
    """The level nearest to each value, or with dither one of the two around it."""
    found: Tensor = _of(values).levels(values, counts, most, scales, dither)
    return found


def values_of(codes: Codes) -> Tensor:
    """What codes stand for: `codes.values()`."""
    found: Tensor = chosen(codes.levels.device).values_of(codes)
    return found
