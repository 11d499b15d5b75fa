"""Three SuperNodes on this machine, each with another device's radio: start all, watch, stop all.

    python examples/flower/fleet.py start       a SuperLink, three SuperNodes, and a run, on loopback
    python examples/flower/fleet.py watch       bytes and joules of each node, as they come
    python examples/flower/fleet.py stop        end all of it

Joules are those of the radios that the profiles describe, from the bytes at the socket: no phone is here.
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
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

HERE = Path("fleet").absolute()  # logs, states, the app: all below here
JOURNAL, PROCESSES = HERE / "journal.jsonl", HERE / "processes.json"
ROUNDS = 8
NODES = (
    'name="phone, WiFi" device="phone" link="wifi-ac"',
    'name="phone, LTE" device="phone" link="lte-2021"',
    'name="Raspberry Pi" device="rpi4" link="wifi-rpi4"',
)
BIN = Path(sys.executable).parent


def start() -> None:
    if PROCESSES.exists():
        sys.exit(f"a fleet is there already: {sys.argv[0]} stop")
    shutil.rmtree(HERE, ignore_errors=True)
    (HERE / "flwr").mkdir(parents=True)
    link, *nodes = ports(4)
    config = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    (HERE / "flwr" / "config.toml").write_text(config)
    subprocess.run(
        [sys.executable, "-m", "joulegrad", "flower", "init", HERE / "app"], check=True, stdout=subprocess.DEVNULL
    )
    begin("superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", link)
    until_it_listens(link)
    for i, (port, about) in enumerate(zip(nodes, NODES, strict=True)):
        begin(
            f"node-{i}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}",
            "--host", "127.0.0.1", "--port", port,
            "--node-config", f"partition-id={i} num-partitions={len(NODES)} {about}",
        )  # fmt: skip
    settings = f'rounds={ROUNDS} nodes=3 minimum=3 deadline-seconds=600.0 journal="{JOURNAL}"'
    begin("run", "flwr", "run", HERE / "app", "here", "--stream", "-c", settings)
    print(f"started; logs are in {HERE}. Now: python {sys.argv[0]} watch")


def begin(name: str, command: str, *arguments: object) -> None:
    """Start one process in a session of its own, and note it, so that `stop` finds it."""
    env = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(HERE / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "JOULEGRAD_STATE": str(HERE / "state"),
    }
    with (HERE / f"{name}.log").open("wb") as log:
        words = [str(BIN / command), *map(str, arguments)]
        process = subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True)
    known = json.loads(PROCESSES.read_text()) if PROCESSES.exists() else {}
    PROCESSES.write_text(json.dumps({**known, name: process.pid}))


def watch() -> None:
    if not PROCESSES.exists():
        sys.exit(f"there is no fleet: {sys.argv[0]} start")
    with Live(console=Console(), refresh_per_second=4) as live:
        while True:
            rows = [json.loads(line) for line in JOURNAL.read_text().splitlines()] if JOURNAL.exists() else []
            live.update(table(rows))
            if max((row["round"] for row in rows), default=0) >= ROUNDS or not alive():
                return
            time.sleep(0.5)


def table(rows: list[dict[str, Any]]) -> Table:
    """What each node has sent, received and spent so far."""
    shown = Table(title=f"round {max((row['round'] for row in rows), default=0)} of {ROUNDS}")
    for column in ("node", "rounds", "kB up", "kB down", "J, radio (coded)", "J, wake and tail (modelled)"):
        shown.add_column(column, justify="left" if column == "node" else "right")
    for name in dict.fromkeys(row.get("name", row["node"]) for row in rows):
        own = [row for row in rows if row.get("name", row["node"]) == name]
        joules = {
            source: sum(sum((row["joules"] or {}).get(source, {}).values()) for row in own)
            for source in ("coded", "modelled")
        }
        shown.add_row(
            name, str(sum(row["used"] for row in own)), f"{sum(row['bytes_up'] for row in own) / 1e3:.1f}",
            f"{sum(row['bytes_down'] for row in own) / 1e3:.1f}", f"{joules['coded']:.3f}", f"{joules['modelled']:.3f}",
        )  # fmt: skip
    return shown


def stop() -> None:
    if not PROCESSES.exists():
        sys.exit("there is no fleet")
    processes = json.loads(PROCESSES.read_text())
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for process in reversed(processes.values()):
            with suppress(ProcessLookupError):
                os.killpg(process, sign)
        time.sleep(2 if sign == signal.SIGTERM else 0)
    PROCESSES.unlink()
    print("stopped")


def alive() -> bool:
    """Whether the run goes on."""
    run = json.loads(PROCESSES.read_text()).get("run")
    with suppress(ProcessLookupError, TypeError):
        os.kill(run, 0)
        return True
    return False


def ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    found = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return found


def until_it_listens(port: int) -> None:
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    sys.exit(f"the SuperLink did not begin; {HERE / 'superlink.log'} says why")


if __name__ == "__main__":
    commands = {"start": start, "watch": watch, "stop": stop}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]]()
