"""What Flower's actors import: a client."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from workload import Workload, keep_memory


@cache
def here(folder: Path, threads: int, tuned: bool) -> tuple[Workload, nn.Module]:
    """An actor's workload and model, made once."""
    torch.set_num_threads(threads)
    if tuned:
        keep_memory()
    work = Workload(folder)
    return work, work.model(channels_last=tuned)


@cache
def examples(folder: Path, client: int, tuned: bool) -> tuple[Tensor, Tensor]:
    """A client's examples, kept."""
    return Workload(folder).examples(client, channels_last=tuned)


def client_app(folder: Path, threads: int, tuned: bool, bfloat16: bool) -> ClientApp:
    """LocalSGD, as Flower's quickstart has it."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        work, model = here(folder, threads, tuned)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        x, y = examples(folder, int(context.node_config["partition-id"]), tuned)
        sgd = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum)
        for batch in torch.randperm(len(y)).split(work.batch_size):
            sgd.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            sgd.step()
        content = RecordDict(
            {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        )
        return Message(content=content, reply_to=message)

    return app
