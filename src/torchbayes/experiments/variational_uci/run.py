"""What `variational_uci` computes for one seed: every method scored on every split of every set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.driver import fit
from torchbayes.experiments.shared.uci_splits import over_splits
from torchbayes.experiments.variational_uci.recipe import (
    DROPOUT,
    LAST_LAYER,
    MEAN_FIELD,
    METRICS,
    SINGLE,
    VariationalUCIRecipe,
)
from torchbayes.model import Model
from torchbayes.model.likelihoods import Gaussian
from torchbayes.model.priors.univariate import Normal


def run(recipe: VariationalUCIRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run every split of every set; each writes a file, so that an interrupted run continues with the next.

    Args:
        recipe: the settings.
        seed: of initialisations, data orders and draws on every split.
        directory: of this seed.

    Returns:
        set -> method -> metric -> one value per split, in the target's units.
    """
    return over_splits(split_scores, recipe, seed=seed, directory=directory)


def split_scores(recipe: VariationalUCIRecipe, name: str, split: int, *, seed: int) -> dict[str, dict[str, float]]:
    """Fit and score every method on one split.

    Args:
        recipe: the settings.
        name: one of its sets.
        split: which split of the set.
        seed: seed of the fits and draws.

    Returns:
        method -> metric -> value.
    """
    data = load(f"uci_{name}", split=split)
    width = 100 if name == "protein" else 50
    assert data.target_standardise is not None
    scale = float(data.target_standardise.scale)

    def scores(method: Any, *, rate: float = 0.0, draws: int | None = None) -> dict[str, float]:
        network = networks.mlp(data.input_shape, 1, hidden=(width,), dropout=rate)
        model = Model(network, Gaussian("learned"), Normal(recipe.prior_scale))
        posterior = fit(model, data.train, method, seed=seed, callbacks=())
        found = evaluate(posterior, data.test, draws=draws, target_scale=scale).metrics
        return {metric: found[metric] for metric in METRICS}

    return {
        SINGLE: scores(recipe.single),
        MEAN_FIELD: scores(recipe.mean_field, draws=recipe.draws),
        DROPOUT: scores(recipe.dropout, rate=recipe.rate, draws=recipe.draws),
        LAST_LAYER: scores(recipe.last_layer),
    }
