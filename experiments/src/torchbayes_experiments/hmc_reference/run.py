"""What `hmc_reference` computes for one seed: every posterior on every problem, and its scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.schedules import epochs_of
from torchbayes.metrics.temperature import fit_temperature
from torchbayes.posteriors import Posterior
from torchbayes.selection import fit
from torchbayes_experiments.hmc_reference.recipe import ReferenceRecipe
from torchbayes_experiments.shared.fidelity import closeness, log_probabilities, mixture, quality
from torchbayes_experiments.shared.image_hmc import Problem, Setup, mixing, over_problems, run_hmc, set_up


def run(recipe: ReferenceRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit and score everything on every problem.

    Args:
        recipe: the settings.
        seed: of the training rows, and of all fits.
        directory: of this seed; the numbers of finished problems are read, interrupted fits continue.

    Returns:
        problem -> `methods` (see `scores`), `chains` (see `mixing`) and `passes`: method -> passes over the
        data of all its members or chains together.
    """
    return over_problems(
        recipe.problems(),
        lambda problem, home: _on_problem(recipe, problem, seed, home=home),
        home=directory,
        file="scores.json",
    )


def _on_problem(recipe: ReferenceRecipe, problem: Problem, seed: int, *, home: Path) -> dict[str, Any]:
    setup = set_up(problem, seed)
    hmc, found = run_hmc(problem, setup, seed=seed, directory=home / "hmc")
    posteriors: dict[str, Posterior] = {"HMC": hmc}
    passes: dict[str, float] = {}
    if found.record is not None:
        passes["HMC"] = float((found.record.gradients_M + found.record.burn_in_gradients_M).sum())
    for name, method in recipe.methods().items():
        place = home / name.replace(" ", "_").lower()
        posteriors[name] = fit(setup.model, setup.train, method, seed=seed, directory=place, resume=True)
        passes[name] = passes_of(method, len(setup.train.targets))
    return {"methods": scores(posteriors, setup), "chains": mixing(found), "passes": passes}


def passes_of(method: MAP | Sampler, rows: int) -> float:
    """Return the number of passes over the data that a method makes with all its members or chains.

    Args:
        method: a method on minibatches.
        rows: N.

    Returns:
        The number of passes.
    """
    if isinstance(method, MAP):
        return float(method.members * epochs_of(method.epochs, -(-rows // method.batch_size)))
    return method.members * method.steps * min(1.0, (method.batch_size or rows) / rows)


def scores(posteriors: Mapping[str, Posterior], setup: Setup) -> dict[str, dict[str, dict[str, float]]]:
    """Return the metrics of every method on the test rows.

    Args:
        posteriors: method -> its posterior; "HMC" is the reference.
        setup: with test rows, and spare rows for temperatures.

    Returns:
        method -> `all` (the average over all members or chains) and `one` (the mean of the metrics of each alone) ->
        the metrics of `quality`, `scaled` and `closeness`. Closeness is to all chains of HMC. For HMC itself, `one` has
        the closeness of each chain to the average of the others, and `all` has none.
    """
    test = {name: log_probabilities(posterior, setup.test.inputs) for name, posterior in posteriors.items()}
    spare = {name: log_probabilities(posterior, setup.spare.inputs) for name, posterior in posteriors.items()}
    reference = mixture(test["HMC"])
    found = {}
    for name, log_probs_MBK in test.items():
        pairs = list(zip(log_probs_MBK, spare[name], strict=True))
        ones = [quality(here, setup.test.targets) | scaled(here, there, setup) for here, there in pairs]
        both = mixture(log_probs_MBK), mixture(spare[name])
        together = quality(both[0], setup.test.targets) | scaled(*both, setup)
        if name != "HMC":
            together |= closeness(both[0], reference)
        for member in range(len(ones)):
            others = log_probs_MBK[torch.arange(len(ones)) != member]
            ones[member] |= closeness(log_probs_MBK[member], mixture(others) if name == "HMC" else reference)
        found[name] = {"all": together, "one": {key: sum(o[key] for o in ones) / len(ones) for key in ones[0]}}
    return found


def scaled(log_probs: Tensor, spare: Tensor, setup: Setup) -> dict[str, float]:
    """Return the NLL after temperature scaling.

    Args:
        log_probs: of the test rows, (B, K).
        spare: of the spare rows, on which the temperature is fitted.
        setup: with the targets of both.

    Returns:
        `temperature`, above 1 if the probabilities are over-confident, and `nll_scaled`, of
        softmax(log p / temperature).
    """
    floor = math.log(1e-30)  # a point mass may give a class probability zero
    temperature = fit_temperature(spare.clamp_min(floor), setup.spare.targets.cpu())
    sharp = (log_probs.clamp_min(floor) / temperature).log_softmax(-1)
    return {"temperature": temperature, "nll_scaled": quality(sharp, setup.test.targets)["nll"]}
