"""The round: against numbers worked out by hand, against plain PyTorch, and each of its features alone."""

from __future__ import annotations

import gc
import math
from dataclasses import replace

import numpy as np
import plain_fedavg
import pytest
import torch

import joulegrad
from joulegrad import CWMP, ErrorFeedback, LayerType, Quantized, SparseUpdate, Table, TopK, Uniform
from joulegrad.lab import models
from joulegrad.lab.client import Diverged, shuffled
from joulegrad.lab.data import Data
from joulegrad.lab.experiment import DENSE, Experiment, LocalSGD, Server
from joulegrad.lab.partition import IID, ByColumn, Dirichlet
from joulegrad.lab.simulate import Simulation
from joulegrad.lab.workers import Turn, cores

LN2 = math.log(2)
EF = ErrorFeedback(TopK(density=0.05))
HAND = Experiment(
    model="mine:Perceptron",
    data=Data("mine:points"),
    partition=ByColumn("who"),
    compress=ErrorFeedback(TopK(k=1)),
    local=LocalSGD(lr=2.0**-12, momentum=0.5, batch_size=4, steps=2),
    server=Server(lr=0.5),
    rounds=3,
    cost=Uniform(2.0),
)
SMALL = Experiment(model="logistic", partition=IID(clients=4), rounds=2)


def played(experiment, workers=1, rounds=None):
    """All rows without their seconds, and all that is left: weights, buffers, the rule's state, clients' memories."""
    with Simulation(experiment, workers=workers) as simulation:
        rows = [simulation.round() for _ in range(rounds or experiment.rounds)]
        left = simulation.state()
        for client in range(len(simulation.parts)):
            left |= {f"{client} {name}": m for name, m in remembered(simulation, client).items()}
    return [{name: v for name, v in row.items() if name != "seconds"} for row in rows], left


def remembered(simulation, client):
    place = int(simulation.places.now[client])
    return simulation.memories.read(client, None if place < 0 else place) or {}


def assert_same(one, two):
    assert one[0] == two[0]
    assert one[1].keys() == two[1].keys()
    assert [name for name, tensor in one[1].items() if not torch.equal(tensor, two[1][name])] == []


# --- by hand ----------------------------------------------------


