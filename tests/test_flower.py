"""The Flower adapter in one process: what travels, what is remembered, what is refused, what goes on."""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from flower_rig import Model, Rig, app_of, context_of, first_model, fleet_of, same, step, vector
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedYogi,
    Krum,
    Strategy,
)

import joulegrad
import joulegrad.flower.journal as journal_module
from joulegrad import CWMP, ErrorFeedback, LayerType, Layout, TopK
from joulegrad.energy import Ledger
from joulegrad.flower import Fleet, Limits, Sparse, compress
from joulegrad.flower.arrays import STYPE, Form
from joulegrad.flower.memory import Memory

DENSE = TopK(density=1.0)
FEEDBACK = ErrorFeedback(CWMP(density=0.05, cost=LayerType()))
QUICK = Fleet(poll_seconds=0.001, wait_seconds=0.05)


def replied(message, arrays):
    records = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
    return Message(records, reply_to=message)


def trained(strategy, grid, rounds=3, **options):
    return strategy.start(grid, first_model(), num_rounds=rounds, timeout=5, **options)


# --- one line on each side ------------------------------------------------------------------------------------------


STRATEGIES = [
    FedAvg(),
    FedAvgM(server_learning_rate=0.7, server_momentum=0.5),
    FedAdam(eta=0.01),
    FedAdagrad(eta=0.01),
    FedYogi(eta=0.01),
    FedProx(proximal_mu=0.1),
    FedMedian(),
    Krum(num_malicious_nodes=0),
    DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1e-9, 10.0, 5),
]


def made(strategy):
    """A fresh one, since strategies remember."""
    kind, fields = type(strategy), {}
    if hasattr(strategy, "strategy"):
        return kind(FedAvg(), 1e-9, 10.0, 5)
    for name in ("server_learning_rate", "server_momentum", "eta", "proximal_mu", "num_malicious_nodes"):
        if hasattr(strategy, name):
            fields[name] = getattr(strategy, name)
    if kind in (FedAdagrad, FedAdam, FedYogi):
        fields = {"eta": strategy.eta}
    return kind(**fields)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_with_everything_sent_it_learns_what_flower_alone_learns(strategy, tmp_path):
    ours = trained(Sparse(made(strategy), fleet=QUICK), Rig(fleet_of(DENSE, tmp_path, n=5)))
    alone = trained(made(strategy), Rig(fleet_of(None, tmp_path, n=5)))
    counters = {key for key, a in first_model().items() if a.dtype == "int64"}
    for key, array in alone.arrays.items():
        if key not in counters:
            assert ours.arrays[key].dtype == "float32"
            np.testing.assert_allclose(ours.arrays[key].numpy(), array.numpy(), rtol=2e-4, atol=2e-6, err_msg=key)
    for round_, metrics in alone.train_metrics_clientapp.items():
        assert ours.train_metrics_clientapp[round_]["loss"] == pytest.approx(metrics["loss"])
    assert ours.evaluate_metrics_clientapp[3]["accuracy"] == 0.5


def test_the_direct_path_is_the_mean_to_the_last_bit(tmp_path):
    result = trained(Sparse(FedAvg(), fleet=QUICK), Rig(fleet_of(FEEDBACK, tmp_path)), rounds=3)
    form = Form.of(first_model())
    now = form.flat(first_model())
    states = [FEEDBACK.init(form.layout)] * 3
    for round_ in (1, 2, 3):
        sent = []
        for i in range(3):
            model = Model()
            model.load_state_dict(form.arrays(now, form.rest(first_model())).to_torch_state_dict())
            message = type("M", (), {"content": {"config": {"server-round": round_}}})
            step(model, context_of(i, **{"partition-id": i}), message)
            learned = form.flat(ArrayRecord(model.state_dict()))
            update, states[i] = FEEDBACK(now.weights - learned.weights, states[i])
            sent.append((update.with_buffers(learned.buffers), 10 + i))
        mean = joulegrad.mean(sent)
        now = type(now)(now.weights - mean.update, mean.buffers)
    assert same(result.arrays, form.arrays(now, form.rest(first_model())))


