"""Made-up files in the place of the UCI sets: small ones, registered with the loader, or of the true size."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchbayes.data import vectors
from torchbayes_experiments import Experiment

TRUE = dict(vectors.UCI_SETS)


def write(path: Path, inputs: np.ndarray, targets: np.ndarray, *, splits: int, train: int) -> None:
    """Write one set; its splits are drawn from a seed."""
    rows, rng = len(inputs), np.random.default_rng(1)
    orders = np.stack([rng.permutation(rows) for _ in range(splits)])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        data=np.column_stack([inputs, targets]),
        feature_columns=np.arange(inputs.shape[1]),
        target_column=np.array(inputs.shape[1]),
        train_index=orders[:, :train],
        test_index=orders[:, train:],
    )


def tell(monkeypatch: pytest.MonkeyPatch, root: Path, sizes: Mapping[str, tuple[int, int]]) -> None:
    """Point the loader to a folder whose sets have these rows and features; the others are as they are."""
    small = {name: (*TRUE[name][:2], *size, TRUE[name][4]) for name, size in sizes.items()}
    monkeypatch.setattr(vectors, "UCI_SETS", {**TRUE, **small})
    monkeypatch.setenv("TORCHBAYES_DATA", str(root))


def small_sets(root: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[Path]:
    """Sets of 60 rows and 3 features with 2 splits, targets in the hundreds, for as long as a fixture lasts."""
    rng = np.random.default_rng(0)
    for name in names:
        inputs = rng.normal(size=(60, 3)) * [1, 10, 100]
        targets = 500 + 80 * inputs[:, 0] + rng.normal(0, 20, 60)
        write(root / "uci_regression" / f"{TRUE[name][0]}.npz", inputs, targets, splits=2, train=54)
    tell(monkeypatch, root, dict.fromkeys(names, (60, 3)))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield root
    torch.set_num_threads(before)


def run_on_small_sets(experiment: Experiment, recipe: Any, root: Path, *names: str) -> tuple[Path, dict[str, Any]]:
    """Run seed 5 of an experiment on these sets, once for the tests of a module; return its directory and numbers."""
    with pytest.MonkeyPatch.context() as patch, contextmanager(small_sets)(root / "data", patch, *names):
        return root / "run", experiment.run(recipe, 5, root / "run")


def of_true_size(monkeypatch: pytest.MonkeyPatch, root: Path, *names: str) -> None:
    """Write sets of the true size, which processes that start afresh can read too."""
    for name in names:
        stem, _, rows, columns, _ = TRUE[name]
        inputs = np.random.default_rng(0).normal(size=(rows, columns))
        write(root / "uci_regression" / f"{stem}.npz", inputs, inputs[:, 0] ** 2, splits=2, train=rows * 9 // 10)
    tell(monkeypatch, root, {})
