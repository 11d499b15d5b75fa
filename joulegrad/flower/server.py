"""The server's side: a strategy around another.

    strategy = Sparse(FedAvg(...))

It sends the model, or what has changed of it; decodes what comes back, refuses what is wrong, and averages in a stream;
the strategy inside gets the mean as the one reply to step with, so that FedAvg, FedAvgM, FedAdam, FedProx work as they
are. One that looks at every client by itself (FedMedian, Krum, server-side differential privacy) gets every client's.

    ours       the mean, exact in any order of arrival; deltas; refusals; checkpoints
    Flower's   everything else: sampling, configuration, server optimizers, evaluation, metrics
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

import joulegrad
from joulegrad.flower import checkpoint as saved
from joulegrad.flower.broadcast import Asked, Broadcast
from joulegrad.flower.client import ABOUT, NOTES, tag_of
from joulegrad.flower.fleet import Attendance, Fleet, View, content_with, drawing_from, exchange, wait_for
from joulegrad.flower.inside import Inside
from joulegrad.flower.journal import written
from joulegrad.flower.refusal import Accepted, Limits, Refused, Rejected, check_metrics, examples_of, opened, outliers

__all__ = ["Sparse"]


class Sparse(Strategy):
    """A Flower strategy whose clients send payloads: see the module.

    Args:
        inner: any strategy of `flwr.serverapp.strategy`, or your own.
        checkpoint: folder in which every round is kept; `start` goes on from there.
        fleet: deadlines, and who is set aside.
        limits: beyond which a reply is refused.
        seed: of the sampling of nodes; None: a new one every time.
        journal: file to which every reply adds a line of JSON; see `journal`.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> strategy = Sparse(FedAvg(min_available_nodes=3), checkpoint="state", fleet=Fleet(deadline_seconds=60))
    """

    def __init__(
        self,
        inner: Strategy,
        *,
        checkpoint: str | Path | None = None,
        fleet: Fleet = Fleet(),  # noqa: B008
        limits: Limits = Limits(),  # noqa: B008
        seed: int | None = None,
        journal: str | Path | None = None,
    ) -> None:
        if isinstance(inner, type) or not hasattr(inner, "aggregate_train"):
            raise ValueError(f"Sparse goes around a strategy such as FedAvg(), got {inner!r}")
        if isinstance(inner, Sparse):
            raise ValueError("Sparse cannot go around Sparse: payloads are decoded once")
        self.inner, self.fleet, self.limits = inner, fleet, limits
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.journal = None if journal is None else Path(journal)
        self.inside = Inside(inner)
        self.attendance, self.generator = Attendance(), random.Random(seed)
        self.refused: list[Refused] = []
        self.asked: dict[int, Asked] = {}  # by node, in this exchange
        self._broadcast: Broadcast | None = None

    def summary(self) -> None:
        """Say what the strategy inside is."""
        log(INFO, "\t├──> joulegrad %s: %s, %s", joulegrad.__version__, self.fleet, self.limits)
        self.inner.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train, as Flower's own `start` does; from the last checkpoint on, if there is one."""
        train_config, evaluate_config = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        self.summary()
        self._broadcast, done, result = Broadcast(initial_arrays), 0, Result()
        tables = (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        )
        if kept := saved.newest(self.checkpoint) if self.checkpoint else None:
            done = self._restore(kept)
            for table, before in zip(tables, kept["metrics"], strict=True):
                table.update({round_: MetricRecord(found) for round_, found in before.items()})
            log(INFO, "going on after round %d of %d, as %s says", done, num_rounds, self.checkpoint)
        elif evaluate_fn and (found := evaluate_fn(0, self.broadcast.arrays())) is not None:
            result.evaluate_metrics_serverapp[0] = found
        arrays = result.arrays = self.broadcast.arrays()
        for current in range(done + 1, num_rounds + 1):
            log(INFO, "[ROUND %d/%d]", current, num_rounds)
            replies = self._exchange(grid, self.configure_train(current, arrays, train_config, grid), timeout)
            stepped, trained = self.aggregate_train(current, replies)
            arrays = result.arrays = arrays if stepped is None else stepped
            self.broadcast.take(arrays)
            replies = self._exchange(grid, self.configure_evaluate(current, arrays, evaluate_config, grid), timeout)
            evaluated = self.aggregate_evaluate(current, replies)
            here = evaluate_fn(current, arrays) if evaluate_fn else None
            for table, metrics in zip(tables, (trained, evaluated, here), strict=True):
                if metrics is not None:
                    table[current] = metrics
                    log(INFO, "\t└──> %s", dict(metrics))
            if self.checkpoint:
                told = [{round_: dict(metrics) for round_, metrics in table.items()} for table in tables]
                saved.write(self.checkpoint, current, {**self._state(), "round": current, "metrics": told})
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What the strategy inside would send, to those whom it chooses, with the model as a payload."""
        return self._configured(self.inner.configure_train, server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The same."""
        if getattr(self.inner, "fraction_evaluate", 1.0) == 0.0:
            self.asked = {}
            return []
        return self._configured(self.inner.configure_evaluate, server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode, refuse, average, and let the strategy inside step."""
        arrays, metrics, accepted = None, None, self._accepted(server_round, self._answered(server_round, replies))
        if not self.asked:
            return None, None
        if len(accepted) >= self.fleet.minimum:
            arrays, metrics = self._stepped(server_round, accepted)
        else:
            log(WARNING, "round %d is void: %d good replies of %d", server_round, len(accepted), len(self.asked))
        used = accepted if arrays else []
        if self.journal:
            entries = {reply.node: reply.entries for reply in used}
            written(self.journal, server_round, "train", self.asked.values(), entries)
        sums = self._sums(used)
        counts = [sums[f"joulegrad-{what}"] for what in ("used", "failed", "refused")]
        log(INFO, "round %d: %d replies used, %d failed, %d refused", server_round, *counts)
        return arrays, MetricRecord({**(metrics or {}), **sums})

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Leave out what the strategy inside would stop at; the rest is its own."""
        kept = []
        for node, message in self._answered(server_round, replies):
            try:
                examples_of(message.content, self.inside.weighted_by, self.limits)
                kept.append((node, message))
            except Rejected as why:
                self._refuse(server_round, node, str(why))
        agreeing = []
        for (node, message), differs in zip(kept, check_metrics([m.content for _, m in kept]), strict=True):
            if differs is None:
                agreeing.append(message)
            else:
                self._refuse(server_round, node, differs)
        if not self.asked:
            return None
        if self.journal:
            written(self.journal, server_round, "evaluate", self.asked.values(), {})
        found = self.inner.aggregate_evaluate(server_round, agreeing) if agreeing else None
        return MetricRecord({**(found or {}), **_bytes(self.asked.values())})

    @property
    def broadcast(self) -> Broadcast:
        """The model, and who has which version of it."""
        if self._broadcast is None:
            raise ValueError("there is no model yet: configure_train comes first")
        return self._broadcast

    def _configured(
        self,
        configure: Callable[..., Iterable[Message]],
        round_: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        if self._broadcast is None:
            self._broadcast = Broadcast(arrays)
        self.broadcast.take(arrays)
        nodes = wait_for(grid, self.inner, self.attendance, self.fleet, round_)
        with content_with(self.inner, len(nodes)), drawing_from(self.generator):
            messages = list(configure(round_, arrays, config, View(grid, nodes)))
        self.asked = {m.metadata.dst_node_id: self.broadcast.asked(m, arrays) for m in messages}
        return [self.broadcast.question(asked) for asked in self.asked.values()]

    def _exchange(self, grid: Grid, messages: Iterable[Message], timeout: float) -> list[Message]:
        for message in messages:
            message.metadata.ttl = timeout  # so that nobody trains for a round that is over
        again: set[int] = set()

        def lacking(reply: Message) -> Message | None:
            """A node that has not what a delta builds on gets the whole, once, in the same round."""
            asked = self.asked.get(reply.metadata.src_node_id)
            if asked is None or asked.node in again or not _needs_whole(reply):
                return None
            log(INFO, "node %d has not the model that it should have: it gets the whole", asked.node)
            again.add(asked.node)
            return self.broadcast.question(asked, timeout, whole=True)

        return exchange(grid, messages, timeout, self.fleet, lacking)

    def _answered(self, round_: int, replies: Iterable[Message]) -> list[tuple[int, Message]]:
        """The replies with content, each node's once; who failed is noted."""
        by_id = {a.sent.metadata.message_id: a for a in self.asked.values() if a.sent is not None}
        good: dict[int, Message] = {}
        for reply in replies:
            asked = by_id.get(reply.metadata.reply_to_message_id) or self.asked.get(reply.metadata.src_node_id)
            if asked is None:
                self._refuse(round_, reply.metadata.src_node_id, "it was not asked")
            elif reply.has_error():
                asked.failure = (str(reply.error.reason).strip() or f"error {reply.error.code}").splitlines()[-1][:300]
            elif _needs_whole(reply):
                asked.failure = "it has not the model that a delta builds on"
                self.broadcast.holds.pop(asked.node, None)
            elif asked.node not in good:
                good[asked.node] = reply
                asked.bytes_up += _bytes_of(reply)
                told = reply.content.config_records.get(NOTES, ConfigRecord())
                asked.about = {key: str(told[key])[:64] for key in ABOUT if key in told}
        for node, asked in self.asked.items():
            if node in good:
                self.broadcast.holds[node] = self.broadcast.version
                continue
            asked.failure = asked.failure or "no answer in time"
            log(WARNING, "round %d: node %d failed: %s", round_, node, asked.failure)
            self.attendance.bad(node, round_, self.fleet)
        return sorted(good.items())

    def _accepted(self, round_: int, good: list[tuple[int, Message]]) -> list[Accepted]:
        """Replies that decode, and are not far from all others."""
        found: list[Accepted] = []
        for node, message in good:
            try:
                form, model = self.broadcast.form, self.broadcast.model
                question = self.asked[node].nonce
                found.append(opened(node, message, question, form, model, self.inside.weighted_by, self.limits))
            except Rejected as why:
                self._refuse(round_, node, str(why))
        differing = check_metrics([reply.message.content for reply in found])
        refused = {reply.node: why for reply, why in zip(found, differing, strict=True) if why is not None}
        refused |= {reply.node: why for reply, why in outliers(found, self.limits)}
        for node, reason in refused.items():
            self._refuse(round_, node, reason)
        accepted = [reply for reply in found if reply.node not in refused]
        for reply in accepted:
            self.attendance.good(reply.node)
        return accepted

    def _refuse(self, round_: int, node: int, why: str) -> None:
        log(WARNING, "round %d: refused node %d: %s", round_, node, why)
        self.refused.append(Refused(round_, node, why))
        self.attendance.bad(node, round_, self.fleet)
        if node in self.asked:
            self.asked[node].refused = why

    def _stepped(self, round_: int, accepted: list[Accepted]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy inside step; a model that is not finite is none."""
        arrays, metrics = self.inside.step(round_, accepted, self.broadcast)
        if arrays is None:
            return None, metrics
        model = self.broadcast.settled(arrays)
        if not all(bool(torch.isfinite(part).all()) for part in model):
            log(WARNING, "round %d is void: the model that %s made is not finite", round_, type(self.inner).__name__)
            return None, metrics
        for reply in accepted:
            self.broadcast.has_used(reply.node, tag_of(self.asked[reply.node].nonce + reply.payload))
        return self.broadcast.form.arrays(model, self.broadcast.rest), metrics

    def _sums(self, used: list[Accepted]) -> dict[str, int]:
        """Of a round: what is counted, not averaged."""
        asked = self.asked.values()
        return {
            **_bytes(asked),
            "joulegrad-whole-models": sum(a.whole_models for a in asked),
            "joulegrad-entries": sum(a.entries for a in used),
            "joulegrad-used": len(used),
            "joulegrad-failed": sum(a.failure is not None for a in asked),
            "joulegrad-refused": sum(a.refused is not None for a in asked),
        }

    def _state(self) -> dict[str, Any]:
        version, state, gauss = self.generator.getstate()
        return {
            **self.broadcast.state(),
            "inner": self.inside.state(),
            "failures": self.attendance.failures,
            "aside": self.attendance.aside,
            "generator": [version, list(state), gauss],
            "refused": [list(found) for found in self.refused],
        }

    def _restore(self, kept: Mapping[str, Any]) -> int:
        """Go on after `kept`; the round that it was made after."""
        self.broadcast.restore(kept)
        self.attendance = Attendance(dict(kept["failures"]), dict(kept["aside"]))
        self.refused = [Refused(*found) for found in kept["refused"]]
        version, state, gauss = kept["generator"]
        self.generator.setstate((version, tuple(state), gauss))
        self.inside.restore(kept["inner"])
        return int(kept["round"])


def _needs_whole(reply: Message) -> bool:
    return reply.has_content() and "needs" in reply.content.config_records.get(NOTES, {})


def _bytes(asked: Iterable[Asked]) -> dict[str, int]:
    asked = list(asked)
    up, down = sum(a.bytes_up for a in asked), sum(a.bytes_down for a in asked)
    return {"joulegrad-bytes-up": up, "joulegrad-bytes-down": down}


def _bytes_of(reply: Message) -> int:
    return sum(len(array.data) for record in reply.content.array_records.values() for array in record.values())
