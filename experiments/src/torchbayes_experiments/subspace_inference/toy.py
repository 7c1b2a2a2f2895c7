"""What `subspace_inference` computes on the regression in one dimension: bands of three subspaces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.data import load
from torchbayes.model import Model
from torchbayes.model.likelihoods import Gaussian as GaussianNoise
from torchbayes.model.priors.univariate import Flat
from torchbayes.posteriors import CurvePosterior, Gaussian, Point
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.subspace_inference.recipe import DATA, GAPS, OUTSIDE, SECOND, SPACES, Toy
from torchbayes_experiments.subspace_inference.spaces import Trained

_DRAWN = 12  # functions that are shown


def bands(recipe: Toy, *, seed: int) -> dict[str, Any]:
    """Return the bands of elliptical slice sampling in the three subspaces.

    Args:
        recipe: the settings.
        seed: of the rows, which are nine tenths of the set, and of all fits.

    Returns:
        `x`, `y`: the rows; `grid`: inputs; and `spaces`: subspace -> `mean` and `std` of the functions along the grid,
        a few `draws`, the mean of `std` at the "data", in the "gaps" and "outside", and `rmse` at the rows.
    """
    data = load(recipe.data, split=seed % 20)
    assert data.target_standardise is not None
    x, y = data.standardise.inverse(data.train.inputs), data.target_standardise.inverse(data.train.targets)
    rows, grid = (features(x), y), torch.linspace(*recipe.ends, recipe.places).unsqueeze(1)
    trained = _trained(recipe, rows, seed=seed)
    found: dict[str, Any] = {}
    for name in SPACES:
        model = _model(recipe, recipe.sampling.temperature_of(name))
        space = trained.space(name, model, recipe.sampling, seed=seed)
        posterior = fit(model, rows, recipe.sampling.method, space=space, seed=seed, callbacks=())
        along, at = predict(posterior, features(grid)), predict(posterior, rows[0])
        std_G = along.epistemic.flatten().sqrt()
        found[name] = {
            "mean": _rounded(along.mean),
            "std": _rounded(std_G),
            "draws": [_rounded(draw) for draw in _some(along.outputs_SBK[..., 0])],
            "rmse": float((at.mean - y).square().mean().sqrt()),
            **{where: float(std_G[is_there].mean()) for where, is_there in regions(grid.flatten(), recipe).items()},
        }
    return {"x": _rounded(x), "y": _rounded(y), "grid": _rounded(grid), "spaces": found}


def features(x: Tensor) -> Tensor:
    """Return what the network sees of inputs (N, 1): x/2 and (x/2)², (N, 2)."""
    return torch.cat([x / 2, (x / 2).square()], dim=1)


def regions(grid_G: Tensor, recipe: Toy) -> dict[str, Tensor]:
    """Return which inputs lie in a cluster of the data, between two clusters, and beyond all, bool (G,) each."""
    in_cluster_G = torch.stack([(grid_G >= low) & (grid_G <= high) for low, high in recipe.clusters]).any(0)
    beyond_G = (grid_G < recipe.clusters[0][0]) | (grid_G > recipe.clusters[-1][1])
    return {DATA: in_cluster_G, GAPS: ~in_cluster_G & ~beyond_G, OUTSIDE: beyond_G}


def _model(recipe: Toy, temperature: float = 1.0) -> Model:
    network = networks.mlp((2,), 1, hidden=recipe.hidden)
    return Model(network, GaussianNoise(recipe.noise), Flat(), temperature=temperature, tempering="likelihood")


def _trained(recipe: Toy, rows: tuple[Tensor, Tensor], *, seed: int) -> Trained:
    """Return the moments of one trajectory, and a curve from its average to that of another."""
    model = _model(recipe)
    first, second = (fit(model, rows, recipe.swag, seed=seed + shift, callbacks=()) for shift in (0, SECOND))
    assert isinstance(first, Gaussian)
    assert isinstance(second, Gaussian)
    ends = Point(model, torch.cat([first.mean_MD, second.mean_MD]))
    curve = fit(model, rows, recipe.curve, start=ends, seed=seed, callbacks=())
    assert isinstance(curve, CurvePosterior)
    return Trained(first, curve)


def _some(outputs_SG: Tensor) -> Tensor:
    """Return a few drawn functions, evenly along the draws, (at most 12, G)."""
    return outputs_SG[:: max(1, len(outputs_SG) // _DRAWN)][:_DRAWN]


def _rounded(values: Tensor) -> list[float]:
    return [round(float(value), 5) for value in values.flatten()]
