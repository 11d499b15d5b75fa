"""What made a result: versions, commit, machine and time, for its header."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import joulegrad

__all__ = ["COMMIT", "commit", "provenance", "version_of", "versions"]

COMMIT = "JOULEGRAD_COMMIT"  # environment: the commit, where the code was copied without its repository


def provenance() -> dict[str, Any]:
    """Versions, commit, machine and time."""
    return {
        **commit(),
        "versions": versions(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def versions() -> dict[str, str | None]:
    """Of ourselves, and of what computes."""
    packages = {name: version_of(name) for name in ("torch", "numpy", "numba", "triton")}
    return {"joulegrad": joulegrad.__version__, **packages}


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> dict[str, Any]:
    """Of the checkout that the package lies in, and whether it was changed since; None where nobody knows.

    Whoever copied the files elsewhere may say which they are: that goes before what a repository around them says.
    """
    if told := os.environ.get(COMMIT):
        return {"commit": told, "uncommitted_changes": None}
    head, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return {"commit": head, "uncommitted_changes": None if head is None else bool(changes)}


def _git(*arguments: str) -> str | None:
    try:
        found = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None
