"""Forecasts by a posterior over networks: one network gives all H steps at once.

The predictive distribution is that of `BayesianRegressor` on the rows of `forecasting.rows`, the average over the
posterior, of each step by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchbayes.calls import explained
from torchbayes.catalogue.models import LIKELIHOODS
from torchbayes.checks import as_seed, check_counts, check_flags, optional
from torchbayes.display import shown_by
from torchbayes.forecasting.forecast import Fitted
from torchbayes.forecasting.rows import Rows
from torchbayes.forecasting.saving import restored, save
from torchbayes.forecasting.series import Series, as_series
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.native.process import undisturbed_methods
from torchbayes.posteriors.problems import ProblemWarning
from torchbayes.sklearn.regression import BayesianRegressor

_OF_DIFFERENCES = "gaussian", "heteroscedastic", "student_t"  # likelihoods by name
_DRAWN = 4000  # values of each step, where quantiles have no closed form


@undisturbed_methods
@dataclass(frozen=True)
class BayesianForecaster:
    """Forecasts by a posterior over the weights of a network.

    Attributes:
        horizon: H, how many values ahead.
        season: m, after how many values the series may repeat; what its times say if None, such as 24 of hours; 1 for
            no season.
        context: L, how many values a forecast looks back, at least a season; twice the larger of season and horizon
            if None.
        network: as of `BayesianRegressor`: "mlp", a module from (B, D) to (B, K), or a function (D, K) -> module.
        method: how to infer, such as `torchbayes.SWAG(members=5)`.
        likelihood: "heteroscedastic": normal noise of its own at each step, which depends on the inputs; "gaussian" or
            "student_t", one scale for all steps and times; or a likelihood, such as `Gaussian("learned", outputs=H)`.
            It is that of differences from the seasonal naive forecast, standardised.
        prior: of the weights; that of `Model` if None.
        seed: seed of the fit.
        verbose: whether a fit of more than some seconds says how far it is.
    """

    horizon: int
    season: int | None = None
    context: int | None = None
    network: Any = "mlp"
    method: Any = field(default_factory=lambda: SWAG(members=5))
    likelihood: Any = "heteroscedastic"
    prior: Any = None
    seed: int = 0
    verbose: bool = False

    def __post_init__(self) -> None:
        check_counts(horizon=self.horizon)
        optional(check_counts, season=self.season, context=self.context)
        as_seed(self.seed)
        check_flags(verbose=self.verbose)
        if self.likelihood in [*LIKELIHOODS] and self.likelihood not in _OF_DIFFERENCES:
            raise ValueError(
                f"`likelihood` must be {', '.join(_OF_DIFFERENCES)}, or one of your own: what is predicted are "
                f"differences from the seasonal naive forecast; got {self.likelihood!r}."
            )

    def fit(self, series: Any) -> FittedBayesian:
        """Infer the posterior from all windows of a series.

        Args:
            series: values in order of time, (T,) or (T, C), of which the first channel is forecast; a Series or
                DataFrame of pandas, with dates as index; or `Series.of` these, with covariates.

        Returns:
            What it has learned, whose `forecast` gives the next values, and whose `quantiles` those after many series.

        Raises:
            TypeError: if values are no numbers, or the method or the network is none.
            ValueError: if a value is missing, times are not evenly spaced, or the series is too short or constant.
        """
        data = as_series(series)
        rows = Rows.of(data, horizon=self.horizon, season=self.season, context=self.context)
        origins_N = rows.origins(data)
        regressor = BayesianRegressor(
            self.network,
            method=self.method,
            likelihood=self.likelihood,
            prior=self.prior,
            random_state=self.seed,
            verbose=self.verbose,
        )
        targets_NH = rows.targets(data, origins_N)
        regressor.fit(rows.inputs(data, origins_N), targets_NH if self.horizon > 1 else targets_NH[:, 0])
        return FittedBayesian(data, rows, regressor)


@shown_by("horizon")
@undisturbed_methods
@dataclass(frozen=True, eq=False)
class FittedBayesian(Fitted):
    """What `BayesianForecaster.fit` returns.

    Attributes:
        series: of the fit.
        rows: how windows become rows.
        regressor: the fitted `BayesianRegressor` of the rows, whose `posterior_` is the posterior.
    """

    regressor: BayesianRegressor

    @property
    def problems(self) -> tuple[str, ...]:
        """Known problems of the posterior, one clause each."""
        return self.regressor.posterior_.problems

    def quantiles(self, pasts: Sequence[Series], levels: Sequence[float]) -> np.ndarray:
        """Return the quantiles of the values after each of N series, (N, H, Q)."""
        inputs_ND, naive_NH = self.rows.ends(pasts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProblemWarning)  # the fit has warned, and `problems` has them
            quantiles = self._quantiles(inputs_ND, levels)
        return self.rows.in_units(quantiles.reshape(len(pasts), self.horizon, -1), naive_NH)

    def save(self, path: str | Path) -> Path:
        """Write the forecaster to a safetensors file, completely or not at all; `forecasting.load` reads it.

        Of the series it holds the end, from which the next forecast is made, and no other value.

        Args:
            path: where to write, such as `sales.safetensors`.

        Returns:
            The path.

        Raises:
            ValueError: if the times have a zone that has no name.
        """
        return save(path, self.series, self.rows, regressor=self.regressor)

    def _quantiles(self, inputs_ND: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        try:
            return self.regressor.predict_quantile(inputs_ND, list(levels))
        except NotImplementedError:  # of a distribution without `cdf`, such as Student's t
            drawn = self.regressor.sample(inputs_ND, _DRAWN)
            return np.moveaxis(np.quantile(drawn, list(levels), axis=-1), 0, -1)


@explained()
def load(path: str | Path, *, network: Any = None, likelihood: Any = None, prior: Any = None) -> FittedBayesian:
    """Read a fitted forecaster that `FittedBayesian.save` wrote.

    Args:
        path: the file.
        network: as of `torchbayes.sklearn.load`: the one of the fit, if that was no name.
        likelihood: as `network`.
        prior: as `network`.

    Returns:
        The forecaster, whose `forecast()` continues the series of the fit, and `forecast(series)` any other like it.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged or holds no forecaster, or network, likelihood or prior are others.
    """
    return FittedBayesian(*restored(path, network=network, likelihood=likelihood, prior=prior))
