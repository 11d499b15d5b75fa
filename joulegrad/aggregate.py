"""Many sparse updates into one dense vector, one update in memory at a time.

The sums are exact. Each term w_k v_kj is rounded once, to float64, and split into 32-bit digits at fixed
absolute places (`_ExactSum`); digits are added as 64-bit integers, and integers add up to the same whatever
the order. So the mean does not depend on the order in which clients answer, on threads or on the device, to
the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple

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
        values = update.values.double()
        if most is not None and (norm := _norm(update)) > most:
            values = values * (most / norm)
        self.weights.append(weight)
        self.update.add(update.indices, _finite(values * weight, n, "value"))
        if self.senders is not None:
            self.senders.add(update.indices, torch.full_like(values, weight))
        if self.buffers is not None and update.buffers is not None:
            everywhere = torch.arange(len(update.buffers), device=self.device)
            self.buffers.add(everywhere, _finite(update.buffers.double() * weight, n, "buffer"))

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


def _finite(terms: Tensor, n: int, what: str) -> Tensor:
    """One client's NaN would be everybody's."""
    finite = torch.isfinite(terms)
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        raise ValueError(f"update {n} has a {what} that is not finite, or too large for its weight, at place {first}")
    return terms


class _ExactSum:
    """`size` sums of float64 terms, exact until they are read.

    A term is m · 2^e with an integer |m| < 2^53. It is cut at the multiples of 2^32 into up to three digits, and
    digit i of every term is added into one int64 a sum, which has room for 2^31 terms. On the CPU three places, down
    from the highest that the first terms reach, lie side by side in a window; other places take memory as they occur.
    """

    BITS, PLACES = 32, 3

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, self.device = size, device
        self.digits: dict[int, Tensor] = {}  # place → Σ digit, in units of 2^(32 · place)
        self.window: Tensor | None = None
        self.base = 0  # the window's lowest place

    def add(self, indices: Tensor, terms: Tensor) -> None:
        """Add one term to each of the given sums."""
        if self.device.type == "cpu" and len(terms):
            left = self._add_to_window(indices, terms)
            indices, terms = indices[left], terms[left]
        if len(terms):
            self._add_anywhere(indices, terms)

    def _add_to_window(self, indices: Tensor, terms: Tensor) -> Tensor:
        """Add what fits the window; which terms do not."""
        from joulegrad.kernels import sums, threads

        bits, rows = terms.contiguous().numpy().view(np.int64), indices.numpy()
        if self.window is None:
            self.base = sums.place_of(bits) - self.PLACES + 1
            window = np.empty((self.size, self.PLACES), np.int64)  # in large pages; np.zeros would give small ones
            window.fill(0)
            self.window = torch.from_numpy(window)
        window, parts = self.window.numpy(), threads.chunks(8 * len(bits))
        cuts = [slice(first // 8, last // 8) for first, last in parts]
        spilled = np.empty(len(bits), np.int64)

        def one(cut: slice) -> NDArray[np.int64]:
            n = sums.scatter(bits[cut], rows[cut], window, self.base, spilled[cut])
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
        from joulegrad.kernels import sums, threads

        window, out = self.window.numpy(), np.empty(self.size, np.float32)
        threads.each(lambda p: sums.read(window, self.base, p[0], p[1], divisor, out), threads.chunks(self.size))
        return torch.from_numpy(out)

    def value(self) -> Tensor:
        """The sums in float64, from the highest place down."""
        places = dict(self.digits)
        for p in range(self.PLACES if self.window is not None else 0):
            place, column = self.base + p, self.window[:, p]  # type: ignore[index]
            places[place] = places[place] + column if place in places else column
        total = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        for place, digits in sorted(places.items(), reverse=True):
            half = math.ldexp(1.0, self.BITS // 2 * place)  # 2^(32·place) itself may be out of range
            total += digits.double() * half * half
        return total
