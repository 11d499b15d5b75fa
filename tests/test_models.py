"""The benchmark networks: their sizes, their shapes, their classifiers, and that they train."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

from joulegrad import LayerType, Layout
from joulegrad.lab.models import MODELS, build, resnet18, vgg11

COLOUR, GREY, DIGIT, FEATURES = (3, 32, 32), (1, 28, 28), (1, 8, 8), (30,)


def names(*modules):
    return {f"{module}.{part}" for module in modules for part in ("weight", "bias")}


# name, shape of one input, parameters, the classifier's names and its size, buffer entries
SIZES = [
    ("resnet18", COLOUR, 11_173_962, names("fc"), 5_130, 9_600),
    ("resnet18", DIGIT, 11_172_810, names("fc"), 5_130, 9_600),
    ("resnet18_groupnorm", COLOUR, 11_173_962, names("fc"), 5_130, 0),
    ("vgg11", COLOUR, 28_146_762, names("classifier.0", "classifier.3", "classifier.6"), 18_923_530, 5_504),
    ("mobilenet_v2", COLOUR, 2_236_682, names("fc"), 12_810, 34_112),
    ("mobilenet_v2", GREY, 2_236_106, names("fc"), 12_810, 34_112),
    ("vit_tiny", COLOUR, 5_362_762, names("head"), 1_930, 0),
    ("vit_tiny", GREY, 5_353_738, names("head"), 1_930, 0),
    ("cnn", COLOUR, 282_250, names("classifier.0", "classifier.2"), 262_858, 0),
    ("cnn", GREY, 220_234, names("classifier.0", "classifier.2"), 201_418, 0),
    ("cnn", DIGIT, 35_914, names("classifier.0", "classifier.2"), 17_098, 0),
    ("mlp", DIGIT, 79_754, names("classifier.0", "classifier.2"), 71_178, 0),
    ("mlp", FEATURES, 75_402, names("classifier.0", "classifier.2"), 71_178, 0),
    ("logistic", COLOUR, 30_730, names("fc"), 30_730, 0),
    ("logistic", FEATURES, 310, names("fc"), 310, 0),
]


@pytest.mark.parametrize(
    ("name", "shape", "size", "classifier", "classifier_size", "buffers"), SIZES, ids=[f"{r[0]}-{r[1]}" for r in SIZES]
)
def test_a_network_has_its_size_its_classifier_and_trains(name, shape, size, classifier, classifier_size, buffers):
    torch.manual_seed(0)
    model = build(name, shape, 10)
    layout = Layout.of(model)
    assert (layout.size, layout.buffer_size, layout.frozen) == (size, buffers, ())
    assert LayerType().members(layout) == classifier
    assert sum(s.size for s in layout.segments if s.name in classifier) == classifier_size
    assert "classifier" not in "".join(s.name for s in layout.segments if s.name not in classifier)

    images, labels = torch.randn(8, *shape), torch.arange(8)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    outputs = model(images)
    assert outputs.shape == (8, 10)
    before = cross_entropy(outputs, labels)
    before.backward()
    assert torch.isfinite(layout.grad(model)).all()  # every parameter has one
    optimiser.step()
    torch.manual_seed(1)
    after = cross_entropy(model(images), labels)
    assert torch.isfinite(after)
    assert after < before


def test_every_network_is_in_the_table():
    assert {row[0] for row in SIZES} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_the_number_of_classes_is_that_of_the_outputs(name):
    with torch.no_grad():
        assert build(name, COLOUR, 7).eval()(torch.zeros(2, *COLOUR)).shape == (2, 7)


def test_names_and_shapes_stay_what_they_were():
    """Payloads recorded with these networks can still be decoded."""
    fingerprints = [Layout.of(make()).fingerprint for make in (resnet18, vgg11)]
    assert fingerprints == ["1b0c4aa3a4b9b517", "0a36992ca1cb292c"]


def test_a_transformer_does_not_see_in_which_order_patches_come_but_for_their_positions():
    torch.manual_seed(0)
    model = build("vit_tiny", DIGIT, 3).eval()
    image = torch.randn(1, *DIGIT)
    turned = image.roll(4, -1)  # the two columns of patches change places
    with torch.no_grad():
        assert not torch.allclose(model(image), model(turned), atol=1e-5)
        model.position.zero_()
        assert torch.allclose(model(image), model(turned), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet20", COLOUR, r"model 'resnet20' is none of resnet18, .* no module:callable; did you mean 'resnet18'\?"),
        ("CNN", COLOUR, "model 'CNN' is none of resnet18"),
        (
            "cnn",
            FEATURES,
            r"cnn takes images \(channels, height, width\), got inputs of shape \(30,\); mlp and logistic",
        ),
        ("cnn", (1, 3, 8), "cnn takes images of 4 x 4 pixels or more, got 3 x 8"),
        ("vgg11", GREY, "vgg11 takes images of 32 x 32 pixels or more, got 28 x 28"),
        ("vit_tiny", (3, 30, 32), "vit_tiny takes images of a multiple of 4 pixels, got 30 x 32"),
        ("my_nets:twelve", COLOUR, r"my_nets:twelve gave a int; expected a torch\.nn\.Module"),
        ("my_nets:twelv", COLOUR, "module 'my_nets' has no 'twelv'; did you mean 'twelve'"),
        ("my_net:twelve", COLOUR, "'my_net:twelve' names a module that is not found: 'my_net'"),
    ],
)
def test_a_model_that_will_not_do(mine, name, shape, message):
    with pytest.raises(ValueError, match=message):
        build(name, shape, 10)


MODULE = """
from math import prod
from torch import nn

def both(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))
def neither(): return nn.Linear(2, 3)
def anything(**given): return nn.Linear(len(given), 1)
def twelve(): return 12
class Own(nn.Module):
    def __init__(self, classes, width=5):
        super().__init__()
        self.head = nn.Linear(width, classes)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's in the current folder, which is not on the path."""
    (tmp_path / "my_nets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield
    sys.modules.pop("my_nets", None)


@pytest.mark.parametrize(("name", "size"), [("both", 3073 * 7), ("neither", 9), ("anything", 3), ("Own", 42)])
def test_the_users_own_model_is_given_what_it_accepts(mine, name, size):
    assert Layout.of(build(f"my_nets:{name}", COLOUR, 7)).size == size
