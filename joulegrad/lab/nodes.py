"""An experiment on Flower: `Simulation` in the server app, with nodes in the place of worker processes.

A client's turn is the same function as everywhere (`Replica.train`), the server's part is the same object, and its mean
is exact in any order of arrival: so an experiment comes to the same model, to the last bit, on every engine.

    client    the client app: node i plays client i of the partition, by its partition-id
    server    the server app: plays the experiment in its folder
"""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log
from torch import Tensor

import joulegrad
from joulegrad import Layout
from joulegrad.flower import Fleet, Limits, compress
from joulegrad.flower.arrays import Form
from joulegrad.flower.broadcast import Asked, Broadcast
from joulegrad.flower.client import NOTES, tag_of
from joulegrad.flower.fleet import exchange
from joulegrad.flower.refusal import Rejected, opened
from joulegrad.lab import data, distributed, models
from joulegrad.lab.client import Answer, Answers, Diverged, Examples, Replica
from joulegrad.lab.experiment import Experiment
from joulegrad.lab.simulate import Simulation
from joulegrad.lab.store import Folder, _write
from joulegrad.lab.workers import TEST_BATCH, Turn

__all__ = ["FLEET", "Nodes", "client", "server"]

FLEET = "fleet.json"  # in the run's folder: what the server knows of the nodes
TRIES = 3  # at a client's turn, whose node may die and come back
WAIT_SECONDS = 600.0  # for the nodes of a round's clients
TIMEOUT = 3600.0  # for their answers


class Played(NamedTuple):
    """What a node needs for its turns; made once a process."""

    experiment: Experiment
    replica: Replica
    parts: list[Tensor]
    form: Form


@functools.lru_cache(maxsize=1)
def _played(text: str) -> Played:
    torch.set_num_threads(1)  # as the simulator's workers: sums of floats depend on it
    experiment = Experiment.of(json.loads(text))
    task = data.load(experiment.data)
    parts = experiment.partition.split(task.train, experiment.seed)
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        model = models.build(experiment.model, task.shape, task.classes)
    layout = Layout.of(model, buffers=experiment.buffers)
    return Played(experiment, Replica(experiment, Examples.of(task, model), layout, model), parts, _form(layout))


def _form(layout: Layout) -> Form:
    """Flower's arrays in the layout's order."""
    shapes = {s.name: s.shape for s in (*layout.segments, *layout.buffers)}
    return Form.made_of({name: ("float32", shape) for name, shape in shapes.items()}, [s.name for s in layout.buffers])


def _arrays(layout: Layout, weights: Tensor, buffers: Tensor) -> ArrayRecord:
    parts = ((layout.segments, weights), (layout.buffers, buffers))
    flat = {s.name: vector[s.start : s.stop].view(s.shape) for part, vector in parts for s in part}
    return ArrayRecord(
        {name: Array(np.ascontiguousarray(value.numpy()).reshape(value.shape)) for name, value in flat.items()}
    )


def _compressed(message: Message, context: Context, call_next: Any) -> Message:
    """Each client by its own operator."""
    if message.metadata.message_type == "query":
        return Message(call_next(message, context).content, reply_to=message)
    played = _played(str(context.run_config["experiment"]))
    operator = played.experiment.operator(int(context.node_config["partition-id"]))
    return compress(operator, layout=played.replica.layout)(message, context, call_next)


client = ClientApp(mods=[_compressed])


@client.query()
def _who(message: Message, context: Context) -> Message:
    """Which client of the partition this node is."""
    i = context.node_config.get("partition-id", -1)
    return Message(RecordDict({"who": ConfigRecord({"partition-id": i})}), reply_to=message)


