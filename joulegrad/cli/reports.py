"""Commands that show what runs have come to: report, watch."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from joulegrad.cli import display
from joulegrad.cli.app import app
from joulegrad.cli.mistakes import mistakes

REPORT_EXAMPLES = """\b
Examples:
  joulegrad report runs/sweep                    one page: report.html
  joulegrad report runs/sweep -o figures/fig.pdf the paper's two figures
  joulegrad report runs/sweep --format md        the comparison as a table
  joulegrad report runs --against "ErrorFeedback(TopK)"
"""


@app.command(epilog=REPORT_EXAMPLES)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders of runs; finished or not.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="What to write [default: report.html].")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--format", metavar="html|png|pdf|svg|csv|latex|md", help="Else the file's ending says it."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="The baseline [default: TopK, else the first]."),
    ] = None,
    cost: Annotated[
        str,
        typer.Option(
            metavar="CURRENCY", help="Of figures and tables: units, uplink_joules, all_joules, bytes_up or bytes_both."
        ),
    ] = "units",
    at: Annotated[
        str | None, typer.Option(metavar="KNOB", help='Of the figure against rounds, such as "density=0.1".')
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Of the page.")] = "joulegrad report",
) -> None:
    """Compare runs: one page with figures and tables, or figures and tables for a paper.

    The page is one file: it opens from disk and loads nothing. Seeds of the same experiment become means with
    intervals; runs that are not finished, missing or damaged are named.
    """
    from joulegrad.lab import report as reports

    console = Console()
    with mistakes():
        out = output or Path("report.html" if kind is None else f"report{reports.FORMATS.get(kind, '')}")
        found = reports.read(runs)
        paths = reports.write(found, out, kind=kind, against=against, cost=cost, at=at, title=title)
        for folder, why in found.broken:
            display.line(console, f"left out: {folder}: {why}", "yellow")
        for told, n in (("not finished", len(found.unfinished)), ("without a round", len(found.begun))):
            if n:
                display.line(console, f"{told}: {n}", "yellow")
        if found.missing:
            display.line(console, f"not begun: {len(found.missing)}", "yellow")
        for path in paths:
            display.line(console, f"{len(found.runs)} runs in {path}")


WATCH_EXAMPLES = """\b
Examples:
  joulegrad watch runs/sweep                     until all have ended; Ctrl-C leaves
  joulegrad watch runs/mine --every 5
  joulegrad watch runs --once                    print where all stand, and exit
"""


@app.command(epilog=WATCH_EXAMPLES)
def watch(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders of runs; a sweep's may have not begun yet.")],
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print where all stand, and exit.")] = False,
) -> None:
    """Follow running experiments from their files.

    The runs are not asked and notice nothing; leaving leaves them alone. Works over ssh, and at any width.
    """
    from rich.live import Live

    from joulegrad.cli import watching
    from joulegrad.lab.progress import Follower

    console = Console()
    with mistakes():
        follower = Follower(runs)
        if once or not console.is_terminal:
            console.print(watching.Screen(follower.look(), follower.took, whole=True))
            return
        with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                found = follower.look()
                live.update(watching.Screen(found, follower.took), refresh=True)
                if all(run.state in ("finished", "damaged") for run in found):
                    break
                time.sleep(max(every, 20 * follower.took))  # looking takes a twentieth of a core at most
        console.print(watching.Screen(follower.look(), follower.took, whole=True))
