"""Sources of examples: what is embedded, what is published, the user's own; and what is said when it is not there."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from joulegrad.lab import archives, naming
from joulegrad.lab.data import Data, Dataset, augment, load, normalised
from joulegrad.lab.partition import ByColumn

ROOT = Path(__file__).parents[1]
RNG = np.random.default_rng(0)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of this test's own."""
    import pooch

    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    return tmp_path / "cache" / "joulegrad"


# --- embedded ---------------------------------------------------------------------------------------------------


def test_digits_are_divided_once_and_for_all():
    task = load(Data())
    assert (task.name, task.classes, task.shape) == ("digits", 10, (1, 8, 8))
    assert task.train.inputs.dtype == torch.uint8
    assert task.train.inputs.max() == 255
    assert task.train.labels.dtype == torch.int64
    assert task.train.labels.bincount().tolist() == [142, 146, 142, 146, 145, 146, 145, 143, 139, 144]
    assert task.test.labels.bincount().tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert task.train.labels[:12].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 0, 1, 3, 5]
    assert [round(v.item(), 4) for v in (task.mean, task.std)] == [0.3055, 0.3759]
    images = {x.numpy().tobytes() for x in task.train.inputs}
    assert not images & {x.numpy().tobytes() for x in task.test.inputs}


def test_the_first_examples_are_taken():
    whole, some = load(Data()), load(Data(train_examples=100, test_examples=7))
    assert torch.equal(some.train.inputs, whole.train.inputs[:100])
    assert torch.equal(some.test.labels, whole.test.labels[:7])
    assert some.train.inputs.untyped_storage().nbytes() == 100 * 64  # and not a view of them all
    x = some.train.inputs.double() / 255
    assert some.mean.item() == pytest.approx(x.mean().item(), abs=1e-7)
    assert some.std.item() == pytest.approx(x.std(correction=0).item(), abs=1e-7)


# --- published --------------------------------------------------------------------------------------------------


