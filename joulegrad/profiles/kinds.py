"""What a profile holds: a device's and a link's figures, each field with its unit and what it means."""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

from joulegrad.profiles.quantity import ProfileError, Quantity

__all__ = ["DeviceProfile", "Field", "LinkProfile", "extreme", "fields", "figures"]

MORE_IS_CHEAPER = ("ram_bytes", "cache_bytes", "frame_bytes")  # beside all that is per second


class Field(NamedTuple):
    """What is known of a profile's field before any profile is read."""

    unit: str
    means: str
    required: bool


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """A machine that trains: what it draws, how fast it is, and what its memory costs.

    Example:
        >>> from joulegrad import profiles
        >>> print(profiles.device("rpi4").idle_watts)
        2.70 W
    """

    name: str
    summary: str
    idle_watts: Annotated[Quantity, "W", "drawn while nothing runs"]
    busy_watts: Annotated[Quantity, "W", "drawn while it trains, selects or encodes; idle is in it"]
    train_flops_per_second: Annotated[Quantity, "FLOP/s", "reached in training, not the peak; a multiply-add is two"]
    ram_bytes: Annotated[Quantity, "B", "main memory; on a microcontroller all there is"]
    ram_bytes_per_second: Annotated[Quantity, "B/s", "reached in reading a long array, not the peak"]
    cache_bytes: Annotated[Quantity, "B", "the last level of cache that one layer's entries can stay in"]
    line_bytes: Annotated[Quantity, "B", "what one access brings in"]
    sram_pj_per_bit: Annotated[Quantity, "pJ/bit", "to read or write a bit that lies in the cache"]
    dram_pj_per_bit: Annotated[
        Quantity | None, "pJ/bit", "to read or write a bit of main memory; absent: SRAM only"
    ] = None

    def __post_init__(self) -> None:
        _check_positive(self, "busy_watts", "train_flops_per_second", "ram_bytes_per_second", "line_bytes")
        _check_positive(self, "sram_pj_per_bit", "dram_pj_per_bit")


@dataclass(frozen=True, kw_only=True)
class LinkProfile:
    """A way to the server, as one radio or port sees it: ε(R) = α + β / R joules a bit at R bits a second.

    α is `up_nj_per_bit`, β is `up_watts`; one of the two may be absent. The same holds for the way down.

    Example:
        >>> from joulegrad import profiles
        >>> link = profiles.link("lte-2012")
        >>> round(1e9 * link.up_joules_per_bit())   # at its usual 6 Mbit/s
        653
        >>> round(1e9 * link.up_joules_per_bit(20e6))
        503
    """

    name: str
    summary: str
    up_bits_per_second: Annotated[Quantity, "bit/s", "usual speed to the server, as an application sees it"]
    down_bits_per_second: Annotated[Quantity, "bit/s", "usual speed from the server"]
    up_nj_per_bit: Annotated[Quantity | None, "nJ/bit", "α: what a sent bit costs at any speed"] = None
    up_watts: Annotated[Quantity | None, "W", "β: drawn by the radio while it sends, above idle"] = None
    down_nj_per_bit: Annotated[Quantity | None, "nJ/bit", "α: what a received bit costs at any speed"] = None
    down_watts: Annotated[Quantity | None, "W", "β: drawn by the radio while it receives, above idle"] = None
    promotion_joules: Annotated[Quantity | None, "J", "to wake the radio, once a transfer"] = None
    tail_joules: Annotated[Quantity | None, "J", "drawn after a transfer until the radio sleeps, once"] = None
    frame_bytes: Annotated[Quantity, "B", "the application's bytes in one frame"]
    frame_overhead_bytes: Annotated[Quantity, "B", "headers and checks around them, without acknowledgements"]
    network_up_nj_per_bit: Annotated[Quantity | None, "nJ/bit", "drawn by the network on the way to the server"] = None
    network_down_nj_per_bit: Annotated[Quantity | None, "nJ/bit", "drawn by the network on the way from the server"] = (
        None
    )

    def __post_init__(self) -> None:
        _check_positive(self, "up_bits_per_second", "down_bits_per_second", "frame_bytes")
        for way in ("up", "down"):
            if getattr(self, f"{way}_nj_per_bit") is None and getattr(self, f"{way}_watts") is None:
                raise ProfileError(
                    f"has neither {way}_nj_per_bit nor {way}_watts: one of them must say what a bit costs"
                )

    def up_joules_per_bit(self, bits_per_second: float | None = None) -> float:
        """ε(R) of the way to the server, without frames' headers; None: at the usual speed."""
        return _epsilon(self.up_nj_per_bit, self.up_watts, bits_per_second or self.up_bits_per_second.value)

    def down_joules_per_bit(self, bits_per_second: float | None = None) -> float:
        """ε(R) of the way from the server, without frames' headers; None: at the usual speed."""
        return _epsilon(self.down_nj_per_bit, self.down_watts, bits_per_second or self.down_bits_per_second.value)

    @property
    def overhead(self) -> float:
        """Bytes of headers a byte of the application's, in full frames."""
        return self.frame_overhead_bytes.value / self.frame_bytes.value


P = TypeVar("P", DeviceProfile, LinkProfile)


def fields(kind: type[DeviceProfile] | type[LinkProfile]) -> dict[str, Field]:
    """The fields that hold figures, in order.

    Example:
        >>> fields(DeviceProfile)["idle_watts"]
        Field(unit='W', means='drawn while nothing runs', required=True)
    """
    hints = get_type_hints(kind, include_extras=True)
    required = {f.name for f in dataclasses.fields(kind) if f.default is MISSING}
    figures = {name: hint.__metadata__ for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    return {name: Field(unit, means, name in required) for name, (unit, means) in figures.items()}


def figures(profile: DeviceProfile | LinkProfile) -> dict[str, Quantity | None]:
    """Each field that holds a figure, in order; what is absent is None.

    Example:
        >>> from joulegrad import profiles
        >>> figures(profiles.device("esp32"))["dram_pj_per_bit"] is None
        True
    """
    return {name: getattr(profile, name) for name in fields(type(profile))}


def extreme(profile: P, end: Literal["low", "high"]) -> P:
    """The profile with each figure at the end of its range where joules are lowest, or highest.

    Example:
        >>> from joulegrad import profiles
        >>> worst = extreme(profiles.device("rpi4"), "high")
        >>> print(worst.busy_watts, worst.train_flops_per_second)   # dear, and slow
        7.30 W 3.00 GFLOP/s
    """
    changed: dict[str, Any] = {}
    for name, q in figures(profile).items():
        if q is not None:
            upper = (end == "high") != (name.endswith("_per_second") or name in MORE_IS_CHEAPER)
            changed[name] = dataclasses.replace(q, value=q.high if upper else q.low)
    return dataclasses.replace(profile, **changed)


def _epsilon(alpha: Quantity | None, beta: Quantity | None, bits_per_second: float) -> float:
    return (0.0 if alpha is None else 1e-9 * alpha.value) + (0.0 if beta is None else beta.value / bits_per_second)


def _check_positive(profile: DeviceProfile | LinkProfile, *names: str) -> None:
    for name in names:
        found = getattr(profile, name)
        if found is not None and found.low <= 0:
            raise ProfileError(f"{name} may be {found.low:g}; its whole range must be above 0")
