"""Experiments as text and back, one setting changed, and what is said of a mistake."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from operators import ROWS

from joulegrad import CWMP, ErrorFeedback, LayerType, PerEntry, Quantized, Table, TopK, Uniform, WarmUp
from joulegrad.lab import notation
from joulegrad.lab.data import Data
from joulegrad.lab.experiment import DENSE, Experiment, LocalSGD, Server, changed, load
from joulegrad.lab.partition import IID, ByColumn, Dirichlet, Quantity, Shards

FULL = """
model = "cnn"
rounds = 3
seed = 7
partition = "Shards(clients=5, shards=3)"
compress = ["dense", "ErrorFeedback(Quantized(CWMP(density=0.01, cost=Table({'fc.*': 2.0, 'conv*': 1})), bits=1))"]
cost = "Uniform(0.5)"
clients_per_round = 2
on_nan = "drop"

[data]
train_examples = 100

[local]
lr = 1
steps = 4

[server]
optimizer = "Adam"
lr = 0.01
options = {betas = [0.9, 0.99], eps = 1e-3}
"""
MINE = """
from dataclasses import dataclass
import torch
from joulegrad import Rule, TopK
@dataclass(frozen=True)
class FirstK(Rule):
    k: int
    def choose(self, update, state):
        return torch.arange(self.k), state
def three(): return TopK(k=3)
class Loose:
    def init(self, layout): return ()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_file_is_read_as_the_objects_it_names(tmp_path):
    (tmp_path / "e.toml").write_text(FULL)
    experiment = Experiment.of(load(tmp_path / "e.toml"))
    assert experiment == Experiment(
        model="cnn",
        rounds=3,
        seed=7,
        partition=Shards(5, 3),
        compress=(DENSE, ErrorFeedback(Quantized(CWMP(density=0.01, cost=Table({"fc.*": 2.0, "conv*": 1})), bits=1))),
        cost=Uniform(0.5),
        clients_per_round=2,
        on_nan="drop",
        data=Data(train_examples=100),
        local=LocalSGD(lr=1, steps=4),
        server=Server("Adam", lr=0.01, options={"betas": (0.9, 0.99), "eps": 1e-3}),
    )
    assert experiment.operator(3) is experiment.operators[1]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_operator_survives_text_json_and_pickle(row):
    operator = row.make(Table({"fc.*": 2.0, "conv?": 1.0}), 0.5)
    experiment = Experiment(compress=(operator, DENSE), partition=Quantity(clients=3))
    if "own" in row.name:
        with pytest.raises(ValueError, match="a SendAll cannot be written down"):
            experiment.to_dict()
        return
    again = Experiment.of(json.loads(json.dumps(experiment.to_dict())))
    assert again == experiment
    assert again.fingerprint == experiment.fingerprint
    assert hash(again) == hash(experiment)
    assert pickle.loads(pickle.dumps(experiment)) == experiment


def test_fingerprints_tell_experiments_apart():
    some = [
        Experiment(),
        Experiment(seed=1),
        Experiment(compress=TopK(k=1)),
        Experiment(compress=TopK(k=2)),
        Experiment(cost=Uniform()),
        Experiment(cost=LayerType(classifier=4)),
        Experiment(local=LocalSGD(lr=0.1)),
        Experiment(server=Server(options={"momentum": 0.9})),
        Experiment(partition=ByColumn("who")),
    ]
    assert len({e.fingerprint for e in some}) == len(some)
    assert Experiment(partition=Dirichlet(10)).fingerprint == Experiment().fingerprint


