"""Who is asked, how long they are waited for, and who is set aside."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

from joulegrad.compressor import is_count
from joulegrad.cost import is_finite

__all__ = ["Attendance", "Fleet", "View", "exchange", "wait_for"]

LOOK_SECONDS, GONE_SECONDS = 5.0, 60.0
NEEDS = ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes")  # what Flower's strategies wait for


@dataclass(frozen=True)
class Fleet:
    """How a server deals with nodes that are slow, away, or broken.

    Args:
        deadline_seconds: after this long, `minimum` replies are enough; None: wait for all until Flower's timeout.
        minimum: with fewer good replies a round is void: the model stays, and no client forgets anything.
        wait_seconds: so long a round may wait for enough nodes to be there; then it goes on with those that are, or
            stops if they are fewer than `minimum`.
        strikes: after so many failures in a row a node is set aside.
        rest: for so many rounds.
        poll_seconds: between two looks for replies; Flower itself takes 3.

    Example:
        >>> Fleet(deadline_seconds=60, minimum=10)
        Fleet(deadline_seconds=60, minimum=10, wait_seconds=600, strikes=3, rest=5, poll_seconds=0.5)
    """

    deadline_seconds: float | None = None
    minimum: int = 1
    wait_seconds: float = 600
    strikes: int = 3
    rest: int = 5
    poll_seconds: float = 0.5

    def __post_init__(self) -> None:
        for name in ("deadline_seconds", "wait_seconds", "poll_seconds"):
            value = getattr(self, name)
            if not (value is None and name == "deadline_seconds") and not (is_finite(value) and value > 0):
                raise ValueError(f"{name} must be a number of seconds > 0, got {value!r}")
        for name in ("minimum", "strikes", "rest"):
            value = getattr(self, name)
            if not is_count(value) or value < 1:
                raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}")


@dataclass
class Attendance:
    """Which nodes failed how often in a row, and until when they are set aside."""

    failures: dict[int, int] = field(default_factory=dict)
    aside: dict[int, int] = field(default_factory=dict)  # until after this round

    def good(self, node: int) -> None:
        """It has answered as it should."""
        self.failures.pop(node, None)

    def bad(self, node: int, round_: int, fleet: Fleet) -> None:
        """It has not."""
        self.failures[node] = self.failures.get(node, 0) + 1
        if self.failures[node] >= fleet.strikes:
            self.aside[node] = round_ + fleet.rest
            log(
                WARNING,
                "node %d failed %d times and is set aside until round %d",
                node,
                fleet.strikes,
                self.aside[node],
            )
            del self.failures[node]

    def present(self, nodes: Iterable[int], round_: int) -> list[int]:
        """Those that are not set aside, in an order that does not depend on who connected first."""
        self.aside = {node: until for node, until in self.aside.items() if until >= round_}
        return sorted(node for node in nodes if node not in self.aside)


class View:
    """A grid in which only some nodes are seen; all else is the grid's own."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self.grid, self.nodes = grid, nodes

    def get_node_ids(self) -> list[int]:
        """Those that are seen."""
        return list(self.nodes)

    def get_nodes(self) -> list[Any]:
        """The same, with what the grid knows of them."""
        return [node for node in self.grid.get_nodes() if node.node_id in self.nodes]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)


def wait_for(grid: Grid, inner: object, attendance: Attendance, fleet: Fleet, round_: int) -> list[int]:
    """The nodes that a strategy may choose from, when there are enough of them or no more time to wait."""
    need, until = max([fleet.minimum, *(getattr(s, n, 0) for s in _nested(inner) for n in NEEDS)]), time.monotonic()
    until, said = until + fleet.wait_seconds, 0.0
    while True:
        everybody = list(grid.get_node_ids())
        nodes = attendance.present(everybody, round_)
        if len(nodes) < need <= len(everybody):  # better a node that failed than a round that cannot be
            nodes = sorted(everybody)
        if len(nodes) >= need:
            return nodes
        now = time.monotonic()
        if now >= until:
            break
        if now >= said:
            log(INFO, "waiting for nodes: %d are there, %d are needed", len(nodes), need)
            said = now + 10
        time.sleep(min(fleet.poll_seconds, until - now))
    if len(nodes) < fleet.minimum:
        raise TimeoutError(
            f"round {round_}: after {fleet.wait_seconds:g} s {len(nodes)} nodes are there, and at least "
            f"{fleet.minimum} are needed; with a checkpoint the same command goes on from here"
        )
    log(WARNING, "round %d goes on with %d nodes; %d were wanted", round_, len(nodes), need)
    return nodes


@contextmanager
def content_with(inner: object, nodes: int) -> Iterator[None]:
    """While it chooses, a strategy does not ask for more nodes than there are: Flower's would wait for ever."""
    before = [(s, n, getattr(s, n)) for s in _nested(inner) for n in NEEDS if hasattr(s, n)]
    for strategy, name, value in before:
        setattr(strategy, name, min(value, nodes))
    try:
        yield
    finally:
        for strategy, name, value in before:
            setattr(strategy, name, value)


@contextmanager
def drawing_from(generator: random.Random) -> Iterator[None]:
    """Flower draws from Python's own generator: ours stands in for it, so that it can be kept and restored."""
    outside = random.getstate()
    random.setstate(generator.getstate())
    try:
        yield
    finally:
        generator.setstate(random.getstate())
        random.setstate(outside)


def exchange(
    grid: Grid, messages: Iterable[Message], timeout: float, fleet: Fleet, again: Callable[[Message], Message | None]
) -> list[Message]:
    """Send messages, and wait for replies: all of them, or `minimum` good ones after the deadline.

    `again` is given each reply; what it returns instead of None is sent to the same node, whose reply is waited for.
    A node that went away while it was asked, or was started anew, may have lost the question, and Flower does not say
    so: it is waited for a minute.
    """
    begun = time.monotonic()
    then = _activations(grid)
    waiting = _sent(grid, list(messages))
    replies: list[Message] = []
    gone: dict[int, float] = {}  # since when
    looked = begun
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            waiting.pop(reply.metadata.reply_to_message_id, None)
            more = again(reply)
            if more is None:
                replies.append(reply)
            else:
                waiting |= _sent(grid, [more])
        now = time.monotonic()
        enough = sum(reply.has_content() for reply in replies) >= fleet.minimum
        over = now - begun >= timeout
        if not waiting or over or (fleet.deadline_seconds and now - begun >= fleet.deadline_seconds and enough):
            break
        if now - looked >= LOOK_SECONDS:
            looked, present = now, _activations(grid)
            for node in waiting.values():
                if present.get(node) != then.get(node):
                    gone.setdefault(node, now)
        if all(now - gone.get(node, now) >= GONE_SECONDS for node in waiting.values()):
            break
        time.sleep(min(fleet.poll_seconds, max(timeout - (now - begun), 0.01)))
    return replies


def _sent(grid: Grid, messages: list[Message]) -> dict[str, int]:
    """The nodes that are asked, by the messages' names."""
    grid.push_messages(messages)
    return {message.metadata.message_id: message.metadata.dst_node_id for message in messages}


def _activations(grid: Grid) -> dict[int, str]:
    """When each node that is there was last started."""
    return {node.node_id: node.last_activated_at for node in grid.get_nodes()}


def _nested(strategy: object) -> Iterator[object]:
    """A strategy and those inside it: Flower's wrappers call theirs `strategy`."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)
