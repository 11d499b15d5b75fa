"""Federated averaging in pfl-research: one process, or several under torchrun.

Clients are given to processes by their size (`user_id_to_weight`), and their batches are cut once: the best case.
`--tuned` adds what a user could copy from us.
"""

from __future__ import annotations

import argparse
import os
from functools import cache
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--rounds", type=int, required=True)
parser.add_argument("--began", type=float, required=True)
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--tuned", action="store_true")
parser.add_argument("--bfloat16", action="store_true")

from workload import Workload, keep_memory, now, report

if parser.parse_args().tuned:
    keep_memory()  # before torch allocates

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Classifier(nn.Module):
    """The network with what pfl asks of one."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What local SGD lowers."""
        return cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """None: nobody evaluates."""
        return {}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """When each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, *, model: Any) -> Metrics:
        """The first round starts."""
        self.ends.append(now())
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """A round has ended."""
        self.ends.append(now())
        return False, Metrics()


def main() -> None:
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    work = Workload(arguments.folder)
    network = work.model(channels_last=arguments.tuned)

    @cache
    def dataset(client: int) -> Dataset:
        x, y = work.examples(client, channels_last=arguments.tuned)
        return Dataset([x, y], user_id=str(client))

    clients = list(range(work.clients))
    sizes = {c: work.bounds[c + 1] - work.bounds[c] for c in clients}
    data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", clients), sizes)
    model = PyTorchModel(
        Classifier(network),
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=work.momentum),
        torch.optim.SGD(network.parameters(), lr=1.0),
        amp_dtype=torch.bfloat16 if arguments.bfloat16 else None,
    )
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=arguments.rounds,
            evaluation_frequency=10**9,  # the first round evaluates, and is left out
            train_cohort_size=work.sampled,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_batch_size=work.batch_size, local_num_epochs=1, local_learning_rate=work.lr, local_max_grad_norm=None
        ),
        callbacks=[clock],
    )
    if os.environ.get("RANK", "0") == "0":
        report(arguments.began, clock.ends, work.accuracy(network))


if __name__ == "__main__":
    main()
