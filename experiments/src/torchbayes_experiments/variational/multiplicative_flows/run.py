"""Settings of `multiplicative_flows`, and what it computes for one seed.

Those of photographs at the small scale were chosen by the error on 2,500 training images of the five classes that were
left over by one choice of 10,000, in one run each of 30 epochs; digits have the same. Errors in %:

    L2          prior of scale 0.45, which is the weight decay of 5e-4 for 10,000 rows: 25.9, and with dropout 21.5
    FFG         whole divergence from the first step, weights drawn: 26.3 under a prior of scale 1, 29.8 of 0.1;
                warm-up over half of the run: 25.2, and with noise in the layers 23.8
    FFLU        warm-up, noise in the layers, scales of 0.005 at first: 30.9; without warm-up, weights drawn, at 0.02,
                on test images: 42.6
    MNF         whole divergence, weights drawn: 26.5 under a prior of scale 1, 31.5 of 0.1, 32.6 at a learning rate of
                3e-3; noise in the layers: 24.6, and with warm-up 23.5
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import torchbayes as tb
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import METRICS, classifier

L2, DROPOUT, ENSEMBLE, FFG, FFLU, FLOWS = "L2", "MC dropout", "deep ensemble", "FFG", "FFLU", "MNF"
METHODS = (L2, DROPOUT, ENSEMBLE, FFG, FFLU, FLOWS)
PHOTOGRAPHS, DIGITS = "photographs", "digits"
BINS = 100  # of entropy, from 0 to log K


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set, a LeNet, and the methods that are fitted."""

    data: str
    classes: tuple[str, ...] | None = None  # those of its classes that are seen; all if None
    train_size: int | None  # number of training rows, drawn by the seed; None for all
    test_rows: int | None  # how many test images of seen and of unseen classes are scored; None for all
    channels: tuple[int, int] = (20, 50)  # filters of the two convolutions
    hidden: int = 500
    ensemble: tb.MAP  # the deep ensemble, whose first network is L2
    dropout: tb.MCDropout
    rate: float = 0.5  # of dropout, before each dense layer
    gaussian: tb.VI  # FFG, under the normal prior
    log_uniform: tb.VI | None  # FFLU, under the log-uniform prior; None to leave it out
    flows: tb.MNF
    decay_scale: float = 0.45  # standard deviation of the normal prior of L2, the ensemble and dropout
    prior_scale: float = 1.0  # that of FFG and MNF
    draws: int = 50  # functions drawn of each posterior, with `draw_seed`
    draw_seed: int = 0

    def named(self) -> dict[str, tb.MAP | tb.MCDropout | tb.VI | tb.MNF]:
        """Return the methods by their names in tables, in their order."""
        variational = {FFG: self.gaussian} | ({} if self.log_uniform is None else {FFLU: self.log_uniform})
        return {L2: self.ensemble, DROPOUT: self.dropout, ENSEMBLE: self.ensemble, **variational, FLOWS: self.flows}

    def named_priors(self) -> dict[str, tb.priors.Prior]:
        decay, normal = tb.priors.Normal(self.decay_scale), tb.priors.Normal(self.prior_scale)
        return {**dict.fromkeys(METHODS, decay), FFG: normal, FFLU: tb.priors.LogUniform(), FLOWS: normal}


@dataclass(frozen=True, kw_only=True)
class Photographs(Task):
    """Some classes of photographs are seen in training, the others are not."""


@dataclass(frozen=True, kw_only=True)
class Digits(Task):
    """Digits of one class are turned."""

    digit: str  # the class
    count: int  # how many of its test images are turned, the first ones
    angles: tuple[int, ...] = tuple(range(0, 181, 10))  # degrees, counter-clockwise


@dataclass(frozen=True)
class MultiplicativeFlowsRecipe:
    """The tasks; None to leave one out."""

    photographs: Photographs | None
    digits: Digits | None


