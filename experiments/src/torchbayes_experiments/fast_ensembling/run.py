"""What `fast_ensembling` computes for one seed: three runs of each kind, averaged one, two and three at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.data import load
from torchbayes.driver.progress import Callback, Event
from torchbayes.methods.cycles.base import kept
from torchbayes.methods.cycles.fge import FGE
from torchbayes.methods.schedules import Progress
from torchbayes.model import Model
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Point
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.fast_ensembling.recipe import FAST, INDEPENDENT, SNAPSHOTS, FastRecipe
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import METRICS, classifier, metrics_of

Test = tuple[Tensor, Tensor]
_RATES = 20  # of a run's learning rate that are written for the figure, in an epoch


def run(recipe: FastRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit all kinds from the same initialisations, and score them on the test images.

    Args:
        recipe: the settings.
        seed: seed of initialisations and data orders; the training rows are the same for every seed.
        directory: of this seed; the fits resume there.

    Returns:
        `kinds`: kind -> `scores`; `path`: the first run of FGE, see `path_of`, with the `independent` network that
        began at the same weights; `largest_error` of the recipe.
    """
    data = load(recipe.data, train_size=recipe.train_size)
    model = classifier(recipe.network, data.input_shape, data.num_classes, prior=Normal(recipe.prior_scale))
    test = data.test.inputs[: recipe.test_rows], data.test.targets[: recipe.test_rows]
    fast = recipe.fast()
    methods = {INDEPENDENT: recipe.independent(), FAST: fast, SNAPSHOTS: recipe.snapshots()}
    averages: dict[str, Predictive] = {}
    for name, method in methods.items():
        home = directory / name.replace(" ", "_")
        watch = () if name == SNAPSHOTS else (watched(model, test, home / "epochs"),)
        posterior = fit(model, data.train, method, seed=seed, directory=home, resume=True, callbacks=watch)
        averages[name] = predict(posterior, test[0])
    path = path_of(averages[FAST], test[1], fast, ends=seen(directory / FAST / "epochs"))
    alone = seen(directory / INDEPENDENT.replace(" ", "_") / "epochs")
    return {
        "kinds": {name: scores(average, test[1], recipe.units) for name, average in averages.items()},
        "path": {**path, "independent": alone},
        "largest_error": recipe.largest_error,
    }


def watched(model: Model, test: Test, folder: Path) -> Callback:
    """Return a callback that writes the metrics of the first run's network at the end of every epoch.

    Args:
        model: the model.
        test: test images and their classes.
        folder: where the files go, one for each epoch, so that a run that is resumed has them all.

    Returns:
        The callback.
    """

    def callback(event: Event) -> None:
        def compute() -> dict[str, Any]:
            buffers_M = {name: buffer[:1] for name, buffer in event.state.buffers.items()}
            here = Point(model, event.state.weights_MD[:1], buffers_M=buffers_M or None, statistics_known=True)
            found = metrics_of(predict(here, test[0]), test[1].to(model.network.device))
            return {"epoch": event.epoch, "step": event.step, **found}

        load_or_compute(folder / f"{event.epoch:04}.json", compute)

    return callback


def seen(folder: Path) -> list[dict[str, Any]]:
    """Return what `watched` wrote, in the order of the epochs."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]


def path_of(
    average: Predictive, targets: Tensor, method: FGE, *, ends: Sequence[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return what happens along the first run of FGE.

    Args:
        average: of all networks that were kept; row s is of run s mod M.
        targets: classes of the test images.
        method: the settings of the runs.
        ends: epoch, step and metrics at the end of every epoch.

    Returns:
        Lists of records that have an `epoch`: `rates`, the learning rate `lr`; `ends`, the metrics of the network at
        the ends of epochs; `kept`, those of the networks kept; `average`, those of the average of all networks kept
        until then.
    """
    per_epoch, total = ends[0]["step"], ends[-1]["step"]
    steps = np.unique(np.linspace(0, total - 1, _RATES * len(ends) + 1).round().astype(int)).tolist()
    epochs = [step / per_epoch for step in kept(method, total, per_epoch)]
    rows = range(0, average.draws, method.members)
    return {
        "rates": [
            {"epoch": (step + 1) / per_epoch, "lr": method.rate(Progress(step, total, per_epoch))} for step in steps
        ],
        "ends": list(ends),
        "kept": [{"epoch": e, **metrics(average, targets, [row])} for e, row in zip(epochs, rows, strict=True)],
        "average": [{"epoch": e, **metrics(average, targets, rows[: k + 1])} for k, e in enumerate(epochs)],
    }


def scores(average: Predictive, targets: Tensor, runs: int) -> dict[str, Any]:
    """Return the metrics of one kind at every budget, and of its networks alone.

    Args:
        average: of the networks of all runs; row s is of run s mod M.
        targets: classes of the test images.
        runs: M.

    Returns:
        `networks`: kept in a run; `budgets`: of 1, 2, ..., M runs, the mean over all choices of so many; `last`: of
        the last network of a run, and `each`: of a network, means over runs; `within`, `between`: share of the test
        images on which two networks of one run, or of two runs, name different classes (None without such pairs).
    """
    rows = range(average.draws)

    def mean(choices: Sequence[Sequence[int]]) -> dict[str, float]:
        found = [metrics(average, targets, choice) for choice in choices]
        return {key: float(np.mean([one[key] for one in found])) for key in METRICS}

    def of_runs(chosen: Sequence[int]) -> list[int]:
        return [row for row in rows if row % runs in chosen]

    within, between = disagreements(average.outputs_SBK.argmax(-1), runs)
    return {
        "networks": average.draws // runs,
        "budgets": [mean([of_runs(chosen) for chosen in combinations(range(runs), b)]) for b in range(1, runs + 1)],
        "last": mean([[row] for row in rows[-runs:]]),
        "each": mean([[row] for row in rows]),
        "within": within,
        "between": between,
    }


def metrics(average: Predictive, targets: Tensor, rows: Sequence[int]) -> dict[str, float]:
    """Return the metrics of the average of some networks."""
    part = replace(average, outputs_SBK=average.outputs_SBK[list(rows)])
    return metrics_of(part, targets.to(part.outputs_SBK.device))


def disagreements(labels_SB: Tensor, runs: int) -> tuple[float | None, float | None]:
    """Return how often two networks disagree, mean over pairs: of one run, and of two runs.

    Args:
        labels_SB: the classes that networks name; network s is of run s mod M.
        runs: M.

    Returns:
        Both shares of the B images; None where there is no such pair.
    """
    count = len(labels_SB)
    shares = {True: [], False: []}
    for first, second in combinations(range(count), 2):
        share = (labels_SB[first] != labels_SB[second]).to(torch.float64).mean()
        shares[first % runs == second % runs].append(float(share))
    within, between = (float(np.mean(found)) if found else None for found in (shares[True], shares[False]))
    return within, between
