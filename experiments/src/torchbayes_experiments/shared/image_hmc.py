"""Image problems small enough for full-batch HMC, its chains on them, and how they mix.

Each seed draws other training rows and starts its chains elsewhere; the test rows stay the same. Training rows that
were not drawn serve to choose settings and to fit temperatures, so that no test row influences either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import torchbayes as tb
from torchbayes.report import Table
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.rows import Results
from torchbayes_experiments.shared.classifiers import best_device, classifier
from torchbayes_experiments.streams import Purpose, generator
from torchbayes_experiments.verdicts import mean_and_error

BOUND = 1.1  # of R-hat, as in Izmailov et al. (2021)
SPACES = {"weights": "weights", "functions": "test probabilities"}  # where R-hat is taken -> label


@dataclass(frozen=True)
class Problem:
    """Data, network and prior, and the chains that sample the posterior."""

    data: str  # a set of images by name
    train_size: int  # N, training rows drawn by the seed
    hmc: tb.HMC  # the chains. By default the step size is adapted in burn-in and the trajectory is (π/2) σ.
    prior_scale: float  # σ, standard deviation of every weight's normal prior
    pool: int = 1  # images are averaged over squares of this many pixels a side
    noise: float = 0.0  # share of all labels, test rows included, that are replaced by classes drawn uniformly
    network: str = "mlp"  # a network by name
    hidden: tuple[int, ...] = (50, 50)  # widths of its hidden layers, for the network `mlp`
    test_rows: int | None = None  # number of test rows, evenly spaced; None for all
    spare_rows: int = 1000  # maximum number of training rows that were not drawn
    label: str = ""  # name in tables; that of the data if empty


@dataclass(frozen=True)
class Problems:
    """The problems of a recipe."""

    digits: Problem  # the first problem: digits at the small scale, CIFAR-10 at the paper's
    noisy: Problem | None  # digits, some of them with wrong labels; None to leave it out
    mnist: Problem | None  # the larger problem; None to leave it out

    def problems(self) -> dict[str, Problem]:
        """Return the problems by their names in tables."""
        return by_label(self.digits, self.noisy, self.mnist)


def by_label(*problems: Problem | None) -> dict[str, Problem]:
    """Return problems by their names in tables, without those that are None."""
    return {problem.label or problem.data: problem for problem in problems if problem is not None}


DIGITS = Problem("digits", 1000, tb.HMC(chains=4, steps=120, burn_in=30), prior_scale=0.3)
NOISY_DIGITS = replace(DIGITS, label="digits, noisy labels", noise=0.2, hmc=tb.HMC(chains=4, steps=100, burn_in=30))
MNIST = replace(DIGITS, label="MNIST", data="mnist", pool=2, hmc=tb.HMC(chains=4, steps=80, burn_in=30), test_rows=2000)
# Table of hyper-parameters in Izmailov et al. (2021) for CIFAR-10; a trajectory has 70,248 leapfrog steps.
CIFAR10 = Problem(
    "cifar10",
    40_960,
    tb.HMC(chains=3, steps=290, burn_in=50, step_size=1e-5, accept_in_burn_in=True),
    prior_scale=0.2**0.5,
    network="resnet20_frn",
    label="CIFAR-10",
)
CIFAR10_EPOCH = 512  # steps of 80 rows
CIFAR10_ENSEMBLE = tb.MAP(members=50, epochs=500, batch_size=80, optimizer=tb.SGD(lr=3e-7 * 40_960, momentum=0.9))
CIFAR10_LENGTH = (1, 10_000 * CIFAR10_EPOCH, 1000 * CIFAR10_EPOCH, 10 * CIFAR10_EPOCH)  # chains, steps, burn_in, thin
_CYCLES = tb.Cycles(50 * CIFAR10_EPOCH, exploration=0.0)
CIFAR10_CYCLICAL = tb.SGHMC(*CIFAR10_LENGTH[:3], 1, 3e-7, 80, momentum=0.95, schedule=_CYCLES)


@dataclass(frozen=True)
class Setup:
    """Model and rows of a problem at one seed; spare rows are training rows that are not trained on."""

    model: tb.Model
    train: tb.data.Pair
    spare: tb.data.Pair
    test: tb.data.Pair


def set_up(problem: Problem, seed: int) -> Setup:
    """Draw the training rows of a seed, and the labels that are replaced; all is on the GPU if there is one.

    Raises:
        ValueError: if `train_size` leaves no training rows over.
    """
    data = tb.data.load(problem.data)
    rows, size = len(data.train.targets), problem.train_size
    if not 0 < size < rows:
        raise ValueError(f"`train_size` of {problem.data} must leave some of its {rows} training rows; got {size}.")
    order = torch.randperm(rows, generator=generator(Purpose.PROBLEM_ROWS, seed))
    count = len(data.test.targets)
    tested = torch.arange(0, count, max(1, count // (problem.test_rows or count)))[: problem.test_rows]
    chosen = (data.train, order[:size]), (data.train, order[size : size + problem.spare_rows]), (data.test, tested)
    pairs = [_rows(problem, *rows, seed=seed, part=part) for part, rows in enumerate(chosen)]
    shape, prior = tuple(pairs[0].inputs.shape[1:]), tb.priors.Normal(problem.prior_scale)
    return Setup(classifier(problem.network, shape, data.num_classes, prior=prior, hidden=problem.hidden), *pairs)


def _rows(problem: Problem, pair: tb.data.Pair, rows: Tensor, *, seed: int, part: int) -> tb.data.Pair:
    """Return the chosen rows, with images pooled and labels replaced as the problem says."""
    inputs, targets = pair.inputs[rows], pair.targets[rows]
    if problem.pool > 1:
        inputs = F.avg_pool2d(inputs, problem.pool)
    if problem.noise:
        source = generator(Purpose.PROBLEM_LABELS, seed, part)
        wrong = torch.rand(len(targets), generator=source) < problem.noise
        classes = int(pair.targets.max()) + 1
        targets = torch.where(wrong, torch.randint(classes, targets.shape, generator=source), targets)
    return tb.data.Pair(inputs.to(best_device()), targets.to(best_device()))


def over_problems(
    problems: Mapping[str, Problem], compute: Callable[[Problem, Path], Mapping[str, Any]], *, home: Path, file: str
) -> dict[str, Any]:
    """Return problem -> its numbers, computed from it and a directory `problem_i`, or read from the file in that."""
    folders = [home / f"problem_{number}" for number in range(len(problems))]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return {
        name: load_or_compute(folder / file, compute, problem, folder)
        for folder, (name, problem) in zip(folders, problems.items(), strict=True)
    }


def run_hmc(problem: Problem, setup: Setup, *, seed: int, directory: Path) -> tuple[tb.Draws, tb.Diagnosis]:
    """Run the chains, each from its own start, and diagnose them on the test rows; interrupted chains continue."""
    draws = tb.fit(setup.model, setup.train, problem.hmc, seed=seed, directory=directory, resume=True)
    assert isinstance(draws, tb.Draws)
    return draws, tb.diagnose(draws, setup.test.inputs, log=directory)


def fitted(
    methods: Mapping[str, Any],
    models: Mapping[str, tb.Model],
    train: tb.data.Pair,
    *,
    home: Path,
    seed: int,
    callbacks: tuple[()] | None = None,
) -> dict[str, tb.Posterior]:
    """Return the posterior of each method, under the model of its name; interrupted fits continue."""
    fit = partial(tb.fit, seed=seed, resume=True, callbacks=callbacks)
    folders = {name: home / name.replace(" ", "_").lower() for name in methods}
    return {name: fit(models[name], train, method, directory=folders[name]) for name, method in methods.items()}


def mixing(diagnosis: tb.Diagnosis) -> dict[str, Any]:
    """Return the numbers of a diagnosis, JSON-serialisable.

    `chains`, `draws`, and `iterations` after burn-in; `acceptance`, `ebfmi`, `step_size` and `leapfrogs` per iteration,
    means over the chains; `divergences`, their number; and for the spaces `weights` and `functions` what `convergence`
    returns. Quantities that never move are left out.
    """
    record: Any = diagnosis.record  # of HMC, which logs all of this
    iterations = len(record.step_R)  # full batch: one record each
    numbers: dict[str, Any] = {
        "chains": diagnosis.chains,
        "draws": diagnosis.draws,
        "iterations": iterations,
        "acceptance": float(record.acceptance_M.mean()),
        "divergences": int(record.divergences_M.sum()),
        "ebfmi": float(record.ebfmi_M.mean()) if record.ebfmi_M is not None else math.nan,
        "step_size": float(record.step_size_M.mean()),
        "leapfrogs": float(record.gradients_M.mean()) / iterations,
    }
    return numbers | {space: convergence(*rhat_and_ess(diagnosis, space)) for space in SPACES}


def convergence(rhat: np.ndarray, ess: np.ndarray) -> dict[str, float]:
    """Summarise R-hat and bulk effective sample size of all quantities of a space, (R,) each.

    `median`, `high` (95 % quantile) and `maximum` of R-hat, `share` of quantities below 1.1, median `ess`, and
    `quantities`, their number.
    """
    return {
        "median": float(np.median(rhat)),
        "high": float(np.quantile(rhat, 0.95)),
        "maximum": float(rhat.max()),
        "share": float(np.mean(rhat < BOUND)),
        "ess": float(np.median(ess)),
        "quantities": len(rhat),
    }


def rhat_and_ess(diagnosis: tb.Diagnosis, space: str) -> tuple[np.ndarray, np.ndarray]:
    """Return R-hat and bulk effective sample size of all quantities of a space (see `SPACES`) that move, (R,) each."""
    summary = diagnosis.spaces[diagnosis.functions if space == "functions" else space]
    moves = ~summary.rhat.isnan()
    return summary.rhat[moves].numpy(), summary.ess_bulk[moves].numpy()


def chains_table(results: Results, columns: Mapping[str, str], *, caption: str) -> Table:
    """Return a row for the chains of each problem: means ± standard error over seeds, the sum for divergences.

    Args:
        results: problem -> what `mixing` returned, one per seed.
        columns: key, or keys with a slash between them -> label.
        caption: what the table shows.
    """
    body = []
    for name, first in results[0].items():
        cells = []
        for key in columns:
            values = [reduce(getitem, key.split("/"), result[name]) for result in results]
            cells.append(float(sum(values)) if key == "divergences" else mean_and_error(values))
        body.append([name, f"{first['chains']} × {first['draws']}", *cells])
    formats = {"leapfrogs": ".0f", "step_size": ".5f", "acceptance": ".2f", "ebfmi": ".2f", "divergences": ".0f"}
    written = {label: formats[key] for key, label in columns.items() if key in formats}
    return Table(["problem", "chains × draws", *columns.values()], body, caption, formats=written)
