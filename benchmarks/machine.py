"""What must be known of the machine and the software for a time to mean anything."""

from __future__ import annotations

import os
import platform
import zlib
from datetime import UTC, datetime
from pathlib import Path

from joulegrad.lab.provenance import commit, version_of

PACKAGES = ("torch", "numpy", "numba", "zstandard")


def header(script: str, arguments: list[str]) -> dict[str, object]:
    """The first part of a result file; the caller adds what only it knows."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", script, *arguments]),
        "python": platform.python_version(),
        **{name: version_of(name) for name in PACKAGES},
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "load_average_at_start": load_average(),
        **commit(),
    }


def load_average() -> list[float]:
    """Of the last 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()]


def cpu() -> str | None:
    """The processor's own name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
