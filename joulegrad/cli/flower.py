"""Commands for Flower: flower init."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import joulegrad
from joulegrad.cli import display
from joulegrad.cli.app import app
from joulegrad.cli.mistakes import mistakes

STARTER = Path(joulegrad.__file__).parent / "flower" / "starter"
RUN = "flwr run . local --stream --federation-config 'num-supernodes=3 client-resources-num-cpus=1'"

flower = typer.Typer(no_args_is_help=True, help="Apps for Flower, whose clients send what is worth its joules.")
app.add_typer(flower, name="flower")


@flower.callback()
def root() -> None:
    """Apps for Flower, whose clients send what is worth its joules."""


@flower.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet, or is empty.")],
) -> None:
    """Write an app that `flwr run` plays in simulation and deployment; no network is needed.

    It trains a small network on digits. docs/flower.md says how to deploy it.
    """
    with mistakes():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} is there already; name a new folder, or an empty one")
        shutil.copytree(STARTER, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    console = Console()
    display.line(console, f"written: {folder}; README.md there says how to run it. In simulation:")
    display.line(console, f"  cd {folder}")
    display.line(console, "  export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_TELEMETRY_ENABLED=0")
    display.line(console, f"  {RUN}")
