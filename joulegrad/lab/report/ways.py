"""Runs put together: seeds make a way, densities a family, and only what was learned from the same data is compared."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from joulegrad.lab.report.runs import Run
from joulegrad.lab.tables import flat

__all__ = ["Setting", "Way", "names", "settings"]

KNOBS = ("density", "k", "joules", "at")  # how much is sent: the points of one curve
SAME_DATA = re.compile(r"data\.|partition$|cost$")  # what runs must share to be compared


@dataclass(frozen=True)
class Way:
    """Runs that differ in their seed alone.

    Args:
        family: the operator without its knobs, and what else distinguishes it.
        knob: how much it sends: "density=0.01"; empty if it has no such number.
        runs: one for each seed, finished ones first to stay where two have the same.
    """

    family: str
    knob: str
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """Both."""
        return f"{self.family}, {self.knob}" if self.knob else self.family

    @property
    def compared(self) -> tuple[Run, ...]:
        """Those that are finished; where none is, all."""
        done = tuple(run for run in self.runs if run.state == "finished")
        return done or self.runs

    @property
    def finished(self) -> bool:
        """Whether any is."""
        return any(run.state == "finished" for run in self.runs)


@dataclass(frozen=True)
class Setting:
    """Ways whose accuracies may be compared: the same data, divided alike, at the same prices.

    Args:
        name: what distinguishes it from other settings; empty if there is one.
        ways: in the order in which they began.
        doubles: runs that were left out, as another played the same.
    """

    name: str
    ways: tuple[Way, ...]
    doubles: tuple[Run, ...] = ()

    @property
    def families(self) -> list[str]:
        """Names of the families, in order."""
        return list(dict.fromkeys(way.family for way in self.ways))

    def counterpart(self, way: Way, family: str) -> Way:
        """The way of a family that sends as much; where none does, the one that sent most."""
        others = [other for other in self.ways if other.family == family]
        same = [other for other in others if other.knob == way.knob]
        if not same:
            count = way.knob.partition(",")[0]
            same = [other for other in others if other.knob.partition(",")[0] == count]
        return same[0] if same else max(others, key=lambda other: other.runs[0].rows[0]["entries"])


def settings(runs: Iterable[Run]) -> list[Setting]:
    """All runs, put together.

    A family is an operator but for its knobs, `ErrorFeedback(CWMP)`; arguments are named where families would else
    have the same name.
    """
    runs = list(runs)
    given = [flat(run.header["experiment"]) for run in runs]
    keys = dict.fromkeys(key for found in given for key in found)
    differing = [key for key in keys if len({repr(found.get(key)) for found in given}) > 1]
    shared = [key for key in differing if SAME_DATA.match(key)]
    others = [key for key in differing if key not in shared and key not in ("compress", "seed")]
    texts = list(dict.fromkeys(_text(run) for run in runs))
    short = names(texts)
    made: dict[str, dict[tuple[str, str], dict[int, Run]]] = {}
    doubles: dict[str, list[Run]] = {}
    for run, found in zip(runs, given, strict=True):
        name = ", ".join(f"{key}={found.get(key)}" for key in shared)
        family, knob = short[_text(run)]
        family = " ".join([family, *(f"{key}={found.get(key)}" for key in others)])
        seeds = made.setdefault(name, {}).setdefault((family, knob), {})
        kept = seeds.setdefault(run.seed, run)
        if kept is not run:
            if len(run.rows) > len(kept.rows):
                seeds[run.seed], run = run, kept
            doubles.setdefault(name, []).append(run)
    return [
        Setting(
            name,
            tuple(Way(family, knob, tuple(seeds[s] for s in sorted(seeds))) for (family, knob), seeds in ways.items()),
            tuple(doubles.get(name, ())),
        )
        for name, ways in made.items()
    ]


def _text(run: Run) -> str:
    compress = run.header["experiment"].get("compress", "dense")
    return " | ".join(map(str, compress)) if isinstance(compress, list) else str(compress)


def names(texts: list[str]) -> dict[str, tuple[str, str]]:
    """Of each operator as text: the name of its family, and its knobs."""
    plain = {text: _shortened(text, costs=False) for text in texts}
    full = {text: _shortened(text, costs=True) for text in texts}
    longer: Mapping[str, set[str]] = {}
    longer = {name: {full[t][0] for t in texts if plain[t][0] == name} for name, _ in plain.values()}
    return {text: plain[text] if len(longer[plain[text][0]]) == 1 else full[text] for text in texts}


def _shortened(text: str, *, costs: bool) -> tuple[str, str]:
    """The operator without its knobs (and costs), and the knobs.

    Example:
        >>> _shortened("ErrorFeedback(Quantized(CWMP(density=0.02, cost=LayerType()), bits=1))", costs=False)
        ('ErrorFeedback(Quantized(CWMP, bits=1))', 'density=0.02')
        >>> _shortened("CWMP(density=0.02, cost=LayerType())", costs=True)
        ('CWMP(cost=LayerType)', 'density=0.02')
    """
    if text == "dense":
        return "everything", ""
    knobs: list[str] = []
    names = []
    for part in text.split(" | "):
        try:
            tree = ast.parse(part, mode="eval").body
        except SyntaxError:
            return text, ""
        names.append(_written(tree, costs, knobs))
    return " | ".join(dict.fromkeys(names)), ", ".join(dict.fromkeys(knobs))


def _written(node: ast.expr, costs: bool, knobs: list[str]) -> str:
    if not isinstance(node, ast.Call):
        return ast.unparse(node)
    kept = [_written(argument, costs, knobs) for argument in node.args]
    for keyword in node.keywords:
        value: Any = _written(keyword.value, True, knobs) if keyword.arg == "cost" else None
        if keyword.arg in KNOBS and isinstance(keyword.value, ast.Constant):
            if keyword.value.value is not None:
                knobs.append(f"{keyword.arg}={ast.unparse(keyword.value)}")
        elif keyword.arg != "cost":
            kept.append(f"{keyword.arg}={_written(keyword.value, costs, knobs)}")
        elif costs:
            kept.append(f"cost={value}")
    inside = ", ".join(kept)
    return f"{ast.unparse(node.func)}({inside})" if inside else ast.unparse(node.func)
