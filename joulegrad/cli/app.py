"""The root that commands hang on."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

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