def test_two_clients_three_rounds_by_hand(mine):
    """Client A has x = (1, 1), y = 1; client B (−1, −1), (1, −1), (−1, 1), all y = 0: p_A = 1/4, p_B = 3/4, η = 1/2.

    The softmax of (0, 4096 x·w) is p = 1/2 where x·w = 0, else 0 or 1: the gradient is 4096 times the mean of
    (p − y) x, and lr = 1/4096. A turn is two steps on all the client has, with v2 = v1/2 + g2: the update is
    v1 + v2. Of it and what is left over, the larger entry is sent (of equals the first).

    Round 1, w = (0, 0): p = 1/2 everywhere.
      A  v1 = g1 = −1/2 (1, 1) = (−1/2, −1/2); then x·w = 1, p = 1, g2 = 0, v2 = (−1/4, −1/4)
         update (−3/4, −3/4), sends −3/4 at 0, keeps (0, −3/4)
      B  v1 = 1/3 · 1/2 · ((−1, −1) + (1, −1) + (−1, 1)) = (−1/6, −1/6); then w = (1/6, 1/6): x·w = −1/3, 0, 0,
         p = 0, 1/2, 1/2, g2 = 1/6 ((1, −1) + (−1, 1)) = 0, v2 = (−1/12, −1/12)
         update (−1/4, −1/4), sends −1/4 at 0, keeps (0, −1/4)
      w = (0, 0) − 1/2 (1/4 · −3/4 + 3/4 · −1/4, 0) = (3/16, 0)
      losses: A (ln 2 + 0) / 2; B (ln 2 + 2/3 ln 2) / 2; their mean 2/3 ln 2

    Round 2, w = (3/16, 0).
      A  x·w > 0: right, update 0; with what was left (0, −3/4); sends −3/4 at 1, keeps 0
      B  (1, −1) is wrong, p = 1: v1 = 1/3 (1, −1); then w = (3/16 − 1/3, 1/3) = (−7/48, 1/3): (−1, 1) is wrong,
         g2 = 1/3 (−1, 1), v2 = (1/6 − 1/3, −1/6 + 1/3) = (−1/6, 1/6); update (1/6, −1/6)
         with what was left (1/6, −5/12); sends −5/12 at 1, keeps (1/6, 0)
      w = (3/16, 0 − 1/2 (1/4 · −3/4 + 3/4 · −5/12)) = (3/16, 1/4)

    Round 3, w = (3/16, 1/4).
      A  right: update 0, nothing left; sends 0 at 0
      B  (−1, 1) is wrong: v1 = 1/3 (−1, 1); then w = (3/16 + 1/3, 1/4 − 1/3) = (25/48, −1/12): (1, −1) is wrong,
         g2 = 1/3 (1, −1), v2 = (−1/6 + 1/3, 1/6 − 1/3) = (1/6, −1/6); update (−1/6, 1/6)
         with what was left (0, 1/6); sends 1/6 at 1, keeps (0, 0)
      w = (3/16, 1/4 − 1/2 · 3/4 · 1/6) = (3/16, 3/16)

    Test: (1, 1), y = 1, is always right; (−1, 7/8), y = 0, has x·w = −3/16, 1/32, −3/128: wrong in round 2, where its
    loss is 4096/32 = 128.
    """
    weights = [(3 / 16, 0), (3 / 16, 1 / 4), (3 / 16, 3 / 16)]
    kept = [((0, -3 / 4), (0, -1 / 4)), ((0, 0), (1 / 6, 0)), ((0, 0), (0, 0))]
    with Simulation(HAND, workers=1) as simulation:
        one = len(joulegrad.encode(SparseUpdate(torch.tensor([0]), torch.tensor([1.0]), 2), simulation.layout))
        whole = len(joulegrad.encode(SparseUpdate(torch.tensor([0, 1]), torch.zeros(2), 2), simulation.layout))
        for row, w, residuals in zip(simulation, weights, kept, strict=True):
            assert simulation.weights.tolist() == pytest.approx(w, abs=1e-7)
            found = [remembered(simulation, client)["residual"].tolist() for client in (0, 1)]
            assert found == [pytest.approx(r, abs=1e-7) for r in residuals]
            assert (row["bytes_up"], row["bytes_down"], row["entries"]) == (2 * one, 2 * whole, 2)
            assert row["cost"] == 4.0  # two entries at 2
            assert (row["accuracy"], row["loss"]) == ((0.5, pytest.approx(64)) if row["round"] == 2 else (1.0, 0.0))
            if row["round"] == 1:
                assert row["train_loss"] == pytest.approx(2 / 3 * LN2, abs=1e-7)


def test_equal_weights_by_hand(mine):
    """As round 1 above, with p = 1/2 each: w = 0 − 1/2 (1/2 · −3/4 + 1/2 · −1/4) = 1/4."""
    _, left = played(replace(HAND, weights="equal"), rounds=1)
    assert left["weights"].tolist() == [0.25, 0]


def test_a_client_that_vanishes_is_as_if_it_had_not_been_asked(mine):
    """A vanishes in round 1: w = 0 − 1/2 · −1/4 = 1/8, of B alone, and A remembers nothing.

    A vanishes in round 2: w = (3/16, 0 − 1/2 · −5/12) = (3/16, 5/24), and A still has (0, −3/4) to send.
    """
    with Simulation(HAND, workers=1) as simulation:
        simulation._vanishing = lambda clients: {0}
        row = simulation.round()
        assert simulation.weights.tolist() == pytest.approx([1 / 8, 0], abs=1e-7)
        assert (row["lost"], row["entries"], row["clients"]) == ([0], 1, [0, 1])
        assert row["bytes_down"] == 2 * simulation.downlink.whole  # it had got the model
        assert remembered(simulation, 0) == {}
    with Simulation(HAND, workers=1) as simulation:
        simulation.round()
        simulation._vanishing = lambda clients: {0}
        simulation.round()
        assert simulation.weights.tolist() == pytest.approx([3 / 16, 5 / 24], abs=1e-7)
        assert remembered(simulation, 0)["residual"].tolist() == [0, -0.75]


def test_where_all_vanish_the_server_does_not_step(mine):
    with Simulation(HAND, workers=1) as simulation:
        simulation._vanishing = set
        row = simulation.round()
    assert simulation.weights.tolist() == [0, 0]
    assert (row["bytes_up"], row["entries"], row["train_loss"], row["density"]) == (0, 0, None, None)
    assert row["starved_layers"] == 1


