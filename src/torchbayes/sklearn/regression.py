"""Regression on tables."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.validation import assert_all_finite, check_is_fitted
from torch import Tensor, distributions

from torchbayes.checks import as_numbers, check_counts
from torchbayes.conformal.conformal import Conformal
from torchbayes.conformal.ranks import check_coverage
from torchbayes.data.base import Data, Pair, Standardise
from torchbayes.data.user.columns import check_size
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.mixture import some_rows
from torchbayes.sklearn.blocks import average_blocks, calibrated_blocks, joined_blocks
from torchbayes.sklearn.estimator import BayesianEstimator, Given
from torchbayes.sklearn.intervals import model_targets
from torchbayes.sklearn.tables import Training


class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """Regression by the average of networks drawn from a posterior, for tables and any module.

        p(y | x, D) ≈ (1/S) Σ_s p(y | f_s(x))

    Args:
        network: "auto", a multilayer perceptron on `torchbayes.networks.ColumnEncoding`; on standardised columns
            "mlp" or another network of the library; an `nn.Module` from (B, D) to (B, K); a function (D, K) -> module;
            or the import path of a function ((D,), K) -> module. D counts the columns after preparation; K is for each
            target 2 for the mean and the noise of normal targets, and 1 where the noise is the same everywhere.
        method: "auto"; a method such as `torchbayes.SWAG(members=5)`; or the name of one, with its defaults.
        likelihood: "auto", which is "heteroscedastic": normal noise that depends on the inputs; another name, such as
            "gaussian", "student_t" or "poisson"; or a likelihood, of targets that are standardised, so that a scale
            of 0.5 is half of their standard deviation. Of several targets "gaussian" and "student_t" have one scale
            for all, in units of their standard deviations, and "heteroscedastic" one for each.
        prior: of the weights. If None: for the network of "auto" a variance of the weights of each input that is
            inferred, or `FanInNormal(2.0)` where a method is given or rows are many; for others that of `Model`.
        conformal: probability with which `predict_interval` holds the target of a new row, such as 0.9, guaranteed by
            rows that are held out of the fit; or a `Split`, which says more. None fits all rows.
        random_state: seed, or generator of seeds.
        n_jobs: threads; −1 for all cores, None for one, as in scikit-learn.
        verbose: whether progress is shown.

    Attributes:
        posterior_: the posterior, whose `problems` say why it may not be trusted.
        conformal_: the calibration of the intervals, a `torchbayes.conformal.Conformal`; None without `conformal`.
        method_: the method, with its settings.
        preparation_: how columns become numbers.
        notes_: what became of each column, in sentences; and what is odd about the targets.
        num_data_: number of training rows.
        fit_seconds_: how long the fit took.
        n_features_in_: number of columns.
        feature_names_in_: their names, if X was a data frame.
    """

    usual_likelihood = "heteroscedastic"
    task = "regression"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the mean of the targets (B,), and their standard deviation (B,) if asked for; (B, K) of several.

        A category that no training row has is taken as none of the known ones, and a value that is missing where none
        was as the median, with a warning.

        Raises:
            ValueError: if the columns are not those of the training rows.
        """
        both = joined_blocks(self, X, _mean_and_std)
        mean, std = self._raw(both[..., 0]), self._raw(both[..., 1], shifted=False)
        return (mean, std) if return_std else mean

    def predict_quantile(self, X: Any, levels: Any) -> np.ndarray:
        """Return quantiles of the targets: (B,) for one level in (0, 1), (B, Q) for a list of them.

        Of several targets the axis K comes after that of the rows.

        Raises:
            ValueError: if a level is not in (0, 1).
        """
        levels_Q = as_numbers("levels", levels)
        quantiles = joined_blocks(self, X, lambda average: _quantiles(average, levels_Q.reshape(-1)))
        return self._raw(quantiles[..., 0] if levels_Q.ndim == 0 else quantiles)

    def predict_interval(self, X: Any, coverage: float | None = None) -> np.ndarray:
        """Return intervals that hold the targets with a probability: low and high ends (B, 2), of several (B, K, 2).

        With `conformal` the probability is guaranteed, as `torchbayes.conformal` says, and is that of all targets of a
        row together; an interval is infinite where the calibration rows are too few for it. Without, these are the
        central intervals of each target under the average of the networks, which may err.

        Args:
            X: rows.
            coverage: the probability, in (0, 1); that of `conformal` if None, or 0.9 without.

        Raises:
            ValueError: if `coverage` is not in (0, 1).
        """
        check_is_fitted(self)
        if self.conformal_ is None:
            level = 0.9 if coverage is None else coverage
            check_coverage(coverage=level)
            return self._raw(joined_blocks(self, X, lambda average: _ends(average.interval(level))))
        return self._raw(calibrated_blocks(self, X, _calibrated_ends, coverage=coverage))

    def predict_dist(self, X: Any) -> distributions.Distribution:
        """Return the distribution of the targets, batch shape (B,): a mixture of S parts of equal weight.

        Of several targets it has the event shape (K,); given a draw they are independent.

        Raises:
            KeyError: if the distribution of a likelihood of your own has no parameters `loc` and `scale`.
        """
        parts = [_components(some_rows(average, slice(count))) for average, count in average_blocks(self, X)]
        kind, places = parts[0][0], [names for _, names in parts]
        numbers = {name: torch.cat([names[name] for names in places]) for name in places[0]}
        if (units := self.target_units_) is not None:
            numbers |= {"loc": units.inverse(numbers["loc"]), "scale": numbers["scale"] * units.scale}
        several = next(iter(numbers.values())).shape[-1] > 1
        components: Any = kind(**(numbers if several else {name: each[..., 0] for name, each in numbers.items()}))
        if several:
            components = distributions.Independent(components, 1)
        weights = distributions.Categorical(logits=torch.zeros(components.batch_shape, dtype=torch.float64))
        return distributions.MixtureSameFamily(weights, components)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Return targets drawn at each row, (B, n_samples); of several targets (B, K, n_samples)."""
        check_counts(n_samples=n_samples)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        numbers = itertools.count(seed)
        return self._raw(joined_blocks(self, X, lambda average: _drawn(average, n_samples, next(numbers))))

    def _raw(self, values: np.ndarray, *, shifted: bool = True) -> np.ndarray:
        """Return numbers (B, K, ...) in the units of the targets; without the axis K if there is one target."""
        units = self.target_units_
        if units is not None:
            axes = (-1, *[1] * (values.ndim - 2))
            values = values * units.scale.numpy().reshape(axes)
            values = values + units.mean.numpy().reshape(axes) if shifted else values
        return values[:, 0] if values.shape[1] == 1 else values

    def _checked_targets(self, y: Any) -> np.ndarray:
        if np.asarray(y).dtype.kind in "mM":
            raise ValueError(
                "y must hold numbers; it has dates or time spans. Give days, (y - y.min()) / pd.Timedelta('1D')."
            )
        shape: tuple[int, ...] = np.shape(y)
        if len(shape) == 2 and shape[1] != 1:
            numbers: Any = {"dtype": np.float64, "input_name": "y", "ensure_min_features": 2}
            return check_array(y, **numbers)
        targets = column_or_1d(y, dtype=np.float64, warn=True, input_name="y")
        assert_all_finite(targets, input_name="y")
        return targets

    def _encoded(self, given: Given) -> np.ndarray:
        return given.targets

    def _data(self, training: Training) -> Data:
        columns = torch.from_numpy(training.targets).reshape(len(training.targets), -1)
        if (columns == columns[0]).all(0).any():
            which = "all targets are the same" if columns.shape[1] == 1 else "all values of a target are the same"
            warn_of([f"{which}, and nothing can be learned from them"], "this fit")
        for column in columns.T:
            check_size("y", column.numpy())
        units = Standardise.fit(columns)
        pair = Pair(training.inputs, model_targets(training.targets, units))
        return Data("X", "regression", pair, pair, (), Standardise.identity(), units, "")


def _mean_and_std(average: Predictive) -> Tensor:
    return torch.stack([average.mean, average.variance.sqrt()], dim=-1).double()


def _ends(interval: tuple[Tensor, Tensor]) -> Tensor:
    return torch.stack(interval, dim=-1).double()


def _calibrated_ends(conformal: Conformal, average: Predictive, *, start: int, **of_rows: Any) -> Tensor:
    del start
    return _ends(conformal.intervals(average, **of_rows))


def _drawn(average: Predictive, n_samples: int, seed: int) -> Tensor:
    return average.sample(n_samples, seed=seed).movedim(0, -1).double()


def _quantiles(average: Predictive, levels_Q: Tensor) -> Tensor:
    return average.quantile(levels_Q).movedim(0, -1).double()


def _components(average: Predictive) -> tuple[Any, dict[str, Tensor]]:
    """Return the class of the distribution at each row and draw, and its parameters (B, S, K), float64."""
    parts = average.distribution
    shape = parts.batch_shape
    names = [name for name in parts.arg_constraints if name in vars(parts)]
    return type(parts), {name: getattr(parts, name).expand(shape).movedim(0, 1).double() for name in names}
