"""Rethinking generalisation: labels that are fitted without a mistake, and evidence that falls with their disorder.

Wilson and Izmailov (2020), section 6: a model that can fit random labels need not consider them likely.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchbayes as tb
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import usual_plan
from torchbayes.comparison.rounds import train_in_rounds
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
from torchbayes_experiments.streams import Purpose, generator

# models, as results and tables name them
PROCESS, NETWORK, TUNED = "Gaussian process", "network", "network, prior tuned"
MISTAKES = 5e-4  # share of training rows that counts as none: less than one in all repeats


@dataclass(frozen=True)
class RandomLabelsRecipe:
    """Settings of both models; their priors are the same for every share."""

    data: str = "mnist"
    shares: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # of shuffled labels, in rising order
    network: str = "mlp"  # a network by name; `hidden` are the widths of `mlp`
    hidden: tuple[int, ...] = (100,)
    train_size: int | None = 1000  # number of training rows of the network, drawn anew for each seed; None for all
    prior_scale: float = 1.0  # standard deviation of the normal prior of every weight: wide enough to fit any labels
    epochs: int = 200
    batch_size: int = 100
    lr: float = 0.01  # initial learning rate of Adam; it falls to zero
    classes: tuple[int, int] = (3, 5)  # the two classes of the Gaussian process
    process_rows: int = 1000  # number of its training rows, of both classes
    amplitude: float = 10.0  # standard deviation of its latent function
    length_scale: float = 0.5  # of its kernel, in units of root mean square differences of standardised pixels
    test_rows: int | None = None  # number of test images of the network, the first of the test set


def run(recipe: RandomLabelsRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit both models to every share of shuffled labels.

    `shares`; `uniform`: model -> log evidence per row of equal probabilities; and model -> measure -> one value per
    share: `train_error`, `test_error`, `evidence` (per row, in nats), and for the network `tuned` (the evidence under
    the prior scale that maximises it at the same weights), `scale` (that scale) and `at_mode`.
    """
    data = tb.data.load(recipe.data, train_size=recipe.train_size, seed=seed)
    pair = two_classes(tb.data.load(recipe.data), recipe, seed=seed)
    uniform = {PROCESS: -math.log(2), NETWORK: -math.log(data.num_classes)}
    results: dict[str, Any] = {"shares": list(recipe.shares), "uniform": uniform}
    for label, score in ((PROCESS, partial(of_process, recipe, pair)), (NETWORK, partial(of_network, recipe, data))):
        stem = label.replace(" ", "_").lower()
        each = [
            load_or_compute(directory / f"{stem}_{share:g}.json", score, share, seed=seed) for share in recipe.shares
        ]
        results[label] = {measure: [scores[measure] for scores in each] for measure in each[0]}
    return results


