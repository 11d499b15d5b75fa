"""Devices and links as data: each figure with its unit, its source, how sure it is, and its range.

    profiles.device("rpi4")          one that comes with joulegrad; `profiles.devices()` names them
    profiles.link("wifi-ac")         `profiles.links()`
    profiles.device("./mine.toml")   your own, in the same form

docs/energy.md says what the grades mean; `joulegrad profiles NAME` prints one with its sources.
"""

from __future__ import annotations

import json
import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from joulegrad.profiles.kinds import DeviceProfile, LinkProfile, P, extreme, fields, figures
from joulegrad.profiles.quantity import GRADES, ProfileError, Quantity, nearest, parsed, quantity, readable

__all__ = [
    "GRADES",
    "DeviceProfile",
    "LinkProfile",
    "ProfileError",
    "Quantity",
    "device",
    "devices",
    "extreme",
    "fields",
    "figures",
    "link",
    "links",
    "nearest",
    "parsed",
    "read",
    "readable",
    "to_toml",
]

HERE = Path(__file__).parent
KINDS: dict[str, type[DeviceProfile] | type[LinkProfile]] = {"device": DeviceProfile, "link": LinkProfile}


def devices() -> list[str]:
    """Names of the devices that come with joulegrad.

    Example:
        >>> [name for name in devices() if name.startswith("rpi")]
        ['rpi4', 'rpi5']
    """
    return sorted(file.stem for file in (HERE / "devices").glob("*.toml"))


def links() -> list[str]:
    """Names of the links that come with joulegrad.

    Example:
        >>> [name for name in links() if name.startswith("wifi")]
        ['wifi-ac', 'wifi-esp32', 'wifi-n', 'wifi-rpi4']
    """
    return sorted(file.stem for file in (HERE / "links").glob("*.toml"))


def device(given: str | os.PathLike[str] | DeviceProfile) -> DeviceProfile:
    """The device of that name, or in that file; a profile is itself.

    Example:
        >>> device("rpi4").dram_pj_per_bit.value
        8.0
        >>> device("rpi44")
        Traceback (most recent call last):
        joulegrad.profiles.quantity.ProfileError: device 'rpi44' is not known; did you mean 'rpi4'? There are: ...
    """
    return given if isinstance(given, DeviceProfile) else _found(given, DeviceProfile, "device")


def link(given: str | os.PathLike[str] | LinkProfile) -> LinkProfile:
    """The link of that name, or in that file; a profile is itself.

    Example:
        >>> link("lte-2012").tail_joules.grade
        'recalled'
    """
    return given if isinstance(given, LinkProfile) else _found(given, LinkProfile, "link")


def read(file: str | os.PathLike[str]) -> DeviceProfile | LinkProfile:
    """A profile from a file, of the kind that the file says it is; its name is the file's."""
    file = Path(file)
    try:
        found = tomllib.loads(file.read_text())
    except OSError as why:
        raise ProfileError(f"{file}: {why.strerror}") from None
    except ValueError as why:
        raise ProfileError(f"{file} is not TOML: {why}") from None
    try:
        return _profile(file.stem, found)
    except ProfileError as why:
        raise ProfileError(f"{file}: {why}") from None


def to_toml(profile: DeviceProfile | LinkProfile) -> str:
    """A profile as the text of a file, which `read` reads.

    Example:
        >>> print(to_toml(link("ethernet"))[:13])
        kind = "link"
    """
    kind = next(kind for kind, made in KINDS.items() if isinstance(profile, made))
    parts = [f"kind = {_text(kind)}\nsummary = {_text(profile.summary)}\n"]
    for name, q in figures(profile).items():
        if q is not None:
            parts.append(
                f"[{name}]\nvalue = {q.value!r}\nunit = {_text(q.unit)}\nrange = [{q.low!r}, {q.high!r}]\n"
                f"grade = {_text(q.grade)}\nsource = {_text(q.source)}\n"
            )
    return "\n".join(parts)


def _found(given: str | os.PathLike[str], kind: type[P], word: str) -> P:
    if not isinstance(given, str | os.PathLike):
        raise ProfileError(f"a {word} is a name, the path of a TOML file, or a {kind.__name__}, got {given!r}")
    name = os.fspath(given)
    if name.endswith(".toml") or os.sep in name:
        profile = read(name)
        if not isinstance(profile, kind):
            raise ProfileError(
                f"{name} describes a {'link' if word == 'device' else 'device'}; a {word} is wanted here"
            )
        return profile
    return _built_in(name, kind, word)


def _built_in(name: str, kind: type[P], word: str) -> P:
    names, others = (devices(), links()) if word == "device" else (links(), devices())
    if name not in names:
        other = f" is a {'link' if word == 'device' else 'device'}." if name in others else ""
        raise ProfileError(
            f"{word} {name!r}{other or ' is not known' + nearest(name, names)} There are: {', '.join(names)}; or give "
            "the path of a .toml file"
        )
    found = _kept(HERE / f"{word}s" / f"{name}.toml")
    if not isinstance(found, kind):
        raise ProfileError(f"{name} lies among the {word}s and is none")
    return found


_kept = cache(read)


def _profile(name: str, found: dict[str, Any]) -> DeviceProfile | LinkProfile:
    word = found.pop("kind", None)
    if word not in KINDS:
        raise ProfileError(f'kind is {word!r}; it must say kind = "device" or kind = "link"')
    kind = KINDS[word]
    summary = found.pop("summary", None)
    if not isinstance(summary, str) or not summary.strip():
        raise ProfileError(f"summary is {summary!r}; it must say in one line what {word} this is")
    known = fields(kind)
    for key in found:
        if key not in known:
            raise ProfileError(f"{key} is no field of a {word}{nearest(key, known)} There are: {', '.join(known)}")
    values: dict[str, Any] = {}
    for key, f in known.items():
        if key not in found:
            if f.required:
                raise ProfileError(f"has no {key} ({f.means}), in {f.unit}")
            continue
        try:
            values[key] = quantity(found[key], f.unit)
        except ProfileError as why:
            said = str(why)
            joint = "." if said.startswith(("unit", "range", "grade", "source", "value")) else " "
            raise ProfileError(f"{key}{joint}{said}") from None
    return kind(name=name, summary=summary, **values)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
