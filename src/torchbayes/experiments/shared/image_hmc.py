"""What the studies of full-batch HMC share: image problems small enough for it, and its chains on them.

A repeat draws other training rows and starts its chains elsewhere; the test rows stay the same. Training rows that were
not drawn are there to choose settings on and to fit temperatures on, so that no test row decides anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.diagnose import Diagnosis, diagnose
from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes.driver import fit
from torchbayes.methods import HMC
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors.univariate import Normal
from torchbayes.native.seeds import Purpose, generator
from torchbayes.posteriors import Draws

BOUND = 1.1  # of R-hat, as in Izmailov et al. (2021)


@dataclass(frozen=True)
class Problem:
    """Data, network and prior, and the chains that sample the posterior.

    Attributes:
        data: a set of images by name.
        train_size: N, training rows drawn by the seed.
        hmc: the reference. Its step size is adapted in burn-in, its trajectory (π/2) σ unless it says otherwise.
        prior_scale: σ, standard deviation of every weight's normal prior.
        pool: images are averaged over squares of this many pixels a side.
        noise: share of all labels, test rows included, that are replaced by classes drawn uniformly.
        network: a network by name.
        hidden: widths of its hidden layers, for the network `mlp`.
        test_rows: test rows, evenly spaced; None for all.
        spare_rows: at most so many training rows that were not drawn.
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


def named(*problems: Problem | None) -> dict[str, Problem]:
    """Return problems by the names they have in tables, without those that are None."""
    return {problem.label or problem.data: problem for problem in problems if problem is not None}


@dataclass(frozen=True)
class Setup:
    """A problem of one seed.

    Attributes:
        model: network, likelihood and prior.
        train: rows to infer from.
        spare: training rows that are not among them.
        test: rows to judge on.
    """

    model: Model
    train: Pair
    spare: Pair
    test: Pair


def set_up(problem: Problem, seed: int) -> Setup:
    """Draw the training rows of a seed, and make the model.

    Args:
        problem: what to load.
        seed: decides which rows are trained on, and which labels are wrong where some are.

    Returns:
        Model and rows, on the GPU if there is one.

    Raises:
        ValueError: if there are not more training rows than are asked for.
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
    settings: dict[str, Any] = {"hidden": problem.hidden} if problem.network == "mlp" else {}
    network = networks.build(problem.network, tuple(parts[0].inputs.shape[1:]), data.num_classes, **settings)
    device = parts[0].inputs.device
    return Setup(Model(network.to(device), Categorical(), Normal(problem.prior_scale)), *parts)


def _rows(problem: Problem, pair: Pair, rows: Tensor, *, seed: int, part: int) -> Pair:
    """Return some rows, with smaller images and wrong labels as the problem says."""
    inputs, targets = pair.inputs[rows], pair.targets[rows]
    if problem.pool > 1:
        inputs = F.avg_pool2d(inputs, problem.pool)
    if problem.noise:
        source = generator(Purpose.PROBLEM_LABELS, seed, part)
        wrong = torch.rand(len(targets), generator=source) < problem.noise
        classes = int(pair.targets.max()) + 1
        targets = torch.where(wrong, torch.randint(classes, targets.shape, generator=source), targets)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Pair(inputs.to(device), targets.to(device))


def run_hmc(problem: Problem, setup: Setup, *, seed: int, directory: Path) -> tuple[Draws, Diagnosis]:
    """Run the chains from starts of their own, and judge them on the test rows.

    Args:
        problem: its settings.
        setup: its rows and model.
        seed: of starts, momenta and acceptance.
        directory: where the draws go; an interrupted run goes on there.

    Returns:
        The draws, and R-hat of weights and of test probabilities with what the log says.
    """
    draws = fit(setup.model, setup.train, problem.hmc, seed=seed, directory=directory, resume=True)
    assert isinstance(draws, Draws)
    return draws, diagnose(draws, setup.test.inputs, log=directory)


def mixing(found: Diagnosis) -> dict[str, Any]:
    """Return what a diagnosis says of a run, JSON-serialisable.

    Args:
        found: by `run_hmc`.

    Returns:
        `chains`, `draws`, and `iterations` after burn-in; `acceptance`, `ebfmi`, `step_size` and `leapfrogs` of an
        iteration, means over the chains, and `divergences`, their number; for the spaces `weights` and `functions` what
        `judged` says. Quantities that never move count in nothing.
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
    for space in ("weights", "functions"):
        numbers[space] = judged(*known(found, space))
    return numbers


def judged(rhat: np.ndarray, ess: np.ndarray) -> dict[str, float]:
    """Return what `mixing` says of a space.

    Args:
        rhat: R-hat of its quantities, (R,).
        ess: their bulk effective sizes, (R,).

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


def known(found: Diagnosis, space: str) -> tuple[np.ndarray, np.ndarray]:
    """Return R-hat and bulk effective size of all quantities that move.

    Args:
        found: by `run_hmc`.
        space: "weights", or "functions" for the test probabilities.

    Returns:
        Two arrays (R,).
    """
    summary = found.spaces[found.functions if space == "functions" else space]
    moves = ~summary.rhat.isnan()
    return summary.rhat[moves].numpy(), summary.ess_bulk[moves].numpy()