def test_dropout_vanishes_that_share_and_always_the_same():
    experiment = replace(SMALL, dropout=0.25, rounds=60, partition=IID(clients=10), evaluate_every=60)
    with Simulation(experiment, workers=1) as simulation:
        lost = [simulation._vanishing(list(range(10))) for simulation.t in range(60)]
        again = [simulation._vanishing(list(range(10))) for simulation.t in range(60)]
    assert lost == again
    assert 0.2 < sum(map(len, lost)) / 600 < 0.3


# --- against plain PyTorch --------------------------------------


def plain(simulation, model, **ways):
    experiment, task = simulation.experiment, simulation.task
    torch.manual_seed(experiment.seed)
    built, threads = models.build(model, task.shape, task.classes), torch.get_num_threads()
    torch.set_num_threads(1)  # as a worker has, so that sums have the same order
    try:
        return plain_fedavg.fedavg(
            built,
            task.train,
            simulation.parts,
            experiment.local,
            rounds=experiment.rounds,
            seed=experiment.seed,
            **ways,
        )
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize(
    ("compress", "density", "feedback"),
    [(DENSE, None, False), (TopK(density=0.05), 0.05, False), (EF, 0.05, True)],
    ids=["dense", "top-k", "top-k with feedback"],
)
def test_it_is_plain_pytorch_to_the_bit(model, compress, density, feedback):
    """The same operations in the same order, on one thread; the server's mean is rounded once in both."""
    local = LocalSGD(lr=0.1, momentum=0.9, weight_decay=1e-3, batch_size=32, epochs=2)
    experiment = Experiment(model=model, partition=Dirichlet(4), rounds=3, compress=compress, local=local)
    with Simulation(experiment, workers=2) as simulation:
        after = [simulation.weights.clone() for _ in simulation]
        k = density and int(density * simulation.layout.size)
        expected = plain(simulation, model, k=k, feedback=feedback)
    assert [torch.equal(w, e) for w, e in zip(after, expected, strict=True)] == [True] * 3


def test_cifar10_through_the_real_loader(cifar10):
    """Plain PyTorch's rounds, to the bit; then sparse ones, the same for any number of workers."""
    some = Data("cifar10", directory=str(cifar10), train_examples=240, test_examples=100)
    local = LocalSGD(lr=0.02, batch_size=20)
    experiment = Experiment(model="cnn", data=some, partition=Dirichlet(3), rounds=2, local=local)
    with Simulation(experiment, workers=2) as simulation:
        rows, after = [], []
        for row in simulation:
            rows.append(row)
            after.append(simulation.weights.clone())
        expected = plain(simulation, "cnn")
    assert [torch.equal(w, e) for w, e in zip(after, expected, strict=True)] == [True] * 2
    assert rows[1]["train_loss"] < rows[0]["train_loss"] < 2.4
    assert rows[0]["bytes_up"] == rows[0]["bytes_down"] > 3 * 4 * 282_250
    sparse = replace(experiment, compress=ErrorFeedback(Quantized(TopK(density=0.01), bits=1)))
    one, two = (played(sparse, workers) for workers in (1, 2))
    assert_same(one, two)
    assert one[0][0]["bytes_up"] < rows[0]["bytes_up"] / 200


# --- the same for any number of workers -------------------------


def test_results_do_not_depend_on_the_number_of_workers(mine):
    """With everything that is drawn, remembered and averaged in an order of arrival."""
    experiment = Experiment(
        model="mine:Everything",
        partition=Dirichlet(7, alpha=0.3),
        compress=(ErrorFeedback(Quantized(TopK(density=0.1), bits=2, rounding="stochastic")), DENSE),
        local=LocalSGD(lr=0.05, batch_size=16, augment=True, schedule="cosine"),
        server=Server("Adam", lr=0.01),
        rounds=3,
        clients_per_round=5,
        dropout=0.2,
        downlink="delta",
    )
    one, two, three = (played(experiment, workers) for workers in (1, 2, 3))
    assert_same(one, two)
    assert_same(one, three)
    assert any(row["lost"] for row in one[0])
    local, also = (played(replace(experiment, buffers="local"), workers) for workers in (1, 3))
    assert_same(local, also)
    assert local[0] != one[0]
    other = played(replace(experiment, seed=1), rounds=1)
    assert other[0][0]["accuracy"] != one[0][0]["accuracy"]


