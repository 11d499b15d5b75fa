"""Ways against a baseline: at equal accuracy what each costs, at equal cost what each learned, and what both say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from joulegrad.lab.naming import nearest
from joulegrad.lab.report.runs import Run
from joulegrad.lab.report.spent import Axis
from joulegrad.lab.report.statistics import (
    Interval,
    difference,
    first_to_reach,
    interval,
    ratio,
    verdict,
    volume,
    within,
)
from joulegrad.lab.report.ways import Setting, Way

__all__ = ["BOTH_REACH", "baseline", "table", "targets", "volumes"]

BOTH_REACH = "both"
STEPS = (0.01, 0.02, 0.05, 0.1)  # between accuracies to choose from
CHOICES = 6
BEYOND = 1.1  # times the largest cost: where the plane of the hypervolume ends


def baseline(families: list[str], against: str | None) -> str:
    """The family that others are compared with: the one asked for, else Top-K, else the first.

    Example:
        >>> baseline(["everything", "TopK", "CWMP"], None)
        'TopK'
    """
    if against is None:
        return next((name for name in families if name.split()[0] == "TopK"), families[0])
    if against not in families:
        there = ", ".join(families)
        raise ValueError(f"no runs are called {against!r}{nearest(against, families)}; there are: {there}")
    return against


def targets(group: Setting) -> list[float]:
    """Round accuracies that some ways reach, up to the highest."""
    best = [_best(run) for way in group.ways for run in way.compared]
    if not best:
        return []
    low, high = min(best), max(best)
    step = next((step for step in STEPS if (high - low) / step <= CHOICES), STEPS[-1])
    first, stop = math.floor(low / step), math.floor(high / step)
    return [round(i * step, 4) for i in range(max(first, 1), stop + 1)][-CHOICES:]


def table(group: Setting, axis: Axis, against: str) -> list[dict[str, Any]]:
    """A row for each way: where it ended, and how it compares with its counterpart among the baseline's ways."""
    rows = []
    for way in group.ways:
        other = group.counterpart(way, against)
        rows.append(
            {"way": way.name, "baseline": other.name, "seeds": len(way.compared)}
            | _row(way, other, axis, targets(group))
        )
    return rows


def _row(way: Way, other: Way, axis: Axis, choices: list[float]) -> dict[str, Any]:
    ours, theirs = _curves(way, axis), _curves(other, axis)
    ends = {seed: accuracy[-1] for seed, (accuracy, _) in ours.items()}
    row: dict[str, Any] = {"accuracy": _plain(interval(list(ends.values())) if ends else None)}
    totals = {seed: spent[-1] for seed, (_, spent) in ours.items()}
    row["spent"] = _plain(interval(list(totals.values())) if totals else None)
    if way is other or not ours or not theirs:
        return row | {"same": way is other, "at_accuracy": {}, "at_cost": None}
    seeds = ours.keys() & theirs.keys()
    mine, yours = ({s: c[s] for s in seeds} or c for c in (ours, theirs))
    target = min(max(accuracy) for accuracy, _ in [*mine.values(), *yours.values()])
    budget = min(spent[-1] for _, spent in [*mine.values(), *yours.values()])
    at_accuracy = {BOTH_REACH: _reaching(mine, yours, target)}
    for choice in choices:
        at_accuracy[f"{choice:g}"] = _reaching(mine, yours, choice)
    afforded = [{seed: within(a, spent, budget) for seed, (a, spent) in curves.items()} for curves in (mine, yours)]
    learned = [{seed: a for seed, a in each.items() if a is not None} for each in afforded]
    gain = difference(learned[0], learned[1]) if learned == afforded else None
    cost = at_accuracy[BOTH_REACH]["interval"]
    return row | {
        "same": False,
        "at_accuracy": {key: found | {"interval": _plain(found["interval"])} for key, found in at_accuracy.items()},
        "at_cost": {
            "budget": budget, "ours": _mean(learned[0], mine), "theirs": _mean(learned[1], yours),
            "interval": _plain(gain),
        },
        "verdict": verdict(cost, gain).words if gain is not None else "no round of one fits into the other's cost",
    }  # fmt: skip


def _reaching(ours: Mapping[int, Any], theirs: Mapping[int, Any], target: float) -> dict[str, Any]:
    """What both had spent when they first reached an accuracy, and ours over theirs."""
    spent = [
        {s: c for s, curve in curves.items() if (c := first_to_reach(curve[0], curve[1], target)) is not None}
        for curves in (ours, theirs)
    ]
    all_did = len(spent[0]) == len(ours) and len(spent[1]) == len(theirs)
    return {
        "target": target, "ours": _mean(spent[0], ours), "theirs": _mean(spent[1], theirs),
        "reached": [len(spent[0]), len(ours), len(spent[1]), len(theirs)],
        "interval": ratio(spent[0], spent[1]) if all_did else None,
    }  # fmt: skip


def _mean(values: Mapping[int, float], of: Mapping[int, Any]) -> float | None:
    return math.fsum(values.values()) / len(values) if len(values) == len(of) else None


def volumes(group: Setting, axis: Axis, against: str) -> list[dict[str, Any]]:
    """Each family's hypervolume, its mean over the seeds that all its ways have, and its lead over the baseline's."""
    ends = [
        (way.family, {seed: (spent[-1], accuracy[-1]) for seed, (accuracy, spent) in _curves(way, axis).items()})
        for way in group.ways
        if way.finished
    ]
    costs = [cost for _, points in ends for cost, _ in points.values() if cost > 0]
    if not costs:
        return []
    least, most = min(costs), BEYOND * max(costs)
    found: dict[str, dict[int, float]] = {}
    for family in group.families:
        ways = [points for name, points in ends if name == family]
        seeds = set.intersection(*(set(points) for points in ways)) if ways else set()
        each = {seed: volume([points[seed] for points in ways], least, most) for seed in seeds}
        found[family] = {seed: share for seed, share in each.items() if share is not None}
    return [
        {
            "family": family, "ways": sum(name == family for name, _ in ends), "least": least, "most": most,
            "volume": _plain(interval(list(each.values())) if each else None),
            "lead": _plain(difference(each, found[against]) if family != against else None),
        }
        for family, each in found.items()
    ]  # fmt: skip


def _curves(way: Way, axis: Axis) -> dict[int, tuple[list[float], list[float]]]:
    """By seed: accuracies, and what had been spent by then; rounds without an evaluation left out."""
    curves = {}
    for run in way.compared:
        spent = axis.spent(run.rows)
        if spent is None:
            continue
        pairs = [
            (row["accuracy"], total) for row, total in zip(run.rows, spent, strict=True) if row["accuracy"] is not None
        ]
        if pairs:
            curves[run.seed] = ([a for a, _ in pairs], [total for _, total in pairs])
    return curves


def _best(run: Run) -> float:
    return max((row["accuracy"] for row in run.rows if row["accuracy"] is not None), default=0.0)


def _plain(found: Interval | None) -> list[Any] | None:
    """As JSON has it."""
    return None if found is None else list(found)
