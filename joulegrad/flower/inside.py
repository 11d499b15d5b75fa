"""The strategy inside: what it gets of the replies, and what of it is kept.

One that steps with nothing but the weighted mean gets one reply that is the mean, and no client's update is made dense;
any other gets every client's arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi
from torch import Tensor

import joulegrad
from joulegrad.flower import checkpoint
from joulegrad.flower.arrays import Model
from joulegrad.flower.broadcast import Broadcast
from joulegrad.flower.client import NOTES
from joulegrad.flower.refusal import Accepted

__all__ = ["Inside"]

MEAN_ALONE = {kind.aggregate_train for kind in (FedAvg, FedAvgM, FedProx, FedAdam, FedAdagrad, FedYogi)}


class Inside:
    """A strategy, with those inside it.

    Args:
        strategy: of Flower, or one's own.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.weighted_by: str = getattr(strategy, "weighted_by_key", "num-examples")
        self.given = self._keepable()

    def step(
        self, round_: int, accepted: list[Accepted], broadcast: Broadcast
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model and the metrics that it makes of these replies."""
        if type(self.strategy).aggregate_train in MEAN_ALONE:
            with self._metrics_of(accepted):
                found = self.strategy.aggregate_train(round_, [self._mean(accepted, broadcast)])
        else:
            found = self.strategy.aggregate_train(round_, list(self._each(accepted, broadcast)))
        arrays, metrics = found
        return arrays, metrics

    @contextmanager
    def _metrics_of(self, accepted: list[Accepted]) -> Iterator[None]:
        """While it steps with one reply, it aggregates the metrics of all."""
        strategy = self.strategy
        aggregate, contents = strategy.train_metrics_aggr_fn, [_without(r.message.content, r.key) for r in accepted]
        strategy.train_metrics_aggr_fn = lambda _, weighted_by: aggregate(contents, weighted_by)
        try:
            yield
        finally:
            strategy.train_metrics_aggr_fn = aggregate

    def _mean(self, accepted: list[Accepted], broadcast: Broadcast) -> Message:
        """One reply that is the weighted mean of all."""
        layout, now = broadcast.form.layout, broadcast.model
        mean = joulegrad.mean((joulegrad.decode(reply.payload, layout), reply.examples) for reply in accepted)
        model = Model(now.weights - mean.update, _or_empty(mean.buffers))
        return _reply(accepted[0], model, broadcast, {self.weighted_by: sum(reply.examples for reply in accepted)})

    def _each(self, accepted: list[Accepted], broadcast: Broadcast) -> Iterator[Message]:
        """Every client's model, made dense again."""
        layout, now = broadcast.form.layout, broadcast.model
        for reply in accepted:
            update = joulegrad.decode(reply.payload, layout)
            yield _reply(reply, Model(now.weights - update.to_dense(), _or_empty(update.buffers)), broadcast)

    def state(self) -> list[dict[str, Any]]:
        """What has changed of each: moments, momentum, clipping norms; a setting that nobody changed is the user's."""
        return [_moved(now, then) for now, then in zip(self._keepable(), self.given, strict=True)]

    def restore(self, state: list[Mapping[str, Any]]) -> None:
        """As the checkpoint says."""
        for strategy, fields in zip(self._all(), state, strict=True):
            vars(strategy).update(fields)

    def _all(self) -> list[Any]:
        """Flower's wrappers call theirs `strategy`."""
        found = [self.strategy]
        while hasattr(found[-1], "strategy"):
            found.append(found[-1].strategy)
        return found

    def _keepable(self) -> list[dict[str, Any]]:
        return [{name: v for name, v in vars(strategy).items() if checkpoint.keepable(v)} for strategy in self._all()]


def _reply(reply: Accepted, model: Model, broadcast: Broadcast, metrics: Mapping[str, float] | None = None) -> Message:
    """A reply as strategies know them; `metrics` in the place of its own."""
    content = _without(reply.message.content, reply.key)
    if metrics is not None:
        content[next(iter(content.metric_records))] = MetricRecord(dict(metrics))
    content[reply.key] = broadcast.form.arrays(model, broadcast.rest)
    reply.message.content = content
    return reply.message


def _moved(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """What has changed, so that a setting that the user changes between two runs is the user's."""
    plain = (type(None), bool, int, float, str, np.generic)
    return {
        name: value for name, value in now.items() if not (isinstance(value, plain) and then.get(name, now) == value)
    }


def _without(content: RecordDict, key: str) -> RecordDict:
    return RecordDict({name: record for name, record in content.items() if name not in (key, NOTES)})


def _or_empty(buffers: Tensor | None) -> Tensor:
    return torch.empty(0) if buffers is None else buffers
