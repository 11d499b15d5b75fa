"""The ledger in the simulator: worked out by hand, the same for any number of workers and after an interruption."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_simulate import HAND, SMALL, played, remembered

import joulegrad
from joulegrad import ErrorFeedback, Layout, SparseUpdate, TopK, profiles
from joulegrad.energy import Battery, Ledger, totals
from joulegrad.lab import models, store, tables
from joulegrad.lab import run as player
from joulegrad.lab.accounts import bills, examples_seen, flop_per_example
from joulegrad.lab.client import shuffled
from joulegrad.lab.experiment import Experiment, LocalSGD
from joulegrad.lab.partition import IID, ByColumn
from joulegrad.lab.plan import Plan, Setting
from joulegrad.lab.rehearsal import rehearse
from joulegrad.lab.simulate import Simulation

CLOCKED = ("select", "encode", "decode", "aggregate")
LTE = Ledger(device="rpi4", link="lte-2012")


def without_clock(rows):
    """All that is the same in every run."""
    kept = []
    for row in rows:
        row = {name: v for name, v in row.items() if name not in ("seconds", "joules")}
        if "ledger" in row:
            row["ledger"] = [line for line in row["ledger"] if line[1] not in CLOCKED]
        kept.append(row)
    return kept


def phases(row, client, source=None):
    found = {}
    for who, phase, kind, joules in row["ledger"]:
        if who == client and source in (None, kind):
            found[phase] = found.get(phase, 0.0) + joules
    return found


# --- by hand ------------------------------------------------------------------------------------------------------


def test_a_round_by_hand(mine):
    """A model of two weights, x·w: 4 FLOP there and 8 back for an example; A has 1 of them, B has 3.

    Two steps go over A's 1 twice, and over B's 3 twice: 2 and 6 examples. Each is sent two entries, and sends one.
    """
    ledger = Ledger(device="rpi4", link="lte-2012", server="server-gpu", slowdown=2.0)
    with Simulation(replace(HAND, ledger=ledger), workers=1) as simulation:
        row = simulation.round()
        one = len(joulegrad.encode(SparseUpdate(torch.tensor([0]), torch.tensor([1.0]), 2), simulation.layout))
        whole = simulation.downlink.whole
    link, device = profiles.link("lte-2012"), profiles.device("rpi4")
    joules_per_flop = device.busy_watts.value / device.train_flops_per_second.value
    up, down = ({r.phase: r.joules for r in rows} for rows in (ledger.uplink(one), ledger.downlink(whole)))
    for client, examples in ((0, 2), (1, 6)):
        found = phases(row, client)
        assert found["train"] == pytest.approx(examples * 12 * joules_per_flop)
        assert (found["uplink"], found["downlink"]) == (up["uplink"], down["downlink"])
        assert found["promotion"] == 2 * link.promotion_joules.value  # to receive and to send
        assert found["tail"] == 2 * link.tail_joules.value
        assert set(phases(row, client, "coded")) == {"uplink", "downlink"}
    clocked = sum(phases(row, client)["select"] for client in (0, 1))
    assert clocked == pytest.approx(2 * row["seconds"]["compress"] * device.busy_watts.value, abs=2e-5)
    server = profiles.device("server-gpu").busy_watts.value
    assert phases(row, None)["decode"] == pytest.approx(row["seconds"]["decode"] * server, rel=1e-3)
    assert row["joules"]["coded"]["uplink"] == 2 * up["uplink"]
    assert row["joules"]["modelled"]["train"] == pytest.approx(8 * 12 * joules_per_flop)


def test_uplink_joules_are_those_of_the_bytes_that_arrived():
    experiment = replace(SMALL, compress=(TopK(k=5), TopK(density=0.5)), ledger=LTE, dropout=0.4, rounds=4)
    with Simulation(experiment, workers=1) as simulation:
        for row in simulation:
            up = [line for line in row["ledger"] if line[1] == "uplink"]
            assert {line[0] for line in up} == set(row["clients"]) - set(row["lost"])
            trained = {line[0] for line in row["ledger"] if line[1] == "train"}
            assert trained == set(row["clients"])  # also those that vanish
            if row["lost"]:
                assert "uplink" not in phases(row, row["lost"][0])


def test_a_client_that_diverges_has_trained_and_sent_nothing(mine):
    experiment = Experiment(
        model="mine:Brittle", data=replace(HAND.data, name="mine:outlier"), partition=ByColumn("who"), rounds=1,
        compress=TopK(k=2), on_nan="drop", ledger=LTE,
    )  # fmt: skip
    (row,), _ = played(experiment)
    assert row["lost"] == [1]
    assert set(phases(row, 1)) == {"downlink", "promotion", "tail", "train"}


def test_a_fleet_has_several_ledgers():
    experiment = replace(SMALL, ledger=(LTE, Ledger(device="phone", link="wifi-ac", server="server-gpu")), rounds=1)
    (row,), _ = played(experiment)
    assert ["tail" in phases(row, client) for client in range(4)] == [True, False, True, False]
    assert set(phases(row, None)) == {"decode", "aggregate"}
    found = bills(experiment, [row])
    assert [bill.source for bill in found] == ["coded", "modelled"]
    for bill in found:
        assert bill.joules == row["joules"][bill.source]
        assert bill.grams == pytest.approx(sum(bill.joules.values()) / 3.6e6 * 475)


def test_co2e_by_each_clients_electricity():
    dirty, clean = replace(LTE, grams_per_kwh=1000), replace(LTE, grams_per_kwh=0.0)
    experiment = replace(SMALL, ledger=(dirty, clean), rounds=1)
    (row,), _ = played(experiment)
    coded, _ = bills(experiment, [row])
    of_dirty = sum(joules for who, _, source, joules in row["ledger"] if source == "coded" and who in (0, 2))
    assert coded.grams == pytest.approx(of_dirty / 3600)
    assert bills(SMALL, [row]) == []


# --- counting -----------------------------------------------------------------------------------------------------


def test_the_operations_of_resnet18():
    """555.4 million multiply-adds there, and twice that back."""
    model = models.build("resnet18", (3, 32, 32), 10)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert flop_per_example(model, (3, 32, 32)) == pytest.approx(3 * 2 * 555.4e6, rel=1e-3)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_a_model_without_products_cannot_be_charged():
    with pytest.raises(ValueError, match="no matrix product and no convolution"):
        flop_per_example(torch.nn.PReLU(), (3,))


@pytest.mark.parametrize("steps", [None, 1, 2, 3, 7])
def test_examples_are_those_that_training_goes_through(steps):
    import numpy as np

    for n in (1, 10, 64, 100):
        local = LocalSGD(batch_size=32, epochs=2, steps=steps)
        seen = sum(len(batch) for batch in shuffled(n, local, np.random.default_rng(0)))
        assert examples_seen(n, local) == seen


@pytest.mark.parametrize("boundary", ["device", "system"])
def test_the_ledger_and_the_plan_agree_on_what_neither_measures(boundary):
    """Of one client that sends everything; the plan counts frames by their share, the ledger whole ones."""
    layout = Layout.of(models.build("mlp", (64,), 10))
    made = models.build("mlp", (64,), 10)
    setting = Setting("rpi4", "lte-2012", samples=100, epochs=2, boundary=boundary)
    phases_of_plan = Plan(setting, layout, rehearse(made, layout, (64,), 10)).dense.phases
    ledger = Ledger(device="rpi4", link="lte-2012", boundary=boundary)
    n = 4 * layout.size
    rows = [*ledger.downlink(n), *ledger.uplink(n), ledger.train(flop=200 * flop_per_example(made, (64,)))]
    found = {phase: joules for phases in totals(rows).values() for phase, joules in phases.items()}
    for phase, joules in found.items():
        assert joules == pytest.approx(phases_of_plan[phase].value, rel=0.01), phase
    assert set(found) == set(phases_of_plan) - {"select", "encode", "aggregate"}


# --- nothing else changes, and it is the same again ---------------------------------------------------------------

DYING = Experiment(
    model="logistic",
    partition=IID(clients=5),
    rounds=6,
    compress=ErrorFeedback(TopK(density=0.1)),
    ledger=(
        Ledger(device="rpi4", link="lte-2012", battery=Battery(joules=60.0, harvest=(0.0, 0.0, 20.0))),
        Ledger(device="rpi4", link="lte-2012"),
        Ledger(device="phone", link="lte-2012", battery=Battery(joules=30.0, full=0.9, least=0.5)),
    ),
    clients_per_round=4,
    downlink="delta",
)


def test_a_ledger_changes_nothing_else():
    with_ledger, left = played(replace(SMALL, ledger=LTE))
    without, same = played(SMALL)
    assert [{n: v for n, v in row.items() if n not in ("joules", "ledger")} for row in with_ledger] == without
    assert all(torch.equal(tensor, same[name]) for name, tensor in left.items())
    assert "ledger" not in without[0]


def test_batteries_and_ledger_are_the_same_for_any_number_of_workers():
    one, two = (played(DYING, workers) for workers in (1, 3))
    assert without_clock(one[0]) == without_clock(two[0])
    assert all(torch.equal(tensor, two[1][name]) for name, tensor in one[1].items())
    assert any(row["flat"] for row in one[0])


def test_batteries_go_on_from_a_checkpoint(tmp_path):
    with Simulation(DYING, workers=1, memories=tmp_path / "a") as whole:
        rows = [whole.round() for _ in range(3)]
        saved = {name: tensor.clone() for name, tensor in whole.state().items()}
        charge = dict(whole.accounts.charge)
        rows += [whole.round() for _ in range(3)]
    with Simulation(DYING, workers=1, memories=tmp_path / "a") as resumed:
        resumed.restore(saved)
        assert resumed.accounts.charge == charge
        again = [resumed.round() for _ in range(3)]
    assert without_clock(again) == without_clock(rows[3:])
    assert torch.equal(resumed.weights, whole.weights)


def test_a_slow_machine_empties_no_battery(monkeypatch):
    """What is by the clock is in the ledger and does not decide who takes part, or a run could not be repeated."""
    normal, _ = played(DYING)
    slow = [replace(ledger, slowdown=1e6) for ledger in DYING.ledgers]
    rows, _ = played(replace(DYING, ledger=tuple(slow)))
    assert without_clock(rows) == without_clock(normal)
    assert phases(rows[0], rows[0]["clients"][0])["select"] > 1


# --- batteries ----------------------------------------------------------------------------------------------------


def test_an_empty_battery_stops_a_client_and_its_update_is_lost(mine):
    """A lives on 30 J, and each transfer by LTE costs 12.61 J and a little: it receives and sends once, and then
    receives, and is empty while its radio stays awake after that; B goes on alone, on the mains."""
    ledgers = (replace(LTE, battery=Battery(joules=30.0)), LTE)
    with Simulation(replace(HAND, ledger=ledgers, rounds=3), workers=1) as simulation:
        first, second, third = list(simulation)
        alone = simulation.weights.clone()
    assert [row["flat"] for row in (first, second, third)] == [[], [0], [0]]
    assert [row["lost"] for row in (first, second, third)] == [[], [0], [0]]
    assert first["charge"] == [pytest.approx(30 - 2 * 12.61, abs=0.05), None]
    assert second["charge"] == third["charge"] == [0.0, None]
    spent = phases(second, 0)
    assert set(spent) == {"promotion", "downlink", "tail"}
    assert sum(spent.values()) == pytest.approx(first["charge"][0])
    assert phases(third, 0) == {}
    assert (second["entries"], third["entries"]) == (1, 1)
    assert third["bytes_down"] == second["bytes_down"] / 2
    with Simulation(replace(HAND, rounds=3), workers=1) as simulation:
        simulation.round()
        simulation._vanishing = lambda clients: {0}
        simulation.round()
        simulation.round()
        assert torch.equal(simulation.weights, alone)  # as if it had vanished


def test_a_battery_that_fails_while_sending_leaves_what_was_remembered(mine):
    """In round 2, A trains, and is empty when it wakes its radio: it still has (0, −3/4) to send, checkpoint or not."""
    with Simulation(replace(HAND, ledger=(LTE, LTE)), workers=1) as simulation:
        row = simulation.round()
        each = sum(phases(row, 0).values()) - sum(phases(row, 0)[p] for p in CLOCKED[:2])
    battery = Battery(joules=1.5 * each)
    with Simulation(replace(HAND, ledger=(replace(LTE, battery=battery), LTE)), workers=1) as simulation:
        simulation.round()
        row = simulation.round()
        assert (row["lost"], row["flat"], row["entries"]) == ([0], [0], 1)
        assert phases(row, 0)["train"] > 0
        assert "uplink" not in phases(row, 0)
        assert remembered(simulation, 0)["residual"].tolist() == [0, -0.75]


def test_the_most_that_a_battery_can_send():
    """Of a client with a joule: 8 n · ε in frames; a byte more is a byte too much."""
    ledger = Ledger(device="rpi4", link="ble", battery=Battery(joules=1.0))
    with Simulation(replace(SMALL, ledger=ledger), workers=1) as simulation:
        accounts = simulation.accounts
        most = accounts.most(0, 100)
        left = 1.0 - ledger.downlink(100)[0].joules - ledger.train(flop=accounts.flop[0]).joules
        assert ledger.uplink(most)[0].joules <= left < ledger.uplink(most + 1)[0].joules
        accounts.charge[0] = 0.0
        assert accounts.most(0, 100) == -1
    with Simulation(replace(SMALL, ledger=LTE), workers=1) as simulation:
        assert simulation.accounts.most(0, 100) is None


def test_a_battery_that_fails_after_the_upload_has_uploaded(mine):
    """25 J: the upload arrives, and the radio's tail after it empties the battery."""
    ledgers = (replace(LTE, battery=Battery(joules=25.0)), LTE)
    (row, later), _ = played(replace(HAND, ledger=ledgers, rounds=2))
    assert (row["lost"], row["flat"], row["charge"][0]) == ([], [], 0.0)
    assert later["flat"] == [0]


