"""Files that are read and are not what their set is: refused, by the name of the file and what is wrong with it."""

import gzip
import io
import random
import tarfile
from typing import Any

import numpy as np
import pytest

from tests.damage import DAMAGES
from tests.data.test_files import idx_bytes
from torchbayes.data import load, ood_names, out_of_distribution
from torchbayes.data.files import check_apart, read_arrays
from torchbayes.data.images import _IDX_FILES, read_cifar10_archive, read_idx
from torchbayes.data.text import read_keras

RNG = np.random.default_rng(0)
ORDER = np.stack([RNG.permutation(308) for _ in range(20)]).astype(np.int32)
YACHT = {
    "data": RNG.normal(10, 2, (308, 7)),
    "feature_columns": np.arange(6),
    "target_column": np.array([6]),
    "train_index": ORDER[:, :277],
    "test_index": ORDER[:, 277:],
}


def spoiled(array, place, value):
    """A copy with one value changed."""
    array = array.copy()
    array[place] = value
    return array


UCI = {
    "NaN": ("data", spoiled(YACHT["data"], (3, 2), np.nan), r"`data` of .*yacht\.npz must be finite; 1 of 2156 values"),
    "inf": ("data", spoiled(YACHT["data"], (3, 6), np.inf), r"`data` of .* must be finite"),
    "too few rows": ("data", YACHT["data"][:300], r"`data` of .*yacht\.npz must have shape \(308, n\); got \(300, 7\)"),
    "text": ("data", YACHT["data"].astype(str), r"`data` of .* must be numbers; got <U"),
    "a list": ("data", YACHT["data"].ravel(), r"must have shape \(308, n\); got \(2156,\)"),
    "no column": (
        "feature_columns",
        np.arange(6) + 5,
        r"`feature_columns` of .* whole numbers from 0 to 6; got 5 to 10",
    ),
    "below zero": ("feature_columns", np.arange(6) - 1, "got -1 to 4"),
    "twice": ("feature_columns", np.array([0, 1, 2, 3, 4, 4]), "`feature_columns` of .* must name nothing twice"),
    "target in features": ("target_column", np.array([5]), "`target_column` 5 of .* is among its `feature_columns`"),
    "two targets": ("target_column", np.array([5, 6]), r"`target_column` of .* must have shape \(1\); got \(2,\)"),
    "row out of range": (
        "test_index",
        spoiled(ORDER[:, 277:], (0, 0), 308),
        "`test_index` of .* 0 to 307; got 0 to 308",
    ),
    "negative row": ("train_index", spoiled(ORDER[:, :277], (0, 0), -1), "`train_index` of .* got -1 to 307"),
    "fractional rows": ("train_index", ORDER[:, :277] + 0.5, "`train_index` of .* of float64"),
    "overlap": (
        "test_index",
        ORDER[:, 270:301],
        r"split 0 of .* 308 are in them, and 7 of these are training and test",
    ),
    "rows left out": (
        "test_index",
        ORDER[:, 277:300],
        "each of its 308 rows in one of two parts; 300 are in them, and 0",
    ),
    "one split": ("test_index", ORDER[0, 277:], r"`test_index` of .* must have shape \(n, n\)"),
}


@pytest.mark.parametrize("what", UCI)
def test_a_uci_file_that_is_not_the_set_is_refused(tmp_path, what):
    name, array, said = UCI[what]
    (tmp_path / "uci_regression").mkdir()
    path = tmp_path / "uci_regression" / "yacht.npz"
    np.savez(path, **YACHT)
    assert len(load("uci_yacht", root=tmp_path).train.inputs) == 277
    np.savez(path, **{**YACHT, name: array})
    with pytest.raises(ValueError, match=said):
        load("uci_yacht", root=tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-99], lambda c: c[:200], lambda _: b"PK", lambda c: c[:400] + b"\1" * 80 + c[480:]]
)
def test_a_damaged_archive_is_refused(tmp_path, damage):
    (tmp_path / "uci_regression").mkdir()
    path = tmp_path / "uci_regression" / "yacht.npz"
    np.savez(path, **YACHT)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"yacht\.npz (is not a whole npz archive|.* must be)"):
        load("uci_yacht", root=tmp_path)


def test_an_archive_without_an_array_is_refused(tmp_path):
    (tmp_path / "uci_regression").mkdir()
    np.savez(tmp_path / "uci_regression" / "yacht.npz", data=YACHT["data"])
    with pytest.raises(ValueError, match="it has no feature_columns, target_column, train_index, test_index"):
        load("uci_yacht", root=tmp_path)
    with (tmp_path / "uci_regression" / "yacht.npz").open("wb") as file:
        np.save(file, YACHT["data"])
    with pytest.raises(ValueError, match=r"yacht\.npz must hold data, .* it has no data, "):
        load("uci_yacht", root=tmp_path)


