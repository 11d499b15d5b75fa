"""Saving what operators remember: a state as named tensors, and back.

from safetensors.torch import load_file, save_file

save_file(joulegrad.state_dict(state), "client-7.safetensors")
state = joulegrad.load_state_dict(compress.init(layout), load_file("client-7.safetensors"))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from joulegrad.compressor import State
from joulegrad.cost import Prices
from joulegrad.layout import Layout
from joulegrad.selection import Certificate

__all__ = ["load_state_dict", "state_dict"]

# What a state holds besides what it remembers: it comes from init(), or describes the last call.
CONSTANT = (Layout, Prices, Certificate, type(None))


def state_dict(state: State) -> dict[str, Tensor]:
    """All that a state remembers, by name, ready for `safetensors.torch.save_file`.

    With the layout's fingerprint, so that it cannot be loaded into another model's.

    Example:
        >>> op = ErrorFeedback(TopK(k=1))
        >>> saved = state_dict(op.init(Layout.from_shapes({"w": (2,)})))
        >>> sorted(saved), saved["residual"]
        (['fingerprint', 'residual'], tensor([0., 0.]))
    """
    return {name: tensor.clone() for name, tensor in state_tensors(state).items()}


def state_tensors(state: State) -> dict[str, Tensor]:
    """The same without a copy, for those who write it down at once."""
    return {**dict(_tensors(state, "")), "fingerprint": _fingerprint(state)}


def load_state_dict(state: State, tensors: Mapping[str, Tensor]) -> State:
    """The state of `op.init(layout)` with what was saved put in its place; training continues bit for bit.

    Example:
        >>> op = ErrorFeedback(TopK(k=1))
        >>> fresh = op.init(Layout.from_shapes({"w": (2,)}))
        >>> saved = {**state_dict(fresh), "residual": torch.tensor([1.0, 2.0])}
        >>> load_state_dict(fresh, saved).residual
        tensor([1., 2.])
    """
    expected = state_tensors(state)
    if missing := sorted(set(expected) - set(tensors)):
        raise ValueError(f"the saved state lacks {missing}; was it another operator's? it has {sorted(tensors)}")
    if extra := sorted(set(tensors) - set(expected)):
        raise ValueError(f"the saved state has {extra}, which this operator does not remember")
    for name, tensor in expected.items():
        if tensors[name].shape != tensor.shape or tensors[name].dtype != tensor.dtype:
            raise ValueError(
                f"the saved {name!r} is {tensors[name].dtype} of shape {tuple(tensors[name].shape)}, expected "
                f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            )
    if not torch.equal(tensors["fingerprint"], expected["fingerprint"]):
        raise ValueError("the saved state belongs to a model of another structure: its layout's fingerprint differs")
    return _with_tensors(state, "", tensors)


def _tensors(state: State, at: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in _fields(state):
        if isinstance(value, Tensor):
            yield at + name, value
        elif isinstance(value, CONSTANT):
            continue
        elif isinstance(value, tuple):
            yield from _tensors(value, f"{at}{name}.")
        else:
            kind = type(value).__name__
            raise ValueError(f"{at}{name} is a {kind}: a state is a tuple of tensors, layouts, prices and states")


def _with_tensors(state: State, at: str, tensors: Mapping[str, Tensor]) -> State:
    values = []
    for name, value in _fields(state):
        if isinstance(value, Tensor):
            values.append(tensors[at + name].clone())
        elif isinstance(value, tuple) and not isinstance(value, CONSTANT):
            values.append(_with_tensors(value, f"{at}{name}.", tensors))
        else:
            values.append(value)
    return type(state)(*values) if hasattr(state, "_fields") else tuple(values)


def _fingerprint(state: State) -> Tensor:
    """Of the first layout in a state, outermost first; zero where there is none."""
    for _, value in _fields(state):
        layout = value.layout if isinstance(value, Prices) else value
        if isinstance(layout, Layout):
            return torch.tensor(int(layout.fingerprint, 16) - 2**63)
        if isinstance(value, tuple) and not isinstance(value, Certificate):
            found = _fingerprint(value)
            if found != 0:
                return found
    return torch.tensor(0)


def _fields(state: State) -> list[tuple[str, Any]]:
    if not isinstance(state, tuple):
        raise ValueError(f"a state is a NamedTuple, got {type(state).__name__}")
    names = getattr(state, "_fields", range(len(state)))
    return [(str(name), value) for name, value in zip(names, state, strict=True)]
