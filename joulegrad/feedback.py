"""What to remember, and how values are rounded: operators that wrap other operators.

    ErrorFeedback        what was not sent is added to the next update
    MomentumCorrection   the same, with momentum kept on the client
    WarmUp               denser at first
    Clipped              no longer than a norm
    Quantized            values as 1, 2, 4 or 8 bits with a scale a layer
    Rounded              values as fp16 or bf16

Every lossy step belongs inside the feedback loop, where what it loses is remembered:
`ErrorFeedback(Quantized(CWMP(…)))`. An order that would lose something is refused.

A state is a value. A payload that was lost on the way is as if it had never been sent: keep the old state.

    sent, after = compress(update, state)
    state = after if delivered else state
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joulegrad import exact, kernels
from joulegrad.compressor import (
    Compressor,
    Rule,
    State,
    check_compressor,
    check_seed,
    check_state,
    checked,
    innermost,
    is_count,
    nested,
    not_finite,
    with_innermost,
)
from joulegrad.cost import is_finite
from joulegrad.layout import Layout
from joulegrad.sparse import Codes, SparseUpdate

__all__ = [
    "Clipped",
    "ErrorFeedback",
    "MomentumCorrection",
    "Quantized",
    "Rounded",
    "WarmUp",
]


class Residual(NamedTuple):
    """State of `ErrorFeedback`: what has not been sent yet."""

    layout: Layout
    residual: Tensor
    inner: State


@dataclass(frozen=True)
class ErrorFeedback:
    """Remember what was not sent: a_t = g_t + decay · r_t, send C(a_t), r_{t+1} = a_t − C(a_t).

    Nothing is lost: what is sent plus the new residual is what was given, up to the residual's own float32: the
    difference itself for values in fp32 and bf16 (and fp16 below 65504), the number nearest to it for codes.

    Args:
        inner: what compresses a_t.
        decay: of the residual, in [0, 1]; 1 forgets nothing, less forgets stale updates.

    Example:
        >>> op = ErrorFeedback(TopK(k=1))
        >>> state = op.init(Layout.from_shapes({"w": (2,)}))
        >>> sent, state = op(torch.tensor([3.0, 2.0]), state)
        >>> sent, state = op(torch.tensor([1.0, 2.0]), state)
        >>> sent.to_dense(), state.residual
        (tensor([0., 4.]), tensor([1., 0.]))

    Reference: Karimireddy et al., Error Feedback Fixes SignSGD, 2019.
    """

    inner: Compressor
    decay: float = 1.0

    def __post_init__(self) -> None:
        check_compressor(self, self.inner)
        _check_fraction("decay", self.decay)
        _check_one_memory(self)

    def init(self, layout: Layout) -> Residual:
        """Begin with nothing left over."""
        inner = self.inner.init(layout)
        return Residual(layout, torch.zeros(layout.size), inner)

    def __call__(self, update: Tensor, state: Residual) -> tuple[SparseUpdate, Residual]:
        """Send the best of the update and what was left over."""
        check_state(self, state, "residual")
        update = _refusing_nan(self, checked(update, state.layout), state.layout)
        residual = state.residual.to(update.device)
        given = _plus(update.float(), residual if self.decay == 1 else self.decay * residual)
        sent, inner = self.inner(given, state.inner)
        return sent, Residual(state.layout, _less(given, sent), inner)


class Momentum(NamedTuple):
    """State of `MomentumCorrection`: its two memories."""

    layout: Layout
    velocity: Tensor
    residual: Tensor
    inner: State


@dataclass(frozen=True)
class MomentumCorrection:
    """Momentum on the client, accumulated like a residual: u ← m u + g, a = r + u, send C(a).

    At the entries that were sent both memories are cleared (momentum factor masking), so that stale momentum
    does not push what the server has just moved; what rounding lost of them stays in the residual. The client's
    own SGD, or the server's rule, then runs without momentum.

    Args:
        inner: what compresses a.
        momentum: m, in [0, 1).

    Example:
        >>> op = MomentumCorrection(TopK(k=1), momentum=0.5)
        >>> state = op.init(Layout.from_shapes({"w": (2,)}))
        >>> for _ in range(2):
        ...     sent, state = op(torch.tensor([3.0, 2.0]), state)
        >>> sent.to_dense()         # 2 stayed behind, then 2 + (0.5 · 2 + 2) = 5
        tensor([0., 5.])
        >>> state.velocity, state.residual
        (tensor([3., 0.]), tensor([3., 0.]))

    Reference: Lin et al., Deep Gradient Compression, 2018, sections 3.1 and 3.2.
    """

    inner: Compressor
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_compressor(self, self.inner)
        _check_fraction("momentum", self.momentum)
        if self.momentum == 1:
            raise ValueError("momentum must be below 1, got 1: the velocity would never stop growing")
        _check_one_memory(self)

    def init(self, layout: Layout) -> Momentum:
        """Begin at rest."""
        inner, zeros = self.inner.init(layout), torch.zeros(layout.size)
        return Momentum(layout, zeros, zeros, inner)

    def __call__(self, update: Tensor, state: Momentum) -> tuple[SparseUpdate, Momentum]:
        """Send the best of what has accumulated."""
        check_state(self, state, "velocity")
        update = _refusing_nan(self, checked(update, state.layout), state.layout)
        velocity = update.float() + self.momentum * state.velocity.to(update.device)
        given = _plus(velocity, state.residual.to(update.device))
        sent, inner = self.inner(given, state.inner)
        velocity[sent.indices] = 0.0
        return sent, Momentum(state.layout, velocity, _less(given, sent), inner)


class Warming(NamedTuple):
    """State of `WarmUp`: how many updates there have been."""

    step: Tensor
    inner: State


@dataclass(frozen=True)
class WarmUp:
    """Denser at first: density_t = start^(1 − t/steps) · density^(t/steps) for t < steps, then density.

    Args:
        inner: any operator whose rule is given a `density`.
        start: the first update's density, in (0, 1].
        steps: after how many updates the rule's own density holds.

    Example:
        >>> op = WarmUp(TopK(density=0.01), start=1.0, steps=2)
        >>> state, counts = op.init(Layout.from_shapes({"w": (100,)})), []
        >>> for _ in range(4):
        ...     sent, state = op(torch.ones(100), state)
        ...     counts.append(len(sent))
        >>> counts
        [100, 10, 1, 1]

    Reference: Lin et al., Deep Gradient Compression, 2018, section 3.3.
    """

    inner: Compressor
    start: float = 0.25
    steps: int = 4

    def __post_init__(self) -> None:
        check_compressor(self, self.inner)
        if not (is_finite(self.start) and 0 < self.start <= 1):
            raise ValueError(f"start must be in (0, 1], got {self.start!r}")
        if not is_count(self.steps):
            raise ValueError(f"steps must be a whole number ≥ 0, got {self.steps!r}")
        _refuse(self, (WarmUp,), "one warm-up is enough: nest only one WarmUp")
        if getattr(innermost(self), "density", None) is None:
            raise ValueError(f"WarmUp lowers a density to the rule's own, so give the rule one: {innermost(self)!r}")
        if self.start < innermost(self).density:
            raise ValueError(
                f"WarmUp begins denser: start {self.start!r} is below the density {innermost(self).density!r}"
            )

    def init(self, layout: Layout) -> Warming:
        """Begin at step 0."""
        return Warming(torch.tensor(0), self.inner.init(layout))

    def __call__(self, update: Tensor, state: Warming) -> tuple[SparseUpdate, Warming]:
        """Compress at this step's density."""
        check_state(self, state, "step")
        step, inner = int(state.step), self.inner
        if step < self.steps:
            share = step / self.steps
            density = self.start ** (1 - share) * innermost(self).density ** share
            inner = with_innermost(inner, density=density)
        sent, inner_state = inner(update, state.inner)
        return sent, Warming(torch.tensor(step + 1), inner_state)


