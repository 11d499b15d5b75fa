"""The fit, in worlds whose costs are known; what it refuses; the real work, with a meter that stands for a real one."""

from __future__ import annotations

import json
import math
import socket
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from joulegrad import profiles
from joulegrad.cli import app
from joulegrad.energy import Ledger, Meter, NoMeter, measuring
from joulegrad.lab import calibrate as calibration
from joulegrad.lab import workloads
from joulegrad.lab.calibrate import Calibration, calibrate
from joulegrad.lab.regression import Unresolved, Window, fit, shortest
from joulegrad.lab.traffic import Traffic
from joulegrad.lab.workloads import AWAKE, CACHE, CONVOLVED, FLOP, MEMORY, REST, SENT, Machine, Workload

TRUE = {REST: 70.0, AWAKE: 55.0, FLOP: 8e-12, CONVOLVED: 16e-12, CACHE: 1.2e-12, MEMORY: 6e-12}  # as a GPU may have
RATES = {  # of each kind of work, a second
    "rest": {},
    "awake": {},
    "memory": {MEMORY: 3.2e13, FLOP: 5e11},
    "product": {FLOP: 5e13, CACHE: 6e11},
    "convolution": {CONVOLVED: 2e13, CACHE: 1.5e12, MEMORY: 1.5e12},
    "cache": {CACHE: 4e13, FLOP: 6e11},
    "mixture": {FLOP: 2.5e13, MEMORY: 1.6e13, CACHE: 3e11},
    "selection": {MEMORY: 2e13, CACHE: 1e12},
    "training step": {CONVOLVED: 2e13, FLOP: 1e11, MEMORY: 8e12, CACHE: 8e12},
}
FITTED = ("awake", "memory", "product", "convolution", "cache", "mixture")


def window(name, seconds=5.0, noise=0.0, moves=0.0, generator=None, costs=TRUE):
    amounts = {what: seconds * rate for what, rate in RATES[name].items()} | {REST: seconds}
    if name != "rest":
        amounts[AWAKE] = seconds
    joules = sum(costs[what] * amount for what, amount in amounts.items())
    if generator is not None:
        joules *= 1 + noise * generator.normal()
        joules += joules / seconds * moves * (generator.uniform(-0.5, 0.5) + generator.uniform(-0.5, 0.5))
    return Window(name, seconds, joules, amounts, moves)


def world(repeats=3, names=("rest", *FITTED), **how):
    return [window(name, **how) for _ in range(repeats) for name in names]


# --- the fit ------------------------------------------------------------------------------------------------------


def test_known_costs_are_found_exactly_without_noise():
    found = fit(world(repeats=1))
    assert {name: c.joules for name, c in found.coefficients.items()} == pytest.approx(TRUE, rel=1e-9)
    assert max(abs(residual) for _, residual in found.residuals) < 1e-9
    assert found.misfit == 1.0


@pytest.mark.parametrize("moves", [0.001, 0.1])
def test_known_costs_are_found_through_noise_and_the_interval_holds_them(moves):
    """Of 40 worlds × 6 costs, at least 85 % lie in their interval of 95 %: the spread is itself estimated from few."""
    inside = close = 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        found = fit(world(noise=0.01, moves=moves, generator=generator), seed=seed)
        for name, c in found.coefficients.items():
            assert c.joules is not None, (seed, name, c.why)
            inside += c.low <= TRUE[name] <= c.high
            close += abs(c.joules / TRUE[name] - 1) < 0.15
    assert inside >= 0.85 * 240
    assert close >= 0.95 * 240


def test_what_was_not_fitted_is_foretold_within_its_error():
    generator = np.random.default_rng(1)
    found = fit(world(noise=0.005, moves=0.1, generator=generator))
    for name in ("selection", "training step"):
        told = found.predict(window(name, moves=0.1))
        assert told.low <= told.predicted <= told.high
        assert abs(told.error) < 0.03
        assert told.measured_error > 0
    with pytest.raises(Unresolved, match="sending has sent bits, for which nothing was fitted"):
        found.predict(Window("sending", 5.0, 1.0, {SENT: 1e9}))


