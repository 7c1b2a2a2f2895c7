"""What `hmc_mnist` computes for one seed: chains under two priors, scored beside networks trained to the mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torchbayes import networks
from torchbayes.data import Data, Pair, load
from torchbayes.driver.log import read_log
from torchbayes.driver.progress import Event, progress_bar
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Draws, Point, Posterior
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.hmc_mnist.recipe import MNISTChainRecipe
from torchbayes_experiments.shared.classifiers import METRICS, metrics_of

CHAIN = ("log_density", "log_likelihood", "acceptance", "seconds", "gradients")


def run(recipe: MNISTChainRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Sample until the time is up, and score the average beside a network trained to the mode.

    An interrupted run continues until the minutes of sampling, summed over all calls, are used up.

    Args:
        recipe: the settings.
        seed: seed of starts and momenta; the images are the same for every seed.
        directory: of this seed; the chain resumes there.

    Returns:
        `chain`: what every iteration logged; `left_out`: number of iterations that are burn-in; `prior_mean`: mean of
        the log density under the prior; `each`: metric -> value of the draw of every iteration, alone; `running`:
        metric -> value of the average of the first draws after burn-in, by their number; `scores`: single, draw or
        average -> metric -> value. `narrow` holds the same for the narrower prior.
    """
    data = load(recipe.data, train_size=recipe.train_size)
    network = networks.mlp(data.input_shape, data.num_classes, hidden=recipe.hidden)
    model = Model(network, Categorical(), Normal(recipe.prior_scale))
    draws = sample(recipe, model, data.train, seed=seed, directory=directory / "hmc")
    found = _scored(recipe, draws, data, read_log(directory / "hmc"), seed=seed)

    model = Model(network, Categorical(), Normal(recipe.narrow_scale))
    home = directory / "narrow"
    draws = fit(model, data.train, recipe.narrow(), seed=seed, directory=home, resume=True)
    return found | {"narrow": _scored(recipe, draws, data, read_log(home), seed=seed)}


def _scored(
    recipe: MNISTChainRecipe, draws: Posterior, data: Data, records: Sequence[Mapping[str, Any]], *, seed: int
) -> dict[str, Any]:
    """Return the log of a chain, and the scores of its draws, of their average and of networks at the mode."""
    left_out = min(int(recipe.burn_in * len(records)), len(records) - 1)
    inputs, targets = (part[: recipe.test_rows] for part in data.test)
    each = predict(draws, inputs)
    every = [metrics_of(replace(each, outputs_SBK=each.outputs_SBK[i : i + 1]), targets) for i in range(len(records))]
    kept = each.outputs_SBK[left_out:]
    running = [metrics_of(replace(each, outputs_SBK=kept[:count]), targets) for count in range(1, len(kept) + 1)]
    modes = fit(draws.model, data.train, recipe.single(), seed=seed, callbacks=())
    alone = [metrics_of(predict(Point(draws.model, w[None]), inputs), targets) for w in modes.sample(recipe.members)]
    return {
        "chain": {name: [float(np.ravel(record[name])[0]) for record in records] for name in CHAIN},
        "left_out": left_out,
        "prior_mean": _prior_mean(draws.model),
        "each": _columns(every),
        "running": _columns(running),
        "scores": {"single": _mean(alone), "draw": _mean(every[left_out:]), "average": running[-1]},
    }


def _prior_mean(model: Model) -> float:
    """Return E log p(w) of weights drawn from a normal prior, −Σ_d (½ + log σ_d √2π)."""
    return -float((0.5 + model.prior.stds().log() + 0.5 * math.log(2 * math.pi)).sum())


def sample(recipe: MNISTChainRecipe, model: Model, train: Pair, *, seed: int, directory: Path) -> Draws:
    """Start or continue the chain, until its minutes or its iterations are used up.

    Args:
        recipe: the settings.
        model: the model.
        train: training images and labels.
        seed: seed of start and momenta.
        directory: run directory of the chain.

    Returns:
        A draw for every iteration.
    """
    method = recipe.chain()

    def time_is_up(_event: Event | None = None) -> bool:
        return sum(record["seconds"] for record in read_log(directory)) >= 60 * recipe.minutes

    done = len(read_log(directory))
    steps = done if done and time_is_up() else None  # a chain whose time is used up gets no further iteration
    with progress_bar(method, done, recipe.iterations) as bar:
        draws = fit(
            model,
            train,
            method,
            seed=seed,
            directory=directory,
            resume=True,
            steps=steps,
            callbacks=(bar, time_is_up),
        )
    assert isinstance(draws, Draws)
    return draws


def _mean(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([one[key] for one in scores])) for key in METRICS}


def _columns(scores: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {key: [one[key] for one in scores] for key in METRICS}
