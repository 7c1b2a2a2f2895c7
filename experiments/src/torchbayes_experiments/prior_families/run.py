"""What `prior_families` computes for one seed: full-batch HMC under every prior on every problem, and its scores."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.diagnose import diagnose
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load, num_splits
from torchbayes.data.base import Pair, Standardise
from torchbayes.data.text import FIRST_WORD
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical, Gaussian
from torchbayes.model.priors.univariate import Prior
from torchbayes.posteriors import Draws
from torchbayes.selection import fit
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.prior_families.recipe import FamiliesRecipe, Problem
from torchbayes_experiments.shared.classifiers import best_device
from torchbayes_experiments.shared.image_hmc import mixing

METRICS = ("nll", "accuracy", "ece", "rmse")  # those of them that a problem has


def run(recipe: FamiliesRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Sample and score the posterior of every problem under every prior.

    Args:
        recipe: the settings.
        seed: of the training rows or the split, of the starts and of the chains.
        directory: of this seed; every prior on every problem leaves a file, so that an interrupted run continues.

    Returns:
        problem -> prior -> what `numbers` returns.
    """
    found: dict[str, Any] = {}
    for place, problem in enumerate(recipe.problems):
        rows = rows_of(problem, seed=seed)
        found[problem.label] = {
            name: load_or_compute(
                directory / f"problem_{place}" / f"{name.replace(',', '').replace(' ', '_')}.json",
                partial(numbers, problem, rows, prior, seed=seed),
            )
            for name, prior in recipe.named_priors(problem.scale).items()
        }
    return found


def rows_of(problem: Problem, *, seed: int) -> tuple[Pair, Pair, float]:
    """Return training rows, test rows, and the units of a target per unit that a model sees.

    A set with several splits has the split of the seed's number, modulo how many there are.
    """
    split = seed % num_splits(problem.data)
    data = load(problem.data, split=split, train_size=problem.train_size, seed=seed)
    train, test = data.train, Pair(*(part[: problem.test_rows] for part in data.test))
    if problem.words:
        pair = [presence(pair.inputs, problem.words) for pair in (train, test)]
        same = Standardise.fit(pair[0])
        # rows of about unit length: a hidden unit then has the scale of one weight
        scaled = [same(inputs) / math.sqrt(problem.words) for inputs in pair]
        train, test = Pair(scaled[0], train.targets), Pair(scaled[1], test.targets)
    units = 1.0 if data.target_standardise is None else float(data.target_standardise.scale)
    device = best_device()
    return Pair(*(part.to(device) for part in train)), Pair(*(part.to(device) for part in test)), units


def presence(ids: Tensor, words: int) -> Tensor:
    """Return whether each of the most frequent words is in a text, (N, words), from token ids (N, length)."""
    first = FIRST_WORD + 1  # the word of rank 1
    inside = (ids >= first) & (ids < first + words)
    found = torch.zeros(len(ids), words + 1)  # the last column takes what is no such word
    found.scatter_(1, torch.where(inside, ids - first, words), 1.0)
    return found[:, :words]


def numbers(problem: Problem, rows: tuple[Pair, Pair, float], prior: Prior, *, seed: int) -> dict[str, Any]:
    """Sample the posterior under one prior, and return what its average scores.

    Args:
        problem: its settings.
        rows: what `rows_of` returned.
        prior: of every weight.
        seed: of starts and chains.

    Returns:
        `nll` and `accuracy` and `ece`, or `rmse`, of the test rows, in units of the file; and `chains`, what `mixing`
        returns.
    """
    train, test, units = rows
    classes = 1 if problem.noise else int(train.targets.max()) + 1
    network = networks.build("mlp", tuple(train.inputs.shape[1:]), classes, hidden=problem.hidden)
    likelihood = Gaussian(problem.noise) if problem.noise else Categorical()
    model = Model(network.to(train.inputs.device), likelihood, prior)
    log: list[dict[str, Any]] = []
    posterior = fit(model, train, problem.hmc, seed=seed, callbacks=(lambda event: log.append(event.record),))
    assert isinstance(posterior, Draws)
    found = evaluate(posterior, test, target_scale=units).metrics
    health = mixing(diagnose(posterior, test.inputs, log=log, burn_in=problem.hmc.burn_in))
    return {**{key: found[key] for key in METRICS if key in found}, "chains": health}
