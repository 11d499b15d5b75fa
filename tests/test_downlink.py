"""What the server sends through an operator: counted again by clients that keep their own copies, resumed to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import joulegrad
from joulegrad import (
    CWMP,
    Blocks,
    ErrorFeedback,
    LayerType,
    Layout,
    MomentumCorrection,
    PerLayer,
    Quantized,
    SparseUpdate,
    TopK,
)
from joulegrad.downlink import Versions
from joulegrad.lab import distributed
from joulegrad.lab.client import Diverged
from joulegrad.lab.downlink import SEED_BYTES, Compressed, Exact
from joulegrad.lab.experiment import DENSE, Experiment, LocalSGD, Server, changed
from joulegrad.lab.partition import IID, Dirichlet
from joulegrad.lab.simulate import Simulation
from joulegrad.lab.store import Folder

LAYOUT = Layout.from_shapes({"conv": (8, 3, 3), "norm": (8,), "head": (10, 8)})
NONE = torch.empty(0)
SMALL = ErrorFeedback(Quantized(TopK(density=0.03), bits=1))
EXPERIMENT = Experiment(
    model="mine:Everything",
    partition=Dirichlet(6, alpha=0.3),
    compress=ErrorFeedback(TopK(density=0.05)),
    local=LocalSGD(lr=0.05, batch_size=32),
    server=Server(options={"momentum": 0.5}),
    rounds=8,
    clients_per_round=2,
    dropout=0.2,
    downlink=ErrorFeedback(Quantized(TopK(density=0.1), bits=2)),
)


def walk(operator, steps=6, seed=0, whole=True):
    """A server that wanders in steps whose sums are exact; all of its models, and the broadcasts' end."""
    rng = torch.Generator().manual_seed(seed)
    models = [torch.zeros(LAYOUT.size)]
    down = Compressed(operator, LAYOUT, 1, models[0])
    for t in range(steps):
        step = torch.randint(-64, 65, (LAYOUT.size,), generator=rng).float() if whole else torch.randn(LAYOUT.size)
        models.append(models[-1] + step)
        down.changed(models[-2], models[-1], NONE, t + 1)
    return models, down


