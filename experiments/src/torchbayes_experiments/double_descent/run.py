"""What `double_descent` computes for one seed: both methods at every width, trained on partly wrong labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.data import load
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Functions
from torchbayes.posteriors.files import write_whole
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.double_descent.recipe import ALONE, ENSEMBLE, MEASURES, MULTISWAG, DescentRecipe
from torchbayes_experiments.double_descent.report import so_far
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import classifier, metrics_of
from torchbayes_experiments.shared.labels import shuffled

Rows = tuple[Tensor, Tensor]


def run(recipe: DescentRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit both methods at every width, and score them.

    Args:
        recipe: the settings.
        seed: of the training rows, the shuffle, the initialisations, the data orders and the draws.
        directory: of this seed. Every width leaves a file, and its fits resume in folders of their own, so that an
            interrupted run continues; `so_far.md` says which widths are finished, and what came out at them.

    Returns:
        `widths`, `good` and `peak` of the recipe; `wrong`: the share of training labels that are wrong; `weights`: the
        number of weights at each width; `scores`: method -> `train` or `test` -> measure -> one value per width; and
        `averaged`: ensemble or MultiSWAG -> measure -> for each width the values on the test rows of averages over the
        first member, the first two, ….
    """
    data = load(recipe.data, train_size=recipe.train_size, seed=seed)
    labels = shuffled(data.train.targets, recipe.share, seed=seed)
    train = (data.train.inputs, labels)
    test = (data.test.inputs[: recipe.test_rows], data.test.targets[: recipe.test_rows])
    found: list[dict[str, Any]] = []
    for width in recipe.widths:
        home = directory / f"width_{width}"
        score = partial(of_width, recipe, width, train, test=test, seed=seed, directory=home)
        found.append(load_or_compute(home / "scores.json", score))
        write_whole(directory / "so_far.md", so_far(found, recipe.widths).encode())
    return {
        "widths": list(recipe.widths),
        "good": recipe.good,
        "peak": recipe.peak,
        "wrong": float((labels != data.train.targets).double().mean()),
        "weights": [one["weights"] for one in found],
        "scores": gathered([one["scores"] for one in found]),
        "averaged": gathered([one["averaged"] for one in found]),
    }


def gathered(each: Sequence[Any]) -> Any:
    """Return nested mappings of the same keys as one, whose leaves are the lists of theirs."""
    if isinstance(each[0], Mapping):
        return {key: gathered([one[key] for one in each]) for key in each[0]}
    return list(each)


def of_width(
    recipe: DescentRecipe, width: int, train: Rows, *, test: Rows, seed: int, directory: Path
) -> dict[str, Any]:
    """Fit both methods at one width, and score the members alone and together.

    Args:
        recipe: the settings.
        width: of the network.
        train: training inputs, and labels some of which are wrong.
        test: test inputs and true labels.
        seed: of everything random.
        directory: of this width; the fits resume there.

    Returns:
        `width`, `weights`, `scores` and `averaged` of `run`, of this width alone.
    """
    inputs, labels = train
    prior = Normal((recipe.weight_decay * len(labels)) ** -0.5)
    shape, classes = inputs.shape[1:], int(test[1].max()) + 1
    model = classifier(recipe.network, shape, classes, prior=prior, settings=recipe.settings(width))
    methods = {ENSEMBLE: recipe.ensemble(), MULTISWAG: recipe.multiswag()}
    scores: dict[str, Any] = {}
    averaged: dict[str, Any] = {}
    for name, method in methods.items():
        posterior = fit(model, train, method, seed=seed, directory=directory / name.lower(), resume=True)
        draws = recipe.draws if name == MULTISWAG else 1
        functions = posterior.functions(recipe.members * draws, seed=seed)
        pairs = {"train": _predicted(functions, train), "test": _predicted(functions, test)}
        scores[name] = {rows: _scores(*pair) for rows, pair in pairs.items()}
        scores[ALONE[name]] = {rows: _alone(*pair, recipe.members) for rows, pair in pairs.items()}
        averaged[name] = gathered(_growing(*pairs["test"], recipe.members))
    return {"width": width, "weights": model.layout.size, "scores": scores, "averaged": averaged}


def _predicted(functions: Functions, rows: Rows) -> tuple[Predictive, Tensor]:
    """Return predictive and labels, on the device of the network."""
    device = functions.model.network.device
    return predict(functions, rows[0].to(device)), rows[1].to(device)


def _scores(average: Predictive, labels: Tensor) -> dict[str, float]:
    found = metrics_of(average, labels)
    return dict(zip(MEASURES, (1 - found["accuracy"], found["nll"]), strict=True))


def _alone(average: Predictive, labels: Tensor, members: int) -> dict[str, float]:
    """Return the mean over members of the scores of each by itself; draw s is from member s mod M."""
    parts = [replace(average, outputs_SBK=average.outputs_SBK[m::members]) for m in range(members)]
    return {key: float(np.mean(values)) for key, values in gathered([_scores(p, labels) for p in parts]).items()}


def _growing(average: Predictive, labels: Tensor, members: int) -> list[dict[str, float]]:
    """Return the scores of averages over all draws of the first member, of the first two, and so on."""
    member = torch.arange(len(average.outputs_SBK)) % members
    parts = [replace(average, outputs_SBK=average.outputs_SBK[member <= m]) for m in range(members)]
    return [_scores(part, labels) for part in parts]
