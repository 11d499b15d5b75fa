"""Whether a network can take inputs of a shape."""

from __future__ import annotations

__all__ = ["image"]


def image(model: str, shape: tuple[int, ...], least: int = 1, multiple: int = 1) -> tuple[int, int, int]:
    """Channels, height and width, if the shape is that of an image which is large enough.

    Example:
        >>> image("cnn", (30,))
        Traceback (most recent call last):
        ValueError: cnn takes images (channels, height, width), got inputs of shape (30,); mlp and logistic take any
    """
    if len(shape) != 3:
        raise ValueError(
            f"{model} takes images (channels, height, width), got inputs of shape {tuple(shape)}; mlp and logistic "
            "take any"
        )
    channels, height, width = shape
    if min(height, width) < least:
        raise ValueError(f"{model} takes images of {least} x {least} pixels or more, got {height} x {width}")
    if height % multiple or width % multiple:
        raise ValueError(f"{model} takes images of a multiple of {multiple} pixels, got {height} x {width}")
    return channels, height, width
