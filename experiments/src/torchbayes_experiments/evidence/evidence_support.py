"""Support and inductive bias: the evidence of a linear model, a perceptron and a convolutional network for images.

Wilson and Izmailov (2020), figure 2: the evidence of a model measures how well its prior over functions supports the
data. The prior of a convolutional network has its mass on functions of structured images. On labels that are unrelated
to the images no model should have more evidence than guessing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

import torchbayes as tb
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import usual_plan
from torchbayes.comparison.rounds import Round, best_round, train_in_rounds
from torchbayes.report import Picture, Table, figures
from torchbayes_experiments import (
    Experiment,
    Findings,
    Headline,
    Part,
    Results,
    Rows,
    below,
    load_or_compute,
    pivot,
    tidy,
)
from torchbayes_experiments.shared.classifiers import classifier, shuffled

# sets of labels, as results and tables name them
STRUCTURED, NOISY, RANDOM = "structured", "noisy labels", "random labels"
SLACK = 0.005  # nats per row above equal probabilities; the sizes of MNIST's classes, which shuffles keep, give 0.002


@dataclass(frozen=True)
class SupportRecipe:
    """Settings of all networks."""

    data: str = "mnist"
    # by name, in the expected order of evidence on structured data, the lowest first
    networks: tuple[str, ...] = ("linear", "mlp", "small_cnn")
    hidden: tuple[int, ...] = (50,)  # widths of the hidden layers of `mlp`
    train_size: int | None = 10_000  # number of training rows, drawn anew for each seed; None for all
    noise: float = 0.25  # share of the labels that are shuffled in the noisy set; in the random set all are
    prior_scale: float = 0.2  # standard deviation of the normal prior of every weight, before it is tuned
    groups: Literal["scalar", "layer"] = "layer"  # which factors on the prior's precision the evidence chooses
    epochs: int = 15  # of the first training
    again: int = 8  # epochs of each of `rounds` further trainings, under the prior that the evidence has chosen
    rounds: int = 2
    batch_size: int = 100
    lr: float = 5e-3  # initial learning rate of Adam, which falls to zero; `lr_again` for the further trainings
    lr_again: float = 2e-3
    test_rows: int = 1000  # number of test images, the first of the test set


def run(recipe: SupportRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return set -> network -> what `numbers` returns; and `uniform`, the log evidence of a row by guessing."""
    data = tb.data.load(recipe.data, train_size=recipe.train_size, seed=seed)
    results: dict[str, Any] = {"uniform": -math.log(data.num_classes)}
    for name, share in {STRUCTURED: 0.0, NOISY: recipe.noise, RANDOM: 1.0}.items():
        scored, stem = partial(numbers, recipe, data, share=share, seed=seed), name.replace(" ", "_")
        results[name] = {
            network: load_or_compute(directory / f"{stem}_{network}.json", scored, network)
            for network in recipe.networks
        }
    return results


def numbers(recipe: SupportRecipe, data: tb.data.Data, network: str, *, share: float, seed: int) -> dict[str, Any]:
    """Train one network on data with a share of the labels shuffled, and return its evidence and scores.

    `evidence`, `log_likelihood` (per row, in nats), `effective` (weights that the data determine), `weights`,
    `train_accuracy`, `test_accuracy`, `test_nll` (linearised predictive, true labels), `rounds` (evidence after each
    training), `scales` (standard deviations of the prior, smallest and largest) and `at_mode`.
    """
    prior, laplace = tb.priors.Normal(recipe.prior_scale), tb.Laplace(prior="model")
    model = classifier(network, data.input_shape, data.num_classes, prior=prior, hidden=recipe.hidden)
    train = (data.train.inputs, shuffled(data.train.targets, share, seed=seed))
    plan = usual_plan(Problem(network=network))
    first = tb.MAP(1, recipe.epochs, recipe.batch_size, tb.Adam(recipe.lr), plan=plan)
    again = [replace(first, epochs=recipe.again, optimizer=tb.Adam(recipe.lr_again))] * recipe.rounds
    rounds = train_in_rounds(model, train, first, laplace=laplace, groups=recipe.groups, again=again, seed=seed)
    chosen = best_round(rounds)
    test = (data.test.inputs[: recipe.test_rows], data.test.targets[: recipe.test_rows])
    scores = tb.evaluate(tb.Linearised(chosen.fitted), test).metrics
    return _evidence(chosen) | {
        "train_accuracy": tb.evaluate(chosen.mode, train).metrics["accuracy"],
        "test_accuracy": scores["accuracy"],
        "test_nll": scores["nll"],
        "rounds": [_evidence(each)["evidence"] for each in rounds],
    }


