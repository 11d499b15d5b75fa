"""Does compression pay here? The joules of a round, phase by phase, before anything is built: no data, no training.

Nothing is measured: training is the model's operations on the device's profile, transfers are the codec's expected
bytes on the link's profile. What is chosen of each layer comes from one batch of noise (`rehearsal.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from joulegrad import CWMP, Device, ErrorFeedback, Quantized, TopK, profiles
from joulegrad.compressor import Compressor
from joulegrad.cost import is_finite
from joulegrad.device import SERVER_ACCESSES, access_joules
from joulegrad.lab.experiment import DENSE
from joulegrad.lab.rehearsal import Rehearsal
from joulegrad.layout import Layout
from joulegrad.profiles import DeviceProfile, LinkProfile, Quantity
from joulegrad.sizes import payload_bytes

__all__ = ["PHASES", "Plan", "Range", "Setting", "Way"]

PHASES = ("downlink", "train", "select", "encode", "uplink", "promotion", "tail", "network", "aggregate")
TRANSFERS = 2  # a round: down and up, with the training between them, so the radio wakes and idles twice
# Readings of the whole update, as benchmarks/results/select.json has them (docs/performance.md); on another machine
# they may be half or twice as many.
SELECT_READINGS = 5.0
FEEDBACK_READINGS = (10.5, 90.0)  # of ErrorFeedback(Quantized): so many, and so many times the density
ENCODE_READINGS = 100.0  # times the density
COPY_READINGS = 2.0  # to write every value down
SLACK = 2.0
WORTHWHILE = 0.02  # a saving below that share of a round is none
NEARLY = 0.9  # of the most that can be saved: enough


class Range(NamedTuple):
    """A figure, and what it would be if all the profiles' figures were at their cheapest, or dearest, at once."""

    low: float
    value: float
    high: float

    def __add__(self, other: Range) -> Range:  # type: ignore[override]
        return Range(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Setting:
    """What a round is, on what.

    Args:
        device: the client's profile.
        link: its way to the server.
        samples: examples that a client trains on in an epoch.
        epochs: passes over them a round.
        rounds: how many the client takes part in.
        up_bits_per_second: speed of the link; None: its usual one.
        joules: what there is: a battery, or a budget; None: no end.
        boundary: "device", or "system" with the network's and the server's share.
        densities: at which compression is tried.
    """

    device: str | DeviceProfile
    link: str | LinkProfile
    samples: int = 500
    epochs: int = 1
    rounds: int = 100
    up_bits_per_second: float | None = None
    joules: float | None = None
    boundary: str = "device"
    densities: tuple[float, ...] = (0.1, 0.01, 0.001)

    def __post_init__(self) -> None:
        for name in ("samples", "epochs", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number ≥ 1, got {getattr(self, name)!r}")
        if self.joules is not None and not (is_finite(self.joules) and self.joules > 0):
            raise ValueError(f"the battery must hold a positive number of joules, got {self.joules!r}")
        if not self.densities or len(set(self.densities)) < len(self.densities):
            raise ValueError(f"densities must be one or more, each once, got {list(self.densities)}")
        for density in self.densities:
            self.cost(density)  # says what else is wrong

    def cost(self, density: float, value_bits: int = 32) -> Device:
        """What an entry costs here."""
        speed, boundary = self.up_bits_per_second, cast(Literal["device", "system"], self.boundary)
        return Device(self.device, self.link, density, value_bits, up_bits_per_second=speed, boundary=boundary)


class Way(NamedTuple):
    """One way to send an update, and what a round of it costs."""

    name: str
    density: float
    operator: Compressor
    bytes: float
    seconds: float  # to send them
    phases: dict[str, Range]  # joules

    @property
    def joules(self) -> Range:
        """Of a round."""
        return sum(self.phases.values(), Range(0.0, 0.0, 0.0))


class Case(NamedTuple):
    """Profiles to reckon with, and how much longer than they say selecting and encoding take."""

    device: DeviceProfile
    server: DeviceProfile
    link: LinkProfile
    slack: float

    def extreme(self, end: Literal["low", "high"]) -> Case:
        """Everything at that end of its range."""
        device, server = (profiles.extreme(p, end) for p in (self.device, self.server))
        return Case(device, server, profiles.extreme(self.link, end), 1 / SLACK if end == "low" else SLACK)


class Plan:
    """The ways side by side.

    Args:
        setting: what a round is.
        layout: the model's.
        rehearsal: its operations, and an update to choose from.

    Example:
        >>> from joulegrad.lab.rehearsal import rehearse
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        >>> layout = Layout.of(model)
        >>> plan = Plan(Setting("rpi4", "wifi-rpi4"), layout, rehearse(model, layout, (64,), 10))
        >>> [way.name for way in plan.ways][:3]
        ['dense', 'Top-K', 'CWMP']
        >>> max(plan.dense.phases, key=lambda phase: plan.dense.phases[phase].value)
        'train'
    """

    def __init__(self, setting: Setting, layout: Layout, rehearsal: Rehearsal) -> None:
        self.setting, self.layout, self.rehearsal = setting, layout, rehearsal
        device, link = profiles.device(setting.device), profiles.link(setting.link)
        if setting.up_bits_per_second is not None:
            r = setting.up_bits_per_second
            link = replace(link, up_bits_per_second=Quantity(r, "bit/s", "as asked for", "assumed", r, r))
        self.device, self.link = device, link
        as_they_are = Case(device, profiles.device("server-gpu"), link, 1.0)
        self.cases = [as_they_are.extreme("low"), as_they_are, as_they_are.extreme("high")]
        self.ways = list(self._ways())

    @property
    def dense(self) -> Way:
        """Sending everything: what the others are compared with."""
        return self.ways[0]

    def _ways(self) -> Iterator[Way]:
        every = [float(s.size) for s in self.layout.segments]
        yield self._way("dense", 1.0, DENSE, every, 32)
        for density in self.setting.densities:
            plain, coarse = self.setting.cost(density), self.setting.cost(density, 1)
            yield self._way("Top-K", density, TopK(density=density), self._chosen(TopK(density=density)), 32)
            one_bit = ErrorFeedback(Quantized(CWMP(density=density, cost=coarse), bits=1))
            yield self._way("CWMP", density, CWMP(density=density, cost=plain), self._settled(plain, density), 32)
            yield self._way("1-bit CWMP", density, one_bit, self._settled(coarse, density), 1)

    def _settled(self, cost: Device, density: float) -> list[float]:
        """What CWMP chooses of each layer once costs and densities agree: two sweeps."""
        for _ in range(2):
            rule = CWMP(density=density, cost=cost)
            sent, _state = rule(self.rehearsal.update, rule.init(self.layout))
            cost = cost.after(sent, self.layout)
        return self._chosen(CWMP(density=density, cost=cost))

    def _chosen(self, rule: TopK | CWMP) -> list[float]:
        sent, _ = rule(self.rehearsal.update, rule.init(self.layout))
        upto = torch.searchsorted(sent.indices, self.layout.ends)
        counts: Tensor = upto.diff(prepend=upto.new_zeros(1))
        return [float(k) for k in counts.tolist()]

    def _way(self, name: str, density: float, operator: Compressor, counts: list[float], bits: int) -> Way:
        size = payload_bytes(self.layout, counts, bits)
        work = _readings(name, density)
        each = [self._phases(case, work, counts, size) for case in self.cases]
        phases = {p: Range(*(case[p] for case in each)) for p in PHASES if p in each[1]}
        seconds = 8 * size * (1 + self.link.overhead) / self.link.up_bits_per_second.value
        return Way(name, density, operator, size, seconds, phases)

    def _phases(self, case: Case, work: tuple[float, float], counts: list[float], size: float) -> dict[str, float]:
        device, server, link, slack = case
        down = 4 * (self.layout.size + self.layout.buffer_size)
        watts, reading = device.busy_watts.value, 4 * self.layout.size / device.ram_bytes_per_second.value
        up_bits, down_bits = (8 * b * (1 + link.overhead) for b in (size, down))
        select, encode = (slack * readings * reading for readings in work)
        examples = self.setting.samples * self.setting.epochs
        found = {
            "downlink": down_bits * link.down_joules_per_bit(),
            "train": watts * self.rehearsal.flops * examples / device.train_flops_per_second.value,
            "select": watts * select,
            "encode": watts * encode,
            "uplink": up_bits * link.up_joules_per_bit(),
        }
        for phase, q in (("promotion", link.promotion_joules), ("tail", link.tail_joules)):
            if q is not None:
                found[phase] = TRANSFERS * q.value
        if self.setting.boundary == "system":
            ways = ((up_bits, link.network_up_nj_per_bit), (down_bits, link.network_down_nj_per_bit))
            found["network"] = sum(1e-9 * b * q.value for b, q in ways if q is not None)
            found["aggregate"] = sum(
                k * SERVER_ACCESSES * access_joules(server, s.size, k / s.size, warm=False)
                for k, s in zip(counts, self.layout.segments, strict=True)
                if k
            )
        return found

    def touched(self, way: Way) -> Range:
        """What compression can touch of a way's round: the uplink, and what the network draws for it."""
        share = self._network_up(way)
        return way.phases["uplink"] + share

    def _network_up(self, way: Way) -> Range:
        if self.setting.boundary != "system":
            return Range(0.0, 0.0, 0.0)
        links = [case.link for case in self.cases]
        prices = [0.0 if (q := link.network_up_nj_per_bit) is None else q.value for link in links]
        bits = [8 * way.bytes * (1 + link.overhead) for link in links]
        return Range(*(1e-9 * b * price for b, price in zip(bits, prices, strict=True)))

    @cached_property
    def touchable(self) -> Range:
        """The share of a dense round that no compression can save more than; its range by the ends that widen it."""
        up, whole = self.touched(self.dense), self.dense.joules
        rest = Range(*(a - b for a, b in zip(whole, up, strict=True)))
        return Range(up.low / (up.low + rest.high), up.value / whole.value, up.high / (up.high + rest.low))

    def saving(self, way: Way) -> float:
        """The share of a dense round that a way saves; negative where it costs more."""
        return 1 - way.joules.value / self.dense.joules.value

    @cached_property
    def best(self) -> Way:
        """The densest way that saves nine tenths of the most that is saved; sending everything where that is little."""
        most = max(self.saving(way) for way in self.ways)
        if most < WORTHWHILE:
            return self.dense
        enough = [way for way in self.ways[1:] if self.saving(way) >= NEARLY * most and way.name != "Top-K"]
        coarse = [way for way in enough if way.name == "1-bit CWMP"]
        return max(coarse or enough, key=lambda way: way.density)

    def rounds_on_battery(self, way: Way) -> Range | None:
        """How many rounds the joules last; the fewest where all is at its dearest."""
        if self.setting.joules is None:
            return None
        low, value, high = way.joules
        return Range(*(math.floor(self.setting.joules / each) for each in (high, value, low)))

    def break_even_density(self, name: str) -> float | None:
        """The density above which a way costs more than sending everything; None: it costs less at any density."""
        bits = 1 if name == "1-bit CWMP" else 32

        def excess(density: float) -> float:
            counts = [density * s.size for s in self.layout.segments]
            way = self._way(name, density, DENSE, counts, bits)
            return way.joules.value - self.dense.joules.value

        low, high = 1e-6, 1.0
        if excess(high) <= 0:
            return None
        if excess(low) > 0:
            return 0.0
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
        return low

    def speed_at(self, joules_per_bit: float) -> float | None:
        """The speed at which the link's uplink costs so much a bit: None at none, infinity at all."""
        alpha = 0.0 if self.link.up_nj_per_bit is None else 1e-9 * self.link.up_nj_per_bit.value
        beta = 0.0 if self.link.up_watts is None else self.link.up_watts.value
        if alpha >= joules_per_bit:
            return math.inf
        return beta / (joules_per_bit - alpha) if beta else None

    def break_even_speed(self, way: Way) -> float | None:
        """The speed below which a way saves joules; infinity: at every speed; None: at none."""
        spent = sum(way.phases[p].value - self.dense.phases[p].value for p in ("select", "encode"))
        fewer = 8 * (self.dense.bytes - way.bytes) * (1 + self.link.overhead)
        if fewer <= 0:
            return None
        if self.setting.boundary == "system" and self.link.network_up_nj_per_bit is not None:
            spent -= 1e-9 * fewer * self.link.network_up_nj_per_bit.value
        return math.inf if spent <= 0 else self.speed_at(spent / fewer)

    def speed_where_uplink_is(self, share: float) -> float | None:
        """The speed below which what compression touches is that share of a dense round."""
        rest = self.dense.joules.value - self.dense.phases["uplink"].value
        bits = 8 * self.dense.bytes * (1 + self.link.overhead)
        return self.speed_at(share / (1 - share) * rest / bits)

    @cached_property
    def prices(self) -> tuple[float, float]:
        """Joules of the cheapest and of the dearest layer's entries, float32, at the middle one of the densities."""
        middle = sorted(self.setting.densities)[len(self.setting.densities) // 2]
        found = self.setting.cost(middle).joules(self.layout)
        return float(found.min()), float(found.max())

    @cached_property
    def needed_bytes(self) -> float:
        """Memory for weights, gradients, the flat update, what is remembered, and one example's activations."""
        return 4 * 4.0 * self.layout.size + self.rehearsal.activation_bytes

    @property
    def fits(self) -> bool:
        """Whether that is there."""
        return self.needed_bytes <= self.device.ram_bytes.value


def _readings(name: str, density: float) -> tuple[float, float]:
    """How often the update is read, to select and to encode."""
    if name == "dense":
        return 0.0, COPY_READINGS
    least, more = FEEDBACK_READINGS if name == "1-bit CWMP" else (SELECT_READINGS, 0.0)
    return least + more * density, ENCODE_READINGS * density
