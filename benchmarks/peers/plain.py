"""Federated averaging as a plain PyTorch loop: no simulator, one process, one client after the other."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from workload import Workload, now, report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--began", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    work = Workload(arguments.folder)
    model = work.model()
    server = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    draws = torch.Generator().manual_seed(0)
    ends = [now()]
    for _ in range(arguments.rounds):
        clients = torch.randperm(work.clients, generator=draws)[: work.sampled].tolist()
        total = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
        examples = sum(work.bounds[c + 1] - work.bounds[c] for c in clients)
        for client in clients:
            model.load_state_dict(server)
            sgd = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum)
            x, y = work.examples(client)
            for batch in torch.randperm(len(y), generator=draws).split(work.batch_size):
                sgd.zero_grad()
                cross_entropy(model(x[batch]), y[batch]).backward()
                sgd.step()
            for name, tensor in model.state_dict().items():
                total[name] += tensor * (len(y) / examples)
        server = total
        ends.append(now())
    model.load_state_dict(server)
    report(arguments.began, ends, work.accuracy(model))


if __name__ == "__main__":
    main()