IMAGES = RNG.integers(0, 256, (30, 28, 28), dtype=np.uint8)
LABELS = np.arange(30, dtype=np.uint8) % 10
MNIST = dict(zip(_IDX_FILES, (IMAGES[:20], LABELS[:20], IMAGES[20:], LABELS[20:]), strict=True))
IDX = {
    "fewer labels": (1, LABELS[:19], r"train-labels.* must hold a label for each of 20 rows; got shape \(19,\)"),
    "no class": (3, spoiled(LABELS[20:], 4, 10), r"labels of .*t10k-labels.* must lie in 0\.\.9; got 0 to 10"),
    "other images": (
        0,
        IMAGES[:20, :8, :8],
        r"`images` of .*train-images.* must have shape \(n, 28, 28\); got \(20, 8, 8\)",
    ),
    "labels for images": (2, LABELS[20:], r"`images` of .*t10k-images.* must have shape \(n, 28, 28\); got \(10,\)"),
    "images for labels": (
        1,
        IMAGES[:20],
        r"train-labels.* must hold a label for each of 20 rows; got shape \(20, 28, 28\)",
    ),
    "nothing": (0, IMAGES[:0], r"must have shape \(n, 28, 28\); got \(0, 28, 28\)"),
    "the training images": (2, IMAGES[:10], "10 of the 10 test rows of `mnist` are among its training rows"),
}


@pytest.mark.parametrize("what", IDX)
def test_an_mnist_file_that_is_not_the_set_is_refused(tmp_path, what):
    (tmp_path / "mnist").mkdir()
    for file, array in MNIST.items():
        (tmp_path / "mnist" / file).write_bytes(idx_bytes(array))
    assert load("mnist", root=tmp_path).test.targets.tolist() == LABELS[20:].tolist()
    number, array, said = IDX[what]
    (tmp_path / "mnist" / _IDX_FILES[number]).write_bytes(idx_bytes(array))
    with pytest.raises(ValueError, match=said):
        load("mnist", root=tmp_path)


def test_a_gzip_file_with_damaged_content_is_refused(tmp_path):
    (tmp_path / "mnist").mkdir()
    content = bytearray(idx_bytes(IMAGES))
    content[60:90] = bytes(30)
    (tmp_path / "mnist" / _IDX_FILES[0]).write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"train-images.* is not a whole (gzip|idx) file"):
        load("mnist", root=tmp_path)
    (tmp_path / "mnist" / _IDX_FILES[0]).write_bytes(gzip.compress(b"\0\0\x0d\x03"))
    with pytest.raises(ValueError, match="is not a whole idx file of bytes"):
        load("mnist", root=tmp_path)


RESIDUAL: dict[str, Any] = {
    "residual": RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8),
    "labels": np.array([0, 99, 5, 7], np.uint8),
}


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("labels", np.array([0, 100, 5, 7], np.uint8), r"labels of .* must lie in 0\.\.99; got 0 to 100"),
        ("labels", np.array([0, 1, 5], np.uint8), "a label for each of 4 rows"),
        ("labels", np.array([0, 1, 5, 2], np.int8), "`labels` of .* must be uint8; got int8"),
        ("residual", np.zeros((4, 3, 32, 32)), "`residual` of .* must be uint8; got float64"),
        ("residual", np.zeros((4, 32, 32, 3), np.uint8), r"must have shape \(n, 3, 32, 32\); got \(4, 32, 32, 3\)"),
    ],
)
def test_a_file_of_cifar_that_is_not_the_set_is_refused(tmp_path, name, array, said):
    assert "cifar100_ood" in ood_names()
    (tmp_path / "cifar100_ood").mkdir()
    path = tmp_path / "cifar100_ood" / "test_subset.npz"
    digits = load("digits", train_size=10)
    np.savez(path, **RESIDUAL)
    assert out_of_distribution(digits, "cifar100_ood", root=tmp_path)["cifar100_ood"].shape == (4, 1, 8, 8)
    np.savez(path, **{**RESIDUAL, name: array})
    with pytest.raises(ValueError, match=said):
        out_of_distribution(digits, "cifar100_ood", root=tmp_path)


