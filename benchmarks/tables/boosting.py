"""Boosted trees of other libraries."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from torch.distributions import Distribution

from benchmarks.tables.method import Method, classes, held_out, normal, spread


class XGBoost(Method):
    """Boosted trees that stop by a fifth of the rows, and take their noise from the residuals of these."""

    library = "xgboost"

    def fit(self, X: Any, y: Any) -> Self:
        """Boost until the held-out rows get no better."""
        library = self._library
        kind = library.XGBRegressor if self.regression else library.XGBClassifier
        settings = {"n_estimators": 2000, "learning_rate": 0.05, "early_stopping_rounds": 50, "n_jobs": 1}
        learned, held, learned_y, held_y = held_out(X, y, seed=self.seed, stratify=not self.regression)
        self._fitted = kind(**settings, random_state=self.seed)
        self._fitted.fit(learned, learned_y, eval_set=[(held, held_y)], verbose=False)
        self._noise = spread(held_y - self._fitted.predict(held)) if self.regression else math.nan
        return self

    def distribution(self, X: Any) -> Distribution:
        """Return normal distributions of one noise, or probabilities."""
        if self.regression:
            return normal(self._fitted.predict(X), self._noise)
        return classes(self._fitted.predict_proba(X))


class CatBoost(Method):
    """Boosted trees as they come; of numbers, trees for mean and variance (RMSEWithUncertainty).

    The variance is overconfident where boosting goes on, so that of numbers a fifth of the rows say when to stop.
    """

    library = "catboost"

    def fit(self, X: Any, y: Any) -> Self:
        """Boost with the library's own settings."""
        settings = {"random_seed": self.seed, "thread_count": 1, "verbose": False, "allow_writing_files": False}
        if not self.regression:
            self._fitted = self._library.CatBoostClassifier(loss_function="MultiClass", **settings).fit(X, y)
            return self
        learned, held, learned_y, held_y = held_out(X, y, seed=self.seed, stratify=False)
        self._fitted = self._library.CatBoostRegressor(loss_function="RMSEWithUncertainty", **settings)
        self._fitted.fit(learned, learned_y, eval_set=(held, held_y), early_stopping_rounds=50)
        return self

    def distribution(self, X: Any) -> Distribution:
        """Return what the trees say."""
        if self.regression:
            mean, variance = np.asarray(self._fitted.predict(X)).T
            return normal(mean, np.sqrt(variance))
        return classes(self._fitted.predict_proba(X))


class NGBoost(Method):
    """Natural gradient boosting as it comes: normal distributions, or classes."""

    library = "ngboost"

    def fit(self, X: Any, y: Any) -> Self:
        """Boost with the library's own settings."""
        library = self._library
        settings = {"verbose": False, "random_state": self.seed}
        if self.regression:
            self._fitted = library.NGBRegressor(**settings)
        else:
            self._fitted = library.NGBClassifier(library.distns.k_categorical(int(np.max(y)) + 1), **settings)
        self._fitted.fit(X, y)
        return self

    def distribution(self, X: Any) -> Distribution:
        """Return what the library says."""
        if self.regression:
            predicted = self._fitted.pred_dist(X)
            return normal(predicted.loc, predicted.scale)
        return classes(self._fitted.predict_proba(X))
