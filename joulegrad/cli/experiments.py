"""Commands that run experiments: run, sweep, table, demo."""

from __future__ import annotations

import signal
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from joulegrad.cli import display
from joulegrad.cli.app import app
from joulegrad.cli.mistakes import STOPPED, WRONG, mistakes, say

Device = Annotated[str, typer.Option(metavar="cpu|cuda", help="Where clients train.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Processes on the CPU [default: one a core]; results are the same for any."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Instead of what the file says, such as local.lr=0.1; repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing unless it goes wrong.")]

PATIENCE = 60  # seconds that an estimate of the time may take

RUN_EXAMPLES = """\b
Examples:
  joulegrad run                                  digits, with all defaults
  joulegrad run examples/digits.toml
  joulegrad run mine.toml --set rounds=100 --set "compress=TopK(k=500)"
  joulegrad run mine.toml --set compress.density=0.001 --out runs/sparser
  joulegrad run mine.toml --json > rounds.jsonl
  joulegrad run mine.toml --engine flower-sim    the same, simulated by Flower

\b
Exit codes: 0 finished; 1 it went wrong on the way; 2 a mistake in the
arguments or the experiment; 3 another process writes to the folder;
130 stopped.
"""


@app.command(epilog=RUN_EXAMPLES)
def run(
    file: Annotated[
        Path | None, typer.Argument(help="The experiment, in TOML; none: digits, with all defaults.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the run is kept [default: runs/NAME-FINGERPRINT].")
    ] = None,
    settings: Settings = None,
    workers: Workers = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each round as a line of JSON.")] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also log each round here, for TensorBoard.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(metavar="local|flower-sim|flower", help="Who plays it; the model is the same, bit for bit."),
    ] = "local",
    superlink: Annotated[
        str | None, typer.Option(metavar="NAME", help="For --engine flower: a connection of Flower's config.toml.")
    ] = None,
) -> None:
    """Play an experiment, or go on with one that was stopped or killed.

    Ctrl-C lets the round end and keeps it. The same command goes on from there, and on the CPU it comes to the
    same result, to the last bit.
    """
    from joulegrad.lab import accounts
    from joulegrad.lab import experiment as config
    from joulegrad.lab import run as player

    with mistakes():
        given = _settings(file, settings)
        if "sweep" in given:
            raise ValueError(f"{file} has a table [sweep]: it is played by joulegrad sweep {file}")
        experiment = config.Experiment.of(given)
        name = f"{file.stem if file else 'digits'}-{experiment.fingerprint}"
        folder = out or Path("runs") / (name if engine == "local" else f"{name}-{engine}")
        with display.Run(experiment.rounds, _mode(quiet, as_json), tensorboard) as show:
            if engine == "local":
                outcome = player.run(experiment, folder, device=device, workers=workers, seen=show.row, noted=show.note)
            else:
                if workers is not None or device != "cpu":
                    raise ValueError(
                        f"--workers and --device are for the engine local; {engine} has one process a node"
                    )
                outcome = _on_flower(experiment, folder, engine, superlink, show.row)
    if not outcome.finished:
        say(f"stopped after round {len(outcome.rows)} of {experiment.rounds}; the same command goes on from there")
        raise typer.Exit(STOPPED)
    if not (quiet or as_json):
        display.line(show.console, f"{display.summary(outcome.rows)}; all of it in {folder}")
        assumed = any(ledger.grams_per_kwh is None for ledger in experiment.ledgers)
        for told in display.bill(accounts.bills(experiment, outcome.rows), assumed):
            display.line(show.console, told)


def _on_flower(experiment: Any, folder: Path, engine: str, superlink: str | None, seen: Any) -> Any:
    """What of Flower is needed may not be installed."""
    from joulegrad.lab import distributed

    return distributed.play(experiment, folder, engine=engine, connection=superlink, seen=seen)


SWEEP_EXAMPLES = """\b
Examples:
  joulegrad sweep examples/sweep.toml --dry-run  the plan, and about how long
  joulegrad sweep examples/sweep.toml
  joulegrad sweep mine.toml --set rounds=5 --set "sweep.seed=[0, 1, 2]"
  joulegrad table runs/sweep -o all.csv          then: all rounds of all runs

\b
Exit codes: 0 all finished; 1 some failed; 2 a mistake in the arguments or the
file; 130 stopped.
"""


@app.command(epilog=SWEEP_EXAMPLES)
def sweep(
    file: Annotated[Path, typer.Argument(help="An experiment with a table [sweep] of keys and lists of values.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the runs' folders are [default: runs/NAME].")
    ] = None,
    settings: Settings = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs at the same time [default: one a core].")
    ] = None,
    workers: Workers = None,
    device: Device = "cpu",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, with an estimate of the time.")] = False,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON as each run ends.")] = False,
) -> None:
    """Play every combination of the values in a file.

    Finished runs are skipped, stopped ones go on, failed ones are listed with their reasons and leave the others alone.
    """
    from joulegrad.lab import sweep as sweeps

    out = out or Path("runs") / file.stem
    with mistakes():
        _check(device)
        jobs = sweeps.plan(_settings(file, settings), out)
        if dry_run:
            _plan(jobs, at_once, device)
            return
        with display.Sweep(jobs, _mode(quiet, as_json)) as show:
            failed = sweeps.play(
                jobs, at_once=at_once, workers=workers, device=device, ended=show.ended, watched=show.watched
            )
    if failed:
        say(f"{len(failed)} of {len(jobs)} runs failed:")
        for job in jobs:
            if job.label in failed:
                say(f"  {job.label}: {failed[job.label]} (all that it said is in {job.folder / sweeps.LOG})")
        raise typer.Exit(WRONG)
    if not (quiet or as_json):
        told = f"{len(jobs)} runs finished in {out}; joulegrad table {out} -o {file.stem}.csv puts them together"
        display.line(show.console, told)


