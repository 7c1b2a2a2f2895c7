"""The data: regressions and classifications, two splits each, standardised by their training rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import torchbayes as tb
from torchbayes.data import Data, load
from torchbayes.data.user.arrays import as_data
from torchbayes.networks import mlp, small_cnn

_UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "wine", "yacht")
_TABLES = {
    "ionosphere": "ionosphere.data",
    "heart": "heart_proc.data",
    "sonar": "sonar_proc.data",
    "glass": "glass_proc.data",
    "red wine": "wine_red_proc.data",
}
NAMES = (*_UCI, *_TABLES, "digits", "fashion", "imdb")
SPLITS = 2
_ROWS = 2000  # training rows of the large sets, and test rows at most
_WORDS = 500


@dataclass(frozen=True)
class Problem:
    """A data set with the model that one takes who has chosen nothing.

    Attributes:
        data: standardised rows.
        model: a perceptron, or for images a small convolutional network, under the default prior; numbers have normal
            noise of a learned scale.
    """

    data: Data
    model: tb.Model

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers."""
        return not self.data.num_classes

    def with_dropout(self, rate: float) -> Problem:
        """Return the problem for a network that has dropout of a rate between its layers."""
        return replace(self, model=_model(self.data, dropout=rate))


def problem(name: str, split: int) -> Problem:
    """Return a data set by name, with its model."""
    read = _READERS.get(name, _table if name in _TABLES else _uci)
    data = read(name, split)
    return Problem(data, _model(data))


def _model(data: Data, **settings: Any) -> tb.Model:
    network = (small_cnn if data.is_image else mlp)(data.input_shape, data.num_classes or 1, **settings)
    likelihood = tb.likelihoods.Categorical() if data.num_classes else tb.likelihoods.Gaussian(scale="learned")
    return tb.Model(network, likelihood)


def _uci(name: str, split: int) -> Data:
    return load(f"uci_{name}", split=split)


def _table(name: str, split: int) -> Data:
    rows = np.loadtxt(Path(os.environ["TORCHBAYES_DATA"]) / "tabular" / _TABLES[name])
    labels = np.unique(rows[:, -1], return_inverse=True)[1]
    return _split(name, rows[:, :-1], labels, split)


def _digits(name: str, split: int) -> Data:
    data = load(name)
    raw = [data.standardise.inverse(part.inputs).numpy() for part in (data.train, data.test)]
    labels = [part.targets.numpy() for part in (data.train, data.test)]
    return _split(name, np.concatenate(raw), np.concatenate(labels), split)


def _fashion(name: str, split: int) -> Data:
    del name
    data = load("fashion_mnist", train_size=_ROWS, seed=split)
    test = type(data.test)(data.test.inputs[split * _ROWS :][:_ROWS], data.test.targets[split * _ROWS :][:_ROWS])
    return tb.data.Data(**{**vars(data), "test": test})


def _words(name: str, split: int) -> Data:
    """Return reviews as counts of frequent words, log(1 + n)."""
    data, random = load(name), np.random.default_rng(split)
    arrays = []
    for part in (data.train, data.test):
        chosen = random.permutation(len(part.inputs))[:_ROWS]
        ids = part.inputs.numpy()[chosen]
        counts = np.stack([np.bincount(row, minlength=_WORDS + 3)[3 : _WORDS + 3] for row in ids.clip(max=_WORDS + 3)])
        arrays += [np.log1p(counts), part.targets.numpy()[chosen]]
    return as_data(name, tuple(arrays))


def _split(name: str, inputs: np.ndarray, labels: np.ndarray, split: int) -> Data:
    """Return rows of which a fifth, of every class its share, is for testing."""
    random = np.random.default_rng(split)
    held = np.concatenate([random.permutation(np.flatnonzero(labels == k))[::5] for k in np.unique(labels)])
    test = np.isin(np.arange(len(labels)), held)
    return as_data(name, (inputs[~test], labels[~test], inputs[test], labels[test]))


_READERS: dict[str, Callable[[str, int], Data]] = {"digits": _digits, "fashion": _fashion, "imdb": _words}