# --- who takes part, and what is sent to them -------------------


def test_clients_are_sampled_by_the_seed_and_only_they_remember():
    experiment = replace(SMALL, partition=IID(clients=20), clients_per_round=4, compress=EF, rounds=12)
    with Simulation(experiment, workers=1) as simulation:
        clients = [row["clients"] for row in simulation]
        remembering = {c for c in range(20) if remembered(simulation, c)}
    assert all(len(set(some)) == 4 and some == sorted(some) for some in clients)
    assert len({c for some in clients for c in some}) > 15
    assert remembering == {c for some in clients for c in some}
    again, _ = played(experiment, rounds=3)
    other, _ = played(replace(experiment, seed=1), rounds=3)
    assert [row["clients"] for row in again] == clients[:3] != [row["clients"] for row in other]


@pytest.mark.parametrize("mode", ["dense", "delta"])
def test_the_downlink_brings_everybody_up_to_date(mine, mode):
    """Counted again from copies of what each client has: whichever is shorter, the model or its changes."""
    experiment = Experiment(
        model="mine:Everything", partition=IID(clients=6), compress=TopK(density=0.01), clients_per_round=2,
        rounds=8, downlink=mode, evaluate_every=8, dropout=0.2,
    )  # fmt: skip
    has, caught_up, sizes = {}, 0, []
    with Simulation(experiment, workers=2) as simulation:
        for _ in range(experiment.rounds):
            weights, buffers = simulation.weights.clone(), simulation.buffers.clone()
            row, expected = simulation.round(), 0
            for client in row["clients"]:
                old = has.get(client)
                everything = torch.arange(simulation.layout.size)
                changed = everything if old is None or mode == "dense" else (old != weights).nonzero().squeeze(1)
                sent = SparseUpdate(changed, weights[changed], simulation.layout.size).with_buffers(buffers)
                expected += len(joulegrad.encode(sent, simulation.layout))
                if old is not None and mode == "delta":
                    copy = old.clone()
                    copy[sent.indices] = sent.values
                    assert torch.equal(copy, weights)
                    caught_up += 1
                    sizes.append(len(changed))
                has[client] = weights
            assert row["bytes_down"] == expected
    if mode == "delta":
        assert caught_up > 5
        assert max(sizes) > 1.5 * min(n for n in sizes if n)  # who was away longer gets more


def test_a_delta_is_never_longer_than_the_model():
    rows, _ = played(replace(SMALL, compress=DENSE, downlink="delta"))
    assert rows[1]["bytes_down"] == rows[0]["bytes_down"] == rows[0]["bytes_up"]


def test_every_client_may_have_an_operator_and_a_cost_model_of_its_own():
    cheap_head = CWMP(k=10, cost=Table({"fc.weight": 1e6, "fc.bias": 1.0}))
    dear_head = CWMP(k=10, cost=Table({"fc.weight": 1.0, "fc.bias": 1e6}))
    rows, _ = played(replace(SMALL, compress=(cheap_head, dear_head)))
    assert [row["layer_entries"] for row in rows] == [[20, 20]] * 2  # two clients of each kind
    rows, left = played(replace(SMALL, compress=(ErrorFeedback(TopK(k=1)), TopK(k=5), DENSE)))
    assert [row["entries"] for row in rows] == [1 + 5 + 650 + 1] * 2  # client 3 is like client 0
    assert [f"{client} residual" in left for client in range(4)] == [True, False, False, True]


# --- running statistics -----------------------------------------


