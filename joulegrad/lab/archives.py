"""CIFAR-10, CIFAR-100 and Fashion-MNIST as their authors publish them: fetched once, checked, read without trust."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["ARCHIVES", "read"]


class Archive(NamedTuple):
    """What is published: files under an address, each with its MD5, and the files with the data that they hold."""

    title: str
    address: str
    files: dict[str, str]
    folder: str  # where the data files are, once unpacked
    train: tuple[str, ...]  # names of data files
    test: tuple[str, ...]
    classes: int


class Arrays(NamedTuple):
    """One part of a dataset as it was published: images N, C, H, W (uint8), labels and other columns."""

    images: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    columns: dict[str, np.ndarray[Any, Any]]


ARCHIVES = {
    "cifar10": Archive(
        "CIFAR-10",
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
        "cifar-10-batches-py",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        ("test_batch",),
        10,
    ),
    "cifar100": Archive(
        "CIFAR-100",
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
        "cifar-100-python",
        ("train",),
        ("test",),
        100,
    ),
    "fashion-mnist": Archive(
        "Fashion-MNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # it answers to http alone; the MD5s guard it
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        "FashionMNIST/raw",
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        10,
    ),
}


def read(name: str, directory: str | None = None) -> tuple[Arrays, Arrays, int]:
    """Read the training part, the test part and the number of classes.

    Args:
        name: one of `ARCHIVES`.
        directory: a folder with the published archive or with what it unpacks to, which is only read; without
            one, the archive is fetched once into the user's cache.
    """
    archive = ARCHIVES[name]
    files = _given(archive, Path(directory)) if directory is not None else _cached(archive)
    parts = []
    for names in (archive.train, archive.test):
        part = (_idx if name == "fashion-mnist" else _cifar)({n: files[n] for n in names})
        if len(part.labels) != len(part.images):
            raise ValueError(f"{archive.title}: {len(part.images):,} images but {len(part.labels):,} labels in {names}")
        if part.labels.size == 0 or part.labels.min() < 0 or part.labels.max() >= archive.classes:
            raise ValueError(f"{archive.title}: labels must be 0 to {archive.classes - 1} in {', '.join(names)}")
        parts.append(part)
    return parts[0], parts[1], archive.classes


def _given(archive: Archive, directory: Path) -> dict[str, bytes]:
    if not directory.is_dir():
        raise FileNotFoundError(f"directory {str(directory)!r} is not a folder; {_wanted(archive)}")
    for place in (directory, directory / archive.folder):
        if (files := _from_folder(archive, place)) is not None:
            return files
    for file in archive.files:
        if file.endswith(".tar.gz") and (directory / file).is_file():
            return _from_tar(archive, directory / file)
    there = ", ".join(sorted(p.name for p in directory.iterdir())[:8]) or "nothing"
    raise FileNotFoundError(f"directory {str(directory)!r} holds {there}; {_wanted(archive)}")


def _wanted(archive: Archive) -> str:
    names = [*archive.train, *archive.test]
    shown = ", ".join(names) if len(names) < 5 else f"{names[0]} to {names[-2]}, {names[-1]}"
    return (
        f"for {archive.title} it must hold {' and '.join(archive.files)} from {archive.address}, or what "
        f"that unpacks to: {shown}, themselves or in a folder {archive.folder}"
    )


def _from_folder(archive: Archive, place: Path) -> dict[str, bytes] | None:
    files = {}
    for name in (*archive.train, *archive.test):
        if (place / name).is_file():
            files[name] = (place / name).read_bytes()
        elif (place / f"{name}.gz").is_file():
            try:
                files[name] = gzip.decompress((place / f"{name}.gz").read_bytes())
            except (OSError, EOFError, zlib.error) as why:
                raise ValueError(f"{place / name}.gz is damaged: {why}") from None
        else:
            return None
    return files


def _from_tar(archive: Archive, path: Path) -> dict[str, bytes]:
    files = {}
    try:
        with tarfile.open(path) as tar:
            for name in (*archive.train, *archive.test):
                member = tar.extractfile(f"{archive.folder}/{name}")  # in memory: no path of the archive's is used
                files[name] = member.read() if member else b""
    except (tarfile.TarError, KeyError, OSError, EOFError, zlib.error) as why:
        raise ValueError(f"{path} is not the archive of {archive.title}, or is damaged: {why}") from None
    return files


def _cached(archive: Archive) -> dict[str, bytes]:
    """From the user's cache, which is filled at first; a process that finds another at it waits."""
    import pooch
    from filelock import FileLock

    cache = Path(pooch.os_cache("joulegrad"))
    if (files := _from_folder(archive, cache / archive.folder)) is not None:
        return files
    packed = all(name.endswith(".tar.gz") for name in archive.files)
    place = cache if packed else cache / archive.folder
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{archive.title}.lock"):
        if (files := _from_folder(archive, cache / archive.folder)) is not None:
            return files
        paths = [_fetched(archive, file, place) for file in archive.files]
        if packed:  # unpacked once, because that takes longer than all the rest
            files = _from_tar(archive, paths[0])
            folder = cache / archive.folder
            folder.mkdir(exist_ok=True)
            for name, content in files.items():  # each appears when it is complete
                (folder / f"{name}.part").write_bytes(content)
                (folder / f"{name}.part").replace(folder / name)
            return files
    return _given(archive, cache)


