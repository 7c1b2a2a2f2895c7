"""What `prior_functions` computes for one seed: correlations of functions of priors, and scores of posteriors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.data.base import Data, Pair
from torchbayes.model.priors.univariate import Normal
from torchbayes.predictive.predict import predict
from torchbayes.predictive.prior import PriorPredictive, prior_predictive
from torchbayes.selection import fit
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.prior_functions.recipe import PIXELS, Drawn, Fitted, PriorRecipe
from torchbayes_experiments.shared.classifiers import classifier


def run(recipe: PriorRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Draw functions from every prior, and fit a posterior under every prior.

    Args:
        recipe: the settings.
        seed: of the images, the draws, the initialisations and the data orders.
        directory: of this seed; every prior leaves a file, so that an interrupted run continues.

    Returns:
        `drawn`: a list of what `correlations` returns, one per scale and then of the linear model; `fitted`: a list of
        what `scores` returns, one per scale; `broad`, of the recipe.
    """
    drawn, fitted = recipe.drawn, recipe.fitted
    data = load(recipe.data)
    images = chosen(data.train, drawn, seed=seed)
    found = [
        load_or_compute(
            directory / f"drawn_{network}_{scale:g}.json",
            partial(correlations, drawn, images, network=network, scale=scale, outputs=data.num_classes, seed=seed),
        )
        for network, scale in [*((drawn.network, scale) for scale in drawn.scales), (PIXELS, 1.0)]
    ]
    part = load(recipe.data, train_size=fitted.train_size, seed=seed)
    scored = [
        load_or_compute(directory / f"fitted_{scale:g}.json", partial(scores, fitted, part, scale=scale, seed=seed))
        for scale in fitted.scales
    ]
    return {"drawn": found, "fitted": scored, "broad": list(fitted.broad)}


def chosen(rows: Pair, recipe: Drawn, *, seed: int) -> Pair:
    """Return images of the classes, class after class, each the first of the rows from a place that the seed tells.

    Args:
        rows: all images.
        recipe: which and how many.
        seed: that of the experiment; image number `seed · per_class` of a class comes first.
    """
    places = []
    for label in recipe.classes:
        own = torch.nonzero(rows.targets == label).flatten()
        places.append(own.roll(-seed * recipe.per_class)[: recipe.per_class])
    where = torch.cat(places)
    return Pair(rows.inputs[where], rows.targets[where])


def correlations(recipe: Drawn, images: Pair, *, network: str, scale: float, outputs: int, seed: int) -> dict[str, Any]:
    """Draw functions from one prior, and return their correlations.

    Args:
        recipe: the settings.
        images: with their classes.
        network: its name.
        scale: standard deviation of the prior.
        outputs: K.
        seed: of the draws.

    Returns:
        `network`, `scale`; `classes`: the mean correlation of each two classes, (C, C); `within` and `between`: their
        means on and off the diagonal; `nearest`: the least, over classes, of the correlation within less the largest
        with another; `confidence`: mean probability of the likeliest class, of a function; `map`: correlations of the
        `shown` first images of each class; `labels` of these.
    """
    model = classifier(network, images.inputs.shape[1:], outputs, prior=Normal(scale))
    inputs = images.inputs.to(model.network.device)
    found = prior_predictive(model, inputs, draws=recipe.draws, seed=seed)
    table = found.class_correlation(images.targets.to(inputs.device))
    own, other = table.diagonal(), ~torch.eye(len(table), dtype=torch.bool, device=table.device)
    closest = torch.where(other, table, -1.0).amax(1)
    few = torch.cat([torch.nonzero(images.targets == label).flatten()[: recipe.shown] for label in recipe.classes])
    shown = found.correlation[few][:, few]
    return {
        "network": network,
        "scale": scale,
        "classes": _rounded(table),
        "within": float(own.mean()),
        "between": float(table[other].mean()),
        "nearest": float((own - closest).min()),
        "confidence": _confidence(found),
        "map": _rounded(shown),
        "labels": images.targets[few].tolist(),
    }


def scores(recipe: Fitted, data: Data, *, scale: float, seed: int) -> dict[str, float]:
    """Fit SWAG under a prior, and return what its average scores.

    Args:
        recipe: the settings.
        data: training and test rows.
        scale: standard deviation of the prior.
        seed: of initialisation, data order and draws.

    Returns:
        `scale`, `nll`, `accuracy`, `ece` of the test rows, and `train_nll`.
    """
    prior, settings = Normal(scale), dict(recipe.settings)
    model = classifier(recipe.network, data.input_shape, data.num_classes, prior=prior, settings=settings)
    posterior = fit(model, data.train, recipe.swag(), seed=seed, callbacks=())
    test = Pair(*(part[: recipe.test_rows] for part in data.test))
    found = evaluate(predict(posterior, test.inputs, draws=recipe.draws, seed=seed), test.targets).metrics
    own = evaluate(predict(posterior, data.train.inputs, draws=recipe.draws, seed=seed), data.train.targets).metrics
    return {"scale": scale, **{key: found[key] for key in ("nll", "accuracy", "ece")}, "train_nll": own["nll"]}


def _confidence(found: PriorPredictive) -> float:
    return float(found.outputs_SBK.softmax(-1).amax(-1).mean())


def _rounded(matrix: Tensor) -> list[list[float]]:
    return [[float(f"{value:.4g}") for value in row] for row in matrix.tolist()]
