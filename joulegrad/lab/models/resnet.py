"""ResNet-18 for small images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from joulegrad.lab.models.shapes import image

__all__ = ["resnet18", "resnet18_groupnorm"]

Norm = Callable[[int], nn.Module]


def resnet18(shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, norm: Norm = nn.BatchNorm2d) -> nn.Module:
    """ResNet-18 for images of 32 x 32: first convolution 3 x 3, no max pooling, `fc` last.

    Of 11,173,962 parameters (10 classes) `fc` holds 5,130.

    Example:
        >>> layout = Layout.of(resnet18())
        >>> layout.size, sorted(LayerType().members(layout))
        (11173962, ['fc.bias', 'fc.weight'])

    Reference: He et al., Deep Residual Learning for Image Recognition, 2016.
    """
    colours, _, _ = image("resnet18", shape)
    blocks: list[nn.Module] = []
    channels = 64
    for wider, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [BasicBlock(channels, wider, stride, norm), BasicBlock(wider, wider, 1, norm)]
        channels = wider
    return nn.Sequential(
        OrderedDict(
            conv=_conv3(colours, 64),
            norm=norm(64),
            relu=nn.ReLU(),
            blocks=nn.Sequential(*blocks),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(512, classes),
        )
    )


def resnet18_groupnorm(shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """ResNet-18 with GroupNorm of 32 groups: no buffers to share, and clients with few classes do not harm it.

    Example:
        >>> Layout.of(resnet18_groupnorm())
        Layout(11,173,962 entries in 62 parameters, fingerprint da5af1e901ba6bad)

    Reference: Wu and He, Group Normalization, 2018; Hsieh et al., The Non-IID Data Quagmire, 2020.
    """
    return resnet18(shape, classes, norm=lambda channels: nn.GroupNorm(32, channels))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut around them, itself a 1 x 1 convolution where shapes change.

    Example:
        >>> BasicBlock(2, 4, stride=2)(torch.zeros(1, 2, 8, 8)).shape
        torch.Size([1, 4, 4, 4])
    """

    def __init__(self, channels: int, wider: int, stride: int = 1, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv3(channels, wider, stride),
            norm(wider),
            nn.ReLU(),
            _conv3(wider, wider),
            norm(wider),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wider:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, wider, 1, stride, bias=False),
                norm(wider),
            )

    def forward(self, x: Tensor) -> Tensor:
        """relu(body(x) + shortcut(x))."""
        return torch.relu(self.body(x) + self.shortcut(x))


def _conv3(channels: int, wider: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False)
