"""certify: how far can this posterior be trusted? Check by check, each with a grade and its numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from torchbayes.calls import explained
from torchbayes.certificate.budget import Budget
from torchbayes.certificate.case import Case, first_rows, fitting
from torchbayes.certificate.certificate import Certificate, Check, not_judged
from torchbayes.certificate.known import k_hat, leave_one_out, r_hat
from torchbayes.certificate.reference import reference
from torchbayes.certificate.refits import coverage, seeds
from torchbayes.certificate.results import Results
from torchbayes.certificate.simulation import simulation
from torchbayes.checks import as_seed, check_kind, optional, seen
from torchbayes.checksum import checksums
from torchbayes.display import brief
from torchbayes.driver.run import describe
from torchbayes.methods.protocol import DivergedError
from torchbayes.model.batches.batch import batch_size, tensors_of
from torchbayes.model.description import checksum_of_code, describe_model
from torchbayes.model.model import Model
from torchbayes.model.sources.informed import informed_by
from torchbayes.model.sources.sources import as_source
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import ProblemWarning, warn_of
from torchbayes.predictive.linearised import checked
from torchbayes.predictive.predict import predict

_COMPARED = 200  # inputs at which predictions are compared

_MADE: dict[str, Callable[..., Check]] = {
    "simulation": simulation,
    "coverage": coverage,
    "k-hat": k_hat,
    "R-hat": r_hat,
    "leave-one-out": leave_one_out,
    "reference": reference,
    "seeds": seeds,
}


@undisturbed
@explained()
def certify(
    posterior: Posterior,
    data: Any,
    method: Any = None,
    *,
    model: Model | None = None,
    inputs: Any = None,
    budget: Budget | None = None,
    directory: str | PathLike[str] | None = None,
    seed: int = 0,
) -> Certificate:
    """Judge a posterior by all that can be known of it, and grade each check green, amber or red.

    - simulation: simulation-based calibration of the method with this network and prior. It judges the computation.
    - coverage: intervals or sets at rows that fits have not seen. It judges the model as well.
    - k-hat: importance weights, of a posterior with a density.
    - R-hat: chains, by their predictions.
    - leave-one-out: whether the posterior hangs on single rows.
    - reference: distance to HMC, on as many rows as it can sample.
    - seeds: whether another run would predict the same.

    Results that are no posteriors, such as those of `MAP`, are judged as if they were: they claim to be certain.

    Args:
        posterior: what `fit` returned.
        data: all rows to which it was fitted, as for `fit`.
        method: how it was fitted, such as `HMC()`; or a function of (model, (inputs, targets), seed) that returns a
            posterior. Without it checks that fit again are not judged.
        model: the model that was fitted; needed where the fit chose its prior or noise, as `Laplace` does. That of the
            posterior if None.
        inputs: where predictions are compared, such as those of test rows; rows of the data if None. At most 200
            evenly spaced ones are taken.
        budget: numbers of fits and rows; `Budget()` if None.
        directory: where results are kept, a file for each fit: an interrupted certificate goes on where it was.
        seed: seed of the simulated data, the folds and the fits.

    Returns:
        The certificate.

    Raises:
        TypeError: if the posterior is none, or the method has no way to fit.
        ValueError: if data or inputs do not fit the model, or the directory holds results of something else.
    """
    check_kind(Posterior, "what `fit` returns", posterior=posterior)
    optional(check_kind, Model, "a Model", model=model)
    optional(check_kind, Budget, "a Budget", budget=budget)
    optional(check_kind, (str, PathLike), "a path", directory=directory)
    if method is not None and (isinstance(method, type) or not (callable(method) or hasattr(method, "init"))):
        raise TypeError(f"`method` must be a method such as HMC(), or a function that fits; got {seen(method)}.")
    if model is not None and model.layout.shapes != posterior.model.layout.shapes:
        raise ValueError(
            f"`model` must have the {posterior.model.layout.size:,} weights of the posterior; got "
            f"{model.layout.size:,}, or others. Give the model that was fitted."
        )
    seed, budget = as_seed(seed), budget or Budget()
    source = as_source(posterior.model, data, 1024)
    source.check()
    rows = source.rows()
    compared = _compared(posterior, rows.inputs if inputs is None else inputs)
    description = {
        "data": checksums(tensors_of(rows)),
        "inputs": checksums(tensors_of(compared)),
        "posterior": checksums(tensors_of(posterior.tensors())),
        "model": describe_model(posterior.model if model is None else model),
        "method": _described(method),
        "seed": seed,
        "rows": budget.rows,
        "reference": describe(budget.reference),
    }
    results = Results(None if directory is None else Path(directory), description)
    fit = None if method is None else fitting(method)
    fitted = posterior.model if model is None else informed_by(model, source)
    case = Case(posterior, fitted, rows, compared, fit, budget, results, seed)
    warn_of(posterior.problems)
    checks = tuple(_checked(name, case) for name in budget.checks)
    subject = f"{type(posterior).__name__} over {posterior.model.layout.size:,} weights, {rows.size:,} rows"
    name = getattr(method, "__qualname__", None) or brief(method)
    return Certificate(checks, subject if method is None else f"{name}: {subject}", posterior.problems)


def _compared(posterior: Posterior, inputs: Any) -> Any:
    """Return the inputs at which predictions are compared; a ValueError if the network cannot take them."""
    placed = checked(posterior.model, inputs)
    placed = first_rows(placed, _COMPARED, batch_size(placed))
    if not posterior.model.network.batch_norms:  # whose draws take a pass through the data each
        predict(posterior.functions(posterior.members), placed)
    return placed


def _checked(name: str, case: Case) -> Check:
    """Return a check; where it cannot be made, one that says why."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProblemWarning)  # of fits on the way, whose grades say it
            check = _MADE[name](case)
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        first = " ".join(str(error).split())
        why = first[:1].upper() + first[1:] or type(error).__name__
        if isinstance(error, DivergedError):  # a method that fails on such rows has not passed
            return Check(name, "red", meaning=why, threshold="red: fits diverge", remedy="A smaller step size.")
        return not_judged(name, why)
    if check.numbers and math.isnan(next(iter(check.numbers.values()))):
        return not_judged(name, "Its number is not finite.")
    return check


def _described(method: Any) -> Any:
    """Return what tells one method, or function that fits, from another."""
    name = getattr(method, "__qualname__", None)
    return describe(method) if name is None else f"{method.__module__}.{name} {checksum_of_code(method)}".strip()
