"""Runs of the posteriors by this library and by blackjax, and what is computed from draws of either."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

import torchbayes as tb
from benchmarks.peers.client import ROOT
from benchmarks.statistical.posteriors import POSTERIORS, starts
from torchbayes.methods.sampler import Sampler


class Run(NamedTuple):
    """What a sampler drew, and what that cost.

    Attributes:
        draws_MSD: draws after burn-in.
        gradients: gradients of all chains after burn-in.
        burn_in: gradients of a chain before, with those that find step sizes.
    """

    draws_MSD: Tensor
    gradients: float
    burn_in: float

    @property
    def values_MSF(self) -> Tensor:
        """The parameters and their squares."""
        return torch.cat([self.draws_MSD, self.draws_MSD.square()], -1)

    @property
    def efficiency(self) -> float:
        """The least effective size of the parameters and their squares, per gradient."""
        return float(tb.diagnostics.ess(self.values_MSF).min()) / self.gradients

    def worst(self, exact_F: Tensor, error_F: Tensor) -> float:
        """Return the largest |z| of the means of parameters and squares.

        Args:
            exact_F: references.
            error_F: their standard errors.
        """
        values_MSF = self.values_MSF
        spread_F = values_MSF.flatten(0, 1).var(0) / tb.diagnostics.ess(values_MSF)
        return float(((values_MSF.mean((0, 1)) - exact_F).abs() / (spread_F + error_F**2).sqrt()).max())


def log_density_of(name: str) -> Callable[[Tensor], Tensor]:
    """Return the log density of a posterior on its data, vector (D,) -> number."""
    posterior = POSTERIORS[name]
    data = {key: torch.from_numpy(value) for key, value in posterior.data.items()}
    return lambda weights_D: posterior.log_density(torch, data, weights_D)


def ours(name: str, method: Sampler, *, seed: int = 1) -> Run:
    """Return a run of a sampler of this library."""
    each, rows = vmap(log_density_of(name)), 0

    def log_density(weights_MD: Tensor) -> Tensor:
        nonlocal rows
        rows += len(weights_MD)
        return each(weights_MD)

    start_MD = torch.from_numpy(starts(name, method.members))
    chains = tb.sample(tb.FunctionDensity(log_density), method, start_MD, seed=seed, callbacks=())
    after = float(chains.numbers["gradients"][:, method.burn_in :].sum())
    return Run(chains.weights_MSD, after, (rows - after) / method.members)


def blackjax(name: str, lengths: Sequence[int], *, file: Path, where: Path, seed: int = 1) -> Run:
    """Return a run of the NUTS of blackjax with its window adaptation, which is kept in a file.

    Args:
        name: the posterior.
        lengths: burn-in, draws and chains.
        file: where the run is kept; it is read if it is there.
        where: the environments of benchmarks/peers/setup.sh.
        seed: seed of the run.

    Raises:
        FileNotFoundError: if the environment is not there.
    """
    if not file.exists():
        python = where.absolute() / "jax" / "bin" / "python"
        if not python.exists():
            raise FileNotFoundError(
                f"there is no environment {python}. Make it by `benchmarks/peers/setup.sh {where} jax`."
            )
        module = "benchmarks.statistical.blackjax_nuts"
        words = [python, "-m", module, file.absolute(), seed, *lengths, name]
        subprocess.run([str(word) for word in words], cwd=ROOT, check=True)
    with np.load(file) as results:
        draws_MSD = torch.from_numpy(results[f"{name}/draws"])
        return Run(draws_MSD, float(results[f"{name}/gradients"].sum()), float(results[f"{name}/warmup"].mean()))
