"""What `flat_regions` computes for one seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.flat_regions.recipe import FlatRecipe
from torchbayes_experiments.flat_regions.solutions import solution, surfaces
from torchbayes_experiments.flat_regions.widths import width


def run(recipe: FlatRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Train and measure good and bad networks, and narrow and wide ones.

    Args:
        recipe: the settings.
        seed: of rows, wrong labels, initialisations, data orders and directions.
        directory: of this seed; every network leaves a file, so that an interrupted run continues.

    Returns:
        `solutions`: what `solution` returns for every share of poison, and last for SAM; `surfaces`: what that of
        a good and of a bad network looks like; `widths`: what `width` returns for every width; `precision` and
        `precisions`: α of the effective dimensions.
    """
    several, each = recipe.solutions, recipe.widths
    data = load(recipe.data, train_size=round(several.clean * (1 + max(several.shares))), seed=seed)
    test = Pair(*(part[: recipe.test_rows] for part in data.test))
    found: list[dict[str, Any]] = []
    for name, share in several.trained():
        compute = partial(solution, several, data.train, test, name=name, share=share, seed=seed)
        found.append(load_or_compute(directory / f"{name}_{share:g}.json", compute))
    shown = load_or_compute(directory / "surfaces.json", partial(surfaces, several, data.train, seed=seed))
    data = load(recipe.data, train_size=each.rows, seed=seed)
    test = Pair(*(part[: recipe.test_rows] for part in data.test))
    lines = [
        load_or_compute(
            directory / f"width_{units}.json", partial(width, each, data.train, test, units=units, seed=seed)
        )
        for units in each.units
    ]
    scales = {"precision": several.precision, "precisions": list(each.precisions)}
    return {"solutions": found, "surfaces": shown, "widths": lines, **scales}
