"""Rethinking generalisation: labels that are fitted without a mistake, and evidence that falls with their disorder.

Wilson and Izmailov (2020), section 6: a model that can fit random labels need not believe in them. For a Gaussian
process and for a network the training accuracy stays at 100 % however many labels are shuffled, and the log evidence
falls with every share of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import usual_plan
from torchbayes.data import Data, load
from torchbayes.experiments.evidence_rounds import kept, rounds, shuffled
from torchbayes.experiments.experiment import Experiment, Findings
from torchbayes.experiments.verdicts import Part, Verdict, below, mean_and_error
from torchbayes.methods import MAP, Adam, Laplace
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors.univariate import Normal
from torchbayes.native.seeds import Purpose, generator
from torchbayes.report import Picture, Table, figures

PROCESS, NETWORK, TUNED = "Gaussian process", "network", "network, prior tuned"
MISTAKES = 5e-4  # share of training rows that counts as none: less than one in all repeats


@dataclass(frozen=True)
class Recipe:
    """Settings of both models; their priors are the same for every share.

    Attributes:
        data: an image data set by name.
        shares: of shuffled labels, rising.
        network: by name.
        hidden: widths of the hidden layers, for `mlp`.
        train_size: training rows of the network, another draw for each seed; None for all.
        prior_scale: standard deviation of the normal prior of every weight: wide enough to fit any labels.
        epochs: passes over the data.
        batch_size: rows per step.
        lr: learning rate of Adam, at first; it falls to nothing.
        classes: the two that the Gaussian process tells apart.
        process_rows: its training rows, of both classes.
        amplitude: standard deviation of its latent function.
        length_scale: of its kernel, in units of root mean square differences of standardised pixels.
        test_rows: test images of the network, the first of the test set.
    """

    data: str = "mnist"
    shares: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
    network: str = "mlp"
    hidden: tuple[int, ...] = (100,)
    train_size: int | None = 1000
    prior_scale: float = 1.0
    epochs: int = 200
    batch_size: int = 100
    lr: float = 0.01
    classes: tuple[int, int] = (3, 5)
    process_rows: int = 1000
    amplitude: float = 10.0
    length_scale: float = 0.5
    test_rows: int | None = None


def run(recipe: Recipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit both models to every share of shuffled labels.

    Args:
        recipe: the settings.
        seed: of the training rows, the shuffles, the initialisation and the data order.
        directory: of this seed; each model at each share leaves a file, so that an interrupted run goes on.

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
    for label, score in (
        (PROCESS, lambda share: of_process(recipe, pair, share, seed=seed)),
        (NETWORK, lambda share: of_network(recipe, data, share, seed=seed)),
    ):
        each = [
            kept(directory / f"{label.replace(' ', '_').lower()}_{share:g}.json", lambda s=share, f=score: f(s))
            for share in recipe.shares
        ]
        found[label] = {measure: [one[measure] for one in each] for measure in each[0]}
    return found


def two_classes(data: Data, recipe: Recipe, *, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs and targets (0 and 1) of two classes, for training and for the test.

    Args:
        data: a classification set.
        recipe: names the classes and the number of training rows.
        seed: of the choice of training rows.

    Returns:
        Training inputs (N, D), in units in which squared distances are mean squares over the pixels, float64; training
        targets (N,); test inputs and targets.

    Raises:
        ValueError: if there are fewer rows of both classes than are asked for.
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


def of_process(recipe: Recipe, pair: Sequence[Tensor], share: float, *, seed: int) -> dict[str, float]:
    """Fit a Gaussian process classifier by Laplace's approximation in function space.

    Args:
        recipe: the settings.
        pair: what `two_classes` gives.
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


def of_network(recipe: Recipe, data: Data, share: float, *, seed: int) -> dict[str, Any]:
    """Train a network, and approximate its posterior by Laplace with Kronecker factors.

    Args:
        recipe: the settings.
        data: with labels as they are.
        share: of shuffled labels.
        seed: of everything random.

    Returns:
        measure -> value.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = {"hidden": recipe.hidden} if recipe.network == "mlp" else {}
    module = networks.build(recipe.network, data.input_shape, data.num_classes, **settings).to(device)
    model = Model(module, Categorical(), Normal(recipe.prior_scale))
    train = (data.train.inputs, shuffled(data.train.targets, share, seed=seed))
    plan = usual_plan(Problem(network=recipe.network))
    method = MAP(1, recipe.epochs, recipe.batch_size, Adam(recipe.lr), plan=plan)
    [found] = rounds(model, train, method, laplace=Laplace(), seed=seed)
    test = (data.test.inputs[: recipe.test_rows], data.test.targets[: recipe.test_rows])
    return {
        "train_error": 1 - evaluate(found.mode, train).metrics["accuracy"],
        "test_error": 1 - evaluate(found.mode, test).metrics["accuracy"],
        "evidence": float(found.fitted.log_evidence()) / found.fitted.num_data,
        "tuned": float(found.tuned.log_evidence()) / found.tuned.num_data,
        "scale": float(found.tuned.model.prior.stds()[0]),
        "at_mode": found.at_mode,
    }


def summarise(results: Sequence[Mapping[str, Any]]) -> Findings:
    """Turn the seeds' numbers into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    away = [sum(not one for one in result[NETWORK]["at_mode"]) for result in results]
    parts = [below("networks that are not at a mode: none", away, 0.5, precondition=True)]
    for label in (PROCESS, NETWORK):
        worst = [max(result[label]["train_error"]) for result in results]
        parts.append(below(f"{label}: no mistake on the training rows, whatever the share", worst, MISTAKES))
    evidence = _evidence(results)
    for label, values in evidence.items():
        parts += _falls(label, values, results[0]["shares"])
    return Findings(Verdict.of(parts), _tables(results, evidence), (_figure(results, evidence),))


