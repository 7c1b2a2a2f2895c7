"""What `uci_table` computes for one seed: deep ensemble and MultiSWAG scored on every split of every set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.model import Model
from torchbayes.model.likelihoods import HeteroscedasticGaussian
from torchbayes.posteriors import Functions
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.shared.uci_splits import over_splits
from torchbayes_experiments.uci_table.recipe import METRICS, UCITableRecipe


class TwoHeads(nn.Module):
    """One hidden layer of ReLU units with a linear head for the mean and one for the noise.

    The function is that of a single layer with two outputs; with two heads, each has a prior of its own.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.hidden, self.mean, self.noise = nn.Linear(features, width), nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return mean and raw variance, (B, 2), of inputs (B, features)."""
        hidden = torch.relu(self.hidden(inputs))
        return torch.cat([self.mean(hidden), self.noise(hidden)], dim=-1)


def run(recipe: UCITableRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run every split of every set; each writes a file, so that an interrupted run continues with the next.

    Args:
        recipe: the settings.
        seed: of initialisations, data orders and draws on every split.
        directory: of this seed.

    Returns:
        set -> method -> metric -> one value per split, in the target's units.
    """
    return over_splits(split_scores, recipe, seed=seed, directory=directory)


def split_scores(recipe: UCITableRecipe, name: str, split: int, *, seed: int) -> dict[str, dict[str, float]]:
    """Fit and score ensemble and MultiSWAG on one split.

    Args:
        recipe: the settings.
        name: one of its sets.
        split: which split of the set.
        seed: seed of the fits and draws.

    Returns:
        method -> metric -> value; `single` is the mean over the ensemble's members, each alone.
    """
    data = load(f"uci_{name}", split=split)
    network = TwoHeads(*data.input_shape, width=100 if name == "protein" else 50)
    model = Model(network, HeteroscedasticGaussian(), recipe.prior())
    assert data.target_standardise is not None
    scale = float(data.target_standardise.scale)

    def score(average: Predictive) -> dict[str, float]:
        found = evaluate(average, data.test.targets, target_scale=scale).metrics
        return {metric: found[metric] for metric in METRICS}

    def average(functions: Functions) -> Predictive:
        return predict(functions, data.test.inputs)

    ensemble = average(fit(model, data.train, recipe.ensemble(), seed=seed, callbacks=()).functions())
    swag = fit(model, data.train, recipe.multiswag(), seed=seed, callbacks=())
    alone = [score(replace(ensemble, outputs_SBK=ensemble.outputs_SBK[m : m + 1])) for m in range(recipe.members)]
    return {
        "single": {metric: float(np.mean([one[metric] for one in alone])) for metric in METRICS},
        "ensemble": score(ensemble),
        "MultiSWAG": score(average(swag.functions(recipe.members * recipe.draws, seed=seed))),
    }