@client.train()
def _train(message: Message, context: Context) -> Message:
    """One client's turn."""
    started = time.perf_counter()
    played = _played(str(context.run_config["experiment"]))
    i, t = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"]) - 1  # type: ignore[arg-type]
    replica, model = played.replica, played.form.flat(message.content["arrays"])  # type: ignore[arg-type]
    for name, buffer in replica.own.items():
        buffer.copy_(replica.fresh[name])
    loss = replica.train(t, i, played.parts[i], model.weights, model.buffers)
    learned = _arrays(replica.layout, replica.values(), replica.layout.buffer_values(replica.model))
    took = time.perf_counter() - started
    metrics = MetricRecord({"num-examples": len(played.parts[i]), "loss": loss, "train-seconds": took})
    return Message(RecordDict({"arrays": learned, "metrics": metrics}), reply_to=message)


class Nodes:
    """The engine of `Simulation` whose clients are Flower's nodes.

    Args:
        grid: Flower's.
        folder: of the run; what is known of the nodes is kept there.
    """

    def __init__(self, simulation: Simulation, model: torch.nn.Module, grid: Grid, folder: Path) -> None:
        distributed.check(simulation.experiment)
        torch.set_num_threads(1)
        self.simulation, self.grid, self.file = simulation, grid, folder / FLEET
        self.replica = Replica(simulation.experiment, Examples.of(simulation.task, model), simulation.layout, model)
        self.fleet, self.limits = Fleet(poll_seconds=0.1), Limits(norm=1e6, most_examples=10**9)
        arrays = _arrays(simulation.layout, simulation.weights, simulation.buffers)
        self.broadcast = Broadcast(arrays, _form(simulation.layout))
        self.nodes: dict[int, int] = {}  # client → node
        self.begun = False

    def train(self, t: int, turns: list[Turn], weights: Tensor, buffers: Tensor) -> Answers:
        """Answers, or why there is none; those who vanish are not asked."""
        if t and not self.begun:
            self._recall(t)
        self.begun = True
        self.broadcast.take(_arrays(self.simulation.layout, weights, buffers))
        left = {turn.client: TRIES for turn in turns if turn.place.write is not None}
        while left:
            for c, answer in self._asked(t, sorted(left)):
                left[c] -= 1
                if not isinstance(answer, str):
                    del left[c]
                    yield answer
                elif left[c] == 0:
                    del left[c]
                    yield Diverged(f"round {t + 1}, client {c}: {answer}", c)

    def _asked(self, t: int, clients: list[int]) -> list[tuple[int, Answer | Diverged | str]]:
        """What each client's node answers; a text says what went wrong with it, and may go right another time."""
        self._find(clients)
        arrays, asked = self.broadcast.arrays(), {}
        for c in clients:
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": t + 1})})
            asked[self.nodes[c]] = self.broadcast.asked(Message(content, self.nodes[c], "train"), arrays)
        again: set[int] = set()

        def lacking(reply: Message) -> Message | None:
            found = asked.get(reply.metadata.src_node_id)
            if found is None or found.node in again or not reply.has_content() or reply.content.array_records:
                return None
            again.add(found.node)
            return self.broadcast.question(found, TIMEOUT, whole=True)

        questions = [self.broadcast.question(a, TIMEOUT) for a in asked.values()]
        replies = {}
        for reply in exchange(self.grid, questions, TIMEOUT, self.fleet, lacking):
            by_id = {a.sent.metadata.message_id: a.node for a in asked.values() if a.sent is not None}
            replies[by_id.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)] = reply
        return [(c, self._answer(t, c, asked[self.nodes[c]], replies.get(self.nodes[c]))) for c in clients]

    def _answer(self, t: int, c: int, asked: Asked, reply: Message | None) -> Answer | Diverged | str:
        if reply is None or reply.has_error():
            self.nodes.pop(c)
            self.broadcast.holds.pop(asked.node, None)
            if reply is None:
                return "no answer in time"
            if reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
                return Diverged(f"round {t + 1}, client {c}: {reply.error.reason}", c)
            return str(reply.error.reason)
        form, model = self.broadcast.form, self.broadcast.model
        try:
            found = opened(asked.node, reply, asked.nonce, form, model, "num-examples", self.limits)
        except Rejected as why:
            return str(why)
        self.broadcast.holds[asked.node] = self.broadcast.version
        self.broadcast.has_used(asked.node, tag_of(asked.nonce + found.payload))
        layout, metrics = self.simulation.layout, next(iter(reply.content.metric_records.values()))
        payload = joulegrad.encode(joulegrad.decode(found.payload, form.layout), layout)  # as long: another fingerprint
        notes = reply.content.config_records[NOTES]
        took = {
            "train": metrics["train-seconds"],
            "compress": notes["select-seconds"],
            "encode": notes["encode-seconds"],
        }
        seconds = {name: float(found) for name, found in took.items()}  # type: ignore[arg-type]
        return Answer(c, payload, float(metrics["loss"]), seconds)  # type: ignore[arg-type]

    def _find(self, clients: list[int]) -> None:
        """Ask nodes that are not known yet which client they are, until all that are needed are there."""
        end, asked = time.monotonic() + WAIT_SECONDS, set(self.nodes.values())
        while missing := [c for c in clients if c not in self.nodes]:
            new = [n for n in self.grid.get_node_ids() if n not in asked]
            questions = [Message(RecordDict(), n, "query", ttl=60.0) for n in new]
            for reply in exchange(self.grid, questions, 60.0, self.fleet, lambda _: None):
                asked.add(reply.metadata.src_node_id)
                if reply.has_content():
                    i = int(reply.content["who"]["partition-id"])  # type: ignore[arg-type]
                    self.nodes[i] = reply.metadata.src_node_id
            if not new:
                time.sleep(self.fleet.poll_seconds)
            if time.monotonic() > end:
                raise Diverged(
                    f"after {WAIT_SECONDS:g} s there is no node with partition-id {missing[0]} (and {len(missing) - 1} "
                    "more); start every SuperNode with --node-config 'partition-id=…'"
                )

    def evaluate(self, weights: Tensor, buffers: Tensor) -> tuple[float, float]:
        """On the server, as everywhere."""
        n = len(self.simulation.task.test.labels)
        found = [self.replica.evaluate(weights, buffers, s, min(s + TEST_BATCH, n)) for s in range(0, n, TEST_BATCH)]
        return sum(right for right, _ in found) / n, sum(loss for _, loss in found) / n

    def checkpoint(self) -> None:
        """The name under which nodes keep what they remember, and which answers were used, in the last two rounds."""
        now = {"training": self.broadcast.training, "used": list(self.broadcast.used.values())}
        kept = {str(self.simulation.t): now}
        before = str(self.simulation.t - 1)
        if before in (known := self._known()):
            kept[before] = known[before]
        _write(self.file, json.dumps(kept).encode())

    def _known(self) -> dict[str, Any]:
        return dict(json.loads(self.file.read_text())) if self.file.exists() else {}

    def _recall(self, t: int) -> None:
        found = self._known().get(str(t))
        if found is None:
            raise Diverged(f"{self.file} does not say which answers round {t} used; delete the folder to begin again")
        self.broadcast.training = found["training"]
        self.broadcast.used = {-1 - i: tag for i, tag in enumerate(found["used"])}  # of nodes that we do not know yet

    def close(self) -> None:
        """Nodes are not ours to end."""


server = ServerApp()


@server.main()
def _main(grid: Grid, context: Context) -> None:
    """Play the experiment in its folder, from where it stands to its end; every round is kept."""
    experiment = Experiment.of(json.loads(str(context.run_config["experiment"])))
    folder = Path(str(context.run_config["folder"]))
    with Folder(folder, experiment, {"engine": str(context.run_config["engine"])}) as store:
        for note in store.notes:
            log(30, note)
        with Simulation(experiment, engine=lambda s, model: Nodes(s, model, grid, folder)) as simulation:
            store.describe(simulation.facts())
            if store.state is not None:
                simulation.restore(store.state)
            for row in simulation:
                store.append(row)
                store.checkpoint(simulation.state())
                log(20, "round %d of %d: accuracy %s", row["round"], experiment.rounds, row["accuracy"])
