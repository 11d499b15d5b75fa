"""Quantisation, compiled: values to levels, a layer's scale at a time. Each loop reads a value once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulegrad.jit import jit

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


@jit
def scales_of(values: Floats, counts: Ints, most: int, mean: bool, scales: Floats) -> None:
    """A layer's scale: its mean magnitude, or its largest magnitude over the outermost level `most`; rounded down."""
    first = 0
    for layer in range(len(counts)):
        last, total = first + counts[layer], 0.0
        for i in range(first, last):
            magnitude = np.float64(abs(values[i]))
            total = total + magnitude if mean else max(total, magnitude)
        wanted = total / max(counts[layer], 1) if mean else total / most
        scale = np.float32(wanted)
        if np.float64(scale) > wanted:
            scale = np.nextafter(scale, np.float32(0))
        scales[layer] = scale
        first = last


@jit
def nearest_levels(values: Floats, counts: Ints, most: int, scales: Floats, levels: Any) -> None:
    """The level whose odd multiple of the scale is nearest; of two equally near the inner one."""
    first, half = 0, most // 2
    for layer in range(len(counts)):
        last, scale = first + counts[layer], max(np.float64(scales[layer]), 2.2250738585072014e-308)
        for i in range(first, last):
            v = np.float64(values[i])
            step = min(max(np.ceil((abs(v) / scale - 1) / 2 - 0.5), 0.0), np.float64(half))
            levels[i] = half + 1 + step if v > 0 else half - step
        first = last


@jit
def drawn_levels(values: Floats, counts: Ints, most: int, scales: Floats, dither: Doubles, levels: Any) -> None:
    """One of the two levels around a value, drawn so that it is right on average."""
    first = 0
    for layer in range(len(counts)):
        last, scale = first + counts[layer], max(np.float64(scales[layer]), 2.2250738585072014e-308)
        for i in range(first, last):
            place = (most + np.float64(values[i]) / scale) / 2 + dither[i]  # level l has place l
            levels[i] = min(max(np.floor(place), 0.0), np.float64(most))
        first = last


@jit
def values_of(levels: Any, counts: Ints, most: int, scales: Floats, values: Floats) -> None:
    """What levels stand for, scale · (2 · level − most): an exact integer, and one rounding."""
    first = 0
    for layer in range(len(counts)):
        last, scale = first + counts[layer], scales[layer]
        for i in range(first, last):
            values[i] = scale * np.float32(np.int32(levels[i]) * 2 - most)
        first = last