def test_what_is_harvested_brings_a_client_back(mine):
    battery = Battery(joules=30.0, full=0.0, harvest=(0.0, 0.0, 30.0), least=0.9)
    rows, _ = played(replace(HAND, ledger=(replace(LTE, battery=battery), LTE), rounds=3))
    assert [row["flat"] for row in rows] == [[0], [0], []]
    assert rows[2]["entries"] == 2


def test_when_all_batteries_are_empty_nothing_happens_any_more(mine):
    with Simulation(replace(HAND, ledger=replace(LTE, battery=Battery(joules=1.0, full=0.0))), workers=1) as simulation:
        row = simulation.round()
    assert (row["flat"], row["bytes_up"], row["bytes_down"], row["train_loss"]) == ([0, 1], 0, 0, None)
    assert simulation.weights.tolist() == [0, 0]


# --- in a folder --------------------------------------------------------------------------------------------------


def test_a_run_with_a_ledger_in_a_folder(tmp_path):
    experiment = Experiment.of({
        "model": "logistic", "rounds": 3, "partition": "IID(clients=3)",
        "ledger": ["Ledger(device='rpi4', link='lte-2012', battery=Battery(joules=60, harvest=[0, 5]))", "Ledger()"],
    })  # fmt: skip
    assert Experiment.of(experiment.to_dict()) == experiment
    player.run(replace(experiment, rounds=3), tmp_path / "a", workers=1)
    rows = store.read_rounds(tmp_path / "a")
    assert without_clock(rows) == without_clock(played(experiment)[0])
    [_, _, last] = tables.rows([tmp_path / "a"])
    assert last["joules.coded.uplink"] == rows[2]["joules"]["coded"]["uplink"]
    assert last["flat"] == len(rows[2]["flat"])
    assert tables.write(tables.rows([tmp_path / "a"]), tmp_path / "a.csv") == 3


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        (3, "ledger is written as in Python, ledger = \"Ledger(device='phone', link='wifi-ac')\", got 3"),
        ("Ledgr()", "'Ledgr' in 'Ledgr()' is not known; did you mean 'Ledger'?"),
        ("Ledger(devise='rpi4')", "has no argument 'devise'; did you mean 'device'?"),
        ("Ledger(device='rpi44')", "did you mean 'rpi4'?"),
        ("TopK(k=3)", "'TopK' in 'TopK(k=3)' is not known. There are: Battery, DeviceProfile, Ledger"),
        ("Battery(joules=3)", "ledger must be a ledger, such as Ledger(device='phone', link='wifi-ac')"),
        ([], "ledger names none"),
    ],
)
def test_mistakes_in_a_ledger(ledger, said):
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        Experiment.of({"ledger": ledger})
    assert said in str(refused.value)
