"""What a reproduction should come to: a file of figures with their spread, written from results, compared with runs.

    [[configuration]]
    sweep = "cifar10-resnet18"
    sends = "CWMP(density=0.01, cost=LayerType())"
    seeds = [0, 1, 2]
    t = 2.75
    accuracy = {mean = 0.7668, spread = 0.0031}
    experiment = {…}                                # all that is not a default, but for the seed

A figure found as the mean of m seeds is as expected within

    tolerance = max(t · spread · √(1/n + 1/m), least)

the prediction interval for a mean of m after n seeds. `spread` is a standard deviation over seeds: the configuration's
own or the pooled one of all with the same network and data, whichever is larger; t is Student's, of the pooled degrees
of freedom.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from joulegrad.lab.experiment import Experiment, anywhere
from joulegrad.lab.report.runs import Found, Run
from joulegrad.lab.report.statistics import students_t
from joulegrad.lab.tables import flat

__all__ = [
    "CONFIDENCE",
    "FIGURES",
    "Check",
    "Comparison",
    "Configuration",
    "Expected",
    "compare",
    "load",
    "of",
    "write",
]

CONFIDENCE = 0.99  # of each tolerance: dozens are looked at together


class Figure(NamedTuple):
    """What is compared.

    Args:
        name: in the file.
        label: for people.
        relative: whether spreads are shares of the mean.
        least: no tolerance is smaller: what rounding on another machine may move; a share where `relative`.
    """

    name: str
    label: str
    relative: bool
    least: float

    def of(self, run: Run) -> float | None:
        """What a finished run came to: its last accuracy, or a total."""
        if self.name == "accuracy":
            return next((row["accuracy"] for row in reversed(run.rows) if row["accuracy"] is not None), None)
        return math.fsum(row[self.name] for row in run.rows)


FIGURES = (
    Figure("accuracy", "accuracy", relative=False, least=0.001),
    Figure("bytes_up", "bytes up", relative=True, least=0.002),
    Figure("bytes_down", "bytes down", relative=True, least=0.002),
    Figure("cost", "Σc, units", relative=True, least=0.002),
)


class Expected(NamedTuple):
    """A figure's mean over seeds, and the spread that its tolerance is made of; None where one seed says nothing."""

    mean: float
    spread: float | None


@dataclass(frozen=True)
class Configuration:
    """An experiment but for its seed, and what it came to.

    Args:
        sweep: the folder that its results lie in.
        sends: the operator, and what else distinguishes it there.
        experiment: all of it, with seed 0.
        seeds: that were played.
        t: Student's quantile; None where no configuration has two seeds.
        figures: by name.
    """

    sweep: str
    sends: str
    experiment: Experiment
    seeds: tuple[int, ...]
    t: float | None
    figures: Mapping[str, Expected]

    def tolerance(self, figure: Figure, seeds: int) -> float | None:
        """Of a mean over so many seeds, in the figure's own unit; None where no spread is known."""
        expected = self.figures[figure.name]
        if expected.spread is None or self.t is None:
            return None
        least = figure.least * (abs(expected.mean) if figure.relative else 1.0)
        return max(self.t * expected.spread * math.sqrt(1 / len(self.seeds) + 1 / seeds), least)


class Check(NamedTuple):
    """One figure of one configuration."""

    figure: Figure
    expected: float
    found: float
    tolerance: float | None

    @property
    def held(self) -> bool | None:
        """Whether it is as expected; None where no tolerance is known."""
        return None if self.tolerance is None else abs(self.found - self.expected) <= self.tolerance


class Comparison(NamedTuple):
    """One configuration, and what was found of it.

    Args:
        configuration: what was expected.
        seeds: finished ones, which are compared.
        partly: of those not finished: seed, rounds played.
        checks: none where nothing is finished.
    """

    configuration: Configuration
    seeds: tuple[int, ...]
    partly: tuple[tuple[int, int], ...]
    checks: tuple[Check, ...]

    @property
    def missed(self) -> list[Check]:
        """Figures outside their tolerance."""
        return [check for check in self.checks if check.held is False]


def of(found: Found) -> list[Configuration]:
    """What finished runs came to, configuration by configuration."""
    groups: dict[tuple[str, str], dict[int, Run]] = {}
    experiments: dict[tuple[str, str], Experiment] = {}
    for run in found.runs:
        if run.state != "finished":
            continue
        experiment = _seedless(run)
        key = (run.folder.resolve().parent.name, experiment.fingerprint)
        groups.setdefault(key, {}).setdefault(run.seed, run)
        experiments[key] = experiment
    if not groups:
        raise ValueError("no run is finished, so there is nothing to expect")
    names = _names(experiments)
    values = {
        key: {figure.name: [v for run in runs.values() if (v := figure.of(run)) is not None] for figure in FIGURES}
        for key, runs in groups.items()
    }
    made = []
    for key, runs in sorted(groups.items(), key=lambda item: (item[0][0], names[item[0]])):
        alike = [other for other in groups if _same_task(experiments[other], experiments[key])]
        freedom = sum(len(groups[other]) - 1 for other in alike)
        figures = {}
        for figure in FIGURES:
            if values[key][figure.name]:
                pooled = _pooled([values[other][figure.name] for other in alike], figure)
                figures[figure.name] = _expected(values[key][figure.name], pooled, figure)
        t = _short(students_t(freedom, CONFIDENCE)) if freedom else None
        made.append(Configuration(key[0], names[key], experiments[key], tuple(sorted(runs)), t, figures))
    return made


def _expected(values: list[float], pooled: float | None, figure: Figure) -> Expected:
    mean = fmean(values)
    if pooled is None:
        return Expected(mean, None)
    own = stdev(values) if len(values) > 1 else 0.0
    return Expected(mean, _short(max(own, pooled * (abs(mean) if figure.relative else 1.0))))


