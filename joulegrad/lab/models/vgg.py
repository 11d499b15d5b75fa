"""VGG-11: a network that is mostly classifier."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from joulegrad.lab.models.shapes import image

__all__ = ["vgg11"]


def vgg11(shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """VGG-11 for images of 32 x 32, with BatchNorm and the classic large classifier 512-4096-4096-classes.

    Of 28,146,762 parameters (10 classes) the classifier holds 18,923,530.

    Example:
        >>> layout = Layout.of(vgg11())
        >>> layout.size, sorted(LayerType().members(layout))[-2:]
        (28146762, ['classifier.6.bias', 'classifier.6.weight'])

    Reference: Simonyan and Zisserman, Very Deep Convolutional Networks, 2015, configuration A.
    """
    channels, height, width = image("vgg11", shape, least=32)  # it halves them five times
    features: list[nn.Module] = []
    for wider in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
        if isinstance(wider, str):
            features.append(nn.MaxPool2d(2))
        else:
            features += [nn.Conv2d(channels, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider), nn.ReLU()]
            channels = wider
    classifier = nn.Sequential(
        nn.Linear(512 * (height // 32) * (width // 32), 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, classes),
    )
    return nn.Sequential(OrderedDict(features=nn.Sequential(*features), flatten=nn.Flatten(), classifier=classifier))
