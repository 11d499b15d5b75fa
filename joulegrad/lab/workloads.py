"""What `joulegrad calibrate` does over and over while a meter watches: some to fit a device by, some to test the fit.

Each says how much of what costs it does in one go: operations, bits through the cache, bits of main memory.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import joulegrad
from joulegrad import CWMP, LayerType, Layout
from joulegrad.energy.measuring import settled
from joulegrad.lab import models
from joulegrad.lab.traffic import Traffic

__all__ = [
    "AWAKE",
    "CACHE",
    "CONVOLVED",
    "FLOP",
    "MEMORY",
    "REST",
    "SENT",
    "TRAINING",
    "Machine",
    "Workload",
    "fitted",
    "held_out",
    "sending",
]

REST, AWAKE, CACHE, MEMORY, SENT = "rest s", "awake s", "cache bits", "memory bits", "sent bits"
FLOP, CONVOLVED = "FLOP", "convolution FLOP"  # in a convolution one costs more: it is no product of large matrices
TRAINING = "training step"
DENSITY = 0.01
SIDE = {"cuda": 4096, "cpu": 1024}  # of the matrices of a product
BATCH = {"cuda": 64, "cpu": 8}  # of a training step
PIXELS, WIDTHS = 56, (64, 64, 64, 128, 128, 128, 256, 256, 256, 512, 512, 512)  # of the convolutions that are fitted
MiB = 2.0**20


@dataclass(frozen=True)
class Machine:
    """Where the work is done.

    Args:
        device: "cpu" or "cuda".
        precision: of products and of training: "float32", "tf32" or "bfloat16".
        cache_bytes: of the last level of cache.
        line_bytes: what one access of memory brings in.
    """

    device: str
    precision: str
    cache_bytes: float
    line_bytes: float

    @property
    def kept(self) -> float:
        """What surely stays in the cache: half of it, since others need some, and a GPU's is in two parts."""
        return self.cache_bytes / 2

    def random(self, *shape: int) -> Tensor:
        """Normal numbers, the same each time."""
        generator = torch.Generator(self.device).manual_seed(0)
        return torch.randn(*shape, device=self.device, generator=generator)

    def precisely(self) -> AbstractContextManager[object]:
        """Autocast where asked for."""
        return torch.autocast(self.device, torch.bfloat16, self.precision == "bfloat16")


@dataclass(frozen=True)
class Workload:
    """One kind of work.

    Args:
        name: what is done.
        step: does it once; it may return before a GPU has done it.
        amounts: how much of what costs, in one step.
        awake: whether the device is at work the while.
    """

    name: str
    step: Callable[[], Any]
    amounts: Mapping[str, float]
    awake: bool = True


Made = Callable[[Machine], Workload]


def rest(machine: Machine) -> Workload:
    """Nothing."""
    return Workload("rest", lambda: time.sleep(0.01), {}, awake=False)


def awake(machine: Machine) -> Workload:
    """As little as keeps the device from resting: on a GPU one entry at a time, on the CPU a sum in registers."""
    if machine.device == "cuda":
        one = torch.zeros(1, device=machine.device)
        return Workload("awake", lambda: [one.add_(1.0) for _ in range(100)], {})
    from joulegrad.jit import jit
    from joulegrad.kernels import threads

    spin, n = jit(_spin), torch.get_num_threads()
    return Workload("awake", lambda: threads.each(spin, [10_000_000] * n, list(range(n))), {})


def _spin(steps: int, x: int) -> int:
    for _ in range(steps):
        x = (1103515245 * x + 12345) % 2147483648
    return x


def product(machine: Machine) -> Workload:
    """A product of square matrices, which computes much and moves little."""
    n = SIDE[machine.device]
    dtype = torch.bfloat16 if machine.precision == "bfloat16" else torch.float32
    a, b = machine.random(n, n).to(dtype), machine.random(n, n).to(dtype)
    out = torch.empty_like(a)
    bits = 3 * 8.0 * a.numel() * a.element_size()
    where = CACHE if bits / 8 <= machine.kept else MEMORY
    return Workload("product", lambda: torch.mm(a, b, out=out), {FLOP: 2.0 * n**3, where: bits})