class Clip(NamedTuple):
    """State of `Clipped`: the inner operator's."""

    layout: Layout
    inner: State


@dataclass(frozen=True)
class Clipped:
    """The update, no longer than `norm`: g ← g · min(1, norm / ‖g‖₂), before anything is remembered of it.

    It goes around a memory, as in Deep Gradient Compression: what is clipped away is meant to be gone.

    Args:
        inner: what is given the clipped update.
        norm: the largest ‖g‖₂, in the update's own unit.

    Example:
        >>> op = Clipped(TopK(k=1), norm=1.0)
        >>> sent, _ = op(torch.tensor([3.0, -4.0]), op.init(Layout.from_shapes({"w": (2,)})))
        >>> sent.values
        tensor([-0.8000])

    Reference: Lin et al., Deep Gradient Compression, 2018, section 3.1.
    """

    inner: Compressor
    norm: float = 1.0

    def __post_init__(self) -> None:
        check_compressor(self, self.inner)
        if not (is_finite(self.norm) and self.norm > 0):
            raise ValueError(f"norm must be a finite number > 0, got {self.norm!r}")

    def init(self, layout: Layout) -> Clip:
        """The inner operator's state."""
        return Clip(layout, self.inner.init(layout))

    def __call__(self, update: Tensor, state: Clip) -> tuple[SparseUpdate, Clip]:
        """Clip, then compress."""
        check_state(self, state, "layout")
        update = checked(update, state.layout)
        if not kernels.all_finite(update):
            raise not_finite(update, state.layout)
        length = float(exact.total(update.double().square())) ** 0.5  # the same on any number of threads
        if length > self.norm:
            update = (update.double() * (self.norm / length)).float()
        sent, inner = self.inner(update, state.inner)
        return sent, Clip(state.layout, inner)


