"""Commands that run experiments: run, sweep, table, demo."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from joulegrad.cli.app import app

Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes on the CPU; results are the same for any number.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="key=value, such as local.lr=0.1; repeatable.")]


@app.command()
def run(
    file: Annotated[
        Path | None, typer.Argument(help="The experiment, in TOML; none: digits, with all defaults.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder [default: runs/NAME-FINGERPRINT].")] = None,
    settings: Settings = None,
    workers: Workers = None,
    device: Device = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing unless it goes wrong.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each round as a line of JSON.")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Also log to this folder, for TensorBoard.")] = None,
) -> None:
    """Play an experiment, or go on with one that was stopped or killed.

    Ctrl-C lets the round end; the same command goes on from there, and comes to the same result to the last bit
    (on the CPU). Exit codes: 0 finished, 1 went wrong on the way, 2 a mistake in the experiment, 3 another process
    holds the folder, 130 stopped.
    """
    from joulegrad.lab import experiment as config
    from joulegrad.lab import run as player

    with _mistakes():
        experiment = config.Experiment.of(_settings(file, settings))
        folder = out or Path("runs") / f"{file.stem if file else 'digits'}-{experiment.fingerprint}"
        show = _Rows(experiment.rounds, "quiet" if quiet else "json" if as_json else "text", tensorboard)
        with show:
            outcome = player.run(experiment, folder, device=device, workers=workers, seen=show.row, noted=show.note)
    if not outcome.finished:
        _say(f"stopped after round {len(outcome.rows)} of {experiment.rounds}; the same command goes on from there")
        raise typer.Exit(130)
    if not (quiet or as_json):
        _say(f"{_summary(outcome.rows)}; all rounds in {folder}", err=False)


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="An experiment with a table [sweep] of keys and lists of values.")],
    out: Annotated[Path | None, typer.Option(help="The folder of the runs' folders [default: runs/NAME].")] = None,
    settings: Settings = None,
    at_once: Annotated[int | None, typer.Option(min=1, help="Runs at the same time [default: one a core].")] = None,
    workers: Workers = None,
    device: Device = "cpu",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, with an estimate of the time.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing unless it goes wrong.")] = False,
) -> None:
    """Play every combination of values; finished runs are skipped, failed ones listed.

    Exit codes: 0 all finished, 1 some failed, 2 a mistake in the file, 130 stopped.
    """
    from joulegrad.lab import sweep as sweeps

    out = out or Path("runs") / file.stem
    with _mistakes():
        jobs = sweeps.plan(_settings(file, settings), out)
        if dry_run:
            _plan(jobs, at_once, device)
            return
        with _Sweep(jobs, quiet) as show:
            failed = sweeps.play(
                jobs, at_once=at_once, workers=workers, device=device, ended=show.ended, watched=show.watched
            )
    if failed:
        for job in jobs:
            if job.label in failed:
                _say(f"failed: {job.label}: {failed[job.label]} (all of it in {job.folder / sweeps.LOG})")
        raise typer.Exit(1)
    if not quiet:
        _say(f"{len(jobs)} runs finished in {out}; joulegrad table {out} -o {file.stem}.csv puts them together", False)


@app.command()
def table(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders of runs.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A .csv or .parquet to write.")] = None,
) -> None:
    """Put all rounds of all runs into one table; without -o, print where each run stands."""
    from joulegrad.lab import tables

    with _mistakes():
        found = tables.folders(runs)
        if output is not None:
            n = tables.write(tables.rows(found), output)
            _say(f"{n:,} rounds of {len(found)} runs written to {output}", err=False)
            return
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        shown.add_column("run", overflow="fold")
        shown.add_column("sends", overflow="fold")
        for name in ("round", "accuracy", "MB up", "cost"):
            shown.add_column(name, justify="right", no_wrap=True)
        for folder in found:
            rows = list(tables.rows([folder]))
            if rows:
                last = rows[-1]
                shown.add_row(
                    escape(folder.name), escape(str(last["compress"])), f"{last['round']}/{last['rounds']}",
                    _percent(last["accuracy"]), f"{last['total_bytes_up'] / 1e6:.3g}", f"{last['total_cost']:.3g}",
                )  # fmt: skip
        Console().print(shown)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where runs and pictures go.")] = Path("demo"),
    workers: Workers = None,
) -> None:
    """Compare five ways to send updates, on scikit-learn's digits: a table and two pictures, in under a minute."""
    from joulegrad.lab import demo as demonstration

    console = Console()
    with _mistakes(), _progress(console, quiet=False) as progress:
        task = progress.add_task("", total=demonstration.rounds_in_all(), note="")

        def seen(name: str, row: Mapping[str, Any]) -> None:
            progress.update(task, advance=1, description=name, note=_percent(row["accuracy"]))

        results = demonstration.play(out, workers, seen)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=demonstration.TITLE, title_justify="left")
    shown.add_column("sends", overflow="fold")
    for name in ("accuracy", "MB sent", "energy (units)", "× fewer bytes"):
        shown.add_column(name, justify="right")
    for result in results:
        shown.add_row(
            result.name, _percent(result.accuracy), f"{result.megabytes:.3f}", f"{result.cost:,.0f}",
            f"{results[0].megabytes / result.megabytes:.1f}",
        )  # fmt: skip
    console.print(shown)
    for path in demonstration.pictures(results, out):
        console.print(f"picture: {path}", highlight=False, soft_wrap=True)