# --- laws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inner",
    [
        TopK(density=0.05),
        CWMP(density=0.05, cost=LayerType(layers=("head",))),
        PerLayer(TopK(k=2)),
        Blocks(TopK(k=3), entries=4),
        TopK(density=1.0),
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_what_was_sent_and_the_residual_are_the_movement(inner):
    models, down = walk(ErrorFeedback(inner))
    assert torch.equal(down.received(models[-1]) + down.memory.residual, models[-1])
    sends_all = inner == TopK(density=1.0)
    assert torch.equal(down.received(models[-1]), models[-1]) == sends_all


def test_quantised_values_too_up_to_their_rounding():
    models, down = walk(ErrorFeedback(Quantized(TopK(density=0.2), bits=1)), whole=False)
    together = down.received(models[-1]) + down.memory.residual
    assert torch.allclose(together, models[-1], atol=1e-5)
    assert float((down.received(models[-1]) - models[-1]).norm()) > 1


def test_a_server_that_stands_still_is_reached():
    models, down = walk(ErrorFeedback(TopK(k=20)), steps=2)
    for t in range(10):
        down.changed(models[-1], models[-1], NONE, 3 + t)
    assert torch.equal(down.received(models[-1]), models[-1])


def test_without_memory_what_is_not_sent_never_is():
    models, down = walk(TopK(k=20), steps=1)
    for t in range(10):
        down.changed(models[-1], models[-1], NONE, 2 + t)
    assert int((down.received(models[-1]) != 0).sum()) <= 20


def test_by_hand():
    """w goes 0 → (1, 3, 0) → (1, 3, −4); one entry a round: 3 at 1, then −4 at 2, then the 1 that was left at 0."""
    layout, w = Layout.from_shapes({"w": (3,)}), [torch.tensor(x) for x in ([0.0] * 3, [1.0, 3, 0], [1.0, 3, -4])]
    down, lengths = Compressed(ErrorFeedback(TopK(k=1)), layout, 3, w[0]), []
    whole = len(Versions(layout).whole(w[0], NONE))
    assert down.send(0, 0, w[0], NONE) == whole
    for t, (before, after, expected) in enumerate(
        [(w[0], w[1], [0.0, 3, 0]), (w[1], w[2], [0.0, 3, -4]), (w[2], w[2], [1.0, 3, -4])]
    ):
        down.changed(before, after, NONE, t + 1)
        assert down.received(after).tolist() == expected
        index = [1, 2, 0][t]
        one = SparseUpdate(torch.tensor([index]), torch.tensor([[3.0, -4.0, 1.0][t]]), 3)
        lengths.append(len(joulegrad.encode(one, layout)))
    assert down.upto.tolist() == [0, *torch.tensor(lengths).cumsum(0).tolist()]
    assert down.send(0, 3, w[2], NONE) == min(whole, sum(lengths))
    assert down.send(0, 3, w[2], NONE) == 0  # it has this version
    assert down.send(1, 3, w[2], NONE) == whole  # it has nothing


def test_a_step_that_is_not_finite_is_located():
    down = Compressed(SMALL, LAYOUT, 1, torch.zeros(LAYOUT.size))
    after = torch.zeros(LAYOUT.size)
    after[75] = torch.inf
    with pytest.raises(Diverged, match=r"round 4, server: its step is not finite, first at norm\[3\]"):
        down.changed(torch.zeros(LAYOUT.size), after, NONE, 4)


# --- in an experiment -----------------------------------------------------------------------------------------------


def left(simulation):
    return {name: tensor.clone() for name, tensor in simulation.state().items()}


def without_seconds(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.parametrize("initial", ["sent", "drawn"])
def test_clients_that_keep_their_own_copies_count_the_same_bytes(mine, initial):
    """Each client applies the payloads that it missed, from its own model, and comes to what the others train from."""
    experiment = replace(EXPERIMENT, rounds=12, initial=initial)
    payloads, models, given, evaluated = {}, {}, [], []
    has, missed = {}, []
    with Simulation(experiment, workers=1) as simulation:
        engine, encode = simulation.engine, joulegrad.encode
        train, evaluate = engine.train, engine.evaluate
        engine.train = lambda t, turns, w, b: given.append(w.clone()) or train(t, turns, w, b)
        engine.evaluate = lambda w, b: evaluated.append(w.clone()) or evaluate(w, b)
        layout, first, buffers = simulation.layout, simulation.weights.clone(), simulation.buffers.clone()
        whole = len(Versions(layout).whole(first, buffers))
        before, state = first, experiment.downlink.init(layout)
        for t in range(experiment.rounds):
            row, expected = simulation.round(), 0
            for client in row["clients"]:
                seen = has.get(client)
                if seen is None and initial == "sent":
                    expected, copy = expected + whole, given[t]
                else:
                    versions = range((0 if seen is None else seen[0]) + 1, t + 1)
                    seed = SEED_BYTES if seen is None else 0
                    expected += min(whole, seed + sum(len(payloads[v]) for v in versions))
                    copy = (first if seen is None else seen[1]).clone()
                    for v in versions:
                        update = joulegrad.decode(payloads[v], layout)
                        copy[update.indices] += update.values
                    missed.append(len(versions))
                assert torch.equal(copy, given[t])
                has[client] = t, copy
            assert row["bytes_down"] == expected
            sent, state = experiment.downlink(simulation.weights - before, state)
            payloads[t + 1] = encode(sent.with_buffers(simulation.buffers), layout)
            before = simulation.weights.clone()
            models[t + 1] = simulation.received.clone()
            assert not torch.equal(models[t + 1], simulation.weights)
    assert torch.equal(given[0], first)
    assert all(torch.equal(a, b) for a, b in zip(evaluated, models.values(), strict=True))
    assert len(set(missed)) > 3  # some were away for longer


def test_whoever_was_away_too_long_gets_the_model(mine):
    experiment = replace(EXPERIMENT, downlink=ErrorFeedback(TopK(density=0.9)), dropout=0.0, rounds=3)
    with Simulation(experiment, workers=1) as simulation:
        for _ in range(3):
            simulation.round()
        down, w, b = simulation.downlink, simulation.weights, simulation.buffers
        assert int(down.upto[3]) > 2 * down.whole
        client = int((down.seen == down.seen.min()).nonzero()[0][0])
        down.seen[client] = 0
        assert down.send(client, 3, w, b) == down.whole


def test_it_goes_on_from_a_checkpoint_as_if_nothing_had_been(mine, tmp_path):
    with Simulation(EXPERIMENT, workers=1, memories=tmp_path / "clients") as whole:
        rows = [whole.round() for _ in range(4)]
        saved = left(whole)
        rest = [whole.round() for _ in range(4)]
        expected = left(whole)
    with Simulation(EXPERIMENT, workers=2, memories=tmp_path / "clients") as resumed:
        resumed.restore(saved)
        again = [resumed.round() for _ in range(4)]
        found = left(resumed)
    assert without_seconds(again) == without_seconds(rest)
    assert len(rows) == 4
    assert found.keys() == expected.keys() >= {"received", "seen", "upto", "downlink residual", "downlink inner.step"}
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_momentum_on_the_server_side_is_kept_too(mine, tmp_path):
    """Two memories that begin as one tensor, which a checkpoint must hold twice."""
    operator = MomentumCorrection(TopK(density=0.05), momentum=0.5)
    experiment = replace(EXPERIMENT, downlink=operator, rounds=2)
    with Simulation(experiment, workers=1) as simulation, Folder(tmp_path / "run", experiment, {}) as folder:
        folder.checkpoint(simulation.state())
        folder.append(simulation.round())
        expected = left(simulation)
        folder.checkpoint(expected)
    with Folder(tmp_path / "run", experiment, {}) as folder:
        assert {"downlink velocity", "downlink residual"} <= folder.state.keys()
        assert all(torch.equal(folder.state[name], tensor) for name, tensor in expected.items())


def test_where_nobody_answers_the_residual_still_comes(mine):
    experiment = replace(EXPERIMENT, downlink=ErrorFeedback(TopK(density=0.02)), dropout=0.0, rounds=9)
    with Simulation(experiment, workers=1) as simulation:
        simulation.round()
        simulation._vanishing = set
        distances = [float((simulation.round() and simulation.received - simulation.weights).norm()) for _ in range(5)]
    assert distances[0] > distances[1] > 0
    assert distances[-1] < 1e-5


def test_one_payload_with_everything_is_the_dense_model_but_for_rounding(mine):
    """As fp32 movement it is as long as the model."""
    dense = replace(EXPERIMENT, downlink="dense", dropout=0.0)
    moved = replace(dense, downlink=ErrorFeedback(TopK(k=10**9)))
    with Simulation(dense, workers=1) as one, Simulation(moved, workers=1) as other:
        for _ in range(3):
            rows = one.round(), other.round()
        assert torch.allclose(one.weights, other.received, atol=1e-5)
        assert rows[0]["bytes_down"] == rows[1]["bytes_down"]


# --- the first model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["dense", "delta"])
def test_a_first_model_that_is_drawn_costs_its_seed(mode):
    layout, w, later = LAYOUT, torch.zeros(LAYOUT.size), torch.zeros(LAYOUT.size)
    later[3] = 1.0
    sent, drawn = (Exact(mode, layout, 2, drawn=drawn) for drawn in (False, True))
    whole, delta = len(Versions(layout).whole(w, NONE)), Versions(layout)
    assert (sent.send(0, 0, w, NONE), drawn.send(0, 0, w, NONE)) == (whole, SEED_BYTES)
    for down in (sent, drawn):
        down.changed(w, later, NONE, 1)
    delta.changed(w, later, 1)
    short = len(delta.delta(0, later, NONE))
    assert [down.send(0, 1, later, NONE) for down in (sent, drawn)] == ([short] * 2 if mode == "delta" else [whole] * 2)
    newcomer = SEED_BYTES + short if mode == "delta" else whole
    assert [down.send(1, 1, later, NONE) for down in (sent, drawn)] == [whole, newcomer]


def test_in_an_experiment_only_the_first_round_differs():
    experiment = Experiment(model="logistic", partition=IID(clients=4), rounds=2)
    rows = []
    for initial in ("sent", "drawn"):
        with Simulation(replace(experiment, initial=initial), workers=1) as simulation:
            rows.append(without_seconds(list(simulation)))
    assert [row["bytes_down"] for row in rows[1]] == [4 * SEED_BYTES, rows[0][1]["bytes_down"]]
    assert [{**row, "bytes_down": 0} for row in rows[0]] == [{**row, "bytes_down": 0} for row in rows[1]]


# --- as settings ----------------------------------------------------------------------------------------------------


def test_as_text_and_back():
    text = "ErrorFeedback(Quantized(TopK(density=0.03), bits=1))"
    experiment = Experiment.of({"downlink": text})
    assert experiment.downlink == SMALL
    assert experiment.to_dict()["downlink"] == text
    assert Experiment.of(experiment.to_dict()) == experiment
    new = changed({"downlink": text}, "downlink.density", 0.1)
    assert new == {"downlink": "ErrorFeedback(Quantized(TopK(density=0.1), bits=1))"}
    assert Experiment(downlink=DENSE).downlink == "dense"
    names = {Experiment.of({"downlink": d}).fingerprint for d in ("dense", "delta", text)}
    assert len(names) == 3


def test_older_runs_keep_their_names_and_go_on(tmp_path):
    """The key `initial` came later: at its default it is not written down."""
    assert "initial" not in Experiment().to_dict()
    assert Experiment.of({"initial": "drawn"}).to_dict()["initial"] == "drawn"
    assert Experiment().fingerprint == "a4a176ef"
    assert Experiment(initial="drawn").fingerprint != Experiment().fingerprint
    Folder(tmp_path, Experiment(), {}).__exit__(None, None, None)
    with pytest.raises(ValueError, match="holds another experiment: its initial is 'sent', not 'drawn'"):
        Folder(tmp_path, Experiment(initial="drawn"), {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"downlink": "dens"}, "downlink 'dens' is not allowed; did you mean 'dense'? There are: delta, dense, or an"),
        ({"downlink": "TopK"}, "downlink 'TopK' is not allowed. There are: delta, dense, or an operator, such as Err"),
        ({"downlink": "TopKK(k=1)"}, "downlink: 'TopKK' in 'TopKK(k=1)' is not known; did you mean 'TopK'?"),
        ({"downlink": "LayerType()"}, "downlink must be an operator, such as ErrorFeedback(TopK(density=0.03)), got"),
        ({"downlink": ["TopK(k=1)"]}, "downlink is one text, got ['TopK(k=1)']"),
        ({"downlink": 3}, 'downlink is written as in Python, downlink = "ErrorFeedback(TopK(density=0.03))", got 3'),
        ({"initial": "seed"}, "initial 'seed' is not allowed. There are: drawn, sent"),
    ],
)
def test_a_mistake_names_the_key_the_value_and_what_is_allowed(settings, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 the message is what is tested
        Experiment.of(settings)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("mode", ["dense", "delta"])
def test_a_mode_has_no_parts(mode):
    with pytest.raises(ValueError, match=rf"downlink\.density: downlink is '{mode}', which has no parts; name an oper"):
        changed({"downlink": mode}, "downlink.density", 0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"downlink": SMALL}, "an operator as downlink is played by the local engine alone: leave --engine out"),
        ({"initial": "drawn"}, 'initial = "drawn" is played by the local engine alone: leave --engine out'),
    ],
)
def test_flower_refuses_what_its_server_would_not_send(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        distributed.play(Experiment(**changes), tmp_path / "run", engine="flower-sim")
    assert not (tmp_path / "run").exists()
