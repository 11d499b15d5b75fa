"""All rounds of all runs as one tidy table: a line a round, a column a setting or a figure."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from joulegrad.lab.store import HEADER, read_header, read_rounds

__all__ = ["flat", "folders", "labels", "rows", "write"]

LISTS = ("clients", "lost", "layer_entries", "layer_density", "ledger", "flat", "charge")  # of a row: no table's cell


def folders(paths: Iterable[Path]) -> list[Path]:
    """The runs among some folders and below them."""
    found = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} is not there")
        here = [header.parent for header in sorted(path.rglob(HEADER))]
        if not here:
            raise ValueError(f"no run lies in {path}")
        found += here
    return found


def labels(runs: Iterable[Path]) -> dict[Path, str]:
    """What distinguishes each run from the others, as key=value; in the order in which they began."""
    headers = {run: read_header(run) for run in runs}
    settings = {run: flat(header["experiment"]) for run, header in headers.items()}
    keys = dict.fromkeys(key for found in settings.values() for key in found)
    differing = [key for key in keys if len({repr(found.get(key)) for found in settings.values()}) > 1]
    order = sorted(headers, key=lambda run: str(headers[run].get("started")))
    return {run: " ".join(f"{key}={settings[run].get(key)}" for key in differing) for run in order}


def rows(runs: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Every round of every run, with the run's settings in front; totals so far are added to each."""
    for run in runs:
        header = read_header(run)
        experiment = dict(header["experiment"])
        experiment["cost_model"] = experiment.pop("cost")  # a row's cost is Σc
        settings = {"run": run.name, **flat(experiment), "commit": header.get("commit")}
        totals = dict.fromkeys(("bytes_up", "bytes_down", "entries", "cost"), 0.0)
        for row in read_rounds(run):
            for name in totals:
                totals[name] += row[name]
            figures = {name: value for name, value in row.items() if name not in LISTS}
            counts = {name: len(row[name]) for name in ("clients", "lost", "flat") if name in row}
            yield settings | flat(figures) | counts | {f"total_{name}": t for name, t in totals.items()}


def write(table: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write it as .csv, or as .parquet where pyarrow is installed; how many rows there were."""
    lines = list(table)
    columns = list(dict.fromkeys(name for line in lines for name in line))
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            out = csv.DictWriter(file, columns)
            out.writeheader()
            out.writerows(lines)
    elif path.suffix == ".parquet":
        try:
            import pyarrow
            import pyarrow.parquet
        except ModuleNotFoundError:
            raise ValueError("a .parquet file needs pyarrow: pip install pyarrow; or write a .csv") from None
        pyarrow.parquet.write_table(pyarrow.table({c: [line.get(c) for line in lines] for c in columns}), path)
    else:
        raise ValueError(f"{path}: a table is written as .csv or .parquet")
    return len(lines)


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables as one, with dots between their names; lists as text."""
    found: dict[str, Any] = {}
    for name, inside in value.items():
        if isinstance(inside, Mapping):
            found |= flat(inside, f"{prefix}{name}.")
        else:
            found[prefix + name] = "; ".join(map(str, inside)) if isinstance(inside, list) else inside
    return found
