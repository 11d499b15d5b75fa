"""Profiles: what ships is complete and graded; a user's own file works the same; what is wrong with one is said."""

from __future__ import annotations

import math
import pickle
import re
import tomllib

import pytest

from joulegrad import profiles
from joulegrad.profiles.quantity import UNITS, convert

SHIPPED = [("device", name) for name in profiles.devices()] + [("link", name) for name in profiles.links()]
FIGURE = {"value": 2.7, "unit": "W", "range": [2.1, 3.4], "grade": "published", "source": "a power meter"}


@pytest.mark.parametrize(("kind", "name"), SHIPPED, ids=[name for _, name in SHIPPED])
def test_what_ships_is_complete(kind, name):
    profile = getattr(profiles, kind)(name)
    assert profile.name == name
    written = tomllib.loads((profiles.HERE / f"{kind}s" / f"{name}.toml").read_text())
    for field, given in written.items():
        if field in ("kind", "summary"):
            continue
        figure = profiles.figures(profile)[field]
        assert set(given) == {"value", "unit", "range", "grade", "source"}, field
        assert given["grade"] in profiles.GRADES
        assert len(given["source"]) >= 12, field
        assert "research file" not in given["source"].lower(), "sources are works that a reader can find"
        factor = convert(given["unit"], figure.unit)
        for ours, theirs in ((figure.value, given["value"]), (figure.low, given["range"][0])):
            assert math.isclose(ours, theirs * factor, rel_tol=1e-12)
        if given["grade"] == "assumed":
            assert figure.low < figure.high or field == "line_bytes", f"{field}: a guess has a range"


def test_what_is_asked_of_the_project_is_there():
    assert {"rpi4", "rpi5", "jetson-nano", "jetson-orin-nano", "phone", "esp32", "nrf52840", "server-gpu"} <= set(
        profiles.devices()
    )
    assert {
        "wifi-n", "wifi-ac", "lte-2012", "lte-2021", "5g-low", "5g-mmwave", "ble", "802.15.4", "lora-sf7", "ethernet",
    } <= set(profiles.links())  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), SHIPPED, ids=[name for _, name in SHIPPED])
def test_a_profile_is_a_value(kind, name, tmp_path):
    profile = getattr(profiles, kind)(name)
    assert pickle.loads(pickle.dumps(profile)) == profile
    assert hash(profile) == hash(pickle.loads(pickle.dumps(profile)))
    (tmp_path / f"{name}.toml").write_text(profiles.to_toml(profile))
    assert profiles.read(tmp_path / f"{name}.toml") == profile


def test_radio_energies_are_those_of_the_cited_works():
    """ε(R) = α + β/R, by hand from the figures in the papers and data sheets."""
    for name, megabits, nanojoules in (
        ("lte-2012", 6, 438.39 + 1288.04 / 6), ("lte-2012", 20, 438.39 + 1288.04 / 20),
        ("wifi-n", 6, 283.17 + 132.86 / 6), ("wifi-ac", 100, 1740 / 100), ("wifi-rpi4", 23, 1000 / 23),
        ("lte-2021", 21, 76.7), ("5g-low", 41, 32.2), ("5g-mmwave", 193, 8.9), ("ble", 1.4, 4.8 * 3 / 1.4),
        ("802.15.4", 0.25, 17.4 * 3 / 0.25), ("lora-sf7", 0.00547, 28 * 3.3 / 0.00547), ("ethernet", 100, 5.0),
    ):  # fmt: skip
        assert math.isclose(profiles.link(name).up_joules_per_bit(megabits * 1e6), 1e-9 * nanojoules, rel_tol=1e-6), (
            name
        )


@pytest.mark.parametrize(
    ("given", "unit", "factor"),
    [
        ("mW/Mbps", "nJ/bit", 1.0), ("pJ/bit", "nJ/bit", 1e-3), ("kWh/GB", "nJ/bit", 450_000), ("J/MB", "nJ/bit", 125),
        ("mW", "W", 1e-3), ("Mbit/s", "bit/s", 1e6), ("KiB", "B", 1024), ("MB", "B", 1e6), ("GFLOP/s", "FLOP/s", 1e9),
        ("GB/s", "B/s", 1e9), ("Wh", "J", 3600), ("uJ/bit", "pJ/bit", 1e6),
    ],
)  # fmt: skip
def test_units(given, unit, factor):
    assert math.isclose(convert(given, unit), factor, rel_tol=1e-12)


def test_every_unit_belongs_to_one_kind():
    names = [name for factors in UNITS.values() for name in factors]
    assert len(names) == len(set(names))