class Coded(NamedTuple):
    """State of `Quantized`: how many updates there have been."""

    layout: Layout
    step: Tensor
    inner: State


@dataclass(frozen=True)
class Quantized:
    """Values as small integers with one scale a layer: v = scale · (2 · level − (2^bits − 1)).

    The scale makes the layer's largest sent magnitude the outermost level; with 1 bit and nearest rounding it is
    the mean magnitude instead, v = sign(g) · mean |g|. No level is zero, so entries that are exactly zero are not
    sent. Stochastic rounding is unbiased, E[v] = g; its draw depends on the values too, so that clients that share an
    operator do not share their errors.

    Args:
        inner: what chooses the entries.
        bits: 1, 2, 4 or 8.
        rounding: "nearest" or "stochastic".
        seed: of the operator's own generator, for stochastic rounding.

    Example:
        >>> op = Quantized(TopK(k=3), bits=1)
        >>> sent, _ = op(torch.tensor([3.0, -1.0, 2.0]), op.init(Layout.from_shapes({"w": (3,)})))
        >>> sent.values, sent.codes.levels
        (tensor([ 2., -2.,  2.]), tensor([1, 0, 1], dtype=torch.uint8))

    Reference: Alistarh et al., QSGD, 2017; Bernstein et al., signSGD, 2018.
    """

    inner: Compressor
    bits: int = 8
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: int = 0

    def __post_init__(self) -> None:
        check_compressor(self, self.inner)
        if self.bits not in (1, 2, 4, 8) or isinstance(self.bits, bool):
            raise ValueError(f"bits must be 1, 2, 4 or 8, got {self.bits!r}")
        if self.rounding not in ("nearest", "stochastic"):
            raise ValueError(f"rounding must be 'nearest' or 'stochastic', got {self.rounding!r}")
        check_seed(self.seed)
        _check_values_once(self)

    def init(self, layout: Layout) -> Coded:
        """Begin at step 0."""
        return Coded(layout, torch.tensor(0), self.inner.init(layout))

    def __call__(self, update: Tensor, state: Coded) -> tuple[SparseUpdate, Coded]:
        """Choose, then code what was chosen."""
        check_state(self, state, "step")
        sent, inner = self.inner(update, state.inner)
        indices, values = sent.indices, sent.values
        if int(values.count_nonzero()) < len(values):
            indices, values = indices[values != 0], values[values != 0]
        codes = self._code(indices, values, state)
        coded = SparseUpdate(indices, kernels.values_of(codes), sent.size, codes, sent.buffers)
        return coded, Coded(state.layout, state.step + 1, inner)

    def _code(self, indices: Tensor, values: Tensor, state: Coded) -> Codes:
        upto = torch.searchsorted(indices, state.layout.ends.to(indices.device))
        counts = upto.diff(prepend=upto.new_zeros(1))
        most = 2**self.bits - 1  # the outermost level, as an odd multiple of the scale
        scales = kernels.scales(values, counts, most, mean=self.bits == 1 and self.rounding == "nearest")
        dither = None
        if self.rounding == "stochastic":
            drawn_from = [self.seed, int(state.step), zlib.crc32(values.double().cpu().numpy().tobytes())]
            dither = torch.from_numpy(np.random.default_rng(drawn_from).random(len(values))).to(values.device)
        return Codes(self.bits, kernels.levels(values, counts, most, scales, dither), scales, counts)


