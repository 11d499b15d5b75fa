"""The plan: its figures worked out again, its ends, its break-even points, what it says, and what it writes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from joulegrad import Layout, profiles
from joulegrad.lab import plan as planning
from joulegrad.lab import verdict
from joulegrad.lab.experiment import DENSE, Experiment
from joulegrad.lab.models import build
from joulegrad.lab.plan import Plan, Setting
from joulegrad.lab.rehearsal import rehearse
from joulegrad.profiles import Quantity
from joulegrad.sizes import payload_bytes

ROOT = Path(__file__).parent.parent


def plan(model: str = "mlp", shape=(1, 8, 8), **setting) -> Plan:
    torch.manual_seed(0)
    net = build(model, shape, 10)
    layout = Layout.of(net)
    setting = {"device": "rpi4", "link": "wifi-rpi4", **setting}
    return Plan(Setting(**setting), layout, rehearse(net, layout, shape, 10))


def fixed(value: float, unit: str) -> Quantity:
    return Quantity(value, unit, "of this test", "assumed", value, value)


# --- operations -----------------------------------------------------------------------------------------------------


def macs(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-adds of convolutions and linear layers, counted by hooks."""
    total = 0

    def count(module, inputs, output):
        nonlocal total
        if isinstance(module, nn.Conv2d):
            each = module.in_channels // module.groups * module.kernel_size[0] * module.kernel_size[1]
            total += output[0].numel() * each
        else:
            total += output[0].numel() * module.in_features

    hooks = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        net.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return total


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2", "vgg11", "cnn"])
def test_operations_are_those_of_the_layers(model):
    net = build(model, (3, 32, 32), 10)
    found = rehearse(net, Layout.of(net), (3, 32, 32), 10)
    assert found.flops == pytest.approx(6 * macs(net, (3, 32, 32)), rel=1e-6)  # 2 a multiply-add; forward, twice back
    if model == "resnet18":
        assert found.flops == pytest.approx(6 * 555.4e6, rel=1e-3)


def test_a_rehearsal_leaves_no_trace():
    net = build("mobilenet_v2", (3, 32, 32), 10)
    layout = Layout.of(net)
    before, torch_state = layout.values(net), torch.random.get_rng_state()
    one, two = (rehearse(net, layout, (3, 32, 32), 10) for _ in range(2))
    assert torch.equal(layout.values(net), before)
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(one.update, two.update)


def test_a_model_that_cannot_take_noise_says_so():
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 10))
    with pytest.raises(
        ValueError, match=r"Sequential cannot be tried on a batch of noise of shape \(4, 2\) with 10 cl"
    ):
        rehearse(net, Layout.of(net), (2,), 10)


# --- joules, worked out again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", ["device", "system"])
def test_phases_by_hand(boundary):
    found = plan(device="phone", link="lte-2012", samples=300, epochs=2, up_bits_per_second=3e6, boundary=boundary)
    n, flops = 79_754, found.rehearsal.flops
    assert found.layout.size == n
    reading = 4 * n / 20e9
    frames = 1 + 46 / 1460
    for way in found.ways:
        joules = {phase: each.value for phase, each in way.phases.items()}
        assert joules["train"] == pytest.approx(3.7 * flops * 600 / 20e9)
        assert joules["downlink"] == pytest.approx(8 * 4 * n * frames * (51.97e-9 + 1.28804 / 13e6))
        assert joules["uplink"] == pytest.approx(8 * way.bytes * frames * (438.39e-9 + 1.28804 / 3e6))
        assert way.seconds == pytest.approx(8 * way.bytes * frames / 3e6)
        assert (joules["promotion"], joules["tail"]) == (2 * 0.31, 2 * 12.3)
        rho = way.density
        select = {"dense": 0, "1-bit CWMP": 10.5 + 90 * rho}.get(way.name, 5)
        assert joules["select"] == pytest.approx(3.7 * select * reading)
        assert joules["encode"] == pytest.approx(3.7 * (2 if way.name == "dense" else 100 * rho) * reading)
        if boundary == "system":
            bits = 8 * frames
            assert joules["network"] == pytest.approx(bits * (way.bytes * 12.4e-6 + 4 * n * 82.82e-6))
            assert 0 < joules["aggregate"] < 1e-3
        else:
            assert not {"network", "aggregate"} & set(joules)
        assert way.joules.value == pytest.approx(sum(joules.values()))


def test_bytes_are_the_codecs():
    found = plan()
    dense, *others = found.ways
    assert dense.bytes == 28 + len(found.layout.segments) + 4 * found.layout.size
    for way in others:
        bits = 1 if way.name == "1-bit CWMP" else 32
        even = payload_bytes(found.layout, [way.density * s.size for s in found.layout.segments], bits)
        k = int(way.density * found.layout.size)
        assert k * bits / 8 < way.bytes < 1.1 * even + 8, "an even spread has the costliest indices"