def test_running_statistics_are_averaged_or_stay(mine):
    """Each client's mean is that of its own examples; weighted by their number they give the mean of all, 0."""
    averaged = Experiment(
        model="mine:Centred", data=Data("mine:crowd", directory="200"), partition=Dirichlet(3, minimum=20), rounds=2,
        local=LocalSGD(batch_size=1000),
    )  # fmt: skip
    with Simulation(averaged, workers=1) as simulation:
        rows = list(simulation)
        mean, variance = simulation.buffers[:50], simulation.buffers[50:]
        parts, inputs = simulation.parts, simulation.task.train.inputs
        shared_bytes = rows[0]["bytes_up"]
    assert mean.abs().max() < 1e-6
    assert 0.8 < variance.mean() < 1.05
    with Simulation(replace(averaged, buffers="local"), workers=1) as simulation:
        rows = list(simulation)
        assert rows[0]["bytes_up"] == shared_bytes - 3 * 4 * 100 == rows[0]["bytes_down"]
        scale = simulation.task.std
        for client, part in enumerate(parts):
            own = remembered(simulation, client)["own norm.running_mean"]
            expected = (inputs[part].mean(0) - simulation.task.mean) / scale
            assert torch.allclose(own, expected, atol=1e-5)
            assert int(remembered(simulation, client)["own norm.num_batches_tracked"]) == 2


def test_local_statistics_are_those_of_the_test_batch_and_nothing_else_trains(mine):
    """Nothing drops out in an evaluation: it is the same twice, and what can be computed from the weights."""
    experiment = Experiment(
        model="mine:Centred", data=Data("mine:crowd", directory="200"), partition=IID(3), rounds=1, buffers="local"
    )
    with Simulation(experiment, workers=1) as simulation:
        row = simulation.round()
        task, (weight, bias) = simulation.task, simulation.layout.views(simulation.weights).values()
    x = (task.test.inputs - task.mean) / task.std
    x = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    scores = x @ weight.T + bias
    assert row["loss"] == pytest.approx(torch.nn.functional.cross_entropy(scores, task.test.labels).item(), abs=1e-5)
    assert row["accuracy"] == pytest.approx((scores.argmax(1) == task.test.labels).float().mean().item())


# --- the server's rule ------------------------------------------


def test_fedavgm_and_fedadam_are_what_they_are_in_the_literature():
    """With means G₁, G₂ and momentum β, w₂ = w₁ − (β G₁ + G₂); Adam's first step is lr G₁ / (|G₁| + ε)."""

    def weights(server, rounds):
        with Simulation(replace(SMALL, server=server), workers=1) as simulation:
            return [simulation.weights.clone()] + [
                simulation.round() and simulation.weights.clone() for _ in range(rounds)
            ]

    w0, w1, w2 = weights(Server(), 2)
    _, m1, m2 = weights(Server(options={"momentum": 0.9}), 2)
    assert torch.equal(m1, w1)
    assert torch.allclose(m2, w2 - 0.9 * (w0 - w1), atol=1e-6)
    _, a1 = weights(Server("Adam", lr=0.01, options={"eps": 1e-3}), 1)
    g = w0 - w1
    assert torch.allclose(a1, w0 - 0.01 * g / (g.abs() + 1e-3), atol=1e-6)


RULES = [
    Server(options={"momentum": 0.9, "nesterov": True}),
    Server("Adam", lr=0.01),
    Server("Adagrad", lr=0.1),
    Server("RMSprop", lr=0.01, options={"momentum": 0.5, "centered": True}),
    *(
        Server(name, lr=0.01)
        for name in ("ASGD", "Adadelta", "Adafactor", "Adamax", "AdamW", "NAdam", "RAdam", "Rprop")
    ),
]


@pytest.mark.parametrize("server", RULES, ids=[rule.optimizer for rule in RULES])
def test_a_rule_goes_on_from_a_checkpoint_as_if_nothing_had_been(server, tmp_path):
    experiment = replace(SMALL, server=server, rounds=3)
    with Simulation(experiment, workers=1, memories=tmp_path / "clients") as whole:
        whole.round()
        whole.round()
        saved = {name: tensor.clone() for name, tensor in whole.state().items()}
        whole.round()
    with Simulation(experiment, workers=1, memories=tmp_path / "clients") as resumed:
        resumed.restore(saved)
        resumed.round()
    a, b = whole.rule.state[whole.weights], resumed.rule.state[resumed.weights]
    assert torch.equal(whole.weights, resumed.weights)
    assert a.keys() == b.keys()
    assert all(torch.equal(torch.as_tensor(a[name]), torch.as_tensor(b[name])) for name in a if a[name] is not None)


