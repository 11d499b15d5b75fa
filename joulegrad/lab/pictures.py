"""Curves of runs, drawn from their rows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

__all__ = ["against"]

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
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
