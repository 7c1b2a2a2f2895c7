"""Estimators whose network is a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torchbayes.catalogue.tables import HIDDEN
from torchbayes.networks import mlp
from torchbayes.sklearn.classification import BayesianClassifier
from torchbayes.sklearn.estimator import BayesianEstimator
from torchbayes.sklearn.intervals import Split
from torchbayes.sklearn.regression import BayesianRegressor


class _Perceptron(BayesianEstimator):
    """Settings of the network in the place of a network."""

    perceptron = True

    def __init__(
        self,
        hidden: Sequence[int] = HIDDEN,
        activation: str = "relu",
        *,
        method: Any = "auto",
        likelihood: Any = "auto",
        prior: Any = None,
        conformal: float | Split | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.method = method
        self.likelihood = likelihood
        self.prior = prior
        self.conformal = conformal
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    @property
    def network(self) -> Any:  # type: ignore[override]
        """The function of (inputs, outputs) that builds the network."""
        return partial(mlp, hidden=self.hidden, activation=self.activation)


class BayesianMLPRegressor(_Perceptron, BayesianRegressor):
    """Regression by the average of multilayer perceptrons drawn from a posterior.

    Args:
        hidden: widths of the hidden layers.
        activation: "relu", "tanh" or "swish".
        method: as of `BayesianRegressor`, and so are the others, methods and attributes too.
        likelihood: likewise.
        prior: likewise.
        conformal: likewise.
        random_state: likewise.
        n_jobs: likewise.
        verbose: likewise.
    """


class BayesianMLPClassifier(_Perceptron, BayesianClassifier):
    """Classification by the average of multilayer perceptrons drawn from a posterior.

    Args:
        hidden: widths of the hidden layers.
        activation: "relu", "tanh" or "swish".
        method: as of `BayesianClassifier`, and so are the others, methods and attributes too.
        likelihood: likewise.
        prior: likewise.
        conformal: likewise.
        random_state: likewise.
        n_jobs: likewise.
        verbose: likewise.
    """
