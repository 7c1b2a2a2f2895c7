"""What regressors and classifiers share: rows in, a posterior over the weights of a network, and its average."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from torchbayes.checks import check_flags, check_function, seen
from torchbayes.data.own.table import Table
from torchbayes.model import Model, likelihoods
from torchbayes.networks import build
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.mixture import some_rows
from torchbayes.predictive.predict import as_source, predict
from torchbayes.selection.fit import fit
from torchbayes.sklearn.automatic import method_of
from torchbayes.sklearn.tables import as_table, joined, prepared

_BLOCK = 256  # rows that go through the networks together
_NUMBERS: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}

Network = str | nn.Module | Callable[[int, int], nn.Module]


class Given(NamedTuple):
    """Rows as they were given."""

    table: Table
    targets: np.ndarray  # (N,)
    weights: np.ndarray | None  # (N,)


class BayesianEstimator(BaseEstimator):
    """A network on a table, and the posterior over its weights; the base of regressors and classifiers."""

    fitted: ClassVar[tuple[str, ...]]  # what a fit of this kind learns beside the posterior

    def __init__(
        self,
        network: Network = "mlp",
        *,
        method: Any = "auto",
        likelihood: Any = "auto",
        prior: Any = None,
        draws: int | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.network = network
        self.method = method
        self.likelihood = likelihood
        self.prior = prior
        self.draws = draws
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Infer the posterior over the weights of the network, which depends on the rows but not on their order.

        Args:
            X: an array (N, D) of numbers, or a data frame of pandas or polars whose columns may also hold texts,
                categories, flags and dates. Missing values are values of their own.
            y: targets (N,).
            sample_weight: how often each row counts (N,), at least 0; once if None.

        Returns:
            The estimator.

        Raises:
            TypeError: if the method or the network is none.
            ValueError: if there are too few rows, a number is infinite, or no column can be an input.
        """
        return self._fit(self._given(X, y, sample_weight, reset=True))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
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
        given = self._given(X, y, sample_weight, reset=first)
        return self._fit(given if first else Given(*map(joined, self._rows, given)))

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the training rows, which may be many, and nobody else's business."""
        return {name: value for name, value in super().__getstate__().items() if name != "_rows"}

    def _given(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Given:
        """Return checked training rows."""
        if isinstance(X, np.ndarray) or not hasattr(X, "columns"):
            X, y = validate_data(
                self, X, y, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2
            )
        else:
            validate_data(self, X, y, reset=reset, skip_check_array=True)
        targets = self._checked(y)
        if len(targets) != len(X):
            raise ValueError(f"X and y must have the same number of rows; got {len(X):,} and {len(targets):,}.")
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            if not (weights > 0).any():
                raise ValueError("`sample_weight` is 0 for all rows, so that none is left to learn from.")
        return Given(as_table(X), targets, weights)

    def _fit(self, given: Given) -> Self:
        began = time.perf_counter()
        check_flags(verbose=self.verbose)
        training = prepared(given.table, self._encoded(given), given.weights)
        self.weighted_, targets = training.weights is not None, self._targets(training.targets)
        if training.weights is not None:
            targets = (targets, torch.from_numpy(training.weights).float())
        self.method_ = method_of(self.method, rows=len(training.inputs))
        self.preparation_, self.notes_ = training.preparation, training.preparation.notes
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        with threads(self.n_jobs):
            self.posterior_ = fit(
                self._model(),
                (training.inputs, targets),
                self.method_,
                seed=self.seed_,
                callbacks=None if self.verbose else (),
            )
        self._rows, self.fit_seconds_ = given, time.perf_counter() - began
        return self

    def _model(self) -> Model:
        """Return the model of the columns and targets that were prepared."""
        likelihood, outputs = self._likelihood()
        network = network_of(self.network, self.preparation_.columns.width, outputs)
        return Model(network, likelihoods.Weighted(likelihood) if self.weighted_ else likelihood, self.prior)

    def _average(self, X: Any, values: Callable[[Predictive], Any]) -> np.ndarray:
        """Return what `values` gives of the model average at all rows, joined along the rows."""
        return np.concatenate([np.asarray(values(block)) for block in self._blocks(X)])

    def _blocks(self, X: Any) -> Iterator[Predictive]:
        """Yield the model average at successive blocks of rows.

        Each block has the same number of rows while it goes through the networks, so that a row gives the same numbers,
        bit for bit, whatever other rows there are.
        """
        check_is_fitted(self)
        if isinstance(X, np.ndarray) or not hasattr(X, "columns"):
            X = validate_data(self, X, reset=False, **_NUMBERS)
        else:
            validate_data(self, X, reset=False, skip_check_array=True)
        inputs = self.preparation_(as_table(X))
        source = as_source(self.posterior_, self.draws, self.seed_)
        with threads(self.n_jobs):
            for block in inputs.split(_BLOCK):
                filled = torch.cat([block, block[-1:].expand(_BLOCK - len(block), -1)])
                yield some_rows(predict(source, filled, chunk_size=_BLOCK), slice(len(block)))

    @abstractmethod
    def _checked(self, y: Any) -> np.ndarray:
        """Return targets (N,)."""

    @abstractmethod
    def _encoded(self, given: Given) -> np.ndarray:
        """Return targets as numbers (N,), and remember how they became so."""

    @abstractmethod
    def _targets(self, numbers: np.ndarray) -> Tensor:
        """Return targets of the model, and remember their units."""

    @abstractmethod
    def _likelihood(self) -> tuple[Any, int]:
        """Return the likelihood, and the number of outputs of the network that it needs."""


def network_of(network: Network, inputs: int, outputs: int) -> Any:
    """Return a module, or what makes one: of the library by its name, or of a function of (inputs, outputs)."""
    if isinstance(network, nn.Module):
        return network
    if isinstance(network, str):
        return partial(build, network, (inputs,), outputs)
    check_function(network=network)
    return partial(network, inputs, outputs)


def likelihood_of(likelihood: Any, kinds: dict[str, Callable[[], Any]]) -> Any:
    """Return a likelihood given as one, or by its name among those of a task."""
    if not isinstance(likelihood, str):
        return likelihood
    if likelihood not in kinds:
        raise ValueError(f"`likelihood` must be one of {', '.join(kinds)}, or a likelihood; got {seen(likelihood)}.")
    return kinds[likelihood]()


@contextmanager
def threads(n_jobs: int | None) -> Iterator[None]:
    """Run with a number of threads of PyTorch, as scikit-learn counts jobs: −1 for all cores, None for no change."""
    import joblib

    before = torch.get_num_threads()
    if n_jobs is not None:
        torch.set_num_threads(joblib.effective_n_jobs(n_jobs))
    try:
        yield
    finally:
        torch.set_num_threads(before)
