"""Networks that train in seconds."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

from torch import nn

from joulegrad.lab.models.shapes import image

__all__ = ["cnn", "logistic", "mlp"]


def cnn(shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """Two convolutions and two linear layers, each convolution followed by a halving.

    Example:
        >>> layout = Layout.of(cnn())
        >>> layout.size, sorted(LayerType().members(layout))
        (282250, ['classifier.0.bias', 'classifier.0.weight', 'classifier.2.bias', 'classifier.2.weight'])
    """
    channels, height, width = image("cnn", shape, least=4)
    features = nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    classifier = nn.Sequential(
        nn.Linear(64 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
    return nn.Sequential(OrderedDict(features=features, flatten=nn.Flatten(), classifier=classifier))


def mlp(shape: tuple[int, ...] = (1, 8, 8), classes: int = 10) -> nn.Module:
    """One normalised layer of features and a wide classifier, 128-512-classes, which on small inputs dominates.

    On digits the classifier holds 71,178 of 79,754 parameters; LayerNorm has no buffers to share.

    Example:
        >>> layout = Layout.of(mlp())
        >>> layout.size, sorted(LayerType().members(layout))
        (79754, ['classifier.0.bias', 'classifier.0.weight', 'classifier.2.bias', 'classifier.2.weight'])
    """
    features = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 128), nn.LayerNorm(128), nn.ReLU())
    classifier = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, classes))
    return nn.Sequential(OrderedDict(features=features, classifier=classifier))


def logistic(shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """Logistic regression: one linear layer.

    Example:
        >>> layout = Layout.of(logistic())
        >>> layout.size, sorted(LayerType().members(layout))
        (30730, ['fc.bias', 'fc.weight'])
    """
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(prod(shape), classes)))
