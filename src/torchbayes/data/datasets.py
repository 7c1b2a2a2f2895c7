"""Data sets by name: `load("digits")`, `load("uci_boston", split=3)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchbayes.calls import explained
from torchbayes.checks import as_seed, check_kind, check_name, optional, whole
from torchbayes.data.base import Data, Raw, drawn, finish, of_classes
from torchbayes.data.files import data_root
from torchbayes.data.images import load_digits, load_images
from torchbayes.data.ood import ood_names
from torchbayes.data.text import load_imdb
from torchbayes.data.vectors import UCI_SETS, load_uci, toy_drbayes, toy_izmailov, toy_sine, two_moons
from torchbayes.native.process import undisturbed

_DRAWS = 20  # splits of the sets that are drawn or split here: as many as the UCI sets have


@dataclass(frozen=True)
class _Entry:
    """One name: what it is, how it is read (split, root -> arrays), its number of splits, whether it needs files."""

    line: str
    read: Callable[[int, Path | None], Raw]
    splits: int = 1
    files: bool = True


def _registry() -> dict[str, _Entry]:
    image_lines = {
        "mnist": "handwritten digits, 28x28 grey, 60,000 + 10,000",
        "fashion_mnist": "clothes, 28x28 grey, 60,000 + 10,000",
        "kmnist": "cursive Japanese characters, 28x28 grey, 60,000 + 10,000",
        "cifar10": "photographs of 10 kinds, 32x32 colour, 50,000 + 10,000",
    }
    return {
        "digits": _Entry(
            "handwritten digits, 8x8 grey, 1,437 + 360, no file", lambda s, _: load_digits(s), _DRAWS, False
        ),
        **{name: _Entry(line, lambda _, r, n=name: load_images(n, r)) for name, line in image_lines.items()},
        **{
            name: _Entry(line, lambda s, r, n=name: load_uci(n, s, r), splits)
            for name, (_, line, _, _, splits) in UCI_SETS.items()
        },
        "imdb": _Entry(
            "sentiment of film reviews, last 100 tokens of 20,000 words, 25,000 + 25,000", lambda _, r: load_imdb(r)
        ),
        "two_moons": _Entry(
            "two interleaved half circles in 2-d, 200 + 1,000, no file", lambda s, _: two_moons(s), _DRAWS, False
        ),
        "toy_sine": _Entry(
            "1-d regression with a gap in the inputs, 80 + 200, no file", lambda s, _: toy_sine(s), _DRAWS, False
        ),
        "toy_izmailov": _Entry("1-d regression in three clusters, 60 + 100", lambda _, r: toy_izmailov(r)),
        "toy_drbayes": _Entry("1-d regression, 360 + 40", toy_drbayes, _DRAWS),
    }


_SETS = _registry()


def names() -> dict[str, str]:
    """Return every name that `load` knows, with one line on what it is."""
    return {name: entry.line for name, entry in _SETS.items()}


def num_splits(name: str) -> int:
    """Return how many splits a set has; `load` takes `split` from 0 to one less.

    The UCI sets have their standard splits; for `digits` and the generated toys each split is another seed; sets with
    an official test part have one.

    Args:
        name: Name of the set.

    Returns:
        The number of splits.
    """
    return _entry(name).splits


@undisturbed
@explained()
def load(
    name: str,
    *,
    split: int = 0,
    root: str | os.PathLike[str] | None = None,
    train_size: int | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> Data:
    """Load a data set, standardised with the statistics of the training rows that are kept.

    Args:
        name: One of `names()`.
        split: Which split, for sets with several (see `num_splits`).
        root: Local data folder, by default the environment variable TORCHBAYES_DATA. A file that is not there is
            downloaded from its official address into the user's cache and checked, where a checksum is published.
        train_size: Keep this many training rows, drawn without replacement; all by default.
        seed: Seed of that draw.
        classes: Keep only the rows of these classes, by name, with labels 0, 1, ... in this order; all by default.
            Test images of the other classes are `out_of_distribution(data, name)`.

    Returns:
        The data set.

    Raises:
        ValueError: `split` or `train_size` is out of range, or `classes` are not two or more different classes.
    """
    entry, seed = _entry(name), as_seed(seed)
    optional(check_kind, (str, os.PathLike), "a path", root=root)
    if whole("split", split, least=0) >= entry.splits:
        raise ValueError(f"`split` of `{name}` must be between 0 and {entry.splits - 1}; got {split}.")
    raw = entry.read(split, data_root(root) if entry.files else None)
    raw = raw if classes is None else of_classes(name, raw, classes)
    raw = raw if train_size is None else drawn(name, raw, train_size, seed=seed)
    return finish(name, raw)


def _entry(name: str) -> _Entry:
    """Return the entry of a name; ValueError if there is no such set, or it has no training part."""
    if isinstance(name, str) and name in ood_names() and name not in _SETS:
        raise ValueError(
            f"`{name}` has no training part. Use it as out-of-distribution inputs of another set: "
            f"out_of_distribution(data, {name!r})."
        )
    check_name("data set", name, _SETS)
    return _SETS[name]
