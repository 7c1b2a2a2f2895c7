"""What `laplace_redux` computes for one seed: ensemble and Laplace approximations, scored on the same images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.assess.evaluate import detection, evaluate, uncertainty
from torchbayes.data import Data, load, out_of_distribution
from torchbayes.metrics import reliability
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.network import module_at
from torchbayes.posteriors import LaplacePosterior, Point, Posterior
from torchbayes.predictive.linearised import Linearised
from torchbayes.selection import fit
from torchbayes_experiments.laplace_redux.recipe import ENSEMBLE, MODE, VARIANTS, LaplaceReduxRecipe
from torchbayes_experiments.shared.classifiers import METRICS, classifier
from torchbayes_experiments.streams import Purpose, generator

BINS = 25  # of confidence, from 1/K to 1


def run(recipe: LaplaceReduxRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Train the ensemble, approximate around its first member, and score every method on the same images.

    Args:
        recipe: the settings.
        seed: seed of initialisations and data orders; the images are the same for every seed.
        directory: of this seed; the training resumes there; the approximations take one pass and are made again.

    Returns:
        `methods`: method -> `test` (metric -> value), `foreign` (set -> confidence and AUROC), `counts` (set -> number
        of images in each bin of confidence) and `reliability` (the bins of the diagram); `prior_scale`: the scale of
        training, and the scale chosen for each variant.
    """
    data = load(recipe.data, train_size=recipe.train_size)
    prior = recipe.prior(len(data.train.targets))
    model = classifier(recipe.network, data.input_shape, data.num_classes, prior=prior)
    ensemble = fit(model, data.train, recipe.ensemble(), seed=seed, directory=directory / "ensemble", resume=True)
    assert isinstance(ensemble, Point)
    posteriors = {v: approximate(recipe, v, data, ensemble=ensemble, seed=seed) for v in VARIANTS}
    mode = Point(model, ensemble.weights_MD[:1])
    sources: dict[str, Posterior | Linearised] = {MODE: mode}
    sources |= {variant: Linearised(posterior, "probit") for variant, posterior in posteriors.items()}
    sources |= {ENSEMBLE: ensemble} if recipe.members > 1 else {}
    images = _images(recipe, data)
    models = {MODE: model} | {variant: posterior.model for variant, posterior in posteriors.items()}
    return {
        "methods": {name: _scores(source, images, data.num_classes) for name, source in sources.items()},
        "prior_scale": {name: float(each.prior.stds()[0]) for name, each in models.items()},
    }


def approximate(
    recipe: LaplaceReduxRecipe, variant: str, data: Data, *, ensemble: Point, seed: int
) -> LaplacePosterior:
    """Return a Laplace approximation around the first member of an ensemble.

    Args:
        recipe: the settings.
        variant: one of `VARIANTS`; LA and LA* are over the last layer, the other layers keep their trained weights.
        data: the curvature is that of its training part.
        ensemble: the trained networks.
        seed: of the fit.

    Returns:
        The posterior, under the prior precision chosen by the evidence.
    """
    module = module_at(ensemble.model.network, ensemble.weights_MD[0])
    random = "*" if variant == VARIANTS[2] else f"{last_layer(module)}.*"
    model = Model(module, Categorical(), recipe.prior(len(data.train.targets)), random=random)
    posterior = fit(model, data.train, recipe.laplace(variant), seed=seed, start=module)
    assert isinstance(posterior, LaplacePosterior)
    return posterior


def last_layer(module: nn.Module) -> str:
    """Return the name of the last module that has parameters of its own."""
    return [name for name, part in module.named_modules() if next(part.parameters(recurse=False), None) is not None][-1]


def _images(recipe: LaplaceReduxRecipe, data: Data) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
    """Return test images with labels, and foreign images by name."""
    order = torch.randperm(len(data.test.targets), generator=generator(Purpose.TEST_ROWS))[: recipe.test_rows]
    foreign: dict[str, Tensor] = {}
    for name in recipe.foreign:
        foreign |= out_of_distribution(data, name, limit=recipe.foreign_rows)
    return (data.test.inputs[order], data.test.targets[order]), foreign


def _scores(
    source: Posterior | Linearised, images: tuple[tuple[Tensor, Tensor], Mapping[str, Tensor]], num_classes: int
) -> dict[str, Any]:
    """Return the scores of one method on all images."""
    (inputs, targets), foreign = images
    inside = evaluate(source, (inputs, targets))
    assert inside.scores is not None
    assert inside.probs is not None
    outside = {name: uncertainty(source, source.model.place(rows)) for name, rows in foreign.items()}
    bins = reliability(inside.probs, inside.targets)
    confidences = {"test": inside.scores.confidence} | {name: found.confidence for name, found in outside.items()}
    return {
        "test": {key: inside.metrics[key] for key in METRICS},
        "foreign": {
            name: {
                "confidence": float(found.confidence.double().mean()),
                "auroc": detection(inside.scores, found)["auroc_confidence"],
            }
            for name, found in outside.items()
        },
        "counts": {name: _counts(values, num_classes) for name, values in confidences.items()},
        "reliability": {key: getattr(bins, key).tolist() for key in ("confidence", "accuracy", "count")},
    }


def _counts(confidence: Tensor, num_classes: int) -> list[int]:
    """Return how many confidences lie in each of `BINS` equal bins from 1/K to 1."""
    share = (confidence.double() - 1 / num_classes) / (1 - 1 / num_classes)
    where = (share * BINS).long().clamp(0, BINS - 1)
    return torch.bincount(where, minlength=BINS).tolist()
