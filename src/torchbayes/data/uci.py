"""The nine UCI regression sets with the standard splits.

Splits of Hernandez-Lobato and Adams (2015) and Gal and Ghahramani (2016): 90 % of the rows, drawn 20 times (protein: 5
times), for training.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchbayes.data.base import Raw
from torchbayes.data.files import check_finite, check_indices, check_shape, read_arrays
from torchbayes.data.sources import require_local

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
_NAMES = ("data", "feature_columns", "target_column", "train_index", "test_index")
_HINT = (
    "It is an npz with `data` (n, columns) float64, `feature_columns`, `target_column`, `train_index` and `test_index` "
    "(splits, rows)."
)


def load_uci(name: str, split: int, root: Path | None) -> Raw:
    """Return inputs (N, D) and targets (N,) of one split in raw units, float64."""
    stem, line, rows, columns, splits = UCI_SETS[name]
    path = require_local(name, "uci_regression", f"{stem}.npz", root=root, hint=_HINT)
    table, features, target, *parts = read_arrays(path, *_NAMES)
    features, target, table = features.ravel(), target.ravel(), table.astype(np.float64)
    check_shape(path, (rows, None), data=table)
    check_finite(path, data=table)
    check_shape(path, (columns,), feature_columns=features)
    check_shape(path, (1,), target_column=target)
    check_indices(path, table.shape[1], feature_columns=features, target_column=target)
    if target[0] in features:
        raise ValueError(f"`target_column` {target[0]} of {path} is among its `feature_columns`. Fetch it again.")
    for part, index in zip(("train_index", "test_index"), parts, strict=True):
        check_shape(path, (None, None), **{part: index})
        check_indices(path, rows, **{part: index})
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