def _short(value: float) -> float:
    """As the file has it."""
    return float(f"{value:.3g}")


def _pooled(groups: Iterable[list[float]], figure: Figure) -> float | None:
    """√(Σ (nᵢ − 1) sᵢ² / Σ (nᵢ − 1)); None where no group has two numbers."""
    squares, freedom = 0.0, 0
    for values in groups:
        if len(values) > 1:
            unit = abs(fmean(values)) if figure.relative else 1.0
            squares += (len(values) - 1) * (stdev(values) / (unit or 1.0)) ** 2
            freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else None


def compare(found: Found, expected: Iterable[Configuration]) -> list[Comparison]:
    """Each configuration that is expected, with what was found of it."""
    runs: dict[str, list[Run]] = {}
    for run in found.runs:
        runs.setdefault(_seedless(run).fingerprint, []).append(run)
    made = []
    for configuration in expected:
        there = runs.get(configuration.experiment.fingerprint, [])
        done = {run.seed: run for run in reversed(there) if run.state == "finished"}
        partly = {run.seed: len(run.rows) for run in there if run.seed not in done}
        checks = []
        for figure in FIGURES if done else ():
            values = [value for run in done.values() if (value := figure.of(run)) is not None]
            if figure.name in configuration.figures and values:
                tolerance = configuration.tolerance(figure, len(values))
                checks.append(Check(figure, configuration.figures[figure.name].mean, fmean(values), tolerance))
        made.append(Comparison(configuration, tuple(sorted(done)), tuple(sorted(partly.items())), tuple(checks)))
    return made


def _seedless(run: Run) -> Experiment:
    return dataclasses.replace(Experiment.of(anywhere(run.header["experiment"])), seed=0)


def _same_task(a: Experiment, b: Experiment) -> bool:
    return (a.model, a.data, a.partition, a.rounds) == (b.model, b.data, b.partition, b.rounds)


def _names(experiments: Mapping[tuple[str, str], Experiment]) -> dict[tuple[str, str], str]:
    """The operator, and whatever else distinguishes it from others of its sweep."""
    settings = {key: flat(experiment.to_dict()) for key, experiment in experiments.items()}
    made = {}
    for key, own in settings.items():
        others = [settings[other] for other in settings if other[0] == key[0]]
        differing = [
            name for name in own if name != "compress" and any(other.get(name) != own[name] for other in others)
        ]
        made[key] = " ".join([str(own["compress"]), *(f"{name}={own[name]}" for name in differing)])
    return made


def write(configurations: Iterable[Configuration], file: Path) -> None:
    """The file, in TOML."""
    lines = [
        "# What the results came to, and how far a reproduction may be from it: data, written by",
        "#",
        "#     joulegrad compare results --write",
        "#",
        "# and compared with runs by the same without --write. A figure that is the mean of m seeds may differ from",
        "# `mean`, that of the n = len(seeds) here, by",
        "#",
        "#     tolerance = max(t · spread · √(1/n + 1/m), least)",
        "#",
        f"# a prediction interval of {CONFIDENCE:.0%}: spread is the standard deviation over seeds, the",
        "# configuration's own or the pooled one of all with the same network and data, whichever is larger. Where",
        "# there is none, nothing is judged.",
        "# least: " + "; ".join(f"{f.name} {100 * f.least:g} {'%' if f.relative else 'points'}" for f in FIGURES) + ".",
    ]
    defaults = Experiment().to_dict()
    for made in configurations:
        plain = {k: v for k, v in anywhere(made.experiment.to_dict()).items() if k != "seed" and v != defaults.get(k)}
        lines += [
            "", "[[configuration]]", f"sweep = {_toml(made.sweep)}", f"sends = {_toml(made.sends)}",
            f"seeds = {_toml(list(made.seeds))}",
        ]  # fmt: skip
        if made.t is not None:
            lines.append(f"t = {made.t}")
        for name, (mean, spread) in made.figures.items():
            told = {"mean": mean} if spread is None else {"mean": mean, "spread": spread}
            lines.append(f"{name} = {_toml(told)}")
        lines += ["[configuration.experiment]", *(f"{key} = {_toml(value)}" for key, value in plain.items())]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*lines, ""]), "utf-8")


def load(file: Path) -> list[Configuration]:
    """What a file expects; ValueError where it is no such file."""
    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except OSError as why:
        raise ValueError(f"{file}: {why.strerror}") from None
    except tomllib.TOMLDecodeError as why:
        raise ValueError(f"{file} is not TOML: {why}") from None
    tables = found.get("configuration", [])
    if not isinstance(tables, list) or not tables:
        raise ValueError(f"{file} expects nothing: it has no [[configuration]]; joulegrad compare --write makes them")
    try:
        return [_configuration(table) for table in tables]
    except (KeyError, TypeError) as why:
        raise ValueError(f"{file}: a [[configuration]] lacks {why}; joulegrad compare --write makes them") from None


def _configuration(table: Mapping[str, Any]) -> Configuration:
    figures = {
        figure.name: Expected(table[figure.name]["mean"], table[figure.name].get("spread"))
        for figure in FIGURES
        if figure.name in table
    }
    experiment = Experiment.of(table["experiment"])
    return Configuration(table["sweep"], table["sends"], experiment, tuple(table["seeds"]), table.get("t"), figures)


def _toml(value: Any) -> str:
    """A value as TOML has it, on one line; None has no place there, and is left out of tables."""
    if isinstance(value, Mapping):
        pairs = [(k if k.isidentifier() else json.dumps(k), _toml(v)) for k, v in value.items() if v is not None]
        return "{" + ", ".join(f"{key} = {text}" for key, text in pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
