"""What `bayes_by_backprop` computes for one seed: the table, the pruned networks, and the regression."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes.linalg import Diagonal
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.likelihoods.gaussian import Gaussian as GaussianNoise
from torchbayes.posteriors import Gaussian, Point, Posterior
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.bayes_by_backprop.recipe import LOUDNESS, BackpropRecipe, Entry, Regression
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import best_device
from torchbayes_experiments.streams import Purpose, generator

BINS = 120
QUARTILES = (0.25, 0.5, 0.75)


def run(recipe: BackpropRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit and score every method at every width, and both fits of the curve.

    Args:
        recipe: the settings.
        seed: of the training rows, all fits and draws.
        directory: of this seed; every fit leaves its scores in a file, and an interrupted one continues.

    Returns:
        `shares`; `table`: width -> method -> what `scores` returns; and `regression`: what `on_the_curve` returns.
    """
    directory.mkdir(parents=True, exist_ok=True)
    read: list[tuple[Pair, Pair]] = []

    def images() -> tuple[Pair, Pair]:
        if not read:
            read.append(_images(recipe, seed))
        return read[0]

    table: dict[str, dict[str, Any]] = {}
    for width in recipe.widths:
        for name, entry in recipe.entries.items():
            home = directory / f"{width}_{name.replace(' ', '_')}"
            table.setdefault(str(width), {})[name] = load_or_compute(
                home.with_suffix(".json"), partial(_fit_and_score, recipe, entry, width, images, seed=seed, home=home)
            )
    curve = load_or_compute(directory / "regression.json", partial(on_the_curve, recipe.regression, seed=seed))
    return {"shares": list(recipe.shares), "table": table, "regression": curve}


# --- images


def _images(recipe: BackpropRecipe, seed: int) -> tuple[Pair, Pair]:
    """Return training and test images, with pixels from 0 to `recipe.white`."""
    data = load(recipe.data, train_size=recipe.train_size, seed=seed)
    return tuple(
        Pair(data.standardise.inverse(part.inputs) * recipe.white, part.targets) for part in (data.train, data.test)
    )  # type: ignore[return-value]


def _fit_and_score(
    recipe: BackpropRecipe,
    entry: Entry,
    width: int,
    images: Callable[[], tuple[Pair, Pair]],
    *,
    seed: int,
    home: Path,
) -> dict[str, Any]:
    """Return the scores of one method at one width."""
    train, test = images()
    network = networks.mlp(
        tuple(train.inputs.shape[1:]), int(train.targets.max()) + 1, hidden=(width, width), dropout=entry.dropout
    )
    model = Model(network.to(best_device()), Categorical(), entry.prior)
    posterior = fit(model, train, entry.method, seed=seed, directory=home, resume=True, callbacks=())
    assert isinstance(posterior, Gaussian | Point)
    return scores(posterior, test, shares=recipe.shares, draws=recipe.draws, seed=seed)


def scores(
    posterior: Gaussian | Point, test: Pair, *, shares: tuple[float, ...], draws: int, seed: int
) -> dict[str, Any]:
    """Return test errors of a posterior, of the network of its means, and of what is left of that after pruning.

    Args:
        posterior: of one member; a normal one with independent weights, or a single network.
        test: the rows.
        shares: of the weights that are removed, lowest first: by |μ|/σ, or by |w| for a network.
        draws: networks drawn of a posterior that has others.
        seed: of these.

    Returns:
        `error` of the average prediction and `nll`; `mean_error` of the network of means; `pruned`, errors of that
        network without each share of its weights, and `pruned_average`, those of the average over draws without them,
        all errors in %; and for a posterior with a spread `loudness`, the number of weights in each bin of 10 log₁₀
        (|μ|/σ) from −40 to 20 dB.
    """
    spread = isinstance(posterior, Gaussian)

    def measured(source: Posterior, count: int | None = None) -> tuple[float, float]:
        found = evaluate(source, (test.inputs, test.targets), draws=count, seed=seed).metrics
        return 100 * (1 - found["accuracy"]), found["nll"]

    signal_D = importance(posterior)
    masks = [kept(signal_D, share) for share in shares]
    if isinstance(posterior, Gaussian):
        means_MD, variance_MD = posterior.mean_MD, _variance(posterior)
        averages = [Gaussian(posterior.model, means_MD * mask, Diagonal(variance_MD * mask)) for mask in masks]
    else:
        means_MD, averages = posterior.weights_MD, []
    pruned = [measured(Point(posterior.model, means_MD * mask))[0] for mask in masks]
    error, nll = measured(posterior, draws if spread else None)
    whole = measured(Point(posterior.model, means_MD))[0]
    found: dict[str, Any] = {"error": error, "nll": nll, "mean_error": whole, "pruned": pruned}
    if not spread:
        return found | {"pruned_average": pruned}
    decibels = 10 * signal_D.double().clamp_min(1e-30).log10()
    counts = torch.histc(decibels.clamp(*LOUDNESS).cpu(), BINS, *LOUDNESS)
    return found | {
        "pruned_average": [measured(average, draws)[0] for average in averages],
        "loudness": counts.long().tolist(),
    }


