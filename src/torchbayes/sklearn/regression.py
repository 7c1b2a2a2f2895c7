"""Regression on tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import assert_all_finite
from torch import Tensor, distributions

from torchbayes.data.base import Data, Pair, Standardise
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.average import Predictive
from torchbayes.sklearn.estimator import BayesianEstimator, Given, joined_blocks
from torchbayes.sklearn.tables import Training


class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """Regression by the average of networks drawn from a posterior, for tables and any module.

        p(y | x, D) ≈ (1/S) Σ_s p(y | f_s(x))

    Args:
        network: "auto", a multilayer perceptron on `torchbayes.networks.ColumnEncoding`; on standardised columns
            "mlp" or another network of the library, an `nn.Module` from (B, D) to (B, K), or a function
            (D, K) -> module. D counts the columns after preparation; K is 2 for the mean and the noise of normal
            targets, and 1 where the noise is the same everywhere.
        method: "auto"; a method such as `torchbayes.SWAG(members=5)`; or the name of one, with its defaults.
        likelihood: "auto", which is "heteroscedastic": normal noise that depends on the inputs; another name, such as
            "gaussian", "student_t" or "poisson"; or a likelihood.
        prior: of the weights. If None: for the network of "auto" a variance of the weights of each input that is
            inferred, or `FanInNormal(2.0)` where a method is given or rows are many; for others that of `Model`.
        random_state: seed, or generator of seeds.
        n_jobs: threads; −1 for all cores, None for PyTorch's choice.
        verbose: whether progress is shown.

    Attributes:
        posterior_: the posterior, whose `problems` say why it may not be trusted.
        method_: the method, with its settings.
        preparation_: how columns become numbers.
        notes_: what became of each column, in sentences.
        num_data_: number of training rows.
        fit_seconds_: how long the fit took.
        n_features_in_: number of columns.
        feature_names_in_: their names, if X was a data frame.
    """

    usual_likelihood = "heteroscedastic"
    task = "regression"

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the mean of the targets (B,), and their standard deviation (B,) if asked for.

        Raises:
            ValueError: if the columns are not those of the training rows.
        """
        both = joined_blocks(
            self._blocks(X), lambda average: torch.cat([average.mean, average.variance.sqrt()], dim=1).double()
        )
        mean, std = self._raw(both[:, 0]), self._raw(both[:, 1]) - self._raw(np.zeros(1))
        return (mean, std) if return_std else mean

    def predict_quantile(self, X: Any, levels: Any) -> np.ndarray:
        """Return quantiles of the targets: (B,) for one level in (0, 1), (B, Q) for a list of them.

        Raises:
            ValueError: if a level is not in (0, 1).
        """
        levels_Q = torch.as_tensor(levels, dtype=torch.float64)
        quantiles = joined_blocks(self._blocks(X), lambda average: _quantiles(average, levels_Q.reshape(-1)))
        return self._raw(quantiles[:, 0] if levels_Q.ndim == 0 else quantiles)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Return the central interval that should hold a share `coverage` of the targets: low and high ends (B, 2).

        Raises:
            ValueError: if `coverage` is not in (0, 1).
        """
        return self._raw(
            joined_blocks(self._blocks(X), lambda average: torch.cat(average.interval(coverage), dim=1).double())
        )

    def predict_dist(self, X: Any) -> distributions.Distribution:
        """Return the distribution of the targets, batch shape (B,): a mixture of S parts of equal weight.

        Raises:
            KeyError: if the distribution of a likelihood of your own has no parameters `loc` and `scale`.
        """
        parts = [_components(average) for average in self._blocks(X)]
        kind, places = parts[0][0], [names for _, names in parts]
        numbers = {name: torch.cat([names[name] for names in places]) for name in places[0]}
        if (units := self.target_units_) is not None:
            numbers |= {"loc": units.inverse(numbers["loc"]), "scale": numbers["scale"] * units.scale}
        components: Any = kind(**numbers)
        weights = distributions.Categorical(logits=torch.zeros(components.batch_shape, dtype=torch.float64))
        return distributions.MixtureSameFamily(weights, components)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Return targets drawn at each row, (B, n_samples)."""
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        blocks = enumerate(self._blocks(X))
        drawn = [average.sample(n_samples, seed=seed + number).squeeze(-1).mT.double() for number, average in blocks]
        return self._raw(torch.cat(drawn).numpy())

    def _raw(self, values: np.ndarray) -> np.ndarray:
        units = self.target_units_
        return values if units is None else values * float(units.scale) + float(units.mean)

    def _checked_targets(self, y: Any) -> np.ndarray:
        targets = column_or_1d(y, dtype=np.float64, warn=True, input_name="y")
        assert_all_finite(targets, input_name="y")
        return targets

    def _encoded(self, given: Given) -> np.ndarray:
        return given.targets

    def _data(self, training: Training) -> Data:
        column = torch.from_numpy(training.targets).unsqueeze(1)
        if (column == column[0]).all():
            warn_of(["all targets are the same, and nothing can be learned from them"], "this fit")
        units = Standardise.fit(column)
        pair = Pair(training.inputs, units(column).float())
        return Data("X", "regression", pair, pair, (), Standardise.identity(), units, "")


def _mean_and_std(average: Predictive) -> Tensor:
    return torch.cat([average.mean, average.variance.sqrt()], dim=1).double()


def _quantiles(average: Predictive, levels_Q: Tensor) -> Tensor:
    return average.quantile(levels_Q).squeeze(-1).mT.double()


def _components(average: Predictive) -> tuple[Any, dict[str, Tensor]]:
    """Return the class of the distribution at each row and draw, and its parameters (B, S), float64."""
    parts = average.distribution
    shape = parts.batch_shape
    names = [name for name in parts.arg_constraints if name in vars(parts)]
    return type(parts), {name: getattr(parts, name).expand(shape).squeeze(-1).mT.double() for name in names}
