"""What `joulegrad watch` shows: a line a run, as much of it as the terminal has room for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from joulegrad.cli.display import duration, percent
from joulegrad.lab.progress import Progress

__all__ = ["Screen", "spark"]

BLOCKS = "▁▂▃▄▅▆▇█"
ORDER = ("running", "stopped", "damaged", "waiting", "finished")  # what matters most when there is no room for all
STYLES = {"running": "bold", "stopped": "yellow", "damaged": "red", "waiting": "dim", "finished": "green"}
NOTES = 4  # words of runs that stopped, at most


def spark(values: Sequence[float], width: int) -> str:
    """A curve from 0 to 1 in so many letters.

    Example:
        >>> spark([0.0, 0.5, 1.0], 3), spark([0.1, 0.9], 10)
        ('▁▅█', '▁█')
    """
    if not values or width < 1:
        return ""
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [fmean(values[a:b]) for a, b in pairwise(edges)]
    return "".join(BLOCKS[min(int(max(mean, 0.0) * len(BLOCKS)), len(BLOCKS) - 1)] for mean in means)


def shortened(label: str, room: int) -> str:
    """A label cut in its middle: both ends distinguish runs.

    Example:
        >>> shortened("compress=TopK(density=0.02) seed=1", 20)
        'compress=To… seed=1'
    """
    if len(label) <= room:
        return label
    end = label.rpartition(" ")[2][-(room // 2) :]
    return f"{label[: room - len(end) - 3]}… {end}"


class Screen:
    """All runs at one moment; drawn anew for the size that the terminal has then."""

    def __init__(self, runs: Sequence[Progress], took: float, whole: bool = False) -> None:
        self.runs, self.took, self.whole = runs, took, whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or options.max_height
        yield self._summary()
        notes = [run for run in self.runs if run.said and run.state in ("stopped", "damaged")][:NOTES]
        room = len(self.runs) if self.whole else max(height - 5 - len(notes), 3)
        order = {state: place for place, state in enumerate(ORDER)}
        chosen = sorted(range(len(self.runs)), key=lambda i: (order[self.runs[i].state], i))[:room]
        yield self._table([self.runs[i] for i in sorted(chosen)], width)
        if len(chosen) < len(self.runs):
            yield Text(f"… and {len(self.runs) - len(chosen)} more; --once shows all", style="dim")
        for run in notes:
            yield Text(f"{run.label}: {run.said}", style=STYLES[run.state], overflow="ellipsis", no_wrap=True)

    def _summary(self) -> Text:
        counts = {state: sum(run.state == state for run in self.runs) for state in ORDER}
        words = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
        sent = sum(run.bytes_up for run in self.runs)
        parts = [f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}: {words}", f"{sent / 1e6:.4g} MB up"]
        joules = [run.joules for run in self.runs if run.rounds]
        known = [j for j in joules if j is not None]
        if known and len(known) == len(joules):
            parts.append(f"{sum(known):.4g} J uplink (coded)")
        left = time_left(self.runs)
        if left is not None:
            parts.append(f"about {duration(left)} left")
        return Text(" · ".join(parts), style="bold", overflow="fold")

    def _table(self, runs: Sequence[Progress], width: int) -> Table:
        ledger = any(run.joules for run in runs)
        curve = max(min(width - (112 if ledger else 100), 40), 0) if width > 108 else 0
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=width >= 60, show_edge=False)
        table.add_column("run", overflow="ellipsis", no_wrap=True, ratio=1, min_width=12)
        table.add_column("rounds", justify="right", no_wrap=True)
        table.add_column("accuracy", justify="right", no_wrap=True)
        if curve:
            table.add_column("0 to 100 %", no_wrap=True, width=max(curve, 10))
        if width >= 72:
            table.add_column("MB up", justify="right", no_wrap=True)
        if width >= 90:
            table.add_column("Σc", justify="right", no_wrap=True)
        if width >= 100 and ledger:
            table.add_column("J uplink", justify="right", no_wrap=True)
        table.add_column("left", justify="right", no_wrap=True)
        used = 36 + (max(curve, 10) + 3 if curve else 0) + 11 * sum((width >= 72, width >= 90, width >= 100 and ledger))
        for run in runs:
            cells = [
                escape(shortened(run.label, max(width - used, 14))),
                f"{run.rounds}/{'?' if run.asked is None else run.asked}",
            ]
            cells.append(percent(run.accuracies[-1]) if run.accuracies else "–")
            if curve:
                cells.append(spark(run.accuracies, max(curve, 10)))
            if width >= 72:
                cells.append(f"{run.bytes_up / 1e6:.4g}")
            if width >= 90:
                cells.append(f"{run.cost:.3g}")
            if width >= 100 and ledger:
                cells.append("–" if run.joules is None else f"{run.joules:.3g}")
            running = run.state == "running" and run.left is not None
            cells.append(duration(run.left or 0.0) if running else run.state)
            table.add_row(*cells, style=STYLES[run.state])
        return table


def time_left(runs: Sequence[Progress]) -> float | None:
    """Seconds until all have ended, if as many go on running at once; None where nothing runs or nothing is known."""
    running = [run for run in runs if run.state == "running"]
    known = [run.left for run in running if run.left is not None]
    if not known:
        return None
    begun = [run for run in runs if run.state in ("running", "finished")]
    whole = [run.left + sum(run.seconds) for run in begun if run.left is not None]
    waiting = sum(run.state == "waiting" for run in runs) * fmean(whole)
    return max(max(known), (sum(known) + waiting) / len(running))
