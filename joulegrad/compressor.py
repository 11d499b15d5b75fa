"""What every operator is, and what the stateless ones have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from joulegrad import kernels
from joulegrad.cost import Prices, Uniform, is_finite
from joulegrad.layout import Layout
from joulegrad.sparse import VALUE_DTYPES, SparseUpdate

__all__ = ["Compressor", "Rule", "State"]

State: TypeAlias = Any  # a NamedTuple of prices, tensors and inner states; each operator's own


class Compressor(Protocol):
    """What every operator is: a first state, and a step that mutates nothing.

        state_0 = init(layout),    (m ⊙ g, state_{t+1}) = compress(g, state_t)

    Example:
        >>> class SendAll:
        ...     def init(self, layout):
        ...         return ()
        ...     def __call__(self, update, state):
        ...         return SparseUpdate(torch.arange(len(update)), update, len(update)), state
        >>> compress: Compressor = SendAll()
        >>> sent, state = compress(torch.tensor([1.0, 2.0]), compress.init(layout=None))
        >>> len(sent)
        2
    """

    def init(self, layout: Layout) -> State:
        """Begin: every client may start from this same value."""
        ...

    def __call__(self, update: Tensor, state: State) -> tuple[SparseUpdate, State]:
        """Choose what to send of a flat update, and say what to remember."""
        ...


class Priced(NamedTuple):
    """State of a rule that remembers nothing: what entries cost."""

    prices: Prices


class Rule(ABC):
    """A compressor that forgets what it does not send. A new one is a dataclass with `choose`.

    Example:
        >>> @dataclass(frozen=True)
        ... class FirstK(Rule):
        ...     k: int
        ...     def choose(self, update, state):
        ...         return torch.arange(self.k, device=update.device), state
        >>> op = FirstK(k=2)
        >>> sent, _ = op(torch.tensor([5.0, 6.0, 7.0]), op.init(Layout.from_shapes({"w": (3,)})))
        >>> sent.values
        tensor([5., 6.])
    """

    # Whether `choose` meets every entry in a kernel, which refuses NaN; of other rules it is checked before.
    meets_all: ClassVar[bool] = False

    @abstractmethod
    def choose(self, update: Tensor, state: State) -> tuple[Tensor, State]:
        """The indices to send, strictly increasing, and the next state."""

    def prices(self, layout: Layout) -> Prices:
        """What entries cost; a rule with a cost model asks it."""
        return Prices.of(Uniform(), layout)

    def start(self, prices: Prices) -> State:
        """The state to begin with; a rule that counts or nests adds to it."""
        return Priced(prices)

    def init(self, layout: Layout) -> State:
        """Price the layout's entries."""
        return self.start(self.prices(layout))

    def __call__(self, update: Tensor, state: State) -> tuple[SparseUpdate, State]:
        """Send the chosen entries as they are."""
        check_state(self, state, "prices")
        layout: Layout = state.prices.layout
        update = checked(update, layout)
        if not (self.meets_all or kernels.all_finite(update)):
            raise not_finite(update, layout)
        try:
            indices, state = self.choose(update, state)
        except kernels.NotFinite:
            raise not_finite(update, layout) from None
        return SparseUpdate(indices, update[indices], layout.size), state


def check_state(operator: object, state: State, field: str) -> None:
    """Refuse another operator's state."""
    if not hasattr(state, field):
        raise ValueError(f"this is not a state of {operator!r}: begin with init(layout); got {type(state).__name__}")


def check_compressor(wrapper: object, inner: object) -> None:
    """Refuse an inner operator that is none."""
    if isinstance(inner, type) or not callable(inner) or not hasattr(inner, "init"):
        raise ValueError(f"{type(wrapper).__name__} goes around an operator such as TopK(k=10), got {inner!r}")


def checked(update: Tensor, layout: Layout) -> Tensor:
    """The update as kernels want it, or an error that says where it is wrong."""
    if not isinstance(update, Tensor):
        raise ValueError(f"an update is a flat torch tensor, as Layout.grad gives, got {type(update).__name__}")
    if update.dim() != 1 or update.numel() != layout.size:
        raise ValueError(f"expected a flat update of {layout.size} entries, got shape {tuple(update.shape)}")
    if update.dtype not in VALUE_DTYPES:
        raise ValueError(f"an update is float32, float16 or bfloat16, got {update.dtype}: cast it first")
    return update.detach().contiguous()


def not_finite(update: Tensor, layout: Layout) -> ValueError:
    """The error that says where the first NaN or infinity is."""
    bad = int((~torch.isfinite(update)).nonzero()[0])
    return ValueError(f"the update holds {update[bad].item()} at entry {bad}, {layout.locate(bad)}")


def how_many(rule: Any, size: int) -> int:
    """k, or the density's share of all entries: its decimal word times size, rounded down, at least one."""
    if rule.k is not None:
        return min(int(rule.k), size)
    return _share(float(rule.density), size)


@lru_cache
def _share(density: float, size: int) -> int:
    return min(max(int(Fraction(repr(density)) * size), 1), size)


def nested(operator: Any) -> Iterator[Any]:
    """The operator and all inside it, from outside to inside."""
    while operator is not None:
        yield operator
        operator = getattr(operator, "inner", None)


def innermost(operator: Any) -> Any:
    """The rule at the heart of an operator."""
    return list(nested(operator))[-1]


def with_innermost(operator: Any, **changes: Any) -> Any:
    """The same operator with fields of its innermost rule changed."""
    if hasattr(operator, "inner"):
        return replace(operator, inner=with_innermost(operator.inner, **changes))
    return replace(operator, **changes)


def is_count(value: object) -> bool:
    """Whether it is a whole number ≥ 0, of Python's or numpy's."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 0


def check_size(rule: Any, *, required: bool = True) -> None:
    k, density, name = rule.k, rule.density, type(rule).__name__
    if k is not None and density is not None:
        raise ValueError(f"{name} takes k or density, not both: got k={k!r} and density={density!r}")
    if required and k is None and density is None:
        raise ValueError(f"{name} needs k (a count) or density (a fraction)")
    if k is not None and not is_count(k):
        hint = f"; for a fraction write density={k!r}" if isinstance(k, float) and 0 < k <= 1 else ""
        raise ValueError(f"k must be a whole number ≥ 0, got {k!r}{hint}")
    if density is not None and not (is_finite(density) and 0 < density <= 1):
        raise ValueError(f"density must be in (0, 1], got {density!r}")


def check_power(power: int) -> None:
    if power not in (1, 2):
        raise ValueError(f"power must be 1 (|g| / c) or 2 (g² / c), got {power!r}")


def check_joules(joules: float) -> None:
    if not is_finite(joules) or joules < 0:
        raise ValueError(f"joules must be a finite number ≥ 0, got {joules!r}")


def check_seed(seed: int) -> None:
    if not is_count(seed):
        raise ValueError(f"seed must be a whole number ≥ 0, got {seed!r}")
