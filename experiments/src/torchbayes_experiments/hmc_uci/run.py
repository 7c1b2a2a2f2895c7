"""What `hmc_uci` computes for one seed: SGD, SGLD and HMC scored on every split of every set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from torchbayes import networks
from torchbayes.assess.diagnose import Diagnosis, diagnose
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.methods.sampler import Sampler
from torchbayes.model import Model
from torchbayes.model.likelihoods import HeteroscedasticGaussian
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Draws, Point, Posterior
from torchbayes.selection import fit
from torchbayes_experiments.hmc_uci.recipe import METRICS, UCIChainsRecipe
from torchbayes_experiments.shared.uci_splits import over_splits


def run(recipe: UCIChainsRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run every split of every set; each writes a file, so that an interrupted run continues with the next.

    Args:
        recipe: the settings.
        seed: of starts, data orders and noise on every split.
        directory: of this seed.

    Returns:
        set -> method -> metric -> one value per split; of `rhat`, one value per test row of a split.
    """
    return over_splits(split_scores, recipe, seed=seed, directory=directory)


def split_scores(recipe: UCIChainsRecipe, name: str, split: int, *, seed: int) -> dict[str, dict[str, Any]]:
    """Fit and score all methods on one split.

    Args:
        recipe: the settings.
        name: one of its sets.
        split: which split of the set.
        seed: seed of the fits.

    Returns:
        method -> metric -> value, in the target's units. `SGD` is the mean over networks, each alone.
    """
    data = load(f"uci_{name}", split=split)
    place = recipe.sets.index(name)
    network = networks.mlp(data.input_shape, 2, hidden=(recipe.width,))
    model = Model(network, HeteroscedasticGaussian(recipe.noise_floor), Normal(recipe.prior_scale[place]))
    assert data.target_standardise is not None
    scale = float(data.target_standardise.scale)

    def score(posterior: Posterior) -> dict[str, float]:
        found = evaluate(posterior, data.test, target_scale=scale).metrics
        return {"log_likelihood": -found["nll"], "rmse": found["rmse"]}

    def sampled(method: Sampler) -> dict[str, Any]:
        records: list[dict[str, Any]] = []
        log = (lambda event: records.append(event.record),)
        posterior = fit(model, data.train, method, start=weights_MD[: recipe.chains], seed=seed, callbacks=log)
        assert isinstance(posterior, Draws)
        found = diagnose(posterior, data.test.inputs, log=records, burn_in=method.burn_in)
        return score(posterior) | _health(found)

    weights_MD = fit(model, data.train, recipe.sgd(recipe.lr[place]), seed=seed, callbacks=()).sample(recipe.members)
    alone = [score(Point(model, weights_D[None])) for weights_D in weights_MD]
    return {
        "SGD": {metric: float(np.mean([one[metric] for one in alone])) for metric in METRICS},
        "SGLD": sampled(recipe.sgld(recipe.sgld_step[place])),
        "HMC": sampled(recipe.hmc()),
    }


def _health(found: Diagnosis) -> dict[str, Any]:
    """Return the diagnostics of the chains of one split."""
    means, record = found.spaces["means"], found.record
    health: dict[str, Any] = {
        "rhat": means.rhat.flatten().tolist(),
        "ess": float(means.ess_bulk.median()),
        "rhat_weights": float(found.spaces["weights"].rhat.median()),
    }
    if record is not None and record.acceptance_M is not None and record.divergences_M is not None:
        assert record.step_size_M is not None
        health["acceptance"] = float(record.acceptance_M.mean())
        health["divergences"] = int(record.divergences_M.sum())
        health["step_size"] = float(record.step_size_M.mean())
        health["leapfrogs"] = float((record.gradients_M + record.burn_in_gradients_M).sum())
    return health
