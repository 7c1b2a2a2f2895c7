"""What regressors and classifiers share: rows in, a posterior over the weights of a network, and its average."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted
from torch import nn

from torchbayes.catalogue.models import build_likelihood, build_network, data_for, likelihood_outputs
from torchbayes.catalogue.tables import HIDDEN
from torchbayes.checks import check_flags, check_function
from torchbayes.data.base import Data
from torchbayes.data.user.table import Table
from torchbayes.decisions.abstain import check_held_out
from torchbayes.model import Model, likelihoods
from torchbayes.networks import mlp
from torchbayes.predictive.average import Predictive
from torchbayes.selection.fit import fit
from torchbayes.sklearn.automatic import is_automatic, method_of, prior_of
from torchbayes.sklearn.blocks import average_at, checked_rows, threads
from torchbayes.sklearn.intervals import Split, calibrated, parted, split_of
from torchbayes.sklearn.parameters import changed, settings_of
from torchbayes.sklearn.tables import Training, joined, prepared

if TYPE_CHECKING:
    from torchbayes.report.html import Page

_BLOCK = 256  # rows that go through the networks together

Network = str | nn.Module | Callable[[int, int], nn.Module]


class Given(NamedTuple):
    """Rows as they were given."""

    table: Table
    targets: np.ndarray  # (N,), or (N, K) of several
    weights: np.ndarray | None  # (N,)

    def with_more(self, rows: Given) -> Given:
        """Return these rows and others."""
        weights = None
        if self.weights is not None or rows.weights is not None:
            counts = [np.ones(len(r.targets)) if r.weights is None else r.weights for r in (self, rows)]
            weights = np.concatenate(counts)
        if self.targets.shape[1:] != rows.targets.shape[1:]:
            before, now = (each.targets.shape[1:] or (1,) for each in (self, rows))
            raise ValueError(f"y has {now[0]} targets in each row, and had {before[0]} before.")
        return Given(joined(self.table, rows.table), np.concatenate([self.targets, rows.targets]), weights)


class BayesianEstimator(BaseEstimator):
    """A network on a table, and the posterior over its weights; the base of regressors and classifiers."""

    usual_likelihood: ClassVar[str]  # its name
    task: ClassVar[str]  # "regression" or "classification"
    perceptron: ClassVar[bool] = False  # whether the network is that of "auto", with settings
    conformal_: Any  # a `Conformal`, or None
    split_: Any  # its settings, or None
    target_units_: Any  # a `Standardise`, or None

    def __init__(
        self,
        network: Network = "auto",
        *,
        method: Any = "auto",
        likelihood: Any = "auto",
        prior: Any = None,
        conformal: float | Split | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.network = network
        self.method = method
        self.likelihood = likelihood
        self.prior = prior
        self.conformal = conformal
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; if `deep` also settings of them, "method__epochs" the epochs of the method, and so on.

        A grid search may so vary settings of the method, the likelihood or the prior. "network__width"
        is the argument `width` of a function that makes the network.
        """
        params = super().get_params(deep)
        if deep:
            params |= {f"{name}__{key}": value for name, of in [*params.items()] for key, value in settings_of(of)}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters, or settings of them: "method__epochs" is the number of epochs of the method.

        Raises:
            ValueError: if there is no such parameter or setting.
        """
        nested: dict[str, dict[str, Any]] = {}
        for name in [name for name in params if "__" in name]:
            outer, _, key = name.partition("__")
            nested.setdefault(outer, {})[key] = params.pop(name)
        super().set_params(**params, **{name: None for name in nested if not hasattr(self, name)})  # raises for these
        return super().set_params(**{name: changed(name, getattr(self, name), to) for name, to in nested.items()})

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Infer the posterior over the weights of the network, which depends on the rows but not on their order.

        Args:
            X: an array (N, D) of numbers, or a data frame of pandas or polars whose columns may also hold texts,
                categories, flags and dates. Missing values are values of their own.
            y: targets (N,); of a regressor also (N, K), several in each row.
            sample_weight: how often each row counts (N,), at least 0; once if None.

        Returns:
            The estimator.

        Raises:
            TypeError: if the method or the network is none.
            ValueError: if there are too few rows, a number is infinite, or no column can be an input.
        """
        with unchanged_where_it_fails(self):
            return self._fit(given_rows(self, X, y, sample_weight=sample_weight, reset=True))

    def partial_fit(self, X: Any, y: Any, *, sample_weight: Any = None) -> Self:
        """Infer the posterior given all rows so far, those of the calls before and these.

        Args:
            X: further rows, with the same columns.
            y: their targets.
            sample_weight: how often each row counts; once if None.

        Returns:
            The estimator.

        Raises:
            ValueError: as `fit` does; also if the estimator was read from a file, which holds no rows.
        """
        first = not hasattr(self, "posterior_")
        if not first and not hasattr(self, "_rows"):
            raise ValueError("The rows of the fit were not saved with it. Fit all rows anew.")
        with unchanged_where_it_fails(self):
            given = given_rows(self, X, y, sample_weight=sample_weight, reset=first, least=1 + first)
            return self._fit(given if first else self._rows.with_more(given))

    def report(self, X: Any, y: Any) -> Page:
        """Return a page about the fit, judged on rows that it has not seen: a notebook shows it, `save` writes it.

        It has the scores beside those of a constant, a linear model and boosted trees; calibration, intervals and
        residuals; which rows are uncertain, and why; which columns matter, and the mean along them with its band.

        Args:
            X: rows, at least 2.
            y: their targets.

        Returns:
            The page.

        Raises:
            ValueError: if columns or classes are not those of the training rows; or if the estimator was read from a
                file, which holds no rows to compare with.
        """
        from torchbayes.sklearn.page import page_of

        check_is_fitted(self)
        with threads(self.n_jobs):
            return page_of(self, X, y, given=given_rows(self, X, y, reset=False))

    def posterior_at(self, X: Any) -> tuple[Any, torch.Tensor]:
        """Return the posterior, and rows as inputs of its networks, float32 (B, D'), for `torchbayes.acquire`.

        Args:
            X: rows, with the columns of the training rows.
        """
        check_is_fitted(self)
        return self.posterior_, self.preparation_(checked_rows(self, X, reset=False)[0])

    def predictive(self, X: Any) -> Predictive:
        """Return the model average at rows X, for `torchbayes.decide`; numbers are in the units of `target_units_`."""
        return average_at(self, X)

    def check_held_out(self, X: Any) -> None:
        """Check that rows are none of the fit, as far as a fitted estimator still has these; files do not hold them.

        Args:
            X: rows.

        Raises:
            ValueError: if more rows have the inputs of rows of the fit than new ones would have by chance.
        """
        rows = self.posterior_at(X)[1]
        if hasattr(self, "_rows"):
            check_held_out(self.preparation_(self._rows.table), rows)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the training rows, which may be many, and nobody else's business."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_rows"}

    def _fit(self, given: Given) -> Self:
        began = time.perf_counter()
        check_flags(verbose=self.verbose)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.split_, rows, held = split_of(self.conformal), given._replace(targets=self._encoded(given)), None
        if self.split_ is not None:
            rows, held = parted(rows, self.split_, self.seed_)
        training = prepared(rows.table, rows.targets, rows.weights, encoded=is_encoded(self))
        likelihood, data = likelihood_of(self.likelihood, self.usual_likelihood), self._data(training)
        listed = getattr(likelihood, "listed", None)  # a likelihood of the user's need not be
        if listed is not None:
            data = data_for(listed.name, data)
        self.outputs_ = likelihood_outputs("" if listed is None else listed.name, data)
        self.weighted_, self.target_units_ = training.weights is not None, data.target_standardise
        targets = data.train.targets
        if training.weights is not None:
            targets = (targets, torch.from_numpy(training.weights).float())
        self.num_data_, self.automatic_ = len(training.inputs), is_automatic(self.method)
        self.method_ = method_of(self.method, num_data=self.num_data_, task=self.task, encoded=is_encoded(self))
        self.preparation_, self.notes_ = training.preparation, training.preparation.notes
        with threads(self.n_jobs):
            self.posterior_ = fit(
                model_of(self),
                (training.inputs, targets),
                self.method_,
                seed=self.seed_,
                callbacks=None if self.verbose else (),
            )
            self.conformal_ = None if self.split_ is None else calibrated(self, held, self.split_)
        self._rows, self.fit_seconds_ = given, time.perf_counter() - began
        return self

    @abstractmethod
    def _checked_targets(self, y: Any) -> np.ndarray:
        """Return targets (N,), or (N, K) of several."""

    @abstractmethod
    def _encoded(self, given: Given) -> np.ndarray:
        """Return targets as numbers in their shape, and remember how they became so."""

    @abstractmethod
    def _data(self, training: Training) -> Data:
        """Return training rows as a data set."""


