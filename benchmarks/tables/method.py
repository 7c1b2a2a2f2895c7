"""The form that every method has, which is that of ScoringBench: `fit`, `predict` and `predict_distribution`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import distributions
from torch.distributions import Distribution

from benchmarks.tables.prediction import Prediction

FOLDS = 5
HELD = 0.2  # share of the rows that a method holds out, where it stops by them or takes its noise from them


class Method(ABC):
    """A way to predict the distribution of targets from rows of numbers, on one core.

    Its library is imported when it is made, so that the time of a fit has no import in it.
    """

    library: ClassVar[str] = ""  # the module of the library that it is of, if that is not scikit-learn

    def __init__(self, regression: bool, seed: int = 0) -> None:
        """Name the task.

        Args:
            regression: whether targets are numbers; else they are classes 0 to K - 1, each among the training rows.
            seed: of what is random.
        """
        self.regression, self.seed = regression, seed
        self._library: Any = import_module(self.library) if self.library else None

    @abstractmethod
    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows (N, D) and targets (N,)."""

    @abstractmethod
    def distribution(self, X: Any) -> Distribution:
        """Return the distribution of the targets of rows (B, D), batch shape (B,)."""

    def predict_distribution(self, X: Any) -> Prediction:
        """Return the same, with its histogram."""
        return Prediction(self.distribution(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return means of numbers, or the most probable classes, (B,)."""
        distribution = self.distribution(X)
        if isinstance(distribution, distributions.Categorical):
            return distribution.probs.argmax(-1).numpy()
        return distribution.mean.numpy()


def normal(mean: Any, sd: Any) -> Distribution:
    """Return normal distributions of means (B,) and standard deviations (B,) or a number."""
    mean, sd = (torch.as_tensor(np.asarray(values), dtype=torch.float64) for values in (mean, sd))
    return distributions.Normal(mean, sd.expand_as(mean))


def mixture(mean_SB: Any, sd_SB: Any) -> Distribution:
    """Return equal mixtures of S normal distributions."""
    mean_BS, sd_BS = (torch.as_tensor(np.asarray(values), dtype=torch.float64).mT for values in (mean_SB, sd_SB))
    parts = distributions.Normal(mean_BS, sd_BS)
    return distributions.MixtureSameFamily(distributions.Categorical(torch.ones_like(mean_BS)), parts)


def classes(probs_BK: Any) -> Distribution:
    """Return distributions over classes."""
    return distributions.Categorical(probs=torch.as_tensor(np.asarray(probs_BK), dtype=torch.float64))


def spread(residuals: np.ndarray) -> float:
    """Return the root mean square of residuals of held-out rows: the noise of a method that says none."""
    return float(np.sqrt(np.mean(np.square(residuals))))


def held_out(X: np.ndarray, y: np.ndarray, *, seed: int, stratify: bool) -> Any:
    """Return rows to learn from, rows held out, and the targets of both."""
    from sklearn.model_selection import train_test_split

    return train_test_split(X, y, test_size=HELD, random_state=seed, stratify=y if stratify else None)
