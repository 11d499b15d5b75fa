"""The benchmark networks: their sizes, their shapes, their classifiers, and that they train."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from joulegrad import LayerType, Layout
from joulegrad.lab.models import resnet18, vgg11

VGG_CLASSIFIER = {f"classifier.{i}.{part}" for i in (0, 3, 6) for part in ("weight", "bias")}


@pytest.mark.parametrize(
    ("build", "size", "classifier", "classifier_size"),
    [
        (resnet18, 11_173_962, {"fc.weight", "fc.bias"}, 5_130),
        (vgg11, 28_146_762, VGG_CLASSIFIER, 18_923_530),
    ],
)
def test_a_network_has_its_size_its_classifier_and_trains(build, size, classifier, classifier_size):
    torch.manual_seed(0)
    model = build()
    layout = Layout.of(model)
    assert layout.size == size
    assert LayerType().members(layout) == classifier
    assert sum(s.size for s in layout.segments if s.name in classifier) == classifier_size

    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    outputs = model(images)
    assert outputs.shape == (8, 10)
    before = cross_entropy(outputs, labels)
    before.backward()
    optimiser.step()
    torch.manual_seed(1)
    after = cross_entropy(model(images), labels)
    assert torch.isfinite(after)
    assert after < before


@pytest.mark.parametrize("build", [resnet18, vgg11])
def test_the_number_of_classes_is_that_of_the_outputs(build):
    with torch.no_grad():
        assert build(classes=7).eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
