"""Commands that keep what runs have come to, and hold others against it: collect, compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from joulegrad.cli import display
from joulegrad.cli.app import app
from joulegrad.cli.mistakes import WRONG, mistakes, say

if TYPE_CHECKING:
    from joulegrad.lab.expected import Check, Comparison

COLLECT_EXAMPLES = """\b
Examples:
  joulegrad collect runs/sweep -o results        into results/sweep, a folder a run
  joulegrad collect runs -o results              all sweeps below runs
  joulegrad report results/sweep                 reads them like the runs
"""


@app.command(epilog=COLLECT_EXAMPLES)
def collect(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders of runs.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where results are kept.")] = Path(
        "results"
    ),
) -> None:
    """Keep what finished runs have come to as small files that can be committed.

    Headers and rounds, without checkpoints and without the names of this machine's folders; what was planned, and what
    a sweep drew by this machine's meters. Runs that are not finished are named.
    """
    from joulegrad.lab import results

    console = Console()
    with mistakes():
        kept = results.collect(runs, output)
        size = sum(file.stat().st_size for folder in kept.written for file in folder.iterdir())
        display.line(console, f"{len(kept.written)} results in {output}, {size / 1e6:.2f} MB")
        for folder, why in kept.left:
            display.line(console, f"left out: {folder}: {why}", "yellow")


COMPARE_EXAMPLES = """\b
Examples:
  joulegrad compare runs/sweep                   with paper/expected.toml
  joulegrad compare runs/sweep --expected mine.toml
  joulegrad compare results --expected mine.toml --write

\b
Exit codes: 0 all that was found is as expected; 1 something is not; 2 a
mistake in the arguments or a file, or no run is of any of these experiments.
"""


@app.command(epilog=COMPARE_EXAMPLES)
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders of runs, or collected results.")],
    expected: Annotated[Path, typer.Option(metavar="FILE", help="What is expected, with tolerances, in TOML.")] = Path(
        "paper/expected.toml"
    ),
    write: Annotated[bool, typer.Option("--write", help="Write the file, of these runs.")] = False,
) -> None:
    """Compare a reproduction with what is expected: accuracy, bytes and Σc of each configuration.

    Tolerances come from the spread over seeds; the file's head says how. Configurations without a finished run are
    named, and are no miss.
    """
    from joulegrad.lab import expected as expectations
    from joulegrad.lab import report as reports

    console = Console()
    with mistakes():
        found = reports.read(runs)
        if write:
            made = expectations.of(found)
            expectations.write(made, expected)
            display.line(console, f"{len(made)} configurations in {expected}")
            return
        compared = expectations.compare(found, expectations.load(expected))
        for each in compared:
            for told in _lines(each) if each.checks else ():
                display.line(console, told, "red" if told.endswith("MISSED") else None)
        for told in _missing(compared):
            display.line(console, told, "yellow")
        if not any(each.checks for each in compared):
            raise ValueError(f"no finished run is of an experiment that {expected} expects, so nothing was compared")
    missed = sum(len(each.missed) for each in compared)
    judged = sum(check.held is not None for each in compared for check in each.checks)
    if missed:
        say(f"{missed} of {judged} figures are outside their tolerance")
        raise typer.Exit(WRONG)
    display.line(console, f"all {judged} figures are as expected" if judged else "one seed: nothing could be judged")


def _lines(each: Comparison) -> Iterator[str]:
    """One configuration, and a line for each of its figures."""
    yield f"{each.configuration.sweep}: {each.configuration.sends}, seeds {', '.join(map(str, each.seeds))}"
    for check in each.checks:
        verdict = {True: "as expected", False: "MISSED", None: "one seed: no tolerance"}[check.held]
        found, expected = _value(check, check.found), _value(check, check.expected)
        yield f"  {check.figure.label:<10} {found:>15}, expected {expected:>15}{_margin(check):>14}: {verdict}"


def _value(check: Check, value: float) -> str:
    return f"{value:,.0f}" if check.figure.relative else f"{100 * value:.2f} %"


def _margin(check: Check) -> str:
    if check.tolerance is None:
        return ""
    if check.figure.relative:
        return f" ± {100 * check.tolerance / abs(check.expected or 1.0):.2g} %"
    return f" ± {100 * check.tolerance:.2f} points"


def _missing(compared: Iterable[Comparison]) -> Iterator[str]:
    """What could not be compared, or not with all seeds."""
    absent = []
    for each in compared:
        about, wanted = each.configuration, set(each.configuration.seeds)
        name = f"{about.sweep}: {about.sends}"
        for seed, played in each.partly:
            yield f"partly run, not compared: {name}, seed {seed}: {played} of {about.experiment.rounds} rounds"
        if not each.seeds and not each.partly:
            absent.append(name)
        elif each.seeds and wanted - set(each.seeds) - {seed for seed, _ in each.partly}:
            yield f"compared without seeds {sorted(wanted - set(each.seeds))}: {name}"
    for name in absent:
        yield f"missing: {name}"
