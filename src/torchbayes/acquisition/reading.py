"""Predictions as scores need them: probabilities of classes, or two moments of numbers, under each of S functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributions

from torchbayes.acquisition.classes import ClassRows
from torchbayes.acquisition.numbers import NumberRows
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.classes import each_probs, moment
from torchbayes.predictive.linearised import Linearised
from torchbayes.predictive.predict import as_source

DRAWS = 100  # functions that are drawn by default
Rows = ClassRows | NumberRows


def source_of(posterior: Any, draws: int | None, seed: int, *, together: bool) -> tuple[Any, bool]:
    """Return what predicts, and whether by the same functions at all rows; of Laplace those of the linearised network.

    Drawn are 100 by default, rounded up to a multiple of the members; of trained networks each one, once, and of a
    chain no more than it has. A `Linearised` posterior is drawn from if rows are scored `together`; else each row has
    its closed form. A student has nothing else, which is a TypeError if rows are scored `together`.
    """
    if has_nodes(posterior):
        if together:
            raise TypeError(
                "this `score` needs functions that are drawn at all rows together, and a student speaks of each row "
                "alone. Give its teacher, or use 'bald', 'entropy' or 'margin'."
            )
        return as_source(posterior, draws, seed), False
    if hasattr(posterior, "drawn"):  # linearised already
        return as_source(posterior.drawn() if together else posterior, draws, seed), together
    return _joint(posterior, draws, seed), True


def _joint(posterior: Any, draws: int | None, seed: int) -> Any:
    if not isinstance(posterior, Posterior):
        return as_source(posterior, draws, seed)
    if not posterior.of_linearised:
        return as_source(posterior, usual_draws(posterior) if draws is None else draws, seed)
    each = usual_draws(posterior) if draws is None else posterior.check_draws(draws)
    return Linearised(posterior, samples=each // posterior.members, seed=seed).drawn()  # type: ignore[arg-type]


def usual_draws(posterior: Posterior) -> int:
    """Return how many functions are drawn by default."""
    members, default = posterior.members, posterior.default_draws
    usual = -(-DRAWS // members) * members
    return min(usual, default) if default == members or posterior.chain_length is not None else usual


def has_nodes(source: Any) -> bool:
    """Return whether predictions are averages over nodes of each row, as a student's are, and not over functions."""
    return hasattr(source, "nodes_JK")


def rows_of(predictive: Predictive, *, drawn: bool) -> Rows:
    """Return what scores need of predictions at B rows; a TypeError if they have neither classes nor two moments.

    `drawn` says whether the average is over draws, whose information has a bias.
    """
    distribution = predictive.distribution
    if isinstance(distribution, distributions.Categorical | distributions.Bernoulli):
        probs = each_probs(distribution)
        return ClassRows(probs.flatten(2, -2) if probs.ndim > 3 else probs.unsqueeze(2), drawn)
    noise = predictive._noise
    mean, variance = (moment(noise, name).double() for name in ("mean", "variance"))
    mean_SBK, variance_SBK = mean.flatten(2) if mean.ndim > 2 else mean.unsqueeze(-1), variance
    noise_BK = variance_SBK.expand(mean.shape).reshape(mean_SBK.shape).mean(0)
    _check_moments(mean_SBK, noise_BK, type(noise).__name__)
    closed = predictive.function_variance
    closed_BK = None if closed is None else closed.double().mean(0).reshape(noise_BK.shape)
    return NumberRows(mean_SBK, noise_BK, closed_BK, drawn)


def _check_moments(mean_SBK: torch.Tensor, noise_BK: torch.Tensor, kind: str) -> None:
    if not (mean_SBK.isfinite().all() and noise_BK.isfinite().all() and (noise_BK > 0).all()):
        raise ValueError(
            f"these scores are of mean and variance, and those of {kind} are not all finite, or a variance is 0. Give "
            f"a function of the predictive as `score`."
        )


def check_disagreement(rows: Rows, score: str) -> None:
    """Raise a ValueError if there is a single function, with which nothing disagrees."""
    if rows.draws == 1 and getattr(rows, "closed_BK", None) is None:
        raise ValueError(
            f"`score` {score!r} is how much functions disagree, and there is one. Fit several members, or a method "
            f"that draws, such as Laplace or SWAG; of one network 'entropy' and 'margin' are known."
        )


def check_joint(rows: Rows, score: str) -> None:
    """Raise a TypeError if what is known of rows is each row's distribution alone."""
    if getattr(rows, "closed_BK", None) is not None:
        raise TypeError(
            f"`score` {score!r} needs functions that are drawn at all rows together, and this closed form gives each "
            f"row alone. Give the posterior."
        )
