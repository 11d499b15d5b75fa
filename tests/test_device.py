"""Device: the formula worked out again by hand, the worked ResNet-18 example, what is refused, how it is written."""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import replace
from math import lgamma, log2

import numpy as np
import pytest
import torch

import joulegrad as jg
from joulegrad import CWMP, Device, LayerType, Layout, Prices, Repriced, SparseUpdate, TopK, profiles
from joulegrad.lab import notation
from joulegrad.lab.experiment import OPERATORS, Experiment
from joulegrad.lab.models import build
from joulegrad.profiles import Quantity
from joulegrad.sizes import payload_bytes, support_bits

RESNET = Layout.of(build("resnet18", (3, 32, 32), 10))
CONV = next(s.name for s in RESNET.segments if s.size == 2_359_296)
FC = "fc.weight"


def figure(value: float, unit: str) -> Quantity:
    return Quantity(value, unit, "of this test", "assumed", value, value)


def entry(cost: Device, layer: str, layout: Layout = RESNET):
    return next(row for row in cost.explain(layout).rows if row.layer == layer)


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", [1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.95, 1.0])
@pytest.mark.parametrize(("model", "shape"), [("mlp", (1, 8, 8)), ("mobilenet_v2", (3, 32, 32))])
def test_expected_bytes_are_what_encode_writes_of_random_supports(model, shape, density):
    layout, draw = Layout.of(build(model, shape, 10)), np.random.default_rng(0)
    counts = [int(draw.binomial(s.size, density)) for s in layout.segments]
    chosen = [
        np.sort(draw.choice(s.size, k, replace=False)) + s.start for s, k in zip(layout.segments, counts, strict=True)
    ]
    indices = torch.from_numpy(np.concatenate(chosen).astype(np.int64))
    sent = SparseUpdate(indices, torch.randn(len(indices)), layout.size)
    if layout.buffer_size:
        sent = sent.with_buffers(torch.zeros(layout.buffer_size))
    written, fixed = len(jg.encode(sent, layout)), 4 * len(indices) + 4 * layout.buffer_size + 28
    expected = payload_bytes(layout, counts)
    assert abs(expected - written) <= 0.01 * (written - fixed) + 2, (expected, written)


