"""The real updates that benchmarks run on: one client's second local epoch on CIFAR-10.

A client holds 2,000 images whose classes are drawn from Dirichlet(0.5), and takes SGD steps (0.05, momentum 0.9,
batches of 64, normalised images, no augmentation). The update is w_before - w_after of the second epoch, so that it is
not what the first steps from a random initialisation look like. It is kept in scratch/updates and made once.

    python benchmarks/updates.py --cifar10 DIR      # DIR/cifar-10-batches-py as the official archive unpacks
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import argparse
import pickle
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from joulegrad import Layout
from joulegrad.lab.models import resnet18, vgg11

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "scratch" / "updates"
MODELS: dict[str, Callable[[], nn.Module]] = {"resnet18": resnet18, "vgg11": vgg11}
SEED = 0
IMAGES = 2000
ALPHA = 0.5  # of the Dirichlet distribution over classes
EPOCHS = 2
BATCH = 64
RATE = 0.05
MOMENTUM = 0.9
RECIPE = f"seed {SEED}, {IMAGES} images, alpha {ALPHA}, epoch {EPOCHS}, batch {BATCH}, SGD {RATE}/{MOMENTUM}"
MEAN = (0.4914, 0.4822, 0.4465)  # of CIFAR-10's training images, channel by channel
DEVIATION = (0.2470, 0.2435, 0.2616)


def update_of(name: str, cifar10: Path) -> tuple[Tensor, Layout]:
    """The update of one of `MODELS`, flat, with its layout: the kept one, or made now.

    Buffers are declared local: the benchmarks compare entries only.
    """
    kept = KEPT / f"{name}.pt"
    if kept.exists():
        found = torch.load(kept, weights_only=True)
        if found["recipe"] == RECIPE:
            return found["update"], Layout.from_json(found["layout"])
    torch.manual_seed(SEED)
    model = MODELS[name]()
    layout = Layout.of(model, buffers="local")
    update = last_epoch(name, model, layout, *client(cifar10))
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"update": update, "layout": layout.to_json(), "recipe": RECIPE}, kept)
    return update, layout


def last_epoch(name: str, model: nn.Module, layout: Layout, images: Tensor, labels: Tensor) -> Tensor:
    """Train for `EPOCHS`; return what the last one changed, w_before - w_after."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    before = layout.values(model)
    for epoch in range(EPOCHS):
        before = layout.values(model)
        losses = []
        for batch in torch.randperm(len(labels)).split(BATCH):
            optimiser.zero_grad()
            loss = cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            print(f"\r{name}: epoch {epoch + 1} of {EPOCHS}, step {len(losses)}, loss {losses[-1]:.3f}", end="")
        print(f"\r{name}: epoch {epoch + 1} of {EPOCHS}, mean loss {np.mean(losses):.3f}            ")
    return before - layout.values(model)


def client(cifar10: Path) -> tuple[Tensor, Tensor]:
    """One client's normalised images (float32, NCHW) and labels, with classes from a Dirichlet distribution."""
    data, labels = read(cifar10)
    rng = np.random.default_rng(SEED)
    shares = rng.dirichlet(np.full(10, ALPHA))
    counts = rng.multinomial(IMAGES, shares)
    chosen = np.concatenate(
        [rng.choice(np.flatnonzero(labels == c), count, replace=False) for c, count in enumerate(counts)]
    )
    images = torch.from_numpy(data[chosen]).reshape(-1, 3, 32, 32).to(torch.float32) / 255
    mean, deviation = (torch.tensor(part).view(3, 1, 1) for part in (MEAN, DEVIATION))
    return (images - mean) / deviation, torch.from_numpy(labels[chosen])


def read(cifar10: Path) -> tuple[np.ndarray, np.ndarray]:
    """All training images (uint8, one row of 3,072 each) and labels."""
    check(cifar10)
    data, labels = [], []
    for i in range(1, 6):
        with (cifar10 / "cifar-10-batches-py" / f"data_batch_{i}").open("rb") as file:
            batch = pickle.load(file, encoding="bytes")
        data.append(batch[b"data"])
        labels.extend(batch[b"labels"])
    return np.concatenate(data), np.array(labels, np.int64)


def check(cifar10: Path | None) -> None:
    """Refuse a folder without CIFAR-10, saying what belongs there."""
    wanted = (
        "the folder that holds cifar-10-batches-py (data_batch_1 to data_batch_5), as cifar-10-python.tar.gz unpacks"
    )
    if cifar10 is None:
        raise FileNotFoundError(f"--cifar10 is missing: give {wanted}")
    if not (cifar10 / "cifar-10-batches-py" / "data_batch_1").is_file():
        raise FileNotFoundError(f"--cifar10 {cifar10}: no cifar-10-batches-py/data_batch_1 there; give {wanted}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path)
    given = parser.parse_args()
    try:
        check(given.cifar10)
    except FileNotFoundError as why:
        parser.error(str(why))
    for name in MODELS:
        update, layout = update_of(name, given.cifar10)
        print(f"{name}: {layout}, |update| = {update.norm():.4f}")


if __name__ == "__main__":
    main()
