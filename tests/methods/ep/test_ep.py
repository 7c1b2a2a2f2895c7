"""Expectation propagation: exact answers, quadrature, relations between powers, and what is refused or reported."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
from scipy import stats
from tests.covering import with_studies
from tests.laws.cases import assert_same_tensors, losses
from tests.oracles import assert_close, normal
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import torchbayes as tb
from torchbayes.evidence import linear_gaussian_evidence
from torchbayes.linalg import Dense
from torchbayes.methods.ep import factors as factors_module
from torchbayes.methods.ep.beliefs import Sites, cavity
from torchbayes.methods.ep.tilted import probit, tilted
from torchbayes.model.likelihoods.binary import log_cdf
from torchbayes.model.priors.joint import Joint
from torchbayes.posteriors.problems import ProblemWarning

ROWS, WIDE = 12, 2.0
X = normal(ROWS, 1, seed=1)
Y = (X[:, :1] + 0.7 * normal(ROWS, 1, seed=2) > 0).double()
PRECISE: dict[str, Any] = {"tolerance": 1e-10, "sweeps": 500}
ORDERS = ("parallel", "sequential")


def linear(likelihood: Any, inputs: int = 1, outputs: int = 1, **settings: Any) -> tb.Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return tb.Model(
            nn.Linear(inputs, outputs).double(), likelihood, **{"prior": tb.priors.Normal(WIDE), **settings}
        )


def fitted(model: tb.Model, data: Any, **settings: Any) -> tb.Gaussian:
    posterior = tb.fit(model, data, tb.EP(**{**PRECISE, **settings}), callbacks=())
    assert isinstance(posterior, tb.Gaussian)
    return posterior


def moments(posterior: tb.Gaussian) -> tuple[float, Tensor, Tensor]:
    return float(posterior.log_evidence()), posterior.mean_MD[0], posterior.covariance.dense()[0]


def quadrature(likelihood: Any, data: tuple[Tensor, Tensor], reach: float = 14.0) -> tuple[float, Tensor, Tensor]:
    """Evidence and moments of slope and intercept, on a dense grid."""
    axis = torch.linspace(-reach, reach, 201, dtype=torch.float64)
    w_G2 = torch.cartesian_prod(axis, axis)
    values = []
    for some in w_G2.split(100_000):
        outputs = some[:, 0].view(-1, 1, 1) * data[0] + some[:, 1].view(-1, 1, 1)
        prior = stats.norm.logpdf(some, scale=WIDE).sum(1)
        values.append(likelihood.log_prob(outputs, data[1]).sum(-1) + torch.from_numpy(prior))
    value_G = torch.cat(values)
    share_G = value_G.softmax(0)
    mean = share_G @ w_G2
    return (
        float(value_G.logsumexp(0) + 2 * (axis[1] - axis[0]).log()),
        mean,
        torch.einsum("g,gi,gj->ij", share_G, w_G2 - mean, w_G2 - mean),
    )


# --- moments of one site


def test_probit_moments_are_their_closed_form() -> None:
    """log Φ(ζ), m + v r/√(1 + v) and v − v² r (ζ + r)/(1 + v) with ζ = m/√(1 + v), r = φ/Φ, wherever the mass is."""
    m = torch.tensor([0.3, -2.0, 4.0, -30.0, 0.0, -80.0], dtype=torch.float64)
    v = torch.tensor([0.5, 3.0, 1e-4, 7.0, 1e4, 30.0], dtype=torch.float64)
    zeta = m / (1 + v).sqrt()
    log_z = torch.from_numpy(stats.norm.logcdf(zeta))
    r = (torch.from_numpy(stats.norm.logpdf(zeta)) - log_z).exp()
    mean, variance = m + v * r / (1 + v).sqrt(), v - v**2 * r * (zeta + r) / (1 + v)
    ones = torch.ones(6, 1, dtype=torch.float64)

    def log_prob(f_QnR: Tensor, some_n: Tensor) -> Tensor:
        return tb.likelihoods.Probit().log_prob(f_QnR, ones[some_n])

    actual = tilted(log_prob, m.unsqueeze(1), v.sqrt().view(-1, 1, 1), power=1.0)
    assert_close(actual.log_norm_N, log_z, rtol=1e-9)
    assert_close(m + v.sqrt() * actual.mean_NR[:, 0], mean, rtol=1e-8)
    assert_close(v * actual.covariance_NRR[:, 0, 0], variance, rtol=1e-6)
    closed = probit(ones[:, 0], m, v.sqrt())
    for part, other in zip(closed, actual, strict=True):
        assert_close(part, other, rtol=1e-8)
    for part, other in zip(probit(-ones[:, 0], -m, v.sqrt()), closed, strict=True):
        assert_close(part.abs(), other.abs(), rtol=1e-14)


@pytest.mark.parametrize("zeta", [-1e4, -40.0, -5.001, -4.999, -1.0, 0.0, 3.0, 37.0])
@pytest.mark.parametrize("v", [1e-6, 1.0, 1e6])
def test_probit_moments_keep_their_digits_in_the_tails(zeta: float, v: float) -> None:
    """Against 60 digits: ζ + r and 1 − r (ζ + r) are differences of nearly equal numbers there."""
    one = torch.ones(1, dtype=torch.float64)
    actual = probit(one, zeta * math.sqrt(1 + v) * one, math.sqrt(v) * one)
    at = zeta * math.sqrt(1 + v) / math.sqrt(1 + v)  # as rounded
    with mpmath.workdps(60):
        z, wide = mpmath.mpf(at), mpmath.mpf(v)
        cdf = mpmath.erfc(-z / mpmath.sqrt(2)) / 2
        r = mpmath.npdf(z) / cdf
        exact = mpmath.log(cdf), mpmath.sqrt(wide / (1 + wide)) * r, 1 - wide * r * (z + r) / (1 + wide)
    rounding = 1 + abs(at)  # of ζ, to which logarithms and exponentials of ζ²/2 are sensitive by ζ
    assert float(actual.log_norm_N[0]) == pytest.approx(float(exact[0]), rel=1e-13 * rounding)
    assert float(actual.mean_NR[0, 0]) == pytest.approx(float(exact[1]), rel=1e-14 * rounding**2)
    assert float(actual.covariance_NRR[0, 0, 0]) == pytest.approx(float(exact[2]), rel=1e-12)


def test_fits_by_the_closed_form_are_those_by_quadrature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighted rows have factors of power 1 as well; another power or temperature is not the closed form's."""
    calls: list[int] = []
    monkeypatch.setattr(factors_module, "probit", lambda *a: (calls.append(len(a[0])), probit(*a))[1])
    likelihood = tb.likelihoods.Weighted(tb.likelihoods.Probit())
    data = X, (Y, torch.arange(ROWS, dtype=torch.float64) % 3)
    closed = [fitted(linear(likelihood), data, order=order) for order in ORDERS]
    assert calls
    seen = len(calls)
    fitted(linear(likelihood), data, power=0.5)
    fitted(linear(likelihood, temperature=0.5, tempering="likelihood"), data)
    assert len(calls) == seen

    def by_quadrature(signs: Tensor, mean: Tensor, root: Tensor) -> Any:
        return tilted(lambda f, n: log_cdf(signs[n] * f[..., 0]), mean.unsqueeze(1), root.view(-1, 1, 1), power=1.0)

    monkeypatch.setattr(factors_module, "probit", by_quadrature)
    for order, actual in zip(ORDERS, closed, strict=True):
        for part, other in zip(moments(actual), moments(fitted(linear(likelihood), data, order=order)), strict=True):
            assert_close(part, other, rtol=1e-8)


