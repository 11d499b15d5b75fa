"""Reports: runs' folders read, compared over seeds, and shown as one page, as figures for papers, or as tables.

runs         folders → runs; broken ones named, missing ones known
ways         runs → ways (seeds together) → families (densities together) → settings (the same data)
spent        what a round cost, in each currency
statistics   intervals, paired comparisons, fronts, hypervolumes
comparison   each way against the baseline
content      all of it as JSON
page         content → one HTML file that needs no network
papers       content → column-wide figures, LaTeX, Markdown, CSV
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joulegrad.lab.report import page, papers
from joulegrad.lab.report.content import Content, content
from joulegrad.lab.report.runs import Found, read
from joulegrad.lab.report.spent import AXES

__all__ = ["FORMATS", "Found", "read", "write"]

FORMATS = {
    "html": ".html", "png": ".png", "pdf": ".pdf", "svg": ".svg", "csv": ".csv", "latex": ".tex", "md": ".md",
}  # fmt: skip


def write(
    found: Found,
    out: Path,
    *,
    kind: str | None = None,
    against: str | None = None,
    cost: str = "units",
    at: str | None = None,
    title: str = "joulegrad report",
) -> list[Path]:
    """Write a report; the files that were written.

    Args:
        found: what `read` gave.
        out: where; its ending says what is written, unless `kind` does. Pictures are two files, named after it.
        kind: one of `FORMATS`.
        against: the method that others are compared with; None: Top-K if it is there.
        cost: the currency of pictures and tables: "units", "uplink_joules", "all_joules", "bytes_up" or "bytes_both".
        at: the density of the picture against rounds, "density=0.1".
        title: of the page.
    """
    kind = kind or next((name for name, suffix in FORMATS.items() if suffix == out.suffix), None)
    if kind not in FORMATS:
        raise ValueError(f"a report is written as {', '.join(FORMATS)}; got {kind or out.name!r}")
    if cost not in [axis.key for axis in AXES]:
        raise ValueError(f"a cost is one of {', '.join(axis.key for axis in AXES)}; got {cost!r}")
    made = content(found, against=against, title=title)
    out.parent.mkdir(parents=True, exist_ok=True)
    if kind == "html":
        out.write_text(page.page(made), "utf-8")
        return [out]
    if not made["settings"]:
        raise ValueError("no run has played a round yet, so there is nothing to draw")
    absent = next(axis["absent"] for axis in made["axes"] if axis["key"] == cost)
    if absent:
        raise ValueError(f"{cost} is {absent}")
    paths: list[Path] = []
    for n, setting in enumerate(made["settings"], 1):
        stem = out.with_suffix("") if out.suffix == FORMATS[kind] else out
        stem = stem if len(made["settings"]) == 1 else stem.with_name(f"{stem.name}-{n}")
        paths += _one(made, setting, stem, kind, cost, at)
    return paths


def _one(made: Content, setting: Content, stem: Path, kind: str, cost: str, at: str | None) -> Sequence[Path]:
    suffix = FORMATS[kind]
    if kind in ("png", "pdf", "svg"):
        return papers.figures(made, setting, stem, suffix, cost, at)
    text = {
        "csv": lambda: papers.table_csv(setting, cost),
        "latex": lambda: papers.table_latex(made, setting, cost),
        "md": lambda: papers.table_markdown(made, setting, cost),
    }[kind]()
    path = stem.with_name(stem.name + suffix)
    path.write_text(text, "utf-8")
    return [path]
