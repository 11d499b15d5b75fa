"""The report's figures and tables for papers: column-wide pictures, LaTeX, Markdown, CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulegrad.lab.report.comparison import BOTH_REACH
from joulegrad.lab.report.content import Content

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure", "figures", "table_csv", "table_latex", "table_markdown"]

COLUMN = 3.5  # inches: a column of a conference paper
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B8860B", "#CC79A7", "#56B4E9", "#000000")  # as on the page
DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 3, 2, 3)))
MARKS = ("o", "s", "D", "^", "X", "*", "p", "v")
STYLE: dict[Any, Any] = {
    "font.family": "STIXGeneral", "mathtext.fontset": "stix", "font.size": 8, "axes.linewidth": 0.6,
    "lines.linewidth": 1.1, "pdf.fonttype": 42, "svg.hashsalt": "joulegrad", "legend.fontsize": 6.5,
}  # fmt: skip


def figures(content: Content, setting: Content, stem: Path, suffix: str, axis: str, knob: str | None) -> list[Path]:
    """The paper's two: accuracy against energy with the Pareto front, and accuracy against rounds at one density.

    Args:
        content: of the whole report.
        setting: one of its settings.
        stem: where, without the ending.
        suffix: ".png", ".pdf" or ".svg".
        axis: the key of the currency.
        knob: such as "density=0.1"; None: the middle one of those that most methods share.
    """
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        paths = []
        for name in DRAWN:
            path = stem.with_name(f"{stem.name}-{name}{suffix}")
            metadata = {"Date": None} if suffix == ".svg" else {"CreationDate": None} if suffix == ".pdf" else None
            figure(name, content, setting, axis, knob).savefig(path, dpi=300, metadata=metadata)
            paths.append(path)
    return paths


def figure(name: str, content: Content, setting: Content, axis: str, knob: str | None) -> Figure:
    """One of them: "energy" or "rounds"."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(COLUMN, 2.5), layout="constrained", facecolor="white")
    DRAWN[name](made.subplots(), content, setting, axis, knob)
    return made


def _energy(axes: Any, content: Content, setting: Content, axis: str, knob: str | None) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, PercentFormatter

    about = next(a for a in content["axes"] if a["key"] == axis)
    for family, name in enumerate(setting["families"]):
        ways = [w for w in setting["ways"] if w["family"] == family and w["end"].get(axis) and w["end"]["accuracy"]]
        ways.sort(key=lambda way: way["end"][axis]["mean"])
        if not ways:
            continue
        x, y = ([way["end"][of] for way in ways] for of in (axis, "accuracy"))
        spread = [[p["mean"] - p["low"] for p in y], [p["high"] - p["mean"] for p in y]]
        axes.errorbar(
            [p["mean"] for p in x], [p["mean"] for p in y], yerr=spread, label=name, capsize=1.5, elinewidth=0.6,
            color=COLOURS[family % 7], ls=DASHES[family % 6], marker=MARKS[family % 8], markersize=3.5,
        )  # fmt: skip
    front = [setting["ways"][at]["end"] for at in setting["fronts"][axis]]
    axes.plot(
        [end[axis]["mean"] for end in front], [end["accuracy"]["mean"] for end in front], "o", markersize=8, mfc="none",
        mec="0.4", mew=0.6, label="Pareto front", zorder=0,
    )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    axes.xaxis.set_major_formatter(EngFormatter(unit="" if about["unit"] == "units" else about["unit"], sep=" "))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"{about['label']} ({about['source']})")
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _finished(axes)


def _rounds(axes: Any, content: Content, setting: Content, axis: str, knob: str | None) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    for way in at(setting, knob):
        family, accuracy = way["family"], way["accuracy"]
        axes.plot(
            way["rounds"], accuracy["mean"], label=way["name"], color=COLOURS[family % 7], ls=DASHES[family % 6],
            marker=MARKS[family % 8] if len(way["rounds"]) == 1 else None,
        )  # fmt: skip
        if len(way["seeds"]) > 1:
            axes.fill_between(
                way["rounds"], accuracy["low"], accuracy["high"], color=COLOURS[family % 7], alpha=0.15, lw=0
            )
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _finished(axes)


DRAWN = {"energy": _energy, "rounds": _rounds}


def _finished(axes: Any) -> None:
    axes.grid(alpha=0.3, lw=0.4)
    axes.legend(frameon=False, loc="best", handlelength=2.6)
    axes.spines[["top", "right"]].set_visible(False)


