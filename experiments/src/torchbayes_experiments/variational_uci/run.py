"""What `variational_uci` computes for one seed: every method scored on every split of every set."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes.model import Model
from torchbayes.model.likelihoods import Gaussian
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Posterior, ProblemWarning
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.shared.uci_splits import over_splits
from torchbayes_experiments.variational_uci.recipe import (
    CHOSEN,
    DROPOUT,
    LAST_LAYER,
    MEAN_FIELD,
    METRICS,
    SINGLE,
    VariationalUCIRecipe,
)


def run(recipe: VariationalUCIRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run every split of every set; each writes a file, so that an interrupted run continues with the next.

    Args:
        recipe: the settings.
        seed: of initialisations, data orders and draws on every split.
        directory: of this seed.

    Returns:
        set -> method -> metric -> one value per split, and set -> "chosen" -> `noise`, `rate` or `dropout_noise` -> the
        same; all in the target's units.
    """
    return over_splits(split_scores, recipe, seed=seed, directory=directory)


def split_scores(recipe: VariationalUCIRecipe, name: str, split: int, *, seed: int) -> dict[str, dict[str, float]]:
    """Choose noise and rate of dropout on held-out training rows of one split, then fit and score every method.

    Args:
        recipe: the settings.
        name: one of its sets.
        split: which split of the set.
        seed: seed of the fits and draws.

    Returns:
        method -> metric -> value, and what was chosen.
    """
    data = load(f"uci_{name}", split=split)
    width = 100 if name == "protein" else 50
    assert data.target_standardise is not None
    scale = float(data.target_standardise.scale)
    noise = noise_scale(recipe, data.train, width=width, seed=seed)
    rate, noise_of_draws = best_dropout(recipe, data.train, noise=noise, width=width, seed=seed)

    def scores(method: Any, *, steps: int, draws: int | None = None, **dropout: float) -> dict[str, float]:
        lasting = recipe.lasting(method, len(data.train.inputs), steps=steps)
        posterior = fitted(recipe, lasting, data.train, **{"noise": noise, **dropout}, width=width, seed=seed)
        found = evaluate(posterior, data.test, draws=draws, target_scale=scale).metrics
        return {metric: found[metric] for metric in METRICS}

    many = {"steps": recipe.long_steps, "draws": recipe.draws}
    return {
        SINGLE: scores(recipe.single, steps=recipe.steps),
        MEAN_FIELD: scores(recipe.mean_field, **many),
        DROPOUT: scores(recipe.dropout, **many, rate=rate, noise=noise_of_draws),
        LAST_LAYER: scores(recipe.last_layer, steps=recipe.steps),
        CHOSEN: {"noise": noise * scale, "rate": rate, "dropout_noise": noise_of_draws * scale},
    }


def noise_scale(recipe: VariationalUCIRecipe, train: Pair, *, width: int, seed: int) -> float:
    """Return the RMSE of single networks, each on a part of the training rows that it was not trained on.

    A noise learned from rows that a network was trained on is that of these rows, far too small for others where rows
    are few. This is the scale that is most probable for rows held out.

    Args:
        recipe: the settings.
        train: the training rows, in random order, as the standard splits have them.
        width: hidden units.
        seed: of the fits.

    Returns:
        σ, in the targets' units.
    """
    wrong = []
    for fold in range(recipe.folds):
        rest, held = parted(train, recipe.folds, fold)
        single = recipe.lasting(recipe.single, len(rest.inputs), steps=recipe.steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProblemWarning)  # that learned noise is too small is known, and not used
            network = fitted(recipe, single, rest, noise="learned", width=width, seed=seed)
            wrong.append(predict(network, held.inputs).mean - held.targets)
    return float(torch.cat(wrong).double().square().mean().sqrt())


def best_dropout(
    recipe: VariationalUCIRecipe, train: Pair, *, noise: float, width: int, seed: int
) -> tuple[float, float]:
    """Return rate and noise of MC dropout under which the first part of the training rows, held out, is most likely.

    The noise of draws is less than that of a single network, as their spread is a part of the error. It is changed in
    the predictions alone: the network is trained once for each rate.

    Args:
        recipe: the settings, with the rates and the shares of the noise.
        train: the training rows.
        noise: standard deviation of the noise of a single network.
        width: hidden units.
        seed: of fits and draws.

    Returns:
        The rate, and the standard deviation of the noise.
    """
    rest, held = parted(train, recipe.folds, 0)
    dropout = recipe.lasting(recipe.dropout, len(rest.inputs), steps=recipe.steps)
    nll: dict[tuple[float, float], float] = {}
    for rate in recipe.rates:
        posterior = fitted(recipe, dropout, rest, noise=noise, rate=rate, width=width, seed=seed)
        average = predict(posterior, held.inputs, draws=recipe.draws)
        for share in recipe.shares:
            other = replace(average, likelihood=Gaussian(share * noise))
            nll[rate, share * noise] = evaluate(other, held.targets).metrics["nll"]
    return min(nll, key=nll.__getitem__)


def parted(rows: Pair, folds: int, fold: int) -> tuple[Pair, Pair]:
    """Return the rows outside a fold, and every `folds`-th row, those of the fold."""
    is_held_N = torch.arange(len(rows.inputs)) % folds == fold
    rest, held = (Pair(rows.inputs[which_N], rows.targets[which_N]) for which_N in (~is_held_N, is_held_N))
    return rest, held


def fitted(
    recipe: VariationalUCIRecipe,
    method: Any,
    rows: Pair,
    *,
    noise: float | str,
    width: int,
    seed: int,
    rate: float = 0.0,
) -> Posterior:
    """Fit one method.

    With dropout at rate r, MAP under N(0, s²) maximises the bound under N(0, s²/(1 − r)) for weights on dropped units
    (see `MCDropout`): s² is (1 − r) σ² there, so that the prior of the bound is the one of the other methods.

    Args:
        recipe: the settings.
        method: one of its methods, with its epochs.
        rows: to fit to.
        noise: standard deviation of the noise in that of the targets, or "learned".
        width: hidden units.
        seed: of the fit.
        rate: of dropout of the hidden units.

    Returns:
        The posterior.
    """
    network = networks.mlp(tuple(rows.inputs.shape[1:]), 1, hidden=(width,), dropout=rate)
    usual, lower = Normal(recipe.prior_scale), Normal(recipe.prior_scale * math.sqrt(1 - rate))
    model = Model(network, Gaussian(noise), {"1.*": usual, "*.bias": usual, "*": lower})  # layer 0 makes inputs flat
    return fit(model, rows, method, seed=seed, callbacks=())
