"""What `evidence_occam` computes for one seed: a network at a mode for every width and prior scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load, num_splits
from torchbayes.methods.laplace.tuning import tune
from torchbayes.model import Model
from torchbayes.model.likelihoods import Gaussian
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import LaplacePosterior
from torchbayes.predictive.linearised import Linearised
from torchbayes_experiments.evidence_occam.recipe import OccamRecipe
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.modes import Pair, climb_regression, laplace, log_symmetries
from torchbayes_experiments.streams import Purpose, mix

_SMALLEST = 0.05  # a smaller step of the log noise scale is not taken


@dataclass(frozen=True)
class Fitted:
    """A network at a mode under a prior and a noise scale.

    Attributes:
        posterior: Laplace, with a dense precision.
        noise: scale, in standard deviations of the targets.
        promise: predicted gain of a further Gauss-Newton step, in nats.
        is_mode: False if the posterior reports that it is not at a mode.
    """

    posterior: LaplacePosterior
    noise: float
    promise: float
    is_mode: bool

    @property
    def log_evidence(self) -> float:
        """Log evidence of the one mode, in nats."""
        return float(self.posterior.log_evidence()[0])


def run(recipe: OccamRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Train and score every network of the grid.

    Args:
        recipe: the settings.
        seed: of the split and the starts.
        directory: of this seed; every width leaves a file, which is read if it is there.

    Returns:
        `widths`, `scales`, and for each number that `scores` returns its values on the grid, (widths, scales).
    """
    data = load(recipe.data, split=seed % num_splits(recipe.data))
    train, test = ((pair.inputs.double(), pair.targets.double()) for pair in (data.train, data.test))

    def compute(width: int) -> dict[str, Any]:
        start = mix(Purpose.GRID, seed, width)
        fits = [best_noise(recipe, train, width=width, scale=scale, seed=start) for scale in recipe.scales]
        return {"scores": [scores(fitted, test) for fitted in fits]}

    rows = [
        load_or_compute(directory / f"width_{width}.json", partial(compute, width))["scores"] for width in recipe.widths
    ]
    numbers = {key: [[one[key] for one in row] for row in rows] for key in rows[0][0]}
    return {"widths": list(recipe.widths), "scales": list(recipe.scales), **numbers}


def best_noise(recipe: OccamRecipe, data: Pair, *, width: int, scale: float, seed: int) -> Fitted:
    """Return a network at a mode, under the noise scale with the highest evidence among those tried.

    Args:
        recipe: the settings.
        data: inputs and targets.
        width: hidden units.
        scale: of the prior.
        seed: of the start, the same for every scale.

    Returns:
        The network.
    """
    model = _model(width, scale, recipe.noise, features=data[0].shape[1])
    best = _at_mode(recipe, model, data, start_D=model.starting_weights([seed])[0][0])
    step = _proposed(best)
    for _ in range(recipe.rounds - 1):
        if abs(step) < _SMALLEST:
            break
        model = _model(width, scale, best.noise * math.exp(step), features=data[0].shape[1])
        tried = _at_mode(recipe, model, data, start_D=best.posterior.mean_MD[0])
        if tried.log_evidence > best.log_evidence:
            best, step = tried, _proposed(tried)
        else:
            step /= 2
    return best


def _model(width: int, scale: float, noise: float, *, features: int) -> Model:
    network = networks.mlp(features, 1, hidden=(width,), activation="tanh").double()
    return Model(network, Gaussian(noise), Normal(scale))


def _at_mode(recipe: OccamRecipe, model: Model, data: Pair, *, start_D: Tensor) -> Fitted:
    mode, promise = climb_regression(model, data, start_D, steps=recipe.steps, tolerance=recipe.tolerance)
    posterior, is_mode = laplace(model, data, mode)
    return Fitted(posterior, float(model.likelihood.scale), promise, is_mode)  # type: ignore[attr-defined]


def _proposed(fitted: Fitted) -> float:
    """Return the step of the log noise scale that maximises the evidence at this mode, at most a factor of 2."""
    tuned = tune(fitted.posterior, prior="model", noise=True)
    return float(np.clip(math.log(tuned.noise_scale), -math.log(2), math.log(2)))


def scores(fitted: Fitted, test: Pair) -> dict[str, float]:
    """Return the numbers of one network.

    Args:
        fitted: the network.
        test: inputs and targets.

    Returns:
        `log_evidence` of one mode and `log_likelihood` at it; `symmetries`, log(2^H H!); `train_nll` at the mode, and
        `test_nll` and `test_rmse` of the linearised predictive, each per row; `effective`, the number of weights that
        the data determine, Σ (1 − Σ_ii / s²) (MacKay 1992); `noise`; `promise`; `is_mode`. Targets are standardised.
    """
    posterior = fitted.posterior
    found = evaluate(Linearised(posterior), test).metrics
    log_likelihood = float(posterior.log_likelihood_M[0])
    kept = posterior.gaussian.covariance.diagonal()[0] / posterior.model.prior.stds().square().to(torch.float64)
    return {
        "log_evidence": fitted.log_evidence,
        "log_likelihood": log_likelihood,
        "symmetries": log_symmetries(posterior.model.layout.sizes[1]),
        "train_nll": -log_likelihood / posterior.num_data,
        "test_nll": found["nll"],
        "test_rmse": found["rmse"],
        "effective": float((1 - kept).sum()),
        "noise": fitted.noise,
        "promise": fitted.promise,
        "is_mode": float(fitted.is_mode),
    }
