"""The nine UCI regression sets with the standard splits.

The splits are those of Hernandez-Lobato and Adams (2015) and Gal and Ghahramani (2016): 90 % of the rows, drawn 20
times (protein: 5 times), for training.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchbayes.data.base import Raw
from torchbayes.data.sources import require_local

# name here: (name of the file, what is predicted from what, number of splits)
UCI_SETS: dict[str, tuple[str, str, int]] = {
    "uci_boston": ("boston_housing", "median house value from 13 features, 506 rows", 20),
    "uci_concrete": ("concrete", "compressive strength from 8 features, 1,030 rows", 20),
    "uci_energy": ("energy", "heating load of buildings from 8 features, 768 rows", 20),
    "uci_kin8nm": ("kin8nm", "end point of a simulated robot arm from 8 joint angles, 8,192 rows", 20),
    "uci_naval": ("naval_propulsion", "decay of a ship's compressor from 16 features, 11,934 rows", 20),
    "uci_power": ("power_plant", "energy output of a power plant from 4 features, 9,568 rows", 20),
    "uci_protein": ("protein", "size of the residue of a protein from 9 features, 45,730 rows", 5),
    "uci_wine": ("wine_quality_red", "quality of red wine from 11 features, 1,599 rows", 20),
    "uci_yacht": ("yacht", "resistance of yacht hulls from 6 features, 308 rows", 20),
}
_HINT = (
    "It is an npz with `data` (n, columns) float64, `feature_columns`, `target_column`, `train_index` and `test_index` "
    "(splits, rows)."
)


def load_uci(name: str, split: int, root: Path | None) -> Raw:
    """Read one split of one set.

    Args:
        name: A key of `UCI_SETS`.
        split: Which of its splits.
        root: The local data folder or None.

    Returns:
        Inputs (N, D) and targets (N,) in raw units, float64.

    Raises:
        ValueError: The file has fewer splits.
    """
    stem, line, _ = UCI_SETS[name]
    path = require_local(name, "uci_regression", f"{stem}.npz", root=root, hint=_HINT)
    with np.load(path, allow_pickle=False) as archive:
        table = archive["data"].astype(np.float64)
        features, target = archive["feature_columns"].ravel(), int(archive["target_column"].ravel()[0])
        parts = [archive[f"{part}_index"] for part in ("train", "test")]
    if split >= len(parts[0]):
        raise ValueError(f"{path} has {len(parts[0])} splits; got `split` {split}. Use a smaller one.")
    train, test = ((table[index[split]][:, features], table[index[split]][:, target]) for index in parts)
    return Raw(train, test, f"UCI {stem}: {line} (standard split {split})")