def test_payloads_are_short_and_metrics_are_summed(tmp_path):
    sizes = []

    def overheard(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "train":
            [array] = reply.content["arrays"].values()
            sizes.append(len(array.data))
            assert array.stype == STYPE
        return reply

    grid = Rig(fleet_of(FEEDBACK, tmp_path, outer=[overheard]))
    result = trained(Sparse(FedAvg(), fleet=QUICK), grid, rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["joulegrad-bytes-up"] == sum(sizes)
    assert metrics["joulegrad-entries"] == 3 * int(0.05 * Form.of(first_model()).layout.size)
    assert metrics["joulegrad-used"] == 3
    assert metrics["loss"] == 1.5


def test_a_custom_aggregation_of_metrics_sees_every_client_once(tmp_path):
    seen = []

    def aggregate(records, weighted_by):
        seen.append(sorted(r["metrics"][weighted_by] for r in records))
        return MetricRecord({"clients": len(records)})

    result = trained(Sparse(FedAvg(train_metrics_aggr_fn=aggregate), fleet=QUICK), Rig(fleet_of(DENSE, tmp_path)), 1)
    assert seen == [[10, 11, 12]]
    assert result.train_metrics_clientapp[1]["clients"] == 3


def test_a_strategy_of_the_users_own_gets_every_client(tmp_path):
    class Mine(FedAvg):
        def aggregate_train(self, server_round, replies):
            self.seen = [vector(r.content["arrays"]) for r in replies]
            return super().aggregate_train(server_round, replies)

    mine = Mine()
    trained(Sparse(mine, fleet=QUICK), Rig(fleet_of(DENSE, tmp_path)), 1)
    assert len(mine.seen) == 3
    assert not np.array_equal(mine.seen[0], mine.seen[1])


def test_flowers_own_mods_work_inside(tmp_path):
    wrapped = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1e-9, 1e-3, 3)
    grid = Rig(fleet_of(DENSE, tmp_path, inner=[fixedclipping_mod]))
    result = trained(Sparse(wrapped, fleet=QUICK), grid, 1)
    assert 0 < np.linalg.norm(vector(result.arrays) - vector(first_model())) < 1e-2
    noisy = Rig(fleet_of(DENSE, tmp_path, inner=[LocalDpMod(1.0, 1.0, 10.0, 0.1)]))
    assert (
        trained(Sparse(FedAvg(), fleet=QUICK, limits=Limits(norm=1e6)), noisy, 1).train_metrics_clientapp[1][
            "joulegrad-used"
        ]
        == 3
    )


def test_a_stock_strategy_fails_loudly_on_payloads(tmp_path):
    with pytest.raises(TypeError, match="serialization type"):
        trained(FedAvg(), Rig(fleet_of(FEEDBACK, tmp_path)), 1)


def test_an_app_without_the_mod_is_refused_and_the_others_go_on(tmp_path):
    nodes = fleet_of(DENSE, tmp_path)
    nodes[100] = (app_of(None), nodes[100][1])
    result = trained(Sparse(FedAvg(), fleet=QUICK), Rig(nodes), 1)
    assert result.train_metrics_clientapp[1]["joulegrad-used"] == 2
    assert result.train_metrics_clientapp[1]["joulegrad-failed"] == 1  # it cannot read what it is sent


def test_plain_lists_of_numpy_arrays_work_too(tmp_path):
    first = ArrayRecord([np.ones((4, 3), np.float32), np.zeros(4, np.float64), np.ones((2, 4), np.float16)])
    app = ClientApp(mods=[compress(CWMP(density=1.0, cost=LayerType()), folder=tmp_path)])

    @app.train()
    def train(message, context):
        arrays = [a - np.asarray(0.5, a.dtype) for a in message.content["arrays"].to_numpy_ndarrays()]
        return Message(
            RecordDict({"arrays": ArrayRecord(arrays), "m": MetricRecord({"num-examples": 1})}), reply_to=message
        )

    grid = Rig({i: (app, context_of(i, **{"partition-id": i})) for i in (1, 2)})
    result = Sparse(FedAvg(fraction_evaluate=0.0), fleet=QUICK).start(grid, first, num_rounds=2)
    found = result.arrays.to_numpy_ndarrays()
    assert [a.dtype for a in found] == [np.float32, np.float64, np.float16]
    assert [float(a.flat[0]) for a in found] == [0.0, -1.0, 0.0]


def test_kinds_are_read_from_names_and_shapes():
    form = Form.of(first_model())
    assert {s.name: s.kind for s in form.layout.segments} == {s.name: s.kind for s in Layout.of(Model()).segments}
    assert [s.name for s in form.layout.buffers] == ["norm.running_mean", "norm.running_var"]
    assert form.layout.local == ("norm.num_batches_tracked",)
    listed = Form.of(ArrayRecord([np.ones((4, 1, 3, 3)), np.ones(4), np.ones((2, 4)), np.ones(2)]))
    assert [s.name for s in listed.layout.segments] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert LayerType().joules(listed.layout).tolist() == [1, 1, 5, 5]


def test_a_layout_tells_what_names_do_not(tmp_path):
    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.fc = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 2)

    seen = []

    class Spy:
        def init(self, layout):
            seen.append([s.kind for s in layout.segments])
            return DENSE.init(layout)

        def __call__(self, update, state):
            return DENSE(update, state)

    app = ClientApp(mods=[compress(Spy(), layout=Layout.of(Words()), folder=tmp_path)])

    @app.train()
    def train(message, context):
        return Message(
            RecordDict({"arrays": message.content["arrays"], "m": MetricRecord({"num-examples": 1})}), reply_to=message
        )

    grid = Rig({i: (app, context_of(i, **{"partition-id": i})) for i in (1, 2)})
    result = Sparse(FedAvg(fraction_evaluate=0.0), fleet=QUICK).start(
        grid, ArrayRecord(Words().state_dict()), num_rounds=1
    )
    assert result.train_metrics_clientapp[1]["joulegrad-used"] == 2
    assert seen == [["embedding", "linear", "bias"]] * 2


