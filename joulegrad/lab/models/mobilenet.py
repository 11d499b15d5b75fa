"""MobileNetV2 for small images."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from joulegrad.lab.models.shapes import image

__all__ = ["mobilenet_v2"]

# expansion, channels, blocks, stride of the first; for 32 x 32 the first two halvings are left out
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """MobileNetV2 for images of 32 x 32, which it halves three times; no dropout.

    Example:
        >>> layout = Layout.of(mobilenet_v2())
        >>> layout.size, sorted(LayerType().members(layout))
        (2236682, ['fc.bias', 'fc.weight'])

    Reference: Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018.
    """
    colours, _, _ = image("mobilenet_v2", shape)
    blocks: list[nn.Module] = []
    channels = 32
    for expansion, wider, repeats, first in STAGES:
        for stride in (first, *(1 for _ in range(repeats - 1))):
            blocks.append(InvertedResidual(channels, wider, stride, expansion))
            channels = wider
    return nn.Sequential(
        OrderedDict(
            stem=_conv(colours, 32, 3),
            blocks=nn.Sequential(*blocks),
            last=_conv(320, 1280, 1),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(1280, classes),
        )
    )


class InvertedResidual(nn.Module):
    """Widen, filter each channel alone, narrow again without a ReLU; around it a shortcut where shapes allow.

    Example:
        >>> InvertedResidual(8, 8, stride=1, expansion=6)(torch.zeros(1, 8, 4, 4)).shape
        torch.Size([1, 8, 4, 4])
    """

    def __init__(self, channels: int, wider: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        widen = [_conv(channels, inner, 1)] if expansion > 1 else []
        narrow = [nn.Conv2d(inner, wider, 1, bias=False), nn.BatchNorm2d(wider)]
        self.body = nn.Sequential(*widen, _conv(inner, inner, 3, stride, groups=inner), *narrow)
        self.residual = stride == 1 and channels == wider

    def forward(self, x: Tensor) -> Tensor:
        """body(x), plus x where shapes allow."""
        y: Tensor = self.body(x)
        return x + y if self.residual else y


def _conv(channels: int, wider: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, wider, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(wider),
        nn.ReLU6(),
    )
