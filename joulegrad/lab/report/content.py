"""All that a report shows, as numbers and words: made once, drawn by the page and by the figures for papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import fmean
from typing import Any

import joulegrad
from joulegrad.lab.report import comparison
from joulegrad.lab.report.runs import Found, Run
from joulegrad.lab.report.spent import AXES, Axis, ledger, sources
from joulegrad.lab.report.statistics import front
from joulegrad.lab.report.ways import Setting, Way, settings
from joulegrad.lab.tables import flat

__all__ = ["Content", "content"]

Content = dict[str, Any]  # of JSON's types
POINTS = 300  # of a curve, at most
CELLS = 60_000  # of all heat maps together, about
COLUMNS = (10, 80)  # of a heat map: at least, at most


def content(found: Found, *, against: str | None = None, title: str = "joulegrad report") -> Content:
    """Everything, as JSON has it.

    Args:
        found: what was read.
        against: the family that others are compared with; None: Top-K if it is there, else the first.
        title: of the page.
    """
    groups = settings(found.runs)
    usable = [axis for axis in AXES if any(axis.spent(run.rows) for run in found.runs)]
    layers = sum(
        len(run.header.get("layers", ()))
        for run in {way.runs[0].folder: way.runs[0] for group in groups for way in group.ways}.values()
    )
    columns = min(max(CELLS // max(layers, 1), COLUMNS[0]), COLUMNS[1])
    return {
        "title": title,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": joulegrad.__version__,
        "axes": [_axis(axis, axis in usable, found.runs) for axis in AXES],
        "settings": [_setting(group, usable, columns, against) for group in groups],
        "runs": [_run(run) for run in found.runs],
        "begun": [[str(folder), said] for folder, said in found.begun],
        "broken": [[str(folder), why] for folder, why in found.broken],
        "missing": found.missing,
        "doubles": [str(run.folder) for group in groups for run in group.doubles],
        "common": _common(found.runs),
        "provenance": _provenance(found.runs),
    }


def _axis(axis: Axis, usable: bool, runs: Sequence[Run]) -> Content:
    source = axis.source or sources(row for run in runs for row in run.rows)
    return {
        "key": axis.key, "title": axis.title, "label": axis.label, "unit": axis.unit, "source": source,
        "absent": None if usable else axis.absent or "not in these runs",
    }  # fmt: skip


def _setting(group: Setting, axes: Sequence[Axis], columns: int, against: str | None) -> Content:
    families = group.families
    baseline = comparison.baseline(families, against)
    ways = [_way(way, axes, columns, families) for way in group.ways]
    return {
        "name": group.name,
        "families": families,
        "baseline": baseline,
        "ways": ways,
        "fronts": {axis.key: _front(ways, axis.key) for axis in axes},
        "table": {axis.key: comparison.table(group, axis, baseline) for axis in axes},
        "targets": comparison.targets(group),
        "volumes": {axis.key: comparison.volumes(group, axis, baseline) for axis in axes},
        "data": _data(group.ways[0].runs[0]),
    }


def _front(ways: Sequence[Content], axis: str) -> list[int]:
    """The ways, of those finished, that no other dominates."""
    places = [i for i, way in enumerate(ways) if way["finished"] and way["end"].get(axis) and way["end"]["accuracy"]]
    points = [(ways[i]["end"][axis]["mean"], ways[i]["end"]["accuracy"]["mean"]) for i in places]
    return [places[i] for i in front(points)]


def _way(way: Way, axes: Sequence[Axis], columns: int, families: list[str]) -> Content:
    runs = way.compared
    rounds = min(len(run.rows) for run in runs)
    kept = _thinned([t for t in range(rounds) if all(run.rows[t]["accuracy"] is not None for run in runs)], POINTS)
    accuracies = [[run.rows[t]["accuracy"] for run in runs] for t in kept]
    end: Content = {"accuracy": _over_seeds([accuracy for run in runs if (accuracy := last(run)) is not None])}
    spent: Content = {}
    for axis in axes:
        totals = [axis.spent(run.rows) for run in runs]
        if all(total is not None for total in totals):
            spent[axis.key] = [_digits(fmean(total[t] for total in totals if total)) for t in kept]
            end[axis.key] = _over_seeds([total[-1] for total in totals if total])
    return {
        "name": way.name, "family": families.index(way.family), "knob": way.knob,
        "seeds": [run.seed for run in runs], "finished": way.finished,
        "left_out": len(way.runs) - len(runs), "rounds_played": [len(run.rows) for run in runs],
        "rounds_asked": runs[0].rounds, "clients": _sampled(runs),
        "rounds": [t + 1 for t in kept],
        "accuracy": {
            "mean": [_digits(fmean(each)) for each in accuracies],
            "low": [_digits(min(each)) for each in accuracies],
            "high": [_digits(max(each)) for each in accuracies],
        },
        "spent": spent,
        "end": end,
        "layers": _layers(runs, rounds, columns),
        "bits": _bits(runs),
        "ledger": _ledger(runs), "sending": _sending(end),
    }  # fmt: skip


def last(run: Run) -> float | None:
    """The accuracy at the last evaluation."""
    return next((row["accuracy"] for row in reversed(run.rows) if row["accuracy"] is not None), None)


def _sampled(runs: Sequence[Run]) -> float | None:
    """Clients that trained, over all rounds of a run: what a total is divided by for a client-round."""
    known = [sum(len(row["clients"]) for row in run.rows) for run in runs if all("clients" in row for row in run.rows)]
    return fmean(known) if len(known) == len(runs) else None


def _over_seeds(values: Sequence[float]) -> Content | None:
    if not values:
        return None
    return {"mean": _digits(fmean(values)), "low": _digits(min(values)), "high": _digits(max(values)), "n": len(values)}


def _layers(runs: Sequence[Run], rounds: int, columns: int) -> Content | None:
    """Density by layer and round, as the mean over seeds and over the rounds of a column; and how many starve."""
    names = runs[0].header.get("layers")
    if not names or not all(row.get("layer_entries") for run in runs for row in run.rows[:rounds]):
        return None
    sizes = list(names.values())
    edges = [round(i * rounds / min(columns, rounds)) for i in range(min(columns, rounds) + 1)]
    blocks = list(pairwise(edges))

    def density(layer: int, first: int, stop: int) -> float | None:
        known = [d[layer] for run in runs for row in run.rows[first:stop] if (d := row.get("layer_density"))]
        return _digits(fmean(known), 2) if known else None

    starved = [fmean(row["layer_entries"].count(0) for run in runs for row in run.rows[a:b]) for a, b in blocks]
    never = [n for i, n in enumerate(names) if not any(row["layer_entries"][i] for run in runs for row in run.rows)]
    return {
        "names": list(names), "sizes": sizes, "rounds": [[a + 1, b] for a, b in blocks],
        "density": [[density(layer, a, b) for a, b in blocks] for layer in range(len(sizes))],
        "starved": [_digits(n) for n in starved], "never": never,
    }  # fmt: skip


def _bits(runs: Sequence[Run]) -> Content | None:
    """Bits an entry: of its index, of its value, of all else; and what its index would take at the entropy bound."""
    rows = [row for run in runs for row in run.rows]
    entries = sum(row["entries"] for row in rows)
    if not entries or not all("index_bytes" in row for row in rows):
        return None
    each = {name: 8 * sum(row[name] for row in rows) / entries for name in ("index_bytes", "value_bytes", "bytes_up")}
    bound = 8 * math.fsum(row["entropy_bytes"] for row in rows) / entries
    index, value, total = each["index_bytes"], each["value_bytes"], each["bytes_up"]
    return {
        "index": _digits(index),
        "value": _digits(value),
        "rest": _digits(total - index - value),
        "bound": _digits(bound),
    }


def _sending(end: Content) -> float | None:
    """The uplink's share of all joules: what sending less could save at most."""
    uplink, everything = end.get("uplink_joules"), end.get("all_joules")
    return _digits(uplink["mean"] / everything["mean"]) if uplink and everything and everything["mean"] else None


