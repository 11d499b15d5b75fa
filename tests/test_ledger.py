"""The ledger against figures worked out by hand, and against the profiles' own; batteries; CO2e."""

from __future__ import annotations

import json
import math
import random
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import joulegrad
from joulegrad import Layout, SparseUpdate, profiles
from joulegrad.energy import PHASES, Battery, Ledger, Reading, Row, carbon, totals

LAYOUT = Layout.from_shapes({"w": (100, 100)})


def by_phase(rows):
    return {row.phase: row.joules for row in rows}


# --- uplink: a function of len(payload), and of nothing else ------------------------------------------------------


@pytest.mark.parametrize("name", profiles.links())
def test_uplink_is_a_function_of_the_payloads_length(name):
    """E = 8 (n + h ⌈n/f⌉) (α + β/R), from the figures of the profile, whatever the payload holds."""
    link = profiles.link(name)
    alpha = 0.0 if link.up_nj_per_bit is None else 1e-9 * link.up_nj_per_bit.value
    beta = 0.0 if link.up_watts is None else link.up_watts.value
    epsilon = alpha + beta / link.up_bits_per_second.value
    generator = torch.Generator().manual_seed(0)
    seen = {}
    for k in (1, 10, 500, 500, 9000):
        places = torch.randperm(LAYOUT.size, generator=generator)[:k].sort().values
        sent = SparseUpdate(places, torch.randn(k, generator=generator), LAYOUT.size)
        payload = joulegrad.encode(sent, LAYOUT)
        ledger = Ledger(device=random.choice(profiles.devices()), link=name, server="server-gpu", slowdown=3.0)
        joules = by_phase(ledger.uplink(len(payload)))["uplink"]
        n, frames = len(payload), math.ceil(len(payload) / link.frame_bytes.value)
        assert joules == pytest.approx(8 * (n + frames * link.frame_overhead_bytes.value) * epsilon, rel=1e-12)
        assert joules == seen.setdefault(n, joules)
    assert [row.source for row in Ledger(link=name).uplink(100) if row.phase == "uplink"] == ["coded"]


@given(st.integers(1, 10**9), st.integers(0, 10**6))
def test_more_bytes_never_cost_less(n, more):
    ledger = Ledger(link="ble")
    assert by_phase(ledger.uplink(n + more))["uplink"] >= by_phase(ledger.uplink(n))["uplink"]


def test_lte_of_2012_by_hand():
    """100 kB at 6 Mbit/s: 438.39 nJ/bit + 1.28804 W / 6 Mbit/s = 653.06 nJ/bit; 72 frames with their headers."""
    link = profiles.link("lte-2012")
    frames = math.ceil(100_000 / link.frame_bytes.value)
    bits = 8 * (100_000 + frames * link.frame_overhead_bytes.value)
    rows = Ledger(device="phone", link="lte-2012").uplink(100_000)
    assert [(row.phase, row.source) for row in rows] == [
        ("promotion", "modelled"), ("uplink", "coded"), ("tail", "modelled"),
    ]  # fmt: skip
    assert by_phase(rows) == pytest.approx({"promotion": 0.31, "uplink": bits * 653.0633e-9, "tail": 12.3}, rel=1e-5)


def test_nothing_sent_costs_nothing():
    assert Ledger(link="lte-2012").uplink(0) == []


# --- the other phases ---------------------------------------------------------------------------------------------


def test_training_by_operations_or_by_seconds():
    device = profiles.device("rpi4")
    ledger = Ledger(device="rpi4", link="wifi-rpi4")
    seconds = 1e12 / device.train_flops_per_second.value
    assert ledger.train(flop=1e12) == Row("train", seconds * device.busy_watts.value, "modelled")
    assert ledger.train(seconds=2.0) == Row("train", 2 * device.busy_watts.value, "modelled")
    for wrong in ({}, {"flop": 1.0, "seconds": 1.0}):
        with pytest.raises(ValueError, match="either flop or seconds"):
            ledger.train(**wrong)