class _Rows:
    """What is shown of a run while it runs."""

    def __init__(self, rounds: int, mode: str, tensorboard: Path | None) -> None:
        self.rounds, self.mode, self.up = rounds, mode, 0
        self.console = Console(stderr=mode != "text")
        self.progress = _progress(self.console, quiet=mode != "text")
        self.writer = _tensorboard(tensorboard) if tensorboard else None
        self.bar = self.progress.add_task("round", total=rounds, note="")

    def __enter__(self) -> _Rows:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        if self.writer is not None:
            self.writer.close()

    def row(self, row: Mapping[str, Any]) -> None:
        self.up += row["bytes_up"]
        loss = "" if row["loss"] is None else f"  loss {row['loss']:.4f}"
        note = f"accuracy {_percent(row['accuracy'])}{loss}  {self.up / 1e6:.3g} MB up"
        if self.mode == "json":
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
        elif self.mode == "text" and not self.console.is_terminal:
            seconds = row["seconds"]["round"]
            self.console.print(f"round {row['round']}/{self.rounds}  {note}  {seconds:.2f} s", highlight=False)
        self.progress.update(self.bar, completed=row["round"], note=note)
        if self.writer is not None:
            for name in ("accuracy", "loss", "train_loss", "bytes_up", "bytes_down", "entries", "cost"):
                if row[name] is not None:
                    self.writer.add_scalar(name, row[name], row["round"])

    def note(self, note: str) -> None:
        self.console.print(note, style="yellow", highlight=False)


class _Sweep:
    """One display for all runs of a sweep."""

    def __init__(self, jobs: list[Any], quiet: bool) -> None:
        self.jobs, self.quiet, self.console = jobs, quiet, Console(stderr=quiet)
        self.progress = _progress(self.console, quiet)
        done = sum(len(job.rounds) for job in jobs)
        total = sum(job.experiment.rounds for job in jobs)
        self.all = self.progress.add_task("all runs", total=total, completed=done, note="")
        self.bars: dict[str, Any] = {}
        self.counts = {job.label: len(job.rounds) for job in jobs}
        if done and not quiet:
            skipped = sum(job.finished for job in jobs)
            self.console.print(f"{skipped} of {len(jobs)} runs are finished already", highlight=False)

    def __enter__(self) -> _Sweep:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def watched(self, running: list[Any]) -> None:
        for job in running:
            if job.label not in self.bars:
                self.bars[job.label] = self.progress.add_task(escape(job.label), total=job.experiment.rounds, note="")
            rows = job.rounds
            self.counts[job.label] = len(rows)
            note = _percent(rows[-1]["accuracy"]) if rows else "starting"
            self.progress.update(self.bars[job.label], completed=len(rows), note=note)
        self.progress.update(self.all, completed=sum(self.counts.values()))

    def ended(self, job: Any, code: int) -> None:
        self.counts[job.label] = len(job.rounds)
        if job.label in self.bars:
            self.progress.remove_task(self.bars.pop(job.label))
        self.progress.update(self.all, completed=sum(self.counts.values()))
        if not self.quiet:
            told = f"failed with exit code {code}" if code else _summary(job.rounds)
            self.console.print(f"{escape(job.label)}: {told}", style="red" if code else None, highlight=False)


