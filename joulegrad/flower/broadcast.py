"""What the server sends: a model's versions, and to each node the shortest payload that brings it to the last one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from joulegrad.downlink import Versions
from joulegrad.flower.arrays import Form, Model, opaque
from joulegrad.flower.client import NONCE, NOTES

__all__ = ["Asked", "Broadcast"]

RECENT = 8192  # tags of used replies, told to nodes that are not known yet


@dataclass
class Asked:
    """What a node was asked, and what became of it."""

    node: int
    message: Message  # as the strategy inside made it
    key: str  # of its ArrayRecord
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE))
    sent: Message | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    whole_models: int = 0
    failure: str | None = None
    refused: str | None = None
    about: dict[str, str] = field(default_factory=dict)  # what the node says of itself


class Broadcast:
    """The server's model, its versions, and what each node has of them.

    Args:
        arrays: the model to begin with.
        form: what its arrays are; None: what their names and shapes tell.
    """

    def __init__(self, arrays: ArrayRecord, form: Form | None = None) -> None:
        self.form = form or Form.of(arrays)
        self.rest = self.form.rest(arrays)
        self.versions, self.version = Versions(self.form.layout), 0
        self.model = self.settled(arrays)
        self.digest = self.model.digest()
        self.training = secrets.token_hex(8)  # under this name clients keep what they remember
        self.holds: dict[int, int] = {}  # node → the version that it has, or a later one
        self.used: dict[int, str] = {}  # node → tag of its last reply that was used; the latest last
        self.payloads: dict[int | None, bytes] = {}  # by what a node has; of this version

    def arrays(self) -> ArrayRecord:
        """The model as Flower has it."""
        return self.form.arrays(self.model, self.rest)

    def settled(self, arrays: ArrayRecord) -> Model:
        """The numbers as clients will have them: each array in its own dtype, on the way in float32."""
        model = self.form.flat(arrays)
        if "float16" in self.form.dtypes.values():
            model = self.form.flat(self.form.arrays(model, self.rest))
        return model

    def take(self, arrays: ArrayRecord) -> None:
        """A new version, if anything in it is new."""
        model = self.settled(arrays)
        if (digest := model.digest()) == self.digest:
            return
        self.version += 1
        self.versions.changed(self.model.weights, model.weights, self.version)
        self.model, self.digest, self.payloads = model, digest, {}

    def asked(self, message: Message, arrays: ArrayRecord) -> Asked:
        """What a message of the strategy inside asks."""
        keys = list(message.content.array_records)
        if len(keys) != 1:
            raise ValueError(f"Sparse sends one model, and the strategy inside sends the ArrayRecords {keys}")
        sent = message.content.array_records[keys[0]]
        if sent is not arrays and self.settled(sent).digest() != self.digest:
            raise ValueError("the strategy inside sends arrays that are not the current model")
        return Asked(message.metadata.dst_node_id, message, keys[0])

    def question(self, asked: Asked, ttl: float | None = None, *, whole: bool = False) -> Message:
        """The message to a node, with the shorter of the whole and what has changed since the version that it has.

        Args:
            asked: is told what was sent.
            ttl: seconds after which nobody waits for an answer.
            whole: it turned out not to have that version.
        """
        data = self._payload(None if whole else self.holds.get(asked.node))
        whole = data is self.payloads.get(None)
        carried = opaque(data)
        if whole and self.rest:
            everything = self.arrays()
            carried.update({name: everything[name] for name in self.rest})
        used = [self.used[asked.node]] if asked.node in self.used else list(self.used.values())[-RECENT:]
        notes: dict[str, Any] = {
            "training": self.training,
            "model": self.digest,
            "whole": whole,
            "form": self.form.to_json() if whole else "",
            "nonce": asked.nonce,
            "used": b"".join(bytes.fromhex(tag) for tag in used),
        }
        asked.bytes_down += len(data)
        asked.whole_models += whole
        records = {name: record for name, record in asked.message.content.items() if name != asked.key}
        content = RecordDict({asked.key: carried, **records, NOTES: ConfigRecord(notes)})
        about = asked.message.metadata
        asked.sent = Message(content, about.dst_node_id, about.message_type, ttl=ttl, group_id=about.group_id)
        return asked.sent

    def _payload(self, held: int | None) -> bytes:
        """The same object for all who get the whole."""
        if None not in self.payloads:
            self.payloads[None] = self.versions.whole(*self.model)
        if held is None:
            return self.payloads[None]
        if held not in self.payloads:
            self.payloads[held] = min(self.versions.delta(held, *self.model), self.payloads[None], key=len)
        return self.payloads[held]

    def has_used(self, node: int, tag: str) -> None:
        """The model has stepped with this reply."""
        self.used.pop(node, None)
        self.used[node] = tag

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "training": self.training,
            "version": self.version,
            "form": self.form.to_json(),
            "weights": self.model.weights,
            "buffers": self.model.buffers,
            "since": self.versions.since,
            "holds": self.holds,
            "used": self.used,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """As the checkpoint says."""
        if state["form"] != self.form.to_json():
            raise ValueError("the checkpoint is of a model of another form: choose another folder")
        self.training, self.version = state["training"], state["version"]
        self.model = Model(state["weights"], state["buffers"])
        self.digest, self.payloads = self.model.digest(), {}
        self.versions.since = state["since"].to(torch.int32)
        self.holds, self.used = dict(state["holds"]), dict(state["used"])