def test_the_users_own_dataclasses_are_written_with_their_module(own):
    for text in ("ErrorFeedback(my_rules.FirstK(k=2))", "my_rules.FirstK(k=2)"):
        experiment = Experiment.of({"compress": text})
        assert experiment.to_dict()["compress"] == text
        assert Experiment.of(experiment.to_dict()) == experiment
    assert Experiment.of({"compress": "my_rules:FirstK(k=2)"}) == experiment
    assert Experiment.of({"compress": "my_rules:three()"}).compress == TopK(k=3)
    assert changed({"compress": "ErrorFeedback(my_rules.FirstK(k=2))"}, "compress.k", 5) == {
        "compress": "ErrorFeedback(my_rules.FirstK(k=5))"
    }


@pytest.mark.parametrize(
    ("settings", "key", "value", "expected"),
    [
        ({}, "rounds", 5, {"rounds": 5}),
        ({"local": {"lr": 0.1}}, "local.steps", 3, {"local": {"lr": 0.1, "steps": 3}}),
        ({}, "data.name", "cifar10", {"data": {"name": "cifar10"}}),
        ({}, "partition.alpha", 0.1, {"partition": "Dirichlet(clients=10, alpha=0.1)"}),
        ({}, "cost.classifier", 3, {"cost": "LayerType(classifier=3)"}),
        (
            {"compress": "ErrorFeedback(CWMP(density=0.1, cost=LayerType()))"},
            "compress.cost",
            "Uniform(2.0)",
            {"compress": "ErrorFeedback(CWMP(density=0.1, cost=Uniform(each=2.0)))"},
        ),
        (
            {"compress": "CWMP(density=0.1, cost=LayerType())"},
            "compress.layers",
            ["fc.*"],
            {"compress": "CWMP(density=0.1, cost=LayerType(layers=['fc.*']))"},
        ),
        (
            {"compress": ["TopK(density=0.1)", "ErrorFeedback(TopK(density=0.2))"]},
            "compress.density",
            0.5,
            {"compress": ["TopK(density=0.5)", "ErrorFeedback(TopK(density=0.5))"]},
        ),
    ],
)
def test_one_setting_is_changed(settings, key, value, expected):
    new = changed(settings, key, value)
    assert new == expected
    Experiment.of(new)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"round": 3}, "the key 'round' is not known; did you mean 'rounds'? There are: buffers, "),
        ({"rounds": "ten"}, "rounds must be a whole number, got 'ten'"),
        ({"rounds": 0}, "rounds must be a whole number ≥ 1, got 0"),
        ({"rounds": True}, "rounds must be a whole number, got True"),
        ({"seed": -1}, "seed must be a whole number ≥ 0, got -1"),
        ({"dropout": 1.0}, "dropout must be in [0, 1), got 1.0"),
        ({"downlink": "sparse"}, "downlink 'sparse' is not allowed. There are: delta, dense"),
        ({"buffers": "averag"}, "buffers 'averag' is not allowed; did you mean 'average'? There are: average, local"),
        ({"local": {"learning_rate": 1.0}}, "the key 'local.learning_rate' is not known. There are: augment, "),
        ({"local": {"lr": -1}}, "local.lr must be a positive number, got -1"),
        ({"local": {"lr": "fast"}}, "local.lr must be a number, got 'fast'"),
        ({"local": {"momentum": 1}}, "local.momentum must be in [0, 1), got 1"),
        ({"local": 3}, "local is a table, [local] in TOML, got 3"),
        ({"data": {"train_examples": 0}}, "data.train_examples must be a positive number, got 0"),
        ({"data": {"directory": "x"}}, "data.directory is not for digits, which is here already; got 'x'"),
        ({"server": {"optimizer": "Adan"}}, "server.optimizer 'Adan' is not in torch.optim; did you mean 'Adam'?"),
        ({"server": {"optimizer": "LBFGS"}}, "server.optimizer 'LBFGS' cannot step: LBFGS.step() missing"),
        ({"server": {"options": {"momentun": 0.9}}}, "server.optimizer 'SGD' cannot step: SGD.__init__() got"),
        ({"clients_per_round": 11}, "clients_per_round must be between 1 and the partition's 10 clients, or left out"),
        ({"compress": []}, "compress names no operator; for every entry write 'dense'"),
        ({"compress": "TopKK(k=1)"}, "compress: 'TopKK' in 'TopKK(k=1)' is not known; did you mean 'TopK'?"),
        ({"compress": "TopK(density=2.0)"}, "compress: density must be in (0, 1], got 2.0"),
        ({"compress": "TopK(dens=0.1)"}, "compress: TopK in 'TopK(dens=0.1)' has no argument 'dens'; did you mean"),
        ({"compress": "TopK"}, "compress: TopK in 'TopK' needs brackets: TopK(…)"),
        ({"compress": "TopK(k="}, "compress: 'TopK(k=' cannot be read: "),
        ({"compress": "TopK(k=1+1)"}, "compress: '1 + 1' in 'TopK(k=1+1)' is neither a number, a string nor a call"),
        ({"compress": "LayerType()"}, "compress must be an operator, such as TopK(density=0.1), got LayerType("),
        ({"compress": "os.system('true')"}, "compress: os.system in \"os.system('true')\" is no dataclass"),
        ({"compress": 0.1}, 'compress is written as in Python, compress = "TopK(density=1.0)", got 0.1'),
        ({"cost": "TopK(k=1)"}, "cost must be a cost model, such as LayerType(), got TopK(k=1"),
        ({"partition": ["IID(clients=3)"]}, "partition is one text, got ['IID(clients=3)']"),
        ({"partition": "IID(0)"}, "partition: IID(clients) must be a positive whole number, got 0"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_key_the_value_and_what_is_allowed(settings, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 the message is what is tested
        Experiment.of(settings)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("settings", "key", "value", "message"),
    [
        ({}, "compress.density", 0.1, "compress.density: compress is 'dense', which has no parts; name"),
        ({}, "rounds.first", 1, "rounds.first: rounds has no parts"),
        ({}, "locl.lr", 1, "the key 'locl' is not known; did you mean 'local'?"),
        ({}, "partition.alpa", 1.0, "partition.alpa: Dirichlet(clients=10) has no field 'alpa'; did you mean 'alpha'?"),
        ({}, "partition.alpha", -1, "partition.alpha: Dirichlet(alpha) must be a positive number, got -1"),
        ({}, "cost.layers", "Unifrm()", "cost.layers: 'Unifrm' in 'Unifrm()' is not known; did you mean 'Uniform'?"),
    ],
)  # fmt: skip
def test_a_change_that_will_not_do(settings, key, value, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        changed(settings, key, value)
    assert str(refused.value).startswith(message)


def test_what_python_gives_is_checked_too(own):
    import my_rules

    for wrong in ([TopK(k=1)], TopK, "dense"):
        with pytest.raises(ValueError, match="compress must be an operator, such as TopK"):
            Experiment(compress=wrong)
    with pytest.raises(ValueError, match=r"a Loose cannot be written down: .* must be dataclasses"):
        Experiment(compress=my_rules.Loose()).to_dict()
    with pytest.raises(ValueError, match="a Tensor cannot be written down"):
        Experiment(cost=PerEntry(torch.ones(3))).to_dict()
    assert (
        notation.write(WarmUp(TopK(density=np.float64(0.1)), steps=np.int64(3))) == "WarmUp(TopK(density=0.1), steps=3)"
    )
    assert json.dumps(Experiment(rounds=np.int64(3)).to_dict()["rounds"]) == "3"


def test_a_file_that_will_not_do(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.toml: No such file"):
        load(tmp_path / "nothing.toml")
    (tmp_path / "e.toml").write_text("rounds = ")
    with pytest.raises(ValueError, match=r"e\.toml is not TOML: Invalid value \(at end of document\)"):
        load(tmp_path / "e.toml")
    (tmp_path / "e.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"e\.json is not JSON"):
        load(tmp_path / "e.json")
    assert Experiment(partition=IID(3)).partition.clients == 3
