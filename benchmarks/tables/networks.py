"""Networks: the library's own defaults, and those of others."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import distributions
from torch.distributions import Distribution

from benchmarks.tables.method import Method, classes, held_out, mixture, normal, spread


class TorchBayes(Method):
    """The estimators of this library as they come."""

    library = "torchbayes.sklearn"

    def fit(self, X: Any, y: Any) -> Self:
        """Fit without a setting but the seed."""
        kind = self._library.BayesianMLPRegressor if self.regression else self._library.BayesianMLPClassifier
        self._fitted = kind(random_state=self.seed).fit(X, y)
        return self

    def distribution(self, X: Any) -> Distribution:
        """Return the model average."""
        return self._fitted.predict_dist(X)


class _PyTabKit(Method):
    """A network of pytabkit that stops by a fifth of the rows, and takes its noise from the residuals of these."""

    library = "pytabkit.models.sklearn.sklearn_interfaces"

    name: str
    settings: ClassVar[dict[str, Any]] = {}

    def fit(self, X: Any, y: Any) -> Self:
        """Train."""
        kind = getattr(self._library, f"{self.name}_{'Regressor' if self.regression else 'Classifier'}")
        learned, held, learned_y, held_y = held_out(X, y, seed=self.seed, stratify=not self.regression)
        self._fitted = kind(device="cpu", random_state=self.seed, n_threads=1, verbosity=0, **self.settings)
        self._fitted.fit(learned, learned_y, X_val=held, y_val=held_y)
        self._noise = spread(held_y - self._fitted.predict(held).ravel()) if self.regression else math.nan
        return self

    def distribution(self, X: Any) -> Distribution:
        """Return normal distributions of one noise, or probabilities."""
        if self.regression:
            return normal(self._fitted.predict(X).ravel(), self._noise)
        return classes(self._fitted.predict_proba(X))


class RealMLP(_PyTabKit):
    """The perceptron of Holzmüller et al. (2024), with its tuned defaults."""

    name = "RealMLP_TD"


class TabM(_PyTabKit):
    """The batch ensemble of Gorishniy et al. (2025), narrower than it comes.

    It has two layers of 128 units: with three of 512, its default, a thousand rows take minutes on one core.
    """

    name = "TabM_D"
    settings: ClassVar[dict[str, Any]] = {"d_block": 128, "n_blocks": 2}


class MicrocanonicalEnsemble(Method):
    """Ensembles and microcanonical chains from them (`sklearn-contrib-bde`), shorter than published to end in time.

    The published runs have 10 to 12 members of four hidden layers and take minutes on ten cores; here 4 members of two,
    so that a table takes less than a minute on one. The package's own defaults, two members of 4-4 trained for 20
    epochs, are those of a demonstration.
    """

    library = "bde"
    settings: ClassVar[dict[str, Any]] = {
        "n_members": 4,
        "hidden_layers": [16, 16],
        "epochs": 300,
        "patience": 25,
        "warmup_steps": 1000,
        "n_samples": 500,
        "n_thinning": 5,
    }

    def fit(self, X: Any, y: Any) -> Self:
        """Train, then sample."""
        from sklearn.preprocessing import StandardScaler

        self._scale = StandardScaler().fit(X)
        kind = self._library.BdeRegressor if self.regression else self._library.BdeClassifier
        self._fitted = kind(**self.settings, seed=self.seed)
        self._fitted.fit(self._rows(X), y.astype(np.float32) if self.regression else y)
        return self

    def _rows(self, X: Any) -> np.ndarray:
        return np.asarray(self._scale.transform(X), np.float32)

    def distribution(self, X: Any) -> Distribution:
        """Return the mixture over members and draws."""
        if not self.regression:
            return classes(self._fitted.predict_proba(self._rows(X)))
        drawn = torch.from_numpy(np.array(self._fitted.predict(self._rows(X), raw=True), np.float64))
        mean_SB, raw_SB = drawn.flatten(0, 1).unbind(-1)
        return mixture(mean_SB, torch.nn.functional.softplus(raw_SB) + 1e-6)


class TabPFN(Method):
    """The transformer of Hollmann et al. (2025), its second version; its weights must be on the machine."""

    library = "tabpfn"

    def fit(self, X: Any, y: Any) -> Self:
        """Hand over the rows."""
        kind = self._library.TabPFNRegressor if self.regression else self._library.TabPFNClassifier
        version = import_module("tabpfn.constants").ModelVersion.V2
        self._fitted = kind.create_default_for_version(version, device="cpu", random_state=self.seed).fit(X, y)
        return self

    def distribution(self, X: Any) -> Distribution:
        """Return its bars, or its probabilities."""
        if not self.regression:
            return classes(self._fitted.predict_proba(X))
        prediction = self._fitted.predict(X, output_type="full")
        borders = prediction["criterion"].borders.double()
        return bars(borders, prediction["logits"].double())


def bars(borders_E: torch.Tensor, logits_BR: torch.Tensor) -> Distribution:
    """Return histograms: the logits of the bars between borders."""
    low, high = (ends.expand_as(logits_BR) for ends in (borders_E[:-1], borders_E[1:]))
    parts = distributions.Uniform(low, high, validate_args=False)
    weights = distributions.Categorical(logits=logits_BR)
    return distributions.MixtureSameFamily(weights, parts, validate_args=False)