def _ledger(runs: Sequence[Run]) -> list[Content] | None:
    """Joules of a run by phase and source, as the mean over seeds; None where a round's is not known."""
    books = [[book for row in run.rows if (book := ledger(row)) is not None] for run in runs]
    if any(len(kept) < len(run.rows) for kept, run in zip(books, runs, strict=True)):
        return None
    lines = dict.fromkeys(line for kept in books for book in kept for line in book)
    found = []
    for phase, source in lines:
        each = [[book.get((phase, source), 0.0) for book in kept] for kept in books]
        known = all(joules is not None for kept in each for joules in kept)
        mean = fmean(math.fsum(joules or 0.0 for joules in kept) for kept in each)
        found.append({"phase": phase, "source": source, "joules": _digits(mean) if known else None})
    return found


def _data(run: Run) -> Content:
    """Who has how many examples of which class, as the first run's header says."""
    return {"counts": run.header.get("class_counts"), "clients": run.header.get("clients"), "seed": run.seed}


def _run(run: Run) -> Content:
    at = last(run)
    return {
        "folder": str(run.folder), "state": run.state, "rounds": len(run.rows), "asked": run.rounds, "seed": run.seed,
        "compress": str(run.header["experiment"].get("compress")), "accuracy": at, "notes": list(run.notes),
        "bytes_up": sum(row["bytes_up"] for row in run.rows), "cost": math.fsum(row["cost"] for row in run.rows),
        "started": run.header.get("started"), "seconds": _seconds(run),
    }  # fmt: skip


def _seconds(run: Run) -> float | None:
    known = [row.get("seconds", {}).get("round") for row in run.rows]
    return None if None in known else round(math.fsum(known), 1)


def _common(runs: Sequence[Run]) -> dict[str, str]:
    """Settings that all runs share."""
    return _shared(runs, lambda run: flat(run.header["experiment"]))


def _provenance(runs: Sequence[Run]) -> dict[str, str]:
    """Versions, commit and machine; where runs differ, all that there are."""
    keys = ("commit", "uncommitted_changes", "python", "machine", "gpu", "device", "kernels")
    found: dict[str, str] = {}
    for read in (*((key, lambda run, key=key: run.header.get(key)) for key in keys),):
        values = dict.fromkeys(str(read[1](run)) for run in runs if read[1](run) is not None)
        if values:
            found[read[0].replace("_", " ")] = "; ".join(values)
    for package in dict.fromkeys(name for run in runs for name in run.header.get("versions") or ()):
        values = dict.fromkeys(str((run.header.get("versions") or {}).get(package)) for run in runs)
        found[package] = "; ".join(value for value in values if value != "None") or "not installed"
    return found


def _shared(runs: Sequence[Run], of: Callable[[Run], Mapping[str, Any]]) -> dict[str, str]:
    all_of = [of(run) for run in runs]
    return {
        key: "default" if value is None else str(value)
        for key, value in (all_of[0] if all_of else {}).items()
        if len({repr(found.get(key)) for found in all_of}) == 1
    }


def _thinned(places: list[int], most: int) -> list[int]:
    """So many of them at most, evenly, with the first and the last."""
    if len(places) <= most:
        return places
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]


def _digits(value: float, n: int = 5) -> float:
    """So many significant digits: what a picture can show."""
    return float(f"{value:.{n}g}")
