"""Image sets: MNIST and its relatives (idx files), CIFAR-10 (binary batches), CIFAR-100 for OOD, 8x8 digits."""

from __future__ import annotations

import gzip
import math
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from torchbayes.data.base import Raw
from torchbayes.data.files import (
    Remote,
    check_apart,
    check_labels,
    check_shape,
    local_file,
    obtain,
    opened,
    read_arrays,
    require_local,
)

Subset = Literal["train", "test"]
Arrays = tuple[np.ndarray, np.ndarray]

DIGITS = tuple("0123456789")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
HIRAGANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# Addresses of the folder, and published md5s in the order train images, train labels, test images, test labels.
_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_IDX_SETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mnist": (
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion_mnist": (
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "kmnist": (
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        (
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
    ),
}
_CIFAR10_ARCHIVE = Remote(
    "cifar10",
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)


_LARGEST = 1 << 28  # bytes: MNIST's training images take 47 million


def read_idx(path: Path) -> np.ndarray:
    """Read a gzipped idx file of bytes: a big-endian header (two zeros, type 8, ndim, sizes), then uint8 values."""
    with opened(path, "a whole gzip file") as file, gzip.open(file) as stream:
        content = stream.read(_LARGEST)
    ndim = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    shape = tuple(int.from_bytes(content[4 * i : 4 * i + 4]) for i in range(1, ndim + 1))
    if not ndim or len(content) != 4 + 4 * ndim + math.prod(shape):
        raise ValueError(f"{path} is not a whole idx file of bytes ({len(content)} bytes read). Fetch it again.")
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * ndim).reshape(shape).copy()


def idx_arrays(name: str, subset: Subset, root: Path | None) -> Arrays:
    """Return images (N, 1, 28, 28) and labels (N,) of a set in MNIST's format."""
    if name == "kmnist" and subset == "test" and (arrays := _kmnist_test_npz(root)) is not None:
        return arrays
    addresses, checksums = _IDX_SETS[name]
    first = 0 if subset == "train" else 2
    read, paths = [], []
    for file, md5 in zip(_IDX_FILES[first : first + 2], checksums[first : first + 2], strict=True):
        remote = Remote(name, file, tuple(address + file for address in addresses), f"md5:{md5}")
        paths.append(obtain(name, remote, root))
        read.append(read_idx(paths[-1]))
    return _greys(read, paths)


def _greys(read: list[np.ndarray], paths: list[Path]) -> Arrays:
    """Check and return images (N, 1, 28, 28) and labels (N,) of ten classes, read from the two files."""
    check_shape(paths[0], (None, 28, 28), images=read[0])
    check_labels(paths[1], read[1], len(read[0]), classes=10)
    return read[0][:, None], read[1]


def _kmnist_test_npz(root: Path | None) -> Arrays | None:
    """Return KMNIST's test part from its numpy files, if the local folder has them, else None."""
    paths = [local_file("kmnist", f"kmnist-test-{kind}.npz", root) for kind in ("imgs", "labels")]
    if paths[0] is None or paths[1] is None:
        return None
    files = [paths[0], paths[1]]
    return _greys([_bytes(path, "arr_0")[0] for path in files], files)


def _bytes(path: Path, *names: str) -> list[np.ndarray]:
    """Return arrays of an npz archive, which must be uint8."""
    arrays = read_arrays(path, *names)
    for name, array in zip(names, arrays, strict=True):
        if array.dtype != np.uint8:
            raise ValueError(f"`{name}` of {path} must be uint8; got {array.dtype}. Fetch it again.")
    return arrays


def notmnist_arrays(subset: Subset, root: Path | None) -> Arrays:
    """Return notMNIST's test images (N, 1, 28, 28) and labels; there is no official training part."""
    hint = "It is the set of 10,000 letters A-J in MNIST's idx format, with its labels beside it."
    paths = [require_local("notmnist", "notmnist", file, root=root, hint=hint) for file in _IDX_FILES[2:]]
    return _greys([read_idx(path) for path in paths], paths)


def read_residual(path: Path, classes: int = 10) -> Arrays:
    """Return uint8 RGB images (N, 3, 32, 32) and labels (N,) of an npz archive.

    Its `residual` stores wrap-around differences along channel, row and column.
    """
    pixels, labels = _bytes(path, "residual", "labels")
    check_shape(path, (None, 3, 32, 32), residual=pixels)
    check_labels(path, labels, len(pixels), classes=classes)
    for axis in (1, 2, 3):  # whole planes, modulo 256: a quarter of the time of `np.cumsum`
        planes = np.moveaxis(pixels, axis, 0)
        for before, plane in pairwise(planes):
            np.add(plane, before, out=plane)
    return pixels, labels