def importance(posterior: Gaussian | Point) -> Tensor:
    """Return |μ|/σ of every weight of a normal posterior, or |w| of a network, (D,)."""
    if isinstance(posterior, Point):
        return posterior.weights_MD[0].abs()
    return posterior.mean_MD[0].abs() / _variance(posterior)[0].sqrt()


def _variance(posterior: Gaussian) -> Tensor:
    """Return the variances of independent weights, (M, D)."""
    assert isinstance(posterior.covariance, Diagonal)
    return posterior.covariance.variance_MD


def kept(signal_D: Tensor, share: float) -> Tensor:
    """Return 0 for a share of the weights, those of the lowest signal, and 1 for the others; ties in their order."""
    mask_D = torch.ones_like(signal_D)
    mask_D[signal_D.argsort(stable=True)[: round(share * len(signal_D))]] = 0
    return mask_D


# --- the curve


def curve(count: int, seed: int, *, of: Regression) -> tuple[Tensor, Tensor]:
    """Draw training rows: x uniform, y = x + 0.3 sin(2π(x + ε)) + 0.3 sin(4π(x + ε)) + ε with ε ~ N(0, noise²).

    Args:
        count: N.
        seed: of the draw.
        of: noise and ends of the inputs.

    Returns:
        Inputs (N, 1) and targets (N, 1).
    """
    source = generator(Purpose.CURVE, seed)
    low, high = of.inside
    x = low + (high - low) * torch.rand(count, 1, generator=source, dtype=torch.float64)
    noise = of.noise * torch.randn(count, 1, generator=source, dtype=torch.float64)
    y = x + 0.3 * torch.sin(2 * torch.pi * (x + noise)) + 0.3 * torch.sin(4 * torch.pi * (x + noise)) + noise
    return x.float(), y.float()


def on_the_curve(recipe: Regression, *, seed: int) -> dict[str, Any]:
    """Fit the curve, and return the quartiles of what is predicted along the axis.

    Args:
        recipe: the settings.
        seed: of the rows and the fits.

    Returns:
        `x`, `y`: the rows; `grid`: inputs; and `methods`: method -> `quartiles` (3, G), `inside` and `outside`, the
        mean distance of the outer quartiles among the training inputs and beyond them.
    """
    x, y = curve(recipe.rows, seed, of=recipe)
    low, high = recipe.axis
    grid = torch.linspace(low, high, recipe.places).unsqueeze(1)
    found: dict[str, Any] = {"x": _rounded(x), "y": _rounded(y), "grid": _rounded(grid), "methods": {}}
    for name, entry in recipe.entries.items():
        model = Model(networks.mlp((1,), 1, hidden=recipe.hidden), GaussianNoise("learned"), entry.prior)
        posterior = fit(model, (x, y), entry.method, seed=seed, callbacks=())
        draws = recipe.draws if isinstance(posterior, Gaussian) else None
        predictive = predict(posterior, grid, draws=draws, seed=seed)
        quartiles_QG = predictive.quantile(torch.tensor(QUARTILES)).squeeze(-1)
        width_G = quartiles_QG[2] - quartiles_QG[0]
        near, far = (grid >= recipe.inside[0]) & (grid <= recipe.inside[1]), _beyond(grid, recipe)
        found["methods"][name] = {
            "quartiles": [_rounded(line) for line in quartiles_QG],
            "inside": float(width_G[near.flatten()].mean()),
            "outside": float(width_G[far.flatten()].mean()),
        }
    return found


def _beyond(grid: Tensor, recipe: Regression) -> Tensor:
    """Return which inputs lie beyond the training inputs, by the margin or more."""
    low, high = recipe.inside
    return (grid <= low - recipe.margin + 1e-6) | (grid >= high + recipe.margin - 1e-6)


def _rounded(values: Tensor) -> list[float]:
    return [round(float(value), 5) for value in values.flatten()]
