"""Two networks for images of 32 x 32: one whose classifier is a trifle, one that is mostly classifier."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

__all__ = ["resnet18", "vgg11"]


def resnet18(classes: int = 10) -> nn.Module:
    """ResNet-18 for images of 32 x 32: first convolution 3 x 3, no max pooling, `fc` last.

    Of 11,173,962 parameters (10 classes) `fc` holds 5,130.

    Example:
        >>> layout = Layout.of(resnet18())
        >>> layout.size, sorted(LayerType().members(layout))
        (11173962, ['fc.bias', 'fc.weight'])

    Reference: He et al., Deep Residual Learning for Image Recognition, 2016.
    """
    blocks: list[nn.Module] = []
    channels = 64
    for wider, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [BasicBlock(channels, wider, stride), BasicBlock(wider, wider)]
        channels = wider
    return nn.Sequential(
        OrderedDict(
            conv=_conv3(3, 64),
            norm=nn.BatchNorm2d(64),
            relu=nn.ReLU(),
            blocks=nn.Sequential(*blocks),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(512, classes),
        )
    )


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut around them, itself a 1 x 1 convolution where shapes change.

    Example:
        >>> BasicBlock(2, 4, stride=2)(torch.zeros(1, 2, 8, 8)).shape
        torch.Size([1, 4, 4, 4])
    """

    def __init__(self, channels: int, wider: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv3(channels, wider, stride),
            nn.BatchNorm2d(wider),
            nn.ReLU(),
            _conv3(wider, wider),
            nn.BatchNorm2d(wider),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wider:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, wider, 1, stride, bias=False),
                nn.BatchNorm2d(wider),
            )

    def forward(self, x: Tensor) -> Tensor:
        """relu(body(x) + shortcut(x))."""
        return torch.relu(self.body(x) + self.shortcut(x))


def vgg11(classes: int = 10) -> nn.Module:
    """VGG-11 for images of 32 x 32, with BatchNorm and the classic large classifier 512-4096-4096-classes.

    Of 28,146,762 parameters (10 classes) the classifier holds 18,923,530.

    Example:
        >>> layout = Layout.of(vgg11())
        >>> layout.size, sorted(LayerType().members(layout))[-2:]
        (28146762, ['classifier.6.bias', 'classifier.6.weight'])

    Reference: Simonyan and Zisserman, Very Deep Convolutional Networks, 2015, configuration A.
    """
    features: list[nn.Module] = []
    channels = 3
    for width in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
        if isinstance(width, str):
            features.append(nn.MaxPool2d(2))
        else:
            features += [_conv3(channels, width), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
    classifier = nn.Sequential(
        nn.Linear(512, 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, classes),
    )
    return nn.Sequential(OrderedDict(features=nn.Sequential(*features), flatten=nn.Flatten(), classifier=classifier))


def _conv3(channels: int, wider: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False)


def build(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A built-in model by its name."""
    if name == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
    if name == "cnn":
        flat = 64 * (shape[1] // 4) * (shape[2] // 4)
        features = [nn.Conv2d(shape[0], 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        features += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*features, nn.Flatten(), nn.Linear(flat, 64), nn.ReLU(), nn.Linear(64, classes))
    return {"resnet18": resnet18, "vgg11": vgg11}[name](classes)