def _fetched(archive: Archive, file: str, place: Path) -> Path:
    import pooch
    import requests

    try:
        found = pooch.retrieve(
            archive.address + file,
            f"md5:{archive.files[file]}",
            fname=file,
            path=place,
            downloader=_resuming(place / f"{file}.part"),
        )
    except requests.RequestException as why:
        raise ConnectionError(
            f"{archive.title} could not be fetched from {archive.address}{file} ({type(why).__name__}); what has "
            f"come so far is kept. Run it again, or, without a network, put {file} into {place}, or name in "
            f"`directory` a folder where it is"
        ) from why
    except ValueError as why:  # pooch's word for a wrong hash; it has removed the file
        raise ConnectionError(
            f"what came from {archive.address}{file} is not the {file} of {archive.title}: its MD5 should be "
            f"{archive.files[file]}. It was thrown away; run it again, or put the right one into {place}"
        ) from why
    return Path(found)


def _resuming(part: Path) -> Callable[..., None]:
    """Make a downloader for pooch that continues `part` for as long as every connection brings something."""
    import requests

    def download(url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        while True:
            before = _size(part)
            try:
                _append(url, part)
                break
            except requests.RequestException:
                if _size(part) <= before:
                    raise
        part.replace(output_file)

    return download


def _append(url: str, part: Path) -> None:
    import requests
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    have = _size(part)
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with requests.get(url, headers=headers, stream=True, timeout=30) as response:
        if response.status_code == 416:  # nothing comes after what is here: it is complete, or its hash will be wrong
            return
        response.raise_for_status()
        continued = response.status_code == 206  # otherwise the server begins again, and so does the file
        length = int(response.headers.get("Content-Length", 0)) or None
        start = have if continued else 0
        console = Console(stderr=True)
        columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
        with (
            part.open("ab" if continued else "wb") as file,
            Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress,
        ):
            bar = progress.add_task(part.stem, total=length and start + length, completed=start)
            for chunk in response.iter_content(4096):  # of a connection that breaks, the last chunk is lost
                file.write(chunk)
                progress.advance(bar, len(chunk))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _idx(files: dict[str, bytes]) -> Arrays:
    """Images and labels in the format of MNIST: two zeros, a type, the number of sizes, the sizes, the values."""
    arrays = []
    for name, content in files.items():
        start = 4 + 4 * content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
        sizes = [int(n) for n in np.frombuffer(content[4:start], ">u4")] if 0 < start <= len(content) else []
        if not sizes or len(content) != start + math.prod(sizes):
            raise ValueError(f"{name} is damaged, or not in the format of MNIST")
        arrays.append(np.frombuffer(content, np.uint8, offset=start).reshape(sizes))
    images, labels = arrays
    return Arrays(images[:, None].copy(), labels.astype(np.int64), {})


def _cifar(files: dict[str, bytes]) -> Arrays:
    """Batches of CIFAR: pickles of {b"data": rows of 3072 bytes, b"labels" or b"fine_labels": numbers, …}."""
    batches = [_unpickled(name, content) for name, content in files.items()]
    images = np.concatenate([b[b"data"] for b in batches]).reshape(-1, 3, 32, 32)
    key = b"fine_labels" if b"fine_labels" in batches[0] else b"labels"
    labels = np.concatenate([np.asarray(b[key], np.int64) for b in batches])
    coarse = [np.asarray(b[b"coarse_labels"], np.int64) for b in batches if b"coarse_labels" in b]
    return Arrays(images, labels, {"superclass": np.concatenate(coarse)} if coarse else {})


def _unpickled(name: str, content: bytes) -> dict[bytes, Any]:
    try:
        batch = _Plain(io.BytesIO(content), encoding="bytes").load()
    except Exception as why:  # a damaged pickle can raise anything
        raise ValueError(f"{name} is damaged, or not as CIFAR's archive holds it: {why}") from None
    data = batch.get(b"data") if isinstance(batch, dict) else None
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == 3072):
        raise ValueError(f"{name} is not as CIFAR's archive holds it: no rows of 3,072 bytes under b'data'")
    if b"labels" not in batch and b"fine_labels" not in batch:
        raise ValueError(f"{name} is not as CIFAR's archive holds it: no b'labels', and no b'fine_labels'")
    return batch  # type: ignore[no-any-return]


class _Plain(pickle.Unpickler):
    """A pickle of numbers, bytes, lists, dicts and numpy arrays; any other name in it is refused, not looked up."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            "ndarray": np.ndarray,
            "_reconstruct": lambda kind, shape, code: np.empty(0, np.uint8),  # what it holds comes after
            "_frombuffer": lambda content, dtype, shape, order: np.frombuffer(content, dtype).reshape(shape),
            "dtype": _dtype,
            "encode": lambda text, encoding: text.encode("latin1"),  # how Python 3 writes bytes for Python 2
            "bytes": bytes,
        }
        home = module.split(".")[0]
        if name in allowed and home in ("numpy", "_codecs", "__builtin__", "builtins"):
            return allowed[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no dataset needs")


def _dtype(code: str | bytes, align: object = False, copy: object = True) -> np.dtype[Any]:
    """Make a dtype as old pickles ask for it, with numbers where numpy now wants truth values."""
    return np.dtype(code.decode() if isinstance(code, bytes) else code, copy=True)
