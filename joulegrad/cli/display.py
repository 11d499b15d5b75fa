"""What is seen of experiments while they run, and when they have."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from joulegrad.profiles import readable

__all__ = [
    "Mode",
    "Run",
    "Sweep",
    "bill",
    "breakdown",
    "cut",
    "duration",
    "line",
    "percent",
    "plan",
    "progress",
    "summary",
    "table",
]

Mode = Literal["text", "json", "quiet"]
LOGGED = ("accuracy", "loss", "train_loss", "bytes_up", "bytes_down", "entries", "cost", "starved_layers")


def progress(console: Console, hidden: bool = False) -> Progress:
    """Bars, in a terminal only; what may be long comes last, where it is cut."""
    width = min(40, max(console.width - 50, 8))
    columns = (
        MofNCompleteColumn(),
        BarColumn(width),
        TextColumn("{task.fields[note]}"),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=console, disable=hidden or not console.is_terminal)


def cut(console: Console, text: str) -> str:
    """A name as a bar has room for it."""
    room = max(console.width - 66, 12)
    return escape(text if len(text) <= room else f"{text[: room - 1]}…")


def table(first: str, *others: str) -> Table:
    """A table whose first column is text and folds, and whose others are numbers."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column(first, overflow="fold")
    for name in others:
        shown.add_column(name, justify="right")
    return shown


def line(console: Console, text: str, style: str | None = None) -> None:
    """A line as it is: neither coloured by guesses nor wrapped."""
    console.print(escape(text), style=style, highlight=False, soft_wrap=True)


class Run:
    """One run, round by round: a bar in a terminal, lines elsewhere, JSON or nothing if asked."""

    def __init__(self, rounds: int, mode: Mode, tensorboard: Path | None) -> None:
        self.rounds, self.mode, self.up = rounds, mode, 0
        self.took: list[float] = []
        self.console = Console(stderr=mode != "text")
        self.writer = None if tensorboard is None else _writer(tensorboard)
        self.progress = progress(self.console, hidden=mode != "text")
        self.bar = self.progress.add_task("", total=rounds, note="starting")

    def __enter__(self) -> Run:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        if self.writer is not None:
            self.writer.close()

    def row(self, row: Mapping[str, Any]) -> None:
        """A round is over, now or in an earlier process."""
        self.up += row["bytes_up"]
        self.took.append(row["seconds"]["round"])
        loss = "" if row["loss"] is None else f", loss {row['loss']:.4f}"
        accuracy, up = f"accuracy {percent(row['accuracy'])}", f"{self.up / 1e6:.3g} MB up"
        if self.mode == "json":
            _written(row)
        elif self.mode == "text" and not self.console.is_terminal:
            flat = f", {len(row['flat'])} batteries flat" if row.get("flat") else ""
            told = f"round {row['round']}/{self.rounds}: {accuracy}{loss}, {up}{flat}, {self.took[-1]:.2f} s"
            line(self.console, told)
        self.progress.update(self.bar, completed=row["round"], note=f"{accuracy}, {up}, {self._left(row['round'])}")
        if self.writer is not None:
            for name in LOGGED:
                if row[name] is not None:
                    self.writer.add_scalar(name, row[name], row["round"])

    def note(self, note: str) -> None:
        """Something to know beside the figures."""
        if self.mode != "quiet":
            line(self.console, note, "yellow")

    def _left(self, done: int) -> str:
        """The time left, as the last rounds were; the first also compiles and starts processes."""
        return f"{duration((self.rounds - done) * mean(self.took[1:][-10:] or self.took))} left"


class Sweep:
    """All runs of a sweep: a bar for all and one for each that is running."""

    def __init__(self, jobs: list[Any], mode: Mode) -> None:
        self.mode, self.console = mode, Console(stderr=mode != "text")
        self.progress = progress(self.console, hidden=mode != "text")
        self.counts = {job.label: len(job.rounds) for job in jobs}
        self.took: dict[str, float] = {}  # of each run's last round: seconds
        total = sum(job.experiment.rounds for job in jobs)
        self.all = self.progress.add_task("all runs", total=total, completed=sum(self.counts.values()), note="")
        self.bars: dict[str, TaskID] = {}
        for job in jobs:
            if job.finished and mode == "json":
                self.ended(job, 0)
        if (skipped := sum(job.finished for job in jobs)) and mode == "text":
            line(self.console, f"{skipped} of {len(jobs)} runs are finished already")

    def __enter__(self) -> Sweep:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def watched(self, running: list[Any]) -> None:
        """What is running, and how far it is."""
        for job in running:
            if job.label not in self.bars:
                self.bars[job.label] = self._bar(job)
            rows = job.rounds
            self.counts[job.label] = len(rows)
            if rows:
                self.took[job.label] = rows[-1]["seconds"]["round"]
            note = f"accuracy {percent(rows[-1]['accuracy'])}" if rows else "starting"
            self.progress.update(self.bars[job.label], completed=len(rows), note=note)
        self._count(len(running))

    def ended(self, job: Any, code: int) -> None:
        """A run has ended."""
        rows = job.rounds
        self.counts[job.label] = len(rows)
        if job.label in self.bars:
            self.progress.remove_task(self.bars.pop(job.label))
        if self.mode == "json":
            _written({"run": job.label, "folder": str(job.folder), "exit_code": code, **_totals(rows)})
        elif self.mode == "text":
            told = f"failed after {_rounds(len(rows))}, exit code {code}" if code else summary(rows)
            line(self.console, f"{job.label}: {told}", "red" if code else None)

    def _bar(self, job: Any) -> TaskID:
        return self.progress.add_task(cut(self.console, job.label), total=job.experiment.rounds, note="")

    def _count(self, running: int) -> None:
        task = self.progress.tasks[0]
        left = (task.total or 0) - sum(self.counts.values())
        note = f"{duration(left * mean(self.took.values()) / running)} left" if self.took and running else ""
        self.progress.update(self.all, completed=sum(self.counts.values()), note=note)


