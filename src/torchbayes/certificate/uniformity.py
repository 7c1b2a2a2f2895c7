r"""Are ranks uniform? The test of simulation-based calibration, with the size of what it finds.

For $N$ simulations with truth $\tilde\theta_i \sim p(\theta)$ and data $\tilde y_i \sim p(y \mid \tilde\theta_i)$, the
share $u_i$ of draws of the fitted posterior below $f(\tilde\theta_i, \tilde y_i)$ is uniform for every function $f$
where the posterior is right (Talts et al. 2018; Modrák et al. 2023). Their empirical distribution function is compared
with the diagonal at $z_k = k/K$, at all of them together (Säilynoja, Bürkner and Vehtari 2022): the count $c_k$ of
$u_i \le z_k$ is binomial, and

$$t = \min_k 2 \min\{P(C_k \le c_k), P(C_k \ge c_k)\}$$

is compared with its own distribution over uniform samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from torchbayes.checks import check_counts, check_share, check_tensor
from torchbayes.randomness.seeds import Purpose, generator

_POINTS = 100  # most points at which the distribution functions are compared
_SIMULATED = 4000  # uniform samples, from which the distribution of t is known
_RESAMPLES = 1000
_NUMBERS = 2**22  # that are held at once
_ROUNDING = 1 - 1e-9  # tails of symmetric counts differ by rounding
_LEVEL = 0.95


@dataclass(frozen=True)
class Uniformity:
    r"""Whether N numbers in (0, 1) are uniform, and how far posteriors are off if they are not.

    Attributes:
        count: N.
        p_value: probability of a less uniform sample from the uniform distribution.
        largest: largest difference of the two distribution functions.
        shift: centre of the posteriors less the truth, in posterior standard deviations:
            $-\sqrt2\,\Phi^{-1}(\bar u)$, exact where both are normal.
        shift_interval: its 95 % bootstrap interval.
        width: standard deviation of the posteriors over the right one, $k = \sqrt{(1 - \varsigma)/\varsigma}$ with
            $\varsigma = \sin(2\pi \operatorname{Var} u)$: below 1 they are too narrow.
        width_interval: its 95 % bootstrap interval.
    """

    count: int
    p_value: float
    largest: float
    shift: float
    shift_interval: tuple[float, float]
    width: float
    width_interval: tuple[float, float]


def uniformity(values_N: Tensor) -> Uniformity:
    """Return whether numbers are uniform on (0, 1).

    Args:
        values_N: ranks over draws, (N,), float64, in [0, 1], N ≥ 2.

    Raises:
        TypeError: if they are no tensor.
        ValueError: if there are fewer than 2, or one is outside [0, 1].
    """
    check_tensor("N", values_N=values_N)
    values_N = values_N.double().cpu()
    count = len(values_N)
    if count < 2 or not bool(((values_N >= 0) & (values_N <= 1)).all()):
        raise ValueError(f"`values_N` must be at least 2 numbers in [0, 1]; got {count} in {_range(values_N)}.")
    points_K = _points(count)
    counts_K = (values_N <= points_K.unsqueeze(1)).sum(1)
    smallest = float(_tails(count).gather(1, counts_K.unsqueeze(1)).min())
    null_R = _null(count)
    p_value = (1 + int((null_R * _ROUNDING <= smallest).sum())) / (1 + len(null_R))
    sorted_N, ranks_N = values_N.sort().values, torch.arange(count + 1, dtype=torch.float64) / count
    largest = float(torch.maximum((sorted_N - ranks_N[:-1]).abs(), (sorted_N - ranks_N[1:]).abs()).max())
    again_RN = torch.randint(count, (_RESAMPLES, count), generator=generator(Purpose.RANK_RESAMPLES, count))
    resampled_RN = values_N[again_RN]
    return Uniformity(
        count,
        p_value,
        largest,
        *_sized(_shift, values_N, resampled_RN),
        *_sized(_width, values_N, resampled_RN),
    )


def resolution(count: int, *, level: float = 0.95) -> float:
    """Return the smallest error of a distribution function at its middle that N = `count` ranks show at a level.

    It is half the width of the simultaneous envelope there: .2 for 50 ranks, .1 for 200.
    """
    check_counts(count=count)
    check_share(level=level)
    bound = _ROUNDING * float(_null(count).quantile(1 - level))
    points_K = _points(count)
    middle = int((points_K - 0.5).abs().argmin())
    inside = (_tails(count)[middle] >= bound).nonzero().squeeze(1)
    return float((inside.double() / count - points_K[middle]).abs().max())


def envelope(count: int, *, level: float = 0.95, tests: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return points z, (K,), and the simultaneous bounds of the empirical distribution function there, low and high.

    Args:
        count: N, the number of ranks.
        level: probability with which all of a uniform sample lies inside.
        tests: number of samples that are to lie inside together, by Bonferroni's bound.
    """
    check_counts(count=count, tests=tests)
    check_share(level=level)
    bound = _ROUNDING * float(_null(count).quantile((1 - level) / tests))
    inside_KC = _tails(count) >= bound
    counts_C = torch.arange(count + 1, dtype=torch.float64)
    low_K = torch.where(inside_KC, counts_C, float(count)).amin(1) / count
    high_K = torch.where(inside_KC, counts_C, 0.0).amax(1) / count
    return _points(count), low_K, high_K


