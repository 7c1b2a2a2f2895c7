"""What `subspace_inference` computes for one seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.uci_splits import over_splits
from torchbayes_experiments.subspace_inference.images import scores
from torchbayes_experiments.subspace_inference.recipe import IMAGES, REGRESSIONS, TOY, SubspaceRecipe
from torchbayes_experiments.subspace_inference.regressions import split_scores
from torchbayes_experiments.subspace_inference.toy import bands


def run(recipe: SubspaceRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Compute the parts of the recipe; each leaves files, so that an interrupted run continues.

    Args:
        recipe: the settings.
        seed: of everything random.
        directory: of this seed.

    Returns:
        "regressions", of the first seeds alone: set -> method -> metric -> one value per split; "toy": what `bands`
        returns; "images": what `scores` returns.
    """
    found: dict[str, Any] = {}
    if recipe.images is not None:
        found[IMAGES] = scores(recipe.images, seed=seed, home=directory / IMAGES)
    if recipe.toy is not None:
        found[TOY] = load_or_compute(directory / "toy.json", partial(bands, recipe.toy, seed=seed))
    if recipe.regressions is not None and seed < recipe.regression_seeds:
        home = directory / REGRESSIONS
        found[REGRESSIONS] = over_splits(split_scores, recipe.regressions, seed=seed, directory=home)
    return found
