"""Which rows to label: BALD, BatchBALD and EPIG beside the smallest margin and rows at random.

Gal, Islam and Ghahramani (2017) choose images by BALD and need fewer labels than at random; Kirsch et al. (2019) choose
batches whose labels do not repeat each other, and Bickford Smith et al. (2023) labels that say most of other inputs.
Here all start at the same rows, and see the same functions, those of a deep ensemble.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchbayes as tb
from torchbayes import acquisition
from torchbayes.report import Picture, Table, figures
from torchbayes_experiments import Experiment, Findings, Headline, Results, Rows, below, load_or_compute, pivot, tidy
from torchbayes_experiments.shared.classifiers import classifier
from torchbayes_experiments.streams import Purpose, generator

RANDOM, MARGIN = "random", "margin"
SCORES = ("bald", "batchbald", "epig")
WAYS = (*SCORES, MARGIN, RANDOM)
LABELS = {"bald": "BALD", "batchbald": "BatchBALD", "epig": "EPIG", MARGIN: "margin", RANDOM: "at random"}


@dataclass(frozen=True)
class AcquisitionRecipe:
    """Settings of all sets; none was chosen by test rows."""

    # australian is read from the folder `tabular` of TORCHBAYES_DATA, Fashion-MNIST from `fashion_mnist`
    sets: tuple[str, ...] = ("digits", "fashion_mnist", "breast_cancer", "australian")
    pool: int = 1500  # rows to choose from, and test rows of images, at most
    tested: float = 0.3  # share of the rows of a table that are test rows
    first: int = 20  # rows at the start
    acquire: int = 5  # rows of a round
    rounds: int = 6
    hidden: tuple[int, ...] = (50,)  # units of each layer
    members: int = 10  # M, networks of the ensemble, which are the S draws too
    epochs: int = 80
    lr: float = 0.01  # of Adam


def parts_of(recipe: AcquisitionRecipe, name: str, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return pool and test rows, in units of the standard deviations of the pool."""
    source = generator(Purpose.HELD_OUT, seed)
    if name in {"digits", "fashion_mnist"}:
        data = tb.data.load(name)
        order = torch.randperm(len(data.train.inputs), generator=source)[: recipe.pool]
        return (data.train.inputs[order].flatten(1), data.train.targets[order]), (
            data.test.inputs[: recipe.pool].flatten(1),
            data.test.targets[: recipe.pool],
        )
    inputs, classes = table_of(name)
    order = torch.randperm(len(inputs), generator=source)
    test, pool = order.split([size := round(recipe.tested * len(order)), len(order) - size])
    spread, mean = torch.std_mean(inputs[pool], 0)
    inputs = (inputs - mean) / torch.where(spread > 0, spread, 1.0)
    return (inputs[pool[: recipe.pool]], classes[pool[: recipe.pool]]), (inputs[test], classes[test])


def table_of(name: str) -> tuple[Tensor, Tensor]:
    """Return the inputs (N, D) and classes (N,) of a table."""
    if name == "breast_cancer":
        from sklearn.datasets import load_breast_cancer

        inputs, classes = load_breast_cancer(return_X_y=True)
    else:
        rows = np.loadtxt(Path(os.environ.get("TORCHBAYES_DATA", ".")) / "tabular" / f"{name}_proc.data")
        inputs, classes = rows[:, :-1], rows[:, -1]
    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(classes).long()