def test_a_flop_in_a_convolution_has_a_price_of_its_own():
    """Where nothing was convolved, nothing is said of training: at a product's price it would be far too cheap."""
    step = window("training step")
    assert fit(world(repeats=1)).predict(step).error == pytest.approx(0, abs=1e-9)
    products = fit(world(repeats=1, names=[name for name in ("rest", *FITTED) if name != "convolution"]))
    with pytest.raises(Unresolved, match="training step has convolution FLOP, for which nothing was fitted"):
        products.predict(step)
    amounts = step.amounts | {FLOP: step.amounts[FLOP] + step.amounts[CONVOLVED], CONVOLVED: 0.0}
    assert products.predict(step._replace(amounts=amounts)).error < -0.25


def test_a_world_that_does_not_add_up_is_given_wider_errors():
    """The mixture takes a fifth more than its parts."""
    generator = np.random.default_rng(2)
    windows = world(noise=0.002, generator=generator)
    good = fit(windows)
    bad = fit([w._replace(joules=1.2 * w.joules) if w.name == "mixture" else w for w in windows])
    assert good.misfit < 3 < 10 < bad.misfit

    def width(c):
        return (c.high - c.low) / c.joules

    assert width(bad.coefficients[FLOP]) > 3 * width(good.coefficients[FLOP])


def test_costs_are_never_negative():
    windows = world(repeats=1)
    windows = [w._replace(joules=0.8 * w.joules) if w.name == "cache" else w for w in windows]
    assert all(c.joules is None or c.joules > 0 for c in fit(windows).coefficients.values())


def test_a_cost_below_the_noise_is_refused_and_bounded():
    generator = np.random.default_rng(3)
    windows = world(noise=0.02, generator=generator, costs=TRUE | {CACHE: 1e-15})
    found = fit(windows).coefficients
    assert found[CACHE].joules is None
    assert "below what the meter can tell" in found[CACHE].why
    assert 1e-15 < found[CACHE].high < TRUE[CACHE]
    assert found[MEMORY].joules == pytest.approx(TRUE[MEMORY], rel=0.1)


def test_what_was_never_done_apart_is_refused():
    both = [w for w in world() if w.name in ("rest", "awake", "product")]
    with pytest.raises(Unresolved, match=r"(FLOP and cache bits|cache bits and FLOP) go together"):
        fit(both)
    with pytest.raises(Unresolved, match="2 windows cannot tell 3 costs apart: rest s, awake s, memory bits"):
        fit([window("rest"), window("memory")._replace(amounts={REST: 5.0, AWAKE: 5.0, MEMORY: 1e12})])
    with pytest.raises(Unresolved, match="no window"):
        fit([])


def test_short_windows_are_less_sure():
    def width(seconds):
        c = fit(world(seconds=seconds, moves=0.1)).coefficients[MEMORY]
        return c.high - c.low

    assert width(2.0) > 2 * width(10.0)
    assert shortest(0.1) == 2.0


# --- a world with a meter -----------------------------------------------------------------------------------------


class World:
    """Work that takes a millisecond of the world's own time, and a meter that sees it."""

    def __init__(self, monkeypatch, costs=TRUE):
        self.costs, self.done, self.now = costs, dict.fromkeys(costs, 0.0), 0.0
        clock = SimpleNamespace(perf_counter=lambda: self.now, monotonic=lambda: self.now)
        monkeypatch.setattr(calibration, "time", clock)
        monkeypatch.setattr(measuring, "time", clock)

    def made(self, name):
        def make(machine):
            amounts = {what: 1e-3 * rate for what, rate in RATES[name].items()}

            def step():
                self.now += 1e-3
                for what, amount in amounts.items():
                    self.done[what] += amount
                self.done[AWAKE] += 1e-3 * (name != "rest")

            return Workload(name, step, amounts, awake=name != "rest")

        make.__name__ = name
        return make

    def read(self):
        self.done[REST] = self.now
        return {"it": sum(self.costs[what] * amount for what, amount in self.done.items())}

    @property
    def meter(self):
        return Meter("fake", self.read, moves=0.0)


