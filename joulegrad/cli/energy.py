"""Commands about energy: profiles, plan."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from joulegrad import profiles as data
from joulegrad.cli import display
from joulegrad.cli.app import app
from joulegrad.cli.mistakes import mistakes

AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]

PROFILES_EXAMPLES = """\b
Examples:
  joulegrad profiles                         devices and links, in a line each
  joulegrad profiles rpi4                    value, range, grade and source
  joulegrad profiles rpi4 --toml > my.toml   to begin a profile of your own
  joulegrad profiles my.toml
"""


@app.command(epilog=PROFILES_EXAMPLES)
def profiles(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME|FILE", help="Of profiles, or files of your own.")
    ] = None,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print a profile as its file.")] = False,
    as_json: AsJson = False,
) -> None:
    """List devices and links, or explain their figures: value, range, grade and source.

    Grades: measured with a meter; published, and read in the source that is named; recalled from it; assumed.
    """
    console = Console()
    with mistakes():
        found = [_profile(name) for name in names or []]
        if as_toml and len(found) != 1:
            raise ValueError("--toml prints one profile: name one")
        if as_toml:
            sys.stdout.write(data.to_toml(found[0]))
        elif as_json:
            sys.stdout.write(json.dumps([_plain(p) for p in found or _all()], ensure_ascii=False) + "\n")
        elif not found:
            _list(console)
        for profile in found if not (as_toml or as_json) else []:
            _explain(console, profile)


def _profile(name: str) -> data.DeviceProfile | data.LinkProfile:
    if name.endswith(".toml"):
        return data.read(name)
    if name in data.links():
        return data.link(name)
    if name in data.devices():
        return data.device(name)
    there = [*data.devices(), *data.links()]
    raise ValueError(
        f"profile {name!r} is not known{data.nearest(name, there)} There are: {', '.join(there)}; or give the path of "
        "a .toml file"
    )


def _all() -> list[data.DeviceProfile | data.LinkProfile]:
    return [*map(data.device, data.devices()), *map(data.link, data.links())]


def _list(console: Console) -> None:
    wide = console.width >= 100
    shown = display.table("device", *(["busy", "training", "memory"] if wide else ["busy", "training"]))
    for device in map(data.device, data.devices()):
        figures = [device.busy_watts, device.train_flops_per_second, *([device.ram_bytes] if wide else [])]
        shown.add_row(_named(device), *(str(q) for q in figures))
    console.print(shown)
    shown = display.table("link", *(["up", "nJ/bit up", "nJ/bit down"] if wide else ["up", "nJ/bit up"]))
    for link in map(data.link, data.links()):
        each = [link.up_joules_per_bit(), *([link.down_joules_per_bit()] if wide else [])]
        speed = data.readable(link.up_bits_per_second.value, "bit/s")
        shown.add_row(_named(link), speed, *(f"{1e9 * joules:,.3g}" for joules in each))
    console.print(shown)
    display.line(console, "joulegrad profiles NAME explains one: every figure with its range, its grade and its source")


def _named(profile: data.DeviceProfile | data.LinkProfile) -> str:
    return f"{escape(profile.name)}\n[dim]{escape(profile.summary)}[/dim]"


def _explain(console: Console, profile: data.DeviceProfile | data.LinkProfile) -> None:
    console.print(f"[bold]{escape(profile.name)}[/bold]  {escape(profile.summary)}", highlight=False)
    known = data.fields(type(profile))
    if console.width >= 110:
        shown = display.table("figure", "value", "range", "grade")
        shown.add_column("source", overflow="fold", ratio=1)
        for name, q in data.figures(profile).items():
            what = f"{name}\n[dim]{escape(known[name].means)}[/dim]"
            shown.add_row(what, *(["absent", "", "", ""] if q is None else [*_cells(q), escape(q.source)]))
        console.print(shown)
        return
    for name, q in data.figures(profile).items():
        value, between, grade = ("absent", "", "") if q is None else _cells(q)
        facts = "  ".join(part for part in (value, between, grade) if part)
        console.print(f"{name}  [bold]{facts}[/bold]", highlight=False)
        console.print(f"  {escape(known[name].means)}", highlight=False, style="dim")
        if q is not None:
            console.print(f"  {escape(q.source)}", highlight=False, style="dim")


def _cells(q: data.Quantity) -> tuple[str, str, str]:
    exact = q.low == q.high
    between = "exact" if exact else f"{data.readable(q.low, q.unit)} to {data.readable(q.high, q.unit)}"
    return str(q), between, q.grade


def _plain(profile: data.DeviceProfile | data.LinkProfile) -> dict[str, Any]:
    figures = {
        name: None if q is None
        else {"value": q.value, "unit": q.unit, "range": [q.low, q.high], "grade": q.grade, "source": q.source}
        for name, q in data.figures(profile).items()
    }  # fmt: skip
    kind = "device" if isinstance(profile, data.DeviceProfile) else "link"
    return {"kind": kind, "name": profile.name, "summary": profile.summary, **figures}


PLAN_EXAMPLES = """\b
Examples:
  joulegrad plan resnet18 --device rpi4 --link wifi-rpi4
  joulegrad plan resnet18 --device phone --link lte-2012 --battery "10 Wh"
  joulegrad plan mlp --data digits --device esp32 --link wifi-esp32
  joulegrad plan mine:net --shape 1x28x28 --classes 10 --device mine.toml
  joulegrad plan vgg11 --boundary system --toml vgg.toml --picture vgg.png
