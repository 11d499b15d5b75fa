"""Where examples come from: embedded digits, published archives, or the user's own.

A `Task` is a training and a test set in memory, as they are: images stay bytes. `normalised` and `augment` work
on whole batches, where the training is.

    digits                               1,797 handwritten digits of 8 x 8, from scikit-learn; no download
    cifar10, cifar100, fashion-mnist     fetched once, or read from `directory`
    some/file.npz                        arrays x and y, or x_train, y_train, x_test and y_test
    some/folder                          images by class, in train/ and test/ or not yet divided
    module:callable                      gives one torch.utils.data.Dataset, or two (training, test)

What is not divided yet is divided 80 to 20 in every class, always in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from joulegrad.lab import archives, naming

__all__ = ["Data", "Dataset", "Task", "augment", "load", "normalised"]

_Array = np.ndarray[Any, Any]
_IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class Dataset(NamedTuple):
    """Examples in memory, never augmented."""

    inputs: Tensor  # uint8 N, C, H, W; or float32: features N, F, or images that come as such
    labels: Tensor  # int64 N
    columns: Mapping[str, Tensor] = {}  # further int64 N, such as who wrote the digit: what ByColumn divides by


class Task(NamedTuple):
    """What is to be learnt."""

    name: str
    train: Dataset
    test: Dataset
    classes: int
    mean: Tensor  # of the training set, a channel or a feature each; bytes scaled to [0, 1]
    std: Tensor
    shape: tuple[int, ...]  # of one input


@dataclass(frozen=True)
class Data:
    """Which examples to learn from.

    Args:
        name: a built-in name, a path, or `module:callable`, as above.
        directory: where the published files are, if they are not to be fetched; also given to a callable that
            accepts it.
        train_examples: how many of the training examples to use, the first ones; None: all.
        test_examples: the same of the test examples.
        image_size: scale the images of a folder to this height and width, in pixels.

    Example:
        >>> task = load(Data("digits"))
        >>> task.train.inputs.shape, task.test.inputs.shape, task.classes
        (torch.Size([1438, 1, 8, 8]), torch.Size([359, 1, 8, 8]), 10)
    """

    name: str = "digits"
    directory: str | None = None
    train_examples: int | None = None
    test_examples: int | None = None
    image_size: int | None = None

    def __post_init__(self) -> None:
        for what in ("train_examples", "test_examples", "image_size"):
            given = getattr(self, what)
            if given is not None and not (isinstance(given, int) and given > 0):
                raise ValueError(f"{what} must be a positive number, got {given!r}")
        if self.directory is not None and (self.name == "digits" or Path(self.name).exists()):
            raise ValueError(f"directory is not for {self.name}, which is here already; got {self.directory!r}")


def load(data: Data) -> Task:
    """Read the examples into memory.

    Example:
        >>> load(Data("cifar-10"))
        Traceback (most recent call last):
        ValueError: data 'cifar-10' is no built-in name (digits, cifar10, cifar100, fashion-mnist), no file or
        folder, and no module:callable; did you mean 'cifar10'?
    """
    train, test, classes = _read(data)
    for what, part in (("training", train), ("test", test)):
        if not len(part.labels):
            raise ValueError(f"{data.name} has no {what} examples")
    train = _first(train, data.train_examples, f"train_examples of {data.name}")
    test = _first(test, data.test_examples, f"test_examples of {data.name}")
    if train.inputs.shape[1:] != test.inputs.shape[1:] or train.inputs.dtype != test.inputs.dtype:
        raise ValueError(
            f"{data.name}: training inputs are {_described(train)}, test inputs {_described(test)}; they must be alike"
        )
    return Task(data.name, train, test, classes, *_statistics(train.inputs), tuple(train.inputs.shape[1:]))


def normalised(task: Task, inputs: Tensor) -> Tensor:
    """(x - mean) / std as float32, for bytes (x / 255 - mean) / std: what a network is given.

    Example:
        >>> task = load(Data("digits"))
        >>> x = normalised(task, task.train.inputs)
        >>> x.dtype, abs(x.mean().item()) < 1e-6, round(x.std().item(), 3)
        (torch.float32, True, 1.0)
    """
    along = (-1, *(1 for _ in task.shape[1:]))
    x = inputs.to(torch.float32, copy=True)
    if inputs.dtype == torch.uint8:
        x.div_(255)
    return x.sub_(task.mean.to(x.device).view(along)).div_(task.std.to(x.device).view(along))


def augment(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Crop each image at random out of itself with `padding` black pixels around, and mirror every other one.

    Deterministic from the generator; the images, of any dtype and on any device, are left as they are.

    Example:
        >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> augment(images, torch.Generator().manual_seed(0)).shape
        torch.Size([8, 3, 32, 32])
    """
    n, _, height, width = images.shape
    draws = torch.randint(2 * padding + 1, (2, n), generator=generator, device=generator.device)
    mirror = torch.randint(2, (n, 1, 1, 1), generator=generator, device=generator.device)
    down, right = draws.to(images.device)
    windows = pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)  # a view: every crop there is
    crops = windows[torch.arange(n, device=images.device), :, down, right]
    return torch.where(mirror.to(images.device, torch.bool), crops.flip(3), crops)