@pytest.mark.parametrize("scale", [1e-4, 0.05, 1.0, 1e3])
def test_narrow_and_wide_factors_have_the_moments_of_the_product(scale: float) -> None:
    """Normal ones, in closed form, that lie up to 9 standard deviations away."""
    at, power, m, v = torch.tensor([[0.0], [9.0], [-4.0]], dtype=torch.float64), 0.6, 0.4, 2.0
    start = torch.full((3, 1), m, dtype=torch.float64)
    actual = tilted(
        lambda f, n: -0.5 * ((f[..., 0] - at[n, 0]) / scale) ** 2,
        start,
        torch.full((3, 1, 1), math.sqrt(v), dtype=torch.float64),
        power=power,
    )
    variance = 1 / (1 / v + power / scale**2)
    mean = variance * (m / v + power * at[:, 0] / scale**2)
    assert_close(v * actual.covariance_NRR[:, 0, 0], [variance] * 3, rtol=1e-8)
    assert_close(m + math.sqrt(v) * actual.mean_NR[:, 0], mean, rtol=1e-8)
    log_z = -0.5 * (at[:, 0] - m) ** 2 / (v + scale**2 / power) + 0.5 * math.log(variance / v)
    assert_close(actual.log_norm_N, log_z, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(  # `at` are standard deviations from the mean to the bend
    ("spread", "at"), with_studies([(0.1, 0.0), (1e6, -3.0)], [0.1, 10.0, 1e3, 1e6, 1e8], [0.0, 0.7, -3.0])
)
def test_a_logistic_function_however_steep_takes_few_nodes(spread: float, at: float) -> None:
    seen = []

    def log_prob(values_QnR: Tensor, _: Tensor) -> Tensor:
        seen.append(len(values_QnR))
        return nn.functional.logsigmoid(values_QnR[..., 0])

    mean = at * spread
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    actual = tilted(log_prob, mean * ones[0], spread * ones, power=1.0)
    ends = sorted({
        -12.0,
        12.0,
        *(e for w in (0, 1, 10, 40) for e in (-at - w / spread, -at + w / spread) if -12 < e < 12),
    })
    with mpmath.workdps(20):

        def density(x: Any) -> Any:
            return mpmath.npdf(x) / (1 + mpmath.exp(-(mean + spread * x)))

        moments_: Any = (
            mpmath.quad(lambda x, k=k: x**k * density(x), sorted({*ends, *range(-10, 11, 4)})) for k in range(3)
        )
        norm, first, second = moments_
        expected = [mpmath.log(norm), first / norm, second / norm - (first / norm) ** 2]
    close = [float(part.flatten()[0]) for part in actual]
    assert close == pytest.approx([float(value) for value in expected], rel=1e-9, abs=1e-9)
    assert sum(seen) < 3000


def test_several_outputs_of_a_wide_spread_are_warned_of() -> None:
    model = linear(tb.likelihoods.Categorical(), outputs=3)
    targets = Y[:, 0].long()
    with pytest.warns(ProblemWarning) as told:
        tb.fit(model, (1e5 * X[:2], targets[:2]), tb.EP(sweeps=1), callbacks=())
    assert "outputs of a row have a standard deviation of" in str(told[0].message)


def test_moments_of_several_numbers_are_those_of_a_product_rule() -> None:
    mean = normal(1, 2, seed=5)
    root = torch.tensor([[[1.2, 0.0], [-0.5, 0.8]]], dtype=torch.float64)

    def log_prob(f_QnR: Tensor, some_n: Tensor) -> Tensor:
        del some_n
        return torch.cat([f_QnR, torch.zeros_like(f_QnR[..., :1])], -1).log_softmax(-1)[..., 1]

    actual = tilted(log_prob, mean, root, power=0.7)
    axis = torch.linspace(-9, 9, 401, dtype=torch.float64)
    x_Q2 = torch.cartesian_prod(axis, axis)
    value = 0.7 * log_prob((mean + x_Q2 @ root[0].T).unsqueeze(1), mean)[:, 0] - 0.5 * x_Q2.square().sum(1)
    share = value.softmax(0)
    expected = share @ x_Q2
    assert_close(actual.mean_NR[0], expected, rtol=1e-8)
    assert_close(actual.covariance_NRR[0], torch.einsum("q,qi,qj->ij", share, x_Q2, x_Q2) - expected.outer(expected))
    log_z = value.logsumexp(0) + 2 * math.log(18 / 400) - math.log(2 * math.pi)
    assert_close(actual.log_norm_N[0], log_z, rtol=1e-8)


def test_a_cavity_is_the_marginal_without_a_part_of_its_site() -> None:
    covariance = torch.tensor([[[2.0, 0.4], [0.4, 1.0]]], dtype=torch.float64)
    mean, power = torch.tensor([[0.3, -0.8]], dtype=torch.float64), 0.6
    site = Sites(0.3 * covariance, torch.tensor([[1.0, 2.0]]).double(), torch.zeros(1).double())
    actual = cavity(mean, covariance, site, power=power)
    precision = torch.linalg.inv(covariance[0]) - power * site.precision_NRR[0]
    shift = torch.linalg.solve(covariance[0], mean[0]) - power * site.shift_NR[0]
    assert_close((actual.root_NRR @ actual.root_NRR.mT)[0], torch.linalg.inv(precision))
    assert_close(actual.mean_NR[0], torch.linalg.solve(precision, shift))
    assert bool(actual.proper_N)
    assert not bool(cavity(mean, covariance, site._replace(precision_NRR=5 * covariance), power=power).proper_N)


# --- exact answers


@pytest.mark.parametrize("power", [1.0, 0.4, 1e-3])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [3, 30])
def test_normal_noise_is_exact_for_every_power(power: float, order: Any, rows: int) -> None:
    """Posterior, predictive and evidence of two outputs with a noise of their own, rows fewer than weights or more."""
    x, y, noise = normal(rows, 3, seed=4), normal(rows, 2, seed=5), (0.3, 0.8)
    model = linear(tb.likelihoods.Gaussian(noise), 3, 2, prior=tb.priors.Normal(1.4, loc=0.2))
    evidence, mean, covariance = moments(fitted(model, (x, y), power=power, order=order, batch_size=11))
    assert_close(evidence, linear_gaussian_evidence(model, (x, y)).log_evidence)
    design = torch.func.jacrev(lambda w: model.network(model.split(w)[0], x))(mean).flatten(0, 1)
    inverse = torch.tensor(noise, dtype=torch.float64).pow(-2).repeat(rows)
    precision = design.T @ (inverse.unsqueeze(1) * design) + torch.eye(8, dtype=torch.float64) / 1.4**2
    assert_close(covariance, torch.linalg.inv(precision))
    assert_close(mean, torch.linalg.solve(precision, design.T @ (inverse * y.flatten()) + 0.2 / 1.4**2))


