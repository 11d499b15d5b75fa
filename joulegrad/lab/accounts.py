"""What each client's round costs in joules, and what is left in its battery: the experiment's `ledger`, kept.

Batteries pay for what does not depend on the clock: training by its operations, transfers by their bytes. Selecting and
encoding are charged from seconds, which differ from run to run, so they are in the ledger and leave batteries alone;
otherwise a run that is resumed would not be the same.
"""

from __future__ import annotations

import bisect
import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from joulegrad.energy import PHASES, SOURCES, Battery, Ledger, Row, carbon, totals
from joulegrad.lab.client import Answer
from joulegrad.lab.experiment import Experiment, LocalSGD

__all__ = ["Accounts", "Bill", "bills", "examples_seen", "flop_per_example"]

BY_THE_CLOCK = ("select", "encode")
NOT_THE_CLIENTS = ("network",)
LONGEST = 2**40  # bytes: no payload is longer


class Accounts:
    """The ledgers of a fleet; empty where the experiment has none.

    Args:
        model: whose training is counted; it is left as it is.
        shape: of one input.
        examples: how many each client has.
    """

    def __init__(self, experiment: Experiment, model: nn.Module, shape: Sequence[int], examples: Sequence[int]) -> None:
        self.ledgers = experiment.ledgers
        self.rows: list[Row] = []
        self.flat: set[int] = set()  # of this round: who took no part, or not to its end
        self.batteries: dict[int, Battery] = {}
        self.charge: dict[int, float] = {}
        if not self.ledgers:
            return
        each = flop_per_example(model, shape)
        self.flop = [each * examples_seen(n, experiment.local) for n in examples]
        self.batteries = {c: b for c in range(len(examples)) if (b := self._ledger(c).battery) is not None}
        self.charge = {client: battery.first for client, battery in self.batteries.items()}  # joules

    def _ledger(self, client: int) -> Ledger:
        return self.ledgers[client % len(self.ledgers)]

    def able(self, t: int, clients: list[int]) -> list[int]:
        """Begin a round: batteries harvest; those of the sampled clients that have enough charge to take part."""
        self.rows, self.flat = [], set()
        if not self.ledgers:
            return clients
        for client, battery in self.batteries.items():
            self.charge[client] = battery.charged(self.charge[client], t)
        self.flat = {c for c in clients if c in self.batteries and not self.batteries[c].enough(self.charge[c])}
        return [client for client in clients if client not in self.flat]

    def most(self, client: int, bytes_down: int) -> int | None:
        """The longest payload that a client's battery can send in this round; −1: not even one; None: any."""
        if client not in self.charge:
            return None
        ledger, before = self._ledger(client), self._before(client, bytes_down)
        left = _left(self.charge[client], before)

        def cannot(payload_bytes: int) -> bool:
            return left is None or _left(left, _sending(ledger, payload_bytes)) is None

        return bisect.bisect_left(range(LONGEST), True, key=cannot) - 1

    def _before(self, client: int, bytes_down: int) -> list[Row]:
        """What is spent before anything is sent, whatever training comes to."""
        ledger = self._ledger(client)
        return [*ledger.downlink(bytes_down), ledger.train(flop=self.flop[client])]

    def turn(self, client: int, bytes_down: int, answer: Answer | None, arrives: bool) -> bool:
        """Charge one client's round; whether its battery lasted until all was sent.

        Args:
            client: who.
            bytes_down: what it was sent.
            answer: what it has made; None where its training came to nothing.
            arrives: whether it sends what it has made.
        """
        if not self.ledgers:
            return True
        ledger = self._ledger(client)
        rows = self._before(client, bytes_down)
        if answer is not None:
            rows += [ledger.select(answer.seconds["compress"]), ledger.encode(answer.seconds["encode"])]
        sent = len(answer.payload) if answer is not None and arrives else 0
        lasted = self._paid(client, [*rows, *_sending(ledger, sent)])
        if lasted:  # then it has arrived, whatever the radio does after that
            self._paid(client, [row for row in ledger.uplink(sent) if row.phase == "tail"])
        else:
            self.flat.add(client)
        return lasted

    def _paid(self, client: int, rows: Iterable[Row]) -> bool:
        """Enter rows until the battery is empty; whether it lasted."""
        for row in rows:
            charge = self.charge.get(client)
            if charge is not None:
                left = _left(charge, [row])
                self.charge[client] = left or 0.0
                if left is None:
                    self.rows.append(row._replace(client=client, joules=charge))
                    return False
            self.rows.append(row._replace(client=client))
        return True

    def row(self, clients: list[int], seconds: Mapping[str, float]) -> dict[str, Any]:
        """What a round's line has of it: all rows, their sums, and the batteries of those who were sampled."""
        if not self.ledgers:
            return {}
        server = _server(self.ledgers)
        rows = [*sorted(self.rows, key=_place), *server.decode(seconds["decode"])]
        rows += server.aggregate(seconds["aggregate"])
        found: dict[str, Any] = {
            "joules": totals(rows),
            "ledger": [[row.client, row.phase, row.source, row.joules] for row in rows],
        }
        if self.batteries:
            found |= {"flat": sorted(self.flat), "charge": [self.charge.get(client) for client in clients]}
        return found

    def state(self) -> dict[str, Tensor]:
        """For the checkpoint."""
        return {"charge": torch.tensor(list(self.charge.values()), dtype=torch.float64)} if self.charge else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As the checkpoint says."""
        if self.charge:
            self.charge = dict(zip(self.charge, state["charge"].tolist(), strict=True))


def _left(charge: float, rows: Iterable[Row]) -> float | None:
    """What is left of a charge after some rows; None: it did not last."""
    for row in rows:
        if row.phase not in (*BY_THE_CLOCK, *NOT_THE_CLIENTS):
            if (row.joules or 0.0) > charge:
                return None
            charge -= row.joules or 0.0
    return charge


def _sending(ledger: Ledger, payload_bytes: int) -> list[Row]:
    """What is spent until all is sent: not the radio's tail."""
    return [row for row in ledger.uplink(payload_bytes) if row.phase != "tail"]


