"""Networks to try things on, each under a page. All take `shape`, that of one input, and `classes`.

Which of a network's parameters count as classifier is `LayerType`'s rule: the linear layers after the last layer
of any other kind.

    name                 parameters   of them classifier     (3 x 32 x 32, 10 classes)
    resnet18             11,173,962        5,130
    resnet18_groupnorm   11,173,962        5,130
    vgg11                28,146,762   18,923,530   three linear layers
    mobilenet_v2          2,236,682       12,810
    vit_tiny              5,362,762        1,930
    cnn                     282,250      262,858   two linear layers
    mlp                     464,778       71,178   two linear layers; on digits 71,178 of 79,754
    logistic                 30,730       30,730   it is nothing else
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from joulegrad.lab.models.mobilenet import mobilenet_v2
from joulegrad.lab.models.resnet import resnet18, resnet18_groupnorm
from joulegrad.lab.models.small import cnn, logistic, mlp
from joulegrad.lab.models.vgg import vgg11
from joulegrad.lab.models.vit import vit_tiny
from joulegrad.lab.naming import call, imported, nearest

__all__ = [
    "MODELS",
    "build",
    "cnn",
    "logistic",
    "mlp",
    "mobilenet_v2",
    "resnet18",
    "resnet18_groupnorm",
    "vgg11",
    "vit_tiny",
]

MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "resnet18": resnet18,
    "resnet18_groupnorm": resnet18_groupnorm,
    "vgg11": vgg11,
    "mobilenet_v2": mobilenet_v2,
    "vit_tiny": vit_tiny,
    "cnn": cnn,
    "mlp": mlp,
    "logistic": logistic,
}


def build(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Make the network of that name, or what the user's `module:callable` gives for `shape` and `classes`.

    Args:
        name: one of `MODELS`, or `module:callable`; a callable is given what it accepts of the two.
        shape: of one input: channels, height and width, or the number of features.
        classes: how many outputs.

    Example:
        >>> Layout.of(build("logistic", (3, 32, 32), 10)).size
        30730
        >>> build("resnet-18", (3, 32, 32), 10)
        Traceback (most recent call last):
        ValueError: model 'resnet-18' is none of resnet18, resnet18_groupnorm, vgg11, mobilenet_v2, vit_tiny, cnn, mlp,
        logistic, and no module:callable; did you mean 'resnet18'?
    """
    if name in MODELS:
        return MODELS[name](shape, classes)
    if ":" not in name:
        raise ValueError(
            f"model {name!r} is none of {', '.join(MODELS)}, and no module:callable{nearest(name, MODELS)}"
        )
    model = call(imported(name), shape=shape, classes=classes)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} gave a {type(model).__name__}; expected a torch.nn.Module")
    return model