def device(**changes) -> str:
    """A user's own device, whose idle_watts is changed."""
    text = profiles.to_toml(profiles.device("rpi4"))
    figure = {k: v for k, v in {**FIGURE, **changes}.items() if v is not None}
    start, end = text.index("[idle_watts]"), text.index("[busy_watts]")
    table = "\n".join(f"{k} = {v if isinstance(v, int | float | list) else repr(v)}" for k, v in figure.items())
    return f"{text[:start]}[idle_watts]\n{table}\n\n{text[end:]}"


MISTAKES = [
    (device(unit="Wat"), ["idle_watts.unit is 'Wat'", "no unit of power", "did you mean 'W'?", "Allowed: W, mW, kW"]),
    (device(unit="mW/Mbps"), ["idle_watts.unit is 'mW/Mbps'", "no unit of power", "Allowed: W, mW, kW"]),
    (device(unit=None), ["idle_watts has no unit", "value, unit, source, grade, range"]),
    (device(unit=3), ["idle_watts.unit is 3"]),
    (device(source=None), ["idle_watts has no source"]),
    (device(source="  "), ["idle_watts.source is empty: name the work"]),
    (device(grade=None), ["idle_watts has no grade"]),
    (device(grade="publishd"), ["idle_watts.grade is 'publishd'; did you mean 'published'?", "measured, published"]),
    (device(range=None), ["idle_watts has no range"]),
    (device(range=[3.0, 4.0]), ["idle_watts.range is [3.0, 4.0], which does not hold the value 2.7"]),
    (device(range=[1.0]), ["idle_watts.range is [1.0]; expected [least, most]"]),
    (device(value="much"), ["idle_watts.value and range must be finite numbers, got 'much'"]),
    (device(value=-1.0, range=[-2, 0]), ["idle_watts.value must be a finite number ≥ 0, got -1.0"]),
    (device(vlaue=3), ["idle_watts has an unknown key 'vlaue'; did you mean 'value'?"]),
    (device().replace("idle_watts", "idel_watts"), ["idel_watts is no field of a device; did you mean 'idle_watts'?"]),
    (device().replace("[busy_watts]", "[idle_watts.busy]"), ["idle_watts has an unknown key 'busy'"]),
    (device().replace('kind = "device"', 'kind = "devise"'), ['kind is \'devise\'; it must say kind = "device"']),
    (device().replace('kind = "device"', 'kind = "link"'), ["is no field of a link"]),
    (re.sub(r"summary = .*", "", device()), ["summary is None"]),
    ('kind = "device"\nsummary = "mine"\n', ["has no idle_watts (drawn while nothing runs), in W"]),
    ('kind = "device"\nsummary = "mine"\nidle_watts = 3\n', ["idle_watts is 3; expected a table of value, unit"]),
    ("kind = \n", ["is not TOML", "line 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), MISTAKES, ids=[said[0] for _, said in MISTAKES])
def test_what_is_wrong_with_a_profile_is_said(text, said, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(profiles.ProfileError) as error:
        profiles.device(file)
    assert str(error.value).startswith(f"{file}")
    for words in said:
        assert words in str(error.value)


def test_a_speed_that_may_be_zero_is_refused(tmp_path):
    file = tmp_path / "mine.toml"
    text = profiles.to_toml(profiles.device("rpi4"))
    file.write_text(text.replace("value = 10000000000.0", "value = 0").replace("range = [3000000000.0", "range = [0"))
    with pytest.raises(profiles.ProfileError, match=r"train_flops_per_second may be 0; its whole range must be above"):
        profiles.device(file)


def test_a_link_must_say_what_a_bit_costs(tmp_path):
    text = profiles.to_toml(profiles.link("ethernet"))
    start, end = text.index("[up_nj_per_bit]"), text.index("[down_nj_per_bit]")
    (tmp_path / "mine.toml").write_text(text[:start] + text[end:])
    with pytest.raises(profiles.ProfileError, match="neither up_nj_per_bit nor up_watts"):
        profiles.link(tmp_path / "mine.toml")


def test_names(tmp_path):
    for given, said in (
        ("rpi44", "device 'rpi44' is not known; did you mean 'rpi4'? There are: esp32, "),
        ("wifi-n", "device 'wifi-n' is a link. There are: esp32, "),
        ("nowhere.toml", "nowhere.toml: No such file or directory"),
        (3, "a device is a name, the path of a TOML file, or a DeviceProfile, got 3"),
    ):
        with pytest.raises(profiles.ProfileError, match=re.escape(said)):
            profiles.device(given)
    (tmp_path / "mine.toml").write_text(profiles.to_toml(profiles.link("ble")))
    with pytest.raises(profiles.ProfileError, match=r"mine.toml describes a link; a device is wanted here"):
        profiles.device(tmp_path / "mine.toml")
    mine = profiles.link(tmp_path / "mine.toml")
    assert (mine.name, profiles.link(mine)) == ("mine", mine)
