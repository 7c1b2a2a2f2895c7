"""What `misspecification` computes for one seed: posteriors of many data sets at once, one chain for each."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from torchbayes.density.dynamics import FunctionDensity
from torchbayes.driver.sample import run_chains
from torchbayes.experiments.misspecification.laws import Law, Shape, nearest, slopes
from torchbayes.experiments.misspecification.recipe import BAYES, STUDENT, TEMPERED, MisspecificationRecipe
from torchbayes.experiments.records import load_or_compute
from torchbayes.model.likelihoods import Gaussian, StudentT
from torchbayes.model.priors.univariate import Normal
from torchbayes.native.seeds import Purpose, generator

Z = 1.959963984540054  # of a 95 % interval


def run(recipe: MisspecificationRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Sample the posteriors of all data sets under every law at every size.

    Args:
        recipe: the settings.
        seed: of the data and the chains.
        directory: of this seed; every law at every size leaves a file, so that an interrupted run continues.

    Returns:
        law -> a list over sizes of what `numbers` returns.
    """
    return {
        law.name: [
            load_or_compute(
                directory / f"law_{place}_{size}.json", partial(numbers, recipe, law, size, seed=seed, place=place)
            )
            for size in recipe.sizes
        ]
        for place, law in enumerate(recipe.laws)
    }


def numbers(recipe: MisspecificationRecipe, law: Law, size: int, *, seed: int, place: int) -> dict[str, Any]:
    """Return coverage, width and distances of all posteriors of data sets of one law.

    Args:
        recipe: the settings.
        law: of the data.
        size: N.
        seed: of data and chains.
        place: number of the law, for the streams of its data.

    Returns:
        `size`, `points`; `exact`, the coverage at every point that the sandwich tells for Bayes; `true`, the distance
        of the nearest function from the mean of the law; and posterior -> `coverage` of the nearest function at every
        point, `coverage_true` of the law's mean, `width` of the band, root mean square `distance` of the posterior
        mean from the nearest function and `distance_true` from the law's mean, mean `temperature`, and `moved`, the
        mean acceptance.
    """
    shape, best = recipe.shape(law), nearest(law, recipe.shape(law), recipe.noise)
    source = generator(Purpose.LAW_ROWS, seed, 1000 * place + size)
    x_RN, y_RN = law.draw((recipe.sets, size), recipe.noise, source)
    grid = torch.linspace(-1, 1, recipe.points, dtype=torch.float64)
    target, truth = shape(best.weights_D, grid), law.mean(grid)
    normal, student = Gaussian(recipe.noise), StudentT(recipe.df, recipe.noise)

    def posterior(likelihood: Any, temperature_R: Tensor, number: int) -> tuple[dict[str, Any], Tensor]:
        density = densities(shape, likelihood, (x_RN, y_RN), temperature_R=temperature_R, scale=recipe.prior_scale)
        method = replace(recipe.hmc, chains=recipe.sets)
        start_RD = best.weights_D.expand(recipe.sets, -1).clone()
        chains = run_chains(density, method, start_RD, seed=8 * seed + number, callbacks=())
        functions = shape(chains.weights_MSD, grid.expand(recipe.sets, 1, -1))
        found = judged(functions, target, truth)
        found |= {
            "temperature": float(temperature_R.mean()),
            "moved": float(chains.numbers["acceptance"][:, method.burn_in :].mean()),
        }
        return found, chains.weights_MSD.mean(1)

    ones = torch.ones(recipe.sets, dtype=torch.float64)
    s, t = best.deviations(shape, grid)
    found: dict[str, Any] = {
        "size": size,
        "points": grid.tolist(),
        "exact": torch.erf(Z * s / t / math.sqrt(2)).tolist(),
        "true": float((truth - target).square().mean().sqrt()),
    }
    found[BAYES], centre_RD = posterior(normal, ones, 0)
    fitted_R = temperature(shape, centre_RD, (x_RN, y_RN), noise=recipe.noise)
    found[TEMPERED], _ = posterior(normal, fitted_R, 1)
    if law.outliers:
        found[STUDENT], _ = posterior(student, ones, 2)
    return found


def densities(
    shape: Shape, likelihood: Any, rows: tuple[Tensor, Tensor], *, temperature_R: Tensor, scale: float
) -> FunctionDensity:
    """Return the log posterior densities of R data sets, each a function of its own row of the weights.

    Args:
        shape: of the model.
        likelihood: of one target.
        rows: inputs and targets, (R, N) each.
        temperature_R: by which the log likelihood of each is divided.
        scale: standard deviation of the normal prior.

    Returns:
        A density (R, D) -> (R,).
    """
    x_RN, y_RN = rows
    prior = Normal(scale)

    def log_density(weights_RD: Tensor) -> Tensor:
        outputs = shape(weights_RD, x_RN).unsqueeze(-1)
        fit_R = likelihood.log_prob(outputs, y_RN.unsqueeze(-1)).sum(-1)
        return fit_R / temperature_R + prior.log_prob(weights_RD).sum(-1)

    return FunctionDensity(log_density)


def temperature(shape: Shape, weights_RD: Tensor, rows: tuple[Tensor, Tensor], *, noise: float) -> Tensor:
    """Return T of each data set: the mean over weights of how much wider the sandwich is than the model says.

    T = tr(J⁻¹ K)/D, with J = Σ ∇f ∇fᵀ/σ² and K = Σ (y − f)² ∇f ∇fᵀ/σ⁴ at the posterior mean.

    Args:
        shape: of the model.
        weights_RD: the posterior means.
        rows: inputs and targets, (R, N) each.
        noise: σ.

    Returns:
        Tensor (R,).
    """
    x_RN, y_RN = rows
    slopes_RND = vmap(partial(slopes, shape))(weights_RD, x_RN)
    squares_RN = (y_RN - shape(weights_RD, x_RN)) ** 2 / noise**2
    bend = slopes_RND.mT @ slopes_RND
    score = (slopes_RND * squares_RN.unsqueeze(-1)).mT @ slopes_RND
    return torch.linalg.solve(bend, score).diagonal(dim1=-2, dim2=-1).mean(-1)


def judged(functions_RSG: Tensor, target_G: Tensor, truth_G: Tensor) -> dict[str, Any]:
    """Return coverage, width and distances of bands of ± z standard deviations around the mean.

    Args:
        functions_RSG: drawn from the posterior of each data set, at the points.
        target_G: the nearest function.
        truth_G: the mean of the law.

    Returns:
        Numbers by name: see `numbers`.
    """
    mean_RG, half_RG = functions_RSG.mean(1), Z * functions_RSG.std(1)

    def covered(of_G: Tensor) -> list[float]:
        return ((mean_RG - of_G).abs() <= half_RG).double().mean(0).tolist()

    def distance(of_G: Tensor) -> float:
        return float((mean_RG - of_G).square().mean().sqrt())

    return {
        "coverage": covered(target_G),
        "coverage_true": covered(truth_G),
        "width": float(2 * half_RG.mean()),
        "distance": distance(target_G),
        "distance_true": distance(truth_G),
    }
