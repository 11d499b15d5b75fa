"""Where a model's parameters lie in one flat vector.

A `Layout` is computed once from a model and then speaks of structure only: names, shapes, kinds and
positions, never values. Everything else in joulegrad sees a flat tensor and a layout.

    parameters   trainable ones, in the model's own order, tied ones once; `layout.size` entries in all
    frozen       parameters without `requires_grad`: not part of the vector, listed by name
    buffers      floating-point buffers that a state_dict holds (BatchNorm's running statistics): they are
                 averaged, travel dense beside the selected entries, and are counted
    local        the other buffers of the state_dict (BatchNorm's step counter): they stay where they are
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

__all__ = ["Layout", "Segment"]

_KINDS: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("conv", (nn.modules.conv._ConvNd,)),
    ("linear", (nn.Linear, nn.Bilinear, nn.MultiheadAttention)),
    ("embedding", (nn.Embedding, nn.EmbeddingBag)),
    ("recurrent", (nn.RNNBase, nn.RNNCellBase)),
    ("norm", (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)),
)


@dataclass(frozen=True)
class Segment:
    """One tensor's place in the flat vector: entries `start` to `stop`, in logical (row-major) order.

    Example:
        >>> Layout.of(nn.Linear(3, 2)).segments[1]
        Segment(name='bias', shape=(2,), kind='bias', start=6, tied=())
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    start: int
    tied: tuple[str, ...] = ()  # further names of the same parameter

    @property
    def module(self) -> str:
        """Name of the module that it belongs to; a parametrised weight belongs to the module it is a weight of."""
        return _owner(self.name)

    def matches(self, pattern: str) -> bool:
        """Whether one of its names, tied ones included, matches a pattern as in fnmatch."""
        return any(fnmatchcase(name, pattern) for name in (self.name, *self.tied))

    @property
    def size(self) -> int:
        """How many entries the tensor has."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """One past its last entry."""
        return self.start + self.size


@dataclass(frozen=True, repr=False)
class Layout:
    """A model's parameters as one flat vector w ∈ R^d, d = `size`.

    Args:
        segments: the trainable parameters, one after the other.
        buffers: the floating-point buffers, in a second vector of `buffer_size` entries.
        frozen: names of the parameters that are left out because they do not train.
        local: names of the buffers that are neither averaged nor sent.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
        >>> layout = Layout.of(model)
        >>> layout
        Layout(58 entries in 6 parameters, 8 buffer entries, fingerprint c15f2e8d64191dca)
        >>> [(s.name, s.kind, s.size) for s in layout.segments]
        [('0.weight', 'conv', 36), ('0.bias', 'bias', 4), ('1.weight', 'norm', 4), ('1.bias', 'norm', 4),
         ('3.weight', 'linear', 8), ('3.bias', 'bias', 2)]
        >>> before = layout.values(model)           # a copy: training does not change it
        >>> update = before - layout.values(model)  # g = w_global - w_local
        >>> layout.assign(model, before - update)   # written back in each parameter's own dtype
    """

    segments: tuple[Segment, ...]
    buffers: tuple[Segment, ...] = ()
    frozen: tuple[str, ...] = ()
    local: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, *, buffers: Literal["average", "local"] | tuple[str, ...] = "average") -> Layout:
        """Read the layout of a model; its values, dtypes and device do not matter.

        `buffers="local"` declares that no buffer is shared, as in FedBN; a tuple of name patterns, that only these
        are, where a model keeps masks or other constants among its buffers: `buffers=("*.running_*",)`.
        """
        if buffers not in ("average", "local") and not isinstance(buffers, tuple):
            raise ValueError(f"buffers must be 'average', 'local' or a tuple of name patterns, got {buffers!r}")
        if not isinstance(model, nn.Module):
            raise ValueError(f"a layout is read from an nn.Module, got {model!r}")
        model = _unwrapped(model)
        _refuse_lazy(model)
        names: dict[int, list[str]] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(p), []).append(name)
        shapes: dict[str, tuple[int, ...]] = {}
        kinds: dict[str, str] = {}
        tied: dict[str, tuple[str, ...]] = {}
        frozen = []
        for name, p in model.named_parameters():
            if not p.requires_grad:
                frozen.append(name)
                continue
            if p.is_complex():
                raise ValueError(f"parameter {name!r} is complex ({p.dtype}); joulegrad ranks real entries")
            shapes[name] = tuple(p.shape)
            kinds[name] = _kind(model, name)
            tied[name] = tuple(n for n in names[id(p)] if n != name)
        if not shapes:
            why = f"all {len(frozen)} are frozen" if frozen else "it has none at all"
            raise ValueError(f"{type(model).__name__} has no trainable parameters: {why}")
        shared, local = _buffers(model)
        wanted = {"average": ("*",), "local": ()}.get(buffers, buffers) if isinstance(buffers, str) else buffers
        if unknown := [p for p in wanted if p != "*" and not any(fnmatchcase(n, p) for n in shared)]:
            raise ValueError(
                f"no floating-point buffer matches {unknown[0]!r}; there are {_some(list(shared)) or 'none'}"
            )
        chosen = {n: shape for n, shape in shared.items() if any(fnmatchcase(n, p) for p in wanted)}
        local = (*(n for n in shared if n not in chosen), *local)
        shared = chosen
        return cls(
            segments=_placed(shapes, kinds, tied),
            buffers=_placed(shared, dict.fromkeys(shared, "buffer"), {}),
            frozen=tuple(frozen),
            local=tuple(local),
        )

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, Sequence[int]], kinds: Mapping[str, str] | None = None) -> Layout:
        """Build a layout without a model: name → shape, and name → kind where it is not "other".

        Example:
            >>> Layout.from_shapes({"conv": (8, 3), "head": (10,)}, {"head": "linear"}).size
            34
        """
        kinds = dict(kinds or {})
        if unknown := set(kinds) - set(shapes):
            raise ValueError(f"kinds names parameters that shapes does not: {sorted(unknown)}")
        if not shapes:
            raise ValueError("a layout needs at least one parameter")
        return cls(_placed({n: tuple(s) for n, s in shapes.items()}, kinds, {}))

    def to_json(self) -> str:
        """Write the structure as text, for tools that have no model at hand.

        Example:
            >>> layout = Layout.of(nn.Linear(3, 2))
            >>> Layout.from_json(layout.to_json()) == layout
            True
        """
        return json.dumps(self._structure(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Read what `to_json` wrote."""
        try:
            found = json.loads(text)
            parts = [[(n, tuple(shape), kind, tuple(tied)) for n, shape, kind, tied in found["segments"]]]
            parts.append([(n, tuple(shape), "buffer", ()) for n, shape in found["buffers"]])
            frozen, local = tuple(found["frozen"]), tuple(found["local"])
        except (KeyError, TypeError, ValueError) as why:
            raise ValueError(f"this is no layout as Layout.to_json writes it: {why!r}") from None
        segments, buffers = (
            _placed({p[0]: p[1] for p in part}, {p[0]: p[2] for p in part}, {p[0]: p[3] for p in part})
            for part in parts
        )
        return cls(segments, buffers, frozen, local)

    @property
    def size(self) -> int:
        """d, the number of trainable entries."""
        return self.segments[-1].stop

    @property
    def buffer_size(self) -> int:
        """The number of buffer entries that travel dense with every update."""
        return self.buffers[-1].stop if self.buffers else 0

    @cached_property
    def ends(self) -> Tensor:
        """One past each segment's last entry (int64): what kernels need of a layout."""
        return torch.tensor([s.stop for s in self.segments])

    @cached_property
    def fingerprint(self) -> str:
        """64 bits in hexadecimal: equal for equal structures on any machine, different otherwise.

        Names, shapes, kinds and the frozen, shared and local parts count; dtypes, devices and values do not.
        """
        text = json.dumps(self._structure(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _structure(self) -> dict[str, list[object]]:
        return {
            "segments": [[s.name, s.shape, s.kind, s.tied] for s in self.segments],
            "buffers": [[s.name, s.shape] for s in self.buffers],
            "frozen": list(self.frozen),
            "local": list(self.local),
        }

    def __repr__(self) -> str:
        extra = f", {self.buffer_size:,} buffer entries" if self.buffers else ""
        extra += f", {len(self.frozen)} frozen" if self.frozen else ""
        return (
            f"Layout({self.size:,} entries in {len(self.segments)} parameters{extra}, fingerprint {self.fingerprint})"
        )

    def locate(self, index: int) -> str:
        """Say in the model's words where entry `index` lies.

        Example:
            >>> Layout.of(nn.Linear(3, 2)).locate(4)
            'weight[1, 1]'
        """
        if not 0 <= index < self.size:
            raise IndexError(f"entry {index} is outside the layout's {self.size} entries")
        segment = next(s for s in self.segments if index < s.stop)
        place, rest = [], index - segment.start
        for n in reversed(segment.shape):
            rest, i = divmod(rest, n)
            place.append(i)
        return f"{segment.name}[{', '.join(map(str, reversed(place)))}]" if place else segment.name

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Name → the flat vector's part in its shape; nothing is copied, writing to a view writes to `flat`.

        Example:
            >>> layout, flat = Layout.of(nn.Linear(3, 2)), torch.arange(8.0)
            >>> layout.views(flat)["bias"]
            tensor([6., 7.])
        """
        self._check(flat, self.size)
        return {s.name: flat[s.start : s.stop].view(s.shape) for s in self.segments}

    def values(self, model: nn.Module) -> Tensor:
        """Read the parameters: a new flat float32 vector w, which later changes of the model leave alone.

        Example:
            >>> model = nn.Linear(1, 1)
            >>> _ = nn.init.ones_(model.weight), nn.init.zeros_(model.bias)
            >>> Layout.of(model).values(model)
            tensor([1., 0.])
        """
        return _flat(p for _, p in self._parameters(model))

    def grad(self, model: nn.Module, *, missing: Literal["error", "zero"] = "error") -> Tensor:
        """Read the gradients: a new flat float32 vector g.

        A parameter without a gradient is an error that names it, because it usually means that backward()
        has not run; where parts of the model are unused on purpose, `missing="zero"` reads zeros for them.

        Example:
            >>> model = nn.Linear(1, 1)
            >>> model(torch.ones(1)).backward()
            >>> Layout.of(model).grad(model)
            tensor([1., 1.])
        """
        if missing not in ("error", "zero"):
            raise ValueError(f"missing must be 'error' or 'zero', got {missing!r}")
        pairs = list(self._parameters(model))
        without = [s.name for s, p in pairs if p.grad is None]
        if without and missing == "error":
            raise ValueError(
                f"{len(without)} of {len(pairs)} parameters have no gradient: {_some(without)}; call "
                "backward() first, or pass missing='zero' if they are unused on purpose"
            )
        return _flat(torch.zeros_like(p) if p.grad is None else p.grad for _, p in pairs)

    def assign(self, model: nn.Module, flat: Tensor) -> None:
        """Write w into the parameters, in place, each in its own dtype and memory format.

        Example:
            >>> model = nn.Linear(1, 1)
            >>> Layout.of(model).assign(model, torch.tensor([2.0, 3.0]))
            >>> model(torch.ones(1)).item()
            5.0
        """
        views = self.views(flat)
        pairs = list(self._parameters(model))
        for s, p in pairs:
            if p.dtype == torch.float16 and p.numel() and views[s.name].abs().max() > torch.finfo(p.dtype).max:
                raise ValueError(f"values of {s.name!r} are beyond float16's largest, {torch.finfo(p.dtype).max}")
        with torch.no_grad():
            for s, p in pairs:
                p.copy_(views[s.name])

    def set_grad(self, model: nn.Module, flat: Tensor) -> None:
        """Hand g to an optimiser: sets each parameter's `.grad`, so that any torch.optim rule can step.

        Where dtype and device agree the gradients are views of `flat`, not copies: an in-place change of a
        gradient (clipping, say) changes `flat`.

        Example:
            >>> model = nn.Linear(1, 1)
            >>> Layout.of(model).set_grad(model, torch.tensor([1.0, 0.5]))
            >>> model.bias.grad
            tensor([0.5000])
        """
        views = self.views(flat)
        for s, p in self._parameters(model):
            p.grad = views[s.name].to(device=p.device, dtype=p.dtype)

    def buffer_values(self, model: nn.Module) -> Tensor:
        """Read the averaged buffers: a new flat float32 vector of `buffer_size` entries.

        Example:
            >>> model = nn.BatchNorm1d(2)
            >>> Layout.of(model).buffer_values(model)  # running mean, running variance
            tensor([0., 0., 1., 1.])
        """
        if not self.buffers:
            return torch.zeros(0)
        return _flat(b for _, b in self._buffers(model))

    def assign_buffers(self, model: nn.Module, flat: Tensor) -> None:
        """Write the averaged buffers back, in place, each in its own dtype.

        Example:
            >>> model = nn.BatchNorm1d(1)
            >>> Layout.of(model).assign_buffers(model, torch.tensor([5.0, 2.0]))
            >>> model.running_mean, model.running_var
            (tensor([5.]), tensor([2.]))
        """
        self._check(flat, self.buffer_size)
        with torch.no_grad():
            for s, b in self._buffers(model):
                b.copy_(flat[s.start : s.stop].view(s.shape))

    def _parameters(self, model: nn.Module) -> Iterator[tuple[Segment, Tensor]]:
        found = dict(_unwrapped(model).named_parameters())
        if extra := sorted(set(found) - {s.name for s in self.segments} - set(self.frozen)):
            raise ValueError(f"this model is not the layout's: it also has parameters {_some(extra)}")
        return _matched(self.segments, found, "parameter")

    def _buffers(self, model: nn.Module) -> Iterator[tuple[Segment, Tensor]]:
        return _matched(self.buffers, dict(_unwrapped(model).named_buffers(remove_duplicate=False)), "buffer")

    @staticmethod
    def _check(flat: Tensor, size: int) -> None:
        if flat.dim() != 1 or flat.numel() != size:
            raise ValueError(f"expected a flat vector of {size} entries, got shape {tuple(flat.shape)}")


def _flat(tensors: Iterator[Tensor]) -> Tensor:
    """One new float32 vector; reshape() reads in logical order whatever the strides."""
    dense = (t.detach().to_dense() if t.layout != torch.strided else t.detach() for t in tensors)
    parts = [t.reshape(-1).to(torch.float32) for t in dense]
    return torch.cat(parts)


def _matched(
    segments: tuple[Segment, ...], tensors: Mapping[str, Tensor], what: str
) -> Iterator[tuple[Segment, Tensor]]:
    """Pair each segment with the model's tensor, or say why this model is not the layout's."""
    for s in segments:
        found = tensors.get(s.name)
        if found is None:
            raise ValueError(f"this model is not the layout's: it has no {what} {s.name!r}")
        if tuple(found.shape) != s.shape:
            raise ValueError(
                f"this model is not the layout's: {what} {s.name!r} has shape {tuple(found.shape)}, expected {s.shape}"
            )
    return ((s, tensors[s.name]) for s in segments)


def _placed(
    shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, str], tied: Mapping[str, tuple[str, ...]]
) -> tuple[Segment, ...]:
    if negative := [(name, shape) for name, shape in shapes.items() if any(n < 0 for n in shape)]:
        raise ValueError("the shape of {!r} is {}; no side is negative".format(*negative[0]))
    starts = accumulate((prod(shape) for shape in shapes.values()), initial=0)
    return tuple(
        Segment(name, shape, kinds.get(name, "other"), start, tied.get(name, ()))
        for (name, shape), start in zip(shapes.items(), starts, strict=False)
    )


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model itself under torch.compile and (Distributed)DataParallel, so that names stay the user's."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _refuse_lazy(model: nn.Module) -> None:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    if lazy := [name for name, t in tensors if is_lazy(t)]:
        raise ValueError(
            f"{_some(lazy)} of {type(model).__name__} have no shape yet (lazy modules): run one forward "
            "pass before Layout.of(model)"
        )


def _buffers(model: nn.Module) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Split the buffers that a state_dict holds: the floating-point ones (name → shape), and the rest."""
    shared: dict[str, tuple[int, ...]] = {}
    local: list[str] = []
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is None or name in module._non_persistent_buffers_set or id(buffer) in seen:
                continue
            seen.add(id(buffer))
            full = f"{prefix}.{name}" if prefix else name
            if buffer.is_floating_point():
                shared[full] = tuple(buffer.shape)
            else:
                local.append(full)
    return shared, tuple(local)


def _kind(model: nn.Module, name: str) -> str:
    """What a parameter is for: its owner's kind, or "bias" for the biases of all but norms.

    Weight norm and other parametrisations keep the kind of the module that they parametrise. A norm is
    also known by its class name (…Norm), since many models bring their own.
    """
    path = _owner(name)
    leaf = f".{name}".removeprefix(f".{path}.".replace("..", ".")).removeprefix("parametrizations.").partition(".")[0]
    owner = model.get_submodule(path)
    kind = next((kind for kind, types in _KINDS if isinstance(owner, types)), "other")
    if kind == "other" and "norm" in type(owner).__name__.lower():
        kind = "norm"
    if kind != "norm" and (leaf.startswith("bias") or leaf.endswith("bias")):
        return "bias"
    return kind


def _owner(name: str) -> str:
    """Which module a parameter belongs to, past torch's `parametrizations` containers."""
    path = name.rpartition(".")[0]
    if ".parametrizations." in f".{path}.":
        path = f".{path}.".partition(".parametrizations.")[0].removeprefix(".")
    return path


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(repr(n) for n in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
