"""The command calibrate: what this device's work costs, measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from joulegrad.cli import display
from joulegrad.cli.app import app
from joulegrad.cli.mistakes import MISTAKE, NO_METER, WRONG, say

EXAMPLES = """\b
Examples:
  joulegrad calibrate --device cuda -o h200.toml
  joulegrad calibrate -o mine.toml --like rpi5   the rest as of that profile
  joulegrad calibrate -o mine.toml --send 192.168.1.2:9000
  joulegrad plan --device ./mine.toml            then: plan with it

\b
Exit codes: 0 a profile was written; 1 the meter cannot tell; 2 a mistake in
the arguments; 4 there is no meter here, or it failed.
"""


@app.command(epilog=EXAMPLES)
def calibrate(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The profile to write, a .toml.")],
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="What is calibrated.")] = "cpu",
    meter: Annotated[
        str | None, typer.Option(metavar="NAME", help="nvml, rapl, ina3221 or pi-pmic [default: what sees the device].")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="What is not measured is as here [default: server-gpu, or rpi5]."),
    ] = None,
    precision: Annotated[
        str, typer.Option(metavar="float32|tf32|bfloat16", help="Of products and of training.")
    ] = "float32",
    seconds: Annotated[float, typer.Option(help="Of each window; 5 to 10 for a GPU.")] = 5.0,
    repeats: Annotated[int, typer.Option(min=1, help="How often each kind of work is measured.")] = 3,
    limit: Annotated[float | None, typer.Option(help="Begin no window that would end after so many seconds.")] = None,
    send: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Also measure sending, to a socket that swallows all.")
    ] = None,
) -> None:
    """Measure what this device's work costs, and write a profile of it.

    Products, convolutions, memory, cache and rest are measured and fitted; training steps, selection, scatter and
    encoding are foretold by the fit, and measured to see how far off it is. Beside the profile lies a report, in JSON:
    every window, the fit, the predictions. Both are written anew after each window. What the meter cannot tell is
    refused.
    """
    import torch

    from joulegrad import profiles
    from joulegrad.energy import NoMeter
    from joulegrad.lab import calibrate as calibration

    console = Console()
    try:
        if device not in ("cpu", "cuda"):
            raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}")
        if precision not in (allowed := ("float32", "tf32", "bfloat16")):
            raise ValueError(f"precision {precision!r} is none of {', '.join(allowed)}")
        if output.suffix != ".toml":
            raise ValueError(f"{output}: a profile is a .toml file")
        other = profiles.device(like or ("server-gpu" if device == "cuda" else "rpi5"))
        watching = calibration.meter_of(device, meter)
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device 'cuda' was asked for, and torch finds no GPU that it can use")
        machine, name, ram_bytes = calibration.machine_of(device, precision, other)
        found = calibration.Calibration(machine, name, ram_bytes, watching.source)
        output.parent.mkdir(parents=True, exist_ok=True)
        display.line(console, f"{name}, measured by {watching.source}: windows of {seconds:g} s")

        def seen(window: Any) -> None:
            told = f"{window.name}: {window.joules:.4g} J in {window.seconds:.2f} s, {window.watts:.4g} W"
            display.line(console, told)

        def kept() -> None:
            """What is known so far, in files."""
            told = json.dumps(calibration.report(found), indent=1, allow_nan=False)
            output.with_suffix(".json").write_text(told + "\n")
            if found.fit is not None:
                output.write_text(profiles.to_toml(calibration.profile(found, other, output.stem)))

        calibration.calibrate(
            found, watching, seconds=seconds, repeats=repeats, limit=limit, send=send, seen=seen, kept=kept
        )
    except NoMeter as why:
        say(f"not measured: {why}")
        raise typer.Exit(NO_METER) from None
    except ValueError as why:
        say(str(why))
        raise typer.Exit(MISTAKE) from None
    except OSError as why:
        say(f"{why.filename}: {why.strerror}" if why.filename else str(why))
        raise typer.Exit(WRONG) from None
    _told(console, found)
    for work, reason in found.failed.items():
        say(f"{work} could not be measured: {reason}")
    if found.fit is None:
        say(f"no fit: {found.why}; the windows are in {output.with_suffix('.json')}")
        raise typer.Exit(WRONG)
    figures = zip(profiles.figures(profiles.device(output)).items(), profiles.figures(other).values(), strict=True)
    if same := [key for (key, figure), as_there in figures if figure == as_there]:
        display.line(console, f"not measured, and as in {other.name}: {', '.join(same)}")
    told = f"profile: {output}; every window, the fit and the predictions: {output.with_suffix('.json')}"
    display.line(console, told)


def _told(console: Console, found: Any) -> None:
    """The fit and its test, as tables."""
    from joulegrad.lab.calibrate import SHOWN

    if found.fit is None:
        return
    shown = display.table("what costs", "each", "95 %", "unit")
    for name, c in found.fit.coefficients.items():
        factor, unit = SHOWN[name]
        if c.joules is None:
            shown.add_row(f"{name}: {c.why}", "–", f"< {factor * c.high:.3g}", unit)
        else:
            shown.add_row(name, f"{factor * c.joules:.4g}", f"{factor * c.low:.4g} … {factor * c.high:.4g}", unit)
    console.print(shown)
    worst = max((abs(residual) for _, residual in found.fit.residuals), default=0.0)
    display.line(
        console,
        f"worst residual {worst:.1%}, spread of the same work {found.fit.spread:.1%}, condition "
        f"{found.fit.condition:.3g}, misfit {found.fit.misfit:.2g}",
    )
    tested = display.table("not fitted on", "measured J", "foretold J", "95 %", "off by", "a ledger: P_busy · t")
    for p in found.predictions():
        measured = f"{p.measured:.4g} ± {p.measured_error:.2g}"
        ledger = "–" if found.busy_watts is None else f"{found.busy_watts * p.seconds:.4g}"
        tested.add_row(p.name, measured, f"{p.predicted:.4g}", f"{p.low:.4g} … {p.high:.4g}", f"{p.error:+.1%}", ledger)
    console.print(tested)