"""
DATA = {
    "digits": ((1, 8, 8), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "fashion-mnist": ((1, 28, 28), 10),
}


@app.command(epilog=PLAN_EXAMPLES)
def plan(
    model: Annotated[str, typer.Argument(help="A built-in name, or module:callable.")],
    device: Annotated[str, typer.Option(metavar="NAME|FILE", help="Who trains.")] = "rpi4",
    link: Annotated[str, typer.Option(metavar="NAME|FILE", help="Its way to the server.")] = "wifi-rpi4",
    data_name: Annotated[
        str, typer.Option("--data", metavar="NAME", help="Whose inputs and classes the model is made for.")
    ] = "cifar10",
    shape: Annotated[str | None, typer.Option(metavar="3x32x32", help="Of one input, instead of --data's.")] = None,
    classes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Instead of --data's.")] = None,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Examples that the client has.")] = 500,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Passes over them a round.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="In which the client takes part.")] = 100,
    battery: Annotated[str | None, typer.Option(metavar="JOULES", help='What there is, as "10 Wh" or "40 kJ".')] = None,
    speed: Annotated[
        str | None, typer.Option(metavar="SPEED", help='Of the link, as "2 Mbit/s" [default: its usual one].')
    ] = None,
    density: Annotated[
        list[float] | None,
        typer.Option(metavar="SHARE", help="At which to compress; repeatable [default: .1 .01 .001]."),
    ] = None,
    boundary: Annotated[
        str, typer.Option(metavar="device|system", help="Whose joules count: the client's, or all.")
    ] = "device",
    layers: Annotated[bool, typer.Option("--layers", help="Also what an entry of each layer costs.")] = False,
    toml: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the recommended experiment here.")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: a .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a round would cost, and whether compression pays, before anything is built.

    No data, no training: operations are counted, bytes expected, and joules come from the profiles. Takes seconds.
    """
    from joulegrad import Layout
    from joulegrad.lab import models, verdict
    from joulegrad.lab import plan as planning
    from joulegrad.lab.rehearsal import rehearse

    console = Console()
    with mistakes():
        inputs, outputs = _inputs(data_name, shape, classes)
        setting = planning.Setting(
            device, link, samples, epochs, rounds,
            up_bits_per_second=None if speed is None else data.parsed(speed, "bit/s"),
            joules=None if battery is None else data.parsed(battery, "J"),
            boundary=boundary, densities=tuple(density or (0.1, 0.01, 0.001)),
        )  # fmt: skip
        if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"{picture} is written as .png, .svg or .pdf")
        net = models.build(model, inputs, outputs)
        layout = Layout.of(net)
        with Console(stderr=True).status("one batch of noise …"):
            found = planning.Plan(setting, layout, rehearse(net, layout, inputs, outputs))
        name = data_name if data_name in DATA and shape is None and classes is None else "digits"
        text = verdict.toml(found, model, name, _typed(model))
        if toml is not None:
            toml.write_text(text)
        if picture is not None:
            verdict.picture(found, picture)
        if as_json:
            sys.stdout.write(json.dumps({"model": model, **verdict.figures(found), "toml": text}) + "\n")
            return
        display.plan(console, model, found)
        if layers:
            display.breakdown(console, setting.cost(sorted(setting.densities)[len(setting.densities) // 2]), layout)
        for sentence in verdict.sentences(found):
            console.print(escape(sentence), highlight=False, width=min(console.width, 100))
        if toml is None:
            console.print()
            display.line(console, text.rstrip())
    for path, what in ((toml, "the recommended experiment"), (picture, "picture")):
        if path is not None:
            display.line(console, f"{what}: {path}")


def _inputs(name: str, shape: str | None, classes: int | None) -> tuple[tuple[int, ...], int]:
    if name not in DATA:
        raise ValueError(
            f"data {name!r} is none of {', '.join(DATA)}{data.nearest(name, DATA)} For your own, give --shape and "
            "--classes"
        )
    known, outputs = DATA[name]
    if shape is None:
        return known, classes or outputs
    sides = shape.lower().replace("×", "x").replace(",", "x").split("x")
    if not all(side.strip().isdigit() and int(side) > 0 for side in sides):
        raise ValueError(f"--shape {shape}: expected whole numbers, such as 3x32x32, or 30 for so many features")
    return tuple(int(side) for side in sides), classes or outputs


def _typed(model: str) -> str:
    """The command as it was typed."""
    words = sys.argv[1:]
    return f"joulegrad {shlex.join(words)}" if words[:1] == ["plan"] else f"joulegrad plan {shlex.quote(model)}"
