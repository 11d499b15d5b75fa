"""The ledger: joules of what happened, phase by phase; each row measured, coded or modelled, and never mixed.

measured     a meter said it
coded        from the bytes of a payload that was really made, and the link's joules a bit
modelled     from operations or seconds, and the device's watts
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

from joulegrad import profiles
from joulegrad.energy.battery import Battery, is_number
from joulegrad.energy.measuring import Reading
from joulegrad.profiles import DeviceProfile, LinkProfile

__all__ = ["PHASES", "SOURCES", "Ledger", "Row", "totals"]

Phase = Literal[
    "downlink", "train", "select", "encode", "uplink", "promotion", "tail", "network", "decode", "aggregate"
]  # fmt: skip
Source = Literal["measured", "coded", "modelled"]
PHASES: tuple[str, ...] = get_args(Phase)
SOURCES: tuple[str, ...] = get_args(Source)


class Row(NamedTuple):
    """One line of a ledger.

    Args:
        phase: what the joules went into.
        joules: float64; None where a meter was asked and could not say.
        source: "measured", "coded" or "modelled".
        client: whose they were; None: the server's.
        round: counted from 1; None: not in a round.
    """

    phase: str
    joules: float | None
    source: str
    client: int | None = None
    round: int | None = None

    @classmethod
    def measured(cls, phase: str, reading: Reading) -> Row:
        """What a meter said of a phase.

        Example:
            >>> from joulegrad.energy import Reading, Row
            >>> Row.measured("train", Reading(joules=12.5, seconds=2.0, source="rapl"))
            Row(phase='train', joules=12.5, source='measured', client=None, round=None)
        """
        return cls(phase, reading.joules, "measured")


@dataclass(frozen=True)
class Ledger:
    """What a client's round costs on a device and a link.

    train, select, encode    P_busy · t                  modelled; t = FLOP / (FLOP/s), or the seconds that it took
    uplink, downlink         8 (n + h ⌈n / f⌉) · ε(R)    coded: n = len(payload), in frames of f bytes, h of headers
    promotion, tail          once a transfer             modelled
    network                  8 (n + h ⌈n / f⌉) · ε_net   modelled; with boundary "system"
    decode, aggregate        P_server · t                modelled; where a server is named

    P_busy has the device's idle watts in it; the radio's joules are above idle. While a client waits for others,
    nothing is counted.

    Args:
        device: the client's profile: a name, a .toml file, or the profile itself.
        link: its way to the server, likewise.
        server: the server's profile; None: its joules are not counted.
        boundary: "device" counts what clients and server draw; "system" also the network between them.
        slowdown: how many times as long as here the device takes to select and to encode; 1: as long as was measured.
        battery: what the client lives on; None: the mains.
        grams_per_kwh: CO2e of its electricity; None: the world's average, and the result says so.

    Example:
        >>> from joulegrad.energy import Ledger, totals
        >>> ledger = Ledger(device="rpi4", link="lte-2012")
        >>> rows = [ledger.train(flop=1e12), ledger.select(seconds=0.2), *ledger.uplink(100_000)]
        >>> [(row.phase, round(row.joules, 2), row.source) for row in rows]
        [('train', 640.0, 'modelled'), ('select', 1.28, 'modelled'), ('promotion', 0.31, 'modelled'), \
('uplink', 0.54, 'coded'), ('tail', 12.3, 'modelled')]
        >>> {source: round(sum(phases.values()), 2) for source, phases in totals(rows).items()}
        {'coded': 0.54, 'modelled': 653.89}
    """

    device: str | DeviceProfile = "phone"
    link: str | LinkProfile = "wifi-ac"
    server: str | DeviceProfile | None = None
    boundary: Literal["device", "system"] = "device"
    slowdown: float = 1.0
    battery: Battery | None = None
    grams_per_kwh: float | None = None

    def __post_init__(self) -> None:
        profiles.device(self.device)
        profiles.link(self.link)
        if self.server is not None:
            profiles.device(self.server)
        if self.boundary not in ("device", "system"):
            raise ValueError(f"boundary must be 'device' or 'system', got {self.boundary!r}")
        if not (is_number(self.slowdown) and self.slowdown > 0):
            raise ValueError(f"slowdown must be a positive number, got {self.slowdown!r}")
        if self.battery is not None and not isinstance(self.battery, Battery):
            raise ValueError(f"battery must be a Battery, such as Battery(joules=40000), got {self.battery!r}")
        grams = self.grams_per_kwh
        if grams is not None and not (is_number(grams) and grams >= 0):
            raise ValueError(f"grams_per_kwh must be a number ≥ 0, or left out, got {grams!r}")
        for name in ("up", "down"):
            if self.boundary == "system" and getattr(self._link, f"network_{name}_nj_per_bit") is None:
                raise ValueError(f"boundary 'system' needs network_{name}_nj_per_bit, which {self._link.name} has not")

    @cached_property
    def _device(self) -> DeviceProfile:
        return profiles.device(self.device)

    @cached_property
    def _link(self) -> LinkProfile:
        return profiles.link(self.link)

    def train(self, *, flop: float | None = None, seconds: float | None = None) -> Row:
        """Training, by the operations that it takes, or by the seconds that it took on the device itself."""
        if (flop is None) == (seconds is None):
            raise ValueError(f"train needs either flop or seconds, got flop={flop!r}, seconds={seconds!r}")
        if seconds is None:
            seconds = _amount("flop", flop) / self._device.train_flops_per_second.value
        return self._worked("train", seconds)

    def select(self, seconds: float) -> Row:
        """Choosing what to send, in the seconds that were measured; so a slow rule cannot hide."""
        return self._worked("select", self.slowdown * _amount("seconds", seconds))

    def encode(self, seconds: float) -> Row:
        """Making the payload, in the seconds that were measured."""
        return self._worked("encode", self.slowdown * _amount("seconds", seconds))

    def uplink(self, payload_bytes: int) -> list[Row]:
        """Sending a payload: a function of its length, and of nothing else."""
        return self._moved("uplink", payload_bytes)

    def downlink(self, payload_bytes: int) -> list[Row]:
        """Receiving one."""
        return self._moved("downlink", payload_bytes)

    def decode(self, seconds: float) -> list[Row]:
        """The server's decoding, in the seconds that were measured; no row where no server is named."""
        return self._served("decode", seconds)

    def aggregate(self, seconds: float) -> list[Row]:
        """The server's adding up and stepping, in the seconds that were measured."""
        return self._served("aggregate", seconds)

    def _worked(self, phase: str, seconds: float) -> Row:
        return Row(phase, _amount("seconds", seconds) * self._device.busy_watts.value, "modelled")

    def _served(self, phase: str, seconds: float) -> list[Row]:
        if self.server is None:
            return []
        return [Row(phase, _amount("seconds", seconds) * profiles.device(self.server).busy_watts.value, "modelled")]

    def _moved(self, phase: str, payload_bytes: int) -> list[Row]:
        link, n, up = self._link, int(_amount("payload_bytes", payload_bytes)), phase == "uplink"
        if not n:
            return []
        frames = math.ceil(n / link.frame_bytes.value)
        in_the_air = 8 * (n + frames * link.frame_overhead_bytes.value)
        joules = in_the_air * (link.up_joules_per_bit() if up else link.down_joules_per_bit())
        network = link.network_up_nj_per_bit if up else link.network_down_nj_per_bit
        rows = [Row(phase, joules, "coded")]
        if link.promotion_joules is not None:
            rows.insert(0, Row("promotion", link.promotion_joules.value, "modelled"))
        if self.boundary == "system" and network is not None:
            rows.append(Row("network", in_the_air * 1e-9 * network.value, "modelled"))
        if link.tail_joules is not None:
            rows.append(Row("tail", link.tail_joules.value, "modelled"))
        return rows