def calibrated(monkeypatch, given, meter=None, **how):
    machine = Machine("cpu", "float32", 16e6, 64.0)
    found = Calibration(machine, "a world", 1e9, "fake")
    how = {"seconds": 0.5, "repeats": 2, "held_out": [given.made("selection"), given.made("training step")]} | how
    monkeypatch.setattr(workloads, "rest", given.made("rest"))
    calibrate(found, meter or given.meter, fitted=[given.made(name) for name in FITTED], **how)
    return found


def test_a_world_is_calibrated_and_its_profile_is_read_like_any_other(monkeypatch, tmp_path):
    given, seen, kept = World(monkeypatch), [], []
    found = calibrated(monkeypatch, given, seen=seen.append, kept=lambda: kept.append(1))
    assert [w.name for w in seen[:4]] == ["rest", "awake", "memory", "product"]
    assert len(seen) == len(kept) == 1 + 2 * 8
    assert {name: c.joules for name, c in found.fit.coefficients.items()} == pytest.approx(TRUE, rel=1e-6)
    assert [p.name for p in found.predictions()] == 2 * ["selection", "training step"]
    assert all(abs(p.error) < 1e-6 for p in found.predictions())
    made = calibration.profile(found, profiles.device("server-gpu"), "mine")
    (tmp_path / "mine.toml").write_text(profiles.to_toml(made))
    read = profiles.device(tmp_path / "mine.toml")
    assert read.idle_watts.value == pytest.approx(70, rel=1e-6)
    assert read.dram_pj_per_bit.value == pytest.approx(6.0, rel=1e-6)
    assert read.train_flops_per_second.value == pytest.approx(2.01e13, rel=1e-6)  # of products and of convolutions
    grades = {name: q.grade for name, q in profiles.figures(read).items()}
    assert grades.pop("line_bytes") == profiles.device("server-gpu").line_bytes.grade
    assert set(grades.values()) == {"measured"}
    for q in profiles.figures(read).values():
        assert q.low <= q.value <= q.high
    assert Ledger(device=str(tmp_path / "mine.toml")).train(flop=1e12).joules > 0
    told = calibration.report(found)
    json.dumps(told, allow_nan=False)
    assert told["header"]["device"] == "a world"
    assert told["coefficients"][MEMORY]["unit"] == "pJ/bit"
    assert {w["use"] for w in told["windows"]} == {"fitted", "held out"}
    assert len(told["predictions"]) == 4


def test_what_is_not_resolved_stays_as_in_the_other_profile(monkeypatch):
    found = calibrated(monkeypatch, World(monkeypatch, TRUE | {CACHE: 0.0, MEMORY: 0.0}))
    other = profiles.device("server-gpu")
    made = calibration.profile(found, other, "mine")
    assert made.sram_pj_per_bit == other.sram_pj_per_bit
    assert made.dram_pj_per_bit == other.dram_pj_per_bit
    assert made.idle_watts.grade == "measured"


def test_a_meter_that_tells_no_work_from_rest_gives_no_profile(monkeypatch):
    found = calibrated(monkeypatch, World(monkeypatch, dict.fromkeys(TRUE, 0.0) | {REST: 70.0}))
    assert (found.fit, found.why) == (None, "the meter tells no work from rest")


def test_windows_too_short_for_the_meter_are_refused_before_anything_is_done(monkeypatch):
    meter = Meter("nvml", lambda: pytest.fail("it was read"), moves=0.1)
    with pytest.raises(ValueError, match=r"windows of 1 s are too short for nvml, .* every 0.1 s: at least 2 s"):
        calibrated(monkeypatch, World(monkeypatch), meter=meter, seconds=1.0)


