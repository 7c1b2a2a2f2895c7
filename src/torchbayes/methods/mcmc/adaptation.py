"""What samplers learn during burn-in: a step size for each chain, and a diagonal or a dense mass.

Step size by dual averaging (Hoffman and Gelman 2014, section 3.2): with acceptance α_t and target δ,

    h_t = (1 − 1/(t + t0)) h_{t−1} + (δ − α_t)/(t + t0)
    log ε_{t+1} = μ − (√t/γ) h_t,     log ε̄_t = t^−κ log ε_t + (1 − t^−κ) log ε̄_{t−1}

with μ = log ε_1, γ = 0.2, t0 = 10, κ = 0.75; after burn-in ε̄ is kept. Hoffman and Gelman have γ = 0.05, for which log
ε scatters so much (one rejection lowers it by up to 2.5) that ε̄ is far from where acceptance is δ: large steps are
rejected, and small ones do not make up for them. A mean acceptance of 0.8 while ε scatters becomes one of 0.88 to 0.93
at ε̄, with steps too short by a third; with γ = 0.2 it is 0.78 to 0.83. Their μ = log(10 ε_1) would draw ε̄ upwards
the more, the larger γ is. The first step size is found by a search, and needs no such push.

The sum h is unbounded, and would wind up where ε has no effect. So ε is kept within a factor of 10 of ε̄, within one
of 10⁶ of ε_1, and below a bound that the method sets, and h is set to the value that gives that ε (back-calculation;
Åström and Hägglund 1995, section 3.5). A few rejections in a row at the start then cost a factor of ten in ε instead
of millions, which leapfrog steps would have to make up.

The inverse mass is the variance, or the covariance, of the weights in windows of doubling length, shrunk to a constant
as in Stan (Stan reference manual, section 15.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LEARNED = ("diagonal", "layer", "dense")  # masses that are learned in burn-in
LEAST_BURN_IN = 20  # steps to learn a mass; fewer hold no window
_GAMMA, _DELAY, _DECAY = 0.2, 10.0, 0.75
_SWING, _RANGE = math.log(10.0), math.log(1e6)  # largest distance of log ε from log ε̄, and from μ


@dataclass(frozen=True)
class StepSize:
    """Step sizes of M chains, and the memory of dual averaging."""

    step_size_M: Tensor  # ε in use, float64
    average_M: Tensor  # log ε̄
    centre_M: Tensor  # μ
    error_M: Tensor  # h
    count: int  # t

    @classmethod
    def at(cls, step_size_M: Tensor) -> StepSize:
        """Return the memory before the first step, at given step sizes."""
        step_size_M = step_size_M.double()
        zeros = torch.zeros_like(step_size_M)
        return cls(step_size_M, step_size_M.log(), step_size_M.log(), zeros, 0)

    def adapted(self, acceptance_M: Tensor, target: float, *, longest: float = math.inf) -> StepSize:
        """Return step sizes after one more step, for the target acceptance δ and at most `longest`.

        The acceptances may be on any device; the memory stays on its own.
        """
        count = self.count + 1
        share, slope = 1 / (count + _DELAY), math.sqrt(count) / _GAMMA
        error_M = (1 - share) * self.error_M + share * (target - acceptance_M.to(self.error_M))
        log_M = (self.centre_M - slope * error_M).clamp(self.centre_M - _RANGE, self.centre_M + _RANGE)
        log_M = log_M.clamp(self.average_M - _SWING, self.average_M + _SWING).clamp(max=math.log(longest))
        weight = count**-_DECAY
        average_M = weight * log_M + (1 - weight) * self.average_M
        error_M = (self.centre_M - log_M) / slope
        return replace(self, step_size_M=log_M.exp(), average_M=average_M, error_M=error_M, count=count)

    def settled(self) -> StepSize:
        """Return the averaged step sizes, for the rest of the run."""
        return replace(self, step_size_M=self.average_M.exp()) if self.count else self


@dataclass(frozen=True)
class RunningVariance:
    """Running variance of the weights of M chains, by Welford's rule."""

    mean_MD: Tensor
    squares_MD: Tensor  # sum of squared deviations
    count: int  # weights seen

    @classmethod
    def empty(cls, weights_MD: Tensor) -> RunningVariance:
        """Return the variance before any weights are seen."""
        return cls(torch.zeros_like(weights_MD), torch.zeros_like(weights_MD), 0)

    def collect(self, weights_MD: Tensor) -> RunningVariance:
        """Return the variance with one more vector of weights."""
        count = self.count + 1
        before = weights_MD - self.mean_MD
        mean_MD = self.mean_MD + before / count
        return RunningVariance(mean_MD, self.squares_MD + before * (weights_MD - mean_MD), count)

    def inverse_mass(self, groups: Sequence[slice] = (), *, least: int = 0) -> Tensor:
        """Return the variances (M, D), shrunk towards a thousandth of their mean with the weight of five observations.

        Each chain has its own, so that chains stay independent. The weights of a slice in `groups`, such as a layer,
        share one variance. `least` is not used: a dense mass needs it.
        """
        variance_MD = self.squares_MD / max(self.count - 1, 1)
        for where in groups:
            variance_MD[:, where] = variance_MD[:, where].mean(-1, keepdim=True)
        return _shrunk(variance_MD, 1e-3 * variance_MD.mean(-1, keepdim=True), self.count)