def totals(rows: Iterable[Row]) -> dict[str, dict[str, float | None]]:
    """Σ of the joules of each phase, for each source by itself: float64, rounded once, the same in any order.

    None where a row of that phase could not be measured: what is left would be too little.

    Example:
        >>> from joulegrad.energy import Row, totals
        >>> totals([Row("train", 2.0, "modelled"), Row("train", 3.0, "modelled"), Row("train", 4.5, "measured")])
        {'measured': {'train': 4.5}, 'modelled': {'train': 5.0}}
    """
    found: dict[tuple[str, str], list[float | None]] = {}
    for row in rows:
        if row.source not in SOURCES or row.phase not in PHASES:
            raise ValueError(f"{row}: the source is one of {', '.join(SOURCES)}, the phase of {', '.join(PHASES)}")
        found.setdefault((row.source, row.phase), []).append(row.joules)
    return {
        source: {phase: _sum(found[source, phase]) for phase in PHASES if (source, phase) in found}
        for source in SOURCES
        if any(source == s for s, _ in found)
    }


def _sum(joules: list[float | None]) -> float | None:
    known = [j for j in joules if j is not None]
    return math.fsum(known) if len(known) == len(joules) else None


def _amount(name: str, given: float | None) -> float:
    if given is None or not is_number(given) or given < 0:
        raise ValueError(f"{name} must be a finite number ≥ 0, got {given!r}")
    return given
