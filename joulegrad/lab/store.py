"""A run is a folder that survives anything: killed at any moment, it goes on from its last whole checkpoint.

    header.json                         what was asked for, by which versions, on what machine
    rounds.jsonl                        a line a round, appended
    checkpoint-00012-1f2e3d4c.safetensors   all that round 13 depends on; the name ends with the content's crc32
    clients.bin                         what clients remember (`memories`)
    lock                                held by the process that writes

Two checkpoints are kept. Each is written beside its name and moved there when it is whole. A result that was collected
(`results`) has the first two files only, and its header says so.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from joulegrad.lab.experiment import LATER, Experiment, anywhere
from joulegrad.lab.provenance import provenance, versions

try:
    from filelock import FileLock, Timeout
    from safetensors.torch import load, save
except ModuleNotFoundError as why:
    raise ModuleNotFoundError(f"a run's folder needs {why.name}: pip install 'joulegrad[lab]'", name=why.name) from None

__all__ = ["COLLECTED", "Damaged", "Folder", "Held", "count_rounds", "finished", "held", "read_header", "read_rounds"]

HEADER, ROUNDS, LOCK, MEMORIES = "header.json", "rounds.jsonl", "lock", "clients.bin"
COLLECTED = "collected"  # of a header: this is a finished run's result, and nothing can go on from it
PATIENCE = 2.0  # seconds: the processes of a run that was killed may take a moment to be gone
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
        self.lock = FileLock(path / LOCK)
        try:
            self.lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise Held(f"{path} is being written by another process; wait for it, or stop it") from None
        try:
            self.notes: list[str] = []  # what was found damaged, and what was done about it
            self._begin(experiment, facts)
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

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Add to the header what is known only now."""
        header = read_header(self.path)
        if not facts.items() <= header.items():
            _write(self.path / HEADER, json.dumps({**header, **facts}, indent=1).encode())

    def append(self, row: Mapping[str, Any]) -> None:
        """One more round, in one write."""
        line = json.dumps(row, allow_nan=False, default=_number).encode() + b"\n"
        if self.rounds.write(line) != len(line):
            raise OSError(f"{self.path / ROUNDS} took only a part of a line: the disk is full")

    def checkpoint(self, state: Mapping[str, Tensor]) -> None:
        """Keep a state, and of those before it only the newest."""
        os.fsync(self.rounds.fileno())
        raw = save({name: t.detach().cpu().contiguous() for name, t in state.items()})
        name = f"checkpoint-{int(state['round']):05d}-{zlib.crc32(raw):08x}.safetensors"
        _write(self.path / name, raw)
        for old in _checkpoints(self.path)[2:]:
            old.unlink()

    def _begin(self, experiment: Experiment, facts: Mapping[str, Any]) -> None:
        file = self.path / HEADER
        if not file.exists():
            if (self.path / ROUNDS).exists() or _checkpoints(self.path):
                raise Damaged(f"{self.path} has rounds but no {HEADER}, so nobody knows whose; choose another folder")
            begun = {"experiment": anywhere(experiment.to_dict()), **provenance(), **facts}
            _write(file, json.dumps(begun, indent=1).encode())
            return
        header = read_header(self.path)
        if header.get(COLLECTED):
            raise ValueError(f"{self.path} is a collected result, from which no run can go on; choose another folder")
        both = header["experiment"], json.loads(json.dumps(experiment.to_dict()))
        found, wanted = ({**LATER, **anywhere(e)} for e in both)
        differing = [key for key in wanted if wanted[key] != found.get(key)]
        if differing:
            key = differing[0]
            raise ValueError(
                f"{self.path} holds another experiment: its {key} is {found.get(key)!r}, not {wanted[key]!r}"
                f"{f' (and {len(differing) - 1} more differ)' if len(differing) > 1 else ''}; choose another folder"
            )
        then, now = header.get("versions"), versions()
        if then != now:
            self.notes.append(f"the run began with {_listed(then)} and goes on with {_listed(now)}: it may differ")

    def _newest(self) -> dict[str, Tensor] | None:
        """The newest checkpoint that is whole, and all of whose rounds are; those that are not are put aside."""
        for torn in self.path.glob("*.part"):
            torn.unlink()
        rounds = count_rounds(self.path)
        for path in _checkpoints(self.path):
            raw = path.read_bytes()
            if f"{zlib.crc32(raw):08x}" != _parts(path)[1]:
                why = "is damaged"
            elif _parts(path)[0] > rounds:
                why = f"needs {_parts(path)[0]} rounds, of which {ROUNDS} has {rounds}"
            else:
                return load(raw)
            path.rename(path.with_suffix(".damaged"))
            self.notes.append(f"{path.name} {why} and was put aside; the run goes on from before it")
        return None

    def _cut_rounds(self, last: int) -> None:
        """Forget rounds after the checkpoint: they are played again, and come out the same."""
        file = self.path / ROUNDS
        if file.exists():
            kept = sum(map(len, file.read_bytes().splitlines(keepends=True)[:last]))
            if kept < file.stat().st_size:
                os.truncate(file, kept)  # which a full disk allows


def read_header(path: Path) -> dict[str, Any]:
    """What was asked for."""
    file = path / HEADER
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        raise Damaged(f"{path} is no run's folder: it has no {HEADER}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("experiment"), dict):
        raise Damaged(f"{file} is damaged; delete the folder to begin again")
    return found


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """All whole rounds so far; a line that is being written is left out."""
    return [json.loads(line) for line in _whole_lines(path)]


def count_rounds(path: Path) -> int:
    """How many whole rounds there are."""
    return len(_whole_lines(path))


def finished(path: Path, rounds: int) -> bool:
    """Whether a run of so many rounds has come to its end, and kept it."""
    if _checkpoints(path):
        return _parts(_checkpoints(path)[0])[0] == rounds == count_rounds(path)
    if rounds != count_rounds(path):
        return False
    try:
        return bool(read_header(path).get(COLLECTED))
    except Damaged:
        return False


def held(path: Path) -> bool:
    """Whether a process writes there now."""
    if not (path / LOCK).exists():
        return False
    try:
        with FileLock(path / LOCK, timeout=0):
            return False
    except Timeout:
        return True


def _whole_lines(path: Path) -> list[bytes]:
    """The lines before the first that is torn, or not where it belongs."""
    lines: list[bytes] = []
    file = path / ROUNDS
    for line in file.read_bytes().splitlines(keepends=True) if file.exists() else []:
        try:
            if not line.endswith(b"\n") or json.loads(line)["round"] != len(lines) + 1:
                break
        except (ValueError, KeyError, TypeError):
            break
        lines.append(line)
    return lines


def _checkpoints(path: Path) -> list[Path]:
    """The latest first."""
    found = [p for p in path.iterdir() if CHECKPOINT.fullmatch(p.name)] if path.is_dir() else []
    return sorted(found, key=_parts, reverse=True)


def _parts(checkpoint: Path) -> tuple[int, str]:
    """Its round, and the crc32 of its content."""
    found = CHECKPOINT.fullmatch(checkpoint.name)
    if found is None:
        raise ValueError(f"{checkpoint.name} is no checkpoint's name")
    return int(found[1]), found[2]


def _listed(versions: Mapping[str, str | None] | None) -> str:
    return ", ".join(f"{name} {v}" for name, v in (versions or {}).items() if v) or "unknown versions"


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