def _read(data: Data) -> tuple[Dataset, Dataset, int]:
    if data.image_size is not None and not Path(data.name).is_dir():
        raise ValueError(f"image_size is for a folder of images; {data.name} is none")
    if data.name == "digits":
        return _digits()
    if data.name in archives.ARCHIVES:
        *parts, classes = archives.read(data.name, data.directory)
        train, test = (_dataset(data.name, p.images, p.labels, p.columns) for p in parts)
        return train, test, classes
    path = Path(data.name)
    if path.is_dir():
        return _folder(path, data.image_size)
    if path.suffix == ".npz" and path.is_file():
        train, test = _npz(path)
    elif ":" in data.name and not path.exists():
        train, test = _own(data.name, data.directory)
    else:
        known = ["digits", *archives.ARCHIVES]
        beside = [str(p) for p in path.parent.iterdir()] if path.parent.is_dir() and path.suffix else []
        what = "a file, but no .npz" if path.is_file() else "no file or folder, and no module:callable"
        raise ValueError(
            f"data {data.name!r} is no built-in name ({', '.join(known)}), {what}"
            f"{naming.nearest(data.name, known + beside)}"
        )
    return train, test, 1 + int(max(part.labels.max() if len(part.labels) else -1 for part in (train, test)))


def _digits() -> tuple[Dataset, Dataset, int]:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "the digits come with scikit-learn: pip install 'joulegrad[lab]'", name="sklearn"
        ) from None

    found = load_digits()
    images = np.rint(found.images * (255 / 16)).astype(np.uint8)  # they are 0 to 16
    return *_divided(_dataset("digits", images, found.target)), 10


def _npz(path: Path) -> tuple[Dataset, Dataset]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as why:  # zip, zlib and numpy each have their own
        raise ValueError(f"{path} is not an .npz of plain arrays: {why}") from None
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        parts = [{n.removesuffix(e): a for n, a in arrays.items() if n.endswith(e)} for e in ("_train", "_test")]
        train, test = (_dataset(str(path), part.pop("x"), part.pop("y"), part) for part in parts)
        return train, test
    if {"x", "y"} <= set(arrays):
        return _divided(_dataset(str(path), arrays.pop("x"), arrays.pop("y"), arrays))
    raise ValueError(f"{path} holds {', '.join(arrays)}; expected x and y, or x_train, y_train, x_test and y_test")


