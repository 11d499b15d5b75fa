"""Commands that look: verify, doctor, inspect."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import joulegrad
from joulegrad.cli.app import app


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


@app.command()
def doctor() -> None:
    """Say what works here, and what does not.

    Versions, kernels, threads, caches, extras, and what the first call costs. The exit code is 1 if something that
    is needed is missing.
    """
    from joulegrad.lab import doctor as examination

    console = Console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    good = True
    with console.status("") as status:
        for fact in examination.facts():
            status.update(f"after {fact.name} …")
            table.add_row(escape(fact.name), escape(fact.found), style=None if fact.good else "bold red")
            good &= fact.good
    console.print(table)
    if not good:
        raise typer.Exit(1)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A payload, as joulegrad.encode wrote it.")],
    layout: Annotated[Path | None, typer.Option(help="The model's layout, as Layout.to_json wrote it.")] = None,
    model: Annotated[str | None, typer.Option(help="Or a callable that makes the model, as module:name.")] = None,
) -> None:
    """Take a payload apart: header, layers, bits an index and a value.

    Names and sizes of layers do not travel, so they come from --layout or --model; without, only the header is
    read. On a malformed payload, says what is wrong and at which byte, and exits with 1.
    """
    from joulegrad.wire import header
    from joulegrad.wire import inspect as take_apart

    console = Console()
    payload = _read(file)
    try:
        if layout is None and model is None:
            head = header.read(memoryview(payload))
            _facts(console, header.NAMES[head.values], head.fingerprint, len(payload))
            console.print("checksum and length are right; for the layers, give --layout or --model")
            return
        found = take_apart(payload, _layout(layout, model))
    except joulegrad.WireError as error:
        console.print(f"{type(error).__name__} at byte {error.offset}: {error}", style="bold red", highlight=False)
        raise typer.Exit(1) from None
    _facts(console, found.values, found.fingerprint, found.total_bytes)
    parts = f"header 28, indices {found.index_bytes:,}, values {found.value_bytes:,}"
    console.print(f"bytes: {parts}, buffers {found.buffer_bytes:,}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", overflow="fold", min_width=8)
    for name in ("entries", "density", "bits/index", "entropy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("coding", overflow="fold")
    for layer in found.layers:
        each = [f"{bits / layer.entries:.2f}" if layer.entries else "" for bits in (layer.bits, layer.entropy_bits)]
        density = f"{layer.entries / layer.size:.2%}" if layer.size else ""
        table.add_row(escape(layer.name), f"{layer.entries:,}", density, *each, layer.coding)
    console.print(table)
    if found.entries:
        console.print(
            f"{found.entries:,} entries: {8 * found.index_bytes / found.entries:.2f} bits an index (entropy bound "
            f"{found.entropy_bits / found.entries:.2f}), {8 * found.value_bytes / found.entries:.2f} bits a value, "
            f"{8 * found.total_bytes / found.entries:.2f} in all",
            highlight=False,
        )


def _facts(console: Console, values: str, fingerprint: str, size: int) -> None:
    console.print(f"joulegrad payload, {size:,} bytes, values {values}, layout {fingerprint}", highlight=False)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as why:
        raise typer.BadParameter(f"{file}: {why.strerror}") from None


def _layout(path: Path | None, model: str | None) -> joulegrad.Layout:
    if path is not None:
        try:
            return joulegrad.Layout.from_json(_read(path).decode())
        except ValueError as why:
            raise typer.BadParameter(f"{path}: {why}") from None
    module, _, name = (model or "").partition(":")
    sys.path.insert(0, "")  # as `python -m` does: the user's own modules
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, ValueError) as why:
        raise typer.BadParameter(f"--model {model}: {why}; expected module:callable") from None
    return joulegrad.Layout.of(made)
