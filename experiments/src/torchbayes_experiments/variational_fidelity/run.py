"""What `variational_fidelity` computes for one seed: every posterior on every problem, and its distance from HMC."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.diagnose import diagnose
from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes.model import Model
from torchbayes.model.likelihoods import Gaussian, Likelihood
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Draws, Posterior
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import best_device
from torchbayes_experiments.shared.fidelity import closeness, log_probabilities, members_of, mixture, quality
from torchbayes_experiments.shared.image_hmc import (
    Problem,
    by_label,
    convergence,
    over_problems,
    rhat_and_ess,
    run_hmc,
    set_up,
)
from torchbayes_experiments.variational_fidelity.recipe import DROPOUT, ENSEMBLE, Curve, FidelityRecipe, Methods

HMC_NAME = "HMC"

Scores = dict[str, dict[str, dict[str, float]]]


def run(recipe: FidelityRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit and score everything on every problem.

    Args:
        recipe: the settings.
        seed: of the training rows of images, and of all fits.
        directory: of this seed; the numbers of finished problems are read, interrupted fits continue.

    Returns:
        problem -> `methods` (see `scores`), and `share` of the test predictions whose R-hat by HMC is below 1.1.
    """
    found: dict[str, Any] = {}
    if recipe.curve is not None:
        home, curve = directory / "curve", recipe.curve
        home.mkdir(parents=True, exist_ok=True)
        found[curve.label] = load_or_compute(
            home / "scores.json", lambda: _on_curve(recipe, curve, seed=seed, home=home)
        )
    images = by_label(recipe.digits, recipe.noisy, recipe.mnist)
    return found | over_problems(
        images,
        lambda problem, home: _on_images(recipe, problem, seed=seed, home=home),
        home=directory,
        file="scores.json",
    )


def scores(values: Mapping[str, Sequence[Any]], *, mixed: Callable[..., Any], measured: Callable[..., Any]) -> Scores:
    """Return the metrics of every method: those of all its members together, and the mean over each alone.

    Args:
        values: method -> what its members or chains predict; "HMC" is the reference.
        mixed: (predictions of some members) -> that of their mixture.
        measured: (prediction, reference or None) -> metric -> value.

    Returns:
        method -> `all` and `one` -> metric -> value. Distances are to all of HMC; each chain of HMC is compared with
        the others, and all of it with nothing.
    """
    reference = mixed(values[HMC_NAME])
    found: Scores = {}
    for name, of_each in values.items():
        is_hmc = name == HMC_NAME
        together = measured(mixed(of_each), None if is_hmc else reference)
        ones = []
        for member, alone in enumerate(of_each):
            others = [one for other, one in enumerate(of_each) if other != member]
            ones.append(measured(alone, mixed(others) if is_hmc else reference))
        found[name] = {"all": together, "one": {key: sum(one[key] for one in ones) / len(ones) for key in ones[0]}}
    return found


# --- images


def _on_images(recipe: FidelityRecipe, problem: Problem, *, seed: int, home: Path) -> dict[str, Any]:
    setup = set_up(problem, seed)
    hmc, mixing = run_hmc(problem, setup, seed=seed, directory=home / "hmc")
    sizes = tuple(setup.train.inputs.shape[1:]), load(problem.data).num_classes
    dropped = partial(with_dropout, *sizes, setup.model.likelihood, rate=recipe.methods.rate, of=problem)
    posteriors = _fitted(recipe.methods, setup.model, dropped, setup.train, seed=seed, home=home)

    def measured(log_probs_BK: Tensor, reference_BK: Tensor | None) -> dict[str, float]:
        near = {} if reference_BK is None else closeness(log_probs_BK, reference_BK)
        return quality(log_probs_BK, setup.test.targets) | near

    values = {
        name: list(log_probabilities(posterior, setup.test.inputs, draws=_draws(recipe, name)))
        for name, posterior in {HMC_NAME: hmc, **posteriors}.items()
    }
    found = scores(values, mixed=lambda some: mixture(torch.stack(list(some))), measured=measured)
    return {"methods": found, "share": convergence(*rhat_and_ess(mixing, "functions"))["share"]}


# --- the curve


