"""Samplers of networks by the protocol under which the tables of MILE were published, and `bde` beside them.

    TORCHBAYES_DATA=... python -m benchmarks.mile --data airfoil energy --seeds 5
    TORCHBAYES_DATA=... torchrun --nproc-per-node 2 -m benchmarks.mile --method SGNHT --data airfoil bikesharing

A fifth of the rows is left out by `train_test_split(test_size=0.2, random_state=0)`; inputs and targets are
standardised by the others. Networks have two outputs, mean and noise. `nll` is that of a Gaussian with mean and
variance of the predictive distribution, `mixture` that of this distribution itself, in units of the standardised
targets; then the share of targets in central intervals of 50, 80 and 95 %. Seconds are those of the wall, with the
threads that torch has, and those of all its processors (`cpu`). Under torchrun chains are shared by processes, and
seconds of processors are those of one. Settings are chosen with `--tuning`. `--bde` runs `sklearn-contrib-bde` as its
paper does, after `make .peers/tables`, on the columns as they are.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.tables.networks import MicrocanonicalEnsemble
from benchmarks.tables.prediction import Prediction
from benchmarks.tables.sets import airfoil, bikesharing

_TABLES = {"airfoil": airfoil, "bikesharing": bikesharing}
_LEVELS = (0.5, 0.8, 0.95)
Rows = tuple[Tensor, Tensor]


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of a table, the target last."""
    if name in _TABLES:
        inputs, targets = _TABLES[name]()
        return inputs, targets[:, None]
    held = np.load(Path(os.environ["TORCHBAYES_DATA"]) / "uci_regression" / f"{name}.npz")
    return held["data"][:, held["feature_columns"].astype(int)], held["data"][:, held["target_column"].astype(int)]


def protocol(name: str, bins: int = 0, *, logs: bool = False, tuning: bool = False) -> tuple[Rows, Rows]:
    """Return training and test rows, standardised by the former.

    With `bins`, columns in pieces are beside them; with `logs`, logarithms of columns of more than two values that are
    all positive. For `tuning`, a fifth of the training rows take the place of the test rows.
    """
    given = train_test_split(*rows_of(name), test_size=0.2, random_state=0)
    if tuning:
        given = train_test_split(given[0], given[2], test_size=0.2, random_state=1)
    train, test, train_targets, test_targets = map(np.asarray, given)
    parts = [_standardised(train, test)]
    if logs:
        positive = [k for k, column in enumerate(train.T) if column.min() > 0 and len(np.unique(column)) > 2]
        parts.append(_standardised(*(np.log(each[:, positive].clip(1e-9)) for each in (train, test))))
    columns, others = parts[0]
    ends = [torch.quantile(column, torch.linspace(0, 1, bins + 1).double()).unique() for column in columns.T]
    if bins:
        parts.append([torch.cat([*map(pieces, each.T, ends)], 1) for each in (columns, others)])
    inputs = [torch.cat(each, 1).float() for each in zip(*parts, strict=True)]
    targets = [each.float() for each in _standardised(train_targets, test_targets)]
    return (inputs[0], targets[0]), (inputs[1], targets[1])


def _standardised(train: np.ndarray, test: np.ndarray) -> list[Tensor]:
    mean, scale = train.mean(0), train.std(0)
    return [torch.from_numpy((each - mean) / np.where(scale == 0, 1, scale)) for each in (train, test)]


def pieces(column: Tensor, ends: Tensor) -> Tensor:
    """Return where values lie in each of the pieces between ends, from 0 to 1 (Gorishniy et al. 2022)."""
    if len(ends) < 3:
        return column[:, None][:, :0]
    return ((column[:, None] - ends[:-1]) / ends.diff()).clamp(0, 1)


def network(columns: int, width: int, depth: int) -> nn.Sequential:
    """Return a network of ReLUs with two outputs."""
    sizes = [columns, *[width] * depth]
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def scores(predictive: tb.Predictive, targets: Tensor) -> dict[str, float]:
    """Return the scores of predictions of test rows."""
    mean, variance = predictive.mean, predictive.variance
    squares = (targets - mean).square()
    results = {
        "rmse": math.sqrt(float(squares.mean())),
        "nll": float((0.5 * (2 * math.pi * variance).log() + squares / (2 * variance)).mean()),
        "mixture": -float(predictive.log_prob(targets).mean()),
    }
    for level in _LEVELS:
        low, high = predictive.interval(level)
        results[f"{level:.0%}"] = float(((low <= targets) & (targets <= high)).float().mean())
    return results


