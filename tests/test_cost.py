from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from joulegrad import CWMP, LayerType, Layout, PerEntry, Prices, SparseUpdate, Table, Uniform, joules_of

LAYOUT = Layout.from_shapes({"conv": (2, 3), "fc.weight": (4,), "fc.bias": (1,)}, {"fc.weight": "linear"})


def members(model: nn.Module, **kw) -> set[str]:
    return set(LayerType(**kw).members(Layout.of(model)))


class Net(nn.Module):
    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


def test_the_classifier_is_the_linear_layers_after_everything_else():
    conv, bn, fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 10)
    assert members(Net(conv=conv, bn=bn, fc=fc)) == {"fc.weight", "fc.bias"}
    vgg = Net(features=nn.Sequential(conv), classifier=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10)))
    assert members(vgg) == {f"classifier.{i}.{p}" for i in (0, 2) for p in ("weight", "bias")}
    vit = Net(blocks=nn.TransformerEncoderLayer(8, 2, 16), norm=nn.LayerNorm(8), head=nn.Linear(8, 10))
    assert members(vit) == {"head.weight", "head.bias"}
    lm = Net(embed=nn.Embedding(9, 4), rnn=nn.LSTM(4, 4), decoder=nn.Linear(4, 9))
    assert members(lm) == {"decoder.weight", "decoder.bias"}


def test_of_linear_layers_alone_the_last_is_the_classifier():
    assert members(nn.Linear(3, 2)) == {"weight", "bias"}
    assert members(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))) == {"2.weight", "2.bias"}


def test_without_a_classifier_layer_type_says_how_to_name_one():
    model = Net(conv=nn.Conv2d(3, 4, 3), head=nn.Conv2d(4, 10, 1))
    with pytest.raises(ValueError, match=r"finds no classifier.*'head.bias'.*layers=\('head.\*',\)"):
        members(model)
    assert members(model, layers=("head.*",)) == {"head.weight", "head.bias"}
    with pytest.raises(ValueError, match=r"no parameter matches 'fc.\*'; there are 'conv.weight'"):
        members(model, layers=("fc.*",))
    with pytest.raises(ValueError, match="tuple of name patterns"):
        LayerType(layers="fc.*")


def test_table_needs_exactly_one_pattern_a_parameter():
    with pytest.raises(ValueError, match=r"'fc.weight' matches no pattern; 'fc.bias' matches no pattern"):
        Table({"conv": 1.0}).joules(LAYOUT)
    with pytest.raises(ValueError, match=r"'fc.bias' matches \['fc.\*', '\*bias'\]"):
        Table({"conv": 1.0, "fc.*": 2.0, "*bias": 3.0}).joules(LAYOUT)


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, "5"])
def test_numbers_that_are_no_costs(bad):
    for make in (Uniform, lambda x: LayerType(classifier=x), lambda x: LayerType(other=x), lambda x: Table({"*": x})):
        with pytest.raises(ValueError, match="must be a positive finite number"):
            make(bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_cost_models_bad_answer_names_the_parameter(bad):
    class Mine:
        def joules(self, layout):
            return torch.tensor([1.0, bad, 1.0])

    with pytest.raises(ValueError, match=r"Mine: the cost of fc.weight is"):
        Prices.of(Mine(), LAYOUT)
    costs = torch.ones(11)
    costs[8] = bad
    with pytest.raises(ValueError, match=r"PerEntry: the cost of fc.weight\[2\] is"):
        CWMP(k=1, cost=PerEntry(costs)).init(LAYOUT)
    with pytest.raises(ValueError, match=r"PerEntry has costs of shape \(4,\), the layout 11 entries"):
        Prices.of(PerEntry(torch.ones(4)), LAYOUT)

    class Short:
        def joules(self, layout):
            return torch.ones(4)

    with pytest.raises(ValueError, match=r"Short gave costs of shape \(4,\); expected .* \(3,\) or .* \(11,\)"):
        Prices.of(Short(), LAYOUT)


def test_piecewise_costs_stay_one_number_a_segment():
    big = Layout.from_shapes({"a": (10**6,), "b": (10**6,)})
    state = CWMP(k=1, cost=Table({"a": 1.0, "b": 5.0})).init(big)
    assert state.prices.joules.numel() == 2
    assert state.prices.joules.dtype == torch.float64


def test_joules_are_summed_in_float64_and_in_any_order():
    layout = Layout.from_shapes({"w": (4000,)})
    sent = SparseUpdate(torch.arange(4000), torch.ones(4000), 4000)
    assert joules_of(sent, Uniform(1e-6), layout) == 0.004  # float32 says 0.0040000007
    assert joules_of(sent, PerEntry(torch.full((4000,), 1e-6, dtype=torch.float64)), layout) == 0.004
    costs = torch.tensor([1e16, 1.0, 1.0], dtype=torch.float64)
    prices = Prices.of(PerEntry(costs), Layout.from_shapes({"w": (3,)}))
    assert prices.total(torch.tensor([0, 1, 2])) == 1e16 + 2
    with pytest.raises(ValueError, match="the update has 3 entries, the layout 4000"):
        joules_of(SparseUpdate(torch.tensor([0]), torch.ones(1), 3), Uniform(), layout)