@dataclass(frozen=True)
class Rounded:
    """Values as 16-bit floats, rounded to nearest: half the bytes of a value.

    A magnitude beyond fp16's largest, 65504, is sent as that; inside ErrorFeedback the rest is remembered.

    Args:
        inner: what chooses the entries.
        dtype: "fp16" or "bf16".

    Example:
        >>> op = Rounded(TopK(k=1), dtype="bf16")
        >>> sent, _ = op(torch.tensor([1.001, 0.0]), op.init(Layout.from_shapes({"w": (2,)})))
        >>> sent.values
        tensor([1.], dtype=torch.bfloat16)
    """

    inner: Compressor
    dtype: Literal["fp16", "bf16"] = "bf16"

    def __post_init__(self) -> None:
        check_compressor(self, self.inner)
        if self.dtype not in ("fp16", "bf16"):
            raise ValueError(f"dtype must be 'fp16' or 'bf16', got {self.dtype!r}")
        _check_values_once(self)

    def init(self, layout: Layout) -> State:
        """The inner operator's state: rounding remembers nothing."""
        return self.inner.init(layout)

    def __call__(self, update: Tensor, state: State) -> tuple[SparseUpdate, State]:
        """Choose, then round what was chosen."""
        sent, state = self.inner(update, state)
        dtype = torch.float16 if self.dtype == "fp16" else torch.bfloat16
        most = torch.finfo(dtype).max
        return replace(sent, values=sent.values.clamp(-most, most).to(dtype)), state


def _plus(a: Tensor, b: Tensor) -> Tensor:
    """The sum; on the CPU in numpy's memory, which comes in large pages: half the time at 10^7 entries."""
    if a.device.type != "cpu":
        return a + b
    return torch.add(a, b, out=torch.from_numpy(np.empty(len(a), np.float32)))


def _less(given: Tensor, sent: SparseUpdate) -> Tensor:
    """Given − sent, in place: `given` is ours, unless the inner operator has sent a part of it as it is."""
    if given.untyped_storage().data_ptr() == sent.values.untyped_storage().data_ptr():
        given = given.clone()
    given[sent.indices] -= sent.values.float()
    return given


def _refusing_nan(operator: Any, update: Tensor, layout: Layout) -> Tensor:
    """A rule inside looks at what it is given; of others it is not known."""
    if not isinstance(innermost(operator), Rule) and not kernels.all_finite(update):
        raise not_finite(update, layout)
    return update


def _refuse(operator: Any, inside: tuple[type, ...], why: str) -> None:
    for other in list(nested(operator))[1:]:
        if isinstance(other, inside):
            raise ValueError(f"{type(operator).__name__} cannot go around {type(other).__name__}: {why}")


def _check_one_memory(operator: Any) -> None:
    why = "what was not sent would be remembered twice, and sent twice"
    _refuse(operator, (ErrorFeedback, MomentumCorrection), why)
    name = type(operator).__name__
    _refuse(operator, (Clipped,), f"what was clipped away would come back; write Clipped({name}(…))")
    if getattr(innermost(operator), "unbiased", False):
        raise ValueError(
            f"{name} cannot go around RandomK(unbiased=True): scaled by d/k, the update is right "
            "on average by itself, and its residual would grow without bound; use unbiased=False"
        )


def _check_values_once(operator: Any) -> None:
    name = type(operator).__name__
    _refuse(
        operator,
        (ErrorFeedback, MomentumCorrection),
        f"what rounding loses must be remembered; write ErrorFeedback({name}(…))",
    )
    _refuse(operator, (Quantized, Rounded), "values are rounded once")


def _check_fraction(what: str, value: float) -> None:
    if not (is_finite(value) and 0 <= value <= 1):
        raise ValueError(f"{what} must be in [0, 1], got {value!r}")