def test_what_is_not_training_passes_and_what_cannot_be_compressed_is_said(tmp_path):
    app = ClientApp(mods=[compress(DENSE, folder=tmp_path)])
    app.query()(lambda message, context: Message(message.content, reply_to=message))
    app.train()(lambda message, context: replied(message, message.content["arrays"]))
    odd = RecordDict({"arrays": ArrayRecord([np.ones(2, np.int64)]), "more": ArrayRecord([np.ones(2, np.int64)])})
    asked = [Message(odd, 1, "query"), Message(RecordDict(), 1, "query")]
    for message in asked:
        assert app(message, context_of(1, site="x")).content == message.content
    with pytest.raises(ValueError, match="one ArrayRecord in a message"):
        app(Message(odd, 1, "train"), context_of(1, site="x"))
    other = ClientApp(mods=[compress(DENSE, layout=Layout.from_shapes({"w": (2,)}), folder=tmp_path)])
    other.train()(lambda message, context: replied(message, message.content["arrays"]))
    with pytest.raises(ValueError, match="the arrays begin with"):
        other(Message(RecordDict({"arrays": first_model()}), 1, "train"), context_of(1, site="x"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: compress("TopK"), "goes around an operator such as TopK"),
        (lambda: Sparse(FedAvg), "goes around a strategy such as FedAvg()"),
        (lambda: Sparse(Sparse(FedAvg())), "decoded once"),
        (lambda: Fleet(deadline_seconds=0), "deadline_seconds must be a number of seconds > 0, got 0"),
        (lambda: Fleet(minimum=0), "minimum must be a whole number ≥ 1, got 0"),
        (lambda: Limits(norm=0.5), "norm must be a number ≥ 1, got 0.5"),
        (lambda: Limits(most_examples=0), "most_examples must be a whole number ≥ 1"),
        (lambda: Form.of(ArrayRecord()), "needs at least one array"),
        (lambda: Form.of(ArrayRecord([np.ones(2, np.complex64)])), "real floats and of integers"),
        (lambda: Form.of(ArrayRecord([np.ones(2, np.int64)])), "none of the 1 arrays is a parameter"),
        (
            lambda: Form.of(first_model()).flat(ArrayRecord([np.ones(3)])),
            "another model's: 'conv.weight' has shape None",
        ),
    ],
)
def test_mistakes_are_told_in_the_users_words(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


# --- downlink -------------------------------------------------------------------------------------------------------


def test_after_the_first_round_only_what_has_changed_comes_down(tmp_path):
    grid = Rig(fleet_of(ErrorFeedback(TopK(density=0.01)), tmp_path))
    result = trained(Sparse(FedAvg(fraction_evaluate=0.0), fleet=QUICK), grid, 4)
    down = [result.train_metrics_clientapp[r]["joulegrad-bytes-down"] for r in (1, 2, 3, 4)]
    assert down[0] > 3 * 4 * 389
    assert max(down[1:]) < down[0] / 10
    assert [result.train_metrics_clientapp[r]["joulegrad-whole-models"] for r in (1, 2, 3, 4)] == [3, 0, 0, 0]


def test_what_the_app_sees_is_the_servers_model_to_the_last_bit(tmp_path):
    seen = {}

    def watch(model, context, message):
        seen.setdefault(message.content["config"]["server-round"], []).append(ArrayRecord(model.state_dict()))
        step(model, context, message)

    class Watching(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            self.sent = {**getattr(self, "sent", {}), server_round: arrays}
            return super().configure_train(server_round, arrays, config, grid)

    inner = Watching(fraction_evaluate=0.0)
    trained(Sparse(inner, fleet=QUICK), Rig(fleet_of(FEEDBACK, tmp_path, learn=watch)), 4)
    for round_, models in seen.items():
        assert len(models) == 3
        assert all(same(model, inner.sent[round_]) for model in models)


def test_a_node_that_missed_rounds_catches_up_with_one_payload(tmp_path):
    grid = Rig(fleet_of(ErrorFeedback(TopK(density=0.01)), tmp_path))
    strategy = Sparse(FedAvg(fraction_evaluate=0.0), fleet=Fleet(poll_seconds=0.001, deadline_seconds=0.01, strikes=9))
    rounds = []

    def absent(round_, arrays):
        rounds.append(round_)
        grid.silent = {100} if round_ in (1, 2) else set()

    result = trained(strategy, grid, 5, evaluate_fn=absent)
    found = result.train_metrics_clientapp
    assert [found[r]["joulegrad-failed"] for r in (1, 2, 3, 4, 5)] == [0, 1, 1, 0, 0]
    assert found[4]["joulegrad-whole-models"] == 0
    assert found[4]["joulegrad-bytes-down"] > found[5]["joulegrad-bytes-down"]
    assert strategy.broadcast.holds[100] == strategy.broadcast.version - 1


def test_a_node_that_lost_its_model_gets_the_whole_in_the_same_round(tmp_path):
    grid = Rig(fleet_of(FEEDBACK, tmp_path))

    def lose(round_, arrays):
        if round_ == 2:
            [gone] = list(tmp_path.glob("*/*/model.safetensors"))[:1]
            gone.unlink()
        if round_ == 3:
            [torn] = list(tmp_path.glob("*/*/model.safetensors"))[:1]
            torn.write_bytes(torn.read_bytes()[:-7])

    result = trained(Sparse(FedAvg(fraction_evaluate=0.0), fleet=QUICK), grid, 4, evaluate_fn=lose)
    kept = trained(Sparse(FedAvg(fraction_evaluate=0.0), fleet=QUICK), Rig(fleet_of(FEEDBACK, tmp_path / "other")), 4)
    assert [result.train_metrics_clientapp[r]["joulegrad-whole-models"] for r in (1, 2, 3, 4)] == [3, 0, 1, 1]
    assert [result.train_metrics_clientapp[r]["joulegrad-failed"] for r in (1, 2, 3, 4)] == [0, 0, 0, 0]
    assert same(result.arrays, kept.arrays)


def test_in_flowers_own_loop_a_node_that_lost_its_model_has_it_again_a_round_later(tmp_path):
    """So it is where another strategy goes around Sparse: nobody is asked twice in a round."""
    grid = Rig(fleet_of(FEEDBACK, tmp_path))

    def lose(round_, arrays):
        if round_ == 1:
            min(tmp_path.glob("*/*/model.safetensors")).unlink()

    strategy = Sparse(FedAvg(fraction_evaluate=0.0), fleet=QUICK)
    result = Strategy.start(strategy, grid, first_model(), num_rounds=3, timeout=5, evaluate_fn=lose)
    found = result.train_metrics_clientapp
    assert [found[t]["joulegrad-failed"] for t in (1, 2, 3)] == [0, 1, 0]
    assert [found[t]["joulegrad-whole-models"] for t in (1, 2, 3)] == [3, 0, 1]


def test_a_model_that_was_tampered_with_on_the_node_is_noticed(tmp_path):
    from safetensors.torch import load_file, save_file

    grid = Rig(fleet_of(FEEDBACK, tmp_path))

    def tamper(round_, arrays):
        if round_ == 2:
            path = sorted(tmp_path.glob("*/*/model.safetensors"))[0]
            tensors = load_file(path)
            tensors["weights"] += 1.0
            save_file(tensors, path, {"form": Form.of(first_model()).to_json()})

    result = trained(Sparse(FedAvg(fraction_evaluate=0.0), fleet=QUICK), grid, 3, evaluate_fn=tamper)
    assert result.train_metrics_clientapp[3]["joulegrad-whole-models"] == 1
    assert result.train_metrics_clientapp[3]["joulegrad-used"] == 3


# --- what clients remember ------------------------------------------------------------------------------------------


def residuals(folder):
    """Of each node: what is kept, and what waits to be acknowledged."""
    from safetensors.torch import load_file

    return {
        p.parent.parent.name: {f.name: load_file(f).get("residual") for f in p.parent.glob("*t.safetensors")}
        for p in folder.glob("*/*/owner.json")
    }


def test_a_reply_that_never_arrived_is_as_if_it_had_never_been_sent(tmp_path):
    """The round is repeated in the client's memory: what it had before is what it goes on from."""
    lost = {"now": False}
    grid = Rig(fleet_of(FEEDBACK, tmp_path), lost=lambda m: lost["now"] and m.metadata.dst_node_id == 100)
    states = []

    def between(round_, arrays):
        lost["now"] = round_ == 1  # in round 2
        states.append(residuals(tmp_path))

    strategy = Sparse(FedAvg(fraction_evaluate=0.0), fleet=Fleet(poll_seconds=0.001, deadline_seconds=0.01))
    trained(strategy, grid, 4, evaluate_fn=between)
    [name] = [n for n in states[1] if torch.equal(states[3][n]["kept.safetensors"], states[1][n]["sent.safetensors"])]
    for other in set(states[1]) - {name}:
        assert torch.equal(states[3][other]["kept.safetensors"], states[2][other]["sent.safetensors"])


def test_nothing_is_used_twice_and_nothing_forgotten_when_a_round_is_void(tmp_path):
    """All replies of round 2 are lost: the training that follows is the one in which round 2 never was."""
    lost = {"now": False}

    def learn(model, context, message):  # the same in every round, so that rounds can be compared
        message.content["config"]["server-round"] = 1
        step(model, context, message)

    def of(folder, rounds, losing):
        grid = Rig(fleet_of(FEEDBACK, folder, learn=learn), lost=lambda m: lost["now"])

        def between(round_, arrays):
            lost["now"] = round_ + 1 == losing

        strategy = Sparse(
            FedAvg(fraction_evaluate=0.0), fleet=Fleet(poll_seconds=0.001, deadline_seconds=0.01, strikes=9)
        )
        return strategy.start(grid, first_model(), num_rounds=rounds, timeout=0.05, evaluate_fn=between)

    assert same(of(tmp_path / "a", 4, losing=2).arrays, of(tmp_path / "b", 3, losing=None).arrays)


def test_memory_is_in_files_so_that_a_restarted_node_goes_on(tmp_path):
    nodes = fleet_of(FEEDBACK, tmp_path)

    def restart(round_, arrays):  # new processes and new numbers, as SuperNodes without keys get them
        nodes.clear()
        for i in range(3):
            number = 1000 * (round_ + 1) + i
            nodes[number] = app_of(FEEDBACK, folder=tmp_path), context_of(number, **{"partition-id": i})
        grid.nodes = nodes

    grid = Rig(nodes)
    restarted = trained(Sparse(FedAvg(fraction_evaluate=0.0), fleet=QUICK), grid, 4, evaluate_fn=restart)
    steady = trained(Sparse(FedAvg(fraction_evaluate=0.0), fleet=QUICK), Rig(fleet_of(FEEDBACK, tmp_path / "b")), 4)
    assert same(restarted.arrays, steady.arrays)


def test_two_nodes_of_one_name_share_nothing(tmp_path, monkeypatch):
    import joulegrad.flower.memory as memory

    monkeypatch.setattr(memory, "_supernode", lambda: supernode)
    monkeypatch.setattr(memory, "_begun", lambda process: {1: "a", 2: "b"}.get(process))
    one, two = context_of(1, site="x"), context_of(2, site="x")
    supernode = 1
    first = Memory(one, "t", tmp_path)
    supernode = 2
    assert Memory(two, "t", tmp_path).folder != first.folder  # the other lives
    supernode = 1
    assert Memory(one, "t", tmp_path).folder == first.folder
    monkeypatch.setattr(memory, "_begun", lambda process: {2: "b"}.get(process))
    supernode = 2
    assert Memory(context_of(3, site="x"), "t", tmp_path).folder == first.folder  # the other is dead: a restart
    nameless = {Memory(context_of(n), "t", tmp_path).folder for n in (1, 2)}
    assert len(nameless) == 2


def test_a_process_that_comes_too_late_changes_nothing(tmp_path):
    from joulegrad.flower.memory import Stale

    context = context_of(1, site="x")
    old, new = Memory(context, "t", tmp_path), None
    old.remember({"residual": torch.zeros(2)}, "aa")
    new = Memory(context, "t", tmp_path)
    with pytest.raises(Stale, match="too late"):
        old.remember({"residual": torch.ones(2)}, "bb")
    assert torch.equal(new.state({"aa"})["residual"], torch.zeros(2))


def test_only_the_last_trainings_are_kept(tmp_path):
    for training in ("a", "b", "c", "d", "e"):
        Memory(context_of(1, site="x"), training, tmp_path)
    [node] = tmp_path.iterdir()
    assert len(list(node.iterdir())) == 3
    assert (node / "e").is_dir()


# --- what the server keeps ------------------------------------------------------------------------------------------


class Death(BaseException):
    """Nobody catches it: as SIGKILL."""


@pytest.mark.parametrize("evaluating", [1.0, 0.0])
@pytest.mark.parametrize("moment", ["after training", "while sending", "before the checkpoint", "after the checkpoint"])
@pytest.mark.parametrize("inner", [FedAvg, partial(FedAdam, eta=0.01), partial(FedAvgM, server_momentum=0.9)])
def test_a_server_that_died_goes_on_to_the_same_model(tmp_path, monkeypatch, moment, inner, evaluating):
    import joulegrad.flower.checkpoint as checkpoint

    def strategy(folder):
        return Sparse(inner(fraction_train=0.7, fraction_evaluate=evaluating), checkpoint=folder, fleet=QUICK, seed=3)

    steady = trained(strategy(tmp_path / "s"), Rig(fleet_of(FEEDBACK, tmp_path / "a", n=5)), 5)
    grid = Rig(fleet_of(FEEDBACK, tmp_path / "b", n=5))
    write, pull, push = checkpoint.write, grid.pull_messages, grid.push_messages

    def dying(folder, round_, tree):
        if round_ == 3 and moment == "before the checkpoint":
            raise Death
        write(folder, round_, tree)
        if round_ == 3 and moment == "after the checkpoint":
            raise Death

    def pulling(ids):
        found = pull(ids)
        if moment == "after training" and strategy_.broadcast.version == 2:
            raise Death
        return found

    def pushing(messages):
        found = push(messages)
        if moment == "while sending" and strategy_.broadcast.version == 3:
            pull(list(found)[:1])
            raise Death
        return found

    monkeypatch.setattr(checkpoint, "write", dying)
    grid.pull_messages, grid.push_messages = pulling, pushing
    strategy_ = strategy(tmp_path / "t")
    with pytest.raises(Death):
        trained(strategy_, grid, 5)
    monkeypatch.setattr(checkpoint, "write", write)
    grid.pull_messages, grid.push_messages = pull, push
    resumed = trained(strategy(tmp_path / "t"), grid, 5)
    assert same(resumed.arrays, steady.arrays)
    assert resumed.train_metrics_clientapp.keys() == steady.train_metrics_clientapp.keys()
    assert [m["loss"] for m in resumed.train_metrics_clientapp.values()] == [1.5] * 5


def test_a_finished_training_is_only_read_and_a_damaged_checkpoint_is_left_out(tmp_path):
    grid = Rig(fleet_of(FEEDBACK, tmp_path / "a"))
    result = trained(Sparse(FedAvg(), checkpoint=tmp_path / "s", fleet=QUICK), grid, 3)
    sent = len(grid.sent)
    again = trained(Sparse(FedAvg(), checkpoint=tmp_path / "s", fleet=QUICK), grid, 3)
    assert len(grid.sent) == sent
    assert same(result.arrays, again.arrays)
    last = max((tmp_path / "s").iterdir())
    last.write_bytes(last.read_bytes()[:100])
    assert trained(Sparse(FedAvg(), checkpoint=tmp_path / "s", fleet=QUICK), grid, 3).arrays
    assert len(grid.sent) > sent
    other = ArrayRecord([np.ones((3, 3), np.float32)])
    with pytest.raises(ValueError, match="another form"):
        Sparse(FedAvg(), checkpoint=tmp_path / "s").start(grid, other)


# --- a fleet that keeps moving --------------------------------------------------------------------------------------


def test_a_round_ends_at_its_deadline_with_enough_replies(tmp_path):
    grid = Rig(fleet_of(FEEDBACK, tmp_path), silent={101})
    fleet = Fleet(deadline_seconds=0.01, minimum=2, poll_seconds=0.001, strikes=2, rest=2)
    result = trained(Sparse(FedAvg(fraction_evaluate=0.0), fleet=fleet), grid, 6)
    found = [(m["joulegrad-used"], m["joulegrad-failed"]) for m in result.train_metrics_clientapp.values()]
    assert found == [(2, 1), (2, 1), (2, 0), (2, 0), (2, 1), (2, 1)]  # set aside for two rounds, then tried again


@pytest.mark.parametrize("fate", ["away", "started anew"])
def test_a_node_that_lost_its_question_is_not_waited_for_until_the_timeout(fate, tmp_path, monkeypatch):
    """Seconds are counted, not waited for."""
    import joulegrad.flower.fleet as module

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds
            grid.fate[101] = fate

    monkeypatch.setattr(module, "time", clock := Clock())
    grid = Rig(fleet_of(FEEDBACK, tmp_path), silent={101})
    result = Sparse(FedAvg(fraction_evaluate=0.0)).start(grid, first_model(), num_rounds=1, timeout=3600)
    assert result.train_metrics_clientapp[1]["joulegrad-used"] == 2
    assert 60 <= clock.now < 100


def test_a_round_with_too_few_replies_is_void(tmp_path):
    grid = Rig(fleet_of(FEEDBACK, tmp_path), silent={101, 102})
    fleet = Fleet(minimum=2, poll_seconds=0.001)
    result = Sparse(FedAvg(fraction_evaluate=0.0), fleet=fleet).start(grid, first_model(), num_rounds=1, timeout=0.05)
    assert same(result.arrays, first_model())
    assert result.train_metrics_clientapp[1]["joulegrad-used"] == 0


def test_too_few_nodes_are_not_waited_for_for_ever(tmp_path):
    grid = Rig(fleet_of(FEEDBACK, tmp_path, n=2))
    fleet = Fleet(wait_seconds=0.02, poll_seconds=0.001)
    inner = FedAvg(min_available_nodes=10, min_train_nodes=10, fraction_evaluate=0.0)
    result = trained(Sparse(inner, fleet=fleet), grid, 1)
    assert result.train_metrics_clientapp[1]["joulegrad-used"] == 2
    assert inner.min_available_nodes == 10
    with pytest.raises(TimeoutError, match="2 nodes are there, and at least 3 are needed"):
        trained(Sparse(inner, fleet=Fleet(wait_seconds=0.02, minimum=3)), grid, 1)


def test_sampling_is_the_seeds_and_leaves_pythons_own_alone(tmp_path):
    import random

    def chosen(seed):
        grid = Rig(fleet_of(TopK(k=1), tmp_path, n=9))
        trained(Sparse(FedAvg(fraction_train=0.3, fraction_evaluate=0.0), seed=seed, fleet=QUICK), grid, 3)
        return [m.metadata.dst_node_id for m in grid.sent]

    random.seed(5)
    before = random.getstate()
    assert chosen(1) == chosen(1) != chosen(2)
    assert random.getstate() == before


# --- nothing gets in ------------------------------------------------------------------------------------------------


def payload_with(value=None, density=0.05, buffers=None, layout=None, indices=None):
    layout = layout or Form.of(first_model()).layout
    indices = torch.arange(int(density * layout.size)) if indices is None else indices
    update = joulegrad.SparseUpdate(indices, torch.full((len(indices),), value or 0.01), layout.size)
    if layout.buffers:
        update = update.with_buffers(torch.ones(layout.buffer_size) if buffers is None else buffers)
    return joulegrad.encode(update, layout)


def nan_payload():
    """Right in everything but one value, with a checksum that fits."""
    import zlib

    raw = bytearray(payload_with())
    end = len(raw) - 4 * 8  # the buffers come last
    raw[end - 4 : end] = np.float32(np.nan).tobytes()
    raw[24:28] = zlib.crc32(raw[28:], zlib.crc32(raw[:24])).to_bytes(4, "little")
    return bytes(raw)


OTHER = Layout.from_shapes({"w": (389,)})
ATTACKS = {
    "noise": (lambda data: data[:16] + b"\x00" * 64, "NotAPayload"),
    "nothing": (lambda data: b"", "does not answer"),
    "cut": (lambda data: data[:-3], "Truncated"),
    "flipped bit": (lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:], "ChecksumMismatch"),
    "trailing": (lambda data: data + b"x", "TrailingBytes"),
    "another model": (lambda data: data[:16] + payload_with(layout=OTHER), "OtherModel"),
    "NaN": (lambda data: data[:16] + nan_payload(), "NotFinite"),
    "huge": (lambda data: data[:16] + payload_with(1e30), "too large"),
    "large": (lambda data: data[:16] + payload_with(50.0), "too large"),
    "huge statistics": (lambda data: data[:16] + payload_with(buffers=torch.full((8,), 1e20)), "too large"),
    "negative variance": (lambda data: data[:16] + payload_with(buffers=torch.full((8,), -1.0)), "negative"),
}


def hostile(change):
    """A mod around ours, which does with the reply whatever it wants."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 1 and message.metadata.message_type == "train":
            change(reply, message)
        return reply

    return mod


def with_data(change):
    def on(reply, message):
        [array] = reply.content["arrays"].values()
        data = change(array.data)
        reply.content["arrays"] = ArrayRecord({"joulegrad": Array("uint8", (len(data),), STYPE, data)})

    return on


@pytest.fixture(scope="module")
def without_the_hostile(tmp_path_factory):
    """The model that the honest make without node 101."""
    nodes = fleet_of(FEEDBACK, tmp_path_factory.mktemp("honest"), n=4)
    del nodes[101]
    return trained(Sparse(FedAvg(), fleet=QUICK), Rig(nodes), 2).arrays


def attacked(tmp_path, change, rounds=2):
    strategy = Sparse(FedAvg(), fleet=QUICK, journal=tmp_path / "journal.jsonl")
    grid = Rig(fleet_of(FEEDBACK, tmp_path / "nodes", n=4, outer=[hostile(change)]))
    return strategy, trained(strategy, grid, rounds)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_payload_is_refused_named_and_counted(attack, tmp_path, without_the_hostile):
    change, reason = ATTACKS[attack]
    strategy, result = attacked(tmp_path, with_data(change))
    assert [(r.round, r.node) for r in strategy.refused] == [(1, 101), (2, 101)]
    assert all(reason in r.reason for r in strategy.refused), strategy.refused
    assert [m["joulegrad-refused"] for m in result.train_metrics_clientapp.values()] == [1, 1]
    assert same(result.arrays, without_the_hostile)
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [r["node"] for r in rows if r["refused"]] == ["101", "101"]
    assert sum(r["used"] for r in rows) == 6


def metrics(**found):
    def on(reply, message):
        reply.content["metrics"] = MetricRecord({"num-examples": 11, "loss": 1.5, **found})

    return on


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (metrics(**{"num-examples": 10**9}), "absurd examples"),
        (metrics(**{"num-examples": 10**6}), "absurd examples"),
        (metrics(**{"num-examples": -5}), "absurd examples"),
        (metrics(**{"num-examples": 0}), "absurd examples"),
        (metrics(**{"num-examples": float("nan")}), "absurd examples"),
        (metrics(**{"num-examples": float("inf")}), "absurd examples"),
        (metrics(**{"num-examples": [1, 2]}), "absurd examples"),
        (metrics(mine=1.0), "differ from most"),
        (metrics(loss=[1.0, 2.0]), "differ from most"),
        (lambda r, m: r.content.update({"more": MetricRecord({"num-examples": 1})}), "has 2"),
        (lambda r, m: r.content.update({"more": ArrayRecord([np.ones(3)])}), "has 2"),
        (lambda r, m: r.content.pop("metrics"), "has 0"),
        (lambda r, m: r.content.pop("arrays"), "has 0"),
        (lambda r, m: r.content.update({"arrays": first_model()}), "no joulegrad payload"),
    ],
)
def test_a_hostile_reply_is_refused_named_and_counted(change, reason, tmp_path, without_the_hostile):
    strategy, result = attacked(tmp_path, change)
    assert [(r.round, r.node) for r in strategy.refused] == [(1, 101), (2, 101)]
    assert all(reason in r.reason for r in strategy.refused), strategy.refused
    assert same(result.arrays, without_the_hostile)


@pytest.mark.parametrize("what", ["all of it", "the arrays"])
def test_a_replayed_reply_is_refused(what, tmp_path):
    old = {}

    def replay(reply, message):
        if not old:
            old.update(reply.content)
        reply.content["arrays"] = old["arrays"]
        if what == "all of it":
            reply.content = RecordDict(dict(old))

    strategy, _ = attacked(tmp_path, replay, rounds=3)
    assert [(r.round, r.node) for r in strategy.refused] == [(2, 101), (3, 101)]
    assert all("replayed" in r.reason for r in strategy.refused)


def test_another_nodes_reply_is_refused(tmp_path):
    heard = []

    def listen(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "train":
            if context.node_config["partition-id"] == 0:
                heard.append(reply.content["arrays"])
            elif context.node_config["partition-id"] == 1 and heard:
                reply.content["arrays"] = heard[-1]
        return reply

    strategy = Sparse(FedAvg(), fleet=QUICK)
    nodes = fleet_of(FEEDBACK, tmp_path, n=3, outer=[listen])
    trained(strategy, Rig(nodes), 2)
    assert {r.node for r in strategy.refused} <= {101}
    assert strategy.refused


def test_a_node_that_is_refused_again_and_again_is_set_aside(tmp_path):
    strategy, result = attacked(tmp_path, with_data(lambda data: b""), rounds=6)
    asked = [m["joulegrad-used"] + m["joulegrad-refused"] for m in result.train_metrics_clientapp.values()]
    assert len([r for r in strategy.refused if r.node == 101]) < 6
    assert min(asked) == 3


def test_one_that_evaluates_wrongly_stops_nobody(tmp_path):
    def lie(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 1 and message.metadata.message_type == "evaluate":
            reply.content["metrics"] = MetricRecord({"num-examples": 5, "else": 1.0})
        return reply

    strategy = Sparse(FedAvg(), fleet=QUICK)
    result = trained(strategy, Rig(fleet_of(FEEDBACK, tmp_path, outer=[lie])), 1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5
    assert [r.node for r in strategy.refused] == [101]


def test_a_model_that_is_not_finite_is_not_taken(tmp_path):
    class Broken(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return ArrayRecord(
                {key: Array(np.asarray(a.numpy() * np.float32(np.nan))) for key, a in arrays.items()}
            ), metrics

    first, inner = first_model(), Broken(fraction_evaluate=0.0)
    result = trained(Sparse(inner, fleet=QUICK), Rig(fleet_of(DENSE, tmp_path)), 2)
    assert same(result.arrays, first)


def test_a_broken_clients_error_is_told_and_the_round_goes_on(tmp_path, caplog):
    def broken(model, context, message):
        if context.node_config["partition-id"] == 2:
            raise RuntimeError("the disk is full")
        step(model, context, message)

    result = trained(Sparse(FedAvg(), fleet=QUICK), Rig(fleet_of(FEEDBACK, tmp_path, learn=broken)), 1)
    assert result.train_metrics_clientapp[1]["joulegrad-used"] == 2
    assert result.train_metrics_clientapp[1]["joulegrad-failed"] == 1


def test_config_of_ours_is_not_seen_by_the_app(tmp_path):
    seen = []

    def look(model, context, message):
        seen.append(sorted(message.content))
        step(model, context, message)

    trained(
        Sparse(FedAvg(), fleet=QUICK),
        Rig(fleet_of(FEEDBACK, tmp_path, learn=look)),
        1,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    assert seen == [["arrays", "config"]] * 3


# --- the journal ----------------------------------------------------------------------------------------------------


def test_the_journal_has_bytes_and_joules_of_every_message(tmp_path):
    nodes = fleet_of(FEEDBACK, tmp_path / "nodes")
    nodes[100][1].node_config.update(name="attic", device="rpi4", link="wifi-rpi4")
    (tmp_path / "mine.toml").write_text("kind = 'link'")
    nodes[101][1].node_config.update(device="rpi4", link=str(tmp_path / "mine.toml"))  # a node names no files of ours
    journal = tmp_path / "journal.jsonl"
    result = trained(Sparse(FedAvg(), fleet=QUICK, journal=journal), Rig(nodes), 2)
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [(r["round"], r["kind"]) for r in rows] == [(1, "train")] * 3 + [(1, "evaluate")] * 3 + [
        (2, "train")
    ] * 3 + [(2, "evaluate")] * 3
    for round_, metrics in result.train_metrics_clientapp.items():
        own = [r for r in rows if (r["round"], r["kind"]) == (round_, "train")]
        assert sum(r["bytes_up"] for r in own) == metrics["joulegrad-bytes-up"]
        assert sum(r["bytes_down"] for r in own) == metrics["joulegrad-bytes-down"]
        assert sum(r["entries"] for r in own) == metrics["joulegrad-entries"]
    evaluated = [r["bytes_down"] for r in rows if (r["round"], r["kind"]) == (1, "evaluate")]
    assert result.evaluate_metrics_clientapp[1]["joulegrad-bytes-down"] == sum(evaluated)
    first = next(r for r in rows if r["node"] == "100")
    assert first["name"] == "attic"
    sent = first["bytes_up"] + journal_module.FLOOR_BYTES_UP
    [expected] = [row.joules for row in Ledger(device="rpi4", link="wifi-rpi4").uplink(sent) if row.phase == "uplink"]
    assert first["joules"]["coded"]["uplink"] == expected
    assert [r["joules"] for r in rows if r["node"] != "100"] == [None] * 8