def test_an_index_costs_its_entropy_and_a_little():
    for n, k in ((10**6, 10**4), (10**6, 5 * 10**5), (2_359_296, 23_593), (5120, 51)):
        bound = (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / math.log(2)
        assert bound <= support_bits(n, k) <= 1.015 * bound + 8 * 3 + 4 + 8
    assert support_bits(100, 0) == support_bits(100, 100) == 0
    assert support_bits(1, 1.0) == 0


# --- the formula, written down a second time -------------------------------------------------------------------------


def by_hand(device, link, server, n, rho, *, bits, speed, warm, receivers):
    """Every part of an entry's cost, from bare numbers."""

    def access(line, cache, sram, dram):
        words = line / 4
        together = (1 - (1 - rho) ** words) / rho
        inside = 1 if dram is None else min(1, cache / (4 * n)) if warm else 0
        return 32 * together * (inside * sram + (1 - inside) * (dram or 0)) * 1e-12

    on_air = bits * (1 + link["overhead"] / link["frame"])
    return {
        "radio": on_air * (link["alpha"] * 1e-9 + link["beta"] / speed),
        "memory": 4 * access(*device),
        "network": on_air * 1e-9 * (link["net_up"] + receivers * (link["net_down"] + link["down"])),
        "server": 2 * access(*server),
    }


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("rho", [0.001, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("receivers", [0, 7])
def test_the_formula_by_hand(warm, rho, receivers):
    rpi4 = profiles.device("rpi4")
    device = replace(
        rpi4, name="mine", line_bytes=figure(128, "B"), cache_bytes=figure(20_000, "B"),
        sram_pj_per_bit=figure(0.7, "pJ/bit"), dram_pj_per_bit=figure(9.0, "pJ/bit"),
    )  # fmt: skip
    link = replace(
        profiles.link("ethernet"), up_nj_per_bit=figure(100, "nJ/bit"), up_watts=figure(0.5, "W"),
        down_nj_per_bit=figure(12, "nJ/bit"), frame_bytes=figure(1000, "B"), frame_overhead_bytes=figure(50, "B"),
        network_up_nj_per_bit=figure(300, "nJ/bit"), network_down_nj_per_bit=figure(200, "nJ/bit"),
    )  # fmt: skip
    numbers = {
        "alpha": 100, "beta": 0.5, "down": 12, "frame": 1000, "overhead": 50, "net_up": 300, "net_down": 200
    }  # fmt: skip
    gpu = profiles.device("server-gpu")
    server = (gpu.line_bytes.value, gpu.cache_bytes.value, gpu.sram_pj_per_bit.value, gpu.dram_pj_per_bit.value)
    layout = Layout.from_shapes({"a": (200, 100), "b": (10,)})
    for index_bits, value_bits in ((17.5, 32), (None, 16), (None, 2)):
        cost = Device(
            device, link, density=rho, value_bits=value_bits, index_bits=index_bits, up_bits_per_second=2e6,
            warm=warm, boundary="system", receivers=receivers,
        )  # fmt: skip
        k = rho * 20_000
        index = index_bits if index_bits is not None else support_bits(20_000, k) / k
        bits = index + value_bits + (32 / k if value_bits == 2 else 0)
        wanted = by_hand(
            (128, 20_000, 0.7, 9.0), numbers, server, 20_000, rho, bits=bits, speed=2e6, warm=warm, receivers=receivers
        )
        row = entry(cost, "a", layout)
        for part, joules in wanted.items():
            assert math.isclose(getattr(row, f"{part}_joules"), joules, rel_tol=1e-12), part
        assert math.isclose(cost.joules(layout)[0].item(), sum(wanted.values()), rel_tol=1e-12)
        alone = replace(cost, boundary="device")
        assert math.isclose(alone.joules(layout)[0].item(), wanted["radio"] + wanted["memory"], rel_tol=1e-12)


def test_a_layer_of_which_less_than_one_entry_is_expected_pays_for_one():
    layout = Layout.from_shapes({"bias": (10,)})
    assert entry(Device("rpi4", "ble", density=0.001), "bias", layout)[3:] == pytest.approx(
        entry(Device("rpi4", "ble", density=0.1), "bias", layout)[3:]
    )


# --- the worked example: ResNet-18 on CIFAR, 1 %, float32 values -----------------------------------------------------


PHONE_2012 = replace(
    profiles.device("rpi4"), name="phone of 2012", cache_bytes=figure(2 * 2**20, "B")
)  # 28 nm and LPDDR as the example's figures for it imply
BARE = replace(
    profiles.device("rpi4"), name="45 nm", sram_pj_per_bit=figure(100 / 64, "pJ/bit"),
    dram_pj_per_bit=figure(20, "pJ/bit"),
)  # fmt: skip
EXAMPLE = [  # device, link; nJ to send an entry of conv512 with 22-bit indices; nJ of memory; FC:conv of all, of memory
    ("rpi4", "wifi-rpi4", 2322, 13.9, 0.83, 0.99, 0.14),
    ("phone", "wifi-ac", 940, 6.6, 0.83, 0.99, 0.09),
    (PHONE_2012, "lte-2012", 35266, 12.4, 0.83, 1.00, 0.16),
    ("phone", "lte-2021", 4142, 6.6, 0.83, 1.00, 0.09),
    ("phone", "5g-mmwave", 481, 6.6, 0.82, 0.98, 0.09),
    ("jetson-orin-nano", "ethernet", 270, 6.8, 0.82, 0.97, 0.10),
    (BARE, None, 0, 34, 0.09, 0.09, 0.09),
]


@pytest.mark.parametrize(("device", "link", "sent", "memory", "flat", "coded", "cached"), EXAMPLE)
def test_the_worked_resnet_18(device, link, sent, memory, flat, coded, cached):
    """The figures are those of the example, printed to two or three digits; the link's frames are left out as there."""
    bare = link and replace(profiles.link(link), frame_overhead_bytes=figure(0, "B"))
    cost = Device(device, bare, density=0.01, warm=True, boundary="system")

    def both(layer, cost):
        row = entry(cost, layer)
        return row.radio_joules + row.memory_joules + row.server_joules

    conv, fc = (replace(cost, index_bits=math.ceil(log2(entry(cost, name).entries))) for name in (CONV, FC))
    assert 1e9 * entry(conv, CONV).radio_joules == pytest.approx(sent, rel=0.015)
    row, other = entry(cost, CONV), entry(cost, FC)
    assert 1e9 * (row.memory_joules + row.server_joules) == pytest.approx(memory, rel=0.03)
    assert both(FC, fc) / both(CONV, conv) == pytest.approx(flat, rel=0.02)
    assert both(FC, cost) / both(CONV, cost) == pytest.approx(coded, rel=0.02, abs=0.012)
    assert (other.memory_joules + other.server_joules) / (row.memory_joules + row.server_joules) == pytest.approx(
        cached, abs=0.0125
    )
    cold = replace(cost, warm=False)
    assert entry(cold, FC).memory_joules == pytest.approx(entry(cold, CONV).memory_joules, rel=0.01)


def test_five_to_one_does_not_hold_on_resnet_18():
    for device, link in (("rpi4", "wifi-rpi4"), ("phone", "lte-2012"), ("jetson-orin-nano", "ethernet")):
        for warm in (False, True):
            found = Device(device, link, warm=warm)
            assert 0.8 < entry(found, FC).joules / entry(found, CONV).joules < 1.1
    assert LayerType().classifier == 5.0, "the paper's, kept for reproduction"


# --- densities -------------------------------------------------------------------------------------------------------


LAYOUT = Layout.from_shapes({"conv": (40, 25), "fc.weight": (10, 100), "fc.bias": (10,)})


def test_a_denser_layer_is_cheaper_per_entry():
    costs = [Device("rpi4", "wifi-rpi4", density=rho).joules(LAYOUT)[0].item() for rho in (0.01, 0.05, 0.2, 0.5, 1.0)]
    assert costs == sorted(costs, reverse=True)


def test_the_last_rounds_densities():
    update = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(0))
    update[1000:2000] *= 20
    cost = Device("phone", "wifi-ac", density=0.1)
    op = TopK(k=300)
    sent, _ = op(update, op.init(LAYOUT))
    after = cost.after(sent, LAYOUT)
    counted = [int(((sent.indices >= s.start) & (sent.indices < s.stop)).sum()) / s.size for s in LAYOUT.segments]
    assert [row.density for row in after.explain(LAYOUT).rows] == pytest.approx(counted)
    assert after.joules(LAYOUT)[1] < after.joules(LAYOUT)[0], "nearly all of the second is sent: its indices are cheap"
    assert cost.density == 0.1, "nothing is mutated"


def test_two_sweeps_come_to_rest():
    update = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(0))
    update[1000:2000] *= 3
    cost = Device("phone", "wifi-ac", density=0.1)
    two, three = cost.fitted(update, LAYOUT), cost.fitted(update, LAYOUT, sweeps=3)
    for s in LAYOUT.segments:
        assert two.density[s.name] == pytest.approx(three.density[s.name], abs=0.005)
    op = CWMP(k=201, cost=two)
    sent, _ = op(update, op.init(LAYOUT))
    again = two.after(sent, LAYOUT)
    for s in LAYOUT.segments:
        assert again.density[s.name] == pytest.approx(two.density[s.name], abs=0.005)


def test_repriced_pays_the_last_updates_prices():
    draw = torch.Generator().manual_seed(0)
    updates = [torch.randn(LAYOUT.size, generator=draw) for _ in range(3)]
    for update in updates:
        update[1000:2000] *= 20
    cost = Device("phone", "wifi-ac", density=0.1)
    op = jg.ErrorFeedback(Repriced(CWMP(k=300, cost=cost)))
    state, expected, now = op.init(LAYOUT), jg.ErrorFeedback(CWMP(k=300, cost=cost)).init(LAYOUT), cost
    for update in updates:  # the same by hand: a new operator each round, at what the last one sent
        sent, state = op(update, state)
        byhand = jg.ErrorFeedback(CWMP(k=300, cost=now))
        wanted, expected = byhand(update, byhand.init(LAYOUT)._replace(residual=expected.residual))
        assert torch.equal(sent.indices, wanted.indices)
        assert torch.equal(state.residual, expected.residual)
        now = cost.after(sent, LAYOUT)
        saved = jg.load_state_dict(op.init(LAYOUT), jg.state_dict(state))
        again, _ = op(update, saved)
        assert torch.equal(again.indices, op(update, state)[0].indices), "a state that was saved goes on as it was"
    assert now.density["fc.weight"] > 10 * now.density["conv"]
    first, _ = Repriced(CWMP(k=300, cost=cost))(updates[0], Repriced(CWMP(k=300, cost=cost)).init(LAYOUT))
    plain, _ = CWMP(k=300, cost=cost)(updates[0], CWMP(k=300, cost=cost).init(LAYOUT))
    assert torch.equal(first.indices, plain.indices)


def test_what_cannot_be_repriced():
    for inner, said in (
        (TopK(k=3), "a rule whose cost depends on densities"),
        (CWMP(k=3, cost=LayerType()), r"as Device\(…\) does; got LayerType"),
        (jg.ErrorFeedback(TopK(k=3)), "Repriced goes around a selection rule"),
    ):
        with pytest.raises(ValueError, match=said):
            Repriced(inner)


# --- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"device": "rpi44"}, "device 'rpi44' is not known; did you mean 'rpi4'?"),
        ({"device": "wifi-n"}, "device 'wifi-n' is a link"),
        ({"link": "wifi"}, "link 'wifi' is not known"),
        ({"server": "sever-gpu"}, "did you mean 'server-gpu'?"),
        ({"density": 0}, "density must be in (0, 1], got 0"),
        ({"density": 1.5}, "density must be in (0, 1], got 1.5"),
        ({"density": "0.1"}, "density must be in (0, 1], got '0.1'"),
        ({"density": {"fc.*": 2.0}}, "density of 'fc.*' must be in (0, 1], got 2.0"),
        ({"value_bits": 3}, "value_bits must be 32, 16, 8, 4, 2 or 1, got 3"),
        ({"index_bits": -1}, "index_bits must be a number ≥ 0"),
        ({"up_bits_per_second": 0}, "up_bits_per_second must be a number > 0, or None, got 0"),
        ({"boundary": "sistem"}, "boundary must be 'device' or 'system', got 'sistem'"),
        ({"receivers": 1.5}, "receivers must be a whole number ≥ 0, got 1.5"),
    ],
)
def test_mistakes(arguments, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Device(**{"device": "rpi4", "link": "wifi-rpi4", **arguments})


def test_what_the_layout_does_not_have():
    with pytest.raises(ValueError, match=r"every parameter needs one density; 'conv' matches no pattern"):
        Device("rpi4", None, density={"fc.*": 0.1}).joules(LAYOUT)
    both = {"conv": 0.1, "fc.*": 0.1, "*.weight": 0.1}
    with pytest.raises(ValueError, match=r"'fc.weight' matches \['fc.\*', '\*.weight'\]"):
        Device("rpi4", None, density=both).joules(LAYOUT)
    with pytest.raises(ValueError, match="the update has 3 entries, the layout 2010"):
        Device("rpi4", None).fitted(torch.ones(3), LAYOUT)
    alone = replace(profiles.link("ble"), network_up_nj_per_bit=None)
    with pytest.raises(ValueError, match=r"'system' counts the network's joules, and link 'ble' has no network_up"):
        Device("rpi4", alone, boundary="system")


# --- a value, and a text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cost",
    [
        Device("phone", "wifi-ac"),
        Device("phone", None, density={"conv": 0.1, "fc.*": 0.2}, warm=True),
        Device("esp32", "wifi-esp32", value_bits=1, boundary="system", receivers=3, up_bits_per_second=1e6),
        Device(profiles.device("rpi4"), profiles.link("ble")),
    ],
)
def test_it_is_a_value_and_can_be_written(cost):
    same = notation.read(notation.write(cost), OPERATORS)
    assert same == cost == pickle.loads(pickle.dumps(cost))
    assert hash(same) == hash(cost)
    experiment = Experiment(cost=cost, compress=CWMP(density=0.1, cost=cost))
    assert Experiment.of(experiment.to_dict()) == experiment


def test_a_users_own_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(profiles.to_toml(profiles.device("rpi4")))
    mine, theirs = Device(file, "ble"), Device("rpi4", "ble")
    assert torch.equal(mine.joules(LAYOUT), theirs.joules(LAYOUT))
    assert mine.device == str(file), "a path is kept as text"
    assert Prices.of(mine, LAYOUT).piecewise


def test_the_breakdown_prints():
    text = str(Device("rpi4", "wifi-rpi4", boundary="system").explain(LAYOUT))
    assert text.splitlines()[0] == "joules per entry on rpi4, wifi-rpi4 at 23 Mbit/s, boundary system"
    for words in ("fc.weight", "bits/index", "network nJ", "server nJ", "total nJ", "1.00 %"):
        assert words in text
    assert len({len(line) for line in text.splitlines()[1:]}) == 1
    assert "no link" in str(Device("rpi4", None).explain(LAYOUT))
