"""Docstring examples see what `from joulegrad import *` gives, and torch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import joulegrad

collect_ignore = ["tests/fuzz_wire.py"]  # `make fuzz` runs it, and needs atheris


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update({name: getattr(joulegrad, name) for name in joulegrad.__all__})
    doctest_namespace.update(joulegrad=joulegrad, torch=torch, nn=torch.nn, dataclass=dataclasses.dataclass)
