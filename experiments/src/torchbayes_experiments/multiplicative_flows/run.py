"""What `multiplicative_flows` computes for one seed: every method on five classes of CIFAR-10, and on turned digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.evaluate import detection, evaluate, uncertainty
from torchbayes.data import Data, load, out_of_distribution
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.posteriors import Point, Posterior
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.multiplicative_flows.recipe import (
    DROPOUT,
    ENSEMBLE,
    L2,
    Digits,
    MultiplicativeFlowsRecipe,
    Photographs,
    Task,
)
from torchbayes_experiments.shared.classifiers import METRICS, best_device

BINS = 100  # of entropy, from 0 to log K
PHOTOGRAPHS, DIGITS = "photographs", "digits"


@dataclass(frozen=True)
class _Fitted:
    """A method on a task: what is predicted with.

    Attributes:
        posterior: what was fitted; of L2 the first network of the ensemble.
        draws: functions that are drawn; None where there are no others than its members.
    """

    posterior: Posterior
    draws: int | None


def run(recipe: MultiplicativeFlowsRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit and score every method on every task; each writes a file, so that an interrupted run continues with the next.

    Args:
        recipe: the settings.
        seed: of the training rows, and of all fits and draws.
        directory: of this seed; interrupted fits continue.

    Returns:
        "photographs" -> method -> what `on_photographs` returns; "digits" -> what `turned` makes of all methods.
    """
    found: dict[str, Any] = {}
    if recipe.photographs is not None:
        found[PHOTOGRAPHS] = _over_methods(recipe.photographs, on_photographs, seed=seed, home=directory / PHOTOGRAPHS)
    if recipe.digits is not None:
        units = _over_methods(recipe.digits, on_digits, seed=seed, home=directory / DIGITS)
        found[DIGITS] = turned(units, recipe.digits)
    return found


def _over_methods(
    task: Any, score: Callable[[Any, Data, _Fitted], dict[str, Any]], *, seed: int, home: Path
) -> dict[str, Any]:
    """Return the scores of every method of a task; those that have a file are read."""
    names, files = list(task.named()), {name: home / f"{name.replace(' ', '_')}.json" for name in task.named()}
    data: Data | None = None
    for name in names:
        if not files[name].exists():
            data = data or _data(task, seed)
            fitted = _fitted(task, data, name, seed=seed, home=home)
            load_or_compute(files[name], lambda loaded=data, done=fitted: score(task, loaded, done))
    return {name: load_or_compute(files[name], dict) for name in names}


def _data(task: Task, seed: int) -> Data:
    """Return the data of a task with training rows of a seed."""
    return load(task.data, classes=task.classes, train_size=task.train_size, seed=seed)


def _fitted(task: Task, data: Data, name: str, *, seed: int, home: Path) -> _Fitted:
    """Return a fitted method; interrupted fits continue."""
    place = home / (ENSEMBLE if name == L2 else name).replace(" ", "_")
    rate = task.rate if name == DROPOUT else 0.0
    shape, sizes = data.input_shape, {"channels": task.channels, "hidden": task.hidden}
    network = networks.build("lenet", shape, data.num_classes, dropout=rate, **sizes)
    model = Model(network.to(best_device()), Categorical(), task.named_priors()[name])
    posterior = fit(model, data.train, task.named()[name], seed=seed, directory=place, resume=True, callbacks=())
    if name != L2:
        return _Fitted(posterior, None if name == ENSEMBLE else task.draws)
    assert isinstance(posterior, Point)
    return _Fitted(Point(model, posterior.weights_MD[:1]), None)


# --- photographs


