"""File formats and downloads: small files in the official formats, some of them served over HTTP on this machine."""

import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import pickle
import tarfile
import threading

import numpy as np
import pytest
import torch

from torchbayes.data import images, load, text
from torchbayes.data.files import Remote, obtain
from torchbayes.data.images import read_cifar10_archive, read_idx, read_residual
from torchbayes.data.text import pad, read_keras


def idx_bytes(array):
    """An idx file of bytes, gzipped."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(header + array.tobytes())


def cifar10_bytes(pixels, labels, names):
    """The official binary archive with the rows dealt evenly to the batches."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for rows, name in zip(np.array_split(np.arange(len(labels)), len(names)), names, strict=True):
            content = b"".join(bytes([labels[i]]) + pixels[i].tobytes() for i in rows)
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


BATCHES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 12, dtype=np.uint8)


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A folder, and the address under which it is served."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "web"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_idx_files_hold_any_shape(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (3, 5, 7), dtype=np.uint8)
    path = tmp_path / "x.gz"
    path.write_bytes(idx_bytes(array))
    np.testing.assert_array_equal(read_idx(path), array)


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-9], lambda _: gzip.compress(b"hello"), lambda _: b"", lambda _: b"xy"]
)
def test_damaged_idx_files_are_refused(tmp_path, damage):
    path = tmp_path / "x.gz"
    path.write_bytes(damage(idx_bytes(np.zeros((2, 3), np.uint8))))
    with pytest.raises(ValueError, match=r"not a whole (idx|gzip) file.*Fetch it again"):
        read_idx(path)


def test_wrap_around_differences_are_undone(tmp_path, pictures):
    pixels, labels = pictures
    residual = pixels.copy()
    for axis in (1, 2, 3):
        residual = np.diff(residual, axis=axis, prepend=np.uint8(0))  # uint8 arithmetic is modulo 256
    np.savez(tmp_path / "x.npz", residual=residual, labels=labels)
    read = read_residual(tmp_path / "x.npz")
    np.testing.assert_array_equal(read[0], pixels)
    np.testing.assert_array_equal(read[1], labels)


def test_the_cifar_archive_is_read_in_batch_order(tmp_path, pictures):
    pixels, labels = pictures
    path = tmp_path / "c.tar.gz"
    path.write_bytes(cifar10_bytes(pixels, labels, BATCHES[::-1]))  # members in any order
    read = read_cifar10_archive(path, "train")
    order = [8, 9, 6, 7, 4, 5, 2, 3, 0, 1]
    order = [10, 11, *order][:10]
    np.testing.assert_array_equal(read[0], pixels[order])
    np.testing.assert_array_equal(read[1], labels[order])
    np.testing.assert_array_equal(read_cifar10_archive(path, "test")[0], pixels[:2])


def test_a_cifar_archive_with_a_cut_or_missing_batch_is_refused(tmp_path, pictures):
    path = tmp_path / "c.tar.gz"
    path.write_bytes(cifar10_bytes(pictures[0], pictures[1], BATCHES[1:]))
    with pytest.raises(ValueError, match=r"no whole batch data_batch_1\.bin"):
        read_cifar10_archive(path, "train")
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(ValueError, match=r"not a whole tar\.gz archive.*Fetch it again"):
        read_cifar10_archive(path, "train")


def test_cifar10_is_downloaded_checked_and_cached(web, cache, pictures, monkeypatch):
    folder, address = web
    content = cifar10_bytes(pictures[0], pictures[1], BATCHES)
    (folder / "c.tar.gz").write_bytes(content)
    checksum = "md5:" + hashlib.md5(content).hexdigest()
    remote = dataclasses.replace(images._CIFAR10_ARCHIVE, urls=(address + "c.tar.gz",), checksum=checksum)
    monkeypatch.setattr(images, "_CIFAR10_ARCHIVE", remote)
    data = load("cifar10")
    raw = data.standardise.inverse(data.train.inputs) * 255
    np.testing.assert_allclose(raw.numpy(), pictures[0][:10], atol=1e-3)
    assert data.test.targets.tolist() == pictures[1][10:].tolist()
    assert [path.name for path in cache.rglob("*") if path.is_file()] == ["cifar-10-binary.tar.gz"]
    (folder / "c.tar.gz").unlink()
    assert torch.equal(load("cifar10").test.inputs, data.test.inputs)  # from the cache


def test_mnist_is_downloaded_from_the_second_address_if_the_first_has_it_not(web, monkeypatch):
    folder, address = web
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (n, *shape), dtype=np.uint8) for n in (6, 4) for shape in ((28, 28), ())]
    checksums = []
    for file, array in zip(images._IDX_FILES, arrays, strict=True):
        content = idx_bytes(array % 10 if array.ndim == 1 else array)
        (folder / file).write_bytes(content)
        checksums.append(hashlib.md5(content).hexdigest())
    monkeypatch.setitem(images._IDX_SETS, "mnist", ((address + "gone/", address), tuple(checksums)))
    data = load("mnist")
    np.testing.assert_allclose(data.standardise.inverse(data.test.inputs)[:, 0] * 255, arrays[2], atol=1e-3)
    assert data.train.targets.tolist() == (arrays[1] % 10).tolist()