def cache(machine: Machine) -> Workload:
    """Reading and writing an array that stays in the cache; on the CPU each core's part of it."""
    x = machine.random(int(min(16 * MiB, machine.kept / 2)) // 4)
    bits = 2 * 8.0 * 4 * len(x)
    return Workload("cache", lambda: [x.mul_(0.999999) for _ in range(20)], {CACHE: 20 * bits, FLOP: 20.0 * len(x)})


def memory(machine: Machine) -> Workload:
    """Reading and writing an array that no cache can hold."""
    x = machine.random(int(max(256 * MiB, 8 * machine.cache_bytes)) // 4)
    return Workload("memory", lambda: x.mul_(0.999999), {MEMORY: 2 * 8.0 * 4 * len(x), FLOP: float(len(x))})


def mixture(machine: Machine) -> Workload:
    """Products and memory in turn, about as long each: whether costs add up."""
    parts = [product(machine), memory(machine)]
    often = []
    for part in parts:
        part.step()
        settled()
        began = time.perf_counter()
        part.step()
        settled()
        often.append(time.perf_counter() - began)
    counts = [max(round(max(often) / seconds), 1) for seconds in often]

    def step() -> None:
        for part, count in zip(parts, counts, strict=True):
            for _ in range(count):
                part.step()

    amounts: dict[str, float] = {}
    for part, count in zip(parts, counts, strict=True):
        for name, amount in part.amounts.items():
            amounts[name] = amounts.get(name, 0.0) + count * amount
    return Workload("mixture", step, amounts)


def convolution(machine: Machine) -> Workload:
    """Convolutions there and back, each with BatchNorm and ReLU, on larger and fewer images than a training step's.

    Libraries compute them in other ways than products, and move more than each operand once. What an operation of
    theirs costs beyond the bits that `Traffic` counts is in the price of a convolution's FLOP.
    """
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(WIDTHS):
        halved = 1 if wide == narrow else 2
        layers += [nn.Conv2d(narrow, wide, 3, halved, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
    network: nn.Module = nn.Sequential(*layers).to(machine.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs = _images(machine, max(BATCH[machine.device] // 4, 1), WIDTHS[0], PIXELS)
    with machine.precisely():
        pull = torch.randn_like(network(inputs))

    def step() -> None:
        with machine.precisely():
            made = network(inputs)
        network.zero_grad(set_to_none=True)
        made.backward(pull)

    return Workload("convolution", step, _counted(machine, step))


def training(machine: Machine) -> Workload:
    """A step of SGD on ResNet-18."""
    return _training(machine, "resnet18", TRAINING)


def classifier(machine: Machine) -> Workload:
    """A step of SGD on VGG-11, two thirds of which are large linear layers."""
    return _training(machine, "vgg11", f"{TRAINING} of VGG-11")


def _training(machine: Machine, network: str, name: str) -> Workload:
    cuda = machine.device == "cuda"
    batch = BATCH[machine.device]
    model: nn.Module = models.build(network, (3, 32, 32), 10).to(machine.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs = _images(machine, batch, 3, 32)
    labels = torch.arange(batch, device=machine.device) % 10
    rule = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=cuda)

    def step() -> None:
        with machine.precisely():
            loss = nn.functional.cross_entropy(model(inputs), labels)
        rule.zero_grad(set_to_none=True)
        loss.backward()
        rule.step()

    step()  # makes the momenta
    return Workload(name, step, _counted(machine, step))


def _images(machine: Machine, *shape: int) -> Tensor:
    batch, channels, side = shape
    return machine.random(batch, channels, side, side).contiguous(memory_format=torch.channels_last)


def _counted(machine: Machine, step: Callable[[], None]) -> dict[str, float]:
    """What one step does: its operations counted by torch, its traffic as `Traffic` says."""
    with FlopCounterMode(display=False) as counter, Traffic(machine.kept) as traffic:
        step()
    kinds = counter.get_flop_counts()["Global"]
    convolved = sum(flop for kind, flop in kinds.items() if "convolution" in str(kind))
    amounts = {
        FLOP: counter.get_total_flops() - convolved, CONVOLVED: convolved,
        CACHE: traffic.cache_bits, MEMORY: traffic.memory_bits,
    }  # fmt: skip
    return {name: float(amount) for name, amount in amounts.items() if amount}


def selection(machine: Machine) -> Workload:
    """CWMP at 1 % of ResNet-18's entries: two readings, of which a cache that holds the update saves the second."""
    updates, layout = _updates(machine)
    rule = CWMP(density=DENSITY, cost=LayerType())
    state, turn = rule.init(layout), _turns(len(updates))
    chosen = math.floor(DENSITY * layout.size)
    reading = 8.0 * 4 * layout.size
    again = CACHE if reading / 8 <= machine.kept else MEMORY
    amounts = {MEMORY: reading + chosen * 8.0 * (8 + 4)}
    amounts[again] = amounts.get(again, 0.0) + reading
    return Workload("selection", lambda: rule(updates[next(turn)], state), amounts)


def scatter(machine: Machine) -> Workload:
    """Adding 1 % of entries into their places: each line of memory that holds one is read and written.

    At density ρ, with F entries a line, a share 1 − (1 − ρ)^F of all lines holds one.
    """
    sums, layout = _updates(machine)
    sums, turn = [s.clone() for s in sums], _turns(len(sums))
    k = math.floor(DENSITY * layout.size)
    generator = torch.Generator().manual_seed(1)
    places = torch.randperm(layout.size, generator=generator)[:k].sort().values.to(machine.device)
    values = machine.random(k)
    per_line = machine.line_bytes / 4
    lines = layout.size / per_line * (1 - (1 - DENSITY) ** per_line)
    bits = 8.0 * (2 * lines * machine.line_bytes + k * (8 + 4))
    return Workload("scatter", lambda: sums[next(turn)].index_add_(0, places, values), {MEMORY: bits})


def encoding(machine: Machine) -> Workload:
    """Making a payload of what was selected: the processor's work, also where a GPU selects."""
    updates, layout = _updates(machine)
    rule = CWMP(density=DENSITY, cost=LayerType())
    sent, _ = rule(updates[0], rule.init(layout))
    bits = 8.0 * len(sent) * (8 + 4)
    return Workload("encoding", lambda: joulegrad.encode(sent, layout), {MEMORY: bits})


def sending(address: str) -> Made:
    """Sending to a socket that swallows all: `nc -lk PORT > /dev/null` over there.

    Args:
        address: "host:port".
    """
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit()):
        raise ValueError(f"--send {address}: expected host:port, such as 192.168.1.2:9000")

    def made(machine: Machine) -> Workload:
        try:
            line = socket.create_connection((host, int(port)), timeout=10)
        except OSError as why:
            raise ValueError(f"--send {address}: {why.strerror or why}") from None
        block = os.urandom(1 << 16)
        return Workload("sending", lambda: line.sendall(block), {SENT: 8.0 * len(block)}, awake=False)

    made.__name__ = "sending"
    return made


def fitted() -> list[Made]:
    """What a device is fitted by, the most important first."""
    return [awake, memory, product, convolution, cache, mixture]


def held_out() -> list[Made]:
    """What the fit has not seen, the most important first."""
    return [training, selection, scatter, encoding, classifier]


def _updates(machine: Machine) -> tuple[list[Tensor], Layout]:
    """Several updates, which no cache holds all of: each is cold when its turn comes."""
    layout = Layout.of(models.build("resnet18", (3, 32, 32), 10), buffers="local")
    count = math.ceil(4 * machine.cache_bytes / (4 * layout.size)) + 1
    return [machine.random(layout.size).mul_(1.0 + 0.01 * i) for i in range(min(count, 16))], layout


def _turns(count: int) -> Iterator[int]:
    while True:
        yield from range(count)
