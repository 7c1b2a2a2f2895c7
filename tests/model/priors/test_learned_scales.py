"""Scales of groups as weights of the network: what they leave of the weights, and ranks that are uniform.

The posterior of a tiny regression is known by quadrature over the log scale: given it, weights are normal.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats as _stats
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes.evidence import prior_monte_carlo
from torchbayes.model import priors
from torchbayes.model.priors.axes import axes_of

stats: Any = _stats  # whose types are of single numbers
NOISE, SCALE, FEATURES = 0.5, 0.7, 3
INPUTS = normal(6, FEATURES, seed=1)
TARGETS = INPUTS @ torch.tensor([0.8, -0.3, 0.1], dtype=torch.float64) + NOISE * normal(6, seed=2)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, 1, bias=False).double()


def scaled(df: float | None, groups: Any = "layer") -> tb.Model:
    own = priors.with_scales(linear(), priors.Hierarchical(SCALE, df, groups))
    return tb.Model(own.network, tb.likelihoods.Gaussian(NOISE), own.prior)


def exact(df: float | None, targets: Tensor = TARGETS) -> dict[str, Tensor]:
    """Moments of η and w under p(w, η | D) by quadrature: p(D|η) = N(y; 0, e^{2η} XXᵀ + σ²)."""
    grid = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    v = (2 * grid).exp().numpy()
    if df is None:
        log_p = stats.halfcauchy(scale=SCALE).logpdf(v**0.5) + grid.numpy()
    else:
        log_p = stats.invgamma(df / 2, scale=df * SCALE**2 / 2).logpdf(v) + np.log(2 * v)
    log_p, identity = torch.from_numpy(log_p), torch.eye(FEATURES, dtype=torch.float64)
    whole = torch.from_numpy(v)[:, None, None] * (INPUTS @ INPUTS.T) + NOISE**2 * torch.eye(len(INPUTS)).double()
    log_p = log_p + torch.distributions.MultivariateNormal(torch.zeros(len(INPUTS)).double(), whole).log_prob(targets)
    p = (log_p - log_p.max()).exp()
    p = p / p.sum()
    precision = INPUTS.T @ INPUTS / NOISE**2 + identity / torch.from_numpy(v)[:, None, None]
    covariance = torch.linalg.inv(precision)
    mean = covariance @ INPUTS.T @ targets / NOISE**2
    first = (p[:, None] * mean).sum(0)
    second = (p[:, None, None] * (covariance + mean[:, :, None] * mean[:, None, :])).sum(0)
    centre = (p * grid).sum()
    return {
        "mean": first,
        "covariance": second - first[:, None] * first,
        "eta": centre,
        "eta_std": (p * (grid - centre).square()).sum().sqrt(),
        "log_evidence": (log_p.exp().sum() * (grid[1] - grid[0])).log(),
    }


def weights_of(model: tb.Model, draws: Tensor) -> Tensor:
    views = model.layout.split(draws)
    return (views["standard.weight"] * views["log_scales.weight"].exp().unsqueeze(-1)).flatten(1)


def test_the_network_starts_where_it_was_and_has_the_prior() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Conv1d(6, 3, 1)).double()
    own = priors.with_scales(
        net, {"0.*": priors.Hierarchical(0.5, groups="columns"), "*.bias": priors.Laplace(0.3), "*": priors.Normal()}
    )
    scaled_ones = ["standard.0_weight", "log_scales.0_weight", "standard.0_bias", "log_scales.0_bias"]
    assert list(own.prior) == [*scaled_ones, "network.*.bias", "network.*"]
    assert own.prior["network.*"] == own.prior["standard.0_bias"] == priors.Normal()
    first = nn.Linear(4, 6).double()
    made = priors.with_scales(first, {"weight": priors.Hierarchical(0.5, groups="columns"), "*": priors.Normal(2.0)})
    model, inputs = tb.Model(made.network, tb.likelihoods.Gaussian(1.0), made.prior), normal(5, 4)
    assert_close(model.network(model.network.weights(), inputs), first(inputs))
    weights = normal(model.layout.size)
    views = model.layout.split(weights)
    expected = stats.norm.logpdf(views["standard.weight"]).sum()
    expected += stats.norm.logpdf(views["network.bias"], scale=2.0).sum()
    expected += float(priors.LogInverseChi(4.0, 0.5).log_prob(views["log_scales.weight"]).sum())
    assert_close(model.log_prior(weights), expected)
    product = views["standard.weight"] * views["log_scales.weight"].exp()  # one scale a column
    assert_close(model.network(weights, inputs), inputs @ product.T + views["network.bias"])


def test_members_start_at_fresh_weights_of_the_usual_size() -> None:
    made = priors.with_scales(lambda: nn.Linear(50, 40), priors.Hierarchical(0.1, groups="rows"))
    given = priors.with_scales(nn.Linear(50, 40), priors.Hierarchical(0.1, groups="rows"))
    for own in (made, given):
        model = tb.Model(own.network, tb.likelihoods.Gaussian(1.0), own.prior)
        weights, _ = model.starting_weights([0, 1])
        views = model.layout.split(weights)
        assert_close(views["log_scales.weight"], torch.full((2, 40), math.log(0.1)), rtol=1e-6)
        drawn = views["standard.weight"] * 0.1
        assert_close(drawn.std((1, 2)), [1 / 150**0.5] * 2, rtol=0.05)  # uniform in ±1/√50
        assert (drawn[0] != drawn[1]).all()


@pytest.mark.parametrize("groups", ["layer", "rows", "columns", "weights"])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(3, 4, bias=False),
        nn.PReLU(4),
        nn.Conv2d(2, 3, 2, bias=False),
        nn.ConvTranspose1d(4, 4, 3, groups=2, bias=False),
    ],
    ids=str,
)
def test_draws_of_the_prior_have_the_law_with_the_scales_integrated_out(groups: Any, layer: nn.Module) -> None:
    """By the mean of the log of the largest weight of a draw, which depends on how they are grouped."""
    rule = priors.Hierarchical(0.5, 3.0, groups)
    own = priors.with_scales(layer.double(), rule)
    model = tb.Model(own.network, tb.likelihoods.Gaussian(1.0), own.prior)
    views = model.layout.split(model.prior.sample(4000, seed=3))
    blocks, outer, units, inner = rule.grid(axes_of(layer, ["weight"])["weight"])
    standard = views["standard.weight"].reshape(-1, blocks, outer, units, inner)
    learned = (standard * views["log_scales.weight"].exp().view(-1, blocks, 1, units, 1)).flatten(1)
    whole = tb.Model(layer, tb.likelihoods.Gaussian(1.0), rule).prior.sample(4000, seed=4)
    for value in (lambda w: w.abs().amax(1), lambda w: w.square().sum(1), lambda w: w[:, 0]):
        assert stats.ks_2samp(value(learned).numpy(), value(whole).numpy()).pvalue > 1e-3


def test_a_horseshoe_has_its_global_scale_as_a_weight() -> None:
    own = priors.with_scales(linear(), priors.Hierarchical(0.1, None))
    own.prior["standard.weight"] = priors.Horseshoe()
    model = tb.Model(own.network, tb.likelihoods.Gaussian(NOISE), own.prior)
    actual = weights_of(model, model.prior.sample(4000, seed=3))
    source = np.random.default_rng(0)
    direct = 0.1 * source.standard_cauchy((4000, 1)) * source.standard_cauchy((4000, FEATURES))
    direct = torch.from_numpy(direct * source.standard_normal((4000, FEATURES))).abs()
    for value in (lambda w: w.amax(1), lambda w: w.amin(1), lambda w: w[:, 0]):
        assert stats.ks_2samp(value(actual.abs()).numpy(), value(direct).numpy()).pvalue > 1e-3


@pytest.mark.study  # the density of weights and scales is that of the first test
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*of the iterations diverged")  # a few, far out where scales are small
@pytest.mark.parametrize("df", [4.0, None])
def test_nuts_draws_weights_and_scale_of_a_regression(df: float | None) -> None:
    """As by quadrature; for a variance also as NUTS does with the scale integrated out."""
    model, truth = scaled(df), exact(df)
    draws = tb.fit(
        model, (INPUTS, TARGETS), tb.NUTS(192, 70, 45, target_acceptance=0.9, max_doublings=5), callbacks=()
    ).sample(4800)
    actual = {"scaled": weights_of(model, draws)}
    if df is not None:
        whole = tb.Model(linear(), tb.likelihoods.Gaussian(NOISE), priors.Hierarchical(SCALE, df))
        actual["integrated"] = tb.fit(
            whole, (INPUTS, TARGETS), tb.NUTS(192, 70, 45, target_acceptance=0.9, max_doublings=5), callbacks=()
        ).sample(4800)
    root = torch.linalg.inv(torch.linalg.cholesky(truth["covariance"]))
    for weights in actual.values():
        whitened = (weights - truth["mean"]) @ root.T
        assert_close(whitened.mean(0), torch.zeros(FEATURES), atol=0.08)
        assert_close(torch.cov(whitened.T), torch.eye(FEATURES), rtol=0, atol=0.15)
    eta = model.layout.split(draws)["log_scales.weight"]
    assert abs(float(eta.mean() - truth["eta"])) < 0.15 * float(truth["eta_std"])
    assert_close(eta.std(), truth["eta_std"], rtol=0.15)


def gibbs(df: float | None, chains: int, sweeps: int) -> tuple[Tensor, Tensor]:
    """η (M,) and w (M, D) after sweeps of Gibbs sampling: w given v is normal, v given w an inverse gamma number.

    Half-Cauchy scales are √v of v | c ~ IG(½, 1/c), c ~ IG(½, 1/A²).
    """
    source, gram = np.random.default_rng(0), (INPUTS.T @ INPUTS / NOISE**2).numpy()
    eigen, axes = np.linalg.eigh(gram)
    pull, v = axes.T @ (INPUTS.T @ TARGETS).numpy() / NOISE**2, np.full(chains, SCALE**2)
    w = np.zeros((chains, FEATURES))
    for _ in range(sweeps):
        precision = eigen + 1 / v[:, None]
        w = pull / precision + source.standard_normal(w.shape) / precision**0.5
        shape, rate = (0.5, 1 / SCALE**2 + 1 / v) if df is None else (df / 2, np.full(chains, df * SCALE**2 / 2))
        if df is None:
            rate = stats.gamma(1, scale=1 / rate).rvs(random_state=source)  # 1/c given v
        v = stats.invgamma(shape + FEATURES / 2, scale=rate + 0.5 * (w**2).sum(1)).rvs(random_state=source)
    return torch.from_numpy(0.5 * np.log(v)), torch.from_numpy(w @ axes.T)


@pytest.mark.study  # of `exact` above, by which the library is judged; nothing of the library is in it
@pytest.mark.parametrize("df", [4.0, None])
def test_gibbs_sampling_has_the_moments_of_quadrature(df: float | None) -> None:
    """What the two ways of the library are judged by is also what conditional draws of the scale give."""
    chains, truth = 20_000, exact(df)
    eta, weights = gibbs(df, chains, 60)
    root = torch.linalg.inv(torch.linalg.cholesky(truth["covariance"]))
    whitened = (weights - truth["mean"]) @ root.T
    assert_close(whitened.mean(0), torch.zeros(FEATURES), atol=5 / chains**0.5)
    assert_close(torch.cov(whitened.T), torch.eye(FEATURES), rtol=0, atol=0.06)  # tails are heavier than normal
    assert abs(float(eta.mean() - truth["eta"])) < 5 * float(truth["eta_std"]) / chains**0.5
    assert_close(eta.std(), truth["eta_std"], rtol=0.04)


@pytest.mark.study  # the density of weights and scales is that of the first test
def test_evidence_is_that_with_the_scale_integrated_out() -> None:
    truth = float(exact(4.0)["log_evidence"])
    whole = tb.Model(linear(), tb.likelihoods.Gaussian(NOISE), priors.Hierarchical(SCALE, 4.0))
    for model in (whole, scaled(4.0)):
        actual = prior_monte_carlo(model, (INPUTS, TARGETS), draws=8000)
        assert abs(actual.log_evidence - truth) < 5 * actual.error + 1e-3
        assert actual.error < 0.1


# --- simulation-based calibration (Talts et al. 2018), as in tests/methods/mcmc/test_sbc.py

SETS, DRAWS, GAP, ALPHA = 160, 7, 60.0, 1e-3
GROUPED = normal(5, 4, seed=9)


def grouped(df: float | None) -> tb.Model:
    """A regression of 5 rows on 4 inputs, with a scale for each input of the first of two layers, of tanh units."""
    net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False)).double()
    rules = {"0.weight": priors.Hierarchical(SCALE, df, "columns"), "*": priors.Normal()}
    own = priors.with_scales(net, rules)
    return tb.Model(own.network, tb.likelihoods.Gaussian(NOISE), own.prior)


def ranks(df: float | None, belief: tb.Model) -> Tensor:
    """Ranks (M, 5) of truths drawn from one model among draws of NUTS from the posterior of another.

    Of two log scales, a weight of each layer, and the log likelihood of the data.
    """
    model = grouped(df)
    size, truth = model.layout.size, model.prior.sample(SETS, seed=1)

    def fit(weights: Tensor, targets: Tensor) -> Tensor:
        return model.log_likelihood(weights, tb.Batch(GROUPED, targets)).sum()

    outputs = torch.func.vmap(lambda w: model.network(w, GROUPED))(truth)
    targets = outputs + NOISE * normal(SETS, 5, 1, seed=3)

    def log_density(rows: Tensor) -> Tensor:
        whose = (rows[:, size].detach() / GAP).round().long().clamp(0, SETS - 1)
        log_joint = torch.func.vmap(fit)(rows[:, :size], targets[whose]) + belief.prior.log_prob(rows[:, :size])
        return log_joint - 0.5 * (rows[:, size] - GAP * whose).square()

    labels = GAP * torch.arange(SETS, dtype=torch.float64).unsqueeze(1)
    start = torch.cat([truth, labels + normal(SETS, 1, seed=4)], 1)
    burn_in, doublings = (120, 5) if df is None else (60, 4)  # chains of half-Cauchy scales are slower
    method = tb.NUTS(SETS, burn_in + 4 * DRAWS, burn_in, 4, max_doublings=doublings)
    chains = tb.sample(tb.FunctionDensity(log_density), method, start, callbacks=())

    def seen(weights: Tensor) -> Tensor:
        views = model.layout.split(weights)
        first = views["standard.0_weight"] * views["log_scales.0_weight"].exp().unsqueeze(-2)
        each = (views["log_scales.0_weight"][..., :2], first[..., 0, 0:1].abs(), views["network.2.weight"][..., 0, 0:1])
        return torch.cat(each, -1)

    draws = chains.weights_MSD[..., :size]
    fits = torch.stack([torch.func.vmap(fit, (0, None))(d, y) for d, y in zip(draws, targets, strict=True)])
    among = torch.cat([seen(draws), fits.unsqueeze(-1)], -1)
    own = torch.cat([seen(truth), torch.func.vmap(fit)(truth, targets).unsqueeze(-1)], -1)
    return (among < own.unsqueeze(1)).sum(1)


def worst(ranks_MF: Tensor) -> float:
    """Smallest p-value of a test of uniformity of the ranks of each quantity, times their number."""
    bins = ranks_MF.T.numpy()
    return min(float(stats.chisquare(np.bincount(b, minlength=8)).pvalue) for b in bins) * len(bins)


@pytest.mark.study  # the density of weights and scales is that of the first test
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be trusted")  # many short chains
@pytest.mark.parametrize("df", [4.0, None])
def test_ranks_among_draws_of_nuts_are_uniform(df: float | None) -> None:
    assert worst(ranks(df, grouped(df))) > ALPHA


@pytest.mark.slow
@pytest.mark.study  # of the power of the test above; nothing of the library is pinned by it
@pytest.mark.filterwarnings("ignore:.*should not be trusted")
def test_ranks_are_not_uniform_under_another_law_of_the_scales() -> None:
    assert worst(ranks(4.0, grouped(None))) < ALPHA
