"""What `subspace_inference` computes on one split of a UCI set: SGD, its average, SWAG, and the subspace."""

from __future__ import annotations

from torch import Tensor

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes.driver.progress import Event
from torchbayes.model import Model
from torchbayes.model.likelihoods import HeteroscedasticGaussian
from torchbayes.model.priors.univariate import Normal
from torchbayes.model.subspace import Subspace
from torchbayes.posteriors import Gaussian, Point, Posterior
from torchbayes.selection import fit
from torchbayes_experiments.subspace_inference.recipe import (
    ESS,
    METRICS,
    SGD_POINT,
    SWA_POINT,
    SWAG_POSTERIOR,
    VARIATIONAL,
    Regressions,
    Training,
)


def split_scores(recipe: Regressions, name: str, split: int, *, seed: int) -> dict[str, dict[str, float]]:
    """Fit and score every method on one split.

    Args:
        recipe: the settings.
        name: one of its sets.
        split: which split of the set.
        seed: of the fits and draws.

    Returns:
        method -> metric -> value, in the target's units.
    """
    data = load(f"uci_{name}", split=split)
    assert data.target_standardise is not None
    scale = float(data.target_standardise.scale)
    posteriors = fitted(recipe, recipe.trainings[name], data.train, seed=seed)
    draws = {VARIATIONAL: recipe.draws, SWAG_POSTERIOR: recipe.draws}

    def scores(method: str) -> dict[str, float]:
        found = evaluate(posteriors[method], data.test, draws=draws.get(method), seed=seed, target_scale=scale).metrics
        return {metric: found[metric] for metric in METRICS}

    return {method: scores(method) for method in posteriors}


def fitted(recipe: Regressions, training: Training, rows: Pair, *, seed: int) -> dict[str, Posterior]:
    """Fit every method.

    Args:
        recipe: the settings.
        training: how the network is trained.
        rows: to fit to.
        seed: of the fits.

    Returns:
        method -> posterior.
    """
    network = networks.mlp(tuple(rows.inputs.shape[1:]), 2, hidden=(recipe.hidden,))
    prior, noise = Normal(training.prior_scale(len(rows.inputs))), HeteroscedasticGaussian(training.floor)
    model, tempered = (
        Model(network, noise, prior, temperature=temperature, tempering="likelihood")
        for temperature in (1.0, training.temperature)
    )
    last: list[Tensor] = []

    def keep(event: Event) -> None:
        last[:] = [event.state.trajectory.weights_MD.clone()]

    swag = fit(model, rows, training.swag(), seed=seed, callbacks=[keep])
    assert isinstance(swag, Gaussian)
    space = Subspace.of(swag, rank=recipe.rank, prior_scale=recipe.scale, model=tempered)
    inside = {
        method: fit(tempered, rows, how, space=space, seed=seed, callbacks=())
        for method, how in ((ESS, recipe.elliptical), (VARIATIONAL, recipe.variational))
    }
    points = {SGD_POINT: Point(model, last[0]), SWA_POINT: Point(model, swag.mean_MD)}
    return {**points, **inside, SWAG_POSTERIOR: swag}
