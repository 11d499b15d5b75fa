"""What a server keeps, so that a training goes on after it has died: Flower keeps nothing.

    folder/round-00012.safetensors     numbers as tensors, all else as JSON beside them

The last two are kept. Each is written beside its name, synced, and moved there when it is whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.supercore import log
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

__all__ = ["apart", "newest", "together", "write"]

NAME = re.compile(r"round-(\d+)\.safetensors")


def write(folder: Path, round_: int, tree: Mapping[str, Any]) -> None:
    """Keep a state: a tree of numbers, texts, lists, tables, tensors, arrays and ArrayRecords."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    plain = apart(dict(tree), tensors)
    path = folder / f"round-{round_:05d}.safetensors"
    part = path.with_suffix(".part")
    save_file(tensors, part, {"state": json.dumps(plain)})
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    for old in _all(folder)[2:]:
        old.unlink()


def newest(folder: Path) -> dict[str, Any] | None:
    """The last state that is whole; None: there is none."""
    for path in _all(folder):
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                plain = json.loads((file.metadata() or {})["state"])
        except (SafetensorError, KeyError, ValueError) as why:
            log(WARNING, "%s is damaged (%s): the one before it is taken", path, why)
            continue
        return dict(together(plain, tensors))
    return None


def apart(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A tree with references in the place of its tensors; what is neither is left out."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        tensors[name := f"t{len(tensors)}"] = torch.from_numpy(np.array(value, order="C"))
        return {"array": name}
    if isinstance(value, Tensor):
        tensors[name := f"t{len(tensors)}"] = value.detach().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, ArrayRecord):
        return {"arrays": [[key, apart(array.numpy(), tensors)] for key, array in value.items()]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [apart(v, tensors) for v in value]}
    if isinstance(value, Mapping):
        return {"table": [[key, apart(v, tensors)] for key, v in value.items() if keepable(v)]}
    raise TypeError(f"a {type(value).__name__} cannot be kept in a checkpoint")


def keepable(value: Any) -> bool:
    """Whether a value is one that a checkpoint holds."""
    if isinstance(value, list | tuple):
        return all(keepable(v) for v in value)
    if isinstance(value, Mapping) and not isinstance(value, ArrayRecord):
        return all(isinstance(k, str | int) and keepable(v) for k, v in value.items())
    kinds = (bool, int, float, str, np.generic, np.ndarray, Tensor, ArrayRecord)
    return value is None or isinstance(value, kinds)


def together(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that `apart` took apart."""
    if not isinstance(plain, dict):
        return plain
    [(kind, value)] = plain.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "array":
        return tensors[value].numpy()
    if kind == "arrays":
        return ArrayRecord({key: Array(together(v, tensors)) for key, v in value})
    if kind == "table":
        return {key: together(v, tensors) for key, v in value}
    found = [together(v, tensors) for v in value]
    return found if kind == "list" else tuple(found)


def _all(folder: Path) -> list[Path]:
    """The latest first."""
    found = [(m, p) for p in folder.iterdir() if (m := NAME.fullmatch(p.name))] if folder.is_dir() else []
    return [path for _, path in sorted(found, key=lambda pair: -int(pair[0][1]))]
