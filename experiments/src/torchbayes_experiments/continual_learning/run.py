"""One seed of `continual_learning`: every kind on both sequences of tasks."""

from __future__ import annotations

import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes import networks
from torchbayes.data import load
from torchbayes.data.base import Data, Pair
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors.problems import ProblemWarning
from torchbayes.sequences.learning import sequence
from torchbayes.sequences.tasks import Task
from torchbayes_experiments.continual_learning.recipe import KINDS, PERMUTED, SPLIT, ContinualRecipe, Scenario
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.streams import Purpose, generator


def run(recipe: ContinualRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run one seed.

    Args:
        recipe: the settings.
        seed: of pixels' orders, of the rows, and of all fits.
        directory: where every kind is kept.

    Returns:
        Scenario -> kind -> `accuracy`, the matrix (T, T) with None where it is not taken; `backward`, `forward` and
        `seconds`.
    """
    found: dict[str, Any] = {}
    for name, scenario in ((PERMUTED, recipe.permuted), (SPLIT, recipe.split)):
        data = load(recipe.data)
        tasks = permuted(data, scenario, seed) if name == PERMUTED else split(data, scenario, seed)
        found[name] = {}
        for number, kind in enumerate(KINDS):
            home = directory / f"{name}_{number}"
            found[name][kind] = load_or_compute(
                home / "results.json", lambda k=kind, h=home, t=tasks, s=scenario: _one(recipe, s, t, k, seed, h)
            )
    return found


def _one(
    recipe: ContinualRecipe, scenario: Scenario, tasks: list[Task], kind: str, seed: int, home: Path
) -> dict[str, Any]:
    method, more = recipe.sequence(kind, scenario)
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProblemWarning)  # forgetting is what is measured
        learned = sequence(model_of(recipe, scenario, tasks), tasks, method, seed=seed, **more)
    accuracy = [[None if math.isnan(v) else v for v in row] for row in learned.scores["accuracy"].tolist()]
    return {
        "accuracy": accuracy,
        "backward": learned.backward_transfer("accuracy"),
        "forward": learned.forward_transfer("accuracy"),
        "seconds": round(time.monotonic() - began, 1),
    }


def model_of(recipe: ContinualRecipe, scenario: Scenario, tasks: list[Task]) -> Model:
    """Return the network with its prior: one head for all tasks, or where rows name their head, one for each."""
    inputs = tasks[0].train[0]
    prior = Normal(recipe.prior_scale)
    if isinstance(inputs, Tensor):
        return Model(networks.mlp(inputs[0].numel(), 10, hidden=scenario.hidden), Categorical(), prior)
    *inner, last = scenario.hidden
    body = nn.Sequential(networks.mlp(inputs[0][0].numel(), last, hidden=inner), nn.ReLU())
    return Model(networks.MultiHead(body, [nn.Linear(last, 2) for _ in tasks]), Categorical(), prior)


def permuted(data: Data, scenario: Scenario, seed: int) -> list[Task]:
    """Return tasks of all classes, each with the pixels in an order of its own, the first as they are."""
    parts = [_few(part, scenario, seed, n) for n, part in enumerate((data.train, data.test))]
    pixels = parts[0].inputs.flatten(1).shape[1]
    tasks = []
    for t in range(scenario.tasks):
        order = torch.randperm(pixels, generator=generator(Purpose.PIXELS, seed, t)) if t else torch.arange(pixels)
        train, test = (Pair(part.inputs.flatten(1)[:, order], part.targets) for part in parts)
        tasks.append(Task(train, test))
    return tasks


def split(data: Data, scenario: Scenario, seed: int) -> list[Task]:
    """Return tasks of two classes, each with its own head: 0 or 1, 2 or 3, and so on."""
    tasks = []
    for t in range(scenario.tasks):
        parts = []
        for n, part in enumerate((data.train, data.test)):
            own = (part.targets // 2 == t).nonzero()[:, 0]
            mine = _few(Pair(part.inputs[own].flatten(1), part.targets[own] % 2), scenario, seed, n)
            parts.append(networks.for_head(tuple(mine), t))
        tasks.append(Task(*parts))
    return tasks


def _few(part: Pair, scenario: Scenario, seed: int, number: int) -> Pair:
    """Return some rows of the training (0) or test (1) part: drawn for training, the first ones of the test."""
    count = (scenario.train_size, scenario.test_size)[number]
    if count is None or count >= len(part.targets):
        return part
    rows = torch.arange(count)
    if number == 0:
        rows = torch.randperm(len(part.targets), generator=generator(Purpose.TASK_ROWS, seed))[:count]
    return Pair(part.inputs[rows], part.targets[rows])
