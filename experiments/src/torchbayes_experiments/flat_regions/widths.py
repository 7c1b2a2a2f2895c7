"""Narrow and wide networks on rows with noisy labels: effective dimension, training and test loss."""

from __future__ import annotations

from typing import Any

import torch

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.data.base import Pair
from torchbayes.driver.progress import Event
from torchbayes.geometry import spectrum
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors.univariate import Flat
from torchbayes.posteriors import Point
from torchbayes.selection import fit
from torchbayes_experiments.flat_regions.recipe import END, MATCHED, Widths
from torchbayes_experiments.shared.labels import shuffled


def width(recipe: Widths, rows: Pair, test: Pair, *, units: int, seed: int) -> dict[str, Any]:
    """Train a network of one width, and return its effective dimension and losses.

    Args:
        recipe: the settings.
        rows: training rows with true labels.
        test: test rows.
        units: of the hidden layer.
        seed: of the noise in the labels, of initialisation, data order and probes.

    Returns:
        `units`, `weights` (their number D); `end`: what `scores` returns after the whole training; `matched`: the same
        after the first epoch at which the mean training loss is at most `recipe.level`, None where none is.
    """
    train, test = pooled(rows, test, recipe.pool)
    train = Pair(train.inputs, shuffled(train.targets, recipe.noise, seed=seed))
    model = Model(networks.mlp(tuple(train.inputs.shape[1:]), 10, hidden=(units,)), Categorical(), Flat())
    early: list[Point] = []

    def watch(event: Event) -> None:
        if not early and event.record["nll"][0] <= recipe.level:
            reached = Point(model, event.state.weights_MD.clone())
            if evaluate(reached, train).metrics["nll"] <= recipe.level:
                early.append(reached)

    point = fit(model, train, recipe.method, seed=seed, callbacks=(watch,))
    assert isinstance(point, Point)
    return {
        "units": units,
        "weights": point.weights_MD.shape[1],
        END: scores(recipe, point, train, test=test, seed=seed),
        MATCHED: scores(recipe, early[0], train, test=test, seed=seed) if early else None,
    }


def scores(recipe: Widths, point: Point, train: Pair, *, test: Pair, seed: int) -> dict[str, Any]:
    """Return losses and effective dimensions of a network.

    Args:
        recipe: the settings.
        point: the network.
        train: training rows with their noisy labels.
        test: test rows.
        seed: of the probes.

    Returns:
        `loss`, `error`, `test_nll`, `test_error`; `effective`, one for each precision, and `effective_error`.
    """
    own, far = evaluate(point, train).metrics, evaluate(point, test).metrics
    settings: dict[str, Any] = {"steps": recipe.steps, "probes": recipe.probes, "seed": seed}
    found = spectrum(point.model, train, point, matrix="ggn", **settings)
    sizes = [found.effective_dimension(precision) for precision in recipe.precisions]
    return {
        "loss": own["nll"],
        "error": 1 - own["accuracy"],
        "test_nll": far["nll"],
        "test_error": 1 - far["accuracy"],
        "effective": [size.value for size in sizes],
        "effective_error": [size.error for size in sizes],
    }


def pooled(train: Pair, test: Pair, side: int) -> tuple[Pair, Pair]:
    """Return images averaged over squares, in units of the standard deviation of the training images.

    Args:
        train: training rows, images (N, C, H, W).
        test: test rows.
        side: of a square.
    """
    small = [torch.nn.functional.avg_pool2d(part.inputs, side) for part in (train, test)]
    scale = small[0].std()
    return Pair(small[0] / scale, train.targets), Pair(small[1] / scale, test.targets)