TABLE_EXAMPLES = """\b
Examples:
  joulegrad table runs                           where each run stands
  joulegrad table runs/sweep -o all.csv          a line a round
  joulegrad table runs/a runs/b -o all.parquet   needs pyarrow
"""


@app.command(epilog=TABLE_EXAMPLES)
def table(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders of runs.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A .csv or .parquet to write.")
    ] = None,
) -> None:
    """Put all rounds of all runs into one table.

    Without -o, print where each run stands, and what distinguishes it from the others.
    """
    from joulegrad.lab import tables

    console = Console()
    with mistakes():
        found = tables.folders(runs)
        if output is not None:
            n = tables.write(tables.rows(found), output)
            display.line(console, f"{n:,} rounds of {len(found)} runs written to {output}")
            return
        shown = display.table("run", "round", "accuracy", "MB up", "cost")
        for folder, label in tables.labels(found).items():
            rows = list(tables.rows([folder]))
            name = escape(folder.name) + (f"\n[dim]{escape(label)}[/dim]" if label else "")
            if not rows:
                shown.add_row(name, "0")
                continue
            last = rows[-1]
            shown.add_row(
                name, f"{last['round']}/{last['rounds']}", display.percent(last["accuracy"]),
                f"{last['total_bytes_up'] / 1e6:.3g}", f"{last['total_cost']:.3g}",
            )  # fmt: skip
        console.print(shown)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where runs and pictures go.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of everything that is drawn.")] = 0,
    workers: Workers = None,
) -> None:
    """Compare five ways to send updates, in under a minute.

    A small network with a large classifier learns scikit-learn's digits; the end is a table and two pictures.
    """
    from joulegrad.lab import demo as demonstration

    console = Console()
    with mistakes(), display.progress(console) as bars:
        bar = bars.add_task("", total=demonstration.rounds_in_all(), note="")

        def seen(name: str, row: Mapping[str, Any]) -> None:
            bars.update(bar, advance=1, description=name, note=f"accuracy {display.percent(row['accuracy'])}")

        results = demonstration.play(out, seed=seed, workers=workers, seen=seen)
        paths = demonstration.pictures(results, out)
    shown = display.table("sends", "accuracy", "MB sent", "energy", "× fewer bytes")
    for result in results:
        shown.add_row(
            result.name, display.percent(result.accuracy), f"{result.megabytes:.3f}", f"{result.cost / 1e6:.3f}",
            f"{results[0].megabytes / result.megabytes:.1f}",
        )  # fmt: skip
    prose = min(console.width, 100)
    console.print(demonstration.title(seed), highlight=False, width=prose)
    console.print(shown)
    for caveat in demonstration.CAVEATS:
        console.print(caveat, highlight=False, width=prose)
    if all(result.read for result in results):
        console.print(f"This was played before, and only read now; delete {escape(str(out))} to play it again.")
    for path in paths:
        display.line(console, f"picture: {path}")