def test_the_learning_rate_falls(mine):
    """Half of it in the second of two rounds: from the same model, half the update."""
    one_step = LocalSGD(lr=0.25 * 2.0**-12, momentum=0.0, batch_size=4)

    def second(schedule):
        experiment = replace(HAND, rounds=2, compress=TopK(k=1), local=replace(one_step, schedule=schedule))
        with Simulation(experiment, workers=1) as simulation:
            simulation.round()
            before = simulation.weights.clone()
            simulation.round()
            return before, before - simulation.weights

    (w, whole), (v, half) = second("constant"), second("cosine")
    assert torch.equal(v, w)
    assert whole.abs().max() > 0.01
    assert half.tolist() == pytest.approx((whole / 2).tolist(), abs=1e-8)
    cosine = LocalSGD(lr=1.0, schedule="cosine")
    assert [round(cosine.lr_at(t, 4), 6) for t in range(4)] == [1.0, 0.853553, 0.5, 0.146447]


def test_epochs_or_steps():
    def sizes(examples, **local):
        batches = list(shuffled(examples, LocalSGD(**local), np.random.default_rng(0)))
        return [len(b) for b in batches], sorted(np.concatenate(batches).tolist())

    assert sizes(10, batch_size=4, epochs=2) == ([4, 4, 2, 4, 4, 2], sorted([*range(10), *range(10)]))
    assert sizes(10, batch_size=4, steps=2)[0] == [4, 4]
    assert sizes(10, batch_size=4, steps=5)[0] == [4, 4, 2, 4, 4]
    assert sizes(2, batch_size=4, steps=3) == ([2, 2, 2], [0, 0, 0, 1, 1, 1])


# --- what goes wrong --------------------------------------------


def test_a_loss_that_is_not_finite_stops_and_is_located():
    experiment = replace(SMALL, local=LocalSGD(lr=1e38))
    with (
        Simulation(experiment, workers=2) as simulation,
        pytest.raises(
            Diverged, match=r"round 1, client \d: what it learned is not finite, first at fc\.weight\[\d+, \d+\]"
        ),
    ):
        simulation.round()


def test_a_client_that_diverges_can_be_dropped(mine):
    """Client 1's training is never finite: it is as if client 0 were alone."""
    experiment = Experiment(
        model="mine:Brittle", data=Data("mine:outlier"), partition=ByColumn("who"), rounds=3, compress=EF, on_nan="drop"
    )
    with Simulation(experiment, workers=2) as simulation:
        rows = list(simulation)
        assert [row["lost"] for row in rows] == [[1]] * 3
        assert remembered(simulation, 1) == {}
        assert remembered(simulation, 0) != {}
        assert torch.isfinite(simulation.weights).all()
    assert all(row["loss"] < 1 for row in rows)
    with Simulation(replace(experiment, on_nan="stop"), workers=1) as simulation, pytest.raises(Diverged) as stopped:
        simulation.round()
    assert stopped.value.client == 1
    assert "round 1, client 1" in str(stopped.value)


def test_a_model_that_the_server_ruins_is_found(mine):
    """A step so long that weights overflow."""
    experiment = replace(SMALL, server=Server(lr=3e38))
    with Simulation(experiment, workers=1) as simulation, pytest.raises(Diverged, match="round 1, server: the loss"):
        simulation.round()
    rows, _ = played(replace(experiment, on_nan="drop"))
    assert rows[0]["loss"] is None
    assert rows[1]["lost"] == [0, 1, 2, 3]