def test_the_worked_round_of_resnet_18():
    """500 images, a Raspberry Pi 4 and its WiFi: 1070 J of training, 15.4 J to send all, 0.19 J to send 1 %."""
    found = plan("resnet18", (3, 32, 32))
    joules = {phase: each.value for phase, each in found.dense.phases.items()}
    frames = 1 + 76 / 1460
    assert joules["train"] == pytest.approx(1070, rel=0.01)
    assert joules["uplink"] / frames == pytest.approx(15.4, rel=0.02)
    sparse = next(way for way in found.ways if way.name == "Top-K" and way.density == 0.01)
    assert sparse.phases["uplink"].value / frames == pytest.approx(0.19, rel=0.06)


def test_readings_are_what_was_measured():
    """The factors of selecting and encoding, against benchmarks/results: within the slack that the range allows."""
    rows = json.loads((ROOT / "benchmarks/results/select.json").read_text())["rows"]
    seconds = {(r["case"]["input"], r["case"]["density"], r["method"]): r["seconds"] for r in rows}
    for density in (0.01, 0.1):
        reading = seconds["update", density, "one reading"]
        feedback = seconds["client step", density, "ErrorFeedback(Quantized(CWMP)), 1 bit"] / reading
        for name, took in (("CWMP", seconds["update", density, "CWMP"] / reading), ("1-bit CWMP", feedback)):
            ratio = planning._readings(name, density)[0] / took
            assert 1 / planning.SLACK <= ratio <= planning.SLACK, (name, density, ratio)


# --- ends -----------------------------------------------------------------------------------------------------------


def test_ranges_are_those_of_the_profiles_at_their_ends():
    found = plan(link="lte-2012")
    rpi4, lte = profiles.device("rpi4"), profiles.link("lte-2012")
    ends = {end: plan(device=profiles.extreme(rpi4, end), link=profiles.extreme(lte, end)) for end in ("low", "high")}
    for i, way in enumerate(found.ways):
        assert way.joules.low < way.joules.value < way.joules.high
        for phase in ("train", "uplink", "downlink", "tail"):
            if phase in way.phases:
                assert way.phases[phase].low == pytest.approx(ends["low"].ways[i].phases[phase].value, rel=0.02)
                assert way.phases[phase].high == pytest.approx(ends["high"].ways[i].phases[phase].value, rel=0.02)


def test_a_speed_that_is_asked_for_has_no_range():
    found = plan(link="lte-2012", up_bits_per_second=2e6)
    up = found.dense.phases["uplink"]
    assert up.high / up.low < 1.5, "what is left is the range of the radio's watts"


@pytest.mark.parametrize("link", ["wifi-rpi4", "lte-2012", "lora-sf7", "ethernet"])
def test_no_way_saves_more_than_what_can_be_touched(link):
    found = plan(link=link)
    share = found.touchable
    assert 0 < share.low <= share.value <= share.high < 1
    for way in found.ways:
        assert found.saving(way) < share.value


# --- break-even points ----------------------------------------------------------------------------------------------


def test_at_the_break_even_speed_nothing_is_saved():
    found = plan(link="wifi-rpi4")
    for way in found.ways[1:]:
        speed = found.break_even_speed(way)
        there = plan(link="wifi-rpi4", up_bits_per_second=speed)
        same = next(w for w in there.ways if (w.name, w.density) == (way.name, way.density))
        assert there.saving(same) == pytest.approx(0, abs=1e-4), "what is chosen shifts a little with the speed"
        faster = plan(link="wifi-rpi4", up_bits_per_second=1.2 * speed)
        assert faster.saving(next(w for w in faster.ways if (w.name, w.density) == (way.name, way.density))) < 0


def test_where_sending_is_a_tenth_of_the_round():
    found = plan("resnet18", (3, 32, 32), densities=(0.01,))
    there = plan("resnet18", (3, 32, 32), densities=(0.01,), up_bits_per_second=found.speed_where_uplink_is(0.1))
    assert there.touchable.value == pytest.approx(0.1)


def test_at_the_break_even_density_nothing_is_saved():
    found = plan(device="esp32", link="wifi-esp32")
    at = found.break_even_density("Top-K")
    assert 0.1 < at < 1
    counts = [at * s.size for s in found.layout.segments]
    way = found._way("Top-K", at, DENSE, counts, 32)
    assert way.joules.value == pytest.approx(found.dense.joules.value, rel=1e-6)
    free = replace(profiles.link("ethernet"), up_nj_per_bit=fixed(1e-6, "nJ/bit"))
    assert plan(link=free).break_even_density("Top-K") == 0.0, "bits that cost nothing are not worth selecting"


