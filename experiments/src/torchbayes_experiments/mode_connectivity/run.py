"""What `mode_connectivity` computes for one seed: paths between two networks, and networks that are aligned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchbayes.data import Data, load
from torchbayes.geometry import align, barrier
from torchbayes.posteriors import Point
from torchbayes.posteriors.curves.curve import CurvePosterior
from torchbayes.selection import fit
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.mode_connectivity.paths import Rows, along, in_its_plane, straight
from torchbayes_experiments.mode_connectivity.recipe import (
    ALIGNMENT,
    BEFORE,
    BY_ACTIVATIONS,
    BY_WEIGHTS,
    IMAGES,
    RESIDUAL,
    SEGMENT,
    Alignment,
    Connection,
    ModeConnectivityRecipe,
    Task,
)
from torchbayes_experiments.shared.classifiers import classifier


def run(recipe: ModeConnectivityRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run the tasks; each writes a file, so that an interrupted run continues with the next.

    Args:
        recipe: the settings.
        seed: of training rows, initialisations and orders of the data; test rows are always the same.
        directory: of this seed; interrupted fits continue.

    Returns:
        "images" and "residual" -> what `on_paths` returns; "alignment" -> what `on_alignment` returns; without those
        that the recipe leaves out.
    """
    found: dict[str, Any] = {}
    for name, task in ((IMAGES, recipe.images), (RESIDUAL, recipe.residual)):
        if task is not None:
            own = task if seed == recipe.surface_seed else replace(task, surface_points=0)
            file, home = directory / f"{name}.json", directory / name
            found[name] = load_or_compute(file, lambda own=own, home=home: on_paths(own, seed, home))
    if recipe.alignment is not None:
        task, home = recipe.alignment, directory / ALIGNMENT
        found[ALIGNMENT] = load_or_compute(directory / f"{ALIGNMENT}.json", lambda: on_alignment(task, seed, home))
    return found


def _pair(task: Task, seed: int, home: Path) -> tuple[Data, Point]:
    """Return the data of a seed, and two networks that are trained from different initialisations."""
    data = load(task.data, train_size=task.train_size, seed=seed)
    prior = task.prior(len(data.train.targets))
    model = classifier(task.network, data.input_shape, data.num_classes, prior=prior, hidden=task.hidden)
    ends = fit(model, data.train, task.ends, seed=seed, directory=home / "ends", resume=True, callbacks=())
    assert isinstance(ends, Point)
    return data, ends


def _rows(data: Data, task: Task) -> tuple[Rows, Rows]:
    """Return training rows, and those test rows that are scored."""
    test = data.test.inputs[: task.test_rows], data.test.targets[: task.test_rows]
    return (data.train.inputs, data.train.targets), test


def on_paths(task: Connection, seed: int, home: Path) -> dict[str, Any]:
    """Train two networks and the curves between them, and score the networks along these and along the straight line.

    Args:
        task: the settings.
        seed: the seed.
        home: where the fits are.

    Returns:
        `positions` (T,); `paths`: name -> scores, of `paths.along`; `surfaces`: name of a curve -> what
        `paths.in_its_plane` returns, empty without surfaces.
    """
    data, ends = _pair(task, seed, home)
    curves: dict[str, CurvePosterior] = {}
    for name, method in task.curves().items():
        about: dict[str, Any] = {"seed": seed, "directory": home / method.shape, "resume": True, "callbacks": ()}
        posterior = fit(ends.model, data.train, method, start=ends, **about)
        assert isinstance(posterior, CurvePosterior)
        curves[name] = posterior
    paths = {SEGMENT: straight(next(iter(curves.values()))), **curves}
    train, test = _rows(data, task)
    positions = torch.linspace(0, 1, task.points, dtype=torch.float64).tolist()
    some = train[0][: task.surface_rows], train[1][: task.surface_rows]
    about = {"points": task.surface_points, "positions": 101, "decay": task.decay}
    return {
        "positions": positions,
        "paths": along(paths, train, test, positions=positions, decay=task.decay),
        "surfaces": {n: in_its_plane(c, some, **about) for n, c in curves.items()} if task.surface_points else {},
    }


def on_alignment(task: Alignment, seed: int, home: Path) -> dict[str, Any]:
    """Train two perceptrons, match the hidden units of one to those of the other, and score the straight lines.

    Args:
        task: the settings.
        seed: the seed.
        home: where the fits are.

    Returns:
        `positions` (T,); `lines`: how units were matched -> `nll` of the training rows, `error` of the test rows at
        every position, and `height` and `excess` of the barrier of the former, in nats.
    """
    data, ends = _pair(task, seed, home)
    model, (train, test) = ends.model, _rows(data, task)
    some = tuple(part[: task.activation_rows] for part in train)
    pairs = {
        BEFORE: ends,
        BY_WEIGHTS: align(model, ends, seed=seed),
        BY_ACTIVATIONS: align(model, ends, method="activations", data=some, seed=seed),
    }
    rows = tuple(part[: task.barrier_rows] for part in train)
    lines: dict[str, Any] = {}
    positions: list[float] = []
    for name, pair in pairs.items():
        first, second = pair.weights_MD
        on_train, on_test = (barrier(model, part, first, second=second, points=task.points) for part in (rows, test))
        positions = list(on_train.positions)
        lines[name] = {
            "nll": list(on_train.nll),
            "error": list(on_test.error or ()),
            "height": on_train.height,
            "excess": on_train.excess,
        }
    return {"positions": positions, "lines": lines}
