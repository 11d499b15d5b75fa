from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from joulegrad import Layout


def kinds(model: nn.Module) -> dict[str, str]:
    return {s.name: s.kind for s in Layout.of(model).segments}


class TinyViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 16))
        self.pos = nn.Parameter(torch.zeros(1, 5, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.block(x))[:, 0])


class TiedLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


class MyRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.bias = nn.Parameter(torch.zeros(4))


def test_kinds_of_a_vit():
    k = kinds(TinyViT())
    assert k["patch.weight"] == "conv"
    assert k["patch.bias"] == "bias"
    assert k["cls"] == k["pos"] == "other"
    assert k["block.self_attn.in_proj_weight"] == k["block.self_attn.out_proj.weight"] == "linear"
    assert k["block.self_attn.in_proj_bias"] == k["block.linear1.bias"] == "bias"
    assert k["block.norm1.weight"] == k["block.norm1.bias"] == k["norm.bias"] == "norm"
    assert k["head.weight"] == "linear"


def test_kinds_of_recurrent_embedding_and_custom_norm():
    k = kinds(TiedLM())
    assert k["embed.weight"] == "embedding"
    assert k["rnn.weight_ih_l0"] == k["rnn.weight_hh_l1"] == "recurrent"
    assert k["rnn.bias_ih_l0"] == "bias"
    assert set(kinds(MyRMSNorm()).values()) == {"norm"}


def test_parametrised_weights_keep_the_kind_of_their_module():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    k = kinds(model)
    assert k["0.parametrizations.weight.original0"] == "linear"
    assert k["0.bias"] == "bias"
    root = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    assert kinds(root)["parametrizations.weight.original1"] == "linear"


def test_tied_weights_count_once_and_both_uses_see_the_assignment():
    model = TiedLM()
    layout = Layout.of(model)
    assert layout.segments[0].tied == ("head.weight",)
    assert layout.size == sum(p.numel() for p in model.parameters())
    layout.assign(model, torch.arange(layout.size).float())
    assert model.head.weight is model.embed.weight
    assert model.head.weight[1, 0] == 6


def test_frozen_parameters_are_excluded_and_listed():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    layout = Layout.of(model)
    assert [s.name for s in layout.segments] == ["1.weight", "1.bias"]
    assert layout.frozen == ("0.weight", "0.bias")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.ReLU(), "ReLU has no trainable parameters: it has none at all"),
        (nn.Linear(2, 1).requires_grad_(False), "all 2 are frozen"),
        (nn.LazyLinear(3), "'weight', 'bias' of LazyLinear have no shape yet"),
        (nn.Sequential(nn.LazyBatchNorm1d()), "run one forward pass"),
        (nn.Linear(2, 1, dtype=torch.complex64), "is complex"),
    ],
)
def test_models_without_a_layout_say_why(model, message):
    with pytest.raises(ValueError, match=message):
        Layout.of(model)


def test_channels_last_reads_and_writes_in_logical_order():
    model = nn.Conv2d(3, 4, 3)
    flat = Layout.of(model).values(model)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    layout = Layout.of(last)
    assert torch.equal(layout.values(last), flat)
    layout.assign(last, flat + 1)
    assert last.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(layout.values(last), flat + 1)
    transposed = nn.Linear(3, 2)
    transposed.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).T)
    assert Layout.of(transposed).values(transposed)[:6].tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_computed_in_float32_and_written_back_in_their_own(dtype):
    model = nn.Linear(3, 2).to(dtype)
    layout = Layout.of(model)
    flat = layout.values(model)
    assert flat.dtype == torch.float32
    layout.assign(model, flat * 2)
    assert model.weight.dtype == dtype
    torch.testing.assert_close(model.weight.float().flatten(), flat[:6] * 2)
    layout.set_grad(model, flat)
    assert model.weight.grad.dtype == dtype
    assert layout.grad(model).dtype == torch.float32


def test_scalars_and_empty_tensors():
    model = nn.Module()
    model.a = nn.Parameter(torch.tensor(2.0))
    model.none = nn.Parameter(torch.zeros(0, 3))
    model.b = nn.Parameter(torch.ones(2))
    layout = Layout.of(model)
    assert [s.start for s in layout.segments] == [0, 1, 1]
    assert layout.values(model).tolist() == [2, 1, 1]
    assert layout.locate(0) == "a"
    assert layout.locate(2) == "b[1]"
    layout.assign(model, torch.tensor([5.0, 6.0, 7.0]))
    assert model.a.item() == 5


def test_values_are_a_snapshot_even_of_a_single_parameter():
    model = nn.Linear(4, 1, bias=False)
    layout = Layout.of(model)
    before = layout.values(model)
    with torch.no_grad():
        model.weight.add_(1)
    torch.testing.assert_close(layout.values(model) - before, torch.ones(4))


def test_update_and_assign_are_inverse():
    model = TinyViT()
    layout = Layout.of(model)
    before = layout.values(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 3, 8, 8)).square().sum().backward()
    gradient = layout.grad(model)
    optimiser.step()
    torch.testing.assert_close(before - layout.values(model), 0.1 * gradient, atol=1e-6, rtol=1e-3)
    layout.assign(model, before)
    assert torch.equal(layout.values(model), before)