def _folder(path: Path, size: int | None) -> tuple[Dataset, Dataset, int]:
    """Images by class; the classes are the subfolders, in alphabetical order."""
    divided = (path / "train").is_dir() and (path / "test").is_dir()
    roots = [path / "train", path / "test"] if divided else [path]
    classes = sorted(p.name for p in roots[0].iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise ValueError(f"{roots[0]} has no subfolders; expected one for each class, with images in it")
    parts = []
    for root in roots:
        extra = [p.name for p in root.iterdir() if p.is_dir() and p.name not in classes and p.name[0] != "."]
        if extra:
            raise ValueError(
                f"{root / extra[0]} is a class that {roots[0]} does not have{naming.nearest(extra[0], classes)}"
            )
        found = [(p, i) for i, c in enumerate(classes) for p in sorted((root / c).glob("*"))]
        found = [(p, i) for p, i in found if p.suffix.lower() in _IMAGES]
        if not found:
            raise ValueError(f"{root} has no images in its {len(classes)} subfolders ({', '.join(sorted(_IMAGES))})")
        parts.append(found)
    opened = _opened([p for part in parts for p, _ in part], size)
    pixels = [opened[: len(parts[0])], opened[len(parts[0]) :]]
    sets = [_dataset(str(path), x, np.array([i for _, i in p])) for x, p in zip(pixels, parts, strict=False)]
    train, test = sets if divided else _divided(sets[0])
    return train, test, len(classes)


def _opened(paths: list[Path], size: int | None) -> _Array:
    """All images of one size and kind: grey if every one is, else red, green and blue."""
    from PIL import Image

    images = []
    for path in paths:
        try:
            with Image.open(path) as file:
                image = file.convert("L" if file.mode in ("1", "L", "I;16") else "RGB")
        except OSError as why:
            raise ValueError(f"{path} cannot be read as an image: {why}") from None
        images.append(image.resize((size, size), Image.Resampling.LANCZOS) if size else image)
        if images[-1].size != images[0].size:
            wide, high = images[0].size
            raise ValueError(
                f"{path} is {image.width} x {image.height} pixels, {paths[0]} {wide} x {high}; images must be of one "
                "size: give image_size to scale them"
            )
    mode = "L" if all(image.mode == "L" for image in images) else "RGB"
    return np.stack([np.atleast_3d(np.asarray(image.convert(mode))) for image in images]).transpose(0, 3, 1, 2)


def _own(name: str, directory: str | None) -> tuple[Dataset, Dataset]:
    """What the user's callable gives; each is read once, so that random transforms are frozen."""
    given = naming.call(naming.imported(name), **({} if directory is None else {"directory": directory}))
    if type(given) is tuple and len(given) == 2:
        return _listed(name, given[0]), _listed(name, given[1])
    return _divided(_listed(name, given))


def _listed(name: str, given: Any) -> Dataset:
    if isinstance(given, Dataset):
        return _dataset(name, *given)
    if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        raise ValueError(
            f"{name} gave a {type(given).__name__}; expected a torch.utils.data.Dataset with a length, or two of "
            "them (training, test)"
        )
    inputs, labels = [], []
    for i in range(len(given)):
        item = given[i]
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise ValueError(f"{name}: item {i} is a {type(item).__name__}; expected a pair (input, label)")
        inputs.append(np.asarray(item[0]))
        labels.append(np.asarray(item[1]))
        for what, values in (("input", inputs), ("label", labels)):
            if values[-1].shape != values[0].shape:
                raise ValueError(
                    f"{name}: {what} {i} has shape {values[-1].shape}, {what} 0 {values[0].shape}; they must be alike"
                )
    return _dataset(name, np.array(inputs), np.array(labels))


def _dataset(name: str, inputs: Any, labels: Any, columns: Mapping[str, Any] | None = None) -> Dataset:
    """Check, and bring into order: images N, C, H, W of bytes if they are bytes, all else float32."""
    x, y = np.asarray(inputs), np.asarray(labels)
    if x.ndim < 2 or x.dtype.kind not in "buif":
        raise ValueError(f"{name}: inputs are {x.dtype} of shape {x.shape}; expected numbers, N x features or images")
    if y.shape != (len(x),) or y.dtype.kind not in "bui" or (y.size and y.min() < 0):
        raise ValueError(
            f"{name}: labels are {y.dtype} of shape {y.shape}{f', from {y.min()}' if y.dtype.kind in 'if' else ''}; "
            f"expected {len(x):,} whole numbers from 0"
        )
    if x.ndim == 3:
        x = x[:, None]  # grey images
    elif x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = x.transpose(0, 3, 1, 2)  # channels came last
    x = np.ascontiguousarray(x, np.uint8 if x.dtype == np.uint8 and x.ndim == 4 else np.float32)
    if x.dtype == np.float32 and not np.isfinite(x).all():
        where = int((~np.isfinite(x)).reshape(len(x), -1).any(1).argmax())
        raise ValueError(f"{name}: input {where} has values that are not finite")
    return Dataset(_tensor(x), _tensor(y.astype(np.int64)), _columns(name, len(x), columns or {}))


def _columns(name: str, n: int, columns: Mapping[str, Any]) -> dict[str, Tensor]:
    """Columns as numbers; values that are none become their places in order."""
    found = {}
    for column, values in columns.items():
        v = np.asarray(values)
        if v.shape != (n,) or v.dtype.kind not in "buifUS":
            raise ValueError(f"{name}: column {column!r} is {v.dtype} of shape {v.shape}; expected {n:,} values")
        found[column] = _tensor((v if v.dtype.kind in "bui" else np.unique(v, return_inverse=True)[1]).astype(np.int64))
    return found


def _tensor(array: _Array) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _divided(whole: Dataset) -> tuple[Dataset, Dataset]:
    """Every fifth example of each class, at random but always the same, is for the test."""
    labels, rng = whole.labels.numpy(), np.random.default_rng(0)
    tested = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        tested[members[: round(0.2 * len(members))]] = True
    return _some(whole, torch.from_numpy(np.flatnonzero(~tested))), _some(
        whole, torch.from_numpy(np.flatnonzero(tested))
    )


def _first(whole: Dataset, n: int | None, what: str) -> Dataset:
    if n is None:
        return whole
    if n > len(whole.labels):
        raise ValueError(f"{what}: {n:,} are asked for, there are {len(whole.labels):,}")
    return _some(whole, torch.arange(n))


def _some(whole: Dataset, which: Tensor) -> Dataset:
    return Dataset(whole.inputs[which], whole.labels[which], {n: v[which] for n, v in whole.columns.items()})


def _statistics(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation; a feature that never changes has 1, so that it can be divided by."""
    if inputs.dtype == torch.uint8:  # in whole numbers, and so the same everywhere
        sums = np.zeros((2, inputs[0].numel()), np.int64)
        for some in inputs.flatten(1).split(4096):
            x = some.numpy().astype(np.uint16)  # 255² just fits
            sums += x.sum(0, np.uint32), np.square(x, out=x).sum(0, np.uint32)
        totals = torch.from_numpy(sums).view(2, inputs.shape[1], -1).sum(2)
        mean, square = (totals.double() / (255 * inputs[:, 0].numel())).unbind()
        std = (square / 255 - mean**2).clamp(min=0).sqrt()
    else:
        x, over = inputs.numpy(), (0, *range(2, inputs.ndim))
        mean = torch.from_numpy(x.mean(over, np.float64))
        std = torch.from_numpy(x.std(over, np.float64))
    return mean.float(), torch.where(std > 1e-12, std, 1.0).float()


def _described(part: Dataset) -> str:
    return f"{str(part.inputs.dtype).removeprefix('torch.')} of shape {tuple(part.inputs.shape[1:])}"
