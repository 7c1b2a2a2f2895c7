"""Sets of vectors: the nine UCI regression sets, and small problems whose answer can be seen.

The UCI sets have the splits of Hernandez-Lobato and Adams (2015) and Gal and Ghahramani (2016): 90 % of the rows, drawn
20 times (protein: 5 times), for training. Two of the small problems are generated, two come from published code.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchbayes.data.base import Raw
from torchbayes.data.files import check_finite, check_indices, check_shape, read_arrays, require_local

# name here: (name of the file, what is predicted from what, rows, features, number of splits)
UCI_SETS: dict[str, tuple[str, str, int, int, int]] = {
    "uci_boston": ("boston_housing", "median house value from 13 features, 506 rows", 506, 13, 20),
    "uci_concrete": ("concrete", "compressive strength from 8 features, 1,030 rows", 1030, 8, 20),
    "uci_energy": ("energy", "heating load of buildings from 8 features, 768 rows", 768, 8, 20),
    "uci_kin8nm": ("kin8nm", "end point of a simulated robot arm from 8 joint angles, 8,192 rows", 8192, 8, 20),
    "uci_naval": ("naval_propulsion", "decay of a ship's compressor from 16 features, 11,934 rows", 11934, 16, 20),
    "uci_power": ("power_plant", "energy output of a power plant from 4 features, 9,568 rows", 9568, 4, 20),
    "uci_protein": ("protein", "size of the residue of a protein from 9 features, 45,730 rows", 45730, 9, 5),
    "uci_wine": ("wine_quality_red", "quality of red wine from 11 features, 1,599 rows", 1599, 11, 20),
    "uci_yacht": ("yacht", "resistance of yacht hulls from 6 features, 308 rows", 308, 6, 20),
}
_COLUMNS = ("data", "feature_columns", "target_column", "train_index", "test_index")
_INSTEAD = "`toy_sine` is a 1-d problem that needs no file."
_FORM = (
    "It is an npz with `data` (n, columns) float64, `feature_columns`, `target_column`, `train_index` and `test_index` "
    "(splits, rows)."
)


def load_uci(name: str, split: int, root: Path | None) -> Raw:
    """Return inputs (N, D) and targets (N,) of one split in raw units, float64."""
    stem, line, rows, columns, splits = UCI_SETS[name]
    path = require_local(name, "uci_regression", f"{stem}.npz", root=root, hint=_FORM)
    table, features, target, *parts = read_arrays(path, *_COLUMNS)
    features, target, table = features.ravel(), target.ravel(), table.astype(np.float64)
    check_shape(path, (rows, None), data=table)
    check_finite(path, data=table)
    check_shape(path, (columns,), feature_columns=features)
    check_shape(path, (1,), target_column=target)
    check_indices(path, table.shape[1], feature_columns=features, target_column=target)
    if target[0] in features:
        raise ValueError(f"`target_column` {target[0]} of {path} is among its `feature_columns`. Fetch it again.")
    train_index, test_index = parts
    check_shape(path, (None, None), train_index=train_index, test_index=test_index)
    check_indices(path, rows, train_index=train_index, test_index=test_index)
    for index in parts:
        if split >= len(index):
            raise ValueError(f"{path} has {len(index)} splits of {splits}; got `split` {split}. Use a smaller one.")
    used = np.concatenate([index[split] for index in parts])
    if len(used) != rows or len(np.unique(used)) != rows:
        twice = len(used) - len(np.unique(used))
        raise ValueError(
            f"split {split} of {path} must put each of its {rows} rows in one of two parts; {len(used)} are in them, "
            f"and {twice} of these are training and test rows. Fetch it again."
        )
    train, test = ((table[index[split]][:, features], table[index[split]][:, target[0]]) for index in parts)
    return Raw(train, test, f"UCI {stem}: {line} (standard split {split})")


def toy_sine(split: int) -> Raw:
    """Draw y = sin(3x) + 0.1 e, e ~ N(0, 1): 80 training rows in two clusters, 200 test rows over them and the gap.

    Training inputs are uniform on [-1.5, -0.5] and [0.5, 1.5], test inputs uniform on [-2, 2]. `split` is the seed.
    """
    rng = np.random.default_rng(split)
    clusters = rng.uniform(0.5, 1.5, size=80) * np.repeat([-1.0, 1.0], 40)

    def observe(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x[:, None], np.sin(3 * x) + 0.1 * rng.standard_normal(len(x))

    return Raw(
        observe(clusters), observe(np.sort(rng.uniform(-2, 2, size=200))), "generated: sin(3x) + 0.1 e with a gap"
    )


def two_moons(split: int) -> Raw:
    """Draw two interleaved half circles of radius 1 with noise of scale 0.15: 200 training and 1,000 test rows.

    The classes have equal numbers; `split` is the seed.
    """
    rng = np.random.default_rng(split)

    def draw(rows: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.permutation(np.arange(rows) % 2)
        angle = rng.uniform(0, np.pi, size=rows)
        upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        lower = np.array([1.0, 0.5]) - upper
        points = np.where(labels[:, None] == 0, upper, lower)
        return points + 0.15 * rng.standard_normal(points.shape), labels

    return Raw(draw(200), draw(1000), "generated: two half circles, noise 0.15", ("upper", "lower"))


def toy_izmailov(root: Path | None) -> Raw:
    """Return the 1-d problem of Wilson and Izmailov (2020): 60 rows in three clusters, tested on a smooth curve."""
    path = require_local("toy_izmailov", "toy", "understandingbdl_deep_ensembles_1d.npz", root=root, hint=_INSTEAD)
    x, y, x_test, y_test = (array.astype(np.float64) for array in read_arrays(path, "x", "y", "x_", "y_"))
    for inputs, targets in ((x, y), (x_test, y_test)):
        check_shape(path, (None,), x=inputs)
        check_shape(path, (len(inputs), 1), y=targets)
        check_finite(path, x=inputs, y=targets)
    source = "1-d regression of Wilson and Izmailov (2020), Bayesian Deep Learning and a Probabilistic Perspective"
    return Raw((x[:, None], y[:, 0]), (x_test[:, None], y_test[:, 0]), source)


def toy_drbayes(split: int, root: Path | None) -> Raw:
    """Return the 1-d problem of Izmailov et al. (2019, subspace inference): 400 rows, a random tenth for testing."""
    path = require_local("toy_drbayes", "toy", "drbayes_synthetic_regression.npz", root=root, hint=_INSTEAD)
    (table,) = (array.astype(np.float64) for array in read_arrays(path, "data"))
    check_shape(path, (None, 2), data=table)
    check_finite(path, data=table)
    order = np.random.default_rng(split).permutation(len(table))
    held_out = len(table) // 10
    train, test = table[np.sort(order[held_out:])], table[np.sort(order[:held_out])]
    source = "1-d regression of Izmailov et al. (2019), Subspace Inference for Bayesian Deep Learning"
    return Raw((train[:, :1], train[:, 1]), (test[:, :1], test[:, 1]), source)
