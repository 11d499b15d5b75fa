"""Federated averaging with Top-K and error feedback in plain PyTorch: what the lab must equal, without it."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import cross_entropy

SHUFFLING = 2  # which of the lab's streams of random numbers orders the examples


def normalised(images):
    """Bytes, or numbers, minus their mean over their standard deviation, a channel or a feature each."""
    x = images / 255 if images.dtype == torch.uint8 else images
    over = (0, 2, 3) if x.dim() == 4 else (0,)
    exact = images.double() / 255 if images.dtype == torch.uint8 else images.double()
    mean, std = exact.mean(over, keepdim=True), exact.std(over, keepdim=True, correction=0)
    return (x - mean.float()) / std.float()


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def local_sgd(model, w, x, y, settings, order):
    """The update g = w − w_local."""
    with torch.no_grad():
        for p, part in zip(model.parameters(), w.split([p.numel() for p in model.parameters()]), strict=True):
            p.copy_(part.view(p.shape))
    sgd = torch.optim.SGD(
        model.parameters(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    model.train()
    for _ in range(settings.epochs):
        for batch in torch.from_numpy(order.permutation(len(y))).split(settings.batch_size):
            sgd.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            sgd.step()
    return w - flat(model)


def fedavg(model, train, parts, settings, *, rounds, seed, k=None, feedback=False):
    """The server's weights after every round; k: how many entries a client sends, None: all."""
    x, y = normalised(train.inputs), train.labels
    if x.dim() == 4:  # as convolutions are computed fastest, and in the same order of additions
        x, model = x.contiguous(memory_format=torch.channels_last), model.to(memory_format=torch.channels_last)
    w = flat(model)
    residuals = [torch.zeros_like(w) for _ in parts]
    after = []
    for t in range(rounds):
        total = torch.zeros_like(w, dtype=torch.float64)
        for client, part in enumerate(parts):
            order = np.random.default_rng([seed, SHUFFLING, t, client])
            given = local_sgd(model, w, x[part], y[part], settings, order) + residuals[client]
            sent = given
            if k is not None:
                best = given.abs().topk(k).indices
                sent = torch.zeros_like(given)
                sent[best] = given[best]
            if feedback:
                residuals[client] = given - sent
            total += len(part) * sent.double()
        w = w - (total / sum(map(len, parts))).float()
        after.append(w)
    return after