def run(recipe: AcquisitionRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return set -> way -> metric -> values, by round, of test rows; and how many rows of each class were chosen."""
    return {name: load_or_compute(directory / f"{name}.json", curves, recipe, name, seed=seed) for name in recipe.sets}


def curves(recipe: AcquisitionRecipe, name: str, *, seed: int) -> dict[str, Any]:
    """Return way -> metric -> values by round, of one set and its split."""
    pool, test = parts_of(recipe, name, seed)
    count = int(pool[1].max()) + 1
    model = classifier("mlp", pool[0].shape[1:], count, prior=tb.priors.Normal(1.0), hidden=recipe.hidden)
    method = tb.MAP(recipe.members, recipe.epochs, 256, tb.Adam(recipe.lr))
    sizes = acquisition.Sizes(recipe.first, recipe.acquire, recipe.rounds)
    plan = acquisition.Plan(sizes, (*SCORES, MARGIN), seeds=1, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are hardly chosen, and draws that are few: the results say it
        done = acquisition.study(model, pool, method, test=test, plan=plan, callbacks=())
    by_way: dict[str, Any] = {}
    for way in WAYS:
        rounds = [each for each in done.rounds if each.way == way]
        chosen = [place for each in rounds for place in each.taken]
        of_class = torch.bincount(pool[1][chosen], minlength=count).double() / max(len(chosen), 1)
        by_way[way] = {
            "error": [1 - each.metrics["accuracy"] for each in rounds],
            "nll": [each.metrics["nll"] for each in rounds],
            "rarest": float(of_class.min() * count),
        }
    return by_way


def summarise(results: Results) -> Findings:
    """The repeats are seeds: pools, first rows and initialisations. What is compared is the mean over rounds."""
    rows = tidy(results, "set", "method", "metric", lists=("round",)).only(method=WAYS)
    later = rows.where(metric=["error", "nll"])
    errors = later.where(metric="error")
    parts = []
    for name in errors.names("set"):
        for score in SCORES:
            less = errors.where(set=name).less("method", score, RANDOM)
            parts.append(below(f"{name}: mean error by {LABELS[score]} below that at random", less))
    for first, second in (("batchbald", "bald"), ("epig", "bald")):
        less = errors.less("method", first, second)
        parts.append(below(f"mean error over sets by {LABELS[first]} below that by {LABELS[second]}", less))
    for score in SCORES:
        less = errors.less("method", score, MARGIN)
        parts.append(below(f"mean error over sets by {LABELS[score]} below that by the margin", less))
    return Findings.of(parts, _tables(rows), _pictures(errors, results))


def _tables(rows: Rows) -> Iterator[Table]:
    for metric, label in (("error", "Error"), ("nll", "NLL")):
        yield pivot(
            rows.where(metric=metric),
            "set",
            "method",
            keep=LABELS,
            better="low",
            caption=f"{label} of test rows, mean over the rounds: mean over seeds ± standard error.",
        )
    yield pivot(
        rows.where(metric="rarest"),
        "set",
        "method",
        keep=LABELS,
        caption="Share of the rarest class among the chosen rows, in units of one over the number of classes: mean "
        "over seeds ± standard error.",
    )


def _pictures(errors: Rows, results: Results) -> Iterator[Picture]:
    for name in results[0]:
        of_set = errors.where(set=name)
        places = of_set.names("round")
        values = {
            LABELS[way]: np.stack([of_set.values("seed", method=way, round=place) for place in places]) for way in WAYS
        }
        yield Picture(
            f"Test error on {name}",
            figures.measure_curves({"error": values}, places, label="round", percent=["error"]),
            "Error of the ensemble on test rows after each round: mean over seeds with two standard errors.",
        )


EXPERIMENT = Experiment(
    name="active_learning",
    claim="Rows that BALD, BatchBALD or EPIG choose make an ensemble better than as many rows at random, batches "
    "chosen together better than one by one, and labels that say most of other inputs better than those that say most "
    "of the weights.",
    source="Gal, Islam and Ghahramani 2017, Deep Bayesian active learning with image data; Kirsch, van Amersfoort and "
    "Gal 2019, BatchBALD; Bickford Smith, Kirsch, Farquhar, Gal, Foster and Rainforth 2023, Prediction-oriented "
    "Bayesian active learning",
    expected="On each set a lower mean error over the rounds than at random; BatchBALD and EPIG below BALD; all below "
    "the margin, which needs no posterior.",
    differences="A deep ensemble in the place of MC dropout, perceptrons in the place of convolutions, 50 labels at "
    "most, and fits of a fixed length.",
    recipes={
        "small": AcquisitionRecipe(),
        "paper": AcquisitionRecipe(pool=20_000, rounds=30, members=50, epochs=400),
    },
    cost={
        "small": "half a minute of one core for a seed; two to three minutes beside other work",
        "paper": "about an hour of one core for a seed (an estimate)",
    },
    run=run,
    summarise=summarise,
    headline=Headline(
        "error of test digits, mean over the rounds",
        tuple(LABELS.values()),
        table="Error of test rows",
        where=("digits",),
    ),
)