def test_selecting_and_encoding_cost_their_seconds_so_that_a_slow_rule_cannot_hide():
    watts = profiles.device("rpi5").busy_watts.value
    ledger = Ledger(device="rpi5", slowdown=4.0)
    assert ledger.select(0.5) == Row("select", 4 * 0.5 * watts, "modelled")
    assert ledger.encode(0.1).joules == pytest.approx(4 * 0.1 * watts)


def test_a_server_that_is_named_is_charged():
    assert Ledger().decode(1.0) == Ledger().aggregate(1.0) == []
    watts = profiles.device("server-gpu").busy_watts.value
    assert Ledger(server="server-gpu").aggregate(0.5) == [Row("aggregate", 0.5 * watts, "modelled")]
    assert Ledger(server="server-gpu").decode(0.5)[0].phase == "decode"


def test_the_boundary_is_explicit():
    link = profiles.link("lte-2021")
    bits = 8 * (1000 + link.frame_overhead_bytes.value)  # one frame
    rows = Ledger(link="lte-2021", boundary="system").uplink(1000)
    assert by_phase(rows)["network"] == pytest.approx(bits * 1e-9 * link.network_up_nj_per_bit.value)
    down = by_phase(Ledger(link="lte-2021", boundary="system").downlink(1000))
    assert down["network"] == pytest.approx(bits * 1e-9 * link.network_down_nj_per_bit.value)
    assert "network" not in by_phase(Ledger(link="lte-2021").uplink(1000))


def test_users_own_profiles(tmp_path):
    text = profiles.to_toml(profiles.device("rpi4"))
    (tmp_path / "mine.toml").write_text(text.replace("value = 6.4", "value = 6.9"))
    assert "6.9" in (tmp_path / "mine.toml").read_text()
    assert Ledger(device=str(tmp_path / "mine.toml")).train(seconds=1.0).joules == 6.9
    assert Ledger(device=profiles.device("rpi4")).train(seconds=1.0).joules == 6.4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"device": "rpi44"}, "did you mean 'rpi4'?"),
        ({"link": "wifi"}, "link 'wifi'"),
        ({"server": "rpi44"}, "did you mean 'rpi4'?"),
        ({"device": "lte-2012"}, "lte-2012"),
        ({"boundary": "phone"}, "boundary must be 'device' or 'system', got 'phone'"),
        ({"slowdown": 0}, "slowdown must be a positive number, got 0"),
        ({"slowdown": True}, "slowdown must be a positive number, got True"),
        ({"battery": 40_000}, "battery must be a Battery"),
        ({"grams_per_kwh": -1}, "grams_per_kwh must be a number ≥ 0"),
    ],
)
def test_mistakes_are_found_when_a_ledger_is_made(arguments, said):
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        Ledger(**arguments)
    assert said in str(refused.value)


def test_the_network_of_a_link_that_does_not_know_it():
    bare = profiles.LinkProfile(**{**vars(profiles.link("ble")), "network_up_nj_per_bit": None})
    with pytest.raises(ValueError, match="needs network_up_nj_per_bit, which ble has not"):
        Ledger(link=bare, boundary="system")


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, "3", None, True])
def test_amounts_must_be_amounts(wrong):
    with pytest.raises(ValueError, match="seconds must be a finite number ≥ 0"):
        Ledger().select(wrong)


# --- totals -------------------------------------------------------------------------------------------------------


def test_totals_keep_sources_apart_and_do_not_depend_on_the_order():
    rows = [Row("uplink", 10.0**-i, "coded", client=i) for i in range(300)]
    rows += [Row("train", 0.1 * i, "modelled", client=i) for i in range(300)]
    expected = totals(rows)
    assert set(expected) == {"coded", "modelled"}
    assert expected["coded"]["uplink"] == math.fsum(10.0**-i for i in range(300))
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        assert totals(rows) == expected