def test_a_meter_that_vanishes_ends_it_and_what_was_measured_is_kept(monkeypatch):
    given, kept = World(monkeypatch), []

    def read():
        if len(kept) == 6:
            raise OSError("gone")
        return given.read()

    with pytest.raises(NoMeter, match="fake: gone"):
        calibrated(monkeypatch, given, meter=Meter("fake", read, moves=0.0), kept=lambda: kept.append(1))
    assert len(kept) == 6


def test_one_kind_of_work_that_fails_does_not_cost_the_others(monkeypatch):
    given = World(monkeypatch)

    def broken(machine):
        raise RuntimeError("out of memory")

    found = calibrated(monkeypatch, given, held_out=[broken, given.made("selection")])
    assert found.failed == {"broken": "RuntimeError: out of memory"}
    assert [p.name for p in found.predictions()] == ["selection", "selection"]


def test_a_limit_begins_no_window_that_would_end_after_it(monkeypatch):
    found = calibrated(monkeypatch, World(monkeypatch), repeats=1000, limit=20.0)
    assert len(found.windows) + len(found.tests) == 19  # of half a second, and as much before each
    found = calibrated(monkeypatch, World(monkeypatch), limit=0.0)
    assert (found.windows, found.fit) == ([], None)
    with pytest.raises(Unresolved, match="not all that is to be fitted"):
        calibration.profile(found, profiles.device("rpi5"), "x")


# --- the real work ------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_real_work_runs_and_says_what_it_does(one_thread):
    machine = Machine("cpu", "float32", 4e6, 64.0)
    made = {make.__name__: make(machine) for make in (*workloads.fitted(), *workloads.held_out())}
    for work in made.values():
        work.step()
        assert all(amount > 0 for amount in work.amounts.values()), work
    assert made["product"].amounts == {FLOP: 2 * 1024**3, MEMORY: 3 * 32 * 1024**2}
    assert made["cache"].amounts[CACHE] == 20 * 2 * 8 * 1e6
    d, k = 11_173_962, 111_739
    assert made["selection"].amounts == {MEMORY: 2 * 32 * d + k * 96}
    lines = d / 16 * (1 - 0.99**16)
    assert made["scatter"].amounts[MEMORY] == pytest.approx(8 * (2 * 64 * lines + 12 * k))
    forward = 2 * 555.4e6  # a batch of 8, and backward twice that but for the first layer's input
    assert made["training"].amounts[CONVOLVED] == pytest.approx(8 * 3 * forward, rel=0.01)
    assert made["training"].amounts[FLOP] == 3 * 2 * 8 * 512 * 10  # the last layer
    same, halving = 2 * 9 * 64**2 * 56**2, 9 * 64**2 * 56**2  # each of 8 and of 3
    # three products each, there and back, but for the gradient of the first one's input
    assert made["convolution"].amounts[CONVOLVED] == 2 * (3 * (8 * same + 3 * halving) - same)
    assert made["classifier"].amounts[FLOP] == pytest.approx(8 * 6 * 18_911_232, rel=0.01)
    assert made["mixture"].amounts[FLOP] > made["product"].amounts[FLOP]
    big = Machine("cpu", "float32", 1e9, 64.0)
    assert set(workloads.product(big).amounts) == {FLOP, CACHE}


class SaysItIsAGpu(str):
    """A device that takes the GPU's branches, with tensors that lie on the CPU."""

    def __eq__(self, other):
        return other == "cuda"

    def __hash__(self):
        return hash("cuda")


def test_the_gpus_branches_are_sound_even_where_there_is_none(one_thread, monkeypatch):
    monkeypatch.setitem(workloads.SIDE, "cuda", 64)
    monkeypatch.setitem(workloads.BATCH, "cuda", 2)
    monkeypatch.setattr(torch, "autocast", lambda *arguments: nullcontext())  # it asks for the GPU itself
    machine = Machine(SaysItIsAGpu("cpu"), "bfloat16", 4e6, 32.0)
    for make in (*workloads.fitted(), *workloads.held_out()):
        work = make(machine)
        work.step()
        assert all(amount > 0 for amount in work.amounts.values()), work


