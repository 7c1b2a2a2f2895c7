"""What `subspace_inference` computes on images: elliptical slice sampling in three subspaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import CurvePosterior, Gaussian, Point, Posterior
from torchbayes.selection import fit
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import METRICS, best_device
from torchbayes_experiments.subspace_inference.recipe import SECOND, SPACES, SWA_POINT, SWAG_POSTERIOR, Images
from torchbayes_experiments.subspace_inference.spaces import Trained


def scores(recipe: Images, *, seed: int, home: Path) -> dict[str, dict[str, float]]:
    """Train two networks and the curve between them, sample in the three subspaces, and score all on the test images.

    Args:
        recipe: the settings.
        seed: of the training images, and of all fits and draws.
        home: of this seed; each score is written to a file, and interrupted fits continue.

    Returns:
        "SWA", "SWAG", subspace -> metric -> value.
    """
    data = load(recipe.data, train_size=recipe.train_size, seed=seed)
    test = Pair(*(part[: recipe.test_rows] for part in data.test))

    def model(temperature: float = 1.0) -> Model:
        network = networks.build(recipe.network, data.input_shape, data.num_classes, **recipe.network_settings())
        prior = Normal(recipe.prior_scale)
        return Model(network.to(best_device()), Categorical(), prior, temperature=temperature, tempering="likelihood")

    trained = _trained(recipe, model(), data.train, seed=seed, home=home)

    def scored(posterior: Posterior, draws: int | None = None) -> dict[str, float]:
        found = evaluate(posterior, test, draws=draws, seed=seed).metrics
        return {metric: found[metric] for metric in METRICS}

    def sampled(name: str) -> dict[str, float]:
        tempered = model(recipe.sampling.temperature_of(name))
        space = trained.space(name, tempered, recipe.sampling, seed=seed)
        about: dict[str, Any] = {"directory": home / name, "resume": True, "callbacks": ()}
        return scored(fit(tempered, data.train, recipe.sampling.method, space=space, seed=seed, **about))

    average = Point(trained.swag.model, trained.swag.mean_MD)
    found = {
        SWA_POINT: load_or_compute(home / "swa.json", lambda: scored(average)),
        SWAG_POSTERIOR: load_or_compute(home / "swag.json", lambda: scored(trained.swag, recipe.draws)),
    }
    spaces = {name: load_or_compute(home / f"{name}.json", lambda name=name: sampled(name)) for name in SPACES}
    return {**found, **spaces}


def _trained(recipe: Images, model: Model, rows: Pair, *, seed: int, home: Path) -> Trained:
    """Return the moments of one trajectory, and a curve from its average to that of another."""
    about: dict[str, Any] = {"resume": True, "callbacks": ()}
    first, second = (
        fit(model, rows, recipe.swag, seed=seed + shift, directory=home / place, **about)
        for shift, place in ((0, "first"), (SECOND, "second"))
    )
    assert isinstance(first, Gaussian)
    assert isinstance(second, Gaussian)
    ends = Point(model, torch.cat([first.mean_MD, second.mean_MD]))
    curve = fit(model, rows, recipe.curve, start=ends, seed=seed, directory=home / "connected", **about)
    assert isinstance(curve, CurvePosterior)
    return Trained(first, curve)