def test_a_link_whose_bits_cost_the_same_at_any_speed():
    found = plan(link="lte-2021")
    assert found.break_even_speed(found.ways[-1]) == math.inf
    assert plan("resnet18", (3, 32, 32), link="ethernet").speed_where_uplink_is(0.9) is None


# --- what it comes to -----------------------------------------------------------------------------------------------


def test_where_compression_cannot_help_it_says_so():
    found = plan("resnet18", (3, 32, 32))
    assert found.best is found.dense
    said = verdict.sentences(found)
    assert said[0].startswith("Training is 97.7 % of this round; compressing the uplink saves at most 1.5 %")
    assert said[1].startswith("Compression does not pay in joules here: at best it saves 1.5 % of a round.")
    assert 'compress = "dense"' in verdict.toml(found, "resnet18", "cifar10", "joulegrad plan resnet18")


def test_where_selecting_costs_more_than_it_saves_it_says_so():
    found = plan("logistic", (3, 32, 32), link="ethernet", samples=5, densities=(0.5,))
    assert found.best is found.dense
    assert max(found.saving(way) for way in found.ways[1:]) < 0
    said = " ".join(verdict.sentences(found))
    assert "Top-K at 50 % comes closest and costs" in said or "CWMP at 50 % comes closest and costs" in said
    assert "selecting and encoding take more than fewer bytes save" in said
    assert "1-bit CWMP at 50 % sends in" in said


def test_where_it_helps_it_recommends_the_densest_that_does():
    found = plan("mlp", link="lora-sf7", device="nrf52840", samples=50)
    assert found.best.name == "1-bit CWMP"
    assert found.best.density == 0.1
    most = max(found.saving(way) for way in found.ways)
    assert found.saving(found.best) >= 0.9 * most
    said = " ".join(verdict.sentences(found))
    assert "Recommended: 1-bit CWMP at 10 %" in said
    assert "nrf52840 has 0.262 MB. It cannot train this model as it is." in said


def test_what_weighs_on_the_way_down_is_said():
    said = " ".join(verdict.sentences(plan("vgg11", (3, 32, 32), link="lte-2021", boundary="system")))
    assert 'downlink = "delta" in the experiment' in said
    assert "downlink" not in " ".join(verdict.sentences(plan("resnet18", (3, 32, 32))))


def test_batteries():
    found = plan(joules=1000.0, rounds=50)
    for way in found.ways:
        low, value, high = found.rounds_on_battery(way)
        assert value == math.floor(1000 / way.joules.value)
        assert (low, high) == (math.floor(1000 / way.joules.high), math.floor(1000 / way.joules.low))
    assert any(sentence.startswith("1,000 J last ") for sentence in verdict.sentences(found))
    assert plan().rounds_on_battery(plan().dense) is None


@pytest.mark.parametrize(("link", "device"), [("wifi-rpi4", "rpi4"), ("lora-sf7", "nrf52840")])
def test_the_recommended_experiment_is_one(link, device, tmp_path):
    found = plan(link=link, device=device, rounds=3, epochs=2)
    text = verdict.toml(found, "mlp", "digits", "joulegrad plan mlp")
    (tmp_path / "it.toml").write_text(text)
    from joulegrad.lab.experiment import load

    experiment = Experiment.of(load(tmp_path / "it.toml"))
    assert experiment.compress == found.best.operator
    assert (experiment.rounds, experiment.local.epochs, experiment.model) == (3, 2, "mlp")


def test_figures_are_whole():
    text = json.dumps(verdict.figures(plan(joules=100.0)), allow_nan=False)
    found = json.loads(text)
    assert found["source"] == "modelled"
    assert len(found["ways"]) == 10
    assert found["ways"][0]["joules_in_all"]["value"] == pytest.approx(
        100 * found["ways"][0]["joules_a_round"]["value"]
    )


def test_a_picture(tmp_path):
    verdict.picture(plan(), tmp_path / "it.svg")
    text = (tmp_path / "it.svg").read_text()
    assert "<svg" in text


def test_mistakes():
    for setting, said in (
        ({"device": "rpi44"}, "did you mean 'rpi4'"),
        ({"boundary": "world"}, "boundary must be 'device' or 'system', got 'world'"),
        ({"densities": (0.1, 2.0)}, r"density must be in \(0, 1\], got 2.0"),
        ({"densities": (0.1, 0.1)}, "each once"),
        ({"joules": -1.0}, "positive number of joules"),
        ({"samples": 0}, "samples must be a whole number ≥ 1, got 0"),
        ({"up_bits_per_second": 0.0}, "up_bits_per_second must be a number > 0"),
    ):
        with pytest.raises(ValueError, match=said):
            Setting(**{"device": "rpi4", "link": "wifi-rpi4", **setting})
