"""The figures of docs/results: the paper's two, for each network, and accuracy against what everything tried has sent.

`campaign.py` says which can be drawn and calls `draw`. The same results give the same bytes; each figure names the
digest of the results that it was drawn from.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import dataclasses
import re
from collections.abc import Callable
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, PercentFormatter

from campaign import (
    EQUAL,
    LINKS,
    RESNET,
    VGG,
    BySeed,
    Campaign,
    accuracies,
    both,
    everything,
    figures,
    joules,
    origin,
    up,
)
from joulegrad import Quantized
from joulegrad.lab.report import papers
from joulegrad.lab.report.content import content
from joulegrad.lab.report.runs import Found
from joulegrad.lab.report.statistics import front
from joulegrad.lab.report.ways import Way

RULES = ("dense", "TopK", "CWMP", "blocks", "other")  # what is sent, by colour
SHOWN = 0.12  # of accuracy below the best: what is further down would squeeze the rest
VALUES = {"32": "o", "16": "s", "8": "D", "4": "^", "2": "v", "1": "*"}  # bits a value, by mark
PARTS = {
    "up": (1e6, "MB up, all clients and rounds (coded)"),
    "both": (1e6, "MB both ways, all clients and rounds (coded)"),
}


def draw(c: Campaign, folder: Path) -> list[Path]:
    """All that can be drawn; those of results that are gone are deleted."""
    wanted = figures(c)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        if old.name not in wanted:
            old.unlink()
    drawn = []
    with mpl.rc_context(papers.STYLE):
        for name in wanted:
            path = folder / name
            made = _figure(c, name)
            made.savefig(path, metadata={"Date": None, "Creator": None, "Description": origin(c)})
            drawn.append(path)
    return drawn


def _figure(c: Campaign, name: str) -> Figure:
    network, _, what = name.removesuffix(".svg").partition("-")
    if network == "frontier":
        return _frontier(c, what)
    stem, knob = {"resnet18": (RESNET, "density=0.1"), "vgg11": (VGG, "density=0.01")}[network]
    made = content(Found(runs=c.runs[stem]))
    setting = made["settings"][0]
    if knob not in [way["knob"] for way in setting["ways"]]:
        knob = None  # type: ignore[assignment]
    if what == "energy":
        _a_client_and_round(made, setting)
    figure = papers.figure(what, made, setting, "units", knob)
    if (network, what) == ("resnet18", "energy"):
        _the_papers(figure.axes[0], c)
    figure.draw_without_rendering()  # ticks are made now, in this style
    return figure


def _a_client_and_round(made: dict[str, Any], setting: dict[str, Any]) -> None:
    """Energy as the paper's axis has it: not added up over all clients and rounds."""
    for way in setting["ways"]:
        spent = way["end"].get("units")
        if spent and way["clients"]:
            way["end"]["units"] = {key: v if key == "n" else v / way["clients"] for key, v in spent.items()}
    axis = next(axis for axis in made["axes"] if axis["key"] == "units")
    axis["label"] = "Σc of what a client sends in a round"


def _the_papers(axes: Axes, c: Campaign) -> None:
    """The two points that the paper gives."""
    import tomllib

    numbers = {n["key"]: n["value"] for n in tomllib.loads((c.paper / "reported.toml").read_text("utf-8"))["number"]}
    for rule, mark in (("CWMP", "X"), ("Top-K", "P")):
        x, y = numbers[f"energy, {rule}, 1 %"], numbers[f"accuracy, {rule}, 1 %"]
        axes.plot([x], [y], mark, color="0.35", markersize=5, label=f"the paper's {rule} at 1 %", ls="none")
    axes.legend(frameon=False, loc="best", handlelength=2.6)


def _frontier(c: Campaign, what: str) -> Figure:
    """All ways: colour by what chooses, mark by bits a value; the front, and what was asked for."""
    of: Callable[[Way], BySeed] = {"up": up, "both": both}.get(what) or (lambda way: joules(way, what))
    unit, label = PARTS.get(what) or (
        1.0,
        f"J of a phone's sending and receiving, {LINKS[what]} (modelled from coded bytes)",
    )
    ways = c.ways(*c.kin(RESNET))
    figure = Figure(figsize=(5.6, 3.8), layout="constrained", facecolor="white")
    axes = figure.subplots()
    points = [(fmean(of(way).values()) / unit, fmean(accuracies(way).values())) for way in ways]
    seen: set[tuple[str, str]] = set()
    for way, (x, y) in zip(ways, points, strict=True):
        sends = way.family.partition("; ")[0]
        kind = _rule(sends), _bits(sends)
        each = list(accuracies(way).values())
        axes.errorbar(
            [x], [y], yerr=[[y - min(each)], [max(each) - y]], fmt=VALUES[kind[1]], capsize=1.5, elinewidth=0.6,
            color=papers.COLOURS[RULES.index(kind[0])], markersize=6 if kind[1] == "1" else 4,
            label=None if kind in seen else f"{kind[0]}, {kind[1]} bit{'s' * (kind[1] != '1')}",
            mfc="none" if "ErrorFeedback" not in sends and "MomentumCorrection" not in sends else None,
        )  # fmt: skip
        seen.add(kind)
    best = [points[at] for at in front(points)]
    axes.plot([x for x, _ in best], [y for _, y in best], color="0.5", lw=0.8, zorder=0, drawstyle="steps-post")
    bases = [dense for way in ways if (dense := everything(ways, way)) is not None]
    if bases:  # most ways' own
        dense = max(bases, key=bases.count)
        axes.axhline(fmean(accuracies(dense).values()) - EQUAL, color="0.35", lw=0.7, ls=":")
        asked = {"up": 400, "both": 100}.get(what)
        if asked is not None:
            axes.axvline(fmean(of(dense).values()) / unit / asked, color="0.35", lw=0.7, ls=":")
    lowest = max(y for _, y in points) - SHOWN
    below = sum(y < lowest for _, y in points)
    if below:
        axes.set_ylim(bottom=lowest)
        axes.annotate(
            f"{below} below {100 * lowest:.0f} %: in the table", (0.99, 0.01), xycoords="axes fraction", ha="right"
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy")
    axes.grid(alpha=0.3, lw=0.4)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside lower center", ncols=4)
    figure.draw_without_rendering()
    return figure


def _rule(family: str) -> str:
    """What chooses the entries."""
    if family.startswith("everything"):
        return "dense"
    if "Blocks(" in family:
        return "blocks"
    return next((rule for rule in ("CWMP", "TopK") if re.search(rf"\b{rule}\b", family)), "other")


def _bits(family: str) -> str:
    """What a value takes on the wire, as far as the operator's name says it."""
    found = re.search(r"\bbits=(\d+)", family)
    if found and found[1] in VALUES:
        return found[1]
    if "Quantized(" in family:
        return str(next(f.default for f in dataclasses.fields(Quantized) if f.name == "bits"))
    return "16" if "Rounded" in family else "32"
