"""One client's update, compressed three ways: what each sends, what it keeps, what it costs.

A small convolutional network with a large classifier takes real SGD steps on scikit-learn's digits. Its
update is compressed by Top-K, by CWMP, and by BudgetedCWMP on three quarters of Top-K's energy, under the paper's
prices (5 units for a classifier entry, 1 for any other). It shows what `joulegrad demo` does not: which layers starve,
and the certificate.
"""

from __future__ import annotations

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from joulegrad import CWMP, BudgetedCWMP, LayerType, Layout, SparseUpdate, TopK, joules_of

DENSITY = 0.05
PRICES = LayerType(classifier=5.0, other=1.0)


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(model: nn.Module, steps: int = 60) -> float:
    """Take SGD steps on batches of 64 digits; return the accuracy on all of them afterwards."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        batch = torch.randint(len(labels), (64,))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimiser.step()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    torch.manual_seed(0)
    model = small_net()
    layout = Layout.of(model)
    before = layout.values(model)
    accuracy = train(model)
    update = before - layout.values(model)

    topk = TopK(density=DENSITY)
    everything, _ = topk(update, topk.init(layout))
    budget = 0.75 * joules_of(everything, PRICES, layout)
    operators = {
        "Top-K": topk,
        "CWMP": CWMP(density=DENSITY, cost=PRICES),
        "BudgetedCWMP": BudgetedCWMP(density=DENSITY, cost=PRICES, joules=budget),
    }
    sent: dict[str, SparseUpdate] = {}
    gaps: dict[str, float] = {}
    for name, compress in operators.items():
        sent[name], state = compress(update, compress.init(layout))
        if isinstance(compress, BudgetedCWMP):
            gaps[name] = state.certificate.gap / state.certificate.bound

    console = Console()
    console.print(f"{layout}: 60 SGD steps on digits, training accuracy {accuracy:.1%}\n", highlight=False)
    console.print(summary(layout, update, sent, gaps))
    console.print(starvation(layout, sent))


def summary(layout: Layout, update: Tensor, sent: dict[str, SparseUpdate], gaps: dict[str, float]) -> Table:
    """Entries, share of the gradient mass Σ|g| kept, energy, and how far from optimal it can be at most."""
    table = Table(title=f"density {DENSITY:.0%}", title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("", "entries", "mass kept", "energy (units)", "certified gap"):
        table.add_column(column, justify="left" if not column else "right")
    for name, some in sent.items():
        table.add_row(
            name,
            f"{len(some):,}",
            f"{some.values.abs().sum() / update.abs().sum():.1%}",
            f"{joules_of(some, PRICES, layout):,.0f}",
            f"{gaps[name]:.1e}" if name in gaps else "none given",
        )
    return table


def starvation(layout: Layout, sent: dict[str, SparseUpdate]) -> Table:
    """Which share of each layer was sent: a layer at 0 % learns nothing unless its residual is remembered."""
    table = Table(title="sent of each layer", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("parameter")
    for column in ("kind", "entries", "price", *sent):
        table.add_column(column, justify="right")
    for segment, price in zip(layout.segments, PRICES.joules(layout).tolist(), strict=True):
        shares = []
        for some in sent.values():
            inside = (some.indices >= segment.start) & (some.indices < segment.stop)
            shares.append(f"{inside.float().sum() / segment.size:.1%}")
        table.add_row(segment.name, segment.kind, f"{segment.size:,}", f"{price:g}", *shares)
    return table


if __name__ == "__main__":
    main()
