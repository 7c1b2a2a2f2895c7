"""What `multiswag_corruption` computes for one seed: ensemble and MultiSWAG, scored clean and corrupted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from torchbayes.data import Data, corrupt_data, load
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Functions, Gaussian, Point
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.multiswag_corruption.recipe import CorruptionRecipe
from torchbayes_experiments.shared.classifiers import METRICS, classifier, metrics_of


def run(recipe: CorruptionRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit ensemble and MultiSWAG from the same seed, and score them on clean and on corrupted images.

    Args:
        recipe: the settings.
        seed: seed of initialisations, data orders and draws; the corrupted images are the same for every seed.
        directory: of this seed; the fits resume there.

    Returns:
        `clean`: method -> metric -> value; `corrupted`: corruption -> one such mapping per severity from 1 to 5.
    """
    data = load(recipe.data, train_size=recipe.train_size)
    model = classifier(recipe.network, data.input_shape, data.num_classes, prior=Normal(recipe.prior_scale))
    ensemble = fit(model, data.train, recipe.ensemble(), seed=seed, directory=directory / "ensemble", resume=True)
    swag = fit(model, data.train, recipe.multiswag(), seed=seed, directory=directory / "multiswag", resume=True)
    assert isinstance(swag, Gaussian)
    means = Point(model, swag.mean_MD, buffers_M=swag.buffers_M, calibration=swag.calibration)
    functions = {
        "ensemble": ensemble.functions(),
        "MultiSWA": means.functions(),
        "MultiSWAG": swag.functions(recipe.members * recipe.draws, seed=seed),
    }
    inputs, targets = (part[: recipe.test_rows] for part in data.test)
    return {
        "clean": _scores(functions, inputs, targets, recipe.members),
        "corrupted": {name: _severities(functions, data, name, recipe) for name in recipe.corruptions},
    }


def _severities(
    functions: Mapping[str, Functions], data: Data, name: str, recipe: CorruptionRecipe
) -> list[dict[str, dict[str, float]]]:
    """Return the scores at severities 1 to 5 of one corruption."""
    pairs = (corrupt_data(data, name, severity, limit=recipe.corrupted_rows) for severity in range(1, 6))
    return [_scores(functions, *pair, recipe.members) for pair in pairs]


def _scores(
    functions: Mapping[str, Functions], inputs: Tensor, targets: Tensor, members: int
) -> dict[str, dict[str, float]]:
    """Return the metrics of every average, and their mean and standard deviation over its members alone."""
    scores = {}
    for name, drawn in functions.items():
        device = drawn.model.network.device
        average, labels = predict(drawn, inputs.to(device)), targets.to(device)
        scores[name] = metrics_of(average, labels)
        alone = {"ensemble": "single", "MultiSWAG": "SWAG"}.get(name)
        if alone:  # draw s is from member s mod M
            parts = [replace(average, outputs_SBK=average.outputs_SBK[m::members]) for m in range(members)]
            each = [metrics_of(part, labels) for part in parts]
            scores[alone] = {key: float(np.mean([one[key] for one in each])) for key in METRICS}
            scores[alone] |= {f"{key}_std": float(np.std([one[key] for one in each])) for key in METRICS}
    return scores
