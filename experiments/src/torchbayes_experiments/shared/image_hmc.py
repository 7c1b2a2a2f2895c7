"""What `hmc_reference` and `hmc_mixing` share: image problems small enough for full-batch HMC, and its chains on them.

Each seed draws other training rows and starts its chains elsewhere; the test rows stay the same. Training rows that
were not drawn serve to choose settings and to fit temperatures, so that no test row influences either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchbayes.assess.diagnose import Diagnosis, diagnose
from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.model import Model
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Draws
from torchbayes.selection import fit
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import best_device, classifier
from torchbayes_experiments.streams import Purpose, generator

BOUND = 1.1  # of R-hat, as in Izmailov et al. (2021)
SPACES = {"weights": "weights", "functions": "test probabilities"}  # where R-hat is taken -> label


@dataclass(frozen=True)
class Problem:
    """Data, network and prior, and the chains that sample the posterior.

    Attributes:
        data: a set of images by name.
        train_size: N, training rows drawn by the seed.
        hmc: the chains. By default the step size is adapted in burn-in and the trajectory is (π/2) σ.
        prior_scale: σ, standard deviation of every weight's normal prior.
        pool: images are averaged over squares of this many pixels a side.
        noise: share of all labels, test rows included, that are replaced by classes drawn uniformly.
        network: a network by name.
        hidden: widths of its hidden layers, for the network `mlp`.
        test_rows: number of test rows, evenly spaced; None for all.
        spare_rows: maximum number of training rows that were not drawn.
        label: name in tables; that of the data if empty.
    """

    data: str
    train_size: int
    hmc: HMC
    prior_scale: float
    pool: int = 1
    noise: float = 0.0
    network: str = "mlp"
    hidden: tuple[int, ...] = (50, 50)
    test_rows: int | None = None
    spare_rows: int = 1000
    label: str = ""


@dataclass(frozen=True)
class Problems:
    """The problems of a recipe.

    Attributes:
        digits: the first problem: digits at the small scale, CIFAR-10 at the paper's.
        noisy: digits, some of them with wrong labels; None to leave it out.
        mnist: the larger problem; None to leave it out.
    """

    digits: Problem
    noisy: Problem | None
    mnist: Problem | None


def by_label(*problems: Problem | None) -> dict[str, Problem]:
    """Return problems by their names in tables, without those that are None."""
    return {problem.label or problem.data: problem for problem in problems if problem is not None}


DIGITS = Problem("digits", 1000, HMC(chains=4, steps=120, burn_in=30), prior_scale=0.3)
NOISY_DIGITS = replace(DIGITS, label="digits, noisy labels", noise=0.2, hmc=HMC(chains=4, steps=100, burn_in=30))
MNIST = replace(DIGITS, label="MNIST", data="mnist", pool=2, hmc=HMC(chains=4, steps=80, burn_in=30), test_rows=2000)
# Table of hyper-parameters in Izmailov et al. (2021) for CIFAR-10; a trajectory has 70,248 leapfrog steps.
CIFAR10 = Problem(
    "cifar10",
    40_960,
    HMC(chains=3, steps=290, burn_in=50, step_size=1e-5, accept_in_burn_in=True),
    prior_scale=0.2**0.5,
    network="resnet20_frn",
    label="CIFAR-10",
)


@dataclass(frozen=True)
class Setup:
    """Model and rows of a problem at one seed.

    Attributes:
        model: network, likelihood and prior.
        train: training rows.
        spare: rows of the training set that are not trained on.
        test: test rows.
    """

    model: Model
    train: Pair
    spare: Pair
    test: Pair


def set_up(problem: Problem, seed: int) -> Setup:
    """Draw the training rows of a seed, and make the model.

    Args:
        problem: data, network and prior.
        seed: decides which rows are trained on and, with label noise, which labels are replaced.

    Returns:
        Model and rows, on the GPU if there is one.

    Raises:
        ValueError: if `train_size` leaves no training rows over.
    """
    data = load(problem.data)
    rows = len(data.train.targets)
    if not 0 < problem.train_size < rows:
        raise ValueError(
            f"`train_size` of {problem.data} must leave some of its {rows} training rows; got {problem.train_size}."
        )
    order = torch.randperm(rows, generator=generator(Purpose.PROBLEM_ROWS, seed))
    count = len(data.test.targets)
    chosen = torch.arange(0, count, max(1, count // (problem.test_rows or count)))[: problem.test_rows]
    split = (problem.train_size, problem.train_size + problem.spare_rows)
    places = (data.train, order[: split[0]]), (data.train, order[split[0] : split[1]]), (data.test, chosen)
    parts = [_rows(problem, *place, seed=seed, part=part) for part, place in enumerate(places)]
    shape = tuple(parts[0].inputs.shape[1:])
    prior = Normal(problem.prior_scale)
    return Setup(classifier(problem.network, shape, data.num_classes, prior=prior, hidden=problem.hidden), *parts)


def _rows(problem: Problem, pair: Pair, rows: Tensor, *, seed: int, part: int) -> Pair:
    """Return the chosen rows, with images pooled and labels replaced as the problem says."""
    inputs, targets = pair.inputs[rows], pair.targets[rows]
    if problem.pool > 1:
        inputs = F.avg_pool2d(inputs, problem.pool)
    if problem.noise:
        source = generator(Purpose.PROBLEM_LABELS, seed, part)
        wrong = torch.rand(len(targets), generator=source) < problem.noise
        classes = int(pair.targets.max()) + 1
        targets = torch.where(wrong, torch.randint(classes, targets.shape, generator=source), targets)
    device = best_device()
    return Pair(inputs.to(device), targets.to(device))


def over_problems(
    problems: Mapping[str, Problem], compute: Callable[[Problem, Path], Mapping[str, Any]], *, home: Path, file: str
) -> dict[str, Any]:
    """Return the numbers of every problem; those of finished problems are read.

    Args:
        problems: by name.
        compute: (problem, directory of its own) -> numbers, JSON-serialisable.
        home: directory of the seed; that of problem i is `problem_i` in it.
        file: where in a problem's directory its numbers are written.

    Returns:
        problem -> numbers.
    """
    results = {}
    for number, (name, problem) in enumerate(problems.items()):
        own = home / f"problem_{number}"
        own.mkdir(parents=True, exist_ok=True)
        results[name] = load_or_compute(own / file, partial(compute, problem, own))
    return results


def run_hmc(problem: Problem, setup: Setup, *, seed: int, directory: Path) -> tuple[Draws, Diagnosis]:
    """Run the chains, each from its own start, and diagnose them on the test rows.

    Args:
        problem: its settings.
        setup: its rows and model.
        seed: of starts, momenta and acceptance.
        directory: where the draws go; an interrupted run continues there.

    Returns:
        The draws, and their diagnosis: R-hat of weights and of test probabilities, and the statistics of the log.
    """
    draws = fit(setup.model, setup.train, problem.hmc, seed=seed, directory=directory, resume=True)
    assert isinstance(draws, Draws)
    return draws, diagnose(draws, setup.test.inputs, log=directory)


def mixing(found: Diagnosis) -> dict[str, Any]:
    """Return the numbers of a diagnosis, JSON-serialisable.

    Args:
        found: the diagnosis by `run_hmc`.

    Returns:
        `chains`, `draws`, and `iterations` after burn-in; `acceptance`, `ebfmi`, `step_size` and `leapfrogs` per
        iteration, means over the chains; `divergences`, their number; and for the spaces `weights` and `functions` what
        `convergence` returns. Quantities that never move are left out.
    """
    record = found.record
    assert record is not None
    assert record.acceptance_M is not None
    assert record.divergences_M is not None
    assert record.step_size_M is not None
    iterations = len(record.step_R)  # full batch: one record each
    numbers: dict[str, Any] = {
        "chains": found.chains,
        "draws": found.draws,
        "iterations": iterations,
        "acceptance": float(record.acceptance_M.mean()),
        "divergences": int(record.divergences_M.sum()),
        "ebfmi": float(record.ebfmi_M.mean()) if record.ebfmi_M is not None else math.nan,
        "step_size": float(record.step_size_M.mean()),
        "leapfrogs": float(record.gradients_M.mean()) / iterations,
    }
    for space in SPACES:
        numbers[space] = convergence(*rhat_and_ess(found, space))
    return numbers


def convergence(rhat: np.ndarray, ess: np.ndarray) -> dict[str, float]:
    """Summarise R-hat and effective sample size over all quantities of a space.

    Args:
        rhat: R-hat of every quantity, (R,).
        ess: their bulk effective sample sizes, (R,).

    Returns:
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


def rhat_and_ess(found: Diagnosis, space: str) -> tuple[np.ndarray, np.ndarray]:
    """Return R-hat and bulk effective sample size of all quantities that move.

    Args:
        found: the diagnosis by `run_hmc`.
        space: "weights", or "functions" for the test probabilities.

    Returns:
        Two arrays (R,).
    """
    summary = found.spaces[found.functions if space == "functions" else space]
    moves = ~summary.rhat.isnan()
    return summary.rhat[moves].numpy(), summary.ess_bulk[moves].numpy()
