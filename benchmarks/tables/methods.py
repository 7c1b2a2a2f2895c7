"""Every method by its name, and what it needs."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from benchmarks.tables import baselines, boosting, networks
from benchmarks.tables.method import Method

OURS, CONSTANT = "torchbayes", "constant"


@dataclass(frozen=True)
class Entry:
    """A method of the table.

    Attributes:
        make: the method; a call with the task and a seed makes one.
        module: what must be installed.
        package: by which name that is installed.
        forks: whether processes may be forked from one that has imported it.
    """

    make: type[Method]
    module: str = "sklearn"
    package: str = "scikit-learn"
    forks: bool = True

    @property
    def is_here(self) -> bool:
        """Whether its module is installed."""
        return importlib.util.find_spec(self.module) is not None


METHODS = {
    OURS: Entry(networks.TorchBayes),
    CONSTANT: Entry(baselines.Constant),
    "linear": Entry(baselines.Linear),
    "forest": Entry(baselines.Forest),
    "calibrated_forest": Entry(baselines.CalibratedForest),
    "hist_boosting": Entry(baselines.HistGradientBoosting),
    "xgboost": Entry(boosting.XGBoost, "xgboost", "xgboost-cpu"),
    "catboost": Entry(boosting.CatBoost, "catboost", "catboost"),
    "ngboost": Entry(boosting.NGBoost, "ngboost", "ngboost"),
    "gaussian_process": Entry(baselines.GaussianProcess),
    "realmlp": Entry(networks.RealMLP, "pytabkit", "pytabkit"),
    "tabm": Entry(networks.TabM, "pytabkit", "pytabkit"),
    "bde": Entry(networks.MicrocanonicalEnsemble, "bde", "sklearn-contrib-bde", forks=False),  # jax has threads
    "tabpfn": Entry(networks.TabPFN, "tabpfn", "tabpfn"),
}
