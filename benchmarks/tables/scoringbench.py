"""The library's row on ScoringBench: `model` makes what stands among its models.

from benchmarks.tables.scoringbench import model

MODELS["torchbayes"] = model  # in its run_bench_regression.py, with this repository on PYTHONPATH
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.tables.networks import TorchBayes

_BASES = ("scoringbench.univariate.wrappers.base", "scoringbench.wrappers.base")  # the newer place first


def model(seed: int = 0) -> Any:
    """Return a wrapper of ScoringBench around the library's regressor as it comes.

    It has `fit(X, y)`, `predict(X)` and `predict_distribution(X)`; X is a data frame.

    Args:
        seed: of the fit.

    Raises:
        ModuleNotFoundError: if ScoringBench cannot be imported.
    """
    base = _base()

    class Wrapper(base.ProbabilisticWrapper):
        def fit(self, X: Any, y: Any) -> Any:
            if hasattr(self, "_set_train_range"):  # of newer versions, whose predictions know the range of the targets
                self._set_train_range(y)
            self.method = TorchBayes(True, seed).fit(X, np.asarray(y, np.float64))
            return self

        def predict(self, X: Any) -> np.ndarray:
            return self.method.predict(X)

        def predict_distribution(self, X: Any) -> Any:
            predicted = self.method.predict_distribution(X)
            kind = base.DistributionPrediction
            if hasattr(kind, "from_histogram"):
                return kind.from_histogram(
                    predicted.bin_edges, predicted.probas, mean=predicted.mean, train_range=self._y_train_range
                )
            return kind(predicted.probas, predicted.bin_edges, predicted.bin_midpoints, predicted.mean)

    return Wrapper()


def _base() -> Any:
    """Return the module of ScoringBench that has the forms of wrappers and predictions."""
    for name in _BASES:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or "?"):
                raise
    raise ModuleNotFoundError("ScoringBench cannot be imported. Put its repository on PYTHONPATH.")
