"""What an entry costs on a device and a link, in joules: the cost model `Device`, and how it comes to its figures."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from joulegrad import profiles
from joulegrad.layout import Layout, Segment
from joulegrad.profiles import DeviceProfile, LinkProfile
from joulegrad.sizes import SCALED, support_bits
from joulegrad.sparse import SparseUpdate

__all__ = ["Breakdown", "Device", "LayerCost"]

CLIENT_ACCESSES = 4  # an entry that is sent is gathered, its residual is written, and the step reads and writes it
SERVER_ACCESSES = 2  # it is added to the sum: read and written
WORD_BITS = 32


@dataclass(frozen=True)
class Device:
    """Joules that sending an entry costs on a device and a link, once its gradient is known.

        c_j = b (1 + o) ε(R) + 4 E                                       boundary = "device"
            + b (1 + o) ε_net + 2 E_server + receivers · b (1 + o) (ε_net↓ + ε_rx)       "system" adds

    b = b_value + b_index bits travel, o is the share of frames' headers, ε(R) = α + β / R the radio's joules a bit
    at R bits a second. A memory access costs E = 32 A(ρ) (h e_sram + (1 − h) e_dram) joules: at the layer's density ρ
    a line of F words is shared by the entries in it, A(ρ) = (1 − (1 − ρ)^F) / ρ, and a share h of a warm layer lies in
    the cache. b_index is what the codec is expected to need for a random support at that density, headers included.

    Costs depend on densities, and densities on what costs choose: give those of the last round (`after`), or let two
    sweeps over an update find them (`fitted`).

    Args:
        device: a profile's name, the path of a TOML file, or a `DeviceProfile`.
        link: likewise; None: nothing is sent, and memory alone is priced.
        density: of what is sent, in (0, 1]; or name pattern → density, which every parameter must match.
        value_bits: 32, 16, or 8, 4, 2, 1, with which goes a scale a layer.
        index_bits: bits an index, where another wire is used than ours; None: as our codec writes them.
        up_bits_per_second: speed of the link; None: its usual one.
        warm: whether the layer was just touched and lies in the cache as far as it fits; else nothing of it does.
        boundary: "device" counts the client's joules, "system" also those of the network and the server.
        server: the profile of the server, for "system".
        receivers: clients that each sent entry is sent on to, for "system"; 0 where the model goes down dense.

    Example:
        >>> layout = Layout.from_shapes({"conv": (512, 512, 3, 3), "fc": (10, 512)})
        >>> cost = Device("rpi4", "wifi-rpi4", density=0.01)
        >>> [f"{c:.3g}" for c in cost.joules(layout).tolist()]
        ['1.85e-06', '1.86e-06']
        >>> print(cost.explain(layout))
        joules per entry on rpi4, wifi-rpi4 at 23 Mbit/s, boundary device
        layer    entries  density  bits/index  bits/value  radio nJ  memory nJ  total nJ
        conv   2,359,296   1.00 %        8.11          32  1,834.65      15.21  1,849.86
        fc         5,120   1.00 %        8.31          32  1,843.96      15.21  1,859.17

    Reference: docs/energy.md.
    """

    device: str | DeviceProfile
    link: str | LinkProfile | None
    density: float | Mapping[str, float] = 0.01
    value_bits: int = 32
    index_bits: float | None = None
    up_bits_per_second: float | None = None
    warm: bool = False
    boundary: Literal["device", "system"] = "device"
    server: str | DeviceProfile = "server-gpu"
    receivers: int = 0

    def __hash__(self) -> int:
        density = tuple(sorted(self.density.items())) if isinstance(self.density, Mapping) else self.density
        others = (self.value_bits, self.index_bits, self.up_bits_per_second, self.warm, self.boundary, self.receivers)
        return hash((self.device, self.link, density, others, self.server))

    def __post_init__(self) -> None:
        for name in ("device", "link", "server"):
            if isinstance(given := getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(given))
        profiles.device(self.device)
        profiles.device(self.server)
        link = None if self.link is None else profiles.link(self.link)
        for where, rho in self.density.items() if isinstance(self.density, Mapping) else [("", self.density)]:
            if not (_is_number(rho) and (0 < rho <= 1 or (where and rho == 0))):
                raise ValueError(f"density{where and f' of {where!r}'} must be in (0, 1], got {rho!r}")
        if self.value_bits not in (16, 32, *SCALED):
            raise ValueError(f"value_bits must be 32, 16, 8, 4, 2 or 1, got {self.value_bits!r}")
        if self.index_bits is not None and not (_is_number(self.index_bits) and self.index_bits >= 0):
            raise ValueError(f"index_bits must be a number ≥ 0, or None for our codec's, got {self.index_bits!r}")
        speed = self.up_bits_per_second
        if speed is not None and not (_is_number(speed) and speed > 0):
            raise ValueError(f"up_bits_per_second must be a number > 0, or None, got {speed!r}")
        if self.boundary not in ("device", "system"):
            raise ValueError(f"boundary must be 'device' or 'system', got {self.boundary!r}")
        if isinstance(self.receivers, bool) or not isinstance(self.receivers, int) or self.receivers < 0:
            raise ValueError(f"receivers must be a whole number ≥ 0, got {self.receivers!r}")
        if self.boundary == "system" and link is not None:
            for way in ("up", "down") if self.receivers else ("up",):
                if getattr(link, f"network_{way}_nj_per_bit") is None:
                    raise ValueError(
                        f"boundary 'system' counts the network's joules, and link {link.name!r} has no "
                        f"network_{way}_nj_per_bit"
                    )

    def joules(self, layout: Layout) -> Tensor:
        """One number a segment."""
        return torch.tensor([row.joules for row in self.explain(layout).rows], dtype=torch.float64)

    def explain(self, layout: Layout) -> Breakdown:
        """Where each layer's figure comes from; it prints as a table."""
        device, server = profiles.device(self.device), profiles.device(self.server)
        link = None if self.link is None else profiles.link(self.link)
        layers = zip(layout.segments, self._densities(layout), strict=True)
        return Breakdown(self, tuple(self._layer(s, density, device, link, server) for s, density in layers))

    def after(self, sent: SparseUpdate, layout: Layout) -> Device:
        """The same with each layer's density as it was in an update: the last round's, say.

        Example:
            >>> layout = Layout.from_shapes({"conv": (8,), "fc": (2,)})
            >>> sent = SparseUpdate(torch.tensor([0, 8, 9]), torch.ones(3), 10)
            >>> Device("rpi4", "wifi-rpi4").after(sent, layout).density
            {'conv': 0.125, 'fc': 1.0}
        """
        if sent.size != layout.size:
            raise ValueError(f"the update has {sent.size} entries, the layout {layout.size}")
        return self.at(_counts(sent.indices, layout), layout)

    def fitted(self, update: Tensor, layout: Layout, sweeps: int = 2) -> Device:
        """The same with the densities that CWMP comes to under these very costs, after so many sweeps over an update.

        Example:
            >>> layout = Layout.from_shapes({"conv": (6,), "fc": (4,)})
            >>> g = torch.tensor([0.1, 0.2, 0.1, 3.0, 0.1, 0.1, 4.0, 5.0, 6.0, 7.0])
            >>> Device("rpi4", "wifi-rpi4", density=0.5).fitted(g, layout).density["fc"]
            1.0
        """
        if update.numel() != layout.size:
            raise ValueError(f"the update has {update.numel()} entries, the layout {layout.size}")
        sizes = torch.tensor([s.size for s in layout.segments])
        k = max(1, round(sum(rho * s.size for rho, s in zip(self._densities(layout), layout.segments, strict=True))))
        worth, cost = update.detach().reshape(-1).abs().double().cpu(), self
        for _ in range(sweeps):
            chosen = (worth / cost.joules(layout).repeat_interleave(sizes)).topk(k).indices.sort().values
            cost = cost.at(_counts(chosen, layout), layout)
        return cost

    def at(self, counts: Sequence[int], layout: Layout) -> Device:
        """The same with each layer's density as if so many of its entries were sent.

        Example:
            >>> layout = Layout.from_shapes({"conv": (8,), "fc": (2,)})
            >>> Device("rpi4", "wifi-rpi4").at([4, 0], layout).density
            {'conv': 0.5, 'fc': 0.0}
        """
        named = zip(layout.segments, counts, strict=True)
        return replace(self, density={s.name: k / s.size if s.size else 0.0 for s, k in named})

    def _densities(self, layout: Layout) -> list[float]:
        if not isinstance(self.density, Mapping):
            return [self.density] * len(layout.segments)
        found = []
        for s in layout.segments:
            patterns = [s.name] if s.name in self.density else [p for p in self.density if s.matches(p)]
            if len(patterns) != 1:
                what = f"matches {patterns}" if patterns else "matches no pattern"
                raise ValueError(f"Device: every parameter needs one density; {s.name!r} {what}")
            found.append(self.density[patterns[0]])
        return found

    def _layer(
        self, s: Segment, density: float, device: DeviceProfile, link: LinkProfile | None, server: DeviceProfile
    ) -> LayerCost:
        n = max(s.size, 1)
        k = max(density * n, 1.0)  # an entry that is sent is one at least
        value = self.value_bits + (32 / k if self.value_bits in SCALED else 0)
        index = self.index_bits if self.index_bits is not None else support_bits(n, k) / k
        radio = network = served = 0.0
        if link is not None:
            bits = (value + index) * (1 + link.overhead)
            radio = bits * link.up_joules_per_bit(self.up_bits_per_second)
            if self.boundary == "system":
                network = bits * _network(link, "up")
            if self.boundary == "system" and self.receivers:
                network += self.receivers * bits * (_network(link, "down") + link.down_joules_per_bit())
        if self.boundary == "system":
            served = SERVER_ACCESSES * access_joules(server, n, k / n, self.warm)
        memory = CLIENT_ACCESSES * access_joules(device, n, k / n, self.warm)
        return LayerCost(s.name, s.size, density, index, value, radio, memory, network, served)


