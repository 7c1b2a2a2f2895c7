"""Runs of our samplers and of blackjax's until their error is low."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchbayes as tb
from benchmarks.low_error.crossing import Run, errors, is_done, moments
from benchmarks.low_error.gradients import GRADIENTS
from benchmarks.low_error.targets import TARGETS
from benchmarks.peers.client import ROOT
from torchbayes.density.dynamics import Stepwise, Value, ValueOnly
from torchbayes.methods.sampler import Sampler

BLOCK = 50  # steps whose errors are computed together


class Closed(Stepwise):
    """The log density of a target with its gradient in closed form."""

    def __init__(self, name: str) -> None:
        """Take the target's data."""
        self._both = GRADIENTS[name]
        self._data = {key: torch.from_numpy(value) for key, value in TARGETS[name].posterior.data.items()}

    def __call__(self, weights_MD: Tensor, batch: Any = None) -> Value:
        """Return value and gradient at each row; a batch is ignored."""
        with torch.no_grad():
            value_M, gradient_MD = self._both(self._data, weights_MD)
        return Value(value_M, gradient_MD, value_M)

    def value(self, weights_MD: Tensor, batch: Any = None) -> ValueOnly:
        """Return the value at each row; a batch is ignored."""
        value_M = self(weights_MD).log_density
        return ValueOnly(value_M, value_M)


def ours(name: str, method: Sampler, *, seed: int = 1, length: int | None = None) -> Run:
    """Return a run of a sampler of this library.

    Args:
        name: the target.
        method: the sampler, whose length and draws do not count: only its burn-in.
        seed: seed of the run.
        length: gradients of a chain after tuning; None ends the run once its error is low, or after the budget.
    """
    target = TARGETS[name]
    expected = moments(name, unknown=length is not None)
    density, method = Closed(name), replace(method, steps=10**9)
    start_MD = torch.from_numpy(target.starts(method.members))
    state, tuning = method.init(density, start_MD, seeds=tb.member_seeds(seed, method.members)), 0.0
    for _ in range(method.burn_in):
        state, info = method.step(density, state)
        tuning += float(info.gradients_M.mean())
    blocks, gradients, steps = [], 0.0, 0
    sums_MF = np.zeros((method.members, 2 * target.posterior.size))
    while not blocks or not is_done(blocks, gradients / steps, target, length=length):
        draws = []
        for _ in range(BLOCK):
            state, info = method.step(density, state)
            gradients += float(info.gradients_M.mean())
            draws.append(state.weights_MD)
        squares_MTD = target.values(torch, torch.stack(draws, 1)).square().numpy()
        paths_MTD = sums_MF[:, None, : target.posterior.size] + squares_MTD.cumsum(1)
        blocks.append(errors(paths_MTD / np.arange(steps + 1, steps + BLOCK + 1)[:, None], expected))
        sums_MF += np.concatenate([squares_MTD, squares_MTD**2], -1).sum(1)
        steps += BLOCK
    trajectory_M = getattr(state, "trajectory_M", torch.tensor([float("nan")]))
    medians = float(state.step_size.step_size_M.median()), float(trajectory_M.median())
    return Run(np.concatenate(blocks, -1), gradients / steps, tuning, *medians, sums_MF / steps)


def blackjax(name: str, sampler: str, *, chains: int, where: Path, seed: int = 1, length: int | None = None) -> Run:
    """Return a run of a sampler of blackjax, as `ours` does.

    Args:
        name: the target.
        sampler: mclmc or nuts.
        chains: number of chains.
        where: the environments of benchmarks/peers/setup.sh.
        seed: seed of the run.
        length: gradients of a chain after tuning; None ends the run once its error is low, or after the budget.

    Raises:
        FileNotFoundError: if the environment is not there.
    """
    python = where.absolute() / "jax" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(
            f"there is no environment {python}. Make it by `benchmarks/peers/setup.sh {where} jax`."
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.npz"
        words = [python, "-m", "benchmarks.low_error.blackjax_runs", file, seed, chains, length or 0, name]
        subprocess.run([str(word) for word in [*words, sampler]], cwd=ROOT, check=True)
        with np.load(file) as results:
            gradients, tuning, step_size, trajectory = (float(results[key]) for key in Run._fields[1:5])
            return Run(results["errors_CMT"], gradients, tuning, step_size, trajectory, results["means_MF"])
