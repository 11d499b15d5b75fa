"""A Flower deployment of real processes, on loopback: inside a network namespace of its own where that is allowed.

Nothing is timed: a test waits for what it needs to see, and every wait has an end. What was started is found again by a
variable in its environment, and ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
PATIENCE = 150.0  # seconds until a wait is a failure
MARK = "JOULEGRAD_TEST_FLEET"


class Fleet:
    """A folder with logs and gates, and the processes that belong to it."""

    def __init__(self, folder: Path, app: Path | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.app = folder / "app"
        shutil.copytree(app or HERE / "flower_app", self.app, ignore=shutil.ignore_patterns("__pycache__"))
        self.env = {
            **os.environ,
            MARK: str(folder),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too, it keeps Ray on loopback
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "JOULEGRAD_STATE": str(folder / "nodes"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self.inside, self.holder = _namespace(self.env)
        self.port = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.begun: list[subprocess.Popen[bytes]] = []
        (folder / "flwr").mkdir()
        self.configure(insecure=True)

    def configure(self, **options: object) -> None:
        """Where `flwr run` finds the SuperLink."""
        lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
        known = ["[superlink]", 'default = "dep"', "[superlink.local]", 'address = ":local:"', "[superlink.dep]"]
        lines = [*known, f'address = "127.0.0.1:{self.port}"', *lines, ""]
        (self.folder / "flwr" / "config.toml").write_text("\n".join(lines))

    def begin(self, name: str, *command: object) -> subprocess.Popen[bytes]:
        """Start a process; what it says goes to a log of its name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.inside, *map(str, command)], env=self.env, stdout=log, stderr=subprocess.STDOUT,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.running[name] = process
        self.begun.append(process)
        return process

    def superlink(self, *options: object) -> None:
        """Start it, and wait until it listens."""
        options = options or ("--insecure",)
        self.begin("superlink", BIN / "flower-superlink", "--host", "127.0.0.1", "--port", self.port, *options)
        self.until(lambda: self.listens(self.port), "the SuperLink listens")

    def supernode(self, i: int, *options: object, to: int | None = None, **config: object) -> None:
        """Start one, and wait until it has joined."""
        text = " ".join(f"{k}={json.dumps(v)}" for k, v in {"partition-id": i, "num-partitions": 3, **config}.items())
        name, options = f"supernode-{i}", options or ("--insecure",)
        self.begin(
            name, BIN / "flower-supernode", "--superlink", f"127.0.0.1:{to or self.port}", "--host", "127.0.0.1",
            "--port", free_port(), "--node-config", text, *options,
        )  # fmt: skip

    def run(self, name: str, **config: object) -> subprocess.Popen[bytes]:
        """`flwr run`, by its name's end: the result is NAME.npz."""
        given = {"out": str(self.folder / f"{name}.npz"), **config}
        text = " ".join(f"{k.replace('_', '-')}={json.dumps(v)}" for k, v in given.items())
        return self.begin(f"run-{name}", BIN / "flwr", "run", self.app, "dep", "--stream", "-c", text)

    def result(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, object]]:
        """Wait for the end of a run."""
        out = self.folder / f"{name}.npz"
        self.until(out.exists, f"{name} is finished", by=f"run-{name}")
        with np.load(out) as found:
            return dict(found), json.loads(out.with_suffix(".json").read_text())

    def rows(self, name: str) -> list[dict[str, object]]:
        """Its journal."""
        file = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def gate(self, name: str) -> Path:
        """A file by which nodes wait."""
        return self.folder / name

    def kill(self, name: str, by: int = signal.SIGKILL) -> None:
        """End one process, and wait until it is gone."""
        process = self.running.pop(name)
        process.send_signal(by)
        process.wait(PATIENCE)

    def kill_pid(self, pid: int) -> None:
        """End a process that another has started, and wait until it is gone."""
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        self.until(lambda: pid not in self.processes(), f"process {pid} is gone")

    def finish(self, *command: object) -> None:
        """Run a command to its end."""
        found = subprocess.run(
            [*self.inside, *map(str, command)],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stdout + found.stderr

    def find(self, word: str) -> list[int]:
        """Processes of this fleet whose command has a word in it."""
        return [pid for pid, command in self.processes().items() if word in command]

    def processes(self) -> dict[int, str]:
        """All that belong to this fleet."""
        found = {}
        mark = f"{MARK}={self.folder}\0".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes() + b"\0":
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def until(self, holds, what: str, by: str | None = None) -> None:
        """Wait for something to be so; say what all processes said if it is not."""
        end = time.monotonic() + PATIENCE
        while not holds():
            process = self.running.get(by or "")
            if time.monotonic() > end or (process is not None and process.poll() is not None and not holds()):
                raise AssertionError(f"waited in vain until {what}\n{self.told()}")
            time.sleep(0.05)

    def listens(self, port: int) -> bool:
        """Whether a port is open, inside."""
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        return (
            subprocess.run([*self.inside, sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
        )

    def status(self, port: int, path: str) -> str:
        """What a POST without any key is answered, the path as it is."""
        request = f"POST {path} HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n"
        code = (
            "import socket, ssl; c = ssl.create_default_context(cafile='ca.crt'); "
            f"s = c.wrap_socket(socket.create_connection(('127.0.0.1', {port})), server_hostname='localhost'); "
            f"s.sendall(b'{request}'); print(s.recv(99).split()[1].decode())"
        )
        command = [*self.inside, sys.executable, "-c", code]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True).stdout.strip()

    def log(self, name: str) -> str:
        """What a process has said so far."""
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def told(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"--- {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        """End all that was started, and what that has started."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.processes():
                with suppress(OSError):
                    os.kill(pid, sign)
            for process in self.begun:  # nginx writes its title over its environment
                if process.poll() is None:
                    with suppress(OSError):
                        os.killpg(process.pid, sign)
            end = time.monotonic() + (3 if sign == signal.SIGTERM else 20)
            while (self.processes() or any(p.poll() is None for p in self.begun)) and time.monotonic() < end:
                time.sleep(0.05)
        for process in self.begun:
            process.wait(PATIENCE)
        if self.holder is not None:
            self.holder.kill()
            self.holder.wait()


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _namespace(env: dict[str, str]) -> tuple[list[str], subprocess.Popen[bytes] | None]:
    """How to run a command where there is nothing but loopback; where that is not allowed, here."""
    if not (shutil.which("unshare") and shutil.which("nsenter") and shutil.which("ip")):
        return [], None
    command = ["unshare", "-rn", "sh", "-c", "ip link set lo up && echo ready && exec sleep infinity"]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if holder.stdout is not None and holder.stdout.readline() == b"ready\n":
        holder.stdout.close()
        return ["nsenter", "-t", str(holder.pid), "-U", "-n", "--preserve-credentials", "--"], holder
    holder.kill()
    holder.wait()
    return [], None
