"""A fleet in one process: a grid whose nodes are ClientApps, and where anything can go wrong when a test says so."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from joulegrad.flower import compress

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower sets it at the start of a real run


class Model(torch.nn.Module):
    """With everything that Flower's arrays may hold: convolution, statistics, a counter, a classifier."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4 * 16, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


def first_model(seed=0):
    torch.manual_seed(seed)
    return ArrayRecord(Model().state_dict())


def app_of(operator, *, folder=None, inner=(), outer=(), learn=None):
    """An ordinary PyTorch app; nothing in it knows joulegrad but its list of mods."""
    app = ClientApp(mods=[*outer, *([compress(operator, folder=folder)] if operator else [])])

    @app.train(mods=list(inner))
    def train(message, context):
        model = Model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        (learn or step)(model, context, message)
        return Message(
            RecordDict({
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": 10 + context.node_config["partition-id"], "loss": 1.5}),
            }),
            reply_to=message,
        )  # fmt: skip

    @app.evaluate()
    def evaluate(message, context):
        message.content["arrays"].to_torch_state_dict()
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 5, "accuracy": 0.5})}), reply_to=message)

    return app


def step(model, context, message):
    """One step of SGD on examples of its own."""
    who, when = context.node_config["partition-id"], message.content["config"]["server-round"]
    generator = torch.Generator().manual_seed(1000 * who + when)
    x = torch.randn(16, 1, 6, 6, generator=generator)
    y = torch.randint(5, (16,), generator=generator)
    model.train()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def context_of(node, **config):
    return Context(run_id=7, node_id=node, node_config=config, state=RecordDict(), run_config={})


class Rig:
    """A grid: node number → (app, context). `lost(message)` says which replies never arrive."""

    def __init__(self, nodes, lost=lambda message: False, silent=()):
        self.nodes, self.lost, self.silent = dict(nodes), lost, set(silent)
        self.ids, self.replies, self.sent = itertools.count(1), {}, []
        self.fate = {}  # of a node: "away", or when it was last started

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        there = [n for n in self.nodes if self.fate.get(n) != "away"]
        return [NodeInfo(node_id=n, last_activated_at=self.fate.get(n, "")) for n in there]

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self.ids))
            self.sent.append(message)
            self.replies[message.metadata.message_id] = message
        return [m.metadata.message_id for m in messages]

    def pull_messages(self, ids):
        found = []
        for key in ids:
            message = self.replies.get(key)
            if message is None or message.metadata.dst_node_id in self.silent:
                continue
            del self.replies[key]
            app, context = self.nodes[message.metadata.dst_node_id]
            try:
                reply = app(copy.deepcopy(message), context)
            except Exception as why:  # as Flower does
                reply = Message(Error(1, f"{type(why).__name__}: {why}"), reply_to=message)
            if not self.lost(message):
                found.append(reply)
        return found

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(list(messages)))


def fleet_of(operator, folder, n=3, **options):
    """n nodes, each with its own app object, as processes would have."""
    return {
        100 + i: (app_of(operator, folder=folder, **options), context_of(100 + i, **{"partition-id": i}))
        for i in range(n)
    }


def vector(arrays):
    return np.concatenate([np.asarray(a.numpy(), np.float64).reshape(-1) for a in arrays.values()])


def same(a, b):
    return list(a) == list(b) and all(
        x.dtype == y.dtype and x.numpy().tobytes() == y.numpy().tobytes()
        for x, y in zip(a.values(), b.values(), strict=True)
    )


__all__ = ["Model", "Rig", "app_of", "context_of", "first_model", "fleet_of", "same", "step", "vector"]
