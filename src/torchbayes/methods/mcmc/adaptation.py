"""What samplers learn during burn-in: a step size for each chain, and a diagonal mass.

Step size by dual averaging (Hoffman and Gelman 2014, section 3.2): with acceptance α_t and target δ,

    h_t = (1 − 1/(t + t0)) h_{t−1} + (δ − α_t)/(t + t0)
    log ε_{t+1} = μ − (√t/γ) h_t,     log ε̄_t = t^−κ log ε_t + (1 − t^−κ) log ε̄_{t−1}

with μ = log(10 ε_1), γ = 0.05, t0 = 10, κ = 0.75; after burn-in ε̄ is kept. The sum h is unbounded, and would wind up
where ε has no effect. So ε is kept within a factor of 10 of ε̄, within one of 10⁶ of exp μ, and below a bound that the
method sets, and h is set to the value that gives that ε (back-calculation; Åström and Hägglund 1995, section 3.5). A
few rejections in a row at the start then cost a factor of ten in ε, not of millions, which leapfrog steps would have to
make up.

The inverse mass is the variance of the weights in windows of doubling length, shrunk to a constant as in Stan (Stan
reference manual, section 15.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LEAST_BURN_IN = 20  # steps in which a mass is learned; fewer hold no window
_GAMMA, _DELAY, _DECAY = 0.05, 10.0, 0.75
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
        return cls(step_size_M, step_size_M.log(), (10 * step_size_M).log(), zeros, 0)

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

    def restarted(self) -> StepSize:
        """Return memory restarted at the present step sizes, as after a change of mass."""
        return StepSize.at(self.step_size_M)


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

    def inverse_mass(self, groups: Sequence[slice] = ()) -> Tensor:
        """Return the variances, shrunk towards a thousandth of their mean with the weight of five observations.

        Args:
            groups: slices of the flat vector that share one variance, such as layers; none for one per weight.

        Returns:
            Tensor (M, D), computed for each chain separately, so that chains stay independent.
        """
        variance_MD = self.squares_MD / max(self.count - 1, 1)
        for where in groups:
            variance_MD[:, where] = variance_MD[:, where].mean(-1, keepdim=True)
        prior_M1 = 1e-3 * variance_MD.mean(-1, keepdim=True)
        return (self.count * variance_MD + 5 * prior_M1) / (self.count + 5)


def windows(burn_in: int) -> tuple[int, ...]:
    """Return the steps after which the mass is renewed: ends of windows that double, within the middle of burn-in.

    The first tenth only finds the bulk and the last tenth only settles the step size.
    """
    if burn_in < LEAST_BURN_IN:
        return ()
    start, stop = max(burn_in // 10, 5), burn_in - max(burn_in // 10, 5)
    ends, length = [], max((stop - start) // 8, 5)
    at = start
    while at < stop:
        end = at + length
        end = stop if end + 2 * length > stop else end  # the last window takes what is left
        ends.append(end)
        at, length = end, 2 * length
    return tuple(ends)