def test_missing_gradients_are_named_or_zero():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0](torch.ones(2)).sum().backward()
    layout = Layout.of(model)
    with pytest.raises(ValueError, match=r"2 of 4 parameters have no gradient: '1.weight', '1.bias'"):
        layout.grad(model)
    assert layout.grad(model, missing="zero")[6:].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="missing must be"):
        layout.grad(model, missing="zeros")


def test_set_grad_drives_any_optimiser_without_copying():
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    layout = Layout.of(model)
    layout.assign(other, layout.values(model))
    flat = torch.tensor([1.0, 2.0, 3.0])
    layout.set_grad(model, flat)
    assert model.weight.grad.data_ptr() == flat.data_ptr()
    torch.optim.Adam(model.parameters(), lr=0.1).step()
    for p, g in zip(other.parameters(), (flat[:2].view(1, 2), flat[2:]), strict=True):
        p.grad = g.clone()
    torch.optim.Adam(other.parameters(), lr=0.1).step()
    assert torch.equal(layout.values(model), layout.values(other))


def test_buffers_policy():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    model.register_buffer("mask", torch.ones(3), persistent=False)
    layout = Layout.of(model)
    assert [b.name for b in layout.buffers] == ["1.running_mean", "1.running_var"]
    assert layout.local == ("1.num_batches_tracked",)
    assert layout.buffer_size == 4
    model(torch.randn(8, 1, 4, 4))
    flat = layout.buffer_values(model)
    fresh = copy.deepcopy(model)
    fresh[1].reset_running_stats()
    layout.assign_buffers(fresh, flat)
    assert torch.equal(fresh[1].running_var, model[1].running_var)
    own = Layout.of(model, buffers="local")
    assert own.buffer_size == 0
    assert len(own.local) == 3
    assert own.buffer_values(model).tolist() == []
    assert own.fingerprint != layout.fingerprint
    with pytest.raises(ValueError, match="buffers must be"):
        Layout.of(model, buffers="mean")


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch.compile's own
def test_a_wrapped_model_has_the_layout_of_what_it_wraps():
    model = nn.Linear(3, 2)
    layout = Layout.of(model)
    for wrapped in (nn.DataParallel(model), torch.compile(model)):
        assert Layout.of(wrapped).fingerprint == layout.fingerprint
        assert torch.equal(layout.values(wrapped), layout.values(model))


def test_another_model_is_refused_by_name():
    layout = Layout.of(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"not the layout's: parameter 'weight' has shape \(2, 4\), expected \(2, 3\)"):
        layout.values(nn.Linear(4, 2))
    with pytest.raises(ValueError, match="it has no parameter 'bias'"):
        layout.values(nn.Linear(3, 2, bias=False))
    with pytest.raises(ValueError, match=r"a flat vector of 8 entries, got shape \(7,\)"):
        layout.assign(nn.Linear(3, 2), torch.zeros(7))


FINGERPRINT = """
import torch
from torch import nn
from joulegrad import Layout
print(Layout.of(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))).fingerprint)
"""


def test_fingerprint_is_equal_across_processes_and_pinned():
    env_seeds = ("0", "1")
    found = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT], env={"PYTHONHASHSEED": s}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for s in env_seeds
    }
    assert found == {"19e17944b9e696a1"}  # changes only with a new version of the format


def test_fingerprint_differs_where_structure_does():
    models = [
        nn.Linear(3, 2),
        nn.Linear(2, 3),
        nn.Linear(3, 2, bias=False),
        nn.Sequential(nn.Linear(3, 2)),
        nn.Conv1d(3, 2, 1),
        nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).requires_grad_(False)),
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False)),
        TiedLM(),
    ]
    assert len({Layout.of(m).fingerprint for m in models}) == len(models)
    assert Layout.of(nn.Linear(3, 2).double()).fingerprint == Layout.of(nn.Linear(3, 2)).fingerprint
    layout = Layout.of(TinyViT())
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert Layout.of(TinyViT()) == layout
    assert hash(Layout.of(TinyViT())) == hash(layout)


def test_meta_models_have_a_layout_too():
    with torch.device("meta"):
        model = TinyViT()
    assert Layout.of(model).fingerprint == Layout.of(TinyViT()).fingerprint


def test_locate_names_every_entry():
    layout = Layout.of(nn.Conv2d(2, 3, 2))
    weight = torch.arange(24).view(3, 2, 2, 2)
    for i in (0, 7, 23):
        place = tuple((weight == i).nonzero()[0].tolist())
        assert layout.locate(i) == f"weight[{', '.join(map(str, place))}]"
    with pytest.raises(IndexError, match="outside"):
        layout.locate(27)


def test_from_shapes_refuses_what_makes_no_layout():
    with pytest.raises(ValueError, match="at least one"):
        Layout.from_shapes({})
    with pytest.raises(ValueError, match="kinds names parameters that shapes does not"):
        Layout.from_shapes({"a": (1,)}, {"b": "conv"})
    with pytest.raises(ValueError, match=r"the shape of 'a' is \(2, -1\); no side is negative"):
        Layout.from_shapes({"a": (2, -1)})