def _plan(jobs: list[Any], at_once: int | None, device: str) -> None:
    """What would run, and how long that would take, from one round of the first that is left."""
    from joulegrad.lab.simulate import Simulation
    from joulegrad.lab.workers import cores

    console, left = Console(), [job for job in jobs if not job.finished]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("run", overflow="fold")
    shown.add_column("rounds", justify="right")
    shown.add_column("folder", overflow="fold")
    for job in jobs:
        shown.add_row(escape(job.label), f"{len(job.rounds)}/{job.experiment.rounds}", escape(str(job.folder)))
    console.print(shown)
    if not left:
        console.print("all are finished")
        return
    most = min(at_once or (cores() if device == "cpu" else 1), len(left))
    with Simulation(left[0].experiment, device=device, workers=max(cores() // most, 1)) as simulation:
        simulation.round()
        started = time.monotonic()
        simulation.round() if left[0].experiment.rounds > 1 else None
        each = time.monotonic() - started
    rounds = sum(job.experiment.rounds - len(job.rounds) for job in left)
    console.print(
        f"{len(left)} runs, {rounds:,} rounds, {most} at once: about {_duration(rounds * each / most)} if every round "
        f"takes as long as the first run's second ({each:.2f} s)",
        highlight=False,
    )


def _settings(file: Path | None, overrides: list[str] | None) -> dict[str, Any]:
    """The file's settings, with --set's in their place."""
    from joulegrad.lab import experiment as config

    settings = config.load(file) if file is not None else {}
    grid = settings.pop("sweep", None)
    for text in overrides or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text}: expected key=value")
        settings = config.changed(settings, key.strip(), _literal(value.strip()))
    return settings if grid is None else {**settings, "sweep": grid}


def _literal(text: str) -> Any:
    """A value as TOML has it; what is none is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@contextmanager
def _mistakes() -> Iterator[None]:
    """Errors in the user's words, each kind with its exit code."""
    from joulegrad.lab.client import Diverged
    from joulegrad.lab.store import Damaged, Held

    try:
        yield
    except Held as why:
        _say(str(why))
        raise typer.Exit(3) from None
    except (Diverged, Damaged, OSError, MemoryError) as why:
        _say(str(why))
        raise typer.Exit(1) from None
    except ValueError as why:
        _say(str(why))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        _say("stopped; the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None


def _say(text: str, err: bool = True) -> None:
    Console(stderr=err).print(escape(text), style="bold red" if err else None, highlight=False, soft_wrap=True)


def _progress(console: Console, quiet: bool) -> Progress:
    """Bars, in a terminal only."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    hidden = quiet or not console.is_terminal
    return Progress(*columns, TimeRemainingColumn(compact=True), console=console, disable=hidden, expand=True)


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("--tensorboard needs tensorboard: pip install tensorboard") from None
    return SummaryWriter(str(folder))


def _summary(rows: list[dict[str, Any]]) -> str:
    last = next((row for row in reversed(rows) if row["accuracy"] is not None), None)
    accuracy = _percent(last["accuracy"] if last else None)
    up, down = (sum(row[name] for row in rows) / 1e6 for name in ("bytes_up", "bytes_down"))
    cost = sum(row["cost"] for row in rows)
    return f"{len(rows)} rounds: accuracy {accuracy}, {up:.4g} MB up, {down:.4g} MB down, cost {cost:.4g}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