def _points(count: int) -> Tensor:
    points = min(count, _POINTS)
    return torch.arange(1, points, dtype=torch.float64) / points if points > 1 else torch.tensor([0.5]).double()


@lru_cache(maxsize=16)
def _tails(count: int) -> Tensor:
    """Return twice the smaller tail of each count at each point, (K, N + 1)."""
    points_K, counts_C = _points(count), torch.arange(count + 1, dtype=torch.float64)
    choices_C = math.lgamma(count + 1) - torch.lgamma(counts_C + 1) - torch.lgamma(count - counts_C + 1)
    log_KC = choices_C + torch.outer(points_K.log(), counts_C) + torch.outer((1 - points_K).log(), count - counts_C)
    mass_KC = log_KC.exp()
    return 2 * torch.minimum(mass_KC.cumsum(1), mass_KC.flip(1).cumsum(1).flip(1))


@lru_cache(maxsize=16)
def _null(count: int) -> Tensor:
    """Return t of uniform samples, sorted, (R,)."""
    points_K = _points(count)
    source, tails_CK, smallest = generator(Purpose.UNIFORM_RANKS, count), _tails(count).T, []
    block = min(_SIMULATED, max(1, _NUMBERS // count))
    for start in range(0, _SIMULATED, block):
        rows = min(block, _SIMULATED - start)
        noise_RN = torch.rand(rows, count, generator=source, dtype=torch.float64).sort(1).values
        counts_RK = torch.searchsorted(noise_RN, points_K.expand(rows, -1).contiguous(), right=True)
        smallest.append(tails_CK.gather(0, counts_RK).amin(1))
    return torch.cat(smallest).sort().values


def _shift(values: Tensor) -> Tensor:
    return -math.sqrt(2) * torch.special.ndtri(values.mean(-1))


def _width(values: Tensor) -> Tensor:
    # a variance above 1/4, by chance or for a posterior of no width, would leave the range of the sine
    share = torch.sin(2 * math.pi * values.var(-1, correction=0).clamp(max=0.25))
    return ((1 - share) / share).sqrt()


def _sized(
    size: Callable[[Tensor], Tensor], values_N: Tensor, resampled_RN: Tensor
) -> tuple[float, tuple[float, float]]:
    low, high = size(resampled_RN).quantile(torch.tensor([(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]).double()).tolist()
    return float(size(values_N)), (low, high)


def _range(values_N: Tensor) -> str:
    return f"[{float(values_N.min()):.3g}, {float(values_N.max()):.3g}]" if len(values_N) else "no range"