def test_cifar10_itself(cifar10):
    task = load(Data("cifar10", directory=str(cifar10)))
    assert task.train.inputs.shape == (50_000, 3, 32, 32)
    assert task.test.inputs.shape == (10_000, 3, 32, 32)
    assert (task.classes, task.shape) == (10, (3, 32, 32))
    assert task.train.labels.bincount().tolist() == [5000] * 10
    assert task.test.labels.bincount().tolist() == [1000] * 10
    assert task.train.labels[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    assert task.train.inputs[0, :, 0, 0].tolist() == [59, 62, 63]
    assert [round(v, 4) for v in task.mean.tolist()] == [0.4914, 0.4822, 0.4465]
    assert [round(v, 4) for v in task.std.tolist()] == [0.247, 0.2435, 0.2616]
    again = load(Data("cifar10", str(cifar10 / "cifar-10-batches-py"), train_examples=9, test_examples=5))
    assert torch.equal(again.train.inputs, task.train.inputs[:9])
    assert torch.equal(again.test.labels, task.test.labels[:5])


def python2(rows, **lists):
    """A batch as Python 2 pickled it in 2009: the form of the published archives."""

    def text(s):
        return b"U" + bytes([len(s)]) + s

    items = text(b"data")
    items += b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR"
    items += b"(K\x01" + b"J" + struct.pack("<i", rows.shape[0]) + b"J" + struct.pack("<i", rows.shape[1]) + b"\x86"
    items += b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR"
    items += b"(K\x03" + text(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    items += b"\x89T" + struct.pack("<i", rows.nbytes) + rows.tobytes() + b"tb"
    for name, values in lists.items():
        items += text(name.encode()) + b"](" + b"".join(b"K" + bytes([v]) for v in values) + b"e"
    return b"\x80\x02}(" + items + b"u."


def python3(protocol):
    def dump(rows, **lists):
        return pickle.dumps({b"data": rows, **{n.encode(): v for n, v in lists.items()}, b"x": [b""]}, protocol)

    return dump


def batches(name, dump=python2):
    """A small archive of made-up images in the official layout: data file → its bytes, and all images."""
    archive, files, images = archives.ARCHIVES[name], {}, []
    for file in (*archive.train, *archive.test):
        rows = RNG.integers(0, 256, (6, 3072)).astype(np.uint8)
        images.append(rows.reshape(6, 3, 32, 32))
        lists = {"labels": [0, 1, 2, 3, 4, 9]}
        if name == "cifar100":
            lists = {"fine_labels": [0, 99, 50, 3, 4, 9], "coarse_labels": [0, 19, 5, 5, 1, 1]}
        files[file] = dump(rows, **lists)
    return files, np.concatenate(images[:-1]), images[-1]


def written(folder, files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("dump", [python2, python3(2), python3(4), python3(5)], ids=["2009", "2", "4", "5"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_batches_are_read_however_they_were_pickled(tmp_path, name, dump):
    files, train, test = batches(name, dump)
    written(tmp_path / archives.ARCHIVES[name].folder, files)
    task = load(Data(name, directory=str(tmp_path)))
    assert np.array_equal(task.train.inputs, train)
    assert np.array_equal(task.test.inputs, test)
    task.train.inputs[0] = 1  # and they may be written to
    if name == "cifar100":
        assert task.classes == 100
        assert task.test.labels.tolist() == [0, 99, 50, 3, 4, 9]
        assert [p.tolist() for p in ByColumn("superclass").split(task.test, 0)] == [[0], [4, 5], [2, 3], [1]]


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_cannot_run_code(tmp_path):
    files, _, _ = batches("cifar10")
    files["data_batch_3"] = pickle.dumps({b"data": Evil(str(tmp_path / "evil"))})
    written(tmp_path / "d", files)
    with pytest.raises(ValueError, match=r"data_batch_3 is damaged, or not .*posix\.mkdir, which no dataset needs"):
        load(Data("cifar10", directory=str(tmp_path / "d")))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Ran out of input"),
        (pickle.dumps([1]), "no rows of 3,072 bytes under b'data'"),
        (pickle.dumps({b"data": np.zeros((2, 3), np.uint8)}), "no rows of 3,072 bytes under b'data'"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8)}), "no b'labels'"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}), "26 images but 25 labels"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}), "labels must be 0 to 9"),
    ],
)
def test_a_damaged_batch_is_named(tmp_path, content, message):
    files, _, _ = batches("cifar10")
    files["data_batch_2"] = content
    written(tmp_path / "d", files)
    with pytest.raises(ValueError, match=message):
        load(Data("cifar10", directory=str(tmp_path / "d")))


def tarred(folder, files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def fashion():
    train, test = RNG.integers(0, 256, (9, 28, 28)).astype(np.uint8), np.zeros((4, 28, 28), np.uint8)
    labels = [np.arange(9, dtype=np.uint8), np.array([0, 9, 1, 1], np.uint8)]
    arrays = (train, labels[0], test, labels[1])
    return dict(
        zip(archives.ARCHIVES["fashion-mnist"].files, (gzip.compress(idx(a)) for a in arrays), strict=True)
    ), train


def test_fashion_mnist_is_read_packed_or_not(tmp_path):
    files, train = fashion()
    packed = written(tmp_path / "packed", files)
    task = load(Data("fashion-mnist", directory=str(packed)))
    assert (task.shape, task.classes) == ((1, 28, 28), 10)
    assert np.array_equal(task.train.inputs[:, 0], train)
    assert task.test.labels.tolist() == [0, 9, 1, 1]
    unpacked = {n.removesuffix(".gz"): gzip.decompress(c) for n, c in files.items()}
    written(tmp_path / "un" / "FashionMNIST" / "raw", unpacked)
    assert torch.equal(load(Data("fashion-mnist", directory=str(tmp_path / "un"))).train.inputs, task.train.inputs)
    (packed / "t10k-labels-idx1-ubyte.gz").write_bytes(files["t10k-labels-idx1-ubyte.gz"][:-9])
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz is damaged"):
        load(Data("fashion-mnist", directory=str(packed)))


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\x05abc", b"\0\0\x08\xff", b"hello world, hi"]
)
def test_a_damaged_idx_file_is_named(tmp_path, content):
    files, _ = fashion()
    written(tmp_path / "d", {**files, "train-labels-idx1-ubyte.gz": gzip.compress(content)})
    with pytest.raises(ValueError, match="train-labels-idx1-ubyte is damaged, or not in the format of MNIST"):
        load(Data("fashion-mnist", directory=str(tmp_path / "d")))


