"""Meters against recordings: files as Linux has them, the words of vcgencmd, a library that stands for the driver's."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from joulegrad.energy import Meter, NoMeter, Reading, measure, meters
from joulegrad.energy.measuring import Tally
from joulegrad.energy.nvml import Driver, NvmlError

RANGE = 262_143_328_850  # µJ: what an Intel server says


def counter(*joules, **options):
    """A meter that says these numbers, one after the other."""
    said = iter(joules)
    return Meter("fake", lambda: {"it": next(said)}, **{"moves": 0.0, **options})


def tallied(meter, *times):
    """What it has counted when read at these times."""
    clock = iter(times)
    tally = Tally(meter, lambda: next(clock))
    tally.begin()
    for _ in times[1:]:
        tally.sample()
    return tally


# --- a reading ----------------------------------------------------------------------------------------------------


def test_a_reading_is_the_difference_of_a_counter():
    with measure(counter(100.0, 112.5)) as reading:
        assert reading.joules is None
        assert str(reading) == "not measured: the window is still open"
    assert (reading.joules, reading.source, reading.by, reading.note) == (12.5, "fake", {"it": 12.5}, "")
    assert reading.watts == 12.5 / reading.seconds
    assert str(reading).startswith("12.5 J over ")
    assert str(reading).endswith(", measured by fake")


def test_several_meters_are_added_and_kept_apart():
    other = Meter("other", iter([{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 3.0}]).__next__, moves=0.0)
    with measure([counter(0.0, 5.0), other]) as reading:
        pass
    assert (reading.joules, reading.source, reading.by) == (8.0, "fake+other", {"it": 5.0, "a": 1.0, "b": 2.0})


def test_no_meter_is_not_measured_and_never_zero(monkeypatch):
    monkeypatch.setattr(meters, "found", lambda: ([], [NoMeter("rapl: hidden"), NoMeter("nvml: no driver")]))
    with measure() as reading:
        pass
    assert (reading.joules, reading.watts, reading.source) == (None, None, None)
    assert reading.seconds > 0
    assert reading.note == "rapl: hidden; nvml: no driver"
    assert str(reading).startswith("not measured over ")
    with measure([]) as reading:
        pass
    assert (reading.joules, reading.note) == (None, "no meter was given")


def test_what_may_not_be_read_is_said_beside_what_is_measured(monkeypatch):
    absent = [NoMeter("rapl: root only", mendable=True), NoMeter("ina3221: no Jetson")]
    monkeypatch.setattr(meters, "found", lambda: ([counter(0.0, 2.0)], absent))
    with measure() as reading:
        pass
    assert (reading.joules, reading.note) == (2.0, "rapl: root only")


def test_a_counter_that_has_not_moved_is_not_zero_joules():
    with measure(counter(7.0, 7.0)) as reading:
        pass
    assert reading.joules is None
    assert "fake: it did not move in" in reading.note


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (OSError(5, "Input/output error", "/sys/x/energy_uj"), "fake: /sys/x/energy_uj: Input/output error"),
        (
            PermissionError(13, "Permission denied", "/sys/x/energy_uj"),
            "fake: /sys/x/energy_uj may not be read any more",
        ),
        (ValueError("invalid literal for int(): ''"), "fake: invalid literal for int(): ''"),
        (KeyError("it"), "fake: it does not say 'it' any more"),
        (NoMeter("the driver is gone"), "fake: the driver is gone"),
        (subprocess.TimeoutExpired("vcgencmd", 2), "fake: Command 'vcgencmd' timed out after 2 seconds"),
    ],
)
def test_a_meter_that_fails_on_the_way_says_why(failure, said):
    states = iter([1.0])

    def read():
        for joules in states:
            return {"it": joules}
        raise failure

    with measure([Meter("fake", read, moves=0.0), Meter("good", iter([{"b": 0.0}, {"b": 3.0}]).__next__)]) as reading:
        pass
    assert reading.joules is None
    assert said in reading.note
    assert reading.by == {"b": 3.0}  # what the other has measured is not thrown away, and is not the whole


def test_a_meter_that_fails_at_once_lets_the_work_go_on():
    def read():
        raise OSError("gone")

    with measure(Meter("fake", read)) as reading:
        done = True
    assert done
    assert (reading.joules, reading.note) == (None, "fake: gone")


def test_a_device_that_vanishes():
    states = iter([{"a": 1.0, "b": 1.0}, {"a": 2.0}])
    with measure(Meter("fake", lambda: next(states))) as reading:
        pass
    assert (reading.joules, reading.note) == (None, "fake: b vanished while it was being measured")


def test_the_bodys_error_passes_and_the_reading_is_whole():
    with pytest.raises(ZeroDivisionError), measure(counter(0.0, 4.0)) as reading:
        1 / 0  # noqa: B018
    assert reading.joules == 4.0


def test_windows_inside_one_another_and_in_several_threads():
    """Each starts from its own first reading: a counter of 1 J a call would be shared otherwise."""
    level, lock = iter(range(10**6)), threading.Lock()

    def read():
        with lock:
            return {"it": float(next(level))}

    meter = Meter("fake", read, moves=0.0)
    with measure(meter) as outer:
        with measure(meter) as inner:
            pass
        with measure(meter) as second:
            pass
    assert (inner.joules, second.joules, outer.joules) == (1.0, 1.0, 5.0)
    readings = [Reading() for _ in range(8)]

    def work(i):
        with measure(meter) as readings[i]:
            time.sleep(0.01)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(1 <= r.joules <= 16 for r in readings)


def test_no_thread_is_left():
    before = threading.active_count()
    with measure(Meter("fake", lambda: {"it": 2.0}, unit="watts", every=0.001)):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


# --- at rest ------------------------------------------------------------------------------------------------------


def at_rest(watts, seconds=5.0, source="fake"):
    return Reading(watts * seconds, seconds, source)


def test_rest_is_subtracted_if_asked():
    rest = at_rest(10.0)
    with measure(counter(0.0, 100.0), above=rest) as reading:
        pass
    assert reading.joules == 100.0 - 10.0 * reading.seconds
    assert reading.above is rest
    assert "above 10 W at rest over 5 s" in str(reading)


def test_no_more_than_at_rest_is_said():
    with measure(counter(0.0, 1e-9), above=at_rest(10.0)) as reading:
        time.sleep(0.001)
    assert reading.joules < 0
    assert "below what the meter can tell" in reading.note


def test_rest_of_another_meter_or_none_is_not_subtracted():
    with measure(counter(0.0, 100.0), above=at_rest(10.0, source="rapl")) as reading:
        pass
    assert reading.joules is None
    assert "it was measured by rapl, this by fake" in reading.note
    with measure(counter(0.0, 100.0), above=Reading(note="no meter")) as reading:
        pass
    assert (reading.joules, reading.note) == (None, "the reading at rest cannot be subtracted: no meter")


# --- counters and sensors, by a clock of their own ----------------------------------------------------------------


def test_a_counter_that_wraps_once_or_often():
    assert tallied(counter(90.0, 10.0, wraps={"it": 100.0}), 0.0, 0.05).joules == {"it": 20.0}
    often = [float(30 * i % 100) for i in range(12)]
    assert tallied(counter(*often, wraps={"it": 100.0}), *(0.05 * i for i in range(12))).joules == {"it": 330.0}


def test_a_wrap_that_may_have_been_missed():
    """At most 1000 W: a counter of 100 J may go round in 0.1 s."""
    tally = tallied(counter(0.0, 20.0, wraps={"it": 100.0}), 0.0, 0.11)
    assert "it was not read for 0 s, in which its counter may have begun again unseen" in tally.lost


@pytest.mark.parametrize(("wraps", "said"), [({}, "it was reset"), ({"it": 100.0}, "which is no wrap at 100 J")])
def test_a_counter_that_goes_back(wraps, said):
    tally = tallied(counter(70.0, 60.0, wraps=wraps), 0.0, 0.05)
    assert "it's counter went back by 10 J" in tally.lost
    assert said in tally.lost


def test_watts_are_integrated_by_trapezes():
    """2 W for 1 s, rising to 6 W over 2 s: 2 + 8 J."""
    tally = tallied(counter(2.0, 2.0, 6.0, unit="watts", every=1.0), 0.0, 1.0, 3.0)
    assert tally.joules == {"it": 10.0}
    assert (tally.readings, tally.longest) == (3, 2.0)


def test_watts_are_read_in_the_background():
    meter = Meter("fake", lambda: {"it": 3.0}, unit="watts", every=0.002)
    with measure(meter) as reading:
        time.sleep(0.1)
    assert reading.joules == pytest.approx(3.0 * reading.seconds, rel=0.05)
    with measure(Meter("fake", lambda: {"it": 3.0}, unit="watts", every=60.0)) as reading:
        pass
    assert "fake was read only 2 times" in reading.note


def test_a_window_short_for_its_meter_says_how_far_off_it_may_be():
    with measure(counter(0.0, 4.0, moves=0.1)) as reading:
        time.sleep(0.001)
    assert "fake moves every 0.1 s: ±" in reading.note


# --- RAPL ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def powercap(tmp_path):
    """An Intel server of two sockets, as Linux 6 has it, and what must not be counted: parts, the platform, a copy."""
    zones = {
        "intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "package-1",
        "intel-rapl:1:0": "dram", "intel-rapl:2": "psys", "intel-rapl-mmio:0": "package-0",
    }  # fmt: skip
    for zone, name in zones.items():
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(f"{name}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text(f"{RANGE}\n")
        (tmp_path / zone / "energy_uj").write_text("1000000\n")
    (tmp_path / "intel-rapl").mkdir()  # the type itself, which has no zone's files
    return tmp_path


def write(root, zone, microjoules):
    (root / zone / "energy_uj").write_text(f"{microjoules}\n")


def test_rapl_counts_packages_and_memory_and_nothing_twice(powercap):
    meter = meters.rapl(powercap)
    assert set(meter.read()) == {"package-0", "package-0 dram", "package-1", "package-1 dram"}
    with measure(meter) as reading:
        for i, zone in enumerate(sorted(p.name for p in powercap.iterdir() if (p / "energy_uj").exists())):
            write(powercap, zone, 1_000_000 + (i + 1) * 1_000_000)
    assert reading.source == "rapl"
    assert reading.by == pytest.approx({"package-0": 2, "package-0 dram": 4, "package-1": 5, "package-1 dram": 6})


def test_rapl_that_wraps(powercap):
    write(powercap, "intel-rapl:0", RANGE - 3_000_000)
    meter = meters.rapl(powercap)
    with measure(meter) as reading:
        write(powercap, "intel-rapl:0", 4_000_000)
    assert reading.joules == pytest.approx(7.0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_rapl_for_root_alone(powercap):
    (powercap / "intel-rapl:1" / "energy_uj").chmod(0)
    with pytest.raises(NoMeter, match="root only") as refused:
        meters.rapl(powercap)
    assert refused.value.mendable


def test_rapl_for_root_alone_says_what_to_do(powercap, monkeypatch):
    real = type(powercap).read_text

    def read_text(path, *arguments, **options):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(type(powercap), "read_text", read_text)
    with pytest.raises(NoMeter) as refused:
        meters.rapl(powercap)
    assert refused.value.mendable
    for words in ("root only", "CVE-2020-8694", "/etc/udev/rules.d/", 'SUBSYSTEM=="powercap"', "chmod g+r"):
        assert words in str(refused.value)


def test_rapl_that_vanishes_or_is_locked_on_the_way(powercap, monkeypatch):
    meter = meters.rapl(powercap)
    with measure(meter) as reading:
        shutil.rmtree(powercap / "intel-rapl:1")
    assert reading.joules is None
    assert reading.note.startswith("rapl: ")
    assert "intel-rapl:1" in reading.note


def test_no_rapl(tmp_path):
    with pytest.raises(NoMeter, match="most virtual machines hide"):
        meters.rapl(tmp_path)


# --- INA3221 ------------------------------------------------------------------------------------------------------


def orin(root, rails=("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC")):
    """An Orin Nano under JetPack 6: mV and mA."""
    folder = root / "ina3221" / "1-0040" / "hwmon" / "hwmon1"
    folder.mkdir(parents=True)
    for n, (name, mv, ma) in enumerate(zip(rails, (5000, 4992, 4992), (1200, 400, 300), strict=True), start=1):
        (folder / f"in{n}_label").write_text(f"{name}\n")
        (folder / f"in{n}_input").write_text(f"{mv}\n")
        (folder / f"curr{n}_input").write_text(f"{ma}\n")
    (folder / "in7_label").write_text("sum of shunt voltages\n")
    (folder / "in7_input").write_text("1200\n")
    return folder


def nano(root):
    """A Jetson Nano under JetPack 4: mW."""
    folder = root / "ina3221x" / "6-0040" / "iio:device0"
    folder.mkdir(parents=True)
    for n, (name, mw) in enumerate((("POM_5V_IN", 2875), ("POM_5V_GPU", 120), ("POM_5V_CPU", 640))):
        (folder / f"rail_name_{n}").write_text(f"{name}\n")
        (folder / f"in_power{n}_input").write_text(f"{mw}\n")
    return folder


@pytest.mark.parametrize(("board", "rail", "watts"), [(orin, "VDD_IN", 6.0), (nano, "POM_5V_IN", 2.875)])
def test_a_jetson_is_measured_at_its_supply(tmp_path, board, rail, watts):
    board(tmp_path)
    meter = meters.ina3221(tmp_path)
    assert meter.read() == {rail: pytest.approx(watts)}
    with measure(meter) as reading:
        time.sleep(0.02)
    assert reading.joules == pytest.approx(watts * reading.seconds, rel=0.2)
    assert reading.source == "ina3221"


def test_a_jetson_whose_load_rises(tmp_path):
    folder = nano(tmp_path)
    meter = meters.ina3221(tmp_path)
    clock = iter([0.0, 2.0, 3.0])
    tally = Tally(meter, lambda: next(clock))
    tally.begin()
    tally.sample()
    (folder / "in_power0_input").write_text("8875\n")
    tally.sample()
    assert tally.joules == {"POM_5V_IN": pytest.approx(2 * 2.875 + (2.875 + 8.875) / 2)}


def test_a_jetson_without_a_supply_rail_asks_for_names(tmp_path):
    orin(tmp_path, rails=("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"))
    with pytest.raises(NoMeter, match="no rail that is the supply of the whole; name some") as refused:
        meters.ina3221(tmp_path)
    assert "VDD_CPU_CV, " in str(refused.value)
    meter = meters.ina3221(tmp_path, rails=["VDD_GPU_SOC", "VIN_SYS_5V0"])
    assert sum(meter.read().values()) == pytest.approx(5 * 1.2 + 4.992 * 0.3)
    with pytest.raises(NoMeter, match="no rail 'VDD_GPU'"):
        meters.ina3221(tmp_path, rails=["VDD_GPU"])


def test_a_jetson_that_says_nonsense_is_refused(tmp_path):
    (nano(tmp_path) / "in_power0_input").write_text("garbage\n")
    with pytest.raises(NoMeter, match="ina3221: invalid literal"):
        meters.ina3221(tmp_path)
    with pytest.raises(NoMeter, match="has no such sensor"):
        meters.ina3221(tmp_path / "empty")


# --- Raspberry Pi 5 -----------------------------------------------------------------------------------------------

IDLE = """\
 3V7_WL_SW_A current(0)=0.00195186A
   3V3_SYS_A current(1)=0.12687090A
   1V8_SYS_A current(2)=0.18835450A
  DDR_VDD2_A current(3)=0.02147046A
  DDR_VDDQ_A current(4)=0.00000000A
   1V1_SYS_A current(5)=0.17957110A
    0V8_SW_A current(6)=0.25959740A
  VDD_CORE_A current(7)=0.56259000A
   3V3_DAC_A current(17)=0.00000000A
   3V3_ADC_A current(18)=0.00000000A
   0V8_AON_A current(16)=0.00293040A
      HDMI_A current(22)=0.02551890A
 3V7_WL_SW_V volt(8)=3.70720000V
   3V3_SYS_V volt(9)=3.32580900V
   1V8_SYS_V volt(10)=1.80415000V
  DDR_VDD2_V volt(11)=1.11135400V
  DDR_VDDQ_V volt(12)=0.60329610V
   1V1_SYS_V volt(13)=1.11282000V
    0V8_SW_V volt(14)=0.80512740V
  VDD_CORE_V volt(15)=0.76798460V
   3V3_DAC_V volt(20)=3.32142500V
   3V3_ADC_V volt(21)=3.32966700V
   0V8_AON_V volt(19)=0.80175740V
      HDMI_V volt(23)=5.11746000V
     EXT5V_V volt(24)=5.14158000V
      BATT_V volt(25)=3.28033900V