@pytest.mark.parametrize("likelihood", [tb.likelihoods.Probit(), tb.likelihoods.Bernoulli()])
def test_classes_are_close_to_quadrature_and_closer_as_the_power_grows(likelihood: Any) -> None:
    """Variance and evidence fall with the power, and those of EP are nearest (the table of the sources)."""
    exact = quadrature(likelihood, (X, Y))
    actual = [moments(fitted(linear(likelihood), (X, Y), power=a, tolerance=1e-6)) for a in (1.0, 0.5, 1e-3)]
    evidences = [evidence for evidence, _, _ in actual]
    variances = [float(covariance[0, 0]) for _, _, covariance in actual]
    assert exact[0] > evidences[0] > evidences[1] > evidences[2] > exact[0] - 0.04
    assert float(exact[2][0, 0]) > variances[0] > variances[1] > variances[2] > 0.8 * float(exact[2][0, 0])
    assert_close(actual[0][0], exact[0], rtol=2e-3)
    assert_close(actual[0][1], exact[1], rtol=0.01, atol=0.01)
    assert_close(actual[0][2], exact[2], rtol=0.06, atol=0.01)


def test_orders_dampings_and_batches_have_one_fixed_point() -> None:
    model, data = linear(tb.likelihoods.Probit()), (X[:4], Y[:4])
    expected = moments(fitted(model, data))
    for settings in ({"damping": 0.5, "batch_size": 4}, {"order": "sequential", "damping": 0.6}):
        actual = moments(fitted(model, data, tolerance=1e-8, **settings))
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other, rtol=1e-7)


