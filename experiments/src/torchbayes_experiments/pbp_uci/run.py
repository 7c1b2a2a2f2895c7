"""What `pbp_uci` computes for one seed: every fit scored on every split of every set."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes.methods.sites.pbp import PBP
from torchbayes.model import Model
from torchbayes.model.likelihoods import Gaussian as GaussianNoise
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Gaussian, ProblemWarning
from torchbayes.posteriors.laplace import as_prior
from torchbayes.predictive.propagated import Propagated
from torchbayes.selection import fit
from torchbayes_experiments.pbp_uci.recipe import METRICS, ONE, SECONDS, STREAM, TWO, PBPUCIRecipe, after
from torchbayes_experiments.shared.uci_splits import over_splits


def run(recipe: PBPUCIRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run every split of every set; each writes a file, so that an interrupted run continues with the next.

    Args:
        recipe: the settings.
        seed: of initialisations and data orders on every split.
        directory: of this seed.

    Returns:
        set -> fit -> metric -> one value per split, in the target's units; and "seconds".
    """
    return over_splits(split_scores, recipe, seed=seed, directory=directory)


def split_scores(recipe: PBPUCIRecipe, name: str, split: int, *, seed: int) -> dict[str, dict[str, float]]:
    """Fit and score on one split.

    Args:
        recipe: the settings.
        name: one of its sets.
        split: which split of the set.
        seed: of the fits.

    Returns:
        fit -> metric -> value, by the closed form of the predictive; and the seconds that the fit took of one core.
    """
    data, width = load(f"uci_{name}", split=split), recipe.width(name)
    assert data.target_standardise is not None
    scale = float(data.target_standardise.scale)

    def scores(fitting: Callable[[], Gaussian]) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProblemWarning)  # that few passes say little is what the curve shows
            began = time.process_time()
            posterior = fitting()
            taken = time.process_time() - began
            found = evaluate(Propagated(posterior), data.test, target_scale=scale).metrics
        return {**{metric: found[metric] for metric in METRICS}, SECONDS: round(taken, 3)}

    def by(method: PBP, *hidden: int) -> dict[str, float]:
        return scores(lambda: fitted(data.train, method, hidden=hidden, seed=seed))

    found = {after(passes): by(replace(recipe.method, epochs=passes), width) for passes in recipe.passes}
    found[ONE] = by(recipe.method, width)
    if name in recipe.deep:
        found[TWO] = by(recipe.method, width, width)
    found[STREAM] = scores(lambda: streamed(data.train, recipe, hidden=(width,), seed=seed))
    return found


def fitted(rows: Pair, method: PBP, *, hidden: tuple[int, ...], seed: int, prior: Any = None) -> Gaussian:
    """Return the posterior of a fit.

    The paper divides what a layer takes by √(fan_in + 1) and gives the weights the prior N(0, 1/λ): the same as the
    prior N(0, 1/((fan_in + 1) λ)) of a plain layer.

    Args:
        rows: to fit to, standardised.
        method: its settings.
        hidden: units of the hidden layers.
        seed: of the fit.
        prior: in the place of the paper's.

    Returns:
        The posterior.
    """
    features = rows.inputs.shape[1]
    if prior is None:
        first, others = (Normal(1 / math.sqrt(fan_in + 1)) for fan_in in (features, hidden[0]))
        prior = {"1.*": first, "*": others}  # layer 0 makes inputs flat
    model = Model(networks.mlp((features,), 1, hidden=hidden), GaussianNoise("learned", spread=1.0), prior)
    posterior = fit(model, rows, method, seed=seed, callbacks=())
    assert isinstance(posterior, Gaussian)
    return posterior


def streamed(rows: Pair, recipe: PBPUCIRecipe, *, hidden: tuple[int, ...], seed: int) -> Gaussian:
    """Return the posterior after rows that come in parts: each is learned once, under the posterior of those before.

    Args:
        rows: in the order they come.
        recipe: how many parts, and the method.
        hidden: units of the hidden layers.
        seed: of the fits.

    Returns:
        The posterior of the last part.
    """
    once, prior, posterior = replace(recipe.method, epochs=1), None, None
    for inputs, targets in zip(*(part.tensor_split(recipe.parts) for part in rows), strict=True):
        posterior = fitted(Pair(inputs, targets), once, hidden=hidden, seed=seed, prior=prior)
        prior = as_prior(posterior)
    assert posterior is not None
    return posterior
