"""A run is a folder that survives anything: killed at any moment, it goes on from its last whole checkpoint.

    header.json                         what was asked for, by which versions, on what machine
    rounds.jsonl                        a line a round, appended
    checkpoint-00012-1f2e3d4c.safetensors   all that round 13 depends on; the name ends with the content's crc32
    clients.bin                         what clients remember (`memories`)
    lock                                held by the process that writes

Two checkpoints are kept. Each is written beside its name and moved there when it is whole.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load, save
from torch import Tensor

import joulegrad
from joulegrad.lab.experiment import Experiment

__all__ = ["Damaged", "Folder", "Held", "read_header", "read_rounds"]

HEADER, ROUNDS, LOCK, MEMORIES = "header.json", "rounds.jsonl", "lock", "clients.bin"
CHECKPOINT = re.compile(r"checkpoint-(\d+)-([0-9a-f]{8})\.safetensors")


class Held(RuntimeError):
    """Another process writes to this folder."""


class Damaged(ValueError):
    """What lies in the folder is not what a run leaves there."""


class Folder:
    """A run's folder, open for writing; one process at a time.

    Args:
        path: made if it is not there.
        experiment: what runs here; a folder of another experiment is refused.
        facts: more for the header: device, workers.
    """

    def __init__(self, path: Path, experiment: Experiment, facts: Mapping[str, Any]) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(path / LOCK, timeout=0)
        try:
            self.lock.acquire()
        except Timeout:
            raise Held(f"{path} is being written by another process; wait for it, or stop it") from None
        try:
            self._begin(experiment, facts)
            self.notes: list[str] = []  # what was found damaged, and what was done about it
            self.state = self._newest()
            self._cut_rounds(0 if self.state is None else int(self.state["round"]))
            self.rounds = (path / ROUNDS).open("ab", buffering=0)
        except BaseException:
            self.lock.release()
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rounds.close()
        self.lock.release()

    def append(self, row: Mapping[str, Any]) -> None:
        """One more round, in one write."""
        line = json.dumps(row, allow_nan=False, default=_number).encode() + b"\n"
        if self.rounds.write(line) != len(line):
            raise OSError(f"{self.path / ROUNDS}: the disk took only a part of a line")

    def checkpoint(self, state: Mapping[str, Tensor]) -> None:
        """Keep a state, and of those before it only the newest."""
        os.fsync(self.rounds.fileno())
        raw = save({name: t.detach().cpu().contiguous() for name, t in state.items()})
        name = f"checkpoint-{int(state['round']):05d}-{zlib.crc32(raw):08x}.safetensors"
        _write(self.path / name, raw)
        for old in self._checkpoints()[2:]:
            old.unlink()

    def _begin(self, experiment: Experiment, facts: Mapping[str, Any]) -> None:
        file = self.path / HEADER
        if file.exists():
            found = read_header(self.path)["experiment"]
            wanted = json.loads(json.dumps(experiment.to_dict()))
            differing = [key for key in wanted if wanted[key] != found.get(key)]
            if differing:
                key = differing[0]
                raise ValueError(
                    f"{self.path} holds another experiment: its {key} is {found.get(key)!r}, not {wanted[key]!r}"
                    f"{f' (and {len(differing) - 1} more differ)' if len(differing) > 1 else ''}; choose another folder"
                )
            return
        header = {"experiment": experiment.to_dict(), **provenance(), **facts}
        _write(file, json.dumps(header, indent=1).encode())

    def _checkpoints(self) -> list[Path]:
        found = [p for p in self.path.iterdir() if CHECKPOINT.fullmatch(p.name)]
        return sorted(found, key=lambda p: p.stat().st_mtime_ns, reverse=True)

    def _newest(self) -> dict[str, Tensor] | None:
        """The newest checkpoint that is whole; those that are not are put aside."""
        for torn in self.path.glob("*.part"):
            torn.unlink()
        for path in sorted(self._checkpoints(), key=lambda p: p.name, reverse=True):
            raw = path.read_bytes()
            if f"{zlib.crc32(raw):08x}" == CHECKPOINT.fullmatch(path.name).group(2):  # type: ignore[union-attr]
                return load(raw)
            path.rename(path.with_suffix(".damaged"))
            self.notes.append(f"{path.name} is damaged and was put aside; the one before it is used")
        return None

    def _cut_rounds(self, last: int) -> None:
        """Forget rounds after the checkpoint: they are played again, and come out the same."""
        file = self.path / ROUNDS
        if not file.exists():
            return
        kept, lines = b"", file.read_bytes().splitlines(keepends=True)
        for n, line in enumerate(lines[:last]):
            if not _whole(line, n + 1):
                raise Damaged(f"{file}, line {n + 1}, is damaged, and the checkpoint of round {last} needs it")
            kept += line
        if len(kept) < file.stat().st_size:
            _write(file, kept)


def _whole(line: bytes, number: int) -> bool:
    try:
        return line.endswith(b"\n") and json.loads(line)["round"] == number
    except (ValueError, KeyError, TypeError):
        return False


def read_header(path: Path) -> dict[str, Any]:
    """What was asked for."""
    file = path / HEADER
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        raise Damaged(f"{path} is no run's folder: it has no {HEADER}") from None
    except ValueError:
        raise Damaged(f"{file} is no JSON; delete the folder to begin again") from None
    return found


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """All whole rounds so far; a line that is being written is left out."""
    file, rows = path / ROUNDS, []
    if not file.exists():
        return []
    for n, line in enumerate(file.read_bytes().splitlines(keepends=True)):
        if not _whole(line, n + 1):
            break
        rows.append(json.loads(line))
    return rows


def provenance() -> dict[str, Any]:
    """Versions, commit, machine and time: what a result's header has."""
    return {
        "joulegrad": joulegrad.__version__,
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "versions": {name: _version(name) for name in ("torch", "numpy", "numba", "triton")},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Of the checkout that the package lies in; None where there is none."""
    try:
        found = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def _write(path: Path, raw: bytes) -> None:
    """A whole file or none: written beside its name, synced, moved there."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _number(value: Any) -> Any:
    return value.item()
