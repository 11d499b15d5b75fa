"""A line of JSON for every node of every round: what a table of a running fleet is made of.

Joules are those of the radio, from the bytes that went through the socket: Flower's own are counted with the payload's.
A node has them if its --node-config names a device and a link of `joulegrad profiles`; otherwise they are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from joulegrad import profiles
from joulegrad.energy import Ledger, totals
from joulegrad.flower.broadcast import Asked

__all__ = ["FLOOR_BYTES_DOWN", "FLOOR_BYTES_UP", "joules", "written"]

# What Flower 1.41 adds to the payloads of one node in one round: headers, object trees, looks for messages. Counted at
# the socket by tests/test_flower_fleet.py, which holds it to 2 % of a round of ResNet-18 at 1 %.
FLOOR_BYTES_UP = 24_000
FLOOR_BYTES_DOWN = 12_000


def written(path: Path, round_: int, kind: str, asked: Iterable[Asked], entries: Mapping[int, int]) -> None:
    """Nodes have been asked to "train" or to "evaluate": one line for each, in one write.

    `entries` has, of the nodes whose updates were used, how many each sent.
    """
    rows = [
        {
            "round": round_,
            "kind": kind,
            "node": str(a.node),
            **a.about,
            "bytes_up": a.bytes_up,
            "bytes_down": a.bytes_down,
            "whole_models": a.whole_models,
            "used": a.node in entries,
            "entries": entries.get(a.node),
            "failure": a.failure,
            "refused": a.refused,
            "joules": joules(a),
        }
        for a in asked
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def joules(asked: Asked) -> dict[str, Any] | None:
    """By source and phase; None where the node names no device and link that we know."""
    device, link = (asked.about.get(key, "") for key in ("device", "link"))
    if device not in profiles.devices() or link not in profiles.links():  # never a path that a node names
        return None
    ledger = Ledger(device=device, link=link)
    rows = ledger.downlink(asked.bytes_down + FLOOR_BYTES_DOWN)
    if asked.bytes_up:
        rows += ledger.uplink(asked.bytes_up + FLOOR_BYTES_UP)
    return totals(rows)