def test_sending_counts_what_was_sent():
    server = socket.create_server(("127.0.0.1", 0))
    swallowed = []

    def swallow():
        line, _ = server.accept()
        with line:
            while block := line.recv(1 << 16):
                swallowed.append(len(block))

    thread = threading.Thread(target=swallow, daemon=True)
    thread.start()
    work = workloads.sending(f"127.0.0.1:{server.getsockname()[1]}")(Machine("cpu", "float32", 1e6, 64.0))
    for _ in range(3):
        work.step()
    assert work.amounts == {SENT: 8 * 65536}
    assert not work.awake
    assert workloads.sending("here:1").__name__ == "sending"
    work.step.__closure__[1].cell_contents.close()
    thread.join(10)
    server.close()
    assert sum(swallowed) == 3 * 65536


@pytest.mark.parametrize("address", ["here", "host:", ":9000", "host:http"])
def test_addresses_that_are_none(address):
    with pytest.raises(ValueError, match="expected host:port"):
        workloads.sending(address)


# --- traffic ------------------------------------------------------------------------------------------------------


def counted(work, cache_bytes):
    with Traffic(cache_bytes) as traffic:
        work()
    return traffic.memory_bits / 32, traffic.cache_bits / 32  # entries of float32


def test_traffic_by_hand():
    a, b = torch.zeros(100), torch.zeros(100)
    assert counted(lambda: a + b, 1e6) == (200, 100)  # both are read from memory, the sum is made in the cache
    assert counted(lambda: a + b, 10) == (300, 0)  # nothing fits
    assert counted(lambda: a.add_(1.0), 1e6) == (100, 100)
    assert counted(lambda: a.view(10, 10).t()[2:], 1e6) == (0, 0)  # looking moves nothing
    assert counted(lambda: (a.add_(1.0), a.add_(1.0)), 1e6) == (100, 300)
    assert counted(lambda: torch._foreach_add_([a, b], 1.0), 1e6) == (200, 200)
    assert counted(lambda: torch.add(a, 1.0, out=b), 1e6) == (200, 100)


def test_a_cache_forgets_what_was_used_longest_ago_and_writes_it_back():
    a, b, c = (torch.zeros(100) for _ in range(3))

    def work():
        a.add_(1.0)  # read 100, written in the cache
        b.sum()  # read 100: full
        c.sum()  # read 100: a goes, and is written back
        b.sum()  # still there
        a.sum()  # read 100 again

    memory, cache = counted(work, 2 * 400 + 16)
    assert memory == pytest.approx(500, abs=4)
    assert cache == pytest.approx(200, abs=8)


# --- the command --------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def world_of_the_command(monkeypatch):
    given = World(monkeypatch)
    monkeypatch.setattr(calibration, "meter_of", lambda device, source: given.meter)
    monkeypatch.setattr(workloads, "rest", given.made("rest"))
    monkeypatch.setattr(workloads, "fitted", lambda: [given.made(name) for name in FITTED])
    monkeypatch.setattr(workloads, "held_out", lambda: [given.made("selection"), given.made("training step")])
    return given


def test_the_command_writes_a_profile_and_a_report(world_of_the_command, tmp_path):
    result = run("-o", tmp_path / "new" / "mine.toml", "--seconds", 0.05, "--like", "rpi4")
    assert result.exit_code == 0, result.output
    for words in ("measured by fake", "rest: ", "what costs", "pJ/FLOP", "not fitted on", "training step", "mine.json",
                  "not measured, and as in rpi4: line_bytes"):  # fmt: skip
        assert words in result.output
    assert profiles.device(tmp_path / "new" / "mine.toml").line_bytes == profiles.device("rpi4").line_bytes
    assert json.loads((tmp_path / "new" / "mine.json").read_text())["header"]["meter"] == "fake"


