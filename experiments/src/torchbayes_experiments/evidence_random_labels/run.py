"""What `evidence_random_labels` computes for one seed: both models fitted to every share of shuffled labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.assess.evaluate import evaluate
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import usual_plan
from torchbayes.comparison.evidence.rounds import train_in_rounds
from torchbayes.data import Data, load
from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.model.priors.univariate import Normal
from torchbayes_experiments.evidence_random_labels.recipe import NETWORK, PROCESS, RandomLabelsRecipe
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import classifier
from torchbayes_experiments.shared.labels import shuffled
from torchbayes_experiments.streams import Purpose, generator


def run(recipe: RandomLabelsRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit both models to every share of shuffled labels.

    Args:
        recipe: the settings.
        seed: of the training rows, the shuffles, the initialisation and the data order.
        directory: of this seed; every model at every share leaves a file, so that an interrupted run continues.

    Returns:
        `shares`; `uniform`: model -> log evidence per row of equal probabilities; and model -> measure -> one value per
        share: `train_error`, `test_error`, `evidence` (per row, in nats), and for the network `tuned` (the evidence
        under the prior scale that maximises it at the same weights), `scale` (that scale) and `at_mode`.
    """
    data = load(recipe.data, train_size=recipe.train_size, seed=seed)
    pair = two_classes(load(recipe.data), recipe, seed=seed)
    found: dict[str, Any] = {
        "shares": list(recipe.shares),
        "uniform": {PROCESS: -math.log(2), NETWORK: -math.log(data.num_classes)},
    }
    for label, score in ((PROCESS, partial(of_process, recipe, pair)), (NETWORK, partial(of_network, recipe, data))):
        stem = label.replace(" ", "_").lower()
        each = [
            load_or_compute(directory / f"{stem}_{share:g}.json", partial(score, share, seed=seed))
            for share in recipe.shares
        ]
        found[label] = {measure: [one[measure] for one in each] for measure in each[0]}
    return found


def two_classes(data: Data, recipe: RandomLabelsRecipe, *, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs and targets (0 and 1) of two classes, for training and for testing.

    Args:
        data: a classification set.
        recipe: has the classes and the number of training rows.
        seed: of the choice of training rows.

    Returns:
        Training inputs (N, D), float64, scaled so that squared distances are mean squares over the pixels; training
        targets (N,); test inputs and targets.

    Raises:
        ValueError: if both classes together have fewer rows than `process_rows`.
    """
    parts = []
    for inputs, targets in (data.train, data.test):
        rows = torch.isin(targets, torch.tensor(recipe.classes)).nonzero()[:, 0]
        vectors = inputs[rows].flatten(1).double() / math.sqrt(inputs[0].numel())
        parts.append((vectors, (targets[rows] == recipe.classes[1]).long()))
    (inputs, targets), (test_inputs, test_targets) = parts
    if len(inputs) < recipe.process_rows:
        raise ValueError(
            f"`process_rows` must be at most the {len(inputs)} of both classes; got {recipe.process_rows}."
        )
    rows = torch.randperm(len(inputs), generator=generator(Purpose.PROCESS_ROWS, seed))[: recipe.process_rows]
    return inputs[rows], targets[rows], test_inputs, test_targets


def of_process(recipe: RandomLabelsRecipe, pair: Sequence[Tensor], share: float, *, seed: int) -> dict[str, float]:
    """Fit a Gaussian process classifier by Laplace's approximation in function space.

    Args:
        recipe: the settings.
        pair: what `two_classes` returns.
        share: of shuffled labels.
        seed: of the shuffle.

    Returns:
        measure -> value.
    """
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    inputs, targets, test_inputs, test_targets = (part.numpy() for part in pair)
    labels = shuffled(pair[1], share, seed=seed).numpy()
    kernel = ConstantKernel(recipe.amplitude**2) * RBF(recipe.length_scale)
    fixed: Any = None  # no optimiser: the kernel stays
    process = GaussianProcessClassifier(kernel, optimizer=fixed).fit(inputs, labels)
    return {
        "train_error": float(np.mean(process.predict(inputs) != labels)),
        "test_error": float(np.mean(process.predict(test_inputs) != test_targets)),
        "evidence": np.asarray(process.log_marginal_likelihood_value_).item() / len(targets),
    }


def of_network(recipe: RandomLabelsRecipe, data: Data, share: float, *, seed: int) -> dict[str, Any]:
    """Train a network, and approximate its posterior by Laplace with Kronecker factors.

    Args:
        recipe: the settings.
        data: with the true labels.
        share: of shuffled labels.
        seed: of everything random.

    Returns:
        measure -> value.
    """
    prior = Normal(recipe.prior_scale)
    model = classifier(recipe.network, data.input_shape, data.num_classes, prior=prior, hidden=recipe.hidden)
    train = (data.train.inputs, shuffled(data.train.targets, share, seed=seed))
    plan = usual_plan(Problem(network=recipe.network))
    method = MAP(1, recipe.epochs, recipe.batch_size, Adam(recipe.lr), plan=plan)
    [found] = train_in_rounds(model, train, method, laplace=Laplace(prior="model"), seed=seed)
    test = (data.test.inputs[: recipe.test_rows], data.test.targets[: recipe.test_rows])
    return {
        "train_error": 1 - evaluate(found.mode, train).metrics["accuracy"],
        "test_error": 1 - evaluate(found.mode, test).metrics["accuracy"],
        "evidence": float(found.fitted.log_evidence()) / found.fitted.num_data,
        "tuned": float(found.tuned.log_evidence()) / found.tuned.num_data,
        "scale": float(found.tuned.model.prior.stds()[0]),
        "at_mode": found.at_mode,
    }