@dataclass(frozen=True)
class RunningCovariance:
    """Running covariance of the weights of M chains, by Welford's rule."""

    mean_MD: Tensor
    squares_MDD: Tensor  # sum of the outer products of deviations
    count: int  # weights seen

    @classmethod
    def empty(cls, weights_MD: Tensor) -> RunningCovariance:
        """Return the covariance before any weights are seen."""
        return cls(torch.zeros_like(weights_MD), weights_MD.new_zeros(*weights_MD.shape, weights_MD.shape[-1]), 0)

    def collect(self, weights_MD: Tensor) -> RunningCovariance:
        """Return the covariance with one more vector of weights."""
        count = self.count + 1
        before = weights_MD - self.mean_MD
        mean_MD = self.mean_MD + before / count
        # the product (w − old mean)(w − new mean)ᵀ, of two parallel vectors, written so that it is symmetric to the bit
        squares_MDD = self.squares_MDD + (1 - 1 / count) * before.unsqueeze(-1) * before.unsqueeze(-2)
        return RunningCovariance(mean_MD, squares_MDD, count)

    def inverse_mass(self, groups: Sequence[slice] = (), *, least: int = 0) -> Tensor:
        """Return Cholesky factors (M, D, D) of the covariances, shrunk like the variances of `RunningVariance`.

        They are lower triangular, and zero for a chain whose matrix is not positive definite. With fewer than `least`
        observations only the variances are taken, as if weights were not correlated. `groups` is not used: weights
        share a variance in a diagonal mass.
        """
        covariance_MDD = self.squares_MDD.double() / max(self.count - 1, 1)
        if self.count < least:
            covariance_MDD = torch.diag_embed(covariance_MDD.diagonal(dim1=-2, dim2=-1))
        mean_M1 = covariance_MDD.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        prior_MDD = torch.diag_embed(1e-3 * mean_M1.expand_as(self.mean_MD))
        factor_MDD, failed_M = torch.linalg.cholesky_ex(_shrunk(covariance_MDD, prior_MDD, self.count))
        factor_MDD = torch.where((failed_M != 0)[:, None, None], 0.0, factor_MDD).to(self.squares_MDD)
        # contiguous, as when read from a checkpoint: another layout would change the rounding
        return factor_MDD.contiguous()


def _shrunk(estimates: Tensor, prior: Tensor, count: int) -> Tensor:
    """Return estimates from `count` observations, with a prior of the weight of five."""
    return (count * estimates + 5 * prior) / (count + 5)


def windows(burn_in: int) -> tuple[int, tuple[int, ...]]:
    """Return the number of steps before the first window in which a mass is estimated, and the steps that end each.

    The first window has 15 steps, each other twice as many as the one before. They begin after 10 steps, or 15 % of
    burn-in if that is fewer, and end 50 steps, or 20 %, before it does, so that the step size settles. Stan has 75
    steps before the first window. In an ill-conditioned target the steps before the first mass is known cost most, and
    what the first windows learn on the way to the bulk is replaced. A burn-in that is too short has no windows.
    """
    if burn_in < LEAST_BURN_IN:
        return burn_in, ()
    first, stop = min(10, 3 * burn_in // 20), burn_in - min(50, burn_in // 5)
    ends, at, length = [], first, 15
    while at < stop:
        at = stop if at + 3 * length > stop else at + length  # the last window takes what is left
        ends.append(at)
        length *= 2
    return first, tuple(ends)
