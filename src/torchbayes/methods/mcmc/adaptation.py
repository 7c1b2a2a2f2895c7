"""What samplers learn during burn-in: a step size for each chain, and a diagonal or a dense mass.

Step size by dual averaging (Hoffman and Gelman 2014, section 3.2): with acceptance α_t and target δ,

    h_t = (1 − 1/(t + t0)) h_{t−1} + (δ − α_t)/(t + t0)
    log ε_{t+1} = μ − (√t/γ) h_t,     log ε̄_t = t^−κ log ε_t + (1 − t^−κ) log ε̄_{t−1}

with μ = log ε_1, γ = 0.2, t0 = 10, κ = 0.75; after burn-in ε̄ is kept. Hoffman and Gelman have γ = 0.05, for which log ε
scatters so much (one rejection lowers it by up to 2.5) that ε̄ is far from where acceptance is δ: large steps are
rejected, and small ones cannot gain what those lose. A mean acceptance of 0.8 while ε scatters becomes one of 0.88 to
0.93 at ε̄, with steps too short by a third; with γ = 0.2 it is 0.78 to 0.83. Their μ = log(10 ε_1) would draw ε̄ upwards
the more, the larger γ; the first step size is found by a search, and needs no such push.

The sum h is unbounded, and would wind up where ε has no effect. So ε is kept within a factor of 10 of ε̄, within one of
10⁶ of ε_1, and below a bound that the method sets, and h is set to the value that gives that ε (back-calculation;
Åström and Hägglund 1995, section 3.5). A few rejections in a row at the start then cost a factor of ten in ε, not of
millions, which leapfrog steps would have to make up.

The inverse mass is the variance, or the covariance, of the weights in windows of doubling length, shrunk to a constant
as in Stan (Stan reference manual, section 15.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LEARNED = ("diagonal", "layer", "dense")  # the masses that burn-in teaches
LEAST_BURN_IN = 20  # steps in which a mass is learned; fewer hold no window
_GAMMA, _DELAY, _DECAY = 0.2, 10.0, 0.75
_SWING, _RANGE = math.log(10.0), math.log(1e6)  # of log ε around log ε̄, and around μ


@dataclass(frozen=True)
class StepSize:
    """Step sizes of M chains, and the memory of dual averaging.

    Attributes:
        step_size_M: ε in use, float64.
        average_M: log ε̄.
        centre_M: μ.
        error_M: h.
        count: t.
    """

    step_size_M: Tensor
    average_M: Tensor
    centre_M: Tensor
    error_M: Tensor
    count: int

    @classmethod
    def at(cls, step_size_M: Tensor) -> StepSize:
        """Return the memory before the first step, at step sizes (M,)."""
        step_size_M = step_size_M.double()
        zeros = torch.zeros_like(step_size_M)
        return cls(step_size_M, step_size_M.log(), step_size_M.log(), zeros, 0)

    def adapted(self, acceptance_M: Tensor, target: float, *, longest: float = math.inf) -> StepSize:
        """Return step sizes after one more step.

        Args:
            acceptance_M: the step's probabilities of acceptance, on any device; the memory stays on its own.
            target: δ.
            longest: bound on ε.

        Returns:
            Step sizes and memory.
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
    """Running variance of the weights of M chains, by Welford's rule.

    Attributes:
        mean_MD: mean.
        squares_MD: sum of squared deviations.
        count: weights seen.
    """

    mean_MD: Tensor
    squares_MD: Tensor
    count: int

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
        """Return the variances, shrunk towards a thousandth of their mean with the weight of five observations.

        Args:
            groups: slices of the flat vector that share one variance, such as layers; none for one per weight.
            least: not used; observations that a dense mass needs.

        Returns:
            Tensor (M, D), computed for each chain separately, so that chains stay independent.
        """
        variance_MD = self.squares_MD / max(self.count - 1, 1)
        for where in groups:
            variance_MD[:, where] = variance_MD[:, where].mean(-1, keepdim=True)
        return _shrunk(variance_MD, 1e-3 * variance_MD.mean(-1, keepdim=True), self.count)


@dataclass(frozen=True)
class RunningCovariance:
    """Running covariance of the weights of M chains, by Welford's rule.

    Attributes:
        mean_MD: mean.
        squares_MDD: sum of the outer products of deviations.
        count: weights seen.
    """

    mean_MD: Tensor
    squares_MDD: Tensor
    count: int

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
        """Return Cholesky factors of the covariances, shrunk as the variances of `RunningVariance` to a multiple of I.

        Args:
            groups: not used; weights that share a variance are for a diagonal mass.
            least: observations below which only the variances are taken, as if weights were not correlated.

        Returns:
            Lower triangular tensor (M, D, D); zero for a chain whose matrix is not positive definite.
        """
        covariance_MDD = self.squares_MDD.double() / max(self.count - 1, 1)
        if self.count < least:
            covariance_MDD = torch.diag_embed(covariance_MDD.diagonal(dim1=-2, dim2=-1))
        mean_M1 = covariance_MDD.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        prior_MDD = torch.diag_embed(1e-3 * mean_M1.expand_as(self.mean_MD))
        factor_MDD, failed_M = torch.linalg.cholesky_ex(_shrunk(covariance_MDD, prior_MDD, self.count))
        factor_MDD = torch.where((failed_M != 0)[:, None, None], 0.0, factor_MDD).to(self.squares_MDD)
        return factor_MDD.contiguous()  # as it is read from a checkpoint: another layout would change the rounding


def _shrunk(found: Tensor, prior: Tensor, count: int) -> Tensor:
    """Return estimates from `count` observations, with a prior of the weight of five."""
    return (count * found + 5 * prior) / (count + 5)


def windows(burn_in: int) -> tuple[int, tuple[int, ...]]:
    """Return the windows of burn-in in which a mass is estimated, of 15 steps and then twice as many each time.

    They begin after 10 steps, or 15 % of burn-in if those are fewer, and end 50 steps before it does, or 20 %, in which
    the step size settles. Stan has 75 steps before the first window. In an ill-conditioned target the steps before the
    first mass is known are those that cost most, and what the first windows learn on the way to the bulk is replaced.

    Args:
        burn_in: steps of burn-in.

    Returns:
        The steps before the first window, and those after which the mass is renewed; none in a burn-in too short.
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