"""


def test_a_raspberry_pi_5_is_the_sum_of_its_rails():
    """By hand: 0.0072 + 0.4220 + 0.3398 + 0.0239 + 0 + 0.1998 + 0.2090 + 0.4321 + 0.0023 + 0.1306 = 1.7667 W."""
    meter = meters.pi_pmic(lambda: IDLE)
    assert meter.read() == {"board": pytest.approx(1.7667, abs=1e-4)}
    assert (meter.source, meter.unit) == ("pi-pmic", "watts")


def test_a_raspberry_pi_5_at_work():
    words = iter([IDLE, IDLE, IDLE.replace("current(7)=0.56259000A", "current(7)=5.03652000A")])
    tally = tallied(meters.pi_pmic(lambda: next(words)), 0.0, 2.0)
    more = (5.03652 - 0.56259) * 0.7679846
    assert tally.joules == {"board": pytest.approx(2 * (1.7667 + more / 2), abs=1e-3)}


def test_other_raspberry_pis_have_no_meter(monkeypatch, tmp_path):
    with pytest.raises(NoMeter, match="error_msg"):
        meters.pi_pmic(lambda: 'error=1 error_msg="Command not registered"\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoMeter, match="no command vcgencmd"):
        meters.pi_pmic()
    command = tmp_path / "vcgencmd"
    command.write_text("#!/bin/sh\necho VCHI initialization failed >&2\nexit 255\n")
    command.chmod(0o755)
    with pytest.raises(NoMeter, match="VCHI initialization failed") as refused:
        meters.pi_pmic()
    assert refused.value.mendable
    command.write_text(f"#!/bin/sh\ncat <<'END'\n{IDLE}END\n".replace("cat ", "/bin/cat "))
    assert meters.pi_pmic().read()["board"] > 1.7


# --- NVML ---------------------------------------------------------------------------------------------------------


class Api(SimpleNamespace):
    """What nvidia-ml-py offers, of two GPUs; the second is older in some tests."""

    def __init__(self, gpus):
        super().__init__(gpus=gpus, failing=False)

    def nvmlInit(self):
        if self.gpus is None:
            raise RuntimeError("Driver Not Loaded")

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return next(gpu for gpu in self.gpus if gpu.get("uuid") == uuid)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        if self.failing:
            raise RuntimeError("GPU is lost")
        if gpu["mj"] is None:
            raise RuntimeError("Not Supported")
        gpu["mj"] += 1500
        return gpu["mj"]


def test_nvml_counts_all_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with measure(meters.nvml(Api([{"mj": 10}, {"mj": 20}]))) as reading:
        pass
    assert reading.by == pytest.approx({"GPU 0": 1.5, "GPU 1": 1.5})
    assert reading.joules == pytest.approx(3.0)
    assert reading.source == "nvml"
    assert "moves every 0.1 s" in reading.note


@pytest.mark.parametrize(("asked", "mj"), [("1", [10, 3020]), ("GPU-b", [10, 3020]), ("0,1", [3010, 3020])])
def test_nvml_counts_the_visible_gpus_alone(monkeypatch, asked, mj):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
    gpus = [{"mj": 10, "uuid": "GPU-a"}, {"mj": 20, "uuid": "GPU-b"}]
    meters.nvml(Api(gpus)).read()
    assert [gpu["mj"] for gpu in gpus] == mj


def test_nvml_where_there_is_none(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(NoMeter, match=r"the driver does not answer \(Driver Not Loaded\)"):
        meters.nvml(Api(None))
    with pytest.raises(NoMeter, match=r"GPU 1 has no energy counter \(Not Supported\)"):
        meters.nvml(Api([{"mj": 1}, {"mj": None}]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NoMeter, match="no GPU is visible"):
        meters.nvml(Api([{"mj": 1}]))


def test_nvml_that_is_lost_on_the_way(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    api = Api([{"mj": 10}])
    with measure(meters.nvml(api)) as reading:
        api.failing = True
    assert (reading.joules, reading.note) == (None, "nvml: the driver does not answer any more (GPU is lost)")


LIBRARY = r"""
static unsigned long long energy[2] = {7000ULL, 5000000000000ULL};
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { if (i > 1) return 2; *h = &energy[i]; return 0; }
int nvmlDeviceGetHandleByUUID(const char *u, void **h) { *h = &energy[u[4] - 'a']; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *mj) {
  *(unsigned long long *)h += 250; *mj = *(unsigned long long *)h; return 0; }
