"""Small problems whose answer can be seen: two generated ones, and two from published code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchbayes.data.base import Raw
from torchbayes.data.files import check_finite, check_shape, read_arrays
from torchbayes.data.sources import require_local

_HINT = "`toy_sine` is a 1-d problem that needs no file."


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
    path = require_local("toy_izmailov", "toy", "understandingbdl_deep_ensembles_1d.npz", root=root, hint=_HINT)
    x, y, x_test, y_test = (array.astype(np.float64) for array in read_arrays(path, "x", "y", "x_", "y_"))
    for inputs, targets in ((x, y), (x_test, y_test)):
        check_shape(path, (None,), x=inputs)
        check_shape(path, (len(inputs), 1), y=targets)
        check_finite(path, x=inputs, y=targets)
    source = "1-d regression of Wilson and Izmailov (2020), Bayesian Deep Learning and a Probabilistic Perspective"
    return Raw((x[:, None], y[:, 0]), (x_test[:, None], y_test[:, 0]), source)


def toy_drbayes(split: int, root: Path | None) -> Raw:
    """Return the 1-d problem of Izmailov et al. (2019, subspace inference): 400 rows, a random tenth for testing."""
    path = require_local("toy_drbayes", "toy", "drbayes_synthetic_regression.npz", root=root, hint=_HINT)
    (table,) = (array.astype(np.float64) for array in read_arrays(path, "data"))
    check_shape(path, (None, 2), data=table)
    check_finite(path, data=table)
    order = np.random.default_rng(split).permutation(len(table))
    held_out = len(table) // 10
    train, test = table[np.sort(order[held_out:])], table[np.sort(order[:held_out])]
    source = "1-d regression of Izmailov et al. (2019), Subspace Inference for Bayesian Deep Learning"
    return Raw((train[:, :1], train[:, 1]), (test[:, :1], test[:, 1]), source)