@pytest.fixture
def every_core():
    """Torch's threads in this process: one a core, and two at least."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(2, cores()))
    torch.ones(1 << 20).exp()  # they are there, and a fork's child has none of them
    yield torch.get_num_threads()
    torch.set_num_threads(before)


def test_a_round_that_fails_gives_the_threads_back(every_core, monkeypatch):
    """At once, and not when what it leaves behind is collected: a traceback that somebody keeps holds it."""
    with Simulation(replace(SMALL, local=LocalSGD(lr=1e38)), workers=1) as simulation:
        with pytest.raises(Diverged) as kept:
            simulation.round()
        assert torch.get_num_threads() == every_core

    def interrupted(payload, layout):
        raise KeyboardInterrupt

    monkeypatch.setattr("joulegrad.lab.simulate.parse", interrupted)
    with Simulation(SMALL, workers=1) as simulation:
        with pytest.raises(KeyboardInterrupt) as also:  # in the server's part, as a notebook's button does
            simulation.round()
        assert torch.get_num_threads() == every_core
    assert kept.traceback
    assert also.traceback


def test_workers_do_not_end_what_the_parent_left_behind(mine, every_core):
    """A round of which nobody awaits the end: a worker that ended it would give itself the parent's threads, and wait
    for them for ever in the next product."""
    with Simulation(SMALL, workers=1) as simulation:
        answers = simulation.engine.train(0, _turns(simulation), simulation.weights, simulation.buffers)
        next(answers)
        left_behind = [answers]
        left_behind.append(left_behind)  # as a traceback and what it is the traceback of
        gc.disable()
        try:
            del answers, left_behind
            rows, _ = played(replace(HAND, model="mine:Tidy"), rounds=1)
        finally:
            gc.enable()
    assert rows[0]["lost"] == []


def _turns(simulation):
    clients = range(len(simulation.parts))
    return [Turn(client, simulation.places.turn(client, False)) for client in clients]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"partition": ByColumn("who"), "clients_per_round": 3},
            "clients_per_round is 3, but the partition has 2 clients",
        ),
        (
            {"local": LocalSGD(augment=True)},
            r"augment crops and mirrors images; an input of mine:points has shape \(2,\)",
        ),
        ({"precision": "tf32"}, "precision 'tf32' is a GPU's; on the CPU"),
    ],
)
def test_mistakes_that_only_the_data_show(mine, changes, message):
    with pytest.raises(ValueError, match=message):
        Simulation(replace(HAND, **changes), workers=1)


def test_other_mistakes(mine):
    class Nothing:
        def split(self, dataset, seed):
            return [torch.arange(4), torch.arange(0)]

    with pytest.raises(ValueError, match=r"client 1 has no examples \(and 0 more\)"):
        Simulation(replace(HAND, partition=Nothing()), workers=1)
    with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda', got 'gpu'"):
        Simulation(SMALL, device="gpu")


# --- figures ----------------------------------------------------


def test_a_row_is_complete_and_adds_up():
    experiment = Experiment(
        partition=IID(3), rounds=3, compress=TopK(density=0.001), evaluate_every=2, cost=LayerType()
    )
    with Simulation(experiment, workers=2) as simulation:
        rows, facts = list(simulation), simulation.facts()
    sizes = list(facts["layers"].values())
    classifier = [name in LayerType().members(simulation.layout) for name in facts["layers"]]
    assert sum(sizes) == simulation.layout.size == 79_754
    assert [row["accuracy"] is None for row in rows] == [row["loss"] is None for row in rows] == [True, False, False]
    for row in rows:
        assert set(row) == {
            "round", "accuracy", "loss", "train_loss", "bytes_up", "bytes_down", "entries", "cost", "density",
            "index_bytes", "value_bytes", "entropy_bytes", "layer_entries", "layer_density", "starved_layers",
            "clients", "lost", "seconds",
        }  # fmt: skip
        assert row["entries"] == sum(row["layer_entries"]) == 3 * 79
        assert row["density"] == 3 * 79 / (3 * 79_754)
        assert row["layer_density"] == [k / (3 * n) for k, n in zip(row["layer_entries"], sizes, strict=True)]
        assert row["starved_layers"] == row["layer_entries"].count(0)
        assert row["value_bytes"] == 4 * row["entries"]
        assert row["index_bytes"] + row["value_bytes"] + 3 * 28 == row["bytes_up"]
        assert 0.3 * row["index_bytes"] < row["entropy_bytes"] < row["index_bytes"] + 4 * len(sizes) * 3
        assert row["cost"] == sum(5 * k if c else k for k, c in zip(row["layer_entries"], classifier, strict=True))
        steps = ["train", "compress", "encode", "decode", "aggregate"]
        assert list(row["seconds"])[:5] == steps
        assert all(row["seconds"][name] > 0 for name in steps)
    assert {"classes": 10, "train_examples": 1438, "test_examples": 359, "clients": 3}.items() <= facts.items()
    assert facts["kernels"] == "kernels.cpu"
    assert [sum(counts) for counts in facts["class_counts"]] == [len(part) for part in simulation.parts]
    assert np.sum(facts["class_counts"], 0).tolist() == simulation.task.train.labels.bincount().tolist()