def cifar10_arrays(subset: Subset, root: Path | None) -> Arrays:
    """Return CIFAR-10 images (N, 3, 32, 32) and labels (N,) in the official order."""
    batches = [f"train_{i}" for i in range(1, 6)] if subset == "train" else ["test"]
    paths = [local_file("cifar10", f"{batch}.npz", root) for batch in batches]
    present = [path for path in paths if path is not None]
    if len(present) == len(batches):
        read = [read_residual(path) for path in present]
        return np.concatenate([pixels for pixels, _ in read]), np.concatenate([labels for _, labels in read])
    return read_cifar10_archive(obtain("cifar10", _CIFAR10_ARCHIVE, root), subset)


def read_cifar10_archive(path: Path, subset: Subset) -> Arrays:
    """Return uint8 images (N, 3, 32, 32) and labels of the official tar.gz archive, without unpacking it to disk.

    A record is one label byte and 3,072 RGB bytes.
    """
    members = [f"data_batch_{i}.bin" for i in range(1, 6)] if subset == "train" else ["test_batch.bin"]
    content: dict[str, bytes] = {}
    with opened(path, "a whole tar.gz archive") as file, tarfile.open(fileobj=file) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.name.rpartition("/")[2] in members else None
            if stream is not None:
                content[member.name.rpartition("/")[2]] = stream.read(_LARGEST)
    if missing := [member for member in members if not content.get(member) or len(content[member]) % 3073]:
        raise ValueError(f"{path} has no whole batch {', '.join(missing)}. Fetch it again.")
    records = np.frombuffer(b"".join(content[member] for member in members), dtype=np.uint8).reshape(-1, 3073)
    check_labels(path, records[:, 0], len(records), classes=10)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].copy()


def cifar100_arrays(subset: Subset, root: Path | None) -> Arrays:
    """Return 2,500 CIFAR-100 test images (25 of each class), grouped by class, and their fine labels."""
    hint = "It is an npz with `residual` uint8 (N, 3, 32, 32) and `labels`."
    return read_residual(require_local("cifar100_ood", "cifar100_ood", "test_subset.npz", root=root, hint=hint), 100)


@dataclass(frozen=True)
class ImageSet:
    """How one image set is read, and what its labels mean."""

    read: Callable[[Subset, Path | None], Arrays]
    classes: tuple[str, ...]
    source: str


IMAGE_SETS: dict[str, ImageSet] = {
    "mnist": ImageSet(partial(idx_arrays, "mnist"), DIGITS, "MNIST (LeCun, Bottou, Bengio and Haffner 1998)"),
    "fashion_mnist": ImageSet(
        partial(idx_arrays, "fashion_mnist"), FASHION, "Fashion-MNIST (Xiao, Rasul and Vollgraf 2017)"
    ),
    "kmnist": ImageSet(
        partial(idx_arrays, "kmnist"),
        HIRAGANA,
        "Kuzushiji-MNIST (Clanuwat et al. 2018; ROIS-DS CODH, doi:10.20676/00000341)",
    ),
    "cifar10": ImageSet(cifar10_arrays, CIFAR10, "CIFAR-10 (Krizhevsky 2009)"),
}
# Sets without a training part, which serve as out-of-distribution images for models of the sets above.
STRANGERS: dict[str, Callable[[Subset, Path | None], Arrays]] = {
    "notmnist": notmnist_arrays,
    "cifar100_ood": cifar100_arrays,
}


def load_images(name: str, root: Path | None) -> Raw:
    """Return both parts of one of `IMAGE_SETS`."""
    entry = IMAGE_SETS[name]
    train, test = entry.read("train", root), entry.read("test", root)
    check_apart(name, train[0], test[0])
    return Raw(train, test, entry.source, entry.classes, levels=255)


@cache
def _embedded_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels and labels of scikit-learn's digits, whose file is text."""
    from sklearn.datasets import load_digits as embedded

    images, labels = (np.asarray(column) for column in embedded(return_X_y=True))
    return images.astype(np.uint8).reshape(-1, 1, 8, 8), labels


def load_digits(split: int) -> Raw:
    """Return scikit-learn's 1,797 embedded 8x8 digits (pixels 0..16) split 80/20, stratified, seeded by `split`."""
    from sklearn.model_selection import train_test_split

    pixels, labels = _embedded_digits()
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=split)
    source = "Optical recognition of handwritten digits, UCI test part (Alpaydin and Kaynak 1998), from scikit-learn"
    return Raw((pixels[train], labels[train]), (pixels[test], labels[test]), source, DIGITS, levels=16)