def methods(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the methods by name: chains alone, or MILE and the ensemble where it begins."""
    if asked.method == "SGNHT":
        steps = asked.steps or 100_000
        thin = max(1, steps // 80)
        return {"SGNHT": tb.SGNHT(asked.members, steps, steps // 2, thin, batch_size=asked.batch)}
    method = tb.MILE(members=asked.members)
    if asked.epochs:
        method = replace(method, ensemble=replace(method.ensemble, epochs=asked.epochs))
    if asked.steps:
        length = {"steps": asked.steps, "burn_in": int(0.6 * asked.steps), "thin": max(1, asked.steps // 250)}
        method = replace(method, sampler=replace(method.sampler, **length))
    return {"ensemble": replace(method.ensemble, members=asked.members), "MILE": method}


def run(name: str, seed: int, asked: argparse.Namespace, ranks: tb.Ranks) -> dict[str, dict[str, float]]:
    """Return the scores of each method on one table, with seconds."""
    train, test = protocol(name, asked.bins, logs=asked.log_columns, tuning=asked.tuning)
    torch.manual_seed(seed)
    model = tb.Model(
        network(train[0].shape[1], asked.width, asked.depth),
        tb.likelihoods.HeteroscedasticGaussian(),
        tb.priors.Normal(asked.prior),
    )
    results = {}
    for label, way in methods(asked).items():
        began, worked = time.perf_counter(), time.process_time()
        posterior = tb.fit(model, train, way, seed=seed, callbacks=(), ranks=ranks)
        spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked}
        results[label] = {**scores(tb.predict(posterior, test[0]), test[1]), **spent, "members": posterior.members}
    if asked.bde and ranks.first:
        results["bde"] = bde(*protocol(name, tuning=asked.tuning), seed)
    return results


class Published(MicrocanonicalEnsemble):
    """`sklearn-contrib-bde` with the settings of its paper."""

    settings: ClassVar[dict[str, Any]] = {
        "n_members": 10,
        "hidden_layers": [16] * 4,
        "epochs": 1200,
        "patience": 20,
        "warmup_steps": 50_000,
        "n_samples": 1000,
        "n_thinning": 10,
    }


def bde(train: Rows, test: Rows, seed: int) -> dict[str, float]:
    """Return the scores of `sklearn-contrib-bde`, with seconds."""
    began, worked = time.perf_counter(), time.process_time()
    inputs, targets = (part.numpy() for part in train)
    fitted = Published(regression=True, seed=seed).fit(inputs, targets.squeeze(1))
    predictive = Prediction(fitted.distribution(test[0].numpy())).predictive
    spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked}
    return {**scores(predictive, test[1].double()), **spent, "members": Published.settings["n_members"]}


def main() -> None:
    """Print a table for each data set: mean and standard deviation over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["airfoil"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--prior", type=float, default=1.0, help="standard deviation of every weight")
    parser.add_argument("--epochs", type=int, default=0, help="of the ensemble; 0 for as many as held-out rows choose")
    parser.add_argument("--bins", type=int, default=0, help="pieces of each column beside it; 0 for none")
    parser.add_argument("--log-columns", action="store_true", help="logarithms of positive columns beside them")
    parser.add_argument("--tuning", action="store_true", help="score rows of the training part instead of the test's")
    parser.add_argument("--batch", type=int, default=128, help="rows of a step of SGNHT")
    parser.add_argument(
        "--steps", type=int, default=0, help="of a chain; 0 for the default of MILE, and 100,000 of SGNHT"
    )
    parser.add_argument("--method", choices=("MILE", "SGNHT"), default="MILE")
    parser.add_argument("--bde", action="store_true", help="with the packages of `make .peers/tables`")
    asked = parser.parse_args()
    sys.path.append(str(Path(".peers/tables").absolute()))
    warnings.simplefilter("ignore", tb.ProblemWarning)
    with tb.Ranks.grid(members=asked.members) if "WORLD_SIZE" in os.environ else tb.Ranks() as ranks:
        for name in asked.data:
            by_seed = [run(name, seed, asked, ranks) for seed in range(asked.seeds)]
            if ranks.first:
                show(name, by_seed, asked)


def show(name: str, by_seed: list[dict[str, dict[str, float]]], asked: argparse.Namespace) -> None:
    """Print the scores of one table."""
    print(
        f"\n{name}, {asked.width}x{asked.depth}, {asked.bins} bins{', logs' * asked.log_columns}, {asked.seeds} seeds"
    )
    names = [*next(iter(by_seed[0].values()))]
    print("".join([f"{'':10}", *(f"{each:>16}" for each in names)]))
    for label in by_seed[0]:
        numbers = np.array([[results[label][each] for each in names] for results in by_seed])
        cells = (f"{m:9.3f} ± {s:4.3f}" for m, s in zip(numbers.mean(0), numbers.std(0), strict=True))
        print("".join([f"{label:10}", *(f"{cell:>16}" for cell in cells)]), flush=True)


if __name__ == "__main__":
    main()