def _on_curve(recipe: FidelityRecipe, curve: Curve, *, seed: int, home: Path) -> dict[str, Any]:
    data = load("toy_izmailov")
    train, test = (Pair(features(part.inputs), part.targets) for part in (data.train, data.test))
    likelihood = Gaussian(curve.noise_scale)
    model = Model(networks.mlp((2,), 1, hidden=curve.hidden), likelihood, Normal(curve.prior_scale))
    dropped = partial(with_dropout, (2,), 1, likelihood, rate=curve.methods.rate, of=curve)
    hmc = fit(model, train, curve.hmc, seed=seed, directory=home / "hmc", resume=True)
    assert isinstance(hmc, Draws)
    mixing = diagnose(hmc, test.inputs, log=home / "hmc")
    posteriors = _fitted(curve.methods, model, dropped, train, seed=seed, home=home)
    lines = {
        name: [
            predict(one, test.inputs).outputs_SBK.squeeze(-1).double()
            for one in members_of(posterior, draws=_draws(recipe, name))
        ]
        for name, posterior in {HMC_NAME: hmc, **posteriors}.items()
    }

    def measured(means_SB: Tensor, reference_SB: Tensor | None) -> dict[str, float]:
        near = {}
        if reference_SB is not None:
            near = {"wasserstein": wasserstein(means_SB, reference_SB, noise_scale=curve.noise_scale)}
        return near | {"spread": float(means_SB.std(0, correction=0).mean())}

    found = scores(lines, mixed=lambda some: torch.cat(list(some)), measured=measured)
    return {"methods": found, "share": convergence(*rhat_and_ess(mixing, "functions"))["share"]}


def features(inputs: Tensor) -> Tensor:
    """Return x and x² − 1, of standardised inputs x (B, 1), as (B, 2)."""
    return torch.cat([inputs, inputs.square() - 1], dim=-1)


def wasserstein(means_SB: Tensor, means_TB: Tensor, *, noise_scale: float) -> float:
    r"""Return the Wasserstein distance W₁ of two predictive distributions, the mean over B inputs.

    Each is a mixture of normals N(m_s, σ²) in equal parts, and W₁ = ∫ |F(y) − G(y)| dy. Means are divided between the
    two next points of a grid of spacing σ/40, which keeps their average, so that the distribution functions of all
    inputs are one product of matrices; the integral is a sum over the grid.

    Args:
        means_SB: m of the one.
        means_TB: m of the other.
        noise_scale: σ.

    Returns:
        The distance in the units of the targets.
    """
    spacing = noise_scale / 40
    low = float(torch.minimum(means_SB.min(), means_TB.min())) - 6 * noise_scale
    high = float(torch.maximum(means_SB.max(), means_TB.max())) + 6 * noise_scale
    grid_G = low + spacing * torch.arange(int((high - low) / spacing) + 2, dtype=torch.float64)
    kernel_GG = torch.special.ndtr((grid_G[:, None] - grid_G) / noise_scale)

    def shares(means_SB: Tensor) -> Tensor:
        place_SB = (means_SB - low) / spacing
        left_SB = place_SB.floor().long()
        found_GB = torch.zeros(len(grid_G), means_SB.shape[1], dtype=torch.float64)
        found_GB.scatter_add_(0, left_SB, 1 - (place_SB - left_SB)).scatter_add_(0, left_SB + 1, place_SB - left_SB)
        return found_GB / len(means_SB)

    difference_GB = kernel_GG @ (shares(means_SB) - shares(means_TB))
    return float(difference_GB.abs().sum(0).mean()) * spacing


# --- both


def with_dropout(
    shape: tuple[int, ...], outputs: int, likelihood: Likelihood, *, rate: float, of: Problem | Curve
) -> Model:
    """Return the model of a problem with dropout after each hidden layer of its perceptron.

    With dropout at rate r, MAP under N(0, s²) maximises the bound under N(0, s²/(1 − r)) for weights on dropped units
    (see `MCDropout`): s² is (1 − r) σ² there, so that the prior of the bound is the one of the other methods.

    Args:
        shape: of one input.
        outputs: K.
        likelihood: p(y | f).
        rate: r.
        of: the problem.
    """
    network = networks.mlp(shape, outputs, hidden=of.hidden, dropout=rate)
    whole, lower = Normal(of.prior_scale), Normal(of.prior_scale * math.sqrt(1 - rate))
    rules = {"1.weight": whole, "*.bias": whole, "*": lower}  # layer 0 makes inputs flat
    return Model(network.to(best_device()), likelihood, rules)


def _fitted(
    methods: Methods, model: Model, dropped: Callable[[], Model], train: Pair, *, seed: int, home: Path
) -> dict[str, Posterior]:
    """Return the posteriors of all methods; interrupted fits continue."""
    found = {}
    for name, method in methods.named().items():
        place = home / name.replace(" ", "_").lower()
        chosen = dropped() if name == DROPOUT else model
        found[name] = fit(chosen, train, method, seed=seed, directory=place, resume=True, callbacks=())
    return found


def _draws(recipe: FidelityRecipe, name: str) -> int:
    """Return how many functions are drawn of each member: of a network one, as there are no others."""
    return 1 if name == ENSEMBLE else recipe.draws
