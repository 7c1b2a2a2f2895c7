"""Occam's razor by the evidence: width and prior scale of a network for regression (MacKay 1992, Immer et al. 2021).

    log p(D) ≈ log p(D|w*) + log [ p(w*) (2π)^{D/2} det(P)^{−1/2} ]

The second term is the logarithm of the Occam factor, the share of the prior's volume that the data leave. Every network
is trained to a mode under its own prior. Its noise scale is the one with the highest evidence: `tune` proposes one at
the mode, the network is trained anew, and the step is halved where the evidence has not risen: at the new mode the
curvature is another, which `tune` cannot know. The evidence is that of one mode; log(2^H H!) for its mirror images is
shown beside it. What is said of the prior does not depend on it, what is said of the width does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load, num_splits
from torchbayes.experiments.evidence_occam.report import findings
from torchbayes.experiments.experiment import Experiment, Findings, as_json
from torchbayes.experiments.shared.modes import Pair, climb_regression, laplace, log_symmetries
from torchbayes.methods.laplace.tuning import tune
from torchbayes.model import Model
from torchbayes.model.likelihoods import Gaussian
from torchbayes.model.priors.univariate import Normal
from torchbayes.native.seeds import Purpose, mix
from torchbayes.posteriors import LaplacePosterior
from torchbayes.posteriors.files import read_json, write_whole
from torchbayes.predictive.linearised import Linearised

_SMALLEST = 0.05  # step of the log noise scale that is no longer taken


@dataclass(frozen=True)
class Recipe:
    """The grid, and how long each of its networks is trained.

    Attributes:
        data: a set of UCI regression; seed s takes its split s.
        widths: hidden tanh units, rising.
        starts: fresh networks tried at each point, one number for each width; that of the highest evidence is taken.
            Narrow networks have many poor modes, and cost little.
        scales: standard deviations of every weight's normal prior, rising.
        noise: noise scale to begin with, in standard deviations of the targets.
        rounds: noise scales tried, at most.
        steps: of each climb, at most.
        tolerance: a climb ends where a Gauss-Newton step promises less, in nats.
    """

    data: str = "uci_energy"
    widths: tuple[int, ...] = (2, 5, 10, 20, 50)
    starts: tuple[int, ...] = (8, 6, 4, 2, 1)
    scales: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    noise: float = 0.3
    rounds: int = 8
    steps: int = 200
    tolerance: float = 0.05


@dataclass(frozen=True)
class Fitted:
    """A network at a mode under a prior and a noise scale.

    Attributes:
        posterior: Laplace, with a dense precision.
        noise: scale, in standard deviations of the targets.
        promise: what a Gauss-Newton step would still gain, in nats.
        is_mode: False where the posterior says that it is not at a mode.
    """

    posterior: LaplacePosterior
    noise: float
    promise: float
    is_mode: bool

    @property
    def log_evidence(self) -> float:
        """Of the one mode, in nats."""
        return float(self.posterior.log_evidence()[0])


def run(recipe: Recipe, seed: int, directory: Path) -> dict[str, Any]:
    """Train and score every network of the grid.

    Args:
        recipe: the settings.
        seed: of the split and the starts.
        directory: of this seed; each width leaves a file, and is read if that is there.

    Returns:
        `widths`, `scales`, and for each number that `scores` returns its values on the grid, (widths, scales).
    """
    data = load(recipe.data, split=seed % num_splits(recipe.data))
    train, test = ((pair.inputs.double(), pair.targets.double()) for pair in (data.train, data.test))
    rows = []
    for width in recipe.widths:
        path = directory / f"width_{width}.json"
        if not path.exists():
            start = mix(Purpose.GRID, seed, width)
            fits = [best_noise(recipe, train, width=width, scale=scale, seed=start) for scale in recipe.scales]
            write_whole(path, as_json({"scores": [scores(fitted, test) for fitted in fits]}))
        rows.append(read_json(path)["scores"])
    numbers = {key: [[one[key] for one in row] for row in rows] for key in rows[0][0]}
    return {"widths": list(recipe.widths), "scales": list(recipe.scales), **numbers}


def best_start(recipe: Recipe, data: Pair, *, width: int, scale: float, seed: int) -> Fitted:
    """Return the network with the highest evidence of those from several starts; arguments as of `best_noise`."""
    count = recipe.starts[recipe.widths.index(width)]
    seeds = (mix(Purpose.GRID_STARTS, seed, width, start) for start in range(count))
    fits = (best_noise(recipe, data, width=width, scale=scale, seed=own) for own in seeds)
    return max(fits, key=lambda fitted: fitted.log_evidence)


def best_noise(recipe: Recipe, data: Pair, *, width: int, scale: float, seed: int) -> Fitted:
    """Return a network at a mode, under the noise scale with the highest evidence that was met.

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


def _at_mode(recipe: Recipe, model: Model, data: Pair, *, start_D: Tensor) -> Fitted:
    mode, promise = climb_regression(model, data, start_D, steps=recipe.steps, tolerance=recipe.tolerance)
    posterior, is_mode = laplace(model, data, mode)
    return Fitted(posterior, float(model.likelihood.scale), promise, is_mode)  # type: ignore[attr-defined]


def _proposed(fitted: Fitted) -> float:
    """Return the step of the log noise scale to where the evidence is highest at this mode, a factor of 2 at most."""
    tuned = tune(fitted.posterior, prior="model", noise=True)
    return float(np.clip(math.log(tuned.noise_scale), -math.log(2), math.log(2)))


def scores(fitted: Fitted, test: Pair) -> dict[str, float]:
    """Return what is known of one network.

    Args:
        fitted: the network.
        test: inputs and targets.

    Returns:
        `log_evidence` of one mode and `log_likelihood` at it; `symmetries`, log(2^H H!); `train_nll` at the mode, and
        `test_nll` and `test_rmse` of the linearised predictive, each per row; `effective`, the number of weights that
        the data fix, Σ (1 − Σ_ii / s²) (MacKay 1992); `noise`; `promise`; `is_mode`. Targets are standardised.
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


def summarise(results: Sequence[Mapping[str, Any]]) -> Findings:
    """Turn the seeds' grids into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    return findings([{name: np.array(values, dtype=np.float64) for name, values in r.items()} for r in results])


PAPER = Recipe(widths=(2, 5, 10, 20, 50, 100, 200, 400), starts=(20, 20, 20, 20, 10, 5, 3, 3), rounds=12, steps=1000)

EXPERIMENT = Experiment(
    name="evidence_occam",
    claim="The Laplace evidence of a network has a maximum inside the range of prior scales, and the scale it chooses "
    "predicts about as well as the best; with width the likelihood rises and the Occam factor falls.",
    source="MacKay 1992, A practical Bayesian framework for backpropagation networks; Immer, Bauer, Fortuin, Rätsch "
    "and Khan 2021, Scalable marginal likelihood estimation for model selection in deep learning",
    expected="Evidence and test error go together over priors and widths, and the evidence of networks larger than the "
    "data need falls or levels off while their training error goes on falling (figures of both papers; other "
    "data).",
    differences="UCI energy in the place of a robot arm or images; one prior scale for all weights; modes by damped "
    "Gauss-Newton steps and dense precisions, where Immer et al. optimise the prior during training with Kronecker "
    "factors.",
    recipes={"small": Recipe(), "paper": PAPER},
    cost={
        "small": "about three minutes on one core",
        "paper": "more widths and longer climbs, as no paper has these data: some hours on one core (an estimate)",
    },
    run=run,
    summarise=summarise,
)