def test_the_command_without_a_fit_says_why_and_keeps_the_windows(world_of_the_command, tmp_path, monkeypatch):
    given = world_of_the_command
    monkeypatch.setattr(workloads, "fitted", lambda: [given.made("product")])
    result = run("-o", tmp_path / "mine.toml", "--seconds", 0.05)
    assert result.exit_code == 1
    assert "no fit: " in result.output
    assert "go together" in result.output
    assert not (tmp_path / "mine.toml").exists()
    assert len(json.loads((tmp_path / "mine.json").read_text())["windows"]) == 10


def test_the_command_whose_meter_fails_on_the_way(world_of_the_command, tmp_path, monkeypatch):
    given, readings = world_of_the_command, iter(range(9))

    def read():
        if next(readings, None) is None:
            raise PermissionError(13, "Permission denied", "/sys/energy_uj")
        return given.read()

    monkeypatch.setattr(calibration, "meter_of", lambda device, source: Meter("fake", read, moves=0.0))
    result = run("-o", tmp_path / "mine.toml", "--seconds", 0.05)
    assert result.exit_code == 4
    assert "not measured: fake: /sys/energy_uj may not be read any more" in result.output
    assert len(json.loads((tmp_path / "mine.json").read_text())["windows"]) == 4


def test_the_command_without_a_meter(tmp_path, monkeypatch):
    def none():
        raise NoMeter("rapl: most virtual machines hide it")

    for name in ("nvml", "rapl", "ina3221", "pi_pmic"):
        monkeypatch.setattr(calibration.meters, name, none)
    for device in ("cpu", "cuda"):
        result = run("-o", tmp_path / "mine.toml", "--device", device)
        assert result.exit_code == 4, result.output
        assert "not measured: rapl: most virtual machines hide it" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "gpu"], "device must be 'cpu' or 'cuda', got 'gpu'"),
        (["--precision", "fp8"], "precision 'fp8' is none of float32, tf32, bfloat16"),
        (["--meter", "watts"], "meter 'watts' is none of nvml, rapl, ina3221, pi-pmic"),
        (["--like", "rpi44"], "did you mean 'rpi4'?"),
        (["--repeats", "0"], "--repeats"),
    ],
)
def test_mistakes_in_the_commands_arguments(tmp_path, arguments, said):
    result = run("-o", tmp_path / "mine.toml", *arguments)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_other_mistakes(tmp_path, world_of_the_command):
    result = run("-o", tmp_path / "mine.json")
    assert (result.exit_code, "a profile is a .toml file" in result.output) == (2, True)
    result = run("-o", tmp_path / "mine.toml", "--send", "nowhere")
    assert (result.exit_code, "expected host:port" in result.output) == (2, True)
    (tmp_path / "file").touch()
    result = run("-o", tmp_path / "file" / "mine.toml")
    assert (result.exit_code, "exists" in result.output or "Not a directory" in result.output) == (1, True)


def test_the_right_meter_is_asked(monkeypatch):
    asked = []

    def meter(name):
        def make():
            asked.append(name)
            raise NoMeter(name)

        return make

    for name, attribute in (("nvml", "nvml"), ("rapl", "rapl"), ("ina3221", "ina3221"), ("pi-pmic", "pi_pmic")):
        monkeypatch.setattr(calibration.meters, attribute, meter(name))
    for device, source in (("cuda", None), ("cpu", None), ("cpu", "nvml")):
        with pytest.raises(NoMeter):
            calibration.meter_of(device, source)
    assert asked == ["nvml", "ina3221", "rapl", "ina3221", "pi-pmic", "nvml"]


def test_this_machine_knows_itself():
    machine, name, ram = calibration.machine_of("cpu", "float32", profiles.device("rpi5"))
    assert 2**10 < machine.cache_bytes < ram
    assert machine.line_bytes in (32, 64, 128)
    assert name
    assert math.log2(ram) > 28
