"""The client's side: one mod, the outermost.

    ClientApp(mods=[compress(ErrorFeedback(CWMP(density=0.01, cost=LayerType())))])

A message brings the model, or what has changed of it; the app inside sees ordinary arrays. Of its reply, the update is
what was given minus what came back; the operator chooses what to send of it, and remembers the rest.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import Tensor

import joulegrad
from joulegrad import Layout
from joulegrad.compressor import Compressor, State, check_compressor
from joulegrad.downlink import received
from joulegrad.flower.arrays import Form, Model, opaque, payload_of
from joulegrad.flower.memory import Memory

if TYPE_CHECKING:
    from flwr.clientapp.typing import ClientAppCallable

__all__ = ["NONCE", "NOTES", "Compress", "compress", "tag_of"]

NOTES = "joulegrad"  # the ConfigRecord beside a payload
ABOUT = ("name", "device", "link")  # of a SuperNode's --node-config: what a server's journal says of it
NONCE = 16  # bytes in front of a reply's payload: which question it answers


def compress(operator: Compressor, *, layout: Layout | None = None, folder: str | Path | None = None) -> Compress:
    """Make a Flower mod of an operator: send of every update what the operator chooses.

    Args:
        operator: such as ErrorFeedback(CWMP(density=0.01, cost=LayerType())).
        layout: `Layout.of(model)`, where the arrays' names and shapes do not tell what is what: an embedding looks like
            a linear layer.
        folder: where the nodes of this machine keep what they remember; None: see `memory.Memory`.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[compress(ErrorFeedback(TopK(density=0.01)))])
    """
    return Compress(operator, layout, None if folder is None else Path(folder))


@dataclass(frozen=True)
class Compress:
    """The mod that `compress` makes."""

    operator: Compressor
    layout: Layout | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        check_compressor(self, self.operator)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Bring the model, let the app work, and send what is worth sending of its update."""
        training = message.metadata.message_type.partition(".")[0] == "train"
        notes = message.content.config_records.get(NOTES)
        if notes is None and not training:
            return call_next(message, context)
        if len(message.content.array_records) != 1:
            raise ValueError(f"compress wants one ArrayRecord in a message, got {list(message.content.array_records)}")
        if notes is None:  # the server is not ours: it sent the whole model, and will say nothing of our replies
            memory = Memory(context, f"run{context.run_id}", self.folder)
            key, arrays = next(iter(message.content.array_records.items()))
            form = Form.of(arrays)
            model, used, nonce = form.flat(arrays), memory.tags(), bytes(NONCE)
        else:
            memory = Memory(context, str(notes["training"]), self.folder)
            brought = _brought(message, notes, memory)
            if brought is None:
                return Message(RecordDict({NOTES: ConfigRecord({"needs": "whole"})}), reply_to=message)
            key, form, model, arrays = brought
            used, nonce = _used(notes), bytes(notes["nonce"])  # type: ignore[arg-type]
            records = {name: record for name, record in message.content.items() if name != NOTES}
            message.content = RecordDict({**records, key: arrays})
        reply = call_next(message, context)
        if not training or reply.has_error():
            return reply
        return self._compressed(reply, context, form, model, memory, (used, nonce))

    def _compressed(
        self,
        reply: Message,
        context: Context,
        form: Form,
        model: Model,
        memory: Memory,
        told: tuple[set[str], bytes],
    ) -> Message:
        used, nonce = told
        if len(reply.content.array_records) != 1:
            raise ValueError(f"a reply to train has one ArrayRecord, got {list(reply.content.array_records)}")
        key, arrays = next(iter(reply.content.array_records.items()))
        learned = form.flat(arrays)
        update = model.weights - learned.weights
        first = self.operator.init(_with_kinds(form.layout, self.layout))
        state = _recalled(first, memory.state(used))
        started = time.perf_counter()
        sent, state = self.operator(update, state)
        if form.layout.buffers:
            sent = sent.with_buffers(learned.buffers)
        selected = time.perf_counter()
        data = nonce + joulegrad.encode(sent, form.layout)
        encoded = time.perf_counter()
        memory.remember(joulegrad.state_dict(state), tag_of(data))
        reply.content[key] = opaque(data)
        about = {key: str(context.node_config[key]) for key in ABOUT if key in context.node_config}
        took = {"select-seconds": selected - started, "encode-seconds": encoded - selected}
        reply.content[NOTES] = ConfigRecord({**about, **took})
        return reply


def tag_of(data: bytes) -> str:
    """A name for a reply: 64 bits in hexadecimal."""
    return hashlib.sha256(data).hexdigest()[:16]


def _brought(message: Message, notes: ConfigRecord, memory: Memory) -> tuple[str, Form, Model, ArrayRecord] | None:
    """The model that the server means, checked by its digest; None: it cannot be had without the whole."""
    key, carried = next(iter(message.content.array_records.items()))
    payload = payload_of(carried)
    if payload is None:
        raise ValueError("the server's message says that it brings a joulegrad payload, and there is none")
    whole, before = bool(notes["whole"]), None
    if whole:
        form = Form.from_json(str(notes["form"]))
        rest = {name: torch.from_numpy(carried[name].numpy()) for name in form.layout.local}
    else:
        found = memory.model()
        if found is None:
            return None
        tensors, about = found
        try:
            form, before = Form.from_json(about["form"]), tensors["weights"]
            rest = {name: tensors[f"rest {name}"] for name in form.layout.local}
        except (KeyError, ValueError):  # somebody else has written there
            return None
    model = Model(*received(payload, form.layout, before))
    if model.digest() != notes["model"]:
        if whole:
            raise ValueError(f"the model that came has digest {model.digest()}, the server meant {notes['model']!r}")
        return None
    memory.keep_model(
        {"weights": model.weights, "buffers": model.buffers, **{f"rest {name}": t for name, t in rest.items()}},
        form=form.to_json(),
    )
    return key, form, model, form.arrays(model, {name: t.numpy() for name, t in rest.items()})


def _used(notes: ConfigRecord) -> set[str]:
    """Tags of replies that the server has used."""
    packed = bytes(notes["used"])  # type: ignore[arg-type]
    return {packed[i : i + 8].hex() for i in range(0, len(packed), 8)}


def _with_kinds(layout: Layout, known: Layout | None) -> Layout:
    """The arrays' layout, with the kinds that the model's own gives."""
    if known is None:
        return layout
    kinds = {s.name: s.kind for s in known.segments}
    if not any(s.name in kinds for s in layout.segments):
        theirs, ours = layout.segments[0].name, known.segments[0].name
        raise ValueError(f"layout is another model's: the arrays begin with {theirs!r}, the layout with {ours!r}")
    shapes = {s.name: s.shape for s in layout.segments}
    mended = {s.name: kinds.get(s.name, s.kind) for s in layout.segments}  # what is frozen there has no kind
    return Layout(Layout.from_shapes(shapes, mended).segments, layout.buffers)


def _recalled(first: State, tensors: dict[str, Tensor] | None) -> State:
    return first if tensors is None else joulegrad.load_state_dict(first, tensors)
