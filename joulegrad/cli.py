"""The commands. Each parses, calls the lab, and prints; nothing is computed here."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import joulegrad

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        Console().print(f"joulegrad {joulegrad.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Send the part of a model update that is worth its joules."""


@app.command()
def verify(
    seed: Annotated[int, typer.Option(min=0, help="Of the random instances.")] = 0,
) -> None:
    """Check the theory against independent solvers.

    Takes about ten seconds; the exit code is 1 if a claim does not hold.
    """
    from joulegrad.lab import verify as theory

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("claim", overflow="fold")
    for name in ("cases", "worst", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    failed = 0
    with console.status("") as status:
        for name, run in theory.checks(seed):
            status.update(f"checking {name} …")
            check = run()
            failed += not check.holds
            table.add_row(
                "✓" if check.holds else "✗",
                f"{name}\n[dim]{escape(check.claim)}[/dim]",
                f"{check.instances:,}",
                f"{check.worst + 0.0:.2g}",
                f"{check.limit:.2g}",
                style=None if check.holds else "bold red",
            )
    console.print(table)
    if failed:
        console.print(f"{failed} of {table.row_count} claims did not hold (seed {seed})", style="bold red")
        raise typer.Exit(1)
    console.print(f"all {table.row_count} claims hold (seed {seed})")