def at(setting: Content, knob: str | None) -> list[Content]:
    """The ways of one knob, and those that have none."""
    knobs = [way["knob"] for way in setting["ways"] if way["knob"]]
    there = list(dict.fromkeys(knobs))
    if knob is None and there:
        most = max(knobs.count(each) for each in there)
        shared = [each for each in there if knobs.count(each) == most]
        knob = shared[(len(shared) - 1) // 2]
    elif knob is not None and knob not in there:
        raise ValueError(f"no runs are at {knob!r}; there are: {', '.join(there) or 'none with a density'}")
    return [way for way in setting["ways"] if not way["knob"] or way["knob"] == knob]


HEADS = (
    "method",
    "seeds",
    "accuracy",
    "cost",
    "cost at equal accuracy",
    "times the baseline's",
    "accuracy gained at equal cost",
)


def _cells(setting: Content, axis: str) -> list[tuple[str, ...]]:
    """The dominance table as text."""
    rows: list[tuple[str, ...]] = []
    for row in setting["table"][axis]:
        at_accuracy = row["at_accuracy"].get(BOTH_REACH) or {}
        gained = (row["at_cost"] or {}).get("interval")
        rows.append((
            row["way"], str(row["seeds"]),
            _with(row["accuracy"], lambda v: f"{100 * v:.1f}", " %"), _with(row["spent"], _si, ""),
            "baseline" if row["same"] else _si(at_accuracy.get("ours")),
            "" if row["same"] else _with(at_accuracy.get("interval"), lambda v: f"{v:.2f}", ""),
            "" if row["same"] else _with(gained, lambda v: f"{100 * v:+.1f}", ""),
        ))  # fmt: skip
    return rows


def _si(value: float | None) -> str:
    """Three digits and a prefix: 251 k.

    Example:
        >>> _si(250_605.3), _si(0.0031), _si(None)
        ('251 k', '3.1 m', '–')
    """
    if value is None:
        return "–"
    power = min(max(math.floor(math.log10(value) / 3), -3), 4) if value > 0 else 0
    return f"{float(f'{value / 1000.0**power:.3g}'):g} {'nµm kMGT'[power + 3]}".strip()


def _with(interval: Sequence[Any] | None, write: Any, unit: str) -> str:
    """A mean and, in brackets, where it may lie."""
    if interval is None:
        return "–"
    mean, low, high, _ = interval
    return f"{write(mean)}{unit}" + ("" if low is None else f" ({write(low)} to {write(high)})")


def table_markdown(content: Content, setting: Content, axis: str) -> str:
    """The dominance table for a README."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|" + "---:|" * (len(HEADS) - 1)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in _cells(setting, axis)]
    return "\n".join([*lines, "", _caption(content, setting, axis)]) + "\n"


def table_latex(content: Content, setting: Content, axis: str) -> str:
    """The dominance table for a paper; it needs the package booktabs."""
    rows = [" & ".join(map(_tex, row)) + r" \\" for row in _cells(setting, axis)]
    head = " & ".join(map(_tex, HEADS)) + r" \\"
    return "\n".join([
        f"% {_caption(content, setting, axis)}", r"\begin{tabular}{l" + "r" * (len(HEADS) - 1) + "}", r"\toprule", head,
        r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", "",
    ])  # fmt: skip


def table_csv(setting: Content, axis: str) -> str:
    """The dominance table as numbers."""
    out = io.StringIO()
    names = ["accuracy", "cost", "times_baseline_cost_at_equal_accuracy", "accuracy_gained_at_equal_cost"]
    columns = [f"{name}{part}" for name in names for part in ("", "_low", "_high")]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "baseline", "seeds", *columns, "verdict"])
    for row in setting["table"][axis]:
        found = (
            row["accuracy"], row["spent"], (row["at_accuracy"].get(BOTH_REACH) or {}).get("interval"),
            (row["at_cost"] or {}).get("interval"),
        )  # fmt: skip
        numbers = [value for interval in found for value in (interval or [None] * 4)[:3]]
        writer.writerow([row["way"], row["baseline"], row["seeds"], *numbers, row.get("verdict", "")])
    return out.getvalue()


def _caption(content: Content, setting: Content, axis: str) -> str:
    about = next(a for a in content["axes"] if a["key"] == axis)
    name = f"{setting['name']}: " if setting["name"] else ""
    return (
        f"{name}Cost is {about['label']}, {about['source']}, in {about['unit']}; each method against "
        f"{setting['baseline']} at the same density; in brackets 95 % confidence intervals over seeds."
    )


TEX = {"\\": r"\textbackslash{}", "–": "--", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: f"\\{c}" for c in "&%$#_{}"
}


def _tex(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in text)