REVIEWS: dict[str, Any] = {
    "tokens": np.arange(1, 31, dtype=np.uint32),
    "offsets": np.array([0, 10, 30]),
    "labels": np.array([0, 1], np.uint8),
}


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("labels", np.array([0, 2], np.uint8), r"labels of .*train\.npz must lie in 0\.\.1; got 0 to 2"),
        ("labels", np.array([0], np.uint8), "a label for each of 2 rows"),
        ("offsets", np.array([0, 10, 31]), "`offsets` of .* must rise from 0 to the 30 tokens; they go from 0 to 31"),
        ("offsets", np.array([0, 40, 30]), "`offsets` of .* must rise"),
        ("tokens", np.arange(30) + 0.5, "must hold whole numbers; got float64"),
    ],
)
def test_a_file_of_reviews_that_is_not_the_set_is_refused(tmp_path, name, array, said):
    (tmp_path / "imdb").mkdir()
    for part in ("train", "test"):
        np.savez(tmp_path / "imdb" / f"{part}.npz", **REVIEWS)
    assert load("imdb", root=tmp_path).train.targets.tolist() == [0, 1]
    np.savez(tmp_path / "imdb" / "train.npz", **{**REVIEWS, name: array})
    with pytest.raises(ValueError, match=said):
        load("imdb", root=tmp_path)


def test_a_toy_file_with_nan_is_refused(tmp_path):
    (tmp_path / "toy").mkdir()
    path = tmp_path / "toy" / "drbayes_synthetic_regression.npz"
    table = RNG.normal(size=(40, 2))
    np.savez(path, data=table)
    assert len(load("toy_drbayes", root=tmp_path).test.targets) == 4
    np.savez(path, data=spoiled(table, (0, 0), np.nan))
    with pytest.raises(ValueError, match=r"`data` of .*drbayes_synthetic_regression\.npz must be finite; 1 of 80"):
        load("toy_drbayes", root=tmp_path)


def test_a_few_equal_rows_are_no_overlap():
    check_apart("set", IMAGES[:20], IMAGES[15:])  # 5 of 15
    with pytest.raises(ValueError, match="8 of the 15 test rows"):
        check_apart("set", IMAGES[:23], IMAGES[15:])


# --- damaged bytes


def reviews(path):
    rng = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        texts = np.empty(20, dtype=object)
        texts[:] = [rng.integers(1, 5000, rng.integers(5, 40)).tolist() for _ in range(20)]
        arrays |= {f"x_{part}": texts, f"y_{part}": rng.integers(0, 2, 20)}
    np.savez_compressed(path, **arrays)


def numbers(path):
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(30, 3)))


def pixels(path):
    path.write_bytes(idx_bytes(IMAGES))


def batches(path, mode: Any = "w:xz"):
    with tarfile.open(path, mode) as archive:
        for number in range(1, 6):
            member = tarfile.TarInfo(f"data_batch_{number}.bin")
            member.size = 3073
            archive.addfile(member, io.BytesIO(bytes(3073)))


READERS = {
    "k.npz": (reviews, read_keras),
    "a.npz": (numbers, lambda path: read_arrays(path, "x")),
    "i.gz": (pixels, read_idx),
    "c.tar.gz": (lambda path: batches(path, "w:gz"), lambda path: read_cifar10_archive(path, "train")),
    "c.tar.xz": (batches, lambda path: read_cifar10_archive(path, "train")),
}


@pytest.mark.parametrize("name", READERS)
def test_whatever_is_damaged_in_an_archive_is_read_or_refused_by_name(tmp_path, name):
    write, read = READERS[name]
    path = tmp_path / name
    write(path)
    read(path)
    whole, said = path.read_bytes(), []
    for seed in range(60):
        chance = random.Random(seed)
        damage = DAMAGES[chance.choice(["flip", "flip", "cut", "zero", "swap"])]
        path.write_bytes(damage(whole, chance, b""))
        try:
            read(path)
        except ValueError as error:
            said.append(str(error))
    assert len(said) > 30
    assert all(name in line and line.endswith("again.") for line in said)


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_cannot_be_opened_is_not_said_to_be_damaged(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(IsADirectoryError):
        READERS[name][1](tmp_path / name)


def test_a_file_that_memory_cannot_hold_is_not_said_to_be_damaged(tmp_path, monkeypatch):
    path = tmp_path / "large.npz"
    np.savez(path, data=np.zeros(3))

    def out_of_memory(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate 9.00 GiB")

    monkeypatch.setattr("torchbayes.data.files.np.load", out_of_memory)
    with pytest.raises(ValueError, match=r"large.npz takes more memory than is free \(Unable to allocate 9.00 GiB\)"):
        read_arrays(path, "data")
