"""Draw the pictures of the docs from the result files: `docs/pictures/*.svg`, the same bytes for the same numbers.

    python benchmarks/plots.py
    python benchmarks/plots.py --png DIR    # to look at, as a phone shows them

Bars are blue where they are ours and orange where they are a peer's: a pair that every kind of colour vision tells
apart. The dashed line is what to compare with: one reading of the update, which no selection can do without, or the
entropy of supports drawn at random.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import argparse
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joulegrad.lab.report import papers
from tables import PICTURES, ROOT, by_case, by_support, milliseconds, one_reading, origin, results

OURS, THEIRS, INK = "#0072B2", "#E69F00", "#222222"  # Okabe and Ito's blue and orange
WIDE = 4.6  # inches, so that the letters are readable when it is shown as wide as a phone
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "joulegrad",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


class Bar(NamedTuple):
    """One method and what it takes."""

    name: str
    length: float
    ours: bool


class Panel(NamedTuple):
    """Some bars under a title, and the dashed line."""

    title: str
    bars: list[Bar]
    line: float
    line_name: str
    scale: Literal["log", "linear"]
    ends: tuple[float, float]  # of the scale


def select() -> Figure:
    """Milliseconds to select, at the least and the largest density, beside one reading."""
    cases = by_case(results("select.json")["rows"])
    reading, ends = 1000 * one_reading(cases), (0.6, 700.0)
    names = {
        "CWMP": "CWMP",
        "CWMP, a cost an entry": "CWMP, a cost an entry",
        "BudgetedCWMP": "BudgetedCWMP",
        "BudgetedCWMP, a cost an entry": "Budgeted, a cost an entry",
        "copy of g": "a copy of the update",
        "np.argpartition": "np.argpartition",
        "torch.topk": "torch.topk",
    }
    densities = [density for name, density in cases if name == "update"]
    panels = []
    for density in (min(densities), max(densities)):
        case = cases["update", density]
        bars = [Bar(names[m], 1000 * case[m]["seconds"], "CWMP" in m) for m in names]
        panels.append(Panel(f"Selecting {100 * density:g} %: ms", bars, reading, "one reading", "log", ends))
    steps = cases["client step", min(densities)]
    short = {
        "CWMP": "CWMP",
        "Quantized(CWMP), 1 bit": "Quantized, 1 bit",
        "ErrorFeedback(CWMP)": "ErrorFeedback",
        "ErrorFeedback(Quantized(CWMP)), 1 bit": "ErrorFeedback, 1 bit",
        "MomentumCorrection(CWMP)": "MomentumCorrection",
    }
    bars = [Bar(short[m], 1000 * steps[m]["seconds"], True) for m in short]
    title = f"A client's step, {100 * min(densities):g} %: ms"
    return drawn([*panels, Panel(title, bars, reading, "one reading", "log", ends)])


def wire() -> Figure:
    """What CWMP sends of real updates at 1 %: bits an index, and milliseconds."""
    cases = by_support(results("wire.json")["rows"])
    names = {
        "joulegrad float32": "joulegrad",
        "bitmap, zlib 6": "bitmap, zlib",
        "gaps, zlib 6": "gaps, zlib",
        "gaps, zstd 3": "gaps, zstd",
        "int32": "int32",
    }
    panels = []
    for model, called in (("resnet18", "ResNet-18"), ("vgg11", "VGG-11")):
        case = cases[model, "CWMP", 0.01]
        bars = [Bar(names[m], 8 * case[m]["index_bytes"] / case[m]["entries"], m not in PEERS) for m in names]
        entropy = 8 * case["int32"]["entropy_bytes"] / case["int32"]["entries"]
        panels.append(Panel(f"{called}: bits an index", bars, entropy, "Σ n H(k/n)", "linear", (0, 37.0)))
    case = cases["resnet18", "CWMP", 0.01]
    reading = 1000 * one_reading(by_case(results("select.json")["rows"]))
    for way in ("encode", "decode"):
        bars = [Bar(names[m], 1000 * case[m][f"{way}_seconds"], m not in PEERS) for m in names]
        panels.append(Panel(f"ResNet-18: ms to {way}", bars, reading, "one reading", "log", (0.02, 90.0)))
    return drawn(panels)


PEERS = ("bitmap, zlib 6", "gaps, zlib 6", "gaps, zstd 3", "int32")


def reported(name: str) -> Figure:
    """A figure of `joulegrad report`, of the runs of `pareto.json`."""
    found = results("pareto.json")
    with mpl.rc_context(papers.STYLE):
        figure = papers.figure(name, found, found["settings"][0], "units", "density=0.02")
        figure.draw_without_rendering()  # ticks are made now, in this style
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "docs/pictures/select.svg": select,
    "docs/pictures/wire.svg": wire,
    "docs/pictures/pareto.svg": lambda: reported("energy"),
    "docs/pictures/rounds.svg": lambda: reported("rounds"),
}


def drawn(panels: list[Panel]) -> Figure:
    """Panels one below the other."""
    heights = [len(panel.bars) + 1.8 for panel in panels]
    figure = Figure(figsize=(WIDE, 0.24 * sum(heights) + 0.1), layout="constrained", facecolor="white")
    places = figure.subplots(len(panels), 1, height_ratios=[len(panel.bars) for panel in panels], squeeze=False)[:, 0]
    for axes, panel in zip(places, panels, strict=True):
        bars_of(axes, panel)
    return figure


def bars_of(axes: Axes, panel: Panel) -> None:
    """The bars from above down, each with its number, and the line across them."""
    names, lengths, ours = zip(*panel.bars, strict=True)
    places = range(len(names))
    axes.barh(places, lengths, color=[OURS if mine else THEIRS for mine in ours], height=0.72)
    axes.set_xscale(panel.scale)
    axes.set_xlim(panel.ends)
    axes.set_yticks(places, names)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.axvline(panel.line, color=INK, linestyle=(0, (4, 2)), linewidth=1.1)
    beside = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # so that the line does not cross a number
    for place, length in enumerate(lengths):
        said, at = milliseconds(length / 1000), (length, place)
        axes.annotate(said, at, (3, 0), textcoords="offset points", va="center", bbox=beside)
    axes.set_title(f"{panel.title}{', log scale' * (panel.scale == 'log')}", loc="left", fontsize=10, weight="bold")
    axes.annotate(
        f"{panel.line_name}: {panel.line:.3g}",
        (panel.line, 0),
        (3, -1),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        va="top",
        fontsize=8,
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xticks([], minor=False)
    axes.minorticks_off()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--png", type=Path)
    given = parser.parse_args()
    mpl.rcParams.update(STYLE)
    for picture, name in PICTURES.items():
        figure = FIGURES[picture]()
        path = ROOT / picture
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, metadata={"Date": None, "Creator": None, "Description": origin(name)})
        if given.png is not None:
            figure.savefig(given.png / f"{path.stem}.png", dpi=110)


if __name__ == "__main__":
    main()
