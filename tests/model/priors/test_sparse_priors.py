"""The horseshoe and the log-uniform prior: densities against quadrature, expectations against known numbers."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes.evidence.path import check_model
from torchbayes.model import priors
from torchbayes.model.priors.bound import Segment
from torchbayes.model.priors.expected import add_expected_, is_closed
from torchbayes.model.priors.sparse import expected_log_size, scaled_e1

WEIGHTS = torch.tensor([-40.0, -3.0, -1.0, 0.7, 1e-3, 0.05, 2.4, 300.0], dtype=torch.float64)


# --- horseshoe


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_density_is_the_mixture_over_half_cauchy_scales(scale: float) -> None:
    def density(w: float) -> float:
        """By u = log λ: C⁺(λ) dλ = du / (π cosh u)."""

        def part(u: float) -> float:
            own = scale * math.exp(u)
            return math.exp(-0.5 * (w / own) ** 2) / (own * math.sqrt(2 * math.pi)) / (math.pi * math.cosh(u))

        return sum(integrate.quad(part, a, a + 5, epsabs=0, epsrel=1e-11)[0] for a in range(-25, 30, 5))

    actual = priors.Horseshoe(scale).log_prob(WEIGHTS)
    assert_close(actual, [math.log(density(float(w))) for w in WEIGHTS], rtol=1e-8, atol=1e-8)
    z = (WEIGHTS / scale).square()  # the bounds of Carvalho, Polson and Scott
    unit = 1 / (scale * math.sqrt(2 * math.pi**3))
    assert (actual.exp() > 0.5 * unit * torch.log1p(4 / z)).all()
    assert (actual.exp() < unit * torch.log1p(2 / z)).all()


def test_exponential_integral_is_scipys() -> None:
    x = torch.logspace(-16, 2.7, 2000, dtype=torch.float64)
    expected = special.exp1(x.numpy()) * np.exp(x.numpy())
    actual, slope = scaled_e1(x)
    assert_close(actual, expected, rtol=5e-15)
    assert_close(slope, 1 - 1 / (x.numpy() * expected), rtol=1e-9)
    low, gentle = scaled_e1(x.float())
    assert_close(low, expected, rtol=2e-6)
    assert_close(gentle, slope, rtol=5e-6)
    assert_close(torch.stack(scaled_e1(torch.tensor(1e8).double())), [1e-8, -1e-8], rtol=1e-7)


def test_mass_is_one_and_draws_follow_it() -> None:
    prior = priors.Horseshoe(0.5)

    def part(u: float) -> float:  # by u = log w
        return math.exp(u + float(prior.log_prob(torch.tensor(math.exp(u), dtype=torch.float64))))

    @cache
    def between(low: float, high: float) -> float:
        return integrate.quad(part, low, high)[0]

    def inside(end: float) -> float:
        return 2 * sum(between(a, min(a + 4, end)) for a in np.arange(-24, end, 4))

    assert abs(inside(math.log(1e7)) - 1) < 1e-6
    drawn = prior.sample((200_000,), torch.Generator().manual_seed(1)).abs()
    for end in (0.01, 0.2, 1.0, 10.0):
        share = inside(math.log(end))
        assert abs(float((drawn < end).double().mean()) - share) < 5 * math.sqrt(share * (1 - share) / 200_000)


def test_derivatives_are_exact_and_finite_everywhere() -> None:
    prior = priors.Horseshoe(0.7)
    leaf = WEIGHTS.clone().requires_grad_()
    assert torch.autograd.gradcheck(prior.log_prob, (leaf,), eps=1e-7, rtol=1e-4)
    assert torch.autograd.gradgradcheck(prior.log_prob, (leaf,), eps=1e-7, rtol=1e-3)
    start = normal(len(WEIGHTS))
    expected = start + 0.3 * torch.autograd.grad(prior.log_prob(leaf).sum(), leaf)[0]
    gradient = start.clone()
    prior.add_gradient_(gradient, WEIGHTS, 0.3)
    assert_close(gradient, expected, rtol=1e-9)
    by_vmap = torch.func.vmap(torch.func.grad(prior.log_prob))(WEIGHTS)
    assert_close(by_vmap, (expected - start) / 0.3, rtol=1e-9)
    for dtype in (torch.float32, torch.float64):
        near = torch.tensor([0.0, -0.0, 1e-30, -1e-12, 1e-9, 1e-4, 3e4], dtype=dtype).requires_grad_()
        value = prior.log_prob(near)
        assert value.isfinite().all()
        (slope,) = torch.autograd.grad(value.sum(), near)
        closed = torch.zeros_like(near)
        prior.add_gradient_(closed, near.detach(), 1.0)
        assert slope.isfinite().all()
        assert (slope[:4] == 0).all()
        assert slope[5] < 0 > slope[6]
        assert_close(closed, slope, rtol=1e-4)


def one_weight(prior: Any, noise: float = 0.5) -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    x = normal(8, 1, seed=1)
    net = nn.Linear(1, 1, bias=False).double()
    return tb.Model(net, tb.likelihoods.Gaussian(noise), prior), (x, 0.8 * x + noise * normal(8, 1, seed=2))


@pytest.mark.study  # the density and its slope are exact, by the tests above
def test_hmc_draws_the_posterior_of_one_weight() -> None:
    model, (x, y) = one_weight(priors.Horseshoe(0.2))
    grid = torch.linspace(-4, 4, 20_001, dtype=torch.float64)
    log_p = model.prior.segments[0].prior.log_prob(grid) - (y - x * grid).square().sum(0) / (2 * 0.25)
    p = (log_p - log_p.max()).exp()
    mean = float((p * grid).sum() / p.sum())
    spread = float((p * (grid - mean).square()).sum() / p.sum()) ** 0.5
    method = tb.HMC(chains=24, steps=200, burn_in=100, step_size=0.15, trajectory=0.6)
    drawn = tb.fit(model, (x, y), method, callbacks=(), start=torch.full((24, 1), 0.7).double()).sample(2400)
    assert abs(float(drawn.mean()) - mean) < 0.12 * spread
    assert abs(float(drawn.std()) - spread) < 0.12 * spread


@pytest.mark.parametrize(
    "method",
    [
        tb.MAP(epochs=3),
        tb.SVGD(3, epochs=3),
        tb.IVON(epochs=3),
        tb.VI(epochs=3, kl_weight=1.0),
        tb.SGLD(steps=40, burn_in=10, thin=10, step_size=1e-6),
    ],
    ids=lambda method: type(method).__name__,
)
def test_every_method_takes_the_horseshoe_from_weights_at_zero(method: Any, tmp_path: Any) -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    nn.init.zeros_(net[0].bias)  # type: ignore[arg-type]
    model = tb.Model(net, tb.likelihoods.Gaussian("learned"), priors.Horseshoe(0.3))
    data = (normal(20, 2).float(), normal(20, 1, seed=3).float())
    posterior = tb.fit(model, data, method, callbacks=(), start=net)
    assert posterior.sample(posterior.members).isfinite().all()
    path = posterior.save(tmp_path / "p.safetensors")
    assert_close(tb.load(path, model).sample(posterior.members), posterior.sample(posterior.members))


# --- log-uniform


@pytest.mark.parametrize(("log_alpha", "expected"), [(-2.0, 1.544155), (0.0, 0.426686), (2.0, 0.066168)])
def test_divergence_has_the_known_values(log_alpha: float, expected: float) -> None:
    """With the constant by which it falls to 0: KL = E log |1 + √α ε| − ½ log α + ½ (γ + log 2)."""
    mean = torch.tensor([[-1.7]], dtype=torch.float64)
    variance = math.exp(log_alpha) * mean.square()
    nothing = [torch.zeros(1, 1, dtype=torch.float64) for _ in range(2)]
    actual = add_expected_(Segment(priors.LogUniform(), slice(0, 1)), mean, variance, scale=1.0, into=nothing)
    divergence = -actual - 0.5 * variance.log().sum() + 0.5 * (np.euler_gamma + math.log(2))
    assert_close(divergence, [expected], rtol=0.0, atol=5e-7)
    # its derivative by log α at a fixed mean is −u D(u), u = 1/√(2α): that of −E log p, less that of the entropy
    u = math.exp(-0.5 * log_alpha) / math.sqrt(2)
    assert_close(-nothing[1] * variance - 0.5, [[-u * special.dawsn(u)]], rtol=1e-6)


def test_expected_log_size_is_exact() -> None:
    z = torch.linspace(0, 30, 3001, dtype=torch.float64)
    value, slope = expected_log_size(z)
    assert_close(slope, math.sqrt(2) * special.dawsn(z.numpy() / math.sqrt(2)), rtol=0.0, atol=2e-9)
    between = (value[2:] - value[:-2]) / 0.02 - slope[1:-1]
    assert between.abs().max() < 1e-4
    assert_close(value[0], -0.5 * (np.euler_gamma + math.log(2)))
    e = normal(400_000, seed=5)
    for at in (0.3, 2.0, 6.0, 14.0):
        drawn = (at + e).abs().log()
        actual, _ = expected_log_size(torch.tensor(at, dtype=torch.float64))
        assert abs(float(actual - drawn.mean())) < 5 * float(drawn.std()) / 400_000**0.5
    low, _ = expected_log_size(z.float())
    assert low.dtype == torch.float32
    assert_close(low, value, rtol=1e-6, atol=1e-6)


def test_expectation_has_the_derivatives_of_its_value() -> None:
    segment = Segment(priors.LogUniform(), slice(0, 5))
    mean = torch.tensor([[0.0, -0.3, 2.0, 5.0, 0.01]], dtype=torch.float64)
    variance = torch.tensor([[0.5, 0.2, 0.01, 4.0, 1e-6]], dtype=torch.float64)
    by_mean, by_variance = torch.zeros(2, 1, 5, dtype=torch.float64)
    add_expected_(segment, mean, variance, scale=2.0, into=(by_mean, by_variance))
    assert is_closed(segment)

    def value(m: Tensor, v: Tensor) -> Tensor:
        spare = [torch.zeros_like(m) for _ in range(2)]
        return 2.0 * add_expected_(segment, m, v, scale=0.0, into=spare)

    for i in range(5):
        step = 1e-4 * variance[0, i].sqrt()
        moved = torch.zeros(1, 5, dtype=torch.float64)
        moved[0, i] = step
        assert_close(by_mean[:, i], (value(mean + moved, variance) - value(mean - moved, variance)) / (2 * step),
                     rtol=1e-4, atol=1e-5)  # fmt: skip
        moved[0, i] = step = 1e-4 * variance[0, i]
        assert_close(by_variance[:, i], (value(mean, variance + moved) - value(mean, variance - moved)) / (2 * step),
                     rtol=1e-4, atol=1e-5)  # fmt: skip


def test_variational_dropout_of_one_weight_meets_its_optimum() -> None:
    model, (x, y) = one_weight(priors.LogUniform())
    fitted = tb.fit(
        model,
        (x, y),
        tb.VI(epochs=400, optimizer=tb.Adam(0.05), kl_weight=1.0, draws=64, antithetic=True),
        callbacks=(),
    )
    assert isinstance(fitted, tb.Gaussian)

    def objective(at: Any) -> float:
        mean, log_scale = (torch.tensor(value, dtype=torch.float64) for value in at)
        fit = ((y - mean * x).square().sum() + (2 * log_scale).exp() * x.square().sum()) / (2 * 0.25)
        return float(fit + expected_log_size(mean.abs() / log_scale.exp())[0])

    best = optimize.minimize(objective, [0.5, -2.0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9}).x
    assert_close(fitted.mean_MD[0, 0], best[0], rtol=0.02)
    assert_close(fitted.covariance.diagonal().sqrt()[0, 0], math.exp(best[1]), rtol=0.03)


@pytest.mark.parametrize(
    "method",
    [
        tb.MAP(),
        tb.HMC(steps=9, burn_in=2),
        tb.IVON(),
        tb.SVGD(),
        tb.SGLD(steps=40, burn_in=10),
        tb.VBLL(),
        tb.Laplace(),
        tb.SWAG(),
    ],
    ids=lambda method: type(method).__name__,
)
def test_other_methods_refuse_the_log_uniform_prior(method: Any) -> None:
    model, data = one_weight(priors.LogUniform())
    with pytest.raises(ValueError, match=r"posterior is improper.*VI takes this prior.*Horseshoe"):
        tb.fit(model, data, method, callbacks=())


def test_nothing_is_drawn_from_the_log_uniform_prior() -> None:
    model, _ = one_weight(priors.LogUniform())
    with pytest.raises(ValueError, match=r"cannot be drawn from LogUniform\(\), which is improper"):
        model.prior.sample(3)
    with pytest.raises(ValueError, match="a log-uniform prior is improper, so the evidence is not defined"):
        check_model(model)