def test_a_packed_archive_in_the_directory_is_read_as_it_is(tmp_path):
    files, train, _ = batches("cifar10")
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(tarred("cifar-10-batches-py", files))
    assert np.array_equal(load(Data("cifar10", directory=str(tmp_path))).train.inputs, train)
    assert [p.name for p in tmp_path.iterdir()] == ["cifar-10-python.tar.gz"]
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"what?")
    with pytest.raises(ValueError, match=r"cifar-10-python\.tar\.gz is not the archive of CIFAR-10, or is damaged"):
        load(Data("cifar10", directory=str(tmp_path)))


def test_a_directory_without_it_is_told_what_belongs_there(tmp_path):
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(
        FileNotFoundError,
        match=r"holds holiday\.jpg; for CIFAR-10 it must hold cifar-10-python\.tar\.gz"
        r" from https://www\.cs\.toronto\.edu/~kriz/, or what that unpacks to: data_batch_1 to "
        r"data_batch_5, test_batch, themselves or in a folder cifar-10-batches-py",
    ):
        load(Data("cifar10", directory=str(tmp_path)))
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load(Data("cifar10", directory=str(tmp_path / "nowhere")))


# --- fetched ----------------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Serves `content` under any name; each answer ends after `at_most` bytes, as if the line had gone dead."""

    def __init__(self, content, at_most=None, ranges=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.at_most, self.ranges, self.asked = content, at_most, ranges, []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        content = self.server.content.get(self.path.rsplit("/", 1)[1], b"")
        if start >= len(content):
            self.send_response(416 if start else 404)
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: self.server.at_most])

    def log_message(self, *_):
        pass


def from_here(monkeypatch, server, name, content):
    """Let `name` be published by our server."""
    archive = archives.ARCHIVES[name]
    server.content.update(content)
    files = {file: hashlib.md5(content[file]).hexdigest() for file in archive.files}
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    monkeypatch.setitem(archives.ARCHIVES, name, archive._replace(address=address, files=files))


def test_an_archive_is_fetched_once_and_continued_where_it_broke_off(cache, monkeypatch):
    files, train, _ = batches("cifar10")
    packed = tarred("cifar-10-batches-py", files)
    third = len(packed) // 3 + 1
    with Server({}, at_most=third) as server:
        from_here(monkeypatch, server, "cifar10", {"cifar-10-python.tar.gz": packed})
        task = load(Data("cifar10"))
        assert np.array_equal(task.train.inputs, train)
        kept = third // 4096 * 4096
        assert server.asked[:3] == [None, f"bytes={kept}-", f"bytes={2 * kept}-"]
        asked = len(server.asked)
        assert torch.equal(load(Data("cifar10")).train.inputs, task.train.inputs)
        assert len(server.asked) == asked
    assert sorted(p.name for p in cache.iterdir() if p.suffix != ".lock") == [
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
    ]


def test_fashion_mnist_is_fetched_file_by_file(cache, monkeypatch):
    files, train = fashion()
    with Server({}) as server:
        from_here(monkeypatch, server, "fashion-mnist", files)
        assert np.array_equal(load(Data("fashion-mnist")).train.inputs[:, 0], train)
        load(Data("fashion-mnist"))
        assert server.asked == [None] * 4


def test_what_came_is_kept_until_the_next_time(cache, monkeypatch):
    files, train, _ = batches("cifar100")
    packed = tarred("cifar-100-python", files)
    with Server({}, at_most=5000) as server:
        from_here(monkeypatch, server, "cifar100", {"cifar-100-python.tar.gz": packed})
        server.at_most = 0
        with pytest.raises(ConnectionError):
            load(Data("cifar100"))
        (cache / "cifar-100-python.tar.gz.part").write_bytes(packed[:5000])
        server.at_most = None
        assert np.array_equal(load(Data("cifar100")).train.inputs, train)
        assert server.asked == [None, "bytes=5000-"]