class Bill(NamedTuple):
    """What a run has cost, of one source.

    Args:
        source: "coded" or "modelled".
        joules: by phase.
        grams: of CO2e.
    """

    source: str
    joules: dict[str, float]
    grams: float


def bills(experiment: Experiment, rounds: Sequence[Mapping[str, Any]]) -> list[Bill]:
    """What all rounds have cost, each source by itself; empty where no ledger was kept."""
    if not experiment.ledgers:
        return []
    rows = [(client, phase, source, joules) for line in rounds for client, phase, source, joules in line["ledger"]]
    found = totals(Row(phase, joules, source) for _, phase, source, joules in rows)
    server = _server(experiment.ledgers)
    factors = [carbon(1.0, ledger.grams_per_kwh).grams for ledger in (*experiment.ledgers, server)]
    grams: dict[str, list[float]] = {}
    for client, _, source, joules in rows:
        which = len(factors) - 1 if client is None else client % len(experiment.ledgers)
        grams.setdefault(source, []).append(joules * factors[which])
    return [
        Bill(source, {phase: joules or 0.0 for phase, joules in phases.items()}, math.fsum(grams[source]))
        for source, phases in found.items()
    ]


def _server(ledgers: Sequence[Ledger]) -> Ledger:
    """There is one server, whichever client's ledger names it."""
    return next((ledger for ledger in ledgers if ledger.server is not None), ledgers[0])


def flop_per_example(model: nn.Module, shape: Sequence[int]) -> float:
    """Floating-point operations of a step on one example, there and back; a multiply-add is two.

    Matrix products, convolutions and attention are counted, which is nearly all; the way back is taken as twice the way
    there, as `joulegrad plan` does, since torch counts it too high where convolutions are grouped.

    Example:
        >>> flop_per_example(nn.Linear(100, 10), (100,))  # 2 · 1000 there, twice that back
        6000.0
    """
    model = copy.deepcopy(model).eval()  # statistics stay as they are, and nothing is drawn
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.mv: _mv}) as counter, torch.no_grad():
        model(torch.zeros(2, *shape))
    if not counter.get_total_flops():
        raise ValueError("the model has no matrix product and no convolution, so that its training cannot be charged")
    return float(3 * counter.get_total_flops() / 2)


def _mv(matrix: Sequence[int], *_: Any, **__: Any) -> int:
    """A matrix times a vector, which torch's counter leaves out."""
    return 2 * math.prod(matrix)


def examples_seen(examples: int, local: LocalSGD) -> int:
    """How many examples a client's round goes through, with repetitions.

    Example:
        >>> examples_seen(100, LocalSGD(epochs=2)), examples_seen(100, LocalSGD(batch_size=64, steps=3))
        (200, 164)
    """
    if local.steps is None:
        return local.epochs * examples
    epochs, steps = divmod(local.steps, -(-examples // local.batch_size))
    return epochs * examples + min(steps * local.batch_size, examples)


def _place(row: Row) -> tuple[int, int, int]:
    """By client, in the order of a round: rows come as answers arrive, which is not always the same."""
    return -1 if row.client is None else row.client, PHASES.index(row.phase), SOURCES.index(row.source)
