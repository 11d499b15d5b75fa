"""Finished runs as results to keep: what figures and tables need of their folders, small enough to be committed.

    NAME/FINGERPRINT/header.json     what was asked for, by which versions, on what machine; no folder of that machine
    NAME/FINGERPRINT/rounds.jsonl    a line a round
    NAME/sweep.json                  what was planned
    NAME/energy.json                 what the sweep drew, if it was measured

NAME is that of the folder that the runs lie in. A collected result is read like the run itself, by `table`, `report`
and `compare`; there is no checkpoint, so that nothing can go on from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from joulegrad.lab import sessions
from joulegrad.lab.experiment import Experiment, anywhere
from joulegrad.lab.report.runs import Run, read
from joulegrad.lab.store import COLLECTED, HEADER, ROUNDS
from joulegrad.lab.sweep import PLAN

__all__ = ["Collected", "collect", "fingerprint"]

LEFT_OUT = ("ledger", "charge")  # of a row: a line for each client and phase, whose sums are in `joules`
SHORT = 3  # digits of a layer's density, which pictures show


class Collected(NamedTuple):
    """What was kept, and what was not.

    Args:
        written: folders of results.
        left: of each run that is no result, its folder and why.
    """

    written: list[Path]
    left: list[tuple[Path, str]]


def collect(paths: Iterable[Path], out: Path) -> Collected:
    """Write the results of all finished runs among some folders and below them; the same run gives the same bytes.

    Args:
        paths: runs, or folders of runs.
        out: where results are kept; those that are there already and are not among these stay.
    """
    paths = list(paths)
    found = read(paths)
    written: dict[Path, Path] = {}
    left = [*found.begun, *found.broken]
    for run in found.runs:
        to = out / run.folder.resolve().parent.name / fingerprint(run)
        if run.state != "finished":
            left.append((run.folder, f"{run.state}, {len(run.rows)} of {run.rounds} rounds"))
        elif to in written:
            left.append((run.folder, f"the same experiment as {written[to]}"))
        else:
            _write(run, to)
            written[to] = run.folder
    for folder in dict.fromkeys(run.folder.resolve().parent for run in found.runs):
        named = {run.folder.name: to.name for to, at in written.items() for run in found.runs if run.folder == at}
        _beside(folder, out / folder.name, named)
    return Collected(list(written), left)


def fingerprint(run: Run) -> str:
    """Of the experiment, as this version of the program has it; of one that it cannot read, the folder's name."""
    try:
        return Experiment.of(anywhere(run.header["experiment"])).fingerprint
    except (ValueError, ImportError):
        return run.folder.name


def _write(run: Run, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    header = {**run.header, "experiment": anywhere(run.header["experiment"]), COLLECTED: True}
    (to / HEADER).write_text(json.dumps(header, indent=1) + "\n")
    lines = [json.dumps(_short(row), separators=(",", ":")) + "\n" for row in run.rows]
    (to / ROUNDS).write_text("".join(lines))


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name not in LEFT_OUT}
    if kept.get("layer_density") is not None:
        kept["layer_density"] = [float(f"{density:.{SHORT}g}") for density in kept["layer_density"]]
    return kept


def _beside(folder: Path, to: Path, named: Mapping[str, str]) -> None:
    """The plan, by what its runs are called now, and what was measured: added to what is there from before."""
    if not to.is_dir() or folder.resolve() == to.resolve():
        return
    if (folder / PLAN).exists():
        plans = [json.loads(file.read_text()) for file in (to / PLAN, folder / PLAN) if file.exists()]
        merged = {named.get(name, name): label for plan in plans for name, label in plan.items()}
        (to / PLAN).write_text(json.dumps(merged, indent=1) + "\n")
    rows = {row["started"]: row for file in (to, folder) for row in sessions.read(file / sessions.ENERGY)}
    for row in rows.values():
        row["runs"] = {named.get(name, name): played for name, played in row.get("runs", {}).items()}
    if rows:
        sessions.write(to / sessions.ENERGY, [rows[started] for started in sorted(rows)])
