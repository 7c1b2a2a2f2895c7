"""Classification on tables."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted
from torch import Tensor, distributions

from torchbayes.checks import check_counts, seen
from torchbayes.conformal.classes import APS
from torchbayes.conformal.ranks import check_coverage
from torchbayes.conformal.scoring import class_sets
from torchbayes.data.base import Data, Pair, Standardise
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.classes import class_probs
from torchbayes.sklearn.blocks import calibrated_blocks, joined_blocks
from torchbayes.sklearn.estimator import BayesianEstimator, Given
from torchbayes.sklearn.intervals import model_targets
from torchbayes.sklearn.tables import Training


class BayesianClassifier(ClassifierMixin, BayesianEstimator):
    """Classification by the average of networks drawn from a posterior, for tables and any module.

        p(y = k | x, D) ≈ (1/S) Σ_s softmax(f_s(x))_k

    Args:
        network: "auto", a multilayer perceptron on `torchbayes.networks.ColumnEncoding`; on standardised columns
            "mlp" or another network of the library; an `nn.Module` from (B, D) to (B, K) for K classes; a function
            (D, K) -> module; or the import path of a function ((D,), K) -> module. D counts the columns after
            preparation.
        method: "auto"; a method such as `torchbayes.SWAG(members=5)`; or the name of one, with its defaults.
        likelihood: "auto", "categorical"; "bernoulli" for two classes and a single output; or a likelihood.
        prior: of the weights. If None: for the network of "auto" a variance of the weights of each input that is
            inferred, or `FanInNormal(4.0)` where a method is given or rows are many; for others that of `Model`.
        conformal: probability with which `predict_set` holds the class of a new row, such as 0.9, guaranteed by rows
            that are held out of the fit; or a `Split`, which says more. None fits all rows.
        random_state: seed, or generator of seeds.
        n_jobs: threads; −1 for all cores, None for one, as in scikit-learn.
        verbose: whether progress is shown.

    Attributes:
        classes_: the classes, sorted.
        posterior_: the posterior, whose `problems` say why it may not be trusted.
        conformal_: the calibration of the sets, a `torchbayes.conformal.Conformal`; None without `conformal`.
        method_: the method, with its settings.
        preparation_: how columns become numbers.
        notes_: what became of each column, in sentences.
        num_data_: number of training rows.
        fit_seconds_: how long the fit took.
        n_features_in_: number of columns.
        feature_names_in_: their names, if X was a data frame.
    """

    usual_likelihood = "categorical"
    task = "classification"

    def partial_fit(self, X: Any, y: Any, *, classes: Any = None, sample_weight: Any = None) -> Self:
        """Infer the posterior given all rows so far, those of the calls before and these.

        Args:
            X: further rows, with the same columns.
            y: their classes.
            classes: in the first call, all classes there are, if its rows are not of every class.
            sample_weight: how often each row counts; once if None.

        Returns:
            The estimator.

        Raises:
            ValueError: as `fit` does; also if the estimator was read from a file, which holds no rows.
        """
        if classes is not None:
            self.expected_classes_ = np.unique(classes)
        return super().partial_fit(X, y, sample_weight=sample_weight)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        vars(self).pop("expected_classes_", None)
        return super().fit(X, y, sample_weight)

    fit.__doc__ = BayesianEstimator.fit.__doc__

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, (B, K), in the order of `classes_`.

        A category that no training row has is taken as none of the known ones, and a value that is missing where none
        was as the median, with a warning.

        Raises:
            ValueError: if the columns are not those of the training rows.
        """
        probs = joined_blocks(self, X, _probs)
        return probs / probs.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row, (B,)."""
        numbers = self.predict_proba(X).argmax(1)
        return self.classes_[numbers]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the probabilities of the classes, (B, K), in nats."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict_dist(self, X: Any) -> distributions.Categorical:
        """Return the distribution of the numbers of the classes, batch shape (B,)."""
        return distributions.Categorical(probs=torch.from_numpy(self.predict_proba(X)))

    def predict_set(self, X: Any, coverage: float | None = None) -> np.ndarray:
        """Return which classes are in a set that holds that of each row with a probability: bool (B, K).

        With `conformal` the probability is guaranteed, as `torchbayes.conformal` says. Without, these are the most
        probable classes, as few as have this probability together by the average of the networks, which may err.

        Args:
            X: rows.
            coverage: the probability, in (0, 1); that of `conformal` if None, or 0.9 without.

        Raises:
            ValueError: if `coverage` is not in (0, 1).
        """
        check_is_fitted(self)
        if self.conformal_ is not None:
            return calibrated_blocks(self, X, class_sets, coverage=coverage)
        level = 0.9 if coverage is None else coverage
        check_coverage(coverage=level)
        probs = torch.from_numpy(self.predict_proba(X))
        return (APS().class_scores(probs, probs[:, 0]) < level).numpy()

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Return classes drawn at each row, (B, n_samples)."""
        check_counts(n_samples=n_samples)
        uniforms = check_random_state(random_state).random_sample((len(X), n_samples))
        below = self.predict_proba(X).cumsum(1)[:, None, :-1]
        return self.classes_[(uniforms[:, :, None] >= below).sum(-1)]

    def _checked_targets(self, y: Any) -> np.ndarray:
        import pandas as pd

        targets = column_or_1d(y, warn=True)
        if targets.dtype.kind == "O":
            column = pd.Series(targets).infer_objects()  # flags and whole numbers may come as objects
            gone = np.flatnonzero(column.isna())
            if len(gone):
                raise ValueError(
                    f"y has no class in {len(gone):,} rows, the first of them row {gone[0] + 1}. Remove them."
                )
            targets = column.to_numpy()
        assert_all_finite(targets, input_name="y")
        check_classification_targets(targets)
        return targets

    def _encoded(self, given: Given) -> np.ndarray:
        counted = given.targets if given.weights is None else given.targets[given.weights > 0]
        present = np.unique(counted)
        self.classes_ = np.union1d(present, getattr(self, "expected_classes_", present))
        if len(self.classes_) == 1:
            raise ValueError(f"y must have at least two classes; it has one class, {seen(self.classes_.tolist()[0])}.")
        return np.searchsorted(self.classes_, given.targets).clip(max=len(self.classes_) - 1).astype(np.int64)

    def _data(self, training: Training) -> Data:
        pair = Pair(training.inputs, model_targets(training.targets, None))
        names = tuple(map(str, self.classes_.tolist()))
        return Data("X", "classification", pair, pair, names, Standardise.identity(), None, "")


def _probs(average: Predictive) -> Tensor:
    """Return the probabilities of the classes at each row, (B, K); a Bernoulli distribution has one more axis."""
    return class_probs(average.distribution).flatten(1).double()