def test_what_was_not_measured_makes_no_total():
    reading = Reading(note="no meter")
    rows = [Row("train", 5.0, "measured"), Row.measured("train", reading), Row.measured("select", Reading(2.0, 1.0))]
    assert totals(rows) == {"measured": {"train": None, "select": 2.0}}
    assert totals([]) == {}


def test_rows_of_no_known_phase_are_refused():
    with pytest.raises(ValueError, match=r"the source is one of measured, coded, modelled"):
        totals([Row("train", 1.0, "guessed")])
    with pytest.raises(ValueError, match="the phase of downlink, train"):
        totals([Row("sleep", 1.0, "coded")])
    assert totals([Row(phase, 1.0, "coded") for phase in reversed(PHASES)])["coded"] == dict.fromkeys(PHASES, 1.0)


# --- batteries ----------------------------------------------------------------------------------------------------


def test_a_battery_harvests_in_turns_and_holds_no_more_than_it_can():
    battery = Battery(joules=10.0, harvest=(0.0, 4.0, 20.0), full=0.2, least=0.5)
    charge, seen = battery.first, []
    for t in range(5):
        charge = battery.charged(charge, t)
        seen.append((charge, battery.enough(charge)))
    assert seen == [(2.0, False), (6.0, True), (10.0, True), (10.0, True), (10.0, True)]
    assert not Battery(joules=1.0).enough(0.0)
    assert Battery(joules=1.0).charged(0.5, 3) == 0.5


@pytest.mark.parametrize(
    "arguments",
    [{"joules": 0}, {"joules": math.inf}, {"joules": 1, "full": 1.5}, {"joules": 1, "least": 1.0},
     {"joules": 1, "harvest": (-1.0,)}, {"joules": 1, "harvest": 3.0}],
)  # fmt: skip
def test_a_battery_that_cannot_be(arguments):
    with pytest.raises(ValueError, match=r"Battery\("):
        Battery(**arguments)


# --- CO2e ---------------------------------------------------------------------------------------------------------


def test_co2e_by_the_users_figure_or_the_worlds_flagged():
    assert carbon(3.6e6 * 2.3346e-5, 56.04).grams == pytest.approx(1.3083e-3, rel=1e-4)
    assert carbon(3.6e6, 56).source == "as given"
    world = carbon(1000.0)
    assert world.grams == pytest.approx(0.1319, abs=1e-4)
    assert "the world's average of 2019" in str(world)


@pytest.mark.parametrize("joules", [None, math.nan, "3", True])
def test_what_was_not_measured_has_no_co2e(joules):
    with pytest.raises(ValueError, match="what was not measured has no CO2e"):
        carbon(joules)


def test_other_mistakes_of_co2e():
    with pytest.raises(ValueError, match="grams_per_kwh must be a finite number ≥ 0"):
        carbon(1.0, -3)
    with pytest.raises(ValueError, match="either grams_per_kwh or a country"):
        carbon(1.0, 56, country="FRA")


def test_codecarbons_table_only_where_it_is_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "codecarbon", None)
    with pytest.raises(ValueError, match="pip install codecarbon"):
        carbon(1.0, country="FRA")
    monkeypatch.delitem(sys.modules, "codecarbon")
    folder = tmp_path / "codecarbon" / "data" / "private_infra"
    folder.mkdir(parents=True)
    (tmp_path / "codecarbon" / "__init__.py").touch()
    table = {"FRA": {"carbon_intensity": 56.04}, "ATA": {"country_name": "Antarctica"}}
    (folder / "global_energy_mix.json").write_text(json.dumps(table))
    monkeypatch.syspath_prepend(tmp_path)
    found = carbon(3.6e6, country="fra")
    assert found.grams == pytest.approx(56.04)
    assert "FRA in codecarbon's table" in found.source
    with pytest.raises(ValueError, match="'XXX' is not in codecarbon's table"):
        carbon(1.0, country="XXX")
    with pytest.raises(ValueError, match="no carbon intensity for ATA"):
        carbon(1.0, country="ATA")
    sys.modules.pop("codecarbon", None)
