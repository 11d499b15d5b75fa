"""The root that commands hang on."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

import joulegrad

# Completion is off: the shell would import torch at each press of Tab.
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

EXIT_CODES = """\b
Exit codes:
    0  done
    1  it went wrong on the way, or something does not hold
    2  a mistake in the arguments, the experiment, or a file that they name
    3  another process writes to the run's folder
    4  there is no meter here that can measure joules, or it failed
  130  stopped when asked to; the same command goes on
"""


def _version(wanted: bool) -> None:
    if wanted:
        Console().print(f"joulegrad {joulegrad.__version__}", highlight=False)
        raise typer.Exit


@app.callback(epilog=EXIT_CODES)
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Send the part of a model update that is worth its joules."""
