"""Gradients to low error: how many gradients a chain takes until its mean of x² stays near E[x²].

After tuning, with m_t the mean of x² over the first t steps of a chain,

    e_t = mean or maximum over parameters of (m_t − E[x²])²/Var[x²]

and the number of steps to low error is the last t at which the median of e_t over chains is above 0.01; it is
infinite if the median is above at the end of the run. Times the mean number of gradients of a step it is what
sampler-benchmarks reports (Robnik, Cohn-Gordon and Seljak 2025). 0.01 is the error of 100 independent draws.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.low_error.targets import TARGETS, Target

THRESHOLD = 0.01
REFERENCES = Path(__file__).with_name("references.json")


class Run(NamedTuple):
    """What a sampler did after tuning.

    Attributes:
        errors_CMT: e_t of every chain, by the mean and by the maximum over parameters.
        gradients: mean number of gradients of a step after tuning.
        tuning: gradients of a chain before.
        step_size: ε after tuning, the median over chains.
        trajectory: L, likewise; NaN where there is none.
        means_MF: means of x² and x⁴ over all steps of each chain.
    """

    errors_CMT: np.ndarray
    gradients: float
    tuning: float
    step_size: float
    trajectory: float
    means_MF: np.ndarray

    @property
    def needed_C(self) -> np.ndarray:
        """Gradients to low error by the mean and the maximum over parameters."""
        return self.gradients * np.array([crossing(errors_MT) for errors_MT in self.errors_CMT])

    def spread_C(self, resamples: int = 100) -> np.ndarray:
        """Return standard deviations of the gradients to low error over resamples of the chains.

        Infinite ones are left out; NaN where they are half of all or more.
        """
        random, chains = np.random.default_rng(0), self.errors_CMT.shape[1]
        picks = random.integers(chains, size=(resamples, chains))
        results = np.array([[crossing(errors_MT[pick]) for pick in picks] for errors_MT in self.errors_CMT])
        bounded = [row[np.isfinite(row)] for row in results]
        return np.array([self.gradients * row.std() if 2 * len(row) > resamples else math.nan for row in bounded])


def pooled(run: Run, moments: np.ndarray) -> float:
    """Return the maximum over parameters of the error of the mean over all chains: a bias, and how good a reference is.

    Args:
        run: whose means of x² are averaged.
        moments: E and Var of x², (2, D).
    """
    means_D = run.means_MF[:, : moments.shape[1]].mean(0)
    return float(((means_D - moments[0]) ** 2 / moments[1]).max())


def crossing(errors_MT: np.ndarray) -> float:
    """Return the steps to low error; infinite if the median is above it at the end."""
    above_T = np.median(errors_MT, axis=0) > THRESHOLD
    if above_T[-1]:
        return math.inf
    return float(np.flatnonzero(above_T).max(initial=0) + 1)


def errors(means_MTD: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Return e_t by mean and maximum, (2, M, T), of running means of x²; `moments` are E and Var of x², (2, D)."""
    square_MTD = (means_MTD - moments[0]) ** 2 / moments[1]
    return np.stack([square_MTD.mean(-1), square_MTD.max(-1)])


def is_done(blocks: list[np.ndarray], gradients: float, target: Target, *, length: int | None = None) -> bool:
    """Return whether a run ends: after its budget of gradients, or 1.5 times the steps to low error.

    Args:
        blocks: e_t of the blocks of steps until now, (2, M, steps) each.
        gradients: of a step.
        target: which.
        length: gradients after which it ends instead, whatever the errors.
    """
    steps = sum(block.shape[-1] for block in blocks)
    if length is not None:
        return gradients * steps >= length
    if gradients * steps >= target.budget:
        return True
    if len(blocks) & (len(blocks) - 1) and len(blocks) % 20:  # each look reads all of the run
        return False
    return steps >= 1.5 * crossing(np.concatenate([block[target.judged] for block in blocks], -1))


def moments(name: str, *, unknown: bool = False) -> np.ndarray:
    """Return E[x²] and Var[x²] of the parameters of a target, (2, D); ones while they are still unknown."""
    target = TARGETS[name]
    if unknown:
        return np.ones((2, target.posterior.size))
    if target.exact is not None:
        return target.exact
    square, fourth = np.split(np.array(json.loads(REFERENCES.read_text())[name]["mean"]), 2)
    return np.stack([square, fourth - square**2])
