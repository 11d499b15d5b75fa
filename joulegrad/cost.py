"""Joules per entry: what selection weighs an entry's worth against.

A cost model is any object with one method, `joules(layout) -> Tensor`: float64, positive and finite,
either one number a segment (costs that are constant inside a layer stay that small) or one an entry.

    class MyCost:
        def joules(self, layout):
            return torch.tensor([1e-6 * s.size for s in layout.segments], dtype=torch.float64)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from numbers import Real
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from joulegrad import exact
from joulegrad.device import Breakdown, Device, LayerCost
from joulegrad.layout import Layout, Segment
from joulegrad.sparse import SparseUpdate

__all__ = [
    "Breakdown",
    "Cost",
    "Device",
    "LayerCost",
    "LayerType",
    "PerEntry",
    "Prices",
    "Table",
    "Uniform",
    "joules_of",
]


class Cost(Protocol):
    """What a cost model is: one method, c = joules(layout).

    Example:
        >>> class BySize:
        ...     def joules(self, layout):
        ...         return torch.tensor([1e-6 * s.size for s in layout.segments], dtype=torch.float64)
        >>> cost: Cost = BySize()
        >>> cost.joules(Layout.from_shapes({"w": (3,)}))
        tensor([3.0000e-06], dtype=torch.float64)
    """

    def joules(self, layout: Layout) -> Tensor:
        """The cost atoms c_j > 0: one number a segment, or one an entry."""
        ...


@dataclass(frozen=True)
class Uniform:
    """c_j = `each` for every entry: the counting measure, under which CWMP is Top-K.

    Example:
        >>> layout = Layout.from_shapes({"conv": (2, 3), "fc": (4,)})
        >>> Uniform(2e-6).joules(layout)
        tensor([2.0000e-06, 2.0000e-06], dtype=torch.float64)
    """

    each: float = 1.0

    def __post_init__(self) -> None:
        _positive("Uniform(each)", self.each)

    def joules(self, layout: Layout) -> Tensor:
        """One number a segment."""
        return torch.full((len(layout.segments),), self.each, dtype=torch.float64)


@dataclass(frozen=True)
class LayerType:
    """The paper's cost model: c_j = 5 in classifier layers, 1 elsewhere (units, not joules).

    Classifier layers are, by rule, the linear layers (weights and biases) that come after the last layer of
    any other kind, in the model's own order: `fc` of a ResNet, all three layers of VGG's classifier, the head
    of a ViT. In a model of linear layers alone, it is the last one. `layers` overrides the rule with name
    patterns (`"fc.*"`, `"head.*"`).

    Args:
        classifier: cost of an entry in a classifier layer.
        other: cost of an entry anywhere else.
        layers: name patterns (as in fnmatch) of the classifier's parameters; empty: the rule above.

    Example:
        >>> layout = Layout.from_shapes({"conv": (2, 3), "fc.weight": (4,), "fc.bias": (1,)},
        ...                             {"conv": "conv", "fc.weight": "linear", "fc.bias": "bias"})
        >>> LayerType().joules(layout)
        tensor([1., 5., 5.], dtype=torch.float64)

    Reference: the paper, section IV, Memory-Centric Cost Model.
    """

    classifier: float = 5.0
    other: float = 1.0
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _positive("LayerType(classifier)", self.classifier)
        _positive("LayerType(other)", self.other)
        if not isinstance(self.layers, tuple):
            raise ValueError(f"layers must be a tuple of name patterns, got {self.layers!r}")

    def joules(self, layout: Layout) -> Tensor:
        """One number a segment."""
        names = self.members(layout)
        return torch.tensor(
            [self.classifier if s.name in names else self.other for s in layout.segments],
            dtype=torch.float64,
        )

    def members(self, layout: Layout) -> frozenset[str]:
        """Names of the parameters that count as classifier."""
        if not self.layers:
            return _trailing_linear(layout)
        for pattern in self.layers:
            if not any(s.matches(pattern) for s in layout.segments):
                raise ValueError(f"LayerType: no parameter matches {pattern!r}; there are {_names(layout)}")
        return frozenset(s.name for s in layout.segments if any(s.matches(p) for p in self.layers))


def _trailing_linear(layout: Layout) -> frozenset[str]:
    modules: dict[str, list[Segment]] = {}
    for s in layout.segments:
        modules.setdefault(s.module, []).append(s)
    linear = [all(s.kind in ("linear", "bias") for s in own) for own in modules.values()]
    start = len(linear) - linear[::-1].index(False) if False in linear else len(linear) - 1
    tail = [s for own in list(modules.values())[start:] for s in own]
    if not any(s.kind == "linear" for s in tail):
        last = layout.segments[-1]
        raise ValueError(
            f"LayerType finds no classifier: no linear layer comes after {last.name!r} ({last.kind}); name the "
            "classifier's parameters, as in LayerType(layers=('head.*',))"
        )
    return frozenset(s.name for s in tail)


@dataclass(frozen=True)
class Table:
    """c_j by parameter name: pattern → cost, where every parameter must match exactly one pattern.

    Example:
        >>> layout = Layout.from_shapes({"conv": (2, 3), "fc.weight": (4,), "fc.bias": (1,)})
        >>> Table({"conv": 1e-9, "fc.*": 4e-9}).joules(layout)
        tensor([1.0000e-09, 4.0000e-09, 4.0000e-09], dtype=torch.float64)
    """

    costs: Mapping[str, float]

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.costs.items())))

    def __post_init__(self) -> None:
        for pattern, cost in self.costs.items():
            _positive(f"Table[{pattern!r}]", cost)

    def joules(self, layout: Layout) -> Tensor:
        """One number a segment."""
        matches = {s.name: [p for p in self.costs if s.matches(p)] for s in layout.segments}
        problems = [f"{name!r} matches no pattern" for name, found in matches.items() if not found]
        problems += [f"{name!r} matches {found}" for name, found in matches.items() if len(found) > 1]
        if problems:
            raise ValueError(f"Table: every parameter needs exactly one pattern; {'; '.join(problems)}")
        return torch.tensor([self.costs[found[0]] for found in matches.values()], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class PerEntry:
    """c_j from a vector of d numbers, one an entry.

    Example:
        >>> layout = Layout.from_shapes({"w": (3,)})
        >>> PerEntry(torch.tensor([1.0, 2.0, 4.0])).joules(layout)
        tensor([1., 2., 4.], dtype=torch.float64)
    """

    costs: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerEntry) and torch.equal(torch.as_tensor(self.costs), torch.as_tensor(other.costs))

    def __hash__(self) -> int:
        return hash((PerEntry, len(self.costs)))

    def joules(self, layout: Layout) -> Tensor:
        """One number an entry."""
        costs = torch.as_tensor(self.costs).detach().to(torch.float64)
        if tuple(costs.shape) != (layout.size,):
            raise ValueError(f"PerEntry has costs of shape {tuple(costs.shape)}, the layout {layout.size} entries")
        return costs


@dataclass(frozen=True, eq=False)
class Prices:
    """A cost model applied to a layout and checked: the energy measure μ(S) = Σ_{j∈S} c_j.

    Example:
        >>> layout = Layout.from_shapes({"conv": (2, 3), "fc": (4,)}, {"fc": "linear"})
        >>> prices = Prices.of(LayerType(layers=("fc",)), layout)
        >>> prices.at(torch.tensor([0, 6]))
        tensor([1., 5.], dtype=torch.float64)
        >>> prices.total(torch.tensor([0, 6]))
        6.0
    """

    layout: Layout
    joules: Tensor  # float64: one a segment, or one an entry
    piecewise: bool  # which of the two
    finer: Finer | None = None  # where entries are blocks: the entries that they are made of

    @classmethod
    def of(cls, cost: Cost, layout: Layout) -> Prices:
        """Ask the cost model, and refuse an answer that is not positive and finite, naming the parameter."""
        check_cost(cost)
        if not isinstance(layout, Layout):
            raise ValueError(f"expected a Layout, as Layout.of(model) gives, got {type(layout).__name__}")
        joules = torch.as_tensor(cost.joules(layout))
        shapes = [(len(layout.segments),), (layout.size,)]
        if tuple(joules.shape) not in shapes:
            raise ValueError(
                f"{_called(cost)} gave costs of shape {tuple(joules.shape)}; expected one number a segment "
                f"{shapes[0]} or one an entry {shapes[1]}"
            )
        joules = joules.detach().to(torch.float64)
        piecewise = len(joules) == len(layout.segments) and not isinstance(cost, PerEntry)
        bad = ~(torch.isfinite(joules) & (joules > 0))
        if bad.any():
            i = int(bad.nonzero()[0])
            where = layout.segments[i].name if piecewise else layout.locate(i)
            raise ValueError(f"{_called(cost)}: the cost of {where} is {joules[i].item()}; it must be positive")
        return cls(layout, joules, piecewise)

    def to(self, device: torch.device) -> Prices:
        """The same prices where the update is; itself if it is there already."""
        if self.joules.device == device:
            return self
        finer = self.finer and Finer(self.finer.prices.to(device), *(t.to(device) for t in self.finer[1:]))
        return Prices(self.layout, self.joules.to(device), self.piecewise, finer)

    @cached_property
    def cheapest(self) -> float:
        """Min c_j."""
        return float(self.joules.min())

    def at(self, indices: Tensor) -> Tensor:
        """c_j of the given entries (float64)."""
        return self.joules[self.segment_of(indices) if self.piecewise else indices]

    def segment_of(self, indices: Tensor) -> Tensor:
        """Which segment each of the given entries lies in."""
        return torch.searchsorted(self.layout.ends.to(indices.device), indices, right=True)

    def exact(self, indices: Tensor) -> Fraction:
        """μ(S), exactly; the indices increase."""
        if self.finer is not None:
            return self.finer.prices.exact(self.finer.entries(indices))
        if not self.piecewise:
            return exact.total(self.joules[indices])
        upto = torch.searchsorted(indices, self.layout.ends.to(indices.device)).tolist()
        counts = (b - a for a, b in zip([0, *upto], upto, strict=False))
        return sum((n * Fraction(c) for n, c in zip(counts, self.joules.tolist(), strict=True) if n), Fraction(0))

    def total(self, indices: Tensor) -> float:
        """μ(S) in float64: the exact sum, rounded once; the indices increase."""
        return float(self.exact(indices))

    def segment(self, i: int) -> Prices:
        """The prices of one segment alone, as a layout of its own."""
        s = self.layout.segments[i]
        alone = Layout((Segment(s.name, s.shape, s.kind, 0, s.tied),))
        joules = self.joules[i : i + 1] if self.piecewise else self.joules[s.start : s.stop]
        finer = self.finer and Finer(self.finer.prices, *(t[s.start : s.stop] for t in self.finer[1:]))
        return Prices(alone, joules, self.piecewise, finer)


class Finer(NamedTuple):
    """What blocks are made of: runs of entries, with the entries' own prices."""

    prices: Prices
    starts: Tensor
    lengths: Tensor

    def entries(self, blocks: Tensor) -> Tensor:
        """The entries of some blocks, in the order of the blocks."""
        lengths = self.lengths[blocks]
        before = lengths.cumsum(0) - lengths
        return torch.arange(int(lengths.sum()), device=blocks.device) + (
            self.starts[blocks] - before
        ).repeat_interleave(lengths)