def on_photographs(task: Photographs, data: Data, fitted: _Fitted) -> dict[str, Any]:
    """Return how a method does on test images of the classes that it has seen, and of those that it has not.

    Args:
        task: the settings.
        data: of the classes that are seen.
        fitted: the method.

    Returns:
        `seen` (metrics, with the mean entropy), `unseen` (mean entropy, and AUROC of the entropy against the seen), and
        `counts`: of images in each of `BINS` bins of entropy from 0 to log K, of `seen` and of `unseen`.
    """
    strange = out_of_distribution(data, task.data)[task.data][: task.test_rows]
    inside = evaluate(
        fitted.posterior, tuple(part[: task.test_rows] for part in data.test), draws=fitted.draws, seed=task.draw_seed
    )
    outside = uncertainty(
        fitted.posterior, fitted.posterior.model.place(strange), draws=fitted.draws, seed=task.draw_seed
    )
    assert inside.scores is not None
    return {
        "seen": {key: inside.metrics[key] for key in (*METRICS, "entropy")},
        "unseen": {
            "entropy": float(outside.entropy.double().mean()),
            "auroc": detection(inside.scores, outside)["auroc_entropy"],
        },
        "counts": {
            name: _counts(scores.entropy, data.num_classes)
            for name, scores in (("seen", inside.scores), ("unseen", outside))
        },
    }


def _counts(entropy: Tensor, num_classes: int) -> list[int]:
    """Return how many entropies lie in each of `BINS` equal bins from 0 to log K."""
    where = (entropy.double() / math.log(num_classes) * BINS).long().clamp(0, BINS - 1)
    return torch.bincount(where, minlength=BINS).tolist()


# --- turned digits


def on_digits(task: Digits, data: Data, fitted: _Fitted) -> dict[str, Any]:
    """Return how a method does on test digits, and what it makes of digits of one class that are turned.

    Args:
        task: the settings.
        data: the digits.
        fitted: the method.

    Returns:
        `test`: metrics; `entropy` and `label`: of every turned digit, (A, N) each, with the most probable label;
        `mean` and `spread`: of the probabilities of the first digit over draws, (A, K); `pixels`: of that digit.
    """
    about: dict[str, Any] = {"draws": fitted.draws, "seed": task.draw_seed}
    test = evaluate(fitted.posterior, tuple(part[: task.test_rows] for part in data.test), **about)
    upright = data.test.inputs[data.test.targets == data.classes.index(task.digit)][: task.count]
    raw = data.standardise.inverse(upright)
    functions = fitted.posterior.functions(**about)
    found: dict[str, list[Any]] = {"entropy": [], "label": [], "mean": [], "spread": []}
    for angle in task.angles:
        at = predict(functions, data.standardise(rotated(raw, angle)))
        first_SK = at.outputs_SBK[:, 0].double().softmax(-1)
        found["entropy"].append([round(value, 5) for value in at.entropy.double().tolist()])
        found["label"].append(at.probs.argmax(-1).tolist())
        found["mean"].append(first_SK.mean(0).tolist())
        found["spread"].append(first_SK.std(0, correction=0).tolist())
    pixels = (raw[0, 0] * 255).round().int().tolist()
    return {"test": {key: test.metrics[key] for key in METRICS}, **found, "pixels": pixels}


def rotated(images: Tensor, degrees: float) -> Tensor:
    """Turn images counter-clockwise about their centre, with bilinear interpolation and black outside.

    Args:
        images: (N, C, H, W), square, black is 0.
        degrees: by how much.

    Returns:
        Images of the same shape.
    """
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
    grid = F.affine_grid(turn.to(images).expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def turned(units: dict[str, Any], task: Digits) -> dict[str, Any]:
    """Return the scores of all methods on turned digits.

    Args:
        units: method -> what `on_digits` returned.
        task: the settings.

    Returns:
        `methods`: method -> test metrics; `wrong` (share of digits taken for another, by angle), `entropy` (mean, by
        angle), `entropy_wrong` (mean over the turned digits that this method takes for another; None if there are
        none), `entropy_same` (mean over those that L2 takes for another), `mean` and `spread` of the first digit; and
        its `pixels`.
    """
    truth = int(task.digit)
    lost = np.array(units[L2]["label"]) != truth
    methods = {}
    for name, unit in units.items():
        wrong, entropy = np.array(unit["label"]) != truth, np.array(unit["entropy"])
        methods[name] = {
            "test": unit["test"],
            "wrong": wrong.mean(1).tolist(),
            "entropy": entropy.mean(1).tolist(),
            "entropy_wrong": float(entropy[wrong].mean()) if wrong.any() else None,
            "entropy_same": float(entropy[lost].mean()) if lost.any() else None,
            "mean": unit["mean"],
            "spread": unit["spread"],
        }
    return {"methods": methods, "pixels": units[L2]["pixels"], "angles": list(task.angles)}
