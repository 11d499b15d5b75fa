"""Many sparse updates into one dense vector, one update in memory at a time.

The sums are exact. Each term w_k v_kj is rounded once, to float64, and added as an integer (`_ExactSum`); integers add
up to the same whatever the order, and the sum is rounded once, to the nearest float64. So the mean does not depend on
the order in which clients answer, on threads or on the device, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad.cost import is_finite
from joulegrad.sparse import SparseUpdate

__all__ = ["Mean", "mean"]


class Mean(NamedTuple):
    """The weighted mean of some updates, and of the buffers that travelled with them.

    Example:
        >>> sent = SparseUpdate(torch.tensor([1]), torch.tensor([4.0]), size=2)
        >>> mean([(sent, 10)])
        Mean(update=tensor([0., 4.]), buffers=None)
    """

    update: Tensor  # flat, float32: ready for Layout.set_grad
    buffers: Tensor | None  # flat, float32: ready for Layout.assign_buffers


def mean(
    updates: Iterable[tuple[SparseUpdate, float]],
    *,
    by: Literal["all", "senders"] = "all",
    clip: Literal["median"] | float | None = None,
) -> Mean:
    """Average updates: Σ_k p_k (m_k ⊙ g_k) with p_k = w_k / Σ w.

    `updates` may be a generator, so that each payload is decoded when its turn comes. The result is the same to
    the last bit in any order.

    Args:
        updates: pairs of an update and its weight, usually the client's number of examples.
        by: "all" divides every entry by the weight of all clients, so an entry that few sent moves little;
            "senders" by the weight of those who sent it (0 where nobody did).
        clip: scale every update whose L2 norm is larger down to this norm. "median" takes the median of the
            updates' own norms and reads them twice, so it wants a list. Buffers are not clipped.

    Example:
        >>> a = SparseUpdate(torch.tensor([0, 1]), torch.tensor([1.0, 1.0]), size=3)
        >>> b = SparseUpdate(torch.tensor([1]), torch.tensor([5.0]), size=3)
        >>> mean([(a, 300), (b, 100)]).update
        tensor([0.7500, 2.0000, 0.0000])
        >>> mean([(a, 300), (b, 100)], by="senders").update
        tensor([1., 2., 0.])

    Reference: the paper, section II, step 4; McMahan et al., 2017.
    """
    if by not in ("all", "senders"):
        raise ValueError(f"by must be 'all' or 'senders', got {by!r}")
    most = _norm_limit(updates, clip)
    total: _Totals | None = None
    for n, pair in enumerate(updates):
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], SparseUpdate):
            raise ValueError(f"updates are pairs (SparseUpdate, weight), got {pair!r} at {n}")
        update, weight = pair
        if not is_finite(weight) or weight < 0:
            raise ValueError(f"update {n} has weight {weight!r}; a weight is a finite number ≥ 0")
        if total is None:
            total = _Totals(update, by)
        total.add(n, update, float(weight), most)
    if total is None:
        raise ValueError("there are no updates to average")
    return total.mean()


def _norm_limit(updates: Iterable[tuple[SparseUpdate, float]], clip: str | float | None) -> float | None:
    if clip is None:
        return None
    if clip == "median":
        if not isinstance(updates, Sequence):
            raise ValueError("clip='median' reads the updates twice: pass a list, or the norm itself as clip")
        return median(_norm(update) for update, _ in updates) if updates else None
    if isinstance(clip, int | float) and 0 < clip < math.inf:
        return float(clip)
    raise ValueError(f"clip must be 'median', a positive norm or None, got {clip!r}")


def _norm(update: SparseUpdate) -> float:
    return float(update.values.double().square().sum().sqrt())


class _Totals:
    """The running sums of one call of `mean`."""

    def __init__(self, first: SparseUpdate, by: str) -> None:
        self.size, self.device = first.size, first.values.device
        self.update = _ExactSum(self.size, self.device)
        self.senders = _ExactSum(self.size, self.device) if by == "senders" else None
        self.buffers = None if first.buffers is None else _ExactSum(len(first.buffers), self.device)
        self.weights: list[float] = []

    def add(self, n: int, update: SparseUpdate, weight: float, most: float | None) -> None:
        if update.size != self.size:
            raise ValueError(f"update {n} has {update.size} entries, those before it {self.size}: another model's?")
        had = None if self.buffers is None else self.buffers.size
        has = None if update.buffers is None else len(update.buffers)
        if had != has:
            raise ValueError(f"update {n} carries {has or 'no'} buffer entries, those before it {had or 'none'}")
        norm = 0.0 if most is None else _norm(update)
        scale = 1.0 if most is None or norm <= most else most / norm
        self.weights.append(weight)
        self.update.add(update.indices, Terms(update.values, scale, weight, f"update {n} has a value"))
        if self.senders is not None:
            self.senders.add(
                update.indices, Terms(torch.ones_like(update.values), 1.0, weight, f"update {n} has a weight")
            )
        if self.buffers is not None and update.buffers is not None:
            everywhere = torch.arange(len(update.buffers), device=self.device)
            self.buffers.add(everywhere, Terms(update.buffers, 1.0, weight, f"update {n} has a buffer"))

    def mean(self) -> Mean:
        weight = math.fsum(self.weights)
        if weight == 0:
            raise ValueError(f"the weights of all {len(self.weights)} updates are zero")
        if self.senders is None:
            update = self.update.over(weight)
        else:
            weights = self.senders.value()
            update = torch.where(weights > 0, self.update.value() / weights, 0.0)
        buffers = None if self.buffers is None else self.buffers.over(weight)
        return Mean(update.float(), buffers)


class Terms(NamedTuple):
    """value · scale · weight in float64, not computed before they are wanted."""

    values: Tensor
    scale: float
    weight: float
    whose: str  # for errors

    def at(self, places: Tensor | slice) -> Tensor:
        """Some of them. One client's NaN would be everybody's."""
        terms = self.values.double()[places] * self.scale * self.weight
        finite = torch.isfinite(terms)
        if not bool(finite.all()):
            first = torch.arange(len(self.values), device=finite.device)[places][~finite][0]
            raise ValueError(f"{self.whose} that is not finite, or too large for its weight, at place {int(first)}")
        return terms


class _ExactSum:
    """`size` sums of float64 terms, exact until they are read, and then rounded once.

    A term is m · 2^e with an integer |m| < 2^53. On the CPU it is added to an integer of 128 bits a sum, a row of the
    window, if it fits there; the unit is chosen from the first terms. Any other term is cut at the multiples of 2^32
    into up to three digits, and digit i of every term is added into one int64 a sum, which has room for 2^31 terms;
    places take memory as they occur. Which term went where does not show in the sum.
    """

    BITS = 32

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, self.device = size, device
        self.digits: dict[int, Tensor] = {}  # place → Σ digit, in units of 2^(32 · place)
        self.window: Tensor | None = None
        self.unit = 0  # the window's, a power of two that is a multiple of 32

    def add(self, indices: Tensor, terms: Terms) -> None:
        """Add one term to each of the given sums."""
        left: Tensor | slice = slice(None)
        if self.device.type == "cpu" and len(indices):
            left = self._add_to_window(indices, terms)
            indices = indices[left]
        if len(indices):
            self._add_anywhere(indices, terms.at(left))

    def _add_to_window(self, indices: Tensor, terms: Terms) -> Tensor:
        """Add what fits the window; which terms do not."""
        from joulegrad.kernels import sums, threads

        if self.window is None:
            self.unit = sums.unit_of(terms.at(slice(None)).numpy().view(np.int64))
            window = np.empty((self.size, 2), np.int64)  # in large pages; np.zeros would give small ones
            threads.each(lambda part: sums.clear(window, *part), threads.chunks(self.size))
            self.window = torch.from_numpy(window)
        values = terms.values if terms.values.dtype == torch.float32 else terms.values.float()
        v, rows, window = values.contiguous().numpy(), indices.numpy(), self.window.numpy()
        cuts = [slice(first // 8, last // 8) for first, last in threads.chunks(8 * len(v))]
        spilled = np.empty(len(v), np.int64)

        def one(cut: slice) -> NDArray[np.int64]:
            n = sums.scatter(v[cut], terms.scale, terms.weight, rows[cut], window, self.unit, spilled[cut])
            left: NDArray[np.int64] = spilled[cut][:n] + cut.start
            return left

        return torch.from_numpy(np.concatenate(threads.each(one, cuts)))

    def _add_anywhere(self, indices: Tensor, terms: Tensor) -> None:
        mask = 2**self.BITS - 1
        fraction, exponent = torch.frexp(terms)
        m, e = (fraction * 2.0**53).to(torch.int64), exponent.to(torch.int64) - 53
        sign, m = m.sign(), m.abs()
        place, shift = e // self.BITS, e % self.BITS
        lowest, above = (m & (mask >> shift)) << shift, m >> (self.BITS - shift)
        for i, digit in enumerate((lowest, above & mask, above >> self.BITS)):
            present = digit != 0
            for p in place[present].unique().tolist():
                here = present & (place == p)
                if p + i not in self.digits:
                    self.digits[p + i] = torch.zeros(self.size, dtype=torch.int64, device=self.device)
                self.digits[p + i].index_add_(0, indices[here], (sign * digit)[here])

    def over(self, divisor: float) -> Tensor:
        """The sums over a divisor, in float32."""
        if self.window is None or self.digits:
            return (self.value() / divisor).float()
        return self._read(divisor, np.empty(self.size, np.float32))

    def value(self) -> Tensor:
        """The sums in float64: each the nearest to what is exact."""
        if self.window is None:
            return _nearest(self.digits, self.size, self.device)
        total = self._read(1.0, np.empty(self.size))
        if self.digits:
            some = torch.stack([d != 0 for d in self.digits.values()]).any(0).nonzero().squeeze(1)
            places, mask = {p: d[some] for p, d in self.digits.items()}, 2**self.BITS - 1
            low, high = self.window[some].unbind(1)
            for i, digit in enumerate((low & mask, low >> 32 & mask, high & mask, high >> 32)):
                place = self.unit // self.BITS + i
                places[place] = places[place] + digit if place in places else digit
            total[some] = _nearest(places, len(some), self.device)
        return total

    def _read(self, divisor: float, out: NDArray[Any]) -> Tensor:
        from joulegrad.kernels import sums, threads

        window = self.window.numpy()  # type: ignore[union-attr]
        threads.each(lambda p: sums.read(window, self.unit, p[0], p[1], divisor, out), threads.chunks(self.size))
        return torch.from_numpy(out)


def _nearest(places: dict[int, Tensor], size: int, device: torch.device) -> Tensor:
    """Sums of digits, in units of 2^(32 · place), as the nearest float64.

    Carried, so that each digit has 32 bits, and without their sign; then from the top as many bits as an int64 has
    room for, more than a float64 has, and one that says whether any is set below.
    """
    zero, mask = torch.zeros(size, dtype=torch.int64, device=device), 2**_ExactSum.BITS - 1
    if not places:
        return zero.double()
    at = range(min(places), max(places) + 3)  # two more for what is carried beyond
    carry, carried = zero, []
    for p in at:
        digit = places.get(p, zero) + carry
        carry = digit >> _ExactSum.BITS
        carried.append(digit & mask)
    negative, borrow = carry < 0, (carry < 0).long()
    for i, digit in enumerate(carried):
        digit = torch.where(negative, mask - digit + borrow, digit)
        borrow = digit >> _ExactSum.BITS
        carried[i] = digit & mask
    top, below, up = zero, zero.bool(), zero
    for p, digit in zip(reversed(at), reversed(carried), strict=True):
        for shift in (24, 16, 8, 0):
            byte, room = digit >> shift & 255, top < 2**54
            top, up = torch.where(room, top << 8 | byte, top), torch.where(room, _ExactSum.BITS * p + shift, up)
            below |= ~room & (byte != 0)
    half = up >> 1  # 2^up itself may be out of range
    total = (top | below.long()).double() * _power(half) * _power(up - half)
    return torch.where(negative, -total, total)


def _power(exponent: Tensor) -> Tensor:
    """2^exponent, exactly."""
    return (exponent + 1023 << 52).view(torch.float64)
