"""What a plan comes to: in sentences, as the file of an experiment, as JSON, as a picture."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from joulegrad import profiles
from joulegrad.lab import notation
from joulegrad.lab.plan import PHASES, Plan, Range, Way
from joulegrad.profiles import readable

__all__ = ["figures", "picture", "sentences", "toml"]

WORDS = {
    "downlink": "receiving the model", "train": "training", "select": "selecting", "encode": "encoding",
    "uplink": "sending", "promotion": "waking the radio", "tail": "the radio's tails", "network": "the network",
    "aggregate": "the server",
}  # fmt: skip


def sentences(plan: Plan) -> list[str]:
    """What the figures say, plainly, the main thing first."""
    said = [_main(plan), _advice(plan), _downlink(plan), _speeds(plan), _densities(plan), _costs(plan)]
    if plan.setting.joules is not None:
        said.append(_battery(plan))
    if not plan.fits:
        said.append(
            f"Training needs {plan.needed_bytes / 1e6:.3g} MB at least, for weights, gradients, the update, what is "
            f"remembered and one example's activations; {plan.device.name} has {plan.device.ram_bytes.value / 1e6:.3g} "
            "MB. It cannot train this model as it is."
        )
    return [sentence for sentence in [*said, _grades(plan)] if sentence]


def _main(plan: Plan) -> str:
    dense, share = plan.dense, plan.touchable
    phase = max(dense.phases, key=lambda p: dense.phases[p].value)
    most = dense.phases[phase].value / dense.joules.value
    what = WORDS[phase][0].upper() + WORDS[phase][1:]
    between = f"{_percent(share.low)} to {_percent(share.high)} with the profiles at their ends"
    return (
        f"{what} is {_percent(most)} of this round; compressing the uplink saves at most {_percent(share.value)} "
        f"({between})."
    )


def _advice(plan: Plan) -> str:
    best, dense = plan.best, plan.dense
    if best is dense:
        other, shortest = max(plan.ways[1:], key=plan.saving), min(plan.ways, key=lambda way: way.bytes)
        saved = plan.saving(other)
        least = f"at best it saves {_percent(saved)} of a round"
        if saved <= 0:
            least = (
                f"of what was tried, {other.name} at {_percent(other.density)} comes closest and costs "
                f"{_percent(-saved)} more: selecting and encoding take more than fewer bytes save"
            )
        return (
            f"Compression does not pay in joules here: {least}. Time is another matter: {shortest.name} at "
            f"{_percent(shortest.density)} sends in {_seconds(shortest)}, everything in {_seconds(dense)}."
        )
    return (
        f"Recommended: {best.name} at {_percent(best.density)}, the densest that saves nearly as much as any: "
        f"{_percent(plan.saving(best))} of a round, and {_seconds(best)} to send instead of {_seconds(dense)}. Whether "
        "it learns as well, only a run can tell."
    )


def _downlink(plan: Plan) -> str:
    """Worth a word where the way down weighs more than the way up."""
    dense = plan.dense
    down = dense.phases["downlink"].value
    if "network" in dense.phases:
        down += dense.phases["network"].value + dense.phases["uplink"].value - plan.touched(dense).value
    share = down / dense.joules.value
    if share < 0.1 or share < plan.touchable.value:
        return ""
    return (
        f"Receiving the whole model is {_percent(share)} of this round, which no compression of the uplink touches; "
        'downlink = "delta" in the experiment sends only what has changed.'
    )


def _speeds(plan: Plan) -> str:
    way = plan.best if plan.best is not plan.dense else max(plan.ways[1:], key=plan.saving)
    pays, tenth = plan.break_even_speed(way), plan.speed_where_uplink_is(0.1)
    named = f"{way.name} at {_percent(way.density)}"
    said = {None: f"{named} saves no joules at any speed", math.inf: f"{named} saves joules at any speed"}.get(
        pays, f"{named} saves joules below {readable(pays or 0.0, 'bit/s')}"
    )
    if tenth is None:
        return f"{said}; at this link's joules a bit, sending is under a tenth of the round at any speed."
    if math.isinf(tenth):
        return f"{said}; sending everything is more than a tenth of the round at any speed."
    return f"{said}; sending everything is more than a tenth of the round only below {readable(tenth, 'bit/s')}."


def _densities(plan: Plan) -> str:
    parts = []
    for name, words in (("Top-K", "float32 values"), ("1-bit CWMP", "1-bit values")):
        at = plan.break_even_density(name)
        parts.append(
            f"with {words} it saves at any density" if at is None
            else f"with {words} it saves at none" if at == 0
            else f"with {words} it saves below a density of {_percent(at)}"
        )  # fmt: skip
    return f"Against sending everything, {' and '.join(parts)}."


def _costs(plan: Plan) -> str:
    low, high = plan.prices
    if high / low > 1.5:
        return f"An entry costs {1e6 * low:.3g} to {1e6 * high:.3g} µJ here, by layer."
    return (
        f"An entry costs {1e6 * low:.3g} to {1e6 * high:.3g} µJ here, by layer: so nearly alike that CWMP chooses much "
        "as Top-K does."
    )


def _battery(plan: Plan) -> str:
    def lasts(way: Way) -> str:
        found = plan.rounds_on_battery(way)
        return "" if found is None else f"{found.value:,.0f} rounds ({found.low:,.0f} to {found.high:,.0f})"

    said = f"{plan.setting.joules:,.0f} J last {lasts(plan.dense)} when everything is sent"
    if plan.best is not plan.dense:
        said += f", {lasts(plan.best)} with {plan.best.name} at {_percent(plan.best.density)}"
    return f"{said}; {plan.setting.rounds:,} are asked for."


def _grades(plan: Plan) -> str:
    found = [q for p in (plan.device, plan.link) for q in profiles.figures(p).values() if q is not None]
    counts = Counter(q.grade for q in found)
    listed = ", ".join(f"{counts[grade]} {grade}" for grade in profiles.GRADES if counts[grade])
    return (
        f"All joules are modelled. Of the {len(found)} figures of {plan.device.name} and {plan.link.name}, {listed}: "
        f"joulegrad profiles {plan.device.name} and {plan.link.name} show them."
    )


def _percent(share: float) -> str:
    """Never 0 for what is not, never 100 for what is less."""
    x = 100 * share
    shown = f"{x:.1f}" if 0.1 <= abs(x) < 99.95 or x in (0, 100) else f"{x:.1g}" if abs(x) < 0.1 else f"{x:.4g}"
    return f"{shown.removesuffix('.0')} %"


def _seconds(way: Way) -> str:
    s = way.seconds
    return readable(s, "s") if s < 120 else f"{s / 60:.3g} min" if s < 7200 else f"{s / 3600:.3g} h"


def toml(plan: Plan, model: str, data: str, command: str) -> str:
    """The recommended experiment, as a file that `joulegrad run` plays."""
    setting, best = plan.setting, plan.best
    compress = "dense" if best is plan.dense else notation.write(best.operator)
    cost = setting.cost(best.density if best is not plan.dense else 1.0, 1 if best.name == "1-bit CWMP" else 32)
    lines = [
        f"# {command}",
        f"rounds = {setting.rounds}",
        f"model = {json.dumps(model)}",
        f"compress = {json.dumps(compress, ensure_ascii=False)}",
        f"cost = {json.dumps(notation.write(cost), ensure_ascii=False)}",
        "",
        "[data]",
        f"name = {json.dumps(data)}",
        "",
        "[local]",
        f"epochs = {setting.epochs}",
    ]
    return "\n".join(lines) + "\n"


def figures(plan: Plan) -> dict[str, Any]:
    """All of it, ready for JSON; every joule is modelled."""
    return {
        "source": "modelled",
        "device": plan.device.name,
        "link": plan.link.name,
        "up_bits_per_second": plan.link.up_bits_per_second.value,
        "boundary": plan.setting.boundary,
        "entries": plan.layout.size,
        "flops_per_example": plan.rehearsal.flops,
        "samples": plan.setting.samples,
        "epochs": plan.setting.epochs,
        "rounds": plan.setting.rounds,
        "battery_joules": plan.setting.joules,
        "touchable_share": plan.touchable._asdict(),
        "break_even_density": {name: plan.break_even_density(name) for name in ("Top-K", "1-bit CWMP")},
        "tenth_below_bits_per_second": _finite(plan.speed_where_uplink_is(0.1)),
        "needed_bytes": plan.needed_bytes,
        "ram_bytes": plan.device.ram_bytes.value,
        "fits": plan.fits,
        "recommended": {"name": plan.best.name, "density": plan.best.density},
        "sentences": sentences(plan),
        "ways": [_row(plan, way) for way in plan.ways],
    }


def _row(plan: Plan, way: Way) -> dict[str, Any]:
    rounds = plan.rounds_on_battery(way)
    return {
        "name": way.name,
        "density": way.density,
        "operator": "dense" if way is plan.dense else notation.write(way.operator),
        "bytes_up": way.bytes,
        "seconds_up": way.seconds,
        "joules": {phase: found._asdict() for phase, found in way.phases.items()},
        "joules_a_round": way.joules._asdict(),
        "joules_in_all": Range(*(plan.setting.rounds * x for x in way.joules))._asdict(),
        "saves": plan.saving(way),
        "rounds_on_battery": None if rounds is None else rounds._asdict(),
        "pays_below_bits_per_second": None if way is plan.dense else _finite(plan.break_even_speed(way)),
    }


def _finite(speed: float | None) -> float | str | None:
    return "any" if speed is not None and math.isinf(speed) else speed


def picture(plan: Plan, path: Path) -> None:
    """A bar for each way, its phases side by side; a line from the least to the most that a round may cost."""
    from joulegrad.lab import pictures

    bars = {
        way.name if way is plan.dense else f"{way.name}, {_percent(way.density)}": {
            WORDS[p]: way.phases[p].value for p in PHASES if p in way.phases
        }
        for way in plan.ways
    }
    ends = [(way.joules.low, way.joules.high) for way in plan.ways]
    pictures.bars(bars, ends, "joules a client's round, modelled", path)