def _written(found: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def summary(rows: list[dict[str, Any]]) -> str:
    """A run in one line."""
    found = _totals(rows)
    up, down = found["bytes_up"] / 1e6, found["bytes_down"] / 1e6
    accuracy = f"accuracy {percent(found['accuracy'])}"
    return f"{accuracy} after {_rounds(len(rows))}, {up:.4g} MB up, {down:.4g} MB down, cost {found['cost']:.4g}"


def bill(bills: Sequence[Any], assumed: bool) -> list[str]:
    """What a run has cost, a line a source, and what was assumed."""
    lines = []
    for found in bills:
        parts = ", ".join(f"{phase} {joules:.4g}" for phase, joules in found.joules.items())
        lines.append(f"{found.source}: {sum(found.joules.values()):.4g} J ({parts}), {found.grams:.3g} g of CO2e")
    if lines and assumed:
        lines.append("CO2e is at the world's average of 475 g/kWh; a ledger's grams_per_kwh gives your own")
    return lines


def _totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    accuracy = next((row["accuracy"] for row in reversed(rows) if row["accuracy"] is not None), None)
    sums = {name: sum(row[name] for row in rows) for name in ("bytes_up", "bytes_down", "cost")}
    return {"rounds": len(rows), "accuracy": accuracy, **sums}


def _rounds(n: int) -> str:
    return f"{n} round{'s' * (n != 1)}"


def percent(share: float | None) -> str:
    """A share in per cent; a dash where it was not measured."""
    return "–" if share is None else f"{share:.1%}"


def duration(seconds: float) -> str:
    """Hours and minutes, minutes and seconds, or seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("--tensorboard needs tensorboard: pip install tensorboard") from None
    return SummaryWriter(str(folder), purge_step=1)  # of a run that goes on, all rounds are logged again


def plan(console: Console, model: str, found: Any) -> None:
    """What a plan has found: a dense round by phases, and the ways side by side."""
    from joulegrad.lab.verdict import WORDS

    setting, dense, wide = found.setting, found.dense, console.width >= 120
    speed = readable(found.link.up_bits_per_second.value, "bit/s")
    console.print(
        f"{escape(model)}: {found.layout.size:,} parameters, {readable(found.rehearsal.flops, 'FLOP')} an example; "
        f"{escape(found.device.name)} over {escape(found.link.name)} at {speed}; {setting.samples:,} examples, "
        f"{setting.epochs} epoch{'s' * (setting.epochs != 1)} a round; boundary: {setting.boundary}",
        highlight=False,
        width=min(console.width, 100),
    )
    shown = table("a round that sends everything", "joules", "from", "to", "share")
    for phase, joules in dense.phases.items():
        low, value, high = (readable(x, "J") for x in joules)
        shown.add_row(WORDS[phase], value, low, high, percent(joules.value / dense.joules.value))
    low, value, high = (readable(x, "J") for x in dense.joules)
    shown.add_row("all of it", value, low, high, "", style="bold")
    console.print(shown)
    battery, medium = setting.joules is not None, console.width >= 72
    heads = ["density", "bytes up", *(["time up", "select", "encode"] if wide else []), *(["send"] if medium else [])]
    heads += ["a round", *(["from", "to"] if wide else []), "saves", *(["rounds"] if battery else [])]
    shown = table("sends", *heads)
    for way in found.ways:
        inner = [way.phases[p].value for p in ("select", "encode", "uplink")]
        cells = [f"{100 * way.density:g}%", readable(way.bytes, "byte").replace("byte", "B")]
        if wide:
            cells += [readable(way.seconds, "s"), *(readable(x, "J") for x in inner[:2])]
        cells += [*([readable(inner[2], "J")] if medium else []), readable(way.joules.value, "J")]
        if wide:
            cells += [readable(way.joules.low, "J"), readable(way.joules.high, "J")]
        cells.append("" if way is dense else percent(found.saving(way)))
        if (rounds := found.rounds_on_battery(way)) is not None:
            cells.append(f"{rounds.value:,.0f}")
        shown.add_row(way.name, *cells, style="bold" if way is found.best else None)
    console.print(shown)


def breakdown(console: Console, cost: Any, layout: Any) -> None:
    """What an entry of each layer costs, part by part."""
    found = cost.explain(layout)
    console.print(f"{escape(found.title)}, at {100 * cost.density:g} %", highlight=False)
    first, *others = found.table()
    shown = table(*first)
    for row in others:
        shown.add_row(*map(escape, row))
    console.print(shown)
