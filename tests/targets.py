"""Densities with exactly known moments, and the comparison of a sampler's draws with them.

A builder returns a `Target`. Its `log_density` takes float32 or float64 weights and works in float64, so that a sampler
in float32 sees a float64 value and a float32 gradient, as from a `LogDensity`. `assert_moments` and `assert_quantiles`
judge draws (M, S, D) by their own Monte Carlo error: M chains of S draws, which may be correlated along S.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from tests.oracles import LinearGaussian, normal
from torchbayes.density import FunctionDensity, Value
from torchbayes.randomness.seeds import Purpose, mix


@dataclass(frozen=True)
class Target:
    """A density on D weights with known moments.

    Attributes:
        name: what it is.
        log_density: weights (M, D) -> log density (M,), float64, up to a constant.
        mean_D: exact mean, float64.
        covariance_DD: exact covariance, float64.
        cdf: weights (..., D) -> marginal distribution functions (..., D), exact; None if they are not known.
        sample: (count, seed) -> independent exact draws (count, D); None if there is no easy way.
        transform: weights (..., D) -> the coordinates of another target (..., D); None if there is none.
    """

    name: str
    log_density: Callable[[Tensor], Tensor]
    mean_D: Tensor
    covariance_DD: Tensor
    cdf: Callable[[Tensor], Tensor] | None = None
    sample: Callable[[int, int], Tensor] | None = None
    transform: Callable[[Tensor], Tensor] | None = None

    @property
    def size(self) -> int:
        """D."""
        return len(self.mean_D)

    @property
    def variance_D(self) -> Tensor:
        """Exact variance of each coordinate."""
        return self.covariance_DD.diagonal()

    def quantiles(self, levels_P: Tensor) -> Tensor:
        """Return the exact marginal quantiles (P, D), by bisection of `cdf` up to 50 standard deviations away."""
        assert self.cdf is not None, f"{self.name} has no exact distribution functions"
        reach_PD = (50 * self.variance_D.sqrt()).expand(len(levels_P), -1)
        low_PD, high_PD = self.mean_D - reach_PD, self.mean_D + reach_PD
        for _ in range(60):
            middle_PD = (low_PD + high_PD) / 2
            below = self.cdf(middle_PD) < levels_P[:, None]
            low_PD, high_PD = torch.where(below, middle_PD, low_PD), torch.where(below, high_PD, middle_PD)
        return (low_PD + high_PD) / 2

    def density(self) -> FunctionDensity:
        """Return what a sampler is given."""
        return FunctionDensity(self.log_density)


# --- Gaussian ---


def _gaussian(name: str, mean_D: Tensor, covariance_DD: Tensor, log_density: Callable[[Tensor], Tensor]) -> Target:
    """Return a target whose law is N(mean, covariance), however its density is written."""
    factor_DD, scale_D = torch.linalg.cholesky(covariance_DD), covariance_DD.diagonal().sqrt()
    return Target(
        name,
        log_density,
        mean_D,
        covariance_DD,
        cdf=lambda weights: torch.special.ndtr((weights.double() - mean_D) / scale_D),
        sample=lambda count, seed: mean_D + normal(count, len(mean_D), seed=seed) @ factor_DD.T,
    )


def correlated_gaussian(size: int = 50, condition: float = 1e3, seed: int = 0) -> Target:
    """Return N(μ, Q diag(λ) Qᵀ): Q a random rotation, λ log-spaced from 1/condition to 1, μ standard normal."""
    rotation_DD, _ = torch.linalg.qr(normal(size, size, seed=seed))
    variances_D = torch.logspace(-math.log10(condition), 0, size, dtype=torch.float64)
    mean_D = normal(size, seed=seed + 1)

    def log_density(weights_MD: Tensor) -> Tensor:
        return -0.5 * (((weights_MD.double() - mean_D) @ rotation_DD) ** 2 / variances_D).sum(1)

    return _gaussian("correlated Gaussian", mean_D, (rotation_DD * variances_D) @ rotation_DD.T, log_density)


def linear_regression(temperature: float = 1.0) -> Target:
    """Return the posterior of `LinearGaussian` on 30 rows of three correlated features: w (3), then b.

    Its covariance, unlike its mean, is proportional to the temperature.
    """
    inputs_NF = normal(30, 3, seed=2) @ (torch.eye(3, dtype=torch.float64) + 0.8 * normal(3, 3, seed=3))
    targets_N = inputs_NF @ torch.tensor([1.0, -2.0, 0.5]).double() + 0.3 + 0.5 * normal(30, seed=4)
    problem = LinearGaussian(inputs_NF, targets_N, prior_scale=1.5, noise_scale=0.5, temperature=temperature)
    features_ND = problem.features(inputs_NF)

    def log_density(weights_MD: Tensor) -> Tensor:
        weights_MD = weights_MD.double()
        squares_M = ((targets_N - weights_MD @ features_ND.T) / problem.noise_scale).square().sum(1)
        return -0.5 * (squares_M + (weights_MD / problem.prior_scale).square().sum(1)) / temperature

    return _gaussian("linear regression", *problem.posterior(), log_density)


# --- not Gaussian ---


def skewed() -> Target:
    """Return four independent coordinates: log Gamma(½), log Gamma(2), Gumbel(0, 1), skew-normal of shape 4.

    log Gamma(a) is the logarithm of a Gamma(a, 1) variable: mean ψ(a), variance ψ'(a). Gumbel: mean γ, variance π²/6.
    Skew-normal, 2φ(x)Φ(αx): mean δ√(2/π), variance 1 − 2δ²/π, δ = α/√(1 + α²) (Azzalini 1985).
    """
    shapes, alpha = torch.tensor([0.5, 2.0], dtype=torch.float64), 4.0
    tilt = alpha / math.sqrt(1 + alpha**2) * math.sqrt(2 / math.pi)
    mean_D = torch.cat([torch.special.digamma(shapes), torch.tensor([np.euler_gamma, tilt])])
    variance_D = torch.cat([torch.special.polygamma(1, shapes), torch.tensor([math.pi**2 / 6, 1 - tilt**2])])

    def log_density(weights_MD: Tensor) -> Tensor:
        weights_MD = weights_MD.double()
        gamma, gumbel, skew = weights_MD[:, :2], weights_MD[:, 2], weights_MD[:, 3]
        total_M = (shapes * gamma - gamma.exp()).sum(1) - gumbel - (-gumbel).exp()
        return total_M - 0.5 * skew**2 + torch.special.log_ndtr(alpha * skew)

    def cdf(weights: Tensor) -> Tensor:
        weights = weights.double()
        gamma = torch.special.gammainc(shapes.expand_as(weights[..., :2]), weights[..., :2].exp())
        skew = torch.from_numpy(np.asarray(scipy.stats.skewnorm.cdf(weights[..., 3].numpy(), alpha)))
        return torch.cat([gamma, (-(-weights[..., 2:3]).exp()).exp(), skew[..., None]], dim=-1)

    def sample(count: int, seed: int) -> Tensor:
        source = np.random.default_rng(seed)
        columns = [np.log(source.gamma(shape, size=count)) for shape in shapes.tolist()]
        columns += [source.gumbel(size=count), scipy.stats.skewnorm.rvs(alpha, size=count, random_state=source)]
        return torch.from_numpy(np.stack(columns, axis=1))

    return Target("skewed", log_density, mean_D, variance_D.diag(), cdf=cdf, sample=sample)


FUNNEL_SCALE = 3.0


def funnel(size: int = 10, *, centred: bool) -> Target:
    """Return the funnel of Neal (2003): v ~ N(0, 9), and x_i ~ N(0, e^v) given v; the weights are (v, x_1, ...).

    Not centred, the weights are z ~ N(0, I), and `transform` gives v = 3 z_0, x_i = e^{v/2} z_i. D = 10 is Neal's.

    Var(x_i) = e^{4.5}, but with a fourth moment that no sample meets: compare draws of the centred funnel, and
    transformed ones, by `assert_quantiles`.
    """
    zero, one = torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64)

    def transform(weights: Tensor) -> Tensor:
        log_variance = FUNNEL_SCALE * weights[..., :1]
        return torch.cat([log_variance, (log_variance / 2).exp() * weights[..., 1:]], dim=-1)

    if not centred:
        target = _gaussian("funnel, not centred", zero, one.diag(), lambda w: -0.5 * (w.double() ** 2).sum(1))
        return replace(target, transform=transform)

    def log_density(weights_MD: Tensor) -> Tensor:
        v, x = weights_MD.double()[:, 0], weights_MD.double()[:, 1:]
        return -0.5 * ((v / FUNNEL_SCALE) ** 2 + (size - 1) * v + (-v).exp() * (x**2).sum(1))

    nodes, masses = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(200))

    def cdf(weights: Tensor) -> Tensor:
        v, x = weights.double()[..., :1], weights.double()[..., 1:]
        mixed = torch.special.ndtr(x[..., None] * (-FUNNEL_SCALE * nodes / 2).exp()) @ (masses / masses.sum())
        return torch.cat([torch.special.ndtr(v / FUNNEL_SCALE), mixed], dim=-1)

    variance_D = torch.cat([FUNNEL_SCALE**2 * one[:1], math.exp(FUNNEL_SCALE**2 / 2) * one[1:]])

    def sample(count: int, seed: int) -> Tensor:
        return transform(normal(count, size, seed=seed))

    return Target("funnel, centred", log_density, zero, variance_D.diag(), cdf=cdf, sample=sample)


MIXTURE_VARIANCE = 0.03


def mixture25_centres() -> Tensor:
    """Return the centres (25, 2): (2i, 2j) for i, j in −2..2."""
    grid = 2.0 * torch.arange(-2, 3, dtype=torch.float64)
    return torch.cartesian_prod(grid, grid)


def mixture25() -> Target:
    """Return 25 Gaussians of equal weight and covariance 0.03 I on a square grid (Zhang et al. 2020)."""
    centres_KD, scale = mixture25_centres(), math.sqrt(MIXTURE_VARIANCE)

    def log_density(weights_MD: Tensor) -> Tensor:
        squares_MK = (weights_MD.double()[:, None] - centres_KD).square().sum(2)
        return torch.logsumexp(-0.5 * squares_MK / MIXTURE_VARIANCE, dim=1)

    def sample(count: int, seed: int) -> Tensor:
        source = torch.Generator().manual_seed(seed + 1000)
        return centres_KD[torch.randint(25, (count,), generator=source)] + scale * normal(count, 2, seed=seed)

    return Target(
        "mixture of 25",
        log_density,
        torch.zeros(2, dtype=torch.float64),
        (8 + MIXTURE_VARIANCE) * torch.eye(2, dtype=torch.float64),
        cdf=lambda w: torch.special.ndtr((w.double()[..., None] - centres_KD[::5, 0]) / scale).mean(-1),
        sample=sample,
    )


def mode_shares(draws: Tensor) -> Tensor:
    """Return the share (25,) of draws (..., 2) that lie within 0.6 of each centre in both coordinates."""
    near = (draws.reshape(-1, 1, 2).double() - mixture25_centres()).abs().amax(2) < 0.6
    return near.double().mean(0)


class NoisyGradient:
    """A density whose gradient carries noise N(0, scale² I), as one from a minibatch does; its values are exact.

    Row m of a call draws its noise from `seeds[m]`, or, without seeds, from (seed, m, number of the call).

    Attributes:
        calls: how often it was called.
    """

    def __init__(self, density: Callable[..., Value], *, scale: float = 1.0, seed: int = 0) -> None:
        self._density, self._scale, self._seed = density, scale, seed
        self.calls = 0

    def __call__(self, weights_MD: Tensor, batch: Any = None, *, seeds: Sequence[int] | None = None, **_: Any) -> Value:
        """Return value and noisy gradient at each row."""
        value = self._density(weights_MD, batch)
        seeds = seeds or [mix(Purpose.STEP, self._seed, m, self.calls) for m in range(len(weights_MD))]
        self.calls += 1
        sources = [torch.Generator().manual_seed(seed) for seed in seeds]
        noise = [torch.randn(weights_MD.shape[1], generator=source, dtype=torch.float64) for source in sources]
        return value._replace(gradient=value.gradient + (self._scale * torch.stack(noise)).to(weights_MD))


LOGISTIC_PRIOR_SCALE = 2.0


@lru_cache
def logistic_data() -> tuple[Tensor, Tensor]:
    """Return inputs with a column of ones (20, 3) and signs ±1 (20,)."""
    inputs_ND = torch.cat([normal(20, 2, seed=5), torch.ones(20, 1, dtype=torch.float64)], dim=1)
    logits_N = inputs_ND @ torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    return inputs_ND, torch.where(normal(20, seed=6) < logits_N, 1.0, -1.0).double()


def logistic_log_density(weights_MD: Tensor) -> Tensor:
    """Return Σ_n log σ(y_n x_nᵀw) − ‖w‖²/(2·2²) for weights (M, 3), shape (M,)."""
    inputs_ND, signs_N = logistic_data()
    weights_MD = weights_MD.double()
    log_likelihood_M = torch.nn.functional.logsigmoid(weights_MD @ (signs_N[:, None] * inputs_ND).T).sum(1)
    return log_likelihood_M - 0.5 * (weights_MD / LOGISTIC_PRIOR_SCALE).square().sum(1)


@lru_cache
def logistic_regression(points: int = 64) -> Target:
    """Return the posterior of a logistic regression with two features and a bias, prior N(0, 2²) on each.

    Its moments are sums over a grid of `points`³ in the coordinates in which the Laplace approximation is N(0, I). On
    an even grid the trapezoid rule, here all of one weight, converges geometrically for analytic densities.
    """
    inputs_ND, signs_N = logistic_data()
    signed_ND, prior_precision_DD = signs_N[:, None] * inputs_ND, torch.eye(3).double() / LOGISTIC_PRIOR_SCALE**2
    mode_D, precision_DD = torch.zeros(3, dtype=torch.float64), prior_precision_DD
    for _ in range(20):  # Newton
        wrong_N = torch.sigmoid(-signed_ND @ mode_D)
        precision_DD = (signed_ND.T * (wrong_N * (1 - wrong_N))) @ signed_ND + prior_precision_DD
        mode_D = mode_D + torch.linalg.solve(precision_DD, signed_ND.T @ wrong_N - prior_precision_DD @ mode_D)
    factor_DD = torch.linalg.cholesky(torch.linalg.inv(precision_DD))
    axis = torch.linspace(-9, 13, points, dtype=torch.float64)
    grid_PD = mode_D + torch.cartesian_prod(axis, axis, axis) @ factor_DD.T
    masses_P = torch.cat([logistic_log_density(part) for part in grid_PD.split(50_000)]).softmax(0)
    mean_D = masses_P @ grid_PD
    centred_PD = grid_PD - mean_D
    return Target("logistic regression", logistic_log_density, mean_D, (masses_P[:, None] * centred_PD).T @ centred_PD)


# --- comparing draws with a target ---


def monte_carlo(values_MSF: Tensor, batches: int = 100) -> tuple[Tensor, Tensor, int]:
    """Return average (F,), its standard error (F,) and the degrees of freedom of that, by means of batches.

    Every chain is cut into equal batches, about `batches` in all; their averages are taken as independent, so they
    should be much longer than the draws remember. With more chains than `batches`, every chain is a batch.
    """
    chains, draws, _ = values_MSF.shape
    each = min(max(1, batches // chains), draws)
    used = values_MSF[:, : draws // each * each].double()
    means_GF = used.unflatten(1, (each, -1)).mean(2).flatten(0, 1)
    assert len(means_GF) >= 10, f"a standard error needs 10 batches; got {chains} chains of {draws} draws. Draw more."
    return means_GF.mean(0), means_GF.std(0) / math.sqrt(len(means_GF)), len(means_GF) - 1


def assert_expectations(
    values_MSF: Tensor, expected_F: Tensor, *, within_F: Tensor, labels: Sequence[str], alpha: float = 1e-4
) -> None:
    """Compare averages over draws with exact expectations, each in units of its standard error.

    All F comparisons together fail a right sampler with probability `alpha` (Bonferroni, Student's t). The check also
    fails if it is blind: if the error is so large that a bias of `within_F` could go unseen.

    Args:
        values_MSF: F functions of the draws.
        expected_F: exact expectations.
        within_F: biases that must be visible.
        labels: names of the functions.
        alpha: probability of a false alarm.
    """
    assert torch.isfinite(values_MSF).all(), "the draws hold NaN or infinite numbers"
    average_F, error_F, freedom = monte_carlo(values_MSF)
    bound = float(scipy.stats.t.isf(alpha / (2 * len(expected_F)), freedom))
    for i in torch.nonzero(bound * error_F > within_F).flatten().tolist():
        needed = math.ceil(values_MSF.shape[1] * (bound * error_F[i] / within_F[i]).item() ** 2)
        raise AssertionError(
            f"{labels[i]}: the standard error {error_F[i]:.3g} is too large to see a bias of {within_F[i]:.3g}; "
            f"got {values_MSF.shape[1]} draws per chain. Draw about {needed}."
        )
    worst = int(((average_F - expected_F) / error_F).nan_to_num(0.0).abs().argmax())
    score = ((average_F - expected_F) / error_F)[worst].item()
    assert not abs(score) > bound, (
        f"{labels[worst]}: average {average_F[worst]:.4g}, exactly {expected_F[worst]:.4g}: off by {score:.1f} "
        f"standard errors of {error_F[worst]:.3g}, more than the {bound:.1f} that chance allows."
    )


def assert_moments(
    draws_MSD: Tensor, target: Target, *, mean_within: float = 0.1, variance_within: float = 0.15, alpha: float = 1e-4
) -> None:
    """Compare mean and variance of the draws with the exact ones, of each coordinate and along each principal axis.

    The principal axes see what coordinates hide: a wrong variance in a direction in which the target is narrow.

    Args:
        draws_MSD: draws, without burn-in.
        target: what they should be drawn from.
        mean_within: bias of a mean that must be visible, in standard deviations.
        variance_within: bias of a variance that must be visible, as a share of it.
        alpha: probability that a right sampler fails.
    """
    variances_D, axes_DD = torch.linalg.eigh(target.covariance_DD)
    centred_MSD = draws_MSD.double() - target.mean_D
    scores = torch.cat([centred_MSD / target.variance_D.sqrt(), centred_MSD @ axes_DD / variances_D.sqrt()], dim=-1)
    names = [f"{what} {d}" for what in ("coordinate", "principal axis") for d in range(target.size)]
    labels = [f"{target.name}, {what} of {name}, standardised" for what in ("mean", "variance") for name in names]
    zero = torch.zeros(len(names), dtype=torch.float64)
    assert_expectations(
        torch.cat([scores, scores**2], dim=-1),
        torch.cat([zero, zero + 1]),
        within_F=torch.cat([zero + mean_within, zero + variance_within]),
        labels=labels,
        alpha=alpha,
    )


def assert_quantiles(draws_MSD: Tensor, target: Target, *, within: float = 0.05, alpha: float = 1e-4) -> None:
    """Compare the shares of draws below the exact 5, 25, 50, 75 and 95 % quantiles of each coordinate with those.

    Args:
        draws_MSD: draws, without burn-in.
        target: what they should be drawn from; its `cdf` must be known.
        within: bias of a share that must be visible.
        alpha: probability that a right sampler fails.
    """
    levels_P = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    below = (draws_MSD.double()[:, :, None] < target.quantiles(levels_P)).double().flatten(2)
    shares = [f"{target.name}, share below {level:.0%} of" for level in levels_P.tolist()]
    labels = [f"{share} coordinate {d}" for share in shares for d in range(target.size)]
    expected_F = levels_P.repeat_interleave(target.size)
    assert_expectations(below, expected_F, within_F=torch.full_like(expected_F, within), labels=labels, alpha=alpha)
