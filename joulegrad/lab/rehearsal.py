"""A model's operations, and an update to choose from, without data: one batch of noise, forward and backward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from joulegrad.layout import Layout

__all__ = ["Rehearsal", "rehearse"]

EXAMPLES = 4


class Rehearsal(NamedTuple):
    """What one batch of noise tells.

    Args:
        flops: of one example, forward and backward; a multiply-add is two. The forward pass is counted, and the
            backward pass taken as twice that: of grouped convolutions, torch counts the backward pass too high.
        update: the flat gradient, on the CPU.
        activation_bytes: what one example's forward pass keeps for the backward pass.
    """

    flops: float
    update: Tensor
    activation_bytes: float


def rehearse(model: nn.Module, layout: Layout, shape: tuple[int, ...], classes: int, seed: int = 0) -> Rehearsal:
    """Train on noise for one batch, on the CPU, and count; the model's parameters stay as they are.

    Example:
        >>> model = nn.Linear(100, 10)
        >>> rehearse(model, Layout.of(model), (100,), 10).flops    # 2 · 1000 forward, twice that backward
        6000.0
    """
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(EXAMPLES, *shape, generator=draw)
    labels = torch.randint(classes, (EXAMPLES,), generator=draw)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.train()
    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
        except (RuntimeError, TypeError, ValueError, IndexError) as why:
            raise ValueError(
                f"{type(model).__name__} cannot be tried on a batch of noise of shape {tuple(inputs.shape)} with "
                f"{classes} classes: {str(why).strip().splitlines()[0]}"
            ) from None
    update = layout.grad(model, missing="zero")
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    activations = sum(size for at, size in kept.items() if at not in weights)
    model.zero_grad(set_to_none=True)
    return Rehearsal(3 * counter.get_total_flops() / EXAMPLES, update, activations / EXAMPLES)