def _evidence(fit: Round) -> dict[str, Any]:
    posterior = fit.fitted
    scales = posterior.model.prior.stds()
    return {
        "evidence": float(posterior.log_evidence()) / posterior.num_data,
        "log_likelihood": float(posterior.log_likelihood_M) / posterior.num_data,
        "effective": float(posterior.effective_parameters()),
        "weights": posterior.mean_MD.shape[1],
        "scales": [float(scales.min()), float(scales.max())],
        "at_mode": fit.at_mode,
    }


def summarise(results: Results) -> Findings:
    rows = tidy(results, "labels", "network", "metric", lists=())
    return Findings.of(_parts(rows, results), _tables(rows, results), _pictures(rows, results[0]["uniform"]))


def _parts(rows: Rows, results: Results) -> Iterator[Part]:
    sets, networks, evidence = (STRUCTURED, NOISY, RANDOM), rows.names("network"), rows.where(metric="evidence")
    away = [sum(not result[labels][n]["at_mode"] for labels in sets for n in networks) for result in results]
    yield below("networks that are not at a mode: none", away, 0.5, precondition=True)
    for low, high in pairwise(networks):
        less = evidence.less("network", low, high, labels=STRUCTURED)
        yield below(f"structured: evidence of {low} below that of {high}", less)
    for name in networks:
        less, still_less = (evidence.less("labels", b, a, network=name) for a, b in pairwise(sets))
        yield below(f"{name}: evidence of noisy below structured labels", less)
        yield below(f"{name}: evidence of random below noisy labels", still_less)
    for name in networks:
        gained = evidence.values(network=name, labels=RANDOM) - np.array([result["uniform"] for result in results])
        yield below(f"random labels: {name} not above equal probabilities", gained, SLACK)


def _tables(rows: Rows, results: Results) -> Iterator[Table]:
    labels = {
        "evidence": "log evidence / row",
        "log_likelihood": "log likelihood / row",
        "effective": "effective weights",
        "train_accuracy": "training accuracy",
        "test_nll": "test NLL",
        "test_accuracy": "test accuracy",
    }
    yield pivot(
        rows,
        ("labels", "network"),
        "metric",
        keep={"weights": "weights"} | labels,
        beside={"weights": lambda labels, network: int(results[0][labels][network]["weights"])},
        digits={"effective weights": ".0f", "weights": ",d"},
        caption="Mean over seeds ± standard error. Evidence by Laplace with Kronecker factors, at the mode under a "
        f"prior that the evidence chose, in nats; equal probabilities have {results[0]['uniform']:.3f} a row. Test "
        "scores: linearised predictive, on true labels.".replace("-", "−"),
    )


def _pictures(rows: Rows, uniform: float) -> Iterator[Picture]:
    panels = {"log evidence per row (nats), higher is better": ("evidence", uniform)}
    panels |= {"test NLL (nats), lower is better": ("test_nll", -uniform)}
    drawn = figures.measure_curves(
        {title: rows.where(metric=metric).stacked("network", "labels") for title, (metric, _) in panels.items()},
        (STRUCTURED, NOISY, RANDOM),
        levels={title: ("equal probabilities", level) for title, (_, level) in panels.items()},
    )
    yield Picture(
        "Evidence of three networks",
        drawn,
        "Left: the evidence of each network in images with their labels, with a share of them shuffled, and with all "
        "of them shuffled. Right: what its predictions are worth on test images with true labels.",
    )


EXPERIMENT = Experiment(
    name="evidence_support",
    claim="In structured images a convolutional network finds more evidence than a perceptron, and that more than a "
    "linear model; in shuffled labels none finds more than guessing does.",
    source="Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of generalization, "
    "section 3 and figure 2",
    expected="On structured data the order of inductive biases; with noisy labels less evidence for each network, with "
    "random labels no more than −log K a row (the paper's figure is a sketch; it has no numbers).",
    differences="The sketch is put to the test: evidence by Laplace with Kronecker factors and a prior scale for each "
    "layer that the evidence chooses, in turns with training. The small scale has 10,000 MNIST images. On fewer "
    "(4,000 with the first seed) the linear model is ahead of the perceptron, whose first layer has a prior that knows "
    "nothing of images.",
    recipes={
        "small": SupportRecipe(),
        "paper": SupportRecipe(
            data="cifar10",
            networks=("linear", "mlp", "resnet20_frn"),
            hidden=(500,),
            train_size=None,
            epochs=100,
            again=50,
            test_rows=10_000,
        ),
    },
    cost={
        "small": "about three minutes on one core",
        "paper": "three networks of 200 epochs on three sets: hours on one GPU (an estimate)",
    },
    run=run,
    summarise=summarise,
    headline=Headline("log evidence per row (nats); guessing has −2.303", ("log evidence / row",)),
)