def test_who_comes_second_waits_for_the_first(cache, monkeypatch):
    files, train, _ = batches("cifar10")
    with Server({}, at_most=50_000) as server, ThreadPoolExecutor() as pool:
        from_here(monkeypatch, server, "cifar10", {"cifar-10-python.tar.gz": tarred("cifar-10-batches-py", files)})
        tasks = list(pool.map(load, [Data("cifar10")] * 4))
        assert all(np.array_equal(task.train.inputs, train) for task in tasks)
        assert server.asked.count(None) == 1


def test_what_is_missing_from_the_cache_is_put_there(cache, monkeypatch):
    files, train, _ = batches("cifar10")
    packed = tarred("cifar-10-batches-py", files)
    written(cache / "cifar-10-batches-py", {"data_batch_1": b"half", "test_batch.part": b"hal"})
    with Server({}) as server:
        from_here(monkeypatch, server, "cifar10", {"cifar-10-python.tar.gz": packed})
        assert np.array_equal(load(Data("cifar10")).train.inputs, train)
        assert np.array_equal(load(Data("cifar10")).train.inputs, train)
    assert sorted(p.name for p in (cache / "cifar-10-batches-py").iterdir()) == sorted(files)


def test_a_server_that_cannot_continue_begins_again(cache, monkeypatch):
    files, train, _ = batches("cifar100")
    packed = tarred("cifar-100-python", files)
    cache.mkdir(parents=True)
    (cache / "cifar-100-python.tar.gz.part").write_bytes(b"x" * 100)
    with Server({}, ranges=False) as server:
        from_here(monkeypatch, server, "cifar100", {"cifar-100-python.tar.gz": packed})
        assert np.array_equal(load(Data("cifar100")).train.inputs, train)


def test_what_is_not_the_archive_is_thrown_away(cache, monkeypatch):
    files, train, _ = batches("cifar100")
    packed = tarred("cifar-100-python", files)
    with Server({}) as server:
        from_here(monkeypatch, server, "cifar100", {"cifar-100-python.tar.gz": packed})
        server.content["cifar-100-python.tar.gz"] = b"<html>please log in</html>"
        with pytest.raises(ConnectionError, match=r"is not the cifar-100-python\.tar\.gz of CIFAR-100: its MD5 should"):
            load(Data("cifar100"))
        server.content["cifar-100-python.tar.gz"] = packed
        assert np.array_equal(load(Data("cifar100")).train.inputs, train)


def test_without_a_network_one_is_told_what_to_put_where(cache, monkeypatch):
    files, train, _ = batches("cifar10")
    packed = tarred("cifar-10-batches-py", files)
    with Server({}) as server:
        from_here(monkeypatch, server, "cifar10", {"cifar-10-python.tar.gz": packed})
    with pytest.raises(
        ConnectionError,
        match=r"CIFAR-10 could not be fetched from http.*put cifar-10-python\.tar\.gz "
        rf"into {cache}, or name in `directory` a folder where it is",
    ):
        load(Data("cifar10"))
    (cache / "cifar-10-python.tar.gz").write_bytes(packed)
    assert np.array_equal(load(Data("cifar10")).train.inputs, train)


def test_the_published_addresses_and_hashes():
    assert {f"{a.address}{file} {md5}" for a in archives.ARCHIVES.values() for file, md5 in a.files.items()} == {
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz c58f30108f718f92721af3b95e74349a",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz eb9058c3a382ffc7106e4002c42a8d85",
        *(
            f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{line}"
            for line in (
                "train-images-idx3-ubyte.gz 8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz 25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz bb300cfdad3c16e7a12a480ee83cd310",
            )
        ),
    }


# --- the user's own ---------------------------------------------------------------------------------------------


def npz(path, **arrays):
    np.savez(path, **arrays)
    return Data(str(path))


