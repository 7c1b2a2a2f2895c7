"""What `evidence_support` computes for one seed: the evidence of every network on every set of labels."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torchbayes.assess.evaluate import evaluate
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import usual_plan
from torchbayes.comparison.evidence.rounds import Round, best_round, train_in_rounds
from torchbayes.data import Data, load
from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.model.priors.univariate import Normal
from torchbayes.predictive.linearised import Linearised
from torchbayes_experiments.evidence_support.recipe import SupportRecipe
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import classifier
from torchbayes_experiments.shared.labels import shuffled


def run(recipe: SupportRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Find the evidence of every network on every set.

    Args:
        recipe: the settings.
        seed: of the training rows, the shuffles, the initialisations and the data orders.
        directory: of this seed; every network on every set leaves a file, so that an interrupted run continues.

    Returns:
        set -> network -> what `numbers` returns; and `uniform`, the log evidence per row of equal probabilities.
    """
    data = load(recipe.data, train_size=recipe.train_size, seed=seed)
    found: dict[str, Any] = {"uniform": -math.log(data.num_classes)}
    for name, share in recipe.shares().items():
        found[name] = {
            network: load_or_compute(
                directory / f"{name.replace(' ', '_')}_{network}.json",
                partial(numbers, recipe, data, network, share=share, seed=seed),
            )
            for network in recipe.networks
        }
    return found


def numbers(recipe: SupportRecipe, data: Data, network: str, *, share: float, seed: int) -> dict[str, Any]:
    """Train one network on data with a share of the labels shuffled, and return its evidence and scores.

    Args:
        recipe: the settings.
        data: with the true labels.
        network: its name.
        share: of shuffled labels.
        seed: of everything random.

    Returns:
        `evidence`, `log_likelihood` (per row, in nats), `effective` (weights that the data determine), `weights`,
        `train_accuracy`, `test_accuracy`, `test_nll` (linearised predictive, true labels), `rounds` (evidence after
        each training), `scales` (standard deviations of the prior, smallest and largest) and `at_mode`.
    """
    prior = Normal(recipe.prior_scale)
    model = classifier(network, data.input_shape, data.num_classes, prior=prior, hidden=recipe.hidden)
    train = (data.train.inputs, shuffled(data.train.targets, share, seed=seed))
    plan = usual_plan(Problem(network=network))
    first = MAP(1, recipe.epochs, recipe.batch_size, Adam(recipe.lr), plan=plan)
    again = replace(first, epochs=recipe.again, optimizer=Adam(recipe.lr_again))
    found = train_in_rounds(
        model,
        train,
        first,
        laplace=Laplace(prior="model"),
        groups=recipe.groups,
        again=[again] * recipe.rounds,
        seed=seed,
    )
    chosen = best_round(found)
    test = (data.test.inputs[: recipe.test_rows], data.test.targets[: recipe.test_rows])
    scores = evaluate(Linearised(chosen.fitted), test).metrics
    return _evidence(chosen) | {
        "train_accuracy": evaluate(chosen.mode, train).metrics["accuracy"],
        "test_accuracy": scores["accuracy"],
        "test_nll": scores["nll"],
        "rounds": [_evidence(one)["evidence"] for one in found],
    }


def _evidence(one: Round) -> dict[str, Any]:
    posterior = one.fitted
    scales = posterior.model.prior.stds()
    return {
        "evidence": float(posterior.log_evidence()) / posterior.num_data,
        "log_likelihood": float(posterior.log_likelihood_M) / posterior.num_data,
        "effective": float(posterior.effective_parameters()),
        "weights": posterior.mean_MD.shape[1],
        "scales": [float(scales.min()), float(scales.max())],
        "at_mode": one.at_mode,
    }