def given_rows(
    estimator: BayesianEstimator, X: Any, y: Any, *, sample_weight: Any = None, reset: bool, least: int = 2
) -> Given:
    """Return checked training rows."""
    table, y = checked_rows(estimator, X, y, reset=reset, least=least)
    targets = estimator._checked_targets(y)
    check_consistent_length(X, targets)
    weights = None
    if sample_weight is not None:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return Given(table, targets, weights)


def model_of(estimator: BayesianEstimator) -> Model:
    """Return the model of the columns and targets that were prepared."""
    likelihood = likelihood_of(estimator.likelihood, estimator.usual_likelihood)
    network = network_of(estimator.network, estimator.preparation_.width, estimator.outputs_)
    prior = estimator.prior
    if prior is None and is_encoded(estimator):
        prior = prior_of(automatic=estimator.automatic_, num_data=estimator.num_data_, task=estimator.task)
    return Model(network, likelihoods.Weighted(likelihood) if estimator.weighted_ else likelihood, prior)


def is_encoded(estimator: BayesianEstimator) -> bool:
    """Return whether columns of numbers are encoded for the network, instead of standardised."""
    return estimator.perceptron or (isinstance(estimator.network, str) and estimator.network == "auto")


def network_of(network: Network, inputs: int, outputs: int) -> Any:
    """Return a module, or what makes one: of the library by its name, or of a function of (inputs, outputs)."""
    if isinstance(network, nn.Module):
        return network
    if isinstance(network, str):
        if network == "auto":
            return partial(mlp, inputs, outputs, hidden=HIDDEN)
        return partial(build_network, network, (inputs,), outputs, settings={})
    check_function("a name, a module, or a function of the numbers of inputs and outputs", network=network)
    return partial(network, inputs, outputs)


def likelihood_of(likelihood: Any, usual: str) -> Any:
    """Return a likelihood: the usual one of a task for "auto", another by its name, or itself."""
    if not isinstance(likelihood, str):
        return likelihood
    return build_likelihood(usual if likelihood == "auto" else likelihood, {})


@contextmanager
def unchanged_where_it_fails(estimator: BayesianEstimator) -> Iterator[None]:
    """Restore an estimator where the block raises, by Ctrl-C too: what was fitted before still predicts."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