def _plan(jobs: list[Any], at_once: int | None, device: str) -> None:
    """What would run, and how long that would take, from one round of the first that is left."""
    from joulegrad.lab.simulate import Simulation
    from joulegrad.lab.workers import cores

    console, left = Console(), [job for job in jobs if not job.finished]
    shown = display.table("run", "rounds", "folder")
    for job in jobs:
        shown.add_row(escape(job.label), f"{len(job.rounds)}/{job.experiment.rounds}", escape(job.folder.name))
    console.print(shown)
    if not left:
        display.line(console, "all are finished")
        return
    most = min(at_once or (cores() if device == "cpu" else 1), len(left))
    begin, started = time.process_time(), time.monotonic()  # what this process has taken to import, so will each run
    try:
        with (
            console.status("Two rounds of the first, to estimate the time; Ctrl-C leaves it at that."),
            _at_most(PATIENCE),
            Simulation(left[0].experiment, device=device, workers=max(cores() // most, 1)) as simulation,
        ):
            simulation.round()
            first = time.monotonic()
            simulation.round()
            each = time.monotonic() - first
    except (KeyboardInterrupt, TimeoutError) as why:
        waited = f"after {PATIENCE} s" if isinstance(why, TimeoutError) else "when it was stopped"
        text = f"{len(left)} runs; two rounds of the first were not over {waited}, so there is no estimate of the time"
        display.line(console, text)
        return
    begin += first - started
    rounds = sum(job.experiment.rounds - len(job.rounds) for job in left)
    display.line(
        console,
        f"{len(left)} runs, {rounds:,} rounds, {most} at once: about "
        f"{display.duration((len(left) * begin + rounds * each) / most)}, if each takes {begin:.0f} s to begin and "
        f"{each:.2f} s a round, as the first of them did just now",
    )


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """A TimeoutError when it takes longer, where the system has alarms."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _settings(file: Path | None, overrides: list[str] | None) -> dict[str, Any]:
    """The file's settings, with --set's in their place."""
    from joulegrad.lab import experiment as config

    settings = config.load(file) if file is not None else {}
    grid = settings.pop("sweep", None)
    for text in overrides or []:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals):
            raise ValueError(f"--set {text}: expected key=value, such as --set local.lr=0.1")
        if isinstance(grid, dict) and key.startswith("sweep."):
            grid = {**grid, key.removeprefix("sweep."): _literal(value)}
        elif isinstance(grid, dict) and key in grid:
            raise ValueError(f'--set {text}: the sweep goes over {key}; --set "sweep.{key}=[…]" gives it other values')
        else:
            settings = config.changed(settings, key, _literal(value))
    return settings if grid is None else {**settings, "sweep": grid}


def _literal(text: str) -> Any:
    """A value as TOML has it; what is none is a text."""
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 else text


def _check(device: str) -> None:
    """Before many runs begin that would all fail."""
    import torch

    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, and torch finds no GPU that it can use")


def _mode(quiet: bool, as_json: bool) -> display.Mode:
    return "quiet" if quiet else "json" if as_json else "text"
