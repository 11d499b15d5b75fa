"""Flower's arrays <-> one flat vector.

An `ArrayRecord` names arrays and gives their shapes, nothing more. What is what is read from both:

    entries   arrays of floats: the flat vector that is compressed
    buffers   running statistics, known by their names: they are averaged, and travel dense
    rest      arrays of integers, such as BatchNorm's step counter: the server's, as they were at the start

On the way entries are float32. A float64 model is rounded to that each round; a float16 one keeps its own precision.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from joulegrad.layout import Layout, Segment

__all__ = ["STYPE", "Form", "Model", "opaque", "payload_of"]

STYPE = "joulegrad.v1"  # no other strategy or app can read it, so that none averages payloads
STATISTICS = ("running_mean", "running_var", "moving_mean", "moving_variance")


class Model(NamedTuple):
    """A model's numbers: flat float32 entries and buffers."""

    weights: Tensor
    buffers: Tensor

    def digest(self) -> str:
        """128 bits in hexadecimal: the same for the same numbers, bit for bit."""
        found = hashlib.sha256()
        for part in self:
            found.update(np.ascontiguousarray(part.numpy()).data)
        return found.hexdigest()[:32]


@dataclass(frozen=True)
class Form:
    """What the arrays of a model are.

    Args:
        layout: where each array of floats lies.
        names: what the layout calls each array, by its key.
        dtypes: of each array, as numpy writes it.
        shapes: of each array.

    Example:
        >>> from flwr.app import ArrayRecord
        >>> form = Form.of(ArrayRecord(nn.Linear(3, 2).state_dict()))
        >>> [(s.name, s.kind) for s in form.layout.segments]
        [('weight', 'linear'), ('bias', 'bias')]
    """

    layout: Layout
    names: Mapping[str, str]
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Form:
        """Read the form of a model."""
        return cls.made_of({key: (a.dtype, tuple(a.shape)) for key, a in arrays.items()})

    @classmethod
    def made_of(cls, arrays: Mapping[str, tuple[str, tuple[int, ...]]], buffers: Collection[str] | None = None) -> Form:
        """Build the form from each array's dtype and shape, and which are buffers; None: those that names tell."""
        if not arrays:
            raise ValueError("a model needs at least one array, and this ArrayRecord is empty")
        kinds = {key: np.dtype(dtype).kind for key, (dtype, _) in arrays.items()}
        if odd := [key for key, kind in kinds.items() if kind not in "fiub"]:
            raise ValueError(f"array {odd[0]!r} is {arrays[odd[0]][0]}; models are of real floats and of integers")
        names = _named({key: shape for key, (_, shape) in arrays.items()})
        floats = [key for key, kind in kinds.items() if kind == "f"]
        if buffers is None:
            buffers = [key for key in floats if key.rpartition(".")[2] in STATISTICS]
        entries = {names[key]: arrays[key][1] for key in floats if key not in buffers}
        if not entries:
            raise ValueError(f"none of the {len(arrays)} arrays is a parameter of floats")
        statistics = {key: arrays[key][1] for key in buffers}
        layout = Layout(
            Layout.from_shapes(entries, _kinds(entries, buffers)).segments,
            Layout.from_shapes(statistics, dict.fromkeys(buffers, "buffer")).segments if buffers else (),
            local=tuple(key for key in arrays if key not in floats),
        )
        dtypes = {key: dtype for key, (dtype, _) in arrays.items()}
        return cls(layout, names, dtypes, {key: shape for key, (_, shape) in arrays.items()})

    def to_json(self) -> str:
        """Write each array's key, dtype and shape, and which are buffers."""
        arrays = [[key, self.dtypes[key], shape] for key, shape in self.shapes.items()]
        return json.dumps([arrays, [s.name for s in self.layout.buffers]])

    @classmethod
    def from_json(cls, text: str) -> Form:
        """Read what `to_json` wrote."""
        arrays, buffers = json.loads(text)
        return cls.made_of({key: (dtype, tuple(shape)) for key, dtype, shape in arrays}, buffers)

    def flat(self, arrays: ArrayRecord) -> Model:
        """Read the numbers; arrays of another form are refused by name."""
        found = {key: tuple(a.shape) for key, a in arrays.items()}
        if found != dict(self.shapes):
            key = next(k for k in {**self.shapes, **found} if found.get(k) != self.shapes.get(k))
            raise ValueError(
                f"these arrays are another model's: {key!r} has shape {found.get(key)}, expected {self.shapes.get(key)}"
            )
        keys = {name: key for key, name in self.names.items()}
        return Model(*(_flat([arrays[keys[s.name]].numpy() for s in part]) for part in self._parts))

    def arrays(self, model: Model, rest: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
        """Write the numbers as arrays, each of its own dtype, in the model's own order."""
        views = {
            s.name: flat[s.start : s.stop].view(s.shape)
            for part, flat in zip(self._parts, model, strict=True)
            for s in part
        }
        made = {}
        for key, name in self.names.items():
            value = views[name].numpy() if name in views else rest[key]
            made[key] = Array(np.ascontiguousarray(value, dtype=self.dtypes[key]).reshape(self.shapes[key]))
        return ArrayRecord(made)

    def rest(self, arrays: ArrayRecord) -> dict[str, NDArray[np.generic]]:
        """The arrays that are neither entries nor buffers."""
        return {key: arrays[key].numpy() for key in self.layout.local}

    @property
    def _parts(self) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
        return self.layout.segments, self.layout.buffers


def opaque(data: bytes) -> ArrayRecord:
    """Bytes as an ArrayRecord that a strategy which does not know them can only refuse."""
    return ArrayRecord({"joulegrad": Array("uint8", (len(data),), STYPE, data)})


def payload_of(arrays: ArrayRecord) -> bytes | None:
    """The bytes of `opaque`; None where it is something else."""
    found = arrays.get("joulegrad")
    return found.data if isinstance(found, Array) and found.stype == STYPE else None


def _flat(parts: list[NDArray[np.generic]]) -> Tensor:
    if not parts:
        return torch.empty(0)
    return torch.from_numpy(np.concatenate([np.asarray(p, np.float32).reshape(-1) for p in parts]))


def _named(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Names for the layout: an app that sends a plain list gets `0.weight`, `0.bias`, and so on."""
    if not all(key.isdigit() for key in shapes):
        return {key: key for key in shapes}
    names, module, vectors = {}, -1, 0
    for key, shape in shapes.items():
        if len(shape) > 1 or module < 0:
            module, vectors = module + 1, 0
            names[key] = f"{module}.weight"
        else:
            names[key] = f"{module}.bias{vectors or ''}"
            vectors += 1
    return names


def _kinds(shapes: Mapping[str, tuple[int, ...]], buffers: Collection[str]) -> dict[str, str]:
    """What layers are, as far as names and shapes tell: `compress(…, layout=…)` knows better."""
    with_statistics = {key.rpartition(".")[0] for key in buffers}
    kinds = {}
    for name, shape in shapes.items():
        module, _, leaf = name.rpartition(".")
        owner = module.rpartition(".")[2].lower()
        if module in with_statistics or "norm" in owner or (leaf == "weight" and len(shape) == 1):
            kind = "norm"
        elif leaf.endswith(("_l0", "_reverse")) or "_hh_l" in leaf or "_ih_l" in leaf:
            kind = "recurrent"
        elif "bias" in leaf or len(shape) == 1:
            kind = "bias"
        elif "embed" in name.lower():
            kind = "embedding"
        else:
            kind = "linear" if len(shape) == 2 else "conv" if len(shape) > 2 else "other"
        kinds[name] = kind
    return kinds
