"""Methods of scikit-learn, and the constant."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from torch.distributions import Distribution

from benchmarks.tables.method import FOLDS, Method, classes, normal, spread

_TREES = 200
_ISOTONIC = 1000  # rows from which isotonic regression has enough of them; fewer are calibrated by Platt's two numbers
_PROCESS = {True: 1000, False: 500}  # rows of a Gaussian process, whose cost grows with their cube, by task


class Constant(Method):
    """The mean and standard deviation of the training targets, or the shares of the classes."""

    def fit(self, X: Any, y: Any) -> Self:
        """Keep what the targets say."""
        self._found = (np.mean(y), np.std(y)) if self.regression else np.bincount(y) / len(y)
        return self

    def distribution(self, X: Any) -> Distribution:
        """Return the same for every row."""
        if self.regression:
            return normal(np.full(len(X), self._found[0]), self._found[1])
        return classes(np.tile(self._found, (len(X), 1)))


class _Estimator(Method):
    """An estimator of scikit-learn, with the noise of held-out residuals, the same for every row."""

    def estimator(self, y: np.ndarray) -> Any:
        """Return the estimator, to be fitted."""
        raise NotImplementedError

    def noise(self, X: np.ndarray, y: np.ndarray) -> float:
        """Return the standard deviation of the noise: of the residuals of five folds."""
        from sklearn.model_selection import KFold, cross_val_predict

        folds = KFold(FOLDS, shuffle=True, random_state=self.seed)
        return spread(y - np.asarray(cross_val_predict(self.estimator(y), X, y, cv=folds)))

    def fit(self, X: Any, y: Any) -> Self:
        """Fit all rows; of numbers, the noise too."""
        self._fitted = self.estimator(y).fit(X, y)
        self._noise = self.noise(X, y) if self.regression else math.nan
        return self

    def distribution(self, X: Any) -> Distribution:
        """Return normal distributions of one noise, or the probabilities of the estimator."""
        if self.regression:
            return normal(self._fitted.predict(X), self._noise)
        return classes(self._fitted.predict_proba(X))


class Linear(_Estimator):
    """Ridge or logistic regression on standardised columns, its penalty chosen by cross-validation."""

    def estimator(self, y: np.ndarray) -> Any:
        """Return the pipeline."""
        from sklearn.linear_model import LogisticRegressionCV, RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if self.regression:
            return make_pipeline(StandardScaler(), RidgeCV(np.logspace(-4, 4, 17)))
        settings = {"scoring": "neg_log_loss", "max_iter": 1000, "l1_ratios": (0.0,), "use_legacy_attributes": False}
        return make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=10, cv=FOLDS, **settings))


class Forest(Method):
    """A random forest as it comes: shares of the classes; of numbers, mean and standard deviation over the trees."""

    def fit(self, X: Any, y: Any) -> Self:
        """Grow the trees."""
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        kind = RandomForestRegressor if self.regression else RandomForestClassifier
        self._fitted = kind(_TREES, random_state=self.seed).fit(X, y)
        self._least = 0.01 * np.std(y)  # where all trees agree
        return self

    def distribution(self, X: Any) -> Distribution:
        """Return what the trees say."""
        if not self.regression:
            return classes(self._fitted.predict_proba(X))
        trees = np.stack([tree.predict(X) for tree in self._fitted.estimators_])
        return normal(trees.mean(0), trees.std(0).clip(self._least))


class CalibratedForest(_Estimator):
    """A random forest with the noise of its out-of-bag residuals, or calibrated by at most five folds."""

    def estimator(self, y: np.ndarray) -> Any:
        """Return the forest."""
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        if self.regression:
            return RandomForestRegressor(_TREES, oob_score=True, random_state=self.seed)
        kind: Any = "isotonic" if len(y) >= _ISOTONIC else "sigmoid"
        folds = min(FOLDS, int(np.unique(y, return_counts=True)[1].min()))  # each has a row of every class
        return CalibratedClassifierCV(RandomForestClassifier(_TREES, random_state=self.seed), method=kind, cv=folds)

    def noise(self, X: np.ndarray, y: np.ndarray) -> float:
        """Return the spread of the residuals of each row in the trees that did not see it."""
        return spread(y - self._fitted.oob_prediction_)


class HistGradientBoosting(_Estimator):
    """Boosted trees that stop by held-out rows, with the noise of the residuals of five folds."""

    def estimator(self, y: np.ndarray) -> Any:
        """Return the boosted trees."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        kind = HistGradientBoostingRegressor if self.regression else HistGradientBoostingClassifier
        settings: Any = {"early_stopping": True}  # the stubs of scikit-learn say a text
        return kind(max_iter=1000, random_state=self.seed, **settings)


class GaussianProcess(Method):
    """A Gaussian process with a length for each standardised column (classes: one length), on some of the rows."""

    def fit(self, X: Any, y: Any) -> Self:
        """Choose the kernel by the evidence of at most 1,000 rows, of classes 500."""
        from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
        from sklearn.preprocessing import StandardScaler

        chosen = np.random.default_rng(self.seed).permutation(len(X))[: _PROCESS[self.regression]]
        width = math.sqrt(X.shape[1])
        kernel = ConstantKernel(1.0) * RBF([width] * X.shape[1] if self.regression else width, (1e-2, 1e4))
        self._scale = StandardScaler().fit(X)
        if self.regression:
            kernel = kernel + WhiteKernel(0.1, (1e-6, 10.0))
            process: Any = GaussianProcessRegressor(kernel, normalize_y=True, random_state=self.seed)
        else:
            process = GaussianProcessClassifier(kernel, random_state=self.seed)
        self._fitted = process.fit(self._scale.transform(X[chosen]), y[chosen])
        return self

    def distribution(self, X: Any) -> Distribution:
        """Return the posterior of the targets, noise included."""
        X = self._scale.transform(X)
        if self.regression:
            return normal(*self._fitted.predict(X, return_std=True))
        return classes(self._fitted.predict_proba(X))
