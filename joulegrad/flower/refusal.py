"""What a server does not take from a client, and why.

not a reply as agreed    other records than asked for, no joulegrad payload
replayed                 the payload answers another question than the one just asked
malformed                it does not decode, or is for a model of another form: `WireError`
absurd examples          a number of examples that is no positive number, or far beyond everybody else's
too large                an update, or statistics, whose norm is far beyond the model's or everybody else's
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch
from flwr.app import Message, MetricRecord, RecordDict

from joulegrad.compressor import is_count
from joulegrad.cost import is_finite
from joulegrad.flower.arrays import Form, Model, payload_of
from joulegrad.flower.client import NONCE
from joulegrad.wire import WireError, decode

__all__ = ["Accepted", "Limits", "Refused", "check_metrics", "examples_of", "opened", "outliers"]

MANY = 3  # replies from which on there is a majority


class Refused(NamedTuple):
    """Something that was not taken."""

    round: int
    node: int
    reason: str


class Rejected(ValueError):
    """The reason for which a reply is refused."""


class Accepted(NamedTuple):
    """A reply that decodes; its update is decoded again when its turn comes to be added."""

    node: int
    message: Message
    key: str  # of its ArrayRecord
    payload: bytes
    examples: float
    entries: int
    norm: float  # of the update
    moved: float  # how far the statistics are from the server's


@dataclass(frozen=True)
class Limits:
    """How far from all others a client may be.

    Args:
        norm: times the median norm of a round's updates, and times the model's own (at least 1), is too large.
        examples: times the median number of a round's examples is too many.
        most_examples: too many whatever the others say.

    Example:
        >>> Limits(norm=10.0).examples
        1000.0
    """

    norm: float = 100.0
    examples: float = 1000.0
    most_examples: int = 10**7

    def __post_init__(self) -> None:
        for name in ("norm", "examples"):
            value = getattr(self, name)
            if not (is_finite(value) and value >= 1):
                raise ValueError(f"{name} must be a number ≥ 1, got {value!r}")
        if not is_count(self.most_examples) or self.most_examples < 1:
            raise ValueError(f"most_examples must be a whole number ≥ 1, got {self.most_examples!r}")


def opened(
    node: int, message: Message, question: bytes, form: Form, model: Model, weighted_by: str, limits: Limits
) -> Accepted:
    """Decode a reply, or raise `Rejected`; `question` is the nonce that this node was sent in this round."""
    records = message.content.array_records
    if len(records) != 1:
        raise Rejected(f"a reply has one ArrayRecord, and this one has {len(records)}")
    key, arrays = next(iter(records.items()))
    data = payload_of(arrays)
    if data is None or len(arrays) != 1:
        raise Rejected("its arrays are no joulegrad payload: does its ClientApp have mods=[compress(…)]?")
    if data[:NONCE] != question:
        raise Rejected("replayed: its payload does not answer the question of this round")
    examples = examples_of(message.content, weighted_by, limits)
    try:
        update = decode(memoryview(data)[NONCE:], form.layout)
    except WireError as why:
        raise Rejected(f"{type(why).__name__} at byte {why.offset}: {why}") from None
    norm = _norm(update.values)
    if not norm <= limits.norm * max(_norm(model.weights), 1.0):
        raise Rejected(f"too large: its update has norm {norm:.3g}, the model has {_norm(model.weights):.3g}")
    moved = 0.0
    if update.buffers is not None:
        moved = _norm(update.buffers - model.buffers)
        for s in form.layout.buffers:
            if s.name.endswith("var") and bool((update.buffers[s.start : s.stop] < 0).any()):
                raise Rejected(f"a variance in {s.name} is negative")
    return Accepted(node, message, key, data[NONCE:], examples, len(update), norm, moved)


def examples_of(content: RecordDict, weighted_by: str, limits: Limits) -> float:
    """The weight that a reply asks for."""
    if len(content.metric_records) != 1:
        raise Rejected(f"a reply has one MetricRecord, and this one has {len(content.metric_records)}")
    found = _metrics(content).get(weighted_by)
    if not (is_finite(found) and 0 < found <= limits.most_examples):  # type: ignore[operator]
        raise Rejected(f"absurd examples: {weighted_by} is {found!r}, allowed are 1 to {limits.most_examples:,}")
    return float(found)  # type: ignore[arg-type]


def outliers(replies: list[Accepted], limits: Limits) -> Iterable[tuple[Accepted, str]]:
    """Which of a round's replies are far from all others; with fewer than three there is no telling who is right."""
    if len(replies) < MANY:
        return
    norm, examples, moved = (median(getattr(r, f) for r in replies) for f in ("norm", "examples", "moved"))
    for r in replies:
        if norm > 0 and r.norm > limits.norm * norm:
            yield r, f"too large: its update has norm {r.norm:.3g}, the median of the round is {norm:.3g}"
        elif moved > 0 and r.moved > limits.norm * moved:
            yield r, f"too large: its statistics moved by {r.moved:.3g}, the median of the round is {moved:.3g}"
        elif r.examples > limits.examples * examples:
            yield r, f"absurd examples: {r.examples:,g}, the median of the round is {examples:,g}"


def check_metrics(contents: list[RecordDict]) -> list[str | None]:
    """For each reply, what of its metrics differs from most others'; None: nothing. Flower stops at a difference."""
    forms = [
        (next(iter(c.metric_records)), *sorted((k, isinstance(v, list) and len(v)) for k, v in _metrics(c).items()))
        for c in contents
    ]
    if not forms:
        return []
    most = Counter(forms).most_common(1)[0][0]
    return [None if form == most else f"its metrics {form} differ from most replies' {most}" for form in forms]


def _metrics(content: RecordDict) -> MetricRecord:
    return next(iter(content.metric_records.values()))


def _norm(values: torch.Tensor) -> float:
    found = float(torch.linalg.vector_norm(values.double()))
    return found if math.isfinite(found) else math.inf
