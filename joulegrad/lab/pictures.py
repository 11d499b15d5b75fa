"""Curves of runs, drawn from their rows; bars of what something is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

__all__ = ["against", "bars"]

# Okabe and Ito's colours, told apart with any colour vision; the marks tell them apart without any.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#0072B2")
MARKS = ("o", "s", "^", "D", "v", "P", "X")


def against(lines: Mapping[str, list[dict[str, Any]]], spent: str, label: str, path: Path, scale: float = 1.0) -> None:
    """Accuracy against what had been spent by then: the sum of a figure over the rounds, on a logarithmic axis.

    Args:
        lines: the rows of each run, by its name.
        spent: the figure, such as "bytes_up" or "cost".
        label: of the axis.
        path: .png, .svg or .pdf.
        scale: what the figure is multiplied by.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter, StrMethodFormatter

    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.subplots()
    for n, (name, rows) in enumerate(lines.items()):
        x = [scale * total for total in accumulate(row[spent] for row in rows)]
        points = [(a, row["accuracy"]) for a, row in zip(x, rows, strict=True) if row["accuracy"] is not None]
        if not points:
            continue
        colour, mark = COLOURS[n % len(COLOURS)], MARKS[n % len(MARKS)]
        every = -(-len(points) // 25)  # marks of a long run would hide its line
        axes.plot(
            *zip(*points, strict=True), color=colour, lw=1.2, marker=mark, markersize=4, markevery=every, label=name
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel(label)
    axes.set_ylabel("accuracy on the test examples")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)


def bars(parts: Mapping[str, Mapping[str, float]], ends: Sequence[tuple[float, float]], label: str, path: Path) -> None:
    """A bar for each name, made of parts, and beside it a line from the least to the most that it may be.

    Args:
        parts: of each bar, its parts by name, in order.
        ends: the least and the most of each bar.
        label: of the axis.
        path: .png, .svg or .pdf.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for bar in parts.values() for name in bar))
    figure = Figure(figsize=(7.2, 1.4 + 0.42 * len(parts)), layout="constrained")
    axes = figure.subplots()
    rows = range(len(parts))
    so_far = [0.0] * len(parts)
    for n, name in enumerate(names):
        widths = [bar.get(name, 0.0) for bar in parts.values()]
        axes.barh(
            rows, widths, 0.62, so_far, color=COLOURS[n % len(COLOURS)], hatch="//" if n >= len(COLOURS) else None,
            edgecolor="white", linewidth=0.4, label=name,
        )  # fmt: skip
        so_far = [a + b for a, b in zip(so_far, widths, strict=True)]
    axes.hlines(
        rows, [low for low, _ in ends], [high for _, high in ends], colors="#555555", lw=1.0, label="least to most"
    )  # fmt: skip
    longest = max(so_far)
    axes.set_xlim(0, min(1.05 * max(high for _, high in ends), 2 * longest))
    axes.set_yticks(rows, labels=list(parts))
    axes.invert_yaxis()
    axes.set_xlabel(label + ("" if max(high for _, high in ends) <= 2 * longest else "; lines go on to the right"))
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