_TRAINED = {"epochs": 30, "batch_size": 100, "optimizer": tb.Adam(1e-3)}
_VI = tb.VI(**_TRAINED, estimator="auto", kl_weight=tb.WarmUp(0.5))
_METHODS: dict[str, Any] = {
    "ensemble": tb.MAP(**_TRAINED, members=5),
    "dropout": tb.MCDropout(**_TRAINED),
    "gaussian": _VI,
    "flows": tb.MNF(**_TRAINED, estimator="auto", kl_weight=tb.WarmUp(0.5)),
}
SMALL = MultiplicativeFlowsRecipe(
    Photographs(
        data="cifar10",
        classes=("airplane", "automobile", "bird", "cat", "deer"),
        train_size=10_000,
        test_rows=None,
        log_uniform=replace(_VI, initial_scale=0.005),
        **_METHODS,
    ),
    Digits(data="mnist", train_size=5000, test_rows=2000, log_uniform=None, digit="3", count=200, **_METHODS),
)


def _as_published(task: Any, rows: int, **changes: Any) -> Any:
    """Return a task of so many rows: 100 epochs at one learning rate, narrow weights at first, and more draws."""
    long = {name: replace(method, epochs=100, schedule=tb.Constant()) for name, method in _METHODS.items()}
    narrow = {name: replace(long[name], initial_scale=math.exp(-9)) for name in ("gaussian", "flows")}
    methods = long | narrow | {"log_uniform": narrow["gaussian"]}
    return replace(task, decay_scale=(5e-4 * rows) ** -0.5, draws=100, **methods, **changes)


PAPER = MultiplicativeFlowsRecipe(
    _as_published(SMALL.photographs, 25_000, train_size=None, channels=(192, 192), hidden=1000),
    _as_published(SMALL.digits, 50_000, train_size=50_000, test_rows=None, count=1010),
)