def test_an_npz_that_is_not_divided(tmp_path):
    x = RNG.normal(3.0, 2.0, (50, 4))
    x[:, 3] = 7.0
    task = load(npz(tmp_path / "mine.npz", x=x, y=np.arange(50) % 5, writer=np.array(["ann", "bob"] * 25)))
    assert (task.classes, task.shape) == (5, (4,))
    assert task.train.labels.bincount().tolist() == [8] * 5
    assert task.test.labels.bincount().tolist() == [2] * 5
    assert task.train.inputs.dtype == torch.float32
    assert task.train.columns["writer"].bincount().sum() == 40
    assert torch.equal(
        task.train.columns["writer"], (task.train.inputs == torch.tensor(x[1::2, None]).float()).all(2).any(0).long()
    )
    given = normalised(task, task.train.inputs)
    assert torch.allclose(given[:, :3].mean(0), torch.zeros(3), atol=1e-6)
    assert torch.allclose(given[:, :3].std(0, correction=0), torch.ones(3), atol=1e-6)
    assert (given[:, 3] == 0).all()  # a constant feature divides by one


def test_an_npz_that_is_divided(tmp_path):
    images = RNG.integers(0, 256, (6, 5, 7, 3)).astype(np.uint8)
    arrays = {"x_train": images, "y_train": np.arange(6), "x_test": images[:2], "y_test": np.array([8, 0])}
    task = load(npz(tmp_path / "mine.npz", **arrays, site_train=np.array([4, 4, 9, 9, 9, 4])))
    assert (task.classes, task.shape) == (9, (3, 5, 7))
    assert np.array_equal(task.train.inputs, images.transpose(0, 3, 1, 2))
    assert task.train.inputs.is_contiguous()
    assert [p.tolist() for p in ByColumn("site").split(task.train, 0)] == [[0, 1, 5], [2, 3, 4]]


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((20, 8, 8), np.uint8, ((1, 8, 8), torch.uint8)),
        ((20, 3, 8, 8), np.uint8, ((3, 8, 8), torch.uint8)),
        ((20, 8, 8, 1), np.uint8, ((1, 8, 8), torch.uint8)),
        ((20, 6), np.uint8, ((6,), torch.float32)),
        ((20, 6), bool, ((6,), torch.float32)),
        ((20, 3, 8, 8), np.float64, ((3, 8, 8), torch.float32)),
        ((20, 8, 8, 3), np.int64, ((3, 8, 8), torch.float32)),
    ],
)
def test_inputs_are_brought_into_order(tmp_path, shape, dtype, expected):
    task = load(npz(tmp_path / "mine.npz", x=np.ones(shape, dtype), y=np.arange(20) % 2))
    assert (task.shape, task.train.inputs.dtype) == expected
    assert task.mean.shape == task.std.shape == (task.shape[0],)
    assert normalised(task, task.test.inputs).shape == (4, *task.shape)


ONES = np.ones((10, 3))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": ONES, "y": np.zeros(10)}, "holds X, y; expected x and y, or x_train"),
        ({"x": ONES, "y": np.zeros(10)}, "labels are float64 .* expected 10 whole numbers from 0"),
        ({"x": ONES, "y": np.arange(9)}, r"labels are int64 of shape \(9,\), from 0; expected 10"),
        ({"x": ONES, "y": np.arange(10) - 1}, r"labels are int64 of shape \(10,\), from -1; expected 10"),
        ({"x": ONES * np.nan, "y": np.zeros(10, int)}, "input 0 has values that are not finite"),
        ({"x": ONES[:, 0], "y": np.zeros(10, int)}, r"inputs are float64 of shape \(10,\)"),
        ({"x": ONES.astype(str), "y": np.zeros(10, int)}, "expected numbers"),
        ({"x": ONES, "y": np.zeros(10, int), "who": np.zeros(3)}, r"column 'who' is float64 of shape \(3,\)"),
        ({"x": ONES[:2], "y": np.arange(2)}, "has no test examples"),
        ({"x": np.array([[{}]]), "y": np.arange(1)}, "is not an .npz of plain arrays"),
        (
            {"x_train": ONES, "y_train": np.zeros(10, int), "x_test": ONES[:, :2], "y_test": np.zeros(10, int)},
            r"training inputs are float32 of shape \(3,\), test inputs float32 of shape \(2,\); they must be alike",
        ),
    ],
)
def test_an_npz_that_will_not_do(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message):
        load(npz(tmp_path / "mine.npz", **arrays))


