"""Play an experiment on Flower: a simulation that is started here, or the deployment that a connection names."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from joulegrad.lab.experiment import Experiment
from joulegrad.lab.run import Outcome
from joulegrad.lab.simulate import Row
from joulegrad.lab.store import HEADER, finished, read_header, read_rounds
from joulegrad.lab.workers import die_with

__all__ = ["ENGINES", "SAFE", "Stopped", "check", "play"]

ENGINES = ("local", "flower-sim", "flower")
SAFE = {  # nothing is installed while it runs, nothing is reported, Ray stays on loopback (it says Windows; Linux too)
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
LOOK = 0.1  # seconds between two looks at the rounds
PATIENCE = 60.0  # seconds for a SuperLink to begin, or to end

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "joulegrad-experiment"
version = "{version}"
description = "Written by joulegrad run --engine: an experiment as a Flower app."
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "joulegrad"

[tool.flwr.app.components]
serverapp = "experiment.server:app"
clientapp = "experiment.client:app"

[tool.flwr.app.config]
engine = {engine}
folder = {folder}
experiment = {experiment}
"""


class Stopped(OSError):
    """Flower ended before the experiment did."""


def play(
    experiment: Experiment,
    folder: Path,
    *,
    engine: str,
    connection: str | None = None,
    seen: Callable[[Row], None] = lambda row: None,
) -> Outcome:
    """Begin or go on; a finished run is only read.

    Args:
        experiment: what is played.
        folder: where; the server app writes it, so it lies on the SuperLink's machine.
        engine: "flower-sim" starts a simulation, "flower" uses a SuperLink that runs.
        connection: of Flower's config.toml; None: its default. For "flower" only.
        seen: is given each row when its round is over, first those that were there already.
    """
    if engine not in ENGINES[1:]:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    check(experiment)
    _tool("flwr")
    folder = folder.absolute()
    if (folder / HEADER).exists():
        began = read_header(folder).get("engine", "local")
        if began != engine:
            raise ValueError(f"{folder} holds a run on the engine {began!r}, not {engine!r}; choose another folder")
        if finished(folder, experiment.rounds):
            rows = read_rounds(folder)
            for row in rows:
                seen(row)
            return Outcome(rows, True)
    folder.mkdir(parents=True, exist_ok=True)
    app = _written(experiment, folder, engine)
    simulation = engine == "flower-sim"
    with _asked_politely(), _superlink(folder) if simulation else _found() as (env, default):
        where = [connection or default] if connection or default else []
        command = [_tool("flwr"), "run", str(app), *where, "--stream"]
        if simulation:
            n = getattr(experiment.partition, "clients", None) or _clients(experiment)
            command += ["--federation-config", f"num-supernodes={n} client-resources-num-cpus=1"]
        return _watched(command, env, experiment, folder, seen)


def check(experiment: Experiment) -> None:
    """Refuse what would be counted, and not be what is sent: Flower's nodes get the server's model, as deltas."""
    if not isinstance(experiment.downlink, str):
        raise ValueError(
            "on Flower the server sends its model as it is, whole or in deltas; an operator as downlink is played by "
            'the local engine alone: leave --engine out, or set downlink = "delta"'
        )
    if experiment.initial == "drawn":
        raise ValueError(
            'on Flower a node gets its first model from the server; initial = "drawn" is played by the local engine '
            "alone: leave --engine out, or leave initial out"
        )


def _written(experiment: Experiment, folder: Path, engine: str) -> Path:
    """The app: two lines of code and the experiment."""
    from joulegrad import __version__

    app = folder / "app"
    (app / "experiment").mkdir(parents=True, exist_ok=True)
    texts = {name: json.dumps(value) for name, value in (("engine", engine), ("folder", str(folder)))}
    settings = json.dumps(json.dumps(experiment.to_dict()))
    (app / "pyproject.toml").write_text(PROJECT.format(version=__version__, experiment=settings, **texts))
    (app / "experiment" / "__init__.py").write_text("")
    for name in ("client", "server"):
        code = f"from joulegrad.lab.nodes import {name}\n\napp = {name}\n"
        (app / "experiment" / f"{name}.py").write_text(code)
    return app


@contextmanager
def _superlink(folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    """A SuperLink for simulations, of our own, on loopback; ended with all that it has started."""
    home, port = folder / "flwr", _free_port()
    home.mkdir(exist_ok=True)
    env = {**_env(), "FLWR_HOME": str(home), "JOULEGRAD_STATE": str(folder / "nodes")}
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "ours"\n\n[superlink.ours]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    command = [_tool("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    process = _begun(command, env, folder / "superlink.log")
    try:
        _until_it_listens(process, port, folder)
        yield env, "ours"
    finally:
        _end(process)


@contextmanager
def _found() -> Iterator[tuple[dict[str, str], str]]:
    """A SuperLink that somebody else has started."""
    yield _env(), ""


def _env() -> dict[str, str]:
    """Flower's commands start each other by name, so they must be found where we found the first."""
    return {**os.environ, **SAFE, "PATH": f"{Path(_tool('flwr')).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _watched(
    command: list[str], env: dict[str, str], experiment: Experiment, folder: Path, seen: Callable[[Row], None]
) -> Outcome:
    """Show rounds as they come, until the run is over."""
    log, shown = folder / "flwr.log", 0
    process = _begun(command, env, log)
    try:
        while True:
            over = process.poll() is not None
            rows = read_rounds(folder)
            for row in rows[shown:]:
                seen(row)
            shown = len(rows)
            if finished(folder, experiment.rounds):
                return Outcome(rows, True)
            if over:
                raise Stopped(f"Flower ended after round {shown} of {experiment.rounds}; {log} says why")
            time.sleep(LOOK)
    except KeyboardInterrupt:
        if run := re.search(r"started run (\d+)", log.read_text(errors="replace")):
            stop = [command[0], "stop", run[1], *(word for word in command[3:4] if word != "--stream")]
            subprocess.run(stop, env=env, capture_output=True, check=False)
        return Outcome(read_rounds(folder), False)
    finally:
        _end(process)


def _begun(command: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A process in a session of its own, so that all it starts can be ended; it does not outlive us."""
    ours = os.getpid()
    with log.open("wb") as file:
        return subprocess.Popen(
            command, env=env, stdout=file, stderr=file, start_new_session=True,
            preexec_fn=lambda: die_with(ours, signal.SIGTERM),
        )  # fmt: skip


@contextmanager
def _asked_politely() -> Iterator[None]:
    """A request to end is as Ctrl-C."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not the main thread: whoever owns it decides
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A process and its session: politely, then not."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE if sign == signal.SIGKILL else 5)


def _until_it_listens(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > end:
            raise Stopped(f"Flower's SuperLink did not begin; {folder / 'superlink.log'} says why")
        time.sleep(LOOK)


def _clients(experiment: Experiment) -> int:
    """Of a partition that has to be made to be counted."""
    from joulegrad.lab import data

    return len(experiment.partition.split(data.load(experiment.data).train, experiment.seed))


def _tool(name: str) -> str:
    """A command of Flower's: of this environment, or of the system."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise ValueError(f"the engines flower-sim and flower need {name}: pip install 'joulegrad[lab,flower]'")
    return found


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