const char *nvmlErrorString(int code) { return code == 2 ? "Invalid Argument" : "Unknown Error"; }
"""


def test_the_drivers_own_library_is_enough(tmp_path, monkeypatch):
    """A library compiled here with the driver's five functions: 64-bit counters, pointers, and words of refusal."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "fake.c").write_text(LIBRARY)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "fake.c"], check=True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver = Driver(str(library))
    with measure(meters.nvml(driver)) as reading:
        pass
    assert reading.by == {"GPU 0": 0.25, "GPU 1": 0.25}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert meters.nvml(driver).read() == {"GPU 0": pytest.approx(5e9, rel=1e-6)}
    with pytest.raises(NvmlError, match="Invalid Argument"):
        driver.nvmlDeviceGetHandleByIndex(5)
    with pytest.raises(NvmlError, match="nvmlShutdown is not in this driver's library"):
        driver._call("nvmlShutdown")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_driver_nvml_says_so(monkeypatch):
    monkeypatch.setattr("joulegrad.energy.nvml.LIBRARY", "libnvidia-ml-is-not-here.so.1")
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(NoMeter, match=r"nvml: no NVIDIA driver"):
        meters.nvml()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_real_gpu_draws_between_its_idle_and_its_limit():
    x = torch.randn(8192, 8192, device="cuda")
    with measure(meters.nvml()) as reading:
        until = time.perf_counter() + 2
        while time.perf_counter() < until:
            x @ x
            torch.cuda.synchronize()
    assert 20 < reading.watts < 1500
