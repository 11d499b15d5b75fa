"""The table of every key in docs/experiments.md, as the dataclasses and their docstrings have it.

python tests/experiment_keys.py     # write it into the page
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path

from joulegrad.lab.experiment import LATER, TABLES, Experiment

PAGE = Path(__file__).parent.parent / "docs" / "experiments.md"
BEGIN, END = "<!-- begin: keys -->", "<!-- end -->"


def meanings(kind: type) -> dict[str, str]:
    """What a docstring says of each argument."""
    arguments = inspect.getdoc(kind).partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def table() -> str:
    """A line a key: its default as TOML has it, and what it means."""
    defaults, lines = {**LATER, **Experiment().to_dict()}, ["| key | default | meaning |", "|---|---|---|"]
    for name, meaning in meanings(Experiment).items():
        if name not in TABLES:
            lines.append(row(name, defaults[name], meaning))
    for name, kind in TABLES.items():
        said = meanings(kind)
        lines += [row(f"{name}.{f.name}", defaults[name][f.name], said[f.name]) for f in dataclasses.fields(kind)]
    return "\n".join(lines)


def row(name: str, default: object, meaning: str) -> str:
    shown = "" if default is None else "`{}`" if default == {} else f"`{json.dumps(default)}`"
    return f"| `{name}` | {shown} | {meaning} |"


def filled(page: str) -> str:
    """The page with the table as it must be."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{PAGE.name} must hold {BEGIN}, and {END} after it")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    sys.exit(0)