class LayerCost(NamedTuple):
    """What an entry of one layer costs, part by part.

    Example:
        >>> row = Device("rpi4", "wifi-rpi4").explain(Layout.from_shapes({"fc": (10, 512)})).rows[0]
        >>> row.joules == row.radio_joules + row.memory_joules
        True
    """

    layer: str
    entries: int
    density: float
    index_bits: float
    value_bits: float
    radio_joules: float
    memory_joules: float
    network_joules: float
    server_joules: float

    @property
    def joules(self) -> float:
        """All of it."""
        return self.radio_joules + self.memory_joules + self.network_joules + self.server_joules


class Breakdown(NamedTuple):
    """How a `Device` comes to its costs; `print` shows it as a table.

    Example:
        >>> len(Device("rpi4", None).explain(Layout.from_shapes({"fc": (10, 512)})).rows)
        1
    """

    cost: Device
    rows: tuple[LayerCost, ...]

    @property
    def title(self) -> str:
        """What is priced: the device, the link and its speed, the boundary."""
        cost, link = self.cost, None if self.cost.link is None else profiles.link(self.cost.link)
        speed = link and (cost.up_bits_per_second or link.up_bits_per_second.value) / 1e6
        way = f"{link.name} at {speed:.4g} Mbit/s" if link else "no link"
        return f"joules per entry on {profiles.device(cost.device).name}, {way}, boundary {cost.boundary}"

    def table(self) -> list[list[str]]:
        """The heads of the columns, then a row a layer, all as text."""
        whole = self.cost.boundary == "system"
        head = ["layer", "entries", "density", "bits/index", "bits/value", "radio nJ", "memory nJ"]
        lines = [[*head, *(["network nJ", "server nJ"] if whole else []), "total nJ"]]
        for r in self.rows:
            parts = [r.radio_joules, r.memory_joules, *([r.network_joules, r.server_joules] if whole else []), r.joules]
            cells = [
                f"{r.entries:,}",
                f"{r.density:.2%}".replace("%", " %"),
                f"{r.index_bits:.2f}",
                f"{r.value_bits:.4g}",
            ]
            lines.append([r.layer, *cells, *(f"{1e9 * x:,.2f}" for x in parts)])
        return lines

    def __str__(self) -> str:
        lines = self.table()
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = [
            "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]
        return "\n".join([self.title, *text])


def access_joules(device: DeviceProfile, n: int, density: float, warm: bool) -> float:
    """E: one access to an entry of a layer of n, lines shared by those that lie in them.

    Example:
        >>> cold = access_joules(profiles.device("rpi4"), 5120, 0.01, warm=False)
        >>> f"{1e9 * cold:.2f} nJ"    # 32 bits · 14.85 words of a line · 8 pJ
        '3.80 nJ'
    """
    words, sram, dram = device.line_bytes.value / 4, device.sram_pj_per_bit.value, device.dram_pj_per_bit
    shared: float = (1 - (1 - density) ** words) / density
    if dram is None:
        return 1e-12 * WORD_BITS * shared * sram
    fits = min(1.0, device.cache_bytes.value / (4 * n)) if warm else 0.0
    return 1e-12 * WORD_BITS * shared * (fits * sram + (1 - fits) * dram.value)


def _counts(indices: Tensor, layout: Layout) -> list[int]:
    upto = torch.searchsorted(indices.cpu(), layout.ends)
    counts: list[int] = upto.diff(prepend=upto.new_zeros(1)).tolist()
    return counts


def _network(link: LinkProfile, way: Literal["up", "down"]) -> float:
    found = link.network_up_nj_per_bit if way == "up" else link.network_down_nj_per_bit
    return 0.0 if found is None else 1e-9 * found.value


def _is_number(x: object) -> bool:
    return not isinstance(x, bool) and isinstance(x, Real) and math.isfinite(x)