def joules_of(sparse: SparseUpdate, cost: Cost, layout: Layout) -> float:
    """The energy of an update under a cost model, μ(S) = mᵀc (float64): *modelled*, never measured.

    Example:
        >>> layout = Layout.from_shapes({"conv": (2, 3), "fc": (4,)})
        >>> sent = SparseUpdate(torch.tensor([0, 6]), torch.tensor([1.0, 2.0]), size=10)
        >>> joules_of(sent, Table({"conv": 1.0, "fc": 5.0}), layout)
        6.0

    Reference: the paper, equation (2).
    """
    if sparse.size != layout.size:
        raise ValueError(f"the update has {sparse.size} entries, the layout {layout.size}")
    return Prices.of(cost, layout).to(sparse.indices.device).total(sparse.indices)


def check_cost(cost: object) -> None:
    """Refuse what is no cost model, in the caller's words."""
    if isinstance(cost, type) or not callable(getattr(cost, "joules", None)):
        raise ValueError(f"cost must be a cost model such as Uniform(5.0), LayerType() or Table({{…}}), got {cost!r}")


def is_finite(value: object) -> bool:
    """Whether it is a finite number, of Python's or numpy's."""
    return isinstance(value, Real) and math.isfinite(value)


def _positive(what: str, value: float) -> None:
    if not (is_finite(value) and value > 0):
        raise ValueError(f"{what} must be a positive finite number, got {value!r}")


def _called(cost: Cost) -> str:
    return type(cost).__name__


def _names(layout: Layout) -> str:
    return ", ".join(repr(s.name) for s in layout.segments)