def paint(path, colour, size=(6, 4), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_a_folder_of_images_by_class(tmp_path):
    for part, n in (("train", 3), ("test", 1)):
        for name, colour in (("cat", (255, 0, 0)), ("ant", (0, 255, 0))):
            for i in range(n):
                paint(tmp_path / part / name / f"{i}.png", colour)
    (tmp_path / "train" / "cat" / "notes.txt").touch()
    task = load(Data(str(tmp_path)))
    assert (task.classes, task.shape) == (2, (3, 4, 6))
    assert task.train.labels.tolist() == [0, 0, 0, 1, 1, 1]  # ant, cat
    assert task.train.inputs[:, :, 0, 0].tolist() == [[0, 255, 0]] * 3 + [[255, 0, 0]] * 3
    assert load(Data(str(tmp_path), image_size=8)).shape == (3, 8, 8)
    paint(tmp_path / "test" / "dog" / "0.png", (0, 0, 0))
    with pytest.raises(ValueError, match=r"test.dog is a class that .*train does not have"):
        load(Data(str(tmp_path)))


def test_a_folder_that_is_not_divided(tmp_path):
    for i in range(10):
        paint(tmp_path / "0" / f"{i}.png", i, mode="L")
        paint(tmp_path / "1" / f"{i}.jpg", 200, mode="L")
    task = load(Data(str(tmp_path)))
    assert task.shape == (1, 4, 6)
    assert (task.train.labels.tolist(), task.test.labels.tolist()) == ([0] * 8 + [1] * 8, [0, 0, 1, 1])
    paint(tmp_path / "1" / "wide.png", 0, size=(9, 4), mode="L")
    with pytest.raises(ValueError, match=r"wide\.png is 9 x 4 pixels, .*0\.png 6 x 4; .* give image_size"):
        load(Data(str(tmp_path)))
    (tmp_path / "1" / "wide.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"wide\.png cannot be read as an image"):
        load(Data(str(tmp_path)))


def test_a_folder_without_images(tmp_path):
    with pytest.raises(ValueError, match="has no subfolders; expected one for each class"):
        load(Data(str(tmp_path)))
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="has no images in its 1 subfolders"):
        load(Data(str(tmp_path)))


MODULE = """
import numpy as np, torch
from torch.utils.data import Dataset, TensorDataset, IterableDataset
from joulegrad.lab import data

class Numbers(Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return torch.full((3,), float(i)), i % 2

class Stream(IterableDataset):
    def __iter__(self): return iter(())

class Uneven(Numbers):
    def __getitem__(self, i): return torch.zeros(3 + (i == 4)), 0

class Alone(Numbers):
    def __getitem__(self, i): return torch.zeros(3)

def two(): return Numbers(6), TensorDataset(torch.zeros(4, 3), torch.ones(4, dtype=torch.int64))
def one(): return Numbers(20)
def folder(directory): return Numbers(int(directory)), Numbers(2)
def stream(): return Stream()
def uneven(): return Uneven(20)
def alone(): return Alone(20)
def ready(): return data.Dataset(torch.zeros(20, 2), torch.arange(20) % 2, {"who": torch.arange(20) % 3})
def broken(): raise KeyError("mine")
number = 5
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's in the current folder, which is not on the path."""
    (tmp_path / "my_sets.py").write_text(MODULE)
    (tmp_path / "my_needy.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield "my_sets"
    sys.modules.pop("my_sets", None)


def test_any_torch_dataset(mine):
    two = load(Data("my_sets:two"))
    assert two.train.inputs[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert two.test.labels.tolist() == [1, 1, 1, 1]
    assert (two.classes, two.shape) == (2, (3,))
    one = load(Data("my_sets:one"))
    assert (len(one.train.labels), len(one.test.labels)) == (16, 4)
    assert len(load(Data("my_sets:folder", directory="7")).train.labels) == 7
    assert len(ByColumn("who").split(load(Data("my_sets:ready")).train, 0)) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_sets:stream", "gave a Stream; expected a torch.utils.data.Dataset with a length"),
        ("my_sets:uneven", r"input 4 has shape \(4,\), input 0 \(3,\); they must be alike"),
        ("my_sets:alone", r"item 0 is a Tensor; expected a pair \(input, label\)"),
        ("my_sets:tow", "module 'my_sets' has no 'tow'; did you mean 'two'"),
        ("my_sets:number", "'my_sets:number' is not callable: it is a int"),
        ("my_set:two", "names a module that is not found: 'my_set'"),
    ],
)
def test_a_callable_that_will_not_do(mine, name, message):
    with pytest.raises(ValueError, match=message):
        load(Data(name))


def test_a_mistake_in_the_users_module_is_theirs_to_see(mine):
    with pytest.raises(KeyError, match="mine"):
        load(Data("my_sets:broken"))
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        load(Data("my_needy:two"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: load(Data("digit")), r"data 'digit' is no built-in name \(digits, cifar10, .* did you mean 'digits'"),
        (lambda: load(Data("CIFAR10")), "data 'CIFAR10' is no built-in name"),
        (lambda: load(Data("README.md")), "a file, but no .npz"),
        (lambda: load(Data("nowhere/x.npz")), "no file or folder, and no module:callable"),
        (lambda: Data(train_examples=0), "train_examples must be a positive number, got 0"),
        (lambda: Data(test_examples=0.5), r"test_examples must be a positive number, got 0\.5"),
        (lambda: Data(directory="somewhere"), "directory is not for digits, which is here already; got 'somewhere'"),
        (lambda: load(Data(image_size=3)), "image_size is for a folder of images; digits is none"),
        (lambda: load(Data(train_examples=2000)), "train_examples of digits: 2,000 are asked for, there are 1,438"),
    ],
)
def test_mistakes_are_said_in_the_callers_words(make, message, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=message):
        make()