def two_classes(data: tb.data.Data, recipe: RandomLabelsRecipe, *, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs and targets (0 and 1) of two classes, for training and for testing.

    Inputs (N, D) are float64, scaled so that squared distances are mean squares over the pixels.
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
    """Return the measures of a Gaussian process classifier by Laplace's approximation in function space."""
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


def of_network(recipe: RandomLabelsRecipe, data: tb.data.Data, share: float, *, seed: int) -> dict[str, Any]:
    """Return the measures of a network whose posterior Laplace approximates with Kronecker factors."""
    prior = tb.priors.Normal(recipe.prior_scale)
    model = classifier(recipe.network, data.input_shape, data.num_classes, prior=prior, hidden=recipe.hidden)
    train = (data.train.inputs, shuffled(data.train.targets, share, seed=seed))
    plan = usual_plan(Problem(network=recipe.network))
    method = tb.MAP(1, recipe.epochs, recipe.batch_size, tb.Adam(recipe.lr), plan=plan)
    [fit] = train_in_rounds(model, train, method, laplace=tb.Laplace(prior="model"), seed=seed)
    test = (data.test.inputs[: recipe.test_rows], data.test.targets[: recipe.test_rows])
    return {
        "train_error": 1 - tb.evaluate(fit.mode, train).metrics["accuracy"],
        "test_error": 1 - tb.evaluate(fit.mode, test).metrics["accuracy"],
        "evidence": float(fit.fitted.log_evidence()) / fit.fitted.num_data,
        "tuned": float(fit.tuned.log_evidence()) / fit.tuned.num_data,
        "scale": float(fit.tuned.model.prior.stds()[0]),
        "at_mode": fit.at_mode,
    }


ERRORS = {
    f"{model}, {rows}": (model, measure)
    for model in (PROCESS, NETWORK)
    for rows, measure in (("training", "train_error"), ("test", "test_error"))
}
EVIDENCE = {PROCESS: (PROCESS, "evidence"), NETWORK: (NETWORK, "evidence"), TUNED: (NETWORK, "tuned")}


def summarise(results: Results) -> Findings:
    columns = ERRORS | EVIDENCE
    measures = [{label: r[model][measure] for label, (model, measure) in columns.items()} for r in results]
    shares, uniform = results[0]["shares"], results[0]["uniform"]
    rows, written = tidy(measures, "measure", lists=("share",)), [f"{100 * share:g} %" for share in shares]
    return Findings.of(
        _parts(rows, results, written), _tables(rows, written, uniform), _pictures(rows, shares, uniform)
    )


def _parts(rows: Rows, results: Results, shares: Sequence[str]) -> Iterator[Part]:
    away = [sum(not at_mode for at_mode in result[NETWORK]["at_mode"]) for result in results]
    yield below("networks that are not at a mode: none", away, 0.5, precondition=True)
    for label in (PROCESS, NETWORK):
        worst = [max(result[label]["train_error"]) for result in results]
        yield below(f"{label}: no mistake on the training rows, whatever the share", worst, MISTAKES)
    for label in EVIDENCE:
        for low, high in pairwise(range(len(shares))):
            less = rows.less("share", high, low, measure=label)
            yield below(f"{label}: evidence at {shares[high]} shuffled below that at {shares[low]}", less)


def _tables(rows: Rows, shares: Sequence[str], uniform: Mapping[str, float]) -> Iterator[Table]:
    table = partial(pivot, rows, "share", "measure", heads=["shuffled"], labels=dict(enumerate(shares)))
    yield table(
        keep=list(ERRORS),
        caption="Share of mistakes, on the training rows by their own (shuffled) labels and on test rows by the true "
        "ones: mean over seeds ± standard error.",
    )
    yield table(
        keep=list(EVIDENCE),
        caption="Log evidence per row, in nats: mean over seeds ± standard error. Equal probabilities have "
        f"{uniform[PROCESS]:.3f} for the two classes of the process and {uniform[NETWORK]:.3f} for the network's; a "
        "value below says that guessing explains these labels better. Prior tuned: under the one scale that maximises "
        "the evidence at the same weights.".replace("-", "−"),
    )


def _pictures(rows: Rows, shares: Sequence[float], uniform: Mapping[str, float]) -> Iterator[Picture]:
    drawn = rows.stacked("measure", "share")
    process, network = "log evidence per row, Gaussian process", "log evidence per row, network"
    panels = {
        "training accuracy": {name: 1 - drawn[f"{name}, training"] for name in (PROCESS, NETWORK)},
        "test error": {name: drawn[f"{name}, test"] for name in (PROCESS, NETWORK)},
        process: {PROCESS: drawn[PROCESS]},
        network: {name: drawn[name] for name in (NETWORK, TUNED)},
    }
    levels = {process: ("equal probabilities", uniform[PROCESS]), network: ("equal probabilities", uniform[NETWORK])}
    label = "share of shuffled labels"
    percent = ("training accuracy", "test error", label)
    yield Picture(
        "Fitted without a mistake, and not believed",
        figures.measure_curves(panels, shares, label=label, levels=levels, percent=percent),
        "Training accuracy, test error and log evidence, in nats per row, against the share of shuffled labels.",
    )


EXPERIMENT = Experiment(
    name="evidence_random_labels",
    claim="Training accuracy stays at 100 % however many labels are shuffled, while the log evidence falls strictly "
    "with their share, for a Gaussian process and for a network.",
    source="Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of generalization, "
    "section 6",
    expected="Falls with every share: in the paper the bound on the evidence of a Gaussian process on two classes of "
    "CIFAR-10, and the Laplace evidence of PreResNet-20, while the test error rises.",
    differences="Laplace's approximation in the place of the process's variational bound, and its kernel is the same "
    "for every share; were it chosen by the evidence, its best for half of the labels shuffled or more would be "
    "guessing (seen on 400 rows). The small scale has a perceptron with 100 hidden units on 1,000 MNIST images and "
    "the digits 3 and 5.",
    recipes={
        "small": RandomLabelsRecipe(),
        "paper": RandomLabelsRecipe(
            data="cifar10",
            network="preresnet20",
            train_size=None,
            prior_scale=0.25,
            epochs=300,
            batch_size=128,
            lr=1e-3,
            classes=(0, 1),
            process_rows=10_000,
        ),
    },
    cost={
        "small": "about 20 seconds on one core",
        "paper": "six networks of 300 epochs: a day on one GPU; a step of the process takes 10,000³ operations (an "
        "estimate)",
    },
    run=run,
    summarise=summarise,
    headline=Headline("log evidence per row by the share of shuffled labels (nats)", ("network",)),
)
