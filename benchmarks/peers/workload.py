"""What every simulator of `simulate.py` is given: the same arrays, the same first model, the same hyper-parameters.

Imports torch and numpy only, since each peer lives in an environment of its own.
"""

from __future__ import annotations

import ctypes
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Workload:
    """A folder that `simulate.py` has written, its arrays mapped into memory and not read.

    Each client's examples lie side by side, as float32 and normalised already: the best case for every simulator.
    """

    def __init__(self, folder: Path) -> None:
        settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())
        self.model_name: str = settings["model"]
        self.clients: int = settings["clients"]
        self.sampled: int = settings["sampled"]
        self.lr: float = settings["lr"]
        self.momentum: float = settings["momentum"]
        self.batch_size: int = settings["batch_size"]
        self.arrays = {path.stem: np.load(path, mmap_mode="c") for path in folder.glob("*.npy")}
        self.bounds: list[int] = self.arrays["bounds"].tolist()

    def examples(self, client: int, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """A client's images and labels."""
        cut = slice(self.bounds[client], self.bounds[client + 1])
        x, y = torch.from_numpy(self.arrays["x"][cut]), torch.from_numpy(self.arrays["y"][cut])
        return x.contiguous(memory_format=torch.channels_last) if channels_last else x, y

    def model(self, channels_last: bool = False) -> nn.Module:
        """The model, with the weights that all begin with."""
        model = cnn() if self.model_name == "cnn" else logistic()
        nn.utils.vector_to_parameters(torch.from_numpy(self.arrays["weights"]).clone(), model.parameters())
        return model.to(memory_format=torch.channels_last) if channels_last else model  # type: ignore[call-overload]

    def accuracy(self, model: nn.Module) -> float:
        """On the test images, at the end: whether all have done the same work."""
        model.eval()
        x, y = torch.from_numpy(self.arrays["x_test"]), torch.from_numpy(self.arrays["y_test"])
        with torch.no_grad():
            right = [(model(a).argmax(1) == b).sum() for a, b in zip(x.split(500), y.split(500), strict=True)]
        return float(sum(right) / len(y))


def cnn() -> nn.Module:
    """`joulegrad.lab.models.cnn` for 32 x 32 in three colours and ten classes: 282,250 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4096, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def logistic() -> nn.Module:
    """`joulegrad.lab.models.logistic`: 30,730 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))


def keep_memory() -> None:
    """Our allocator setting, as a user would copy it."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
    libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def report(began: float, ends: list[float], accuracy: float) -> None:
    """The last line that `simulate.py` reads: `ends` are the start of the first round and the end of each."""
    rounds = [after - before for before, after in pairwise(ends)]
    print("\n" + json.dumps({"start_seconds": ends[0] - began, "rounds": rounds, "accuracy": accuracy}), flush=True)


now = time.time  # the same clock in every process
