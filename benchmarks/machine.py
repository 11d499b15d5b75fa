"""What must be known of the machine and the software for a time to mean anything."""

from __future__ import annotations

import os
import platform
import subprocess
import zlib
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "numpy", "numba", "zstandard")
ROOT = Path(__file__).parent.parent


def header(script: str, arguments: list[str]) -> dict[str, object]:
    """The first part of a result file; the caller adds what only it knows."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", script, *arguments]),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "load_average_at_start": load_average(),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
    }


def load_average() -> list[float]:
    """Of the last 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()]


def cpu() -> str | None:
    """The processor's own name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says, without taking its locks; None where there is no checkout."""
    found = subprocess.run(
        ["git", "--no-optional-locks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else None
