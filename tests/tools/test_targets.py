"""The targets themselves: gradients, exact moments, and what the comparison with draws sees and does not."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.oracles import assert_close, finite_differences, normal
from tests.targets import (
    NoisyGradient,
    Target,
    assert_expectations,
    assert_moments,
    assert_quantiles,
    correlated_gaussian,
    funnel,
    linear_regression,
    logistic_log_density,
    logistic_regression,
    mixture25,
    mixture25_centres,
    mode_shares,
    monte_carlo,
    skewed,
)

TARGETS = {
    "correlated": correlated_gaussian(),
    "skewed": skewed(),
    "funnel centred": funnel(centred=True),
    "funnel not centred": funnel(centred=False),
    "mixture": mixture25(),
    "linear": linear_regression(),
    "linear, cold": linear_regression(temperature=0.1),
    "logistic": logistic_regression(),
}
SAMPLED = {name: target for name, target in TARGETS.items() if target.sample}
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())


def draws(target: Target, chains: int = 4, count: int = 10_000, seed: int = 0) -> Tensor:
    """Independent exact draws (M, S, D)."""
    assert target.sample
    return target.sample(chains * count, seed).unflatten(0, (chains, count))


def autoregressive(chains: int, count: int, memory: float, size: int, seed: int) -> Tensor:
    """Chains (M, S, D) with law N(0, I) whose coordinates are x_{t+1} = memory x_t + √(1 − memory²) ξ."""
    states = list(normal(count, chains, size, seed=seed))
    for t in range(1, count):
        states[t] = memory * states[t - 1] + math.sqrt(1 - memory**2) * states[t]
    return torch.stack(states, dim=1)


# --- densities ---


@each_target
def test_gradients(target: Target):
    at = 0.7 * normal(4, target.size, seed=3)
    value = target.density()(at)
    by_hand = [finite_differences(lambda w: target.log_density(w[None])[0], row) for row in at]
    assert_close(value.gradient, torch.stack(by_hand), rtol=1e-6, atol=1e-6)
    assert_close(value.log_density, torch.stack([target.log_density(row[None])[0] for row in at]), rtol=1e-12)
    assert value.log_density.dtype == torch.float64
    assert target.density()(at.float()).gradient.dtype == torch.float32
    assert target.density()(at.float()).log_density.dtype == torch.float64


@pytest.mark.parametrize("name", ["correlated", "linear", "linear, cold", "funnel not centred"])
def test_gaussian_moments_are_those_of_the_density(name: str):
    """The gradient is −Σ⁻¹ (w − μ), everywhere."""
    target = TARGETS[name]
    at = normal(3, target.size, seed=1)
    expected = -torch.linalg.solve(target.covariance_DD, (at - target.mean_D).T).T
    assert_close(target.density()(at).gradient, expected, rtol=1e-8, atol=1e-8)


def test_correlated_gaussian():
    target = correlated_gaussian(50, 1e3)
    assert_close(torch.linalg.cond(target.covariance_DD), 1e3, rtol=1e-9)
    assert_close(torch.linalg.eigvalsh(target.covariance_DD)[[0, -1]], [1e-3, 1.0], rtol=1e-9)
    correlations = target.covariance_DD / torch.outer(target.variance_D, target.variance_D).sqrt()
    assert (correlations - torch.eye(50).double()).abs().max() > 0.3
    assert not torch.equal(target.covariance_DD, correlated_gaussian(seed=1).covariance_DD)


def test_skewed_moments_and_distribution_functions_by_quadrature():
    target = skewed()
    assert target.cdf
    grid = torch.linspace(-45, 25, 140_001, dtype=torch.float64)
    for d in range(target.size):  # the coordinates are independent: the others may stand anywhere
        at = torch.zeros(len(grid), target.size, dtype=torch.float64)
        at[:, d] = grid
        density = target.log_density(at).exp()
        density /= torch.trapezoid(density, grid)
        mean = torch.trapezoid(density * grid, grid)
        assert_close(mean, target.mean_D[d], rtol=1e-7)
        assert_close(torch.trapezoid(density * (grid - mean) ** 2, grid), target.variance_D[d], rtol=1e-7)
        below = torch.cumulative_trapezoid(density, grid)
        assert_close(below[499::500], target.cdf(at[500::500])[:, d], rtol=0, atol=1e-6)
        skewness = torch.trapezoid(density * (grid - mean) ** 3, grid) / target.variance_D[d] ** 1.5
        assert abs(skewness) > 0.7


@pytest.mark.parametrize("name", ["correlated", "skewed", "funnel centred", "mixture"])
def test_quantiles_invert_distribution_functions(name: str):
    target, levels = TARGETS[name], torch.tensor([0.01, 0.3, 0.9], dtype=torch.float64)
    assert target.cdf
    assert_close(target.cdf(target.quantiles(levels)), levels[:, None].expand(-1, target.size))


def test_the_two_funnels_are_one():
    """log p(z) = log p(T(z)) + log |det T'(z)| up to a constant, with log |det T'| = (D − 1) v/2 + log 3."""
    centred, plain = funnel(centred=True), funnel(centred=False)
    assert plain.transform
    at = normal(6, plain.size, seed=1)
    moved = plain.transform(at)
    determinants = torch.stack([
        torch.linalg.slogdet(torch.autograd.functional.jacobian(plain.transform, row))[1]  # type: ignore[arg-type]
        for row in at
    ])
    assert_close(determinants, (plain.size - 1) / 2 * moved[:, 0] + math.log(3))
    difference = plain.log_density(at) - centred.log_density(moved) - determinants
    assert_close(difference, difference[0].expand(6))


def test_funnel_distribution_function_of_x_by_quadrature():
    target = funnel(3, centred=True)
    assert target.cdf
    v = torch.linspace(-36, 36, 20_001, dtype=torch.float64)
    weight = (-0.5 * (v / 3) ** 2).exp()
    for x in (-40.0, -0.3, 0.0, 1e-2, 2.0, 1e3):
        exact = torch.trapezoid(weight * torch.special.ndtr(x * (-v / 2).exp()), v) / torch.trapezoid(weight, v)
        assert_close(target.cdf(torch.tensor([[0.5, x, -x]]))[0, 1:], torch.stack([exact, 1 - exact]), atol=1e-7)
    assert_close(target.cdf(torch.tensor([[3.0, 0.0, 0.0]]))[0], [0.841344746068543, 0.5, 0.5])


def test_mixture():
    target = mixture25()
    normals = torch.distributions.MultivariateNormal(mixture25_centres(), 0.03 * torch.eye(2).double())
    oracle = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(torch.ones(25)), normals)
    at = 4 * normal(50, 2)
    difference = oracle.log_prob(at) - target.log_density(at)
    assert_close(difference, difference[0].expand(50))
    assert_close(target.covariance_DD, [[8.03, 0.0], [0.0, 8.03]])
    far = target.density()(torch.tensor([[10.0, 10.0], [-10.0, 3.9]], dtype=torch.float64))
    assert_close(far.gradient, [[-200.0, -200.0], [200.0, 0.1 / 0.03]], rtol=1e-6)
    # P(|x| < 0.6)² of N(0, 0.03) is 0.99893, and every centre has one draw in 25
    shares = mode_shares(draws(target))
    assert_close(shares, torch.full((25,), 0.03996), rtol=0, atol=5 * math.sqrt(0.04 / 40_000))


def test_noisy_gradients():
    target = mixture25()
    exact, noisy = target.density(), NoisyGradient(target.density(), seed=1)
    at = normal(3, 2)
    first, second = noisy(at), noisy(at)
    assert torch.equal(first.log_density, exact(at).log_density)
    assert not torch.equal(first.gradient, second.gradient)
    assert torch.equal(NoisyGradient(exact, seed=1)(at).gradient, first.gradient)
    assert not torch.equal(NoisyGradient(exact, seed=2)(at).gradient, first.gradient)
    alone = NoisyGradient(exact)(at[1:2], seeds=[8])
    assert_close(alone.gradient[0], NoisyGradient(exact)(at, seeds=[7, 8, 9]).gradient[1])
    assert noisy(at.float()).gradient.dtype == torch.float32
    at = normal(60, 2)
    noise = torch.stack([noisy(at).gradient - exact(at).gradient for _ in range(100)], dim=1)
    assert_expectations(
        torch.cat([noise, noise**2, noise[..., :1] * noise[..., 1:]], dim=-1),
        torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0]),
        within_F=torch.full((5,), 0.1),
        labels=["mean 0", "mean 1", "variance 0", "variance 1", "covariance"],
    )


def test_linear_regression_is_the_oracle():
    """Σ⁻¹ = (ΦᵀΦ/s² + I/s_p²)/T, so that only the covariance depends on the temperature."""
    warm, cold = linear_regression(), linear_regression(temperature=0.1)
    assert_close(cold.mean_D, warm.mean_D)
    assert_close(cold.covariance_DD, 0.1 * warm.covariance_DD)
    assert_close(cold.log_density(warm.mean_D[None]), 10 * warm.log_density(warm.mean_D[None]))


def test_logistic_moments_by_a_finer_grid():
    coarse, fine = logistic_regression(), logistic_regression(90)
    assert_close(coarse.mean_D, fine.mean_D, rtol=1e-10)
    assert_close(coarse.covariance_DD, fine.covariance_DD, rtol=1e-10)


def test_logistic_moments_by_importance_sampling():
    target = logistic_regression()
    proposal = torch.distributions.MultivariateNormal(target.mean_D, 2 * target.covariance_DD)
    at = target.mean_D + normal(200_000, 3, seed=8) @ torch.linalg.cholesky(2 * target.covariance_DD).T
    masses = (logistic_log_density(at) - proposal.log_prob(at)).softmax(0)
    effective = 1 / (masses**2).sum()
    assert effective > 50_000
    mean = masses @ at
    assert ((mean - target.mean_D).abs() < 5 * (target.variance_D / effective).sqrt()).all()
    covariance = (masses[:, None] * (at - mean)).T @ (at - mean)
    assert_close(covariance, target.covariance_DD, rtol=0, atol=0.02)


# --- comparing draws ---


@pytest.mark.parametrize("target", SAMPLED.values(), ids=SAMPLED.keys())
def test_exact_draws_pass(target: Target):
    exact = draws(target)
    assert_quantiles(exact, target)
    if target.name != "funnel, centred":
        assert_moments(exact, target)
    if target.transform:
        assert_quantiles(target.transform(exact), funnel(centred=True))


@pytest.mark.parametrize("chains", [1, pytest.param(4, marks=pytest.mark.study), 400])
def test_a_wrong_mean_is_seen(chains: int):
    target = correlated_gaussian()
    biased = draws(target, chains, 40_000 // chains)
    biased[..., 7] += 0.1 * target.variance_D[7].sqrt()
    with pytest.raises(AssertionError, match=r"mean of \w+.* \d+, standardised: average .*, exactly 0: off by"):
        assert_moments(biased, target)


@pytest.mark.parametrize("factor", [0.85, 1.15])
def test_a_wrong_variance_is_seen(factor: float):
    target = skewed()
    biased = draws(target)
    biased[..., 2] = target.mean_D[2] + math.sqrt(factor) * (biased[..., 2] - target.mean_D[2])
    with pytest.raises(AssertionError, match=r"skewed, variance of .*: off by"):
        assert_moments(biased, target)
    biased = draws(target)
    biased[..., 2] = target.mean_D[2] + 1.4 * (factor - 0.75) * (biased[..., 2] - target.mean_D[2])
    with pytest.raises(AssertionError, match=r"skewed, share below .* of coordinate 2: average"):
        assert_quantiles(biased, target)


def test_a_wrong_variance_along_a_narrow_axis_is_seen():
    """Doubling the smallest of the variances changes those of the coordinates by less than 1 %."""
    target = correlated_gaussian()
    _, axes = torch.linalg.eigh(target.covariance_DD)
    exact = draws(target)
    along = (exact - target.mean_D) @ axes[:, :1]
    wider = exact + (math.sqrt(2) - 1) * along * axes[:, 0]
    assert ((wider - target.mean_D).var((0, 1)) / (exact - target.mean_D).var((0, 1)) - 1).abs().max() < 0.01
    with pytest.raises(AssertionError, match="variance of principal axis 0"):
        assert_moments(wider, target)


def test_a_normal_law_with_the_right_moments_is_seen():
    target = skewed()
    imitation = target.mean_D + target.variance_D.sqrt() * normal(4, 10_000, 4)
    assert_moments(imitation, target)
    with pytest.raises(AssertionError, match="share below"):
        assert_quantiles(imitation, target)


def test_a_check_that_could_see_nothing_fails():
    target = skewed()
    with pytest.raises(AssertionError, match=r"too large to see a bias of 0.1; got 100 draws per chain. Draw \w+ \d"):
        assert_moments(draws(target, count=100), target)
    with pytest.raises(AssertionError, match="needs 10 batches; got 1 chains of 5 draws"):
        assert_moments(draws(target, 1, 5), target)
    with pytest.raises(AssertionError, match="NaN or infinite"):
        assert_moments(torch.full((4, 1000, 4), math.nan), target)
    with pytest.raises(AssertionError, match="off by"):
        assert_moments(target.mean_D.expand(4, 1000, 4), target)  # a sampler that never moves
    with pytest.raises(AssertionError, match="logistic regression has no exact distribution functions"):
        assert_quantiles(normal(1, 100, 3), logistic_regression())


@pytest.mark.parametrize("memory", [0.0, 0.9, -0.5])
def test_standard_errors(memory: float):
    """Averages of stationary chains of S draws have variance (1 + a)/(1 − a)/S, up to O(1/S²)."""
    averages, errors, freedom = monte_carlo(autoregressive(2, 10_000, memory, 200, seed=4))
    exact = math.sqrt((1 + memory) / (1 - memory) / 20_000)
    assert freedom == 99
    # errors of 200 chains, each known to 1/√(2·99); batches of 400 draws miss at most a tenth of the sum of memory
    assert_close(errors.square().mean().sqrt(), exact, rtol=0.03)
    assert_close(averages.square().mean().sqrt(), exact, rtol=5 / math.sqrt(400))


@pytest.mark.parametrize("memory", [pytest.param(0.0, marks=pytest.mark.study), 0.8])
def test_false_alarms_are_as_rare_as_asked(memory: float):
    """With alpha = 0.1, right samplers fail in at most 10 % of cases: of 200, more than 35 do once in a thousand."""
    target = replace(correlated_gaussian(4, 1.0), mean_D=torch.zeros(4).double(), covariance_DD=torch.eye(4).double())
    chains = autoregressive(2, 2_000, memory, 4 * 200, seed=6).unflatten(2, (200, 4))
    failed = 0
    for i in range(200):
        try:
            assert_moments(chains[:, :, i], target, mean_within=1.0, variance_within=1.0, alpha=0.1)
        except AssertionError:
            failed += 1
    assert 1 <= failed <= 35  # and some do: else alpha would mean nothing
