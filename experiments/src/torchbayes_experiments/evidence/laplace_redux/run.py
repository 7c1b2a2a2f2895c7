"""Settings of `laplace_redux`, and what it computes for one seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.model.network import module_at
from torchbayes.posteriors import Posterior
from torchbayes_experiments.shared.classifiers import METRICS, classifier
from torchbayes_experiments.streams import Purpose, generator

MODE, ENSEMBLE = "MAP", "deep ensemble"
VARIANTS = ("LA", "LA*", "Laplace, all layers")
METHODS = (MODE, *VARIANTS, ENSEMBLE)
BINS = 25  # of confidence, from 1/K to 1


@dataclass(frozen=True)
class LaplaceReduxRecipe:
    """Settings of the training and of the evaluation."""

    data: str = "mnist"
    foreign: tuple[str, ...] = ("fashion_mnist", "kmnist", "notmnist")  # out-of-distribution data sets by name
    network: str = "lenet"
    train_size: int | None = None  # number of training rows, drawn with seed 0; None for all
    weight_decay: float = 5e-4  # λ on the mean loss: the prior is N(0, 1/(λN)) for every weight
    members: int = 5  # M of the deep ensemble; the first member is the MAP. With one there is no ensemble.
    epochs: int = 10
    batch_size: int = 128
    lr: float = 1e-3  # learning rate of Adam, which falls to zero along a cosine
    rows_per_pass: int = 1000  # rows per step of the pass that sums the curvature
    # number of test images, and `foreign_rows` of each foreign set, drawn with seed 0; None for all
    test_rows: int | None = 3000
    foreign_rows: int | None = 1000
    # how the members are run; fixed, because a plan chosen by measurement may round differently in each run
    plan: str = "native"

    def prior(self, num_data: int) -> tb.priors.Normal:
        """Return the prior that is equivalent to the weight decay on the mean loss of N rows."""
        return tb.priors.Normal((self.weight_decay * num_data) ** -0.5)

    def laplace(self, variant: str) -> tb.Laplace:
        """Return one of `VARIANTS` of the Laplace approximation, with its prior precision chosen by the evidence."""
        structure, curvature = ("dense", "empirical") if variant == "LA*" else ("kronecker", "ggn")
        return tb.Laplace(structure, curvature, "scalar", batch_size=self.rows_per_pass)


def run(recipe: LaplaceReduxRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Train the ensemble, approximate around its first member, and score every method on the same images.

    `methods`: method -> `test` (metric -> value), `foreign` (set -> confidence and AUROC), `counts` (set -> number of
    images in each bin of confidence) and `reliability` (the bins of the diagram); `prior_scale`: the scale of training,
    and the scale chosen for each variant. The training resumes; the approximations take one pass and are made again.
    """
    data = tb.data.load(recipe.data, train_size=recipe.train_size)
    prior = recipe.prior(len(data.train.targets))
    model = classifier(recipe.network, data.input_shape, data.num_classes, prior=prior)
    method = tb.MAP(recipe.members, recipe.epochs, recipe.batch_size, tb.Adam(recipe.lr), plan=recipe.plan)
    ensemble = tb.fit(model, data.train, method, seed=seed, directory=directory / "ensemble", resume=True)
    posteriors = {v: approximate(recipe, v, data, ensemble=ensemble, seed=seed) for v in VARIANTS}
    sources: dict[str, Posterior | tb.Linearised] = {MODE: tb.Point(model, ensemble.weights_MD[:1])}
    sources |= {variant: tb.Linearised(posterior, "probit") for variant, posterior in posteriors.items()}
    sources |= {ENSEMBLE: ensemble} if recipe.members > 1 else {}
    order = torch.randperm(len(data.test.targets), generator=generator(Purpose.TEST_ROWS))[: recipe.test_rows]
    foreign: dict[str, Tensor] = {}
    for name in recipe.foreign:
        foreign |= tb.data.out_of_distribution(data, name, limit=recipe.foreign_rows)
    test, models = (data.test.inputs[order], data.test.targets[order]), {name: s.model for name, s in sources.items()}
    return {
        "methods": {name: _scores(source, test, foreign, data.num_classes) for name, source in sources.items()},
        "prior_scale": {name: float(models[name].prior.stds()[0]) for name in (MODE, *VARIANTS)},
    }


def approximate(
    recipe: LaplaceReduxRecipe, variant: str, data: tb.data.Data, *, ensemble: tb.Point, seed: int
) -> tb.LaplacePosterior:
    """Return one of `VARIANTS` around the first member, under the prior precision chosen by the evidence.

    LA and LA* are over the last layer, the other layers keep their trained weights.
    """
    module = module_at(ensemble.model.network, ensemble.weights_MD[0])
    random = "*" if variant == VARIANTS[2] else f"{last_layer(module)}.*"
    prior = recipe.prior(len(data.train.targets))
    model = tb.Model(module, tb.likelihoods.Categorical(), prior, random=random)
    return tb.fit(model, data.train, recipe.laplace(variant), seed=seed, start=module)


def last_layer(module: nn.Module) -> str:
    """Return the name of the last module that has parameters of its own."""
    return [name for name, part in module.named_modules() if next(part.parameters(recurse=False), None) is not None][-1]


def _scores(
    source: Posterior | tb.Linearised, test: tuple[Tensor, Tensor], foreign: Mapping[str, Tensor], num_classes: int
) -> dict[str, Any]:
    """Return the scores of one method on all images."""
    inside = tb.evaluate(source, test)
    assert inside.scores is not None
    assert inside.probs is not None
    outside = {name: tb.uncertainty(source, source.model.place(rows)) for name, rows in foreign.items()}
    aurocs = {name: tb.detection(inside.scores, scores)["auroc_confidence"] for name, scores in outside.items()}
    bins = tb.metrics.reliability(inside.probs, inside.targets)

    def counts(confidence: Tensor) -> list[int]:
        share = (confidence.double() - 1 / num_classes) / (1 - 1 / num_classes)
        return torch.bincount((share * BINS).long().clamp(0, BINS - 1), minlength=BINS).tolist()

    return {
        "test": {key: inside.metrics[key] for key in METRICS},
        "foreign": {
            name: {"confidence": float(scores.confidence.double().mean()), "auroc": aurocs[name]}
            for name, scores in outside.items()
        },
        "counts": {name: counts(scores.confidence) for name, scores in {"test": inside.scores, **outside}.items()},
        "reliability": {key: getattr(bins, key).tolist() for key in ("confidence", "accuracy", "count")},
    }