def test_a_power_near_0_is_variational_inference_with_a_full_covariance() -> None:
    """Against the bound, maximised directly with Gauss-Hermite expectations; it is the evidence of the power too."""
    model, likelihood = linear(tb.likelihoods.Bernoulli()), tb.likelihoods.Bernoulli()
    evidence, mean, covariance = moments(fitted(model, (X, Y), power=1e-4))
    design = torch.cat([X, torch.ones_like(X)], 1)
    axis = torch.linspace(-9, 9, 401, dtype=torch.float64)
    weight = (-0.5 * axis**2).softmax(0)
    parameters = torch.zeros(5, dtype=torch.float64, requires_grad=True)

    def bound() -> Tensor:
        root = torch.stack([
            torch.stack([parameters[2].exp(), parameters.new_zeros(())]),
            torch.stack([parameters[4], parameters[3].exp()]),
        ])
        spread = (design @ root).square().sum(1).sqrt()
        f_QN1 = (design @ parameters[:2] + axis.unsqueeze(1) * spread).unsqueeze(-1)
        expected = (weight @ likelihood.log_prob(f_QN1, Y)).sum()
        square = root.square().sum() + parameters[:2].square().sum()
        return expected - 0.5 * (square / WIDE**2 - 2) + root.diagonal().log().sum() - 2 * math.log(WIDE)

    descent = torch.optim.LBFGS([parameters], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        descent.zero_grad()
        loss = -bound()
        loss.backward()
        return loss

    descent.step(closure)
    assert_close(evidence, bound().detach(), rtol=1e-5)
    assert_close(mean, parameters[:2].detach(), rtol=1e-4, atol=1e-4)
    a, b, c = parameters.detach()[2].exp(), parameters.detach()[3].exp(), parameters.detach()[4]
    assert_close(covariance, [[a * a, a * c], [a * c, b * b + c * c]], rtol=1e-3)


@pytest.mark.parametrize("order", ["parallel", pytest.param("sequential", marks=pytest.mark.study)])
def test_two_classes_by_one_logit_or_by_two_are_the_same(order: Any) -> None:
    """The difference of two logits under N(0, s²) has the prior N(0, 2 s²)."""
    two = linear(tb.likelihoods.Categorical(), outputs=2, prior=tb.priors.Normal(WIDE / math.sqrt(2)))
    expected = moments(fitted(linear(tb.likelihoods.Bernoulli()), (X, Y)))
    evidence, mean, covariance = moments(fitted(two, (X, Y[:, 0].long()), order=order, tolerance=1e-8))
    apart = torch.tensor([[-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0]], dtype=torch.float64)
    assert_close(evidence, expected[0], rtol=1e-7)
    assert_close(apart @ mean, expected[1], rtol=1e-6)
    assert_close(apart @ covariance @ apart.T, expected[2], rtol=1e-6)


def test_three_classes_are_close_to_importance_sampling() -> None:
    x, y = normal(15, 1, seed=6), torch.arange(15) % 3
    model = linear(tb.likelihoods.Categorical(), outputs=3)
    evidence, mean, covariance = moments(fitted(model, (x, y), tolerance=1e-4))
    proposal = torch.distributions.StudentT(6.0)
    torch.manual_seed(0)
    z = proposal.sample((100_000, 6)).double()
    root = torch.linalg.cholesky(covariance)
    w = mean + z @ root.T
    outputs = x[:, 0].view(1, -1, 1) * w[:, None, :3] + w[:, None, 3:]
    log_p = tb.likelihoods.Categorical().log_prob(outputs, y).sum(-1) + model.log_prior(w)
    log_w = log_p - proposal.log_prob(z).sum(-1) + root.logdet()
    share = log_w.softmax(0)
    assert 1 / float(share.square().sum()) > 10_000
    assert_close(evidence, log_w.logsumexp(0) - math.log(len(w)), rtol=2e-3)
    assert_close(mean, share @ w, atol=0.03, rtol=0.0)
    assert_close(covariance.diagonal(), share @ (w - share @ w).square(), rtol=0.05, atol=0.0)


@pytest.mark.parametrize("likelihood", [tb.likelihoods.Poisson(), tb.likelihoods.StudentT(3.0, 0.5)])
def test_other_likelihoods_are_close_to_quadrature(likelihood: Any) -> None:
    y = (1.5 + X).exp().round() if isinstance(likelihood, tb.likelihoods.Poisson) else X + 0.5 * normal(ROWS, 1, seed=3)
    if isinstance(likelihood, tb.likelihoods.StudentT):
        y[0] += 8.0  # an outlier, whose site has a negative precision
    exact = quadrature(likelihood, (X, y), reach=8.0)
    actual = moments(fitted(linear(likelihood), (X, y), order="sequential", tolerance=1e-6))
    for one, other in zip(actual, exact, strict=True):
        assert_close(one, other, rtol=0.05, atol=0.01)


def test_ep_is_close_to_the_posterior_of_many_weights() -> None:
    """Moments by importance sampling from a Student t of 5 degrees of freedom around EP's own, to within 0.01 sd."""
    x, w = normal(60, 4, seed=7), normal(4, 1, seed=8)
    y = (x @ w + normal(60, 1, seed=9) > 0).double()
    model = linear(tb.likelihoods.Bernoulli(), 4)
    _, mean, covariance = moments(fitted(model, (x, y)))
    count, size, freedom = 100_000, 5, 5.0
    spread = stats.chi2(freedom).rvs((count, 1), random_state=0) / freedom
    standard = normal(count, size, seed=10) / torch.from_numpy(spread).sqrt()
    drawn = mean + standard @ torch.linalg.cholesky(covariance).T
    log_proposal = -(freedom + size) / 2 * torch.log1p(standard.square().sum(1) / freedom)
    target = tb.LogDensity(model, 60, tb.Batch(x, y), plan="vmap")
    log_target = torch.cat([target.value(part).log_density for part in drawn.split(5000)])
    share = (log_target - log_proposal).softmax(0)
    assert 1 / share.square().sum() > 20_000  # independent draws that are worth as much
    exact = share @ drawn
    sd = (share @ (drawn - exact).square()).sqrt()
    assert_close(mean / sd, exact / sd, atol=0.15, rtol=0.0)
    assert_close(covariance.diagonal().sqrt(), sd, rtol=0.08)


@pytest.mark.slow
@pytest.mark.study  # importance sampling of as many weights, above, is exact for less
def test_ep_is_close_to_long_chains() -> None:
    x, w = normal(60, 4, seed=7), normal(4, 1, seed=8)
    y = (x @ w + normal(60, 1, seed=9) > 0).double()
    model = linear(tb.likelihoods.Probit(), 4)
    _, mean, covariance = moments(fitted(model, (x, y)))
    drawn = tb.fit(model, (x, y), tb.NUTS(chains=64, steps=155, burn_in=80), callbacks=()).sample(4800)
    sd = drawn.std(0)
    assert_close(mean / sd, drawn.mean(0) / sd, atol=0.15, rtol=0.0)
    assert_close(covariance.diagonal().sqrt(), sd, rtol=0.08)


# --- weights, temperature, constants, priors


@pytest.mark.parametrize(("order", "power"), with_studies([("parallel", 0.5), ("sequential", 1.0)], ORDERS, (1.0, 0.5)))
def test_a_row_of_weight_w_is_w_rows_and_one_of_weight_0_is_none(order: Any, power: float) -> None:
    counts = torch.tensor([2, 0, 1, 3, 1, 0, 2, 1, 4, 1, 1, 2])
    kind = tb.likelihoods.Bernoulli if order == "parallel" else tb.likelihoods.Probit  # whose moments are closed
    plain, weighted = kind(), tb.likelihoods.Weighted(kind())
    rows = (X.repeat_interleave(counts, 0), Y.repeat_interleave(counts, 0))
    holes = torch.where(counts[:, None] == 0, 0.0, Y)
    settings: dict[str, Any] = {"order": order, "power": power, "tolerance": 1e-8}
    actual = moments(fitted(linear(weighted), (X, (holes, counts.double())), **settings))
    for one, other in zip(actual, moments(fitted(linear(plain), rows, **settings)), strict=True):
        assert_close(one, other, rtol=1e-7)


def test_a_weighted_row_in_turn_counts_for_the_rows_after_it() -> None:
    """One sweep, which tells the way to the fixed point, is the same whether q is made anew after each row or not."""
    weights = torch.tensor([2.0, 0.5, 1.0, 3.0, 1.0, 0.25, 2.0, 1.0, 4.0, 1.0, 1.0, 2.0]).double()
    model = linear(tb.likelihoods.Weighted(tb.likelihoods.Bernoulli()))
    settings: dict[str, Any] = {"order": "sequential", "sweeps": 1, "damping": 1.0}
    one, other = (moments(fitted(model, (X, (Y, weights)), batch_size=size, **settings)) for size in (1, 12))
    for actual, expected in zip(one, other, strict=True):
        assert_close(actual, expected, rtol=1e-9)


@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
def test_the_tempered_posterior_of_a_linear_model_is_exact(tempering: Any) -> None:
    x, y, t = normal(20, 3, seed=4), normal(20, 1, seed=5), 0.3
    model = linear(tb.likelihoods.Gaussian(0.5), 3, temperature=t, tempering=tempering)
    actual = fitted(model, (x, y))
    design = torch.cat([x, torch.ones(20, 1)], 1)
    prior = torch.eye(4) / WIDE**2 / (t if tempering == "joint" else 1)
    precision = design.T @ design / 0.25 / t + prior
    assert_close(actual.covariance.dense()[0], torch.linalg.inv(precision))
    with pytest.raises(ValueError, match="no estimate of the log evidence"):
        actual.log_evidence()


@pytest.mark.parametrize("order", ["parallel", pytest.param("sequential", marks=pytest.mark.study)])
def test_a_temperature_is_a_power_of_the_likelihood(order: Any) -> None:
    """The table of quadrature holds for ℓ^(1/T) too."""

    class Powered(tb.likelihoods.Bernoulli):
        def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
            del parameters
            return super().log_prob(outputs, targets) / 0.5

    model = linear(tb.likelihoods.Bernoulli(), temperature=0.5, tempering="likelihood")
    actual, exact = fitted(model, (X, Y), order=order, tolerance=1e-5), quadrature(Powered(), (X, Y))
    assert_close(actual.mean_MD[0], exact[1], rtol=0.02)
    assert_close(actual.covariance.dense()[0], exact[2], rtol=0.1, atol=0.02)


@pytest.mark.parametrize("likelihood", [tb.likelihoods.Gaussian(0.5), tb.likelihoods.Probit()])
def test_constant_biases_and_features_are_offsets(likelihood: Any) -> None:
    """A frozen bias moves the outputs, and features of frozen layers are inputs like others."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Tanh(), nn.Linear(3, 1)).double()
    x = normal(20, 2, seed=4)
    y = (x[:, :1] > 0).double()
    model = tb.Model(net, likelihood, tb.priors.Normal(WIDE), random="4.weight")
    actual = fitted(model, (x, y))
    features, bias = net[:4].eval()(x).detach(), net[4].bias.item()  # type: ignore[union-attr]
    if isinstance(likelihood, tb.likelihoods.Gaussian):
        module, targets = nn.Linear(3, 1, bias=False).double(), y - bias
        plain = tb.Model(module, likelihood, tb.priors.Normal(WIDE))
        for one, other in zip(moments(actual), moments(fitted(plain, (features, targets))), strict=True):
            assert_close(one, other)
    mean, covariance = actual.mean_MD[0], actual.covariance.dense()[0]
    prediction = tb.predict(actual, x)
    m = (features @ mean) + bias
    variance = torch.einsum("bi,ij,bj->b", features, covariance, features)
    if isinstance(likelihood, tb.likelihoods.Probit):
        assert_close(prediction.probs[:, 0], stats.norm.cdf(m / (1 + variance).sqrt()), rtol=1e-9)
    else:
        assert_close(prediction.mean[:, 0], m, rtol=1e-9)


def test_filtering_in_pieces_is_exact_for_normal_noise_and_sees_each_row_once() -> None:
    """One sweep in turn, its posterior the prior of the next rows; evidences add up."""
    x, y = normal(30, 3, seed=4), normal(30, 1, seed=5)
    whole = moments(fitted(linear(tb.likelihoods.Gaussian(0.5), 3), (x, y)))
    model, actual = linear(tb.likelihoods.Gaussian(0.5), 3), []
    filtering: dict[str, Any] = {"tolerance": 1e-4, "sweeps": 1, "order": "sequential"}
    for start in range(0, 30, 10):
        posterior = fitted(model, (x[start : start + 10], y[start : start + 10]), **filtering)
        assert not posterior.problems
        actual.append(moments(posterior))
        model = linear(tb.likelihoods.Gaussian(0.5), 3, prior=tb.as_prior(posterior))
    assert_close(sum(evidence for evidence, _, _ in actual), whole[0])
    assert_close(actual[-1][1], whole[1])
    assert_close(actual[-1][2], whole[2])


def test_filtering_of_probit_is_its_closed_form() -> None:
    """One row after the other by m + S x y r/√(1 + v) and S − S x xᵀS r(ζ + r)/(1 + v); the evidence is Σ log Φ(ζ)."""
    mean, covariance = torch.zeros(2, dtype=torch.float64), WIDE**2 * torch.eye(2, dtype=torch.float64)
    total = 0.0
    for x, y in zip(torch.cat([X, torch.ones_like(X)], 1), 2 * Y[:, 0] - 1, strict=True):
        along, root = covariance @ x, float((1 + x @ covariance @ x).sqrt())
        zeta = float(y * (x @ mean)) / root
        ratio = math.exp(stats.norm.logpdf(zeta) - stats.norm.logcdf(zeta))
        total += stats.norm.logcdf(zeta)
        mean = mean + along * y * ratio / root
        covariance = covariance - along.outer(along) * ratio * (zeta + ratio) / root**2
    actual = moments(fitted(linear(tb.likelihoods.Probit()), (X, Y), order="sequential", sweeps=1))
    assert_close(actual[0], total, rtol=1e-9)
    assert_close(actual[1], mean, rtol=1e-7)
    assert_close(actual[2], covariance, rtol=1e-7)


def test_filtering_of_classes_goes_on_where_it_was() -> None:
    """A stream in two pieces is the stream in one; the evidence is the product of predictive probabilities."""
    model, filtering = linear(tb.likelihoods.Probit()), tb.EP(sweeps=1, order="sequential")
    whole = tb.fit(model, (X, Y), filtering, callbacks=())
    first = tb.fit(model, (X[:5], Y[:5]), filtering, callbacks=())
    assert isinstance(first, tb.Gaussian)
    second = tb.fit(linear(tb.likelihoods.Probit(), prior=tb.as_prior(first)), (X[5:], Y[5:]), filtering, callbacks=())
    assert isinstance(whole, tb.Gaussian)
    assert isinstance(second, tb.Gaussian)
    assert_close(second.mean_MD, whole.mean_MD, rtol=1e-8)
    assert_close(second.covariance.dense(), whole.covariance.dense(), rtol=1e-8)
    assert_close(first.log_evidence() + second.log_evidence(), whole.log_evidence(), rtol=1e-8)
    predicted = tb.predict(first, X[5:6]).probs[0, 0]
    one = tb.fit(linear(tb.likelihoods.Probit(), prior=tb.as_prior(first)), (X[5:6], Y[5:6]), filtering, callbacks=())
    assert isinstance(one, tb.Gaussian)
    assert_close(one.log_evidence()[0].exp(), predicted if Y[5] else 1 - predicted, rtol=1e-8)


def test_correlated_priors_count_as_they_are() -> None:
    root = torch.tensor([[1.0, 0.6], [0.0, 0.5]], dtype=torch.float64)
    model = linear(tb.likelihoods.Gaussian(0.4), prior=Joint(torch.tensor([0.3, -0.2]).double(), Dense(root[None])))
    y = X + 0.4 * normal(ROWS, 1, seed=3)
    actual = moments(fitted(model, (X, y)))
    design = torch.cat([X, torch.ones_like(X)], 1)
    marginal = design @ root @ root.T @ design.T + 0.16 * torch.eye(ROWS, dtype=torch.float64)
    expected = MultivariateNormal(design @ torch.tensor([0.3, -0.2]).double(), marginal).log_prob(y[:, 0])
    assert_close(actual[0], expected)
    precision = torch.linalg.inv(root @ root.T) + design.T @ design / 0.16
    assert_close(actual[2], torch.linalg.inv(precision))


# --- the run


@pytest.mark.parametrize("order", [pytest.param("parallel", marks=pytest.mark.study), "sequential"])
def test_interrupted_and_resumed_equals_uninterrupted(order: Any, tmp_path: Path, monkeypatch: Any) -> None:
    model, method = linear(tb.likelihoods.Bernoulli()), tb.EP(order=order, batch_size=5, tolerance=1e-6)
    whole = tb.fit(model, (X, Y), method, directory=tmp_path / "whole", callbacks=())
    step, taken = tb.EP.step, iter(range(100))

    def interrupted(self: tb.EP, *args: Any, **kwargs: Any) -> Any:
        if next(taken) == 7:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr("torchbayes.driver.run.time.monotonic", iter(range(0, 10**6, 10)).__next__)
    with monkeypatch.context() as inside:
        inside.setattr(tb.EP, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tb.fit(model, (X, Y), method, directory=tmp_path / "cut", callbacks=())
    resumed = tb.fit(model, (X, Y), method, directory=tmp_path / "cut", resume=True, callbacks=())
    assert_same_tensors(resumed.tensors(), whole.tensors())
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    loaded = tb.load(tmp_path / "cut" / "posterior.safetensors", model)
    assert_same_tensors(loaded.tensors(), whole.tensors())
    assert isinstance(loaded, tb.Gaussian)
    assert_close(loaded.log_evidence(), [losses(tmp_path / "whole")[-1]["log_evidence"]])


def test_networks_in_single_precision_give_such_posteriors() -> None:
    model = tb.Model(nn.Linear(1, 1), tb.likelihoods.Bernoulli(), tb.priors.Normal(WIDE))
    actual = fitted(model, (X.float(), Y.float()))
    assert actual.mean_MD.dtype == torch.float32
    assert_close(actual.mean_MD[0], fitted(linear(tb.likelihoods.Bernoulli()), (X, Y)).mean_MD[0].float(), rtol=1e-5)


def test_sweeps_that_do_not_suffice_and_sites_left_out_are_problems() -> None:
    model = linear(tb.likelihoods.Bernoulli())
    with pytest.warns(ProblemWarning, match="had not converged: at the rate of the last of 2 sweeps"):
        tb.fit(model, (X, Y), tb.EP(sweeps=2), callbacks=())
    for method in (tb.EP(sweeps=1), tb.EP(sweeps=1, order="sequential", damping=0.5)):
        with pytest.warns(ProblemWarning, match="after one sweep, in parallel or damped"):
            tb.fit(model, (X, Y), method, callbacks=())
    assert not tb.fit(linear(tb.likelihoods.Gaussian(1.0)), (X, X), tb.EP(sweeps=1), callbacks=()).problems
    x, y = normal(12, 5, seed=4), normal(12, 1, seed=5)
    y[::3] += 5 * normal(4, 1, seed=6)
    with pytest.warns(ProblemWarning, match="sites were left as they were"):
        tb.fit(linear(tb.likelihoods.StudentT(1.0, 0.02), 5), (x, y), tb.EP(5e-1, "sequential", sweeps=3), callbacks=())
    nothing = linear(tb.likelihoods.Weighted(tb.likelihoods.Bernoulli()))
    with pytest.warns(ProblemWarning, match="no row counts"):
        actual = tb.fit(nothing, (X, (Y, torch.zeros(ROWS).double())), tb.EP(), callbacks=())
    assert_close(actual.tensors()["mean_MD"], torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("model", "targets", "said"),
    [
        (
            lambda: tb.Model(
                nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)).double(), tb.likelihoods.Probit()
            ),
            Y,
            r"linear in the random weights; at random ones.*random='head\.\*'",
        ),
        (lambda: linear(tb.likelihoods.Gaussian("learned")), Y, r"parameters are known.*likelihoods\.Gaussian\(0\.5\)"),
        (
            lambda: linear(tb.likelihoods.Gaussian(1.0), prior=tb.priors.Laplace()),
            Y,
            "a prior that is normal; got Laplace",
        ),
        (lambda: linear(tb.likelihoods.Gaussian(1.0), prior=tb.priors.Flat()), Y, "a prior that is normal; got Flat"),
        (
            lambda: linear(tb.likelihoods.Categorical(), outputs=9),
            torch.arange(ROWS) % 9,
            r"as those of 4 classes; got 9 classes.*VBLL",
        ),
    ],
)
def test_what_does_not_suit_is_refused(model: Any, targets: Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tb.fit(model(), (X, targets), tb.EP(), callbacks=())


def test_a_likelihood_of_ones_own_with_one_or_two_outputs() -> None:
    """A Gaussian by another name is integrated numerically; one whose second output is the log noise is too."""
    y = X + 0.3 * normal(ROWS, 1, seed=3)
    own = tb.likelihoods.Custom(lambda f: torch.distributions.Normal(f, 0.3))
    exact = moments(fitted(linear(tb.likelihoods.Gaussian(0.3)), (X, y)))
    for one, other in zip(moments(fitted(linear(own), (X, y))), exact, strict=True):
        assert_close(one, other, rtol=1e-7)
    both = fitted(linear(tb.likelihoods.HeteroscedasticGaussian(), outputs=2), (X[:3], y[:3]), tolerance=1e-2)
    assert not both.problems
    assert math.isfinite(float(both.log_evidence()))


def test_the_evidence_needs_one_number_for_each_member() -> None:
    posterior = fitted(linear(tb.likelihoods.Bernoulli()), (X, Y))
    with pytest.raises(ValueError, match="one number for each of 1 members; got 2"):
        replace(posterior, log_evidence_M=torch.zeros(2))