def test_a_download_with_another_checksum_is_thrown_away(web, cache):
    folder, address = web
    (folder / "f.bin").write_bytes(b"not what was published")
    remote = Remote("set", "f.bin", (address + "f.bin",), "md5:" + "0" * 32)
    with pytest.raises(ValueError, match=r"download of `set` does not have the published checksum md5:0+ .*set/f\.bin"):
        obtain("set", remote, None)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_without_a_network_the_message_says_what_to_do(tmp_path, cache):
    remote = Remote("set", "f.bin", ("http://127.0.0.1:9/f.bin",), "md5:" + "0" * 32)
    with pytest.raises(
        FileNotFoundError, match=r"`set`.*TORCHBAYES_DATA is not set.*ConnectionError.*Put the official"
    ):
        obtain("set", remote, None)
    with pytest.raises(FileNotFoundError, match=r"no file .*set.f\.bin, and the download to .*cache.* failed"):
        obtain("set", remote, tmp_path)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_the_local_folder_comes_first(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "f.bin").write_bytes(b"local")
    remote = Remote("set", "f.bin", ("http://127.0.0.1:9/f.bin",), "md5:" + "0" * 32)
    assert obtain("set", remote, tmp_path).read_bytes() == b"local"


def keras_padded(review):
    """What Keras's pad_sequences gives for one review."""
    ids = [token if token < text.VOCABULARY else 2 for token in review][-text.LENGTH :]
    return [0] * (text.LENGTH - len(ids)) + ids


def test_texts_are_cut_and_padded_on_the_left():
    rng = np.random.default_rng(0)
    reviews = [rng.integers(1, 30_000, n).tolist() for n in (150, 100, 99, 3, 1, 0, 250)]
    offsets = np.cumsum([0, *map(len, reviews)])
    ids = pad(np.array([t for review in reviews for t in review], np.uint32), offsets)
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids, [keras_padded(review) for review in reviews])


def write_keras_archive(path, arrays):
    with open(path, "wb") as stream:
        np.savez(stream, **arrays)


def test_keras_archive_is_shuffled_and_shifted_as_keras_does(tmp_path, cache):
    rng = np.random.default_rng(0)
    arrays, expected = {}, {}
    for part, rows in (("train", 9), ("test", 5)):
        ranks = np.empty(rows, dtype=object)
        ranks[:] = [rng.integers(1, 25_000, rng.integers(1, 200)).tolist() for _ in range(rows)]
        labels = rng.integers(0, 2, rows)
        arrays |= {f"x_{part}": ranks, f"y_{part}": labels}
        order = np.arange(rows)
        np.random.RandomState(113).shuffle(order)
        expected[part] = ([keras_padded([1, *(r + 3 for r in ranks[i])]) for i in order], labels[order])
    (tmp_path / "imdb").mkdir()
    write_keras_archive(tmp_path / "imdb" / "imdb.npz", arrays)
    data = load("imdb", root=tmp_path)
    for part, pair in (("train", data.train), ("test", data.test)):
        assert pair.inputs.tolist() == expected[part][0]
        assert pair.targets.tolist() == expected[part][1].tolist()
    assert data.classes == ("negative", "positive")
    assert not data.is_image
    assert data.words == ()
    index = tmp_path / "imdb" / "imdb_word_index.json.gz"
    index.write_bytes(gzip.compress(b'{"film": 2, "the": 1, "rare": 30000}'))
    words = load("imdb", root=tmp_path, train_size=2).words
    assert words[:6] == ("", "", "?", "?", "the", "film")
    assert len(words) == 20_000  # as many as there are ids
    for damaged in (b"", index.read_bytes()[:-9], gzip.compress(b"{"), gzip.compress(b'["the"]')):
        index.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"imdb_word_index\.json\.gz must hold Keras's index"):
            load("imdb", root=tmp_path)


def test_an_archive_that_would_run_code_is_refused(tmp_path):
    class Attack:
        def __reduce__(self):
            return (print, ("ran",))

    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    buffer.write(pickle.dumps(Attack()))
    with pytest.raises(ValueError, match=r"asks for builtins\.print"):
        text._read_array(buffer.getvalue())
    path = tmp_path / "k.npz"
    write_keras_archive(path, {f"{kind}_{part}": np.zeros(3) for kind in "xy" for part in ("train", "test")})
    with pytest.raises(ValueError, match=r"k\.npz is not Keras's archive"):  # rows of numbers are not lists of ranks
        read_keras(path)
