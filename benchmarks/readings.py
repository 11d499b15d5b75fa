"""Under which reading of the paper do its energies arise? At 1 % it says 0.06·10⁶ units for CWMP, 0.09·10⁶ for Top-K.

    python benchmarks/readings.py       # the table, as docs/results shows it

With k entries sent, of which any number between the fewest and the most that are possible lie in the classifier,

    Σc = k + (5 − 1) · (of them in the classifier),   k ≤ Σc ≤ 5 k

so that a network's two sizes, all entries and those of its classifier, bound what either rule may have spent. A reading
is a network and what the sum is taken over; what it misses the paper's numbers by, beyond their rounding and with the
luckiest choice of entries, is its error. An error of 0 says that the numbers *may* arise, not that they do.

The networks here that are small enough can be trained: `paper/cifar10-readings.toml`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import itertools
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from torch import nn

from joulegrad import LayerType, Layout
from joulegrad.lab import models

REPORTED = Path(__file__).parent.parent / "paper" / "reported.toml"
SHAPE, CLASSES = (3, 32, 32), 10
DENSITY, DEAR = 0.01, 5.0


def lenet() -> nn.Module:
    """LeNet-5 for colours: 62,006 parameters."""
    features = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*features, nn.Flatten(), *_linear(400, 120, 84, CLASSES))


def fedavg_cnn() -> nn.Module:
    """The CNN of many federated codebases: 5 x 5 convolutions of 32 and 64, then 512; without padding."""
    return nn.Sequential(*_two(32, 64, padding=0), nn.Flatten(), *_linear(1600, 512, CLASSES))


def fedavg_cnn_padded() -> nn.Module:
    """The same with padding, so that its first linear layer sees 8 x 8."""
    return nn.Sequential(*_two(32, 64, padding=2), nn.Flatten(), *_linear(4096, 512, CLASSES))


def mcmahan_cnn() -> nn.Module:
    """As in the paper of FedAvg for CIFAR-10, on whole images: 5 x 5 convolutions of 64 and 64, then 384 and 192."""
    return nn.Sequential(*_two(64, 64, padding=2), nn.Flatten(), *_linear(4096, 384, 192, CLASSES))


def _two(first: int, second: int, padding: int) -> list[nn.Module]:
    return [
        nn.Conv2d(3, first, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
    ]  # fmt: skip


def _linear(*sizes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]


class Network(NamedTuple):
    """A network by its two sizes."""

    name: str
    entries: int
    classifier: int


class Counting(NamedTuple):
    """What the sum is taken over, or by what it is divided."""

    name: str
    times: float
    dear: float = DEAR  # the classifier's price
    cheap: float = 1.0


class Reading(NamedTuple):
    """A network, a counting, and what both rules may have spent at 1 %.

    Args:
        least: Σc at least, in the paper's units.
        most: at most.
        cwmp: the possible sum that is nearest to the paper's for CWMP.
        topk: the same for Top-K.
        error: the larger of both sums' distances from the paper's, beyond its rounding, as a share of those.
        ratio: the most that one choice of entries may cost over another.
    """

    network: Network
    counting: Counting
    least: float
    most: float
    cwmp: float
    topk: float
    error: float
    ratio: float

    def shares(self) -> tuple[float, float]:
        """Of what CWMP and Top-K send, what lies in the classifier at the nearest sums."""
        c, k = self.counting, int(DENSITY * self.network.entries) * self.counting.times
        return tuple((spent / k - c.cheap) / (c.dear - c.cheap) for spent in (self.cwmp, self.topk))  # type: ignore[return-value]


COUNTINGS = (
    Counting("a client and round", 1.0),
    Counting("a round of 10 clients", 10.0),
    Counting("a client's 50 rounds", 50.0),
    Counting("all clients and rounds", 500.0),
    Counting("a client and round, ÷ 5 (the dearest price as unit)", 1 / 5),
    Counting("a client and round, prices swapped", 1.0, dear=1.0, cheap=5.0),
)


def networks() -> Iterator[Network]:
    """As described first; then what else may be called so; then others that are used on CIFAR-10."""
    whole = _sized("ResNet-18 as described, 10 classes", partial(models.build, "resnet18", SHAPE, CLASSES))
    yield whole
    yield whole._replace(name="the same, first convolution 7 × 7", entries=whole.entries + 3 * 64 * (49 - 9))
    for classes in (100, 1000):
        more = 513 * (classes - 10)
        yield Network(f"the same, {classes:,} classes", whole.entries + more, whole.classifier + more)
    yield Network("the same, no pooling before the classifier", whole.entries + 15 * 5120, whole.classifier + 15 * 5120)
    hidden = 513 * 512
    yield Network("the same, a hidden layer of 512", whole.entries + hidden, whole.classifier + hidden)
    stage = sum(s.size for s in Layout.of(models.resnet18()).segments if s.name.startswith(("blocks.6.", "blocks.7.")))
    yield Network("the same, its last stage counted as classifier", whole.entries, whole.classifier + stage)
    yield Network("the same without its last stage", whole.entries - stage - 2560, 2570)
    for name in ("vgg11", "mobilenet_v2", "cnn"):
        yield _sized(name, partial(models.build, name, SHAPE, CLASSES))
    yield Network("ResNet-20", 269_722, 650)  # He et al. 2016, section 4.2, with BatchNorm
    for name, make in TRAINABLE.items():
        yield _sized(name, make)


TRAINABLE: dict[str, Callable[[], nn.Module]] = {
    "LeNet-5": lenet,
    "CNN 32-64, 512": fedavg_cnn,
    "CNN 32-64, 512, padded": fedavg_cnn_padded,
    "CNN 64-64, 384-192": mcmahan_cnn,
}


def _sized(name: str, make: Callable[[], nn.Module]) -> Network:
    layout = Layout.of(make())
    sizes = {s.name: s.size for s in layout.segments}
    return Network(name, layout.size, sum(sizes[member] for member in LayerType().members(layout)))


def targets() -> list[tuple[float, float]]:
    """What the paper says, and half a digit of it: units of CWMP and of Top-K at 1 %."""
    numbers = {n["key"]: n for n in tomllib.loads(REPORTED.read_text("utf-8"))["number"]}
    return [(n["value"], n["half_a_digit"]) for n in (numbers[f"energy, {rule}, 1 %"] for rule in ("CWMP", "Top-K"))]


def reading(network: Network, counting: Counting) -> Reading:
    """What may have been spent, and how near that comes.

    Example:
        >>> found = reading(Network("as described", 11_173_962, 5_130), COUNTINGS[0])
        >>> found.least, found.most, round(found.ratio, 3), round(found.error, 3)
        (111739.0, 132259.0, 1.184, 0.779)
    """
    k = int(DENSITY * network.entries)
    fewest, most = max(0, k - (network.entries - network.classifier)), min(k, network.classifier)
    ends = sorted(counting.times * (counting.cheap * (k - n) + counting.dear * n) for n in (fewest, most))
    wanted = targets()
    cwmp, topk = (min(max(target, ends[0]), ends[1]) for target, _ in wanted)
    error = max(max(0.0, abs(spent - t) - half) / t for spent, (t, half) in zip((cwmp, topk), wanted, strict=True))
    return Reading(network, counting, ends[0], ends[1], cwmp, topk, error, ends[1] / ends[0])


def readings() -> list[Reading]:
    """All of them, those that come nearest first; where several come as near, as they are listed above."""
    return sorted((reading(n, c) for n in networks() for c in COUNTINGS), key=lambda found: round(found.error, 6))


def of_each_network() -> str:
    """Each network counted as it is written, and by the counting that comes nearest."""
    found = readings()
    lines = [
        "| network | entries | classifier | Σc of 1 %, a client and round | off by | most that two choices differ by | "
        "counted otherwise, nearest | off by |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for network in networks():
        own = [r for r in found if r.network == network]
        plain, best = next(r for r in own if r.counting == COUNTINGS[0]), own[0]
        lines.append(
            f"| {network.name} | {network.entries:,} | {network.classifier:,} | {_span(plain)} | {_off(plain.error)} | "
            f"× {plain.ratio:.2f} | {best.counting.name} | {_off(best.error)} |"
        )
    return "\n".join(lines)


def that_fit() -> str:
    """The readings under which both numbers may arise, and what would have to be true of each."""
    lines = [
        "| reading | of what CWMP sends, in the classifier | of what Top-K sends |",
        "|---|---:|---:|",
    ]
    fit = [r for r in readings() if r.error < 1e-9]
    for found in fit:
        cwmp, topk = found.shares()
        least = "**" if found.counting == COUNTINGS[0] else ""  # as the text has it
        reading_of = f"{least}{found.network.name}, {found.counting.name}{least}"
        lines.append(f"| {reading_of} | {100 * abs(cwmp):.0f} % | {100 * abs(topk):.0f} % |")
    return "\n".join(lines) if fit else "There is none among those tried."


def _span(found: Reading) -> str:
    return f"{found.least / 1e6:.3g} to {found.most / 1e6:.3g} · 10⁶"


def _off(error: float) -> str:
    return "0" if error < 1e-9 else f"{100 * error:.0f} %"


if __name__ == "__main__":
    print(of_each_network(), that_fit(), sep="\n\n")