def run(recipe: MultiplicativeFlowsRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return "photographs" -> method -> what `on_photographs` returns; "digits" -> what `turned` returns."""
    results: dict[str, Any] = {}
    if recipe.photographs is not None:
        home = directory / PHOTOGRAPHS
        results[PHOTOGRAPHS] = _over_methods(recipe.photographs, on_photographs, seed=seed, home=home)
    if recipe.digits is not None:
        scores = _over_methods(recipe.digits, on_digits, seed=seed, home=directory / DIGITS)
        results[DIGITS] = turned(scores, recipe.digits)
    return results


def _over_methods(task: Task, score: Callable[..., dict[str, Any]], *, seed: int, home: Path) -> dict[str, Any]:
    """Return the scores of every method of a task; those that have a file are read."""

    @cache
    def data() -> tb.data.Data:
        return tb.data.load(task.data, classes=task.classes, train_size=task.train_size, seed=seed)

    def scored(name: str) -> dict[str, Any]:
        posterior = _fitted(task, data(), name, seed=seed, home=home)
        draws = None if name in {L2, ENSEMBLE} else task.draws  # of these two there are no others than the members
        return score(task, data(), posterior, draws=draws)

    return {name: load_or_compute(home / f"{name.replace(' ', '_')}.json", scored, name) for name in task.named()}


def _fitted(task: Task, data: tb.data.Data, name: str, *, seed: int, home: Path) -> tb.Posterior:
    """Return what was fitted for a method; of L2 the first network of the ensemble."""
    folder = home / (ENSEMBLE if name == L2 else name).replace(" ", "_")
    settings: dict[str, Any] = {"channels": task.channels, "hidden": task.hidden}
    settings["dropout"] = task.rate if name == DROPOUT else 0.0
    prior = task.named_priors()[name]
    model = classifier("lenet", data.input_shape, data.num_classes, prior=prior, settings=settings)
    posterior = tb.fit(model, data.train, task.named()[name], seed=seed, directory=folder, resume=True, callbacks=())
    return tb.Point(model, posterior.weights_MD[:1]) if name == L2 and isinstance(posterior, tb.Point) else posterior


def on_photographs(
    task: Photographs, data: tb.data.Data, posterior: tb.Posterior, *, draws: int | None
) -> dict[str, Any]:
    """Return how a method does on test images of the classes that it has seen, and of those that it has not.

    `seen` (metrics, with the mean entropy), `unseen` (mean entropy, and AUROC of the entropy against the seen), and
    `counts`: of images in each of `BINS` bins of entropy from 0 to log K, of `seen` and of `unseen`.
    """
    strange = tb.data.out_of_distribution(data, task.data)[task.data][: task.test_rows]
    test = tuple(tensor[: task.test_rows] for tensor in data.test)
    inside = tb.evaluate(posterior, test, draws=draws, seed=task.draw_seed)
    outside = tb.uncertainty(posterior, posterior.model.place(strange), draws=draws, seed=task.draw_seed)
    assert inside.scores is not None

    def counts(entropy: Tensor) -> list[int]:
        bins = (entropy.double() / math.log(data.num_classes) * BINS).long().clamp(0, BINS - 1)
        return torch.bincount(bins, minlength=BINS).tolist()

    auroc = tb.detection(inside.scores, outside)["auroc_entropy"]
    return {
        "seen": {key: inside.metrics[key] for key in (*METRICS, "entropy")},
        "unseen": {"entropy": float(outside.entropy.double().mean()), "auroc": auroc},
        "counts": {"seen": counts(inside.scores.entropy), "unseen": counts(outside.entropy)},
    }


def on_digits(task: Digits, data: tb.data.Data, posterior: tb.Posterior, *, draws: int | None) -> dict[str, Any]:
    """Return how a method does on test digits, and what it makes of digits of one class that are turned.

    `test`: metrics; `entropy` and `label`: of every turned digit, (A, N) each, with the most probable label; `mean` and
    `spread`: of the probabilities of the first digit over draws, (A, K); `pixels`: of that digit.
    """
    rows = tuple(tensor[: task.test_rows] for tensor in data.test)
    test = tb.evaluate(posterior, rows, draws=draws, seed=task.draw_seed)
    upright = data.test.inputs[data.test.targets == data.classes.index(task.digit)][: task.count]
    raw = data.standardise.inverse(upright)
    functions = posterior.functions(draws, seed=task.draw_seed)
    scores: dict[str, list[Any]] = {"entropy": [], "label": [], "mean": [], "spread": []}
    for angle in task.angles:
        average = tb.predict(functions, data.standardise(rotated(raw, angle)))
        first_SK = average.outputs_SBK[:, 0].double().softmax(-1)
        scores["entropy"].append([round(value, 5) for value in average.entropy.double().tolist()])
        scores["label"].append(average.probs.argmax(-1).tolist())
        scores["mean"].append(first_SK.mean(0).tolist())
        scores["spread"].append(first_SK.std(0, correction=0).tolist())
    pixels = (raw[0, 0] * 255).round().int().tolist()
    return {"test": {key: test.metrics[key] for key in METRICS}, **scores, "pixels": pixels}


def rotated(images: Tensor, degrees: float) -> Tensor:
    """Turn square images (N, C, H, W) counter-clockwise, with bilinear interpolation and black (0) outside."""
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
    grid = F.affine_grid(turn.to(images).expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def turned(units: dict[str, Any], task: Digits) -> dict[str, Any]:
    """Return the scores of all methods on turned digits, from what `on_digits` returned of each.

    `methods`: method -> test metrics; `wrong` (share of digits taken for another, by angle), `entropy` (mean, by
    angle), `entropy_wrong` (mean over the turned digits that this method takes for another; None if there are none),
    `entropy_same` (mean over those that L2 takes for another), `mean` and `spread` of the first digit; and its
    `pixels`.
    """
    truth, methods = int(task.digit), {}
    lost = np.array(units[L2]["label"]) != truth
    for name, unit in units.items():
        wrong, entropy = np.array(unit["label"]) != truth, np.array(unit["entropy"])
        methods[name] = {key: unit[key] for key in ("test", "mean", "spread")} | {
            "wrong": wrong.mean(1).tolist(),
            "entropy": entropy.mean(1).tolist(),
            "entropy_wrong": float(entropy[wrong].mean()) if wrong.any() else None,
            "entropy_same": float(entropy[lost].mean()) if lost.any() else None,
        }
    return {"methods": methods, "pixels": units[L2]["pixels"], "angles": list(task.angles)}
