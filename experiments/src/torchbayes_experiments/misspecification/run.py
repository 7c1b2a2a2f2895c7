"""What `misspecification` computes for one seed: posteriors of many data sets, in closed form or by quadrature."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.model.likelihoods import StudentT
from torchbayes.model.priors.univariate import Normal
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.misspecification.laws import Law, features, nearest
from torchbayes_experiments.misspecification.recipe import BAYES, STUDENT, TEMPERED, MisspecificationRecipe
from torchbayes_experiments.streams import Purpose, generator

Z = 1.959963984540054  # of a 95 % interval
_REACH = 7.0  # of the quadrature, in standard deviations by the curvature of normal noise
Moments = tuple[Tensor, Tensor]  # mean (R, D) and covariance (R, D, D)


def run(recipe: MisspecificationRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Find the posteriors of all data sets under every law at every size.

    Args:
        recipe: the settings.
        seed: of the data.
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
        seed: of the data.
        place: number of the law, for the stream of its data.

    Returns:
        `size`, `points`; `exact`, the coverage at every point that the sandwich tells for Bayes; `true`, the distance
        of the nearest line from the mean of the law; and posterior -> what `judged` returns, and the mean
        `temperature`.
    """
    best = nearest(law, recipe.noise)
    source = generator(Purpose.LAW_ROWS, seed, 10_000 * place + size)
    rows = law.draw((recipe.sets, size), recipe.noise, source)
    grid = torch.linspace(-1, 1, recipe.points, dtype=torch.float64)
    target, truth = features(grid) @ best.weights_D, law.mean(grid)
    ones = torch.ones(recipe.sets, dtype=torch.float64)
    bayes = normal_posterior(rows, ones, noise=recipe.noise, scale=recipe.prior_scale)
    heat_R = temperature(bayes[0], rows, noise=recipe.noise)
    tempered = normal_posterior(rows, heat_R, noise=recipe.noise, scale=recipe.prior_scale)
    found: dict[str, Any] = {
        "size": size,
        "points": grid.tolist(),
        "exact": torch.erf(Z * best.ratio(grid) / 2**0.5).tolist(),
        "true": float((truth - target).square().mean().sqrt()),
        BAYES: judged(bayes, grid, target, truth=truth) | {"temperature": 1.0},
        TEMPERED: judged(tempered, grid, target, truth=truth) | {"temperature": float(heat_R.mean())},
    }
    if law.outliers:
        student = student_posterior(rows, bayes, recipe=recipe)
        found[STUDENT] = judged(student, grid, target, truth=truth) | {"temperature": 1.0}
    return found


def normal_posterior(rows: tuple[Tensor, Tensor], temperature_R: Tensor, *, noise: float, scale: float) -> Moments:
    """Return the posterior of each data set under normal noise, its log likelihood divided by T.

    Args:
        rows: inputs and targets, (R, N) each.
        temperature_R: T.
        noise: σ.
        scale: standard deviation of the prior.

    Returns:
        Means and covariances, in closed form.
    """
    of_RND, y_RN1 = features(rows[0]), rows[1].unsqueeze(-1)
    strength = (noise**2 * temperature_R).reciprocal()[:, None, None]
    precision = strength * (of_RND.mT @ of_RND) + torch.eye(2, dtype=torch.float64) / scale**2
    covariance = torch.linalg.inv(precision)
    return (covariance @ (strength * (of_RND.mT @ y_RN1))).squeeze(-1), covariance


def student_posterior(rows: tuple[Tensor, Tensor], normal: Moments, *, recipe: MisspecificationRecipe) -> Moments:
    """Return the posterior of each data set under Student t noise.

    Args:
        rows: inputs and targets, (R, N) each.
        normal: the posterior under normal noise, which says where the nodes are: around its mean, as wide as outliers
            make it.
        recipe: the settings.

    Returns:
        Means and covariances, by quadrature on a grid of weights.
    """
    mean_RD, covariance_RDD = normal
    root = torch.linalg.cholesky(covariance_RDD)
    line = torch.linspace(-_REACH, _REACH, recipe.cells, dtype=torch.float64)
    nodes = torch.cartesian_prod(line, line)
    weights_RCD = mean_RD.unsqueeze(1) + nodes @ root.mT
    prior, noise = Normal(recipe.prior_scale), StudentT(recipe.df, recipe.noise)
    found = []
    for x_N, y_N, weights_CD in zip(*rows, weights_RCD, strict=True):  # a set at a time: memory of C × N
        fit_C = noise.distribution(weights_CD @ features(x_N).T).log_prob(y_N).sum(-1)
        found.append(fit_C + prior.log_prob(weights_CD).sum(-1))
    shares_RC = torch.stack(found).softmax(-1)
    middle_RD = (shares_RC.unsqueeze(-1) * weights_RCD).sum(1)
    centred = weights_RCD - middle_RD.unsqueeze(1)
    return middle_RD, (shares_RC.unsqueeze(-1) * centred).mT @ centred


def temperature(weights_RD: Tensor, rows: tuple[Tensor, Tensor], *, noise: float) -> Tensor:
    """Return T of each data set: the mean over weights of how much wider the sandwich is than the model says.

    T = tr(J⁻¹ K)/D, with J = Σ φ φᵀ/σ² and K = Σ (y − wᵀφ)² φ φᵀ/σ⁴ at the posterior mean.

    Args:
        weights_RD: the posterior means.
        rows: inputs and targets, (R, N) each.
        noise: σ.

    Returns:
        Tensor (R,).
    """
    of_RND = features(rows[0])
    squares_RN = (rows[1] - (of_RND @ weights_RD.unsqueeze(-1)).squeeze(-1)) ** 2 / noise**2
    score = (of_RND * squares_RN.unsqueeze(-1)).mT @ of_RND
    return torch.linalg.solve(of_RND.mT @ of_RND, score).diagonal(dim1=-2, dim2=-1).mean(-1)


def judged(posterior: Moments, grid: Tensor, target_G: Tensor, *, truth: Tensor) -> dict[str, Any]:
    """Return what bands of ± z posterior standard deviations around the posterior mean are worth.

    Args:
        posterior: of each data set.
        grid: inputs, (G,).
        target_G: the nearest line there.
        truth: the mean of the law there.

    Returns:
        `coverage` of the nearest line at every point, `coverage_true` of the law's mean, mean `width` of the bands, and
        root mean square `distance` of the posterior mean from the nearest line and `distance_true` from the law's mean.
    """
    of_GD = features(grid)
    mean_RG = posterior[0] @ of_GD.T
    half_RG = Z * ((of_GD @ posterior[1]) * of_GD).sum(-1).sqrt()

    def covered(of_G: Tensor) -> list[float]:
        return ((mean_RG - of_G).abs() <= half_RG).double().mean(0).tolist()

    def distance(of_G: Tensor) -> float:
        return float((mean_RG - of_G).square().mean().sqrt())

    return {
        "coverage": covered(target_G),
        "coverage_true": covered(truth),
        "width": float(2 * half_RG.mean()),
        "distance": distance(target_G),
        "distance_true": distance(truth),
    }