def test_the_nearest_file_is_named(tmp_path):
    npz(tmp_path / "mine.npz", x=ONES, y=np.zeros(10, int))
    with pytest.raises(ValueError, match=r"did you mean '.*mine\.npz'"):
        load(Data(str(tmp_path / "mein.npz")))


def test_a_function_is_called_with_what_it_accepts():
    assert naming.call(lambda **given: given, a=1, b=2) == {"a": 1, "b": 2}
    assert naming.call(lambda b: b, a=1, b=2) == 2


def test_sets_travel_to_other_processes():
    task = load(Data(train_examples=5))
    again = pickle.loads(pickle.dumps(task))
    assert torch.equal(again.train.inputs, task.train.inputs)
    assert isinstance(again.train, Dataset)


# --- batches ----------------------------------------------------------------------------------------------------


def test_bytes_are_scaled_and_left_as_they_were():
    task = load(Data())
    before = task.train.inputs.clone()
    given = normalised(task, task.train.inputs)
    assert torch.equal(task.train.inputs, before)
    assert torch.allclose(given, (before / 255 - task.mean) / task.std, atol=1e-6)
    floats = task._replace(mean=torch.zeros(1), std=torch.ones(1))
    x = torch.ones(2, 1, 8, 8)
    assert normalised(floats, x).data_ptr() != x.data_ptr()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_crop_and_mirror_occurs_and_nothing_else(dtype):
    image = torch.arange(1, 25).view(1, 2, 3, 4)  # channels, height, width
    wide = torch.nn.functional.pad(image[0], (1, 1, 1, 1))
    allowed = set()
    for down in range(3):
        for right in range(3):
            crop = wide[:, down : down + 3, right : right + 4]
            allowed |= {str(crop.tolist()), str(crop.flip(2).tolist())}
    images = image.to(dtype).expand(1000, -1, -1, -1)
    made = augment(images, torch.Generator().manual_seed(0), padding=1)
    assert made.dtype == dtype
    assert {str(x.long().tolist()) for x in made} == allowed
    again = augment(images, torch.Generator().manual_seed(0), padding=1)
    assert torch.equal(made, again)
    assert not torch.equal(made, augment(images, torch.Generator().manual_seed(1), padding=1))
    mirrored = sum(torch.equal(x.long().sort(-1).values, x.long()) for x in made[(made > 0).all((1, 2, 3))])
    assert 0 < mirrored < (made > 0).all((1, 2, 3)).sum()
