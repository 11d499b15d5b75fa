"""Docstring examples see what `from joulegrad import *` gives, and torch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import joulegrad

collect_ignore = ["tests/fuzz_wire.py"]  # `make fuzz` runs it, and needs atheris


REQUIRED = {"JOULEGRAD_REAL_DATA": "NO REAL", "JOULEGRAD_BROWSER": "NO BROWSER"}  # what a skip says for want of it


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Fail what was skipped for want of real data or a browser, where `.ci/run` asks for it."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    wanted = [said for name, said in REQUIRED.items() if os.environ.get(name) == "required"]
    if report.skipped and any(said in str(report.longrepr) for said in wanted):
        report.outcome, report.longrepr = "failed", f"{item.nodeid}: {report.longrepr[2]}"


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update({name: getattr(joulegrad, name) for name in joulegrad.__all__})
    doctest_namespace.update(joulegrad=joulegrad, torch=torch, nn=torch.nn, dataclass=dataclasses.dataclass)