def _evidence(results: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return what has evidence -> values (shares, repeats)."""
    keys = {PROCESS: (PROCESS, "evidence"), NETWORK: (NETWORK, "evidence"), TUNED: (NETWORK, "tuned")}
    return {label: _column(results, *key) for label, key in keys.items()}


def _column(results: Sequence[Mapping[str, Any]], label: str, measure: str) -> np.ndarray:
    return np.array([result[label][measure] for result in results], dtype=np.float64).T


def _falls(label: str, values: np.ndarray, shares: Sequence[float]) -> list[Part]:
    return [
        below(f"{label}: evidence at {100 * b:g} % shuffled below that at {100 * a:g} %", values[at + 1] - values[at])
        for at, (a, b) in enumerate(pairwise(shares))
    ]


def _tables(results: Sequence[Mapping[str, Any]], evidence: Mapping[str, np.ndarray]) -> tuple[Table, Table]:
    shares = [f"{100 * share:g} %" for share in results[0]["shares"]]
    columns = {
        f"{name}, {label}": _column(results, name, key)
        for name in (PROCESS, NETWORK)
        for label, key in (("training", "train_error"), ("test", "test_error"))
    }
    errors = Table(
        ["shuffled", *columns],
        [[share, *(mean_and_error(values[at]) for values in columns.values())] for at, share in enumerate(shares)],
        "Share of mistakes, on the training rows by their own (shuffled) labels and on test rows by the true ones: "
        "mean over seeds ± standard error.",
    )
    uniform = results[0]["uniform"]
    found = Table(
        ["shuffled", *evidence],
        [[share, *(mean_and_error(values[at]) for values in evidence.values())] for at, share in enumerate(shares)],
        "Log evidence per row, in nats: mean over seeds ± standard error. Equal probabilities have "
        f"{uniform[PROCESS]:.3f} for the two classes of the process and {uniform[NETWORK]:.3f} for the network's; a "
        "value below says that guessing explains these labels better. Prior tuned: under the one scale that maximises "
        "the evidence at the same weights.".replace("-", "−"),
    )
    return errors, found


def _figure(results: Sequence[Mapping[str, Any]], evidence: Mapping[str, np.ndarray]) -> Picture:
    uniform = results[0]["uniform"]
    process, network = "log evidence per row, Gaussian process", "log evidence per row, network"
    panels = {
        "training accuracy": {n: 1 - _column(results, n, "train_error") for n in (PROCESS, NETWORK)},
        "test error": {n: _column(results, n, "test_error") for n in (PROCESS, NETWORK)},
        process: {PROCESS: evidence[PROCESS]},
        network: {n: evidence[n] for n in (NETWORK, TUNED)},
    }
    levels = {process: ("equal probabilities", uniform[PROCESS]), network: ("equal probabilities", uniform[NETWORK])}
    label = "share of shuffled labels"
    drawn = figures.measure_curves(
        panels,
        results[0]["shares"],
        label=label,
        levels=levels,
        percent=("training accuracy", "test error", label),
    )
    return Picture(
        "Fitted without a mistake, and not believed",
        drawn,
        "Training accuracy, test error and log evidence, in nats per row, against the share of shuffled labels.",
    )


PAPER = Recipe(
    data="cifar10",
    network="preresnet20",
    train_size=None,
    prior_scale=0.25,
    epochs=300,
    batch_size=128,
    lr=1e-3,
    classes=(0, 1),
    process_rows=10_000,
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
    recipes={"small": Recipe(), "paper": PAPER},
    cost={
        "small": "about 20 seconds on one core",
        "paper": "six networks of 300 epochs: a day on one GPU; a step of the process takes 10,000³ operations (an "
        "estimate)",
    },
    run=run,
    summarise=summarise,
)
