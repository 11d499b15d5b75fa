"""What a node keeps between two messages, in files of its own: Flower starts a process for every message.

    root/node/training/
        model.safetensors   the server's model as it was last received
        kept.safetensors    what the operator remembers, up to the last reply that the server used
        sent.safetensors    the same after the reply that was sent last, if the server has not said that it used it
        owner.json          whose folder this is, and which message is being answered

Each file is written beside its name, synced, and moved there. A reply that the server never used is as if it had never
been sent: the next broadcast does not name it, and the operator goes on from what is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock
from flwr.app import Context
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

__all__ = ["Memory", "Stale"]

MODEL, KEPT, SENT, OWNER = "model.safetensors", "kept.safetensors", "sent.safetensors", "owner.json"
FOLDER = "joulegrad-state"  # the key of a SuperNode's --node-config
TRAININGS = 3  # of a node, of which it keeps files


class Stale(RuntimeError):
    """The same node answers a later message already, so that this one's answer is not wanted."""


class Memory:
    """A node's files of one training.

    Args:
        context: of the ClientApp; says which node this is.
        training: the server's name for this training.
        root: folder of all nodes of this machine; None: `joulegrad-state` of the SuperNode's --node-config, or
            $JOULEGRAD_STATE, or joulegrad below the user's folder for such files.
    """

    def __init__(self, context: Context, training: str, root: Path | None = None) -> None:
        if not training.isalnum():
            raise ValueError(f"a training's name is letters and digits, got {training!r}")
        root = root or _root(context)
        node = _name(context)
        self.folder = root / node / training
        if self._taken(context.node_id):
            self.folder = root / f"{node}-{context.node_id}" / training
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is remembered tells of the data
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.claim = secrets.token_hex(8)
        with self._locked():
            supernode = _supernode()
            owner = {"node": context.node_id, "process": supernode, "begun": _begun(supernode), "claim": self.claim}
            _write_json(self.folder / OWNER, owner)
        _forget_old(self.folder)

    def model(self) -> tuple[dict[str, Tensor], Mapping[str, str]] | None:
        """The last model with what was noted beside it; None: there is none, or it is damaged."""
        return _load(self.folder / MODEL)

    def keep_model(self, tensors: Mapping[str, Tensor], **notes: str) -> None:
        """Keep the model that was just received."""
        _save(self.folder / MODEL, tensors, notes)

    def state(self, used: Collection[str]) -> dict[str, Tensor] | None:
        """What the operator remembers; None: nothing yet.

        Args:
            used: tags of replies that the server has used; ours is among them, or our last reply was lost.
        """
        with self._locked():
            sent = _load(self.folder / SENT)
            if sent is not None and sent[1].get("tag") in used:
                (self.folder / SENT).replace(self.folder / KEPT)
                return sent[0]
            kept = _load(self.folder / KEPT)
            return None if kept is None else kept[0]

    def tags(self) -> set[str]:
        """Of the last reply, if nobody has said that it was used."""
        found = _load(self.folder / SENT)
        return set() if found is None else {found[1].get("tag", "")}

    def remember(self, tensors: Mapping[str, Tensor], tag: str) -> None:
        """Keep what the operator remembers after a reply, until the server says that it has used it."""
        with self._locked():
            if _read_json(self.folder / OWNER).get("claim") != self.claim:
                raise Stale("another process of this node answers a later message: this one came too late")
            _save(self.folder / SENT, tensors, {"tag": tag})

    def _taken(self, node: int) -> bool:
        """Whether another SuperNode that still runs on this machine has this folder: two were given one name."""
        owner = _read_json(self.folder / OWNER)
        if owner.get("node") in (None, node):
            return False
        process = owner.get("process")
        return process not in (None, _supernode()) and _begun(process) == owner.get("begun") is not None

    def _locked(self) -> FileLock:
        """For moments only; nobody trains while it is held."""
        return FileLock(self.folder / "lock")


def _root(context: Context) -> Path:
    given = context.node_config.get(FOLDER) or os.environ.get("JOULEGRAD_STATE")
    if given:
        return Path(str(given)).expanduser()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "joulegrad" / "flower"


def _name(context: Context) -> str:
    """A node is what its --node-config says; without one, it is its number, which changes without a key."""
    config = {k: v for k, v in context.node_config.items() if k != FOLDER}
    if not config:
        return f"node-{context.node_id}"
    return "config-" + hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def _supernode() -> int | None:
    """The process that lives as long as the node: the parent of our parent, SuperNode or simulation."""
    found = _parent_and_begin(os.getppid())
    if found is None:
        return None
    if found[0] == 1 and "flower" not in _words_of_init():  # init has adopted the orphan of a SuperNode that is gone
        return None
    return found[0]


def _begun(process: Any) -> str | None:
    """When a process began; None where there is none."""
    found = _parent_and_begin(process) if process else None
    return None if found is None else found[1]


def _parent_and_begin(process: int) -> tuple[int, str] | None:
    """From /proc, or from ps where there is none; None: it is not there, or only its corpse."""
    stat = Path(f"/proc/{process}/stat")
    if Path("/proc/self/stat").exists():
        with suppress(OSError, IndexError, ValueError):
            state, parent, *rest = stat.read_text().rpartition(")")[2].split()
            return None if state == "Z" else (int(parent), rest[17])
        return None
    with suppress(OSError, ValueError):
        command = ["ps", "-o", "ppid=,lstart=", "-p", str(process)]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split(maxsplit=1)
        if len(told) == 2:
            return int(told[0]), told[1].strip()
    return None


def _words_of_init() -> str:
    """In a container the SuperNode itself may be process 1."""
    with suppress(OSError):
        return Path("/proc/1/cmdline").read_text()
    return ""


def _forget_old(folder: Path) -> None:
    """Keep a node's last trainings only."""
    others = sorted((p for p in folder.parent.iterdir() if p != folder), key=lambda p: -p.stat().st_mtime)
    for old in others[TRAININGS - 1 :]:
        shutil.rmtree(old, ignore_errors=True)


def _load(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]] | None:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def _save(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, part, dict(notes))
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def _write_json(path: Path, found: Mapping[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.replace(path)
