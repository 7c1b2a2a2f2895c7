"""IMDB film reviews as token ids, padded as Keras pads them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from torchbayes.data.base import Raw
from torchbayes.data.files import Remote, check_labels, check_shape, local_file, obtain, opened, read_arrays

VOCABULARY = 20_000  # token ids stay below this
LENGTH = 100  # tokens kept, counted from the end of the review
PAD, START, UNKNOWN, FIRST_WORD = 0, 1, 2, 3  # Keras's ids; the word of rank r has id r + FIRST_WORD

_KERAS = Remote(
    "imdb",
    "imdb.npz",
    ("https://storage.googleapis.com/tensorflow/tf-keras-datasets/imdb.npz",),
    "sha256:69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f",
)


def load_imdb(root: Path | None) -> Raw:
    """Return both halves (25,000 reviews each) as ids (N, 100) int64 and labels, 1 = positive."""
    paths = [local_file("imdb", f"{subset}.npz", root) for subset in ("train", "test")]
    if paths[0] is not None and paths[1] is not None:
        train, test = (_read_flat(path) for path in paths if path is not None)
    else:
        train, test = read_keras(obtain("imdb", _KERAS, root))
    source = "Large Movie Review Dataset (Maas et al. 2011), tokens of keras.datasets.imdb"
    index = local_file("imdb", "imdb_word_index.json.gz", root)
    words = () if index is None else read_words(index)
    return Raw(train, test, source, ("negative", "positive"), words=words)


def read_words(path: Path) -> tuple[str, ...]:
    """Return the word of each token id from Keras's index, a JSON of word -> rank from 1, packed by gzip."""
    try:
        ranks = json.loads(gzip.decompress(path.read_bytes()))
        word_of = {int(rank) + FIRST_WORD: str(word) for word, rank in ranks.items()}
    except (OSError, EOFError, zlib.error, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} must hold Keras's index of words and their ranks as JSON, packed by gzip. Fetch it again, or "
            f"remove it: only reports read it."
        ) from error
    return ("", "", "?", *(word_of.get(number, "?") for number in range(FIRST_WORD, VOCABULARY)))


def pad(tokens: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Keep the last `LENGTH` tokens of each text, pad with 0 on the left, replace rare words; int64 (N, LENGTH).

    `tokens` (total,) are all texts end to end; `offsets` (N + 1,) are where each begins, and the total.
    """
    places = offsets[1:, None] + np.arange(-LENGTH, 0)
    inside = places >= offsets[:-1, None]
    ids = tokens[np.where(inside, places, 0)].astype(np.int64)
    return np.where(inside, np.where(ids < VOCABULARY, ids, UNKNOWN), PAD)


def _read_flat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the padded ids and labels of an npz with all tokens end to end."""
    tokens, offsets, labels = read_arrays(path, "tokens", "offsets", "labels")
    check_shape(path, (None,), tokens=tokens, offsets=offsets)
    if tokens.dtype.kind not in "iu" or offsets.dtype.kind not in "iu":
        raise ValueError(f"{path} must hold whole numbers; got {tokens.dtype} and {offsets.dtype}. Fetch it again.")
    if offsets[0] != 0 or offsets[-1] != len(tokens) or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise ValueError(
            f"`offsets` of {path} must rise from 0 to the {len(tokens)} tokens; they go from {offsets[0]} to "
            f"{offsets[-1]}. Fetch it again."
        )
    check_labels(path, labels, len(offsets) - 1, classes=2)
    return pad(tokens, offsets), labels


def read_keras(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return ids and labels of both halves of imdb.npz, as `keras.datasets.imdb.load_data` (shuffle seed 113)."""
    with opened(path, "Keras's archive of reviews") as file:
        halves = _keras_halves(file)
    for ids, labels in halves:
        check_labels(path, labels, len(ids), classes=2)
    return halves


def _keras_halves(file: BinaryIO) -> list[tuple[np.ndarray, np.ndarray]]:
    halves = []
    with zipfile.ZipFile(file) as archive:
        for subset in ("train", "test"):
            reviews, labels = (_read_array(archive.read(f"{kind}_{subset}.npy")) for kind in "xy")
            order = np.arange(len(reviews))
            np.random.RandomState(113).shuffle(order)  # the generator that defines Keras's order
            texts = [np.array([START, *(rank + FIRST_WORD for rank in reviews[i])]) for i in order]
            offsets = np.cumsum([0, *map(len, texts)])
            halves.append((pad(np.concatenate(texts), offsets), labels[order]))
    return halves


def _read_array(content: bytes) -> np.ndarray:
    """Return one .npy member; object arrays come through an unpickler that knows nothing but arrays and lists."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0) or not np.lib.format.read_array_header_1_0(stream)[2].hasobject:
        return np.load(io.BytesIO(content), allow_pickle=False)
    return _ArrayUnpickler(stream).load()


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles numpy arrays of plain values and refuses every other class or function, so no code can run."""

    def find_class(self, module: str, name: str) -> Any:
        reconstruct = np.empty(0).__reduce__()[0]  # the function arrays are pickled with
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        if (module, name) not in allowed:
            raise ValueError(f"The archive asks for {module}.{name}, which is no part of an array. Fetch it again.")
        return allowed[module, name]
