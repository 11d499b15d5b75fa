"""Docstring examples see what `from joulegrad import *` gives, and torch."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import joulegrad

collect_ignore = [
    "tests/fuzz_wire.py",  # `make fuzz` runs it, and needs atheris
    "tests/flower_app",  # apps, and a program: tests start them
    "tests/counting_proxy.py",
    "joulegrad/flower/starter",
    "tests/compile_for_gpu.py",  # test_gpu.py runs it, in a process of its own
]
if importlib.util.find_spec("triton") is None:
    of_a_gpu = "frugal", "gpu", "phases", "priced", "ranking", "spending", "tallies", "tiles"
    collect_ignore += [f"joulegrad/kernels/{name}.py" for name in of_a_gpu]
elif not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its programs then run here, on numpy


WANTING = ("NO REAL", "NO BROWSER", "NO NGINX")  # what a skip says where the machine lacks something


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Fail what was skipped for want of real data, a browser or a proxy, where `.ci/run` asks for all of them."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    required = os.environ.get("JOULEGRAD_TESTS") == "complete"
    if required and report.skipped and any(said in str(report.longrepr) for said in WANTING):
        report.outcome, report.longrepr = "failed", f"{item.nodeid}: {report.longrepr[2]}"


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update({name: getattr(joulegrad, name) for name in joulegrad.__all__})
    doctest_namespace.update(joulegrad=joulegrad, torch=torch, nn=torch.nn, dataclass=dataclasses.dataclass)
