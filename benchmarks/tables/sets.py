"""The tables: regressions and classifications, five splits each, and which of them tuned the library's defaults."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torchbayes.data.vectors import load_uci

SPLITS = 5
TRAIN, TEST = 1000, 1000  # rows at most; of more, so many are drawn without replacement, by the number of the split
TEST_SHARE = 0.2  # of the sets without standard splits
TUNED = ("concrete", "yacht", "diabetes", "glass", "heart", "wine_red")
"""The sets that the library's defaults were tuned on; all others only report."""

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Split:
    """Training and test rows of a table.

    Attributes:
        train: inputs (N, D) in raw units, float64, and targets (N,): numbers in standard deviations of the training
            targets from their mean, or numbers of classes from 0 on.
        test: likewise, by the same mean and standard deviation.
        classes: K, or 0 where targets are numbers.
        available: training rows before some were drawn.
    """

    train: Arrays
    test: Arrays
    classes: int
    available: int


def split(name: str, number: int) -> Split:
    """Return a split of a set by its number, from 0 on.

    Raises:
        KeyError: if there is no such set.
        FileNotFoundError: if its file is not in the folder that TORCHBAYES_DATA names.
    """
    regression = name in REGRESSIONS
    train, test = (REGRESSIONS if regression else CLASSIFICATIONS)[name](number)
    available, random = len(train[1]), np.random.default_rng(number)
    train, test = (_drawn(part, most, random) for part, most in ((train, TRAIN), (test, TEST)))
    if not regression:
        return Split(train, test, int(max(train[1].max(), test[1].max())) + 1, available)
    mean, sd = train[1].mean(), train[1].std()
    return Split((train[0], (train[1] - mean) / sd), (test[0], (test[1] - mean) / sd), 0, available)


def _drawn(rows: Arrays, most: int, random: np.random.Generator) -> Arrays:
    chosen = np.sort(random.permutation(len(rows[1]))[:most])
    return rows[0][chosen], rows[1][chosen]


def _standard(name: str, number: int) -> tuple[Arrays, Arrays]:
    """Return a standard split of a UCI set."""
    raw = load_uci(name, number, _data())
    return raw.train, raw.test


def _own(read: Callable[[], Arrays], number: int, *, stratify: bool) -> tuple[Arrays, Arrays]:
    """Return a split as scikit-learn draws it; with `stratify` each part has the shares of the classes."""
    from sklearn.model_selection import train_test_split

    inputs, targets = read()
    kept = {"test_size": TEST_SHARE, "random_state": number, "stratify": targets if stratify else None}
    train, test, train_targets, test_targets = map(np.asarray, train_test_split(inputs, targets, **kept))
    return (train, train_targets), (test, test_targets)


def _data() -> Path:
    if "TORCHBAYES_DATA" not in os.environ:
        raise FileNotFoundError("The environment variable TORCHBAYES_DATA must name the folder of the data sets.")
    return Path(os.environ["TORCHBAYES_DATA"])


def airfoil() -> Arrays:
    """Return the rows of airfoil self-noise."""
    table = np.loadtxt(_data() / "tabular" / "airfoil.csv", delimiter=",", skiprows=1)
    return table[:, :-1], table[:, -1]


def bikesharing() -> Arrays:
    """Return the rows of bike sharing by the hour."""
    import pandas as pd

    table = pd.read_csv(_data() / "tabular" / "bikesharing.csv")
    # two counts add up to the target; the number of the row and the date are left out in published work too
    inputs = table.drop(columns=["cnt", "casual", "registered", "instant", "dteday"])
    return inputs.to_numpy(np.float64), table["cnt"].to_numpy(np.float64)


def _classes(file: str) -> Arrays:
    table = np.loadtxt(_data() / "tabular" / file)
    return table[:, :-1], np.unique(table[:, -1], return_inverse=True)[1]


def _shipped(loader: str) -> Arrays:
    """Return a set that scikit-learn ships."""
    from sklearn import datasets

    results: Any = getattr(datasets, loader)()
    return np.asarray(results.data, np.float64), np.asarray(results.target)


_UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
_OWN: dict[str, Callable[[], Arrays]] = {
    "airfoil": airfoil,
    "bikesharing": bikesharing,
    "diabetes": partial(_shipped, "load_diabetes"),
}
_CLASSES: dict[str, Callable[[], Arrays]] = {
    "australian": partial(_classes, "australian_proc.data"),
    "breast_cancer": partial(_shipped, "load_breast_cancer"),
    "digits": partial(_shipped, "load_digits"),
    "glass": partial(_classes, "glass_proc.data"),
    "heart": partial(_classes, "heart_proc.data"),
    "ionosphere": partial(_classes, "ionosphere.data"),
    "sonar": partial(_classes, "sonar_proc.data"),
    "wine_cultivars": partial(_shipped, "load_wine"),
    "wine_red": partial(_classes, "wine_red_proc.data"),
}
Reader = Callable[[int], tuple[Arrays, Arrays]]
REGRESSIONS: dict[str, Reader] = {
    **{name: partial(_standard, f"uci_{name}") for name in _UCI},
    **{name: partial(_own, read, stratify=False) for name, read in _OWN.items()},
}
CLASSIFICATIONS: dict[str, Reader] = {name: partial(_own, read, stratify=True) for name, read in _CLASSES.items()}
SETS = (*REGRESSIONS, *CLASSIFICATIONS)
