"""IVON against a plain transcription of its rule, and against the Gaussians it must reach, in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.oracles import LinearGaussian, assert_close, normal
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import torchbayes as tb
from torchbayes.density.dynamics import Value
from torchbayes.methods.variational import passes
from torchbayes.methods.variational.ivon import State
from torchbayes.methods.variational.passes import Moments, Penalty, Rates
from torchbayes.methods.variational.target import target_of
from torchbayes.model.layout import Layout
from torchbayes.model.model import Scales
from torchbayes.model.priors.bound import BoundPrior
from torchbayes.native.noise import fill_normal
from torchbayes.randomness.seeds import Purpose, mix

ROWS = tb.Batch(torch.zeros(1, 1), torch.zeros(1, 1))


class Quadratics:
    """D separate losses ½ a (w − b)² whose gradients have noise of standard deviation τ; the prior is N(0, 1/(λδ))."""

    def __init__(self, size: int, *, a: float, b: float, ess: int, delta: float, noise: float = 0.0) -> None:
        prior = BoundPrior(Layout({"w": torch.Size([size])}), tb.priors.Normal((ess * delta) ** -0.5))
        self.model = SimpleNamespace(prior=prior, scales=lambda *_: Scales(1.0, 1.0), network=None)
        self.num_data, self.a, self.b, self.noise, self.calls = ess, a, b, noise, 0

    def nll(self, weights_MD: Tensor, batch: Any, *, out: Tensor, **_: Any) -> Value:
        self.calls += 1
        out.copy_(self.a * (weights_MD - self.b))
        if self.noise:
            out.add_(normal(*out.shape, seed=self.calls), alpha=self.noise)
        loss_M = 0.5 * self.a * ((weights_MD - self.b) ** 2).sum(-1)
        return Value(loss_M, out, -self.num_data * loss_M)


def run(method: tb.IVON, density: Any, steps: int, size: int, *, kept: int = 1) -> tuple[State, list[Tensor], list]:
    """The last state, the precisions of the last steps, and the infos of all."""
    state = method.init(density, torch.zeros(1, size, dtype=torch.float64), {}, seeds=[3], steps_per_epoch=steps)
    precisions, infos = [], []
    for number in range(steps):
        state, info = method.step(density, state, ROWS, donate=True)
        infos.append(info)
        if number >= steps - kept:
            precisions.append(state.precision_MD.clone())
    return state, precisions, infos


def transcribed(
    m: np.ndarray,
    gradients: Any,
    *,
    steps: int,
    draws: int,
    antithetic: bool,
    ess: float,
    delta: np.ndarray,
    **rule: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The published rule, coordinate by coordinate arrays and h by its own name: mean, Hessian and momentum."""
    h, g = np.full_like(m, rule["h0"]), np.zeros_like(m)
    b1, b2 = rule["b1"], rule["b2"]
    for t in range(1, steps + 1):
        sigma = 1 / np.sqrt(ess * (h + delta))
        g_hat, h_hat = np.zeros_like(m), np.zeros_like(m)
        for s in range(draws):
            stream = mix(Purpose.WEIGHT_NOISE, t - 1, s // 2 if antithetic else s)
            eps = fill_normal(torch.empty(len(m), dtype=torch.float64), seed=3, stream=stream).numpy()
            theta = m + (-1 if antithetic and s % 2 else 1) * sigma * eps
            gradient = gradients(theta)
            g_hat += gradient / draws
            h_hat += gradient * (theta - m) / sigma**2 / draws
        g = b1 * g + (1 - b1) * g_hat
        h = b2 * h + (1 - b2) * h_hat + 0.5 * (1 - b2) ** 2 * (h - h_hat) ** 2 / (h + delta)
        step = (g / (1 - b1**t) + delta * m) / (h + delta)
        m = m - rule["lr"] * np.clip(step, -rule["clip"], rule["clip"])
    return m, h, g


@pytest.mark.parametrize(("draws", "antithetic"), [(1, False), (3, False), (4, True)])
@pytest.mark.parametrize("clip", [None, 0.02])
def test_steps_are_the_published_rule(draws: int, antithetic: bool, clip: float | None) -> None:
    size, steps = 1500, 25  # more than a piece of the kernel
    density = Quadratics(size, a=2.0, b=0.7, ess=300, delta=0.05)
    method = tb.IVON(
        lr=0.03,
        momentum=0.8,
        hessian_decay=0.97,
        hessian_init=0.4,
        draws=draws,
        antithetic=antithetic,
        clip=clip,
        schedule=tb.Constant(),
        epochs=1,
    )
    state, _, _ = run(method, density, steps, size)
    rule = {"ess": 300.0, "delta": 0.05, "h0": 0.4, "b1": 0.8, "b2": 0.97, "lr": 0.03, "clip": clip or np.inf}
    how: dict[str, Any] = {"steps": steps, "draws": draws, "antithetic": antithetic, **rule}
    m, h, g = transcribed(np.zeros(size), lambda w: 2.0 * (w - 0.7), **how)
    assert_close(state.mean_MD[0], m, rtol=1e-10)
    assert_close(state.precision_MD[0] - 0.05, h, rtol=1e-10, atol=1e-11)
    assert_close(state.momentum_MD[0], g, rtol=1e-9, atol=1e-11)


CASES = [
    # a, b, λ, δ, β₂, τ, antithetic, measured bias of h: from a simulation of the rule by other code
    pytest.param(1.0, 0.0, 1000, 0.1, 0.99, 0.0, False, 0.0089, marks=pytest.mark.study),  # parts of the last
    (1.0, 2.0, 1000, 0.1, 0.99, 0.0, False, 0.179),
    # pairs and noise take the steps of `test_steps_are_the_published_rule`: these are their long-run truth
    pytest.param(1.0, 2.0, 1000, 0.1, 0.995, 0.0, True, 0.0047, marks=pytest.mark.study),
    pytest.param(1.0, 0.0, 1000, 0.1, 0.995, 0.1, False, 0.0297, marks=pytest.mark.study),
    pytest.param(3.0, 2.0, 100, 0.5, 0.995, 0.3, False, 0.222, marks=pytest.mark.study),
]


@pytest.mark.parametrize(("a", "b", "ess", "delta", "decay", "noise", "antithetic", "bias"), CASES)
def test_hessian_and_mean_of_a_quadratic(
    a: float, b: float, ess: int, delta: float, decay: float, noise: float, antithetic: bool, bias: float
) -> None:
    """E h = a + (1 − β₂) [a²/(a + δ) + ½ λ ((δ m*)² + τ²)] and m → ab/(a + δ), over 4,000 coordinates."""
    size, memory = 4000, round(1 / (1 - decay))
    density = Quadratics(size, a=a, b=b, ess=ess, delta=delta, noise=noise)
    method = tb.IVON(
        hessian_decay=decay,
        hessian_init=a,
        lr=0.02,
        draws=2 if antithetic else 1,
        antithetic=antithetic,
        schedule=tb.Constant(),
        epochs=1,
    )
    state, precisions, _ = run(method, density, 18 * memory, size, kept=10 * memory)
    h_D = torch.stack(precisions).mean((0, 1)) - delta
    error = float(h_D.std()) / math.sqrt(size)
    mode = a * b / (a + delta)
    pull = 0.0 if antithetic else (delta * mode) ** 2  # of opposite sign in a pair, whose z² are the same
    formula = (1 - decay) * (a**2 / (a + delta) + 0.5 * ess * (pull + noise**2))
    assert abs(float(h_D.mean()) - a - bias) < 4 * error + 0.03 * bias
    assert abs(formula - bias) < 0.05 * bias
    assert float(state.mean_MD.mean()) == pytest.approx(mode, abs=1e-3 + 4 * float(state.mean_MD.std()) / size**0.5)


def test_precision_at_most_halves_and_stays_positive() -> None:
    """With u = (1 − β₂)(ĥ − h)/(h + δ) it is multiplied by 1 + u + ½u² ≥ ½, whatever the gradients."""
    size = 2000
    moments = Moments(normal(1, size), normal(1, size, seed=1).exp(), torch.zeros(1, size, dtype=torch.float64))
    penalty = Penalty(*torch.zeros(2, 1, dtype=torch.float64))
    rates = Rates(ess=50.0, lr=0.1, momentum=0.9, unbias=10.0, hessian=0.9)
    smallest = math.inf
    for number in range(60):
        before, weights_SMD = moments.precision_MD.clone(), torch.empty(1, 1, size, dtype=torch.float64)
        passes.draw(moments, penalty, weights_SMD[0], ess=50.0, seeds=[1], stream=number)
        gradient_SMD = 30 * normal(1, 1, size, seed=number + 7)
        passes.update(moments, penalty, rates, gradient_SMD=gradient_SMD, weights_SMD=weights_SMD)
        factor = moments.precision_MD / before
        assert float(factor.min()) >= 0.5
        smallest = min(smallest, float(factor.min()))
    assert smallest < 0.5 + 1e-4  # the bound is reached


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("each", [True, False])
def test_kernel_equals_tensor_operations(dtype: torch.dtype, each: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if passes._library() is None:
        pytest.skip("kernels cannot be built here")
    count, tight = (
        2501,
        {"rtol": 1e-12 if dtype == torch.float64 else 2e-5, "atol": 1e-13 if dtype == torch.float64 else 1e-6},
    )
    actual: list[list[Tensor]] = []
    for kernel in (True, False):
        if not kernel:
            monkeypatch.setattr(passes, "_library", lambda: None)
        parts = [normal(3, count, seed=s).to(dtype) for s in range(3)]
        moments = Moments(parts[0], parts[1].exp(), parts[2])
        size = count if each else 1
        penalty = Penalty(normal(size, seed=4).to(dtype), normal(size, seed=5).to(dtype).exp())
        weights_SMD = torch.empty(2, 3, count, dtype=dtype)
        sums = [
            passes.draw(moments, penalty, weights_SMD[s], ess=70.0, seeds=[1, 2, 3], stream=9, sign=1 - 2 * s)
            for s in range(2)
        ]
        assert_close(weights_SMD[0] + weights_SMD[1], 2 * moments.mean_MD, rtol=1e-5, atol=1e-5)
        rates = Rates(ess=70.0, lr=0.1, momentum=0.9, unbias=2.0, hessian=0.02, clip=0.7)
        gradient_SMD = normal(2, 3, count, seed=6).to(dtype)
        drawn = weights_SMD.clone()
        passes.update(moments, penalty, rates, gradient_SMD=gradient_SMD, weights_SMD=weights_SMD)
        actual.append([drawn, *sums, *moments])
    for ours, theirs in zip(*actual, strict=True):
        assert_close(ours, theirs, **tight)


def test_sum_of_logarithms_is_exact_over_many_magnitudes() -> None:
    """Products are collected before they leave the range of a double, whatever the numbers and their count."""
    for dtype, span in ((torch.float32, 85.0), (torch.float64, 600.0)):
        for size in (1, 15, 16, 17, 113, 1024, 5000):
            precision_MD = (
                (
                    span
                    * (2 * torch.rand(1, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size)) - 1)
                )
                .exp()
                .to(dtype)
            )
            moments = Moments(torch.zeros(1, size, dtype=dtype), precision_MD, torch.zeros(1, size, dtype=dtype))
            penalty = Penalty(*torch.zeros(2, 1, dtype=dtype))
            sums_M2 = passes.draw(moments, penalty, torch.empty(1, size, dtype=dtype), ess=1.0, seeds=[1], stream=0)
            assert_close(sums_M2[0, 0], precision_MD.double().log().sum(), rtol=1e-12, atol=1e-9)


INPUTS = normal(60, 4) * torch.tensor([1.0, 0.5, 2.0, 0.2]).double() + 0.5 * normal(60, 1, seed=9)
TARGETS = INPUTS @ torch.tensor([1.0, -2.0, 0.5, 0.0]).double() + 0.7 * normal(60, seed=1)
LINEAR = LinearGaussian(INPUTS, TARGETS, 0.8, 0.7)


def linear_model(**settings: Any) -> tb.Model:
    return tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(0.7), tb.priors.Normal(0.8), **settings)


def exact_precision(temperature: float = 1.0) -> Tensor:
    """The diagonal of the exact posterior's precision."""
    return torch.linalg.inv(LINEAR.posterior()[1]).diagonal() / temperature


FIT: dict[str, Any] = {"epochs": 700, "batch_size": 60, "draws": 32, "lr": 0.3, "hessian_decay": 0.992}


def fitted(model: tb.Model, **settings: Any) -> Any:
    data = (INPUTS, TARGETS.unsqueeze(1))
    return tb.fit(model, data, tb.IVON(antithetic=True, **{**FIT, **settings}), callbacks=())


@pytest.mark.study  # as the next test
def test_optimum_of_a_linear_gaussian_model() -> None:
    """Mean: the exact one. Precision: the diagonal of the exact precision, to the noise of h and its bias."""
    posterior = fitted(linear_model(), members=2)
    for m in range(2):
        assert_close(posterior.mean_MD[m], LINEAR.posterior()[0], atol=2e-3)
        assert_close(1 / posterior.covariance.diagonal()[m] / exact_precision(), torch.ones(5), atol=0.08)


@pytest.mark.slow
# steps are those of the rule, and biased as it is, above; the target of BSAM, which is tempered there, is the same
@pytest.mark.study
@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
def test_temperature(tempering: Any) -> None:
    """Joint: the precision is divided by T and the mean stays; likelihood only: as a noise of √T times the size."""
    temperature = 4.0
    posterior = fitted(linear_model(temperature=temperature, tempering=tempering))
    like = LINEAR if tempering == "joint" else replace(LINEAR, noise_scale=0.7 * temperature**0.5)
    mean, covariance = like.posterior()
    precision = torch.linalg.inv(covariance).diagonal() / (temperature if tempering == "joint" else 1.0)
    assert_close(posterior.mean_MD[0], mean, atol=4e-3)
    assert_close(1 / posterior.covariance.diagonal()[0] / precision, torch.ones(5), atol=0.08)


def infos_at(model: tb.Model, mean_D: Tensor, precision_D: Tensor, *, data: Any, count: int) -> dict[str, Tensor]:
    """What steps report of one q, for 100 members that draw noise of their own, with new noise in each step."""
    method, members, inputs = tb.IVON(plan="vmap"), 100, data[0]
    density = tb.LogDensity(model, len(inputs), plan="vmap", training=True)
    mean_MD = mean_D.expand(members, -1).clone()
    state = method.init(density, mean_MD, {}, seeds=range(members), steps_per_epoch=count)
    state = replace(state, precision_MD=precision_D.expand(members, -1) / target_of(density, mean_D).ess)
    batch = tb.Batch(*data).map(lambda part: part.expand(members, *part.shape))
    steps = [method.step(density, replace(state, step=t), batch)[1].means() for t in range(count // members)]
    return {name: torch.cat([step[name] for step in steps]) for name in ("kl", "elbo", "loss")}


def test_elbo_and_its_parts_of_a_linear_gaussian_model() -> None:
    """KL in closed form; at the optimum the mean over draws of the ELBO is below the evidence by the known gap."""
    mean, precision = LINEAR.posterior()[0], exact_precision()
    data = (INPUTS, TARGETS.unsqueeze(1))
    seen = infos_at(linear_model(), mean, precision, data=data, count=3000)
    q = Normal(mean, precision**-0.5)
    kl = float(kl_divergence(q, Normal(torch.zeros(5).double(), 0.8)).sum())
    assert_close(seen["kl"], torch.full((3000,), kl, dtype=torch.float64), rtol=1e-9)
    elbo_T = seen["elbo"]
    gap = 0.5 * float(precision.log().sum() - torch.logdet(torch.linalg.inv(LINEAR.posterior()[1])))
    assert gap > 0.2
    expected = LINEAR.log_evidence() - gap
    assert float(elbo_T.mean()) == pytest.approx(expected, abs=4 * float(elbo_T.std()) / 3000**0.5)
    assert_close(elbo_T, -60 * seen["loss"], rtol=1e-12)


PRIORS: dict[str, Any] = {
    "each its own": {"weight": tb.priors.Normal(0.3, 0.5), "bias": tb.priors.Normal(2.0)},
    "laplace": tb.priors.Laplace(0.4),
    "student": tb.priors.StudentT(4.0, 0.5),
    "mixture": tb.priors.NormalMixture((0.9, 0.05), (1.0, 3.0)),
    "half flat": {"weight": tb.priors.Flat(), "bias": tb.priors.Normal(2.0)},
}


@pytest.mark.parametrize("name", PRIORS)
def test_divergence_from_any_prior(name: str) -> None:
    """Its mean over draws is that of log q − log p over independent draws of q; a flat prior has log p = 0."""
    model = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(0.7), PRIORS[name])
    mean, precision = normal(5, seed=3), torch.tensor([3.0, 10.0, 1.0, 40.0, 6.0]).double()
    seen = infos_at(model, mean, precision, data=(INPUTS, TARGETS.unsqueeze(1)), count=1500)
    kl_T = seen["kl"]
    q = Normal(mean, precision**-0.5)
    weights = mean + precision**-0.5 * normal(50_000, 5, seed=8)
    terms = q.log_prob(weights).sum(-1) - model.log_prior(weights)
    error = float(kl_T.std()) / 1500**0.5 + float(terms.std()) / 50_000**0.5
    assert float(kl_T.mean()) == pytest.approx(float(terms.mean()), abs=4 * error + 1e-12)


@pytest.mark.slow
def test_optimum_under_a_prior_that_is_not_normal() -> None:
    """E_q of the log joint density's gradient is 0, and of its second derivative −1/variance: for Student's t."""
    prior = tb.priors.StudentT(3.0, 0.5)
    model = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(0.7), prior)
    posterior = fitted(model, epochs=450, draws=24)
    mean, variance = posterior.mean_MD[0], posterior.covariance.diagonal()[0]
    weights = (mean + variance.sqrt() * normal(50_000, 5, seed=2)).requires_grad_()
    (slope,) = torch.autograd.grad(prior.log_prob(weights).sum(), weights, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), weights)
    features = LINEAR.features(INPUTS)
    gram = features.T @ features / 0.7**2
    gradient = features.T @ TARGETS / 0.7**2 - gram @ mean + slope.detach().mean(0)
    assert_close(gradient * variance.sqrt(), torch.zeros(5), atol=0.03)  # in units of the change over one deviation
    assert_close((gram.diagonal() - bend.mean(0)) * variance, torch.ones(5), atol=0.08)


@pytest.mark.study  # to the rule, which is that of the first test, it is a weight like others
@pytest.mark.slow
def test_learned_noise_is_one_of_the_weights() -> None:
    """w = log σ of N residuals: E_q [N − RSS e^{−2w} + w/4] = 0, and the precision is E_q [2 RSS e^{−2w}] + 1/4."""
    likelihood = tb.likelihoods.Gaussian("learned", prior=tb.priors.Normal(2.0))
    model = tb.Model(nn.Linear(4, 1).double(), likelihood, tb.priors.Normal(0.8))
    posterior = fitted(model, epochs=800)
    mean, variance = float(posterior.mean_MD[0, -1]), float(posterior.covariance.diagonal()[0, -1])
    features, own = LINEAR.features(INPUTS), posterior.mean_MD[0, :-1]
    residual = TARGETS - features @ own
    spread = (features**2 @ posterior.covariance.diagonal()[0, :-1]).sum()
    total = float(residual @ residual + spread)  # E_q of the residual sum of squares
    shrunk = math.exp(-2 * mean + 2 * variance)  # E_q e^{−2w}
    assert 60 - total * shrunk + mean / 4 == pytest.approx(0.0, abs=0.6)
    assert 1 / variance == pytest.approx(2 * total * shrunk + 0.25, rel=0.08)


def test_length_of_a_run_sets_how_fast_the_hessian_is_forgotten() -> None:
    assert tb.IVON().decay(2000) == pytest.approx(1 - 3 / 2000)
    assert tb.IVON(hessian_decay=0.99999).decay(10) == 0.99999
    assert tb.IVON().decay(2) == 0.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"antithetic": True}, "come in pairs"),
        ({"lr": -1.0}, "lr"),
        ({"hessian_decay": 1.5}, "hessian_decay"),
        ({"hessian_init": 0.0}, "hessian_init"),
        ({"draws": 0}, "draws"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_refused_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tb.IVON(**settings)


def test_nll_of_a_density_is_without_prior_and_temperature() -> None:
    for tempering in ("joint", "likelihood"):
        model = linear_model(temperature=3.0, tempering=tempering)
        data = tb.Batch(INPUTS, TARGETS.unsqueeze(1))
        weights_MD = normal(2, 5)
        for plan in ("loop", "native", "vmap"):
            actual = tb.LogDensity(model, 60, data, plan=plan).nll(weights_MD)  # type: ignore[arg-type]
            leaf = weights_MD.clone().requires_grad_()
            mean = torch.stack([-model.log_likelihood(row, data).mean() for row in leaf])
            assert_close(actual.log_density, mean, rtol=1e-9)
            assert_close(actual.gradient, torch.autograd.grad(mean.sum(), leaf)[0], rtol=1e-9, atol=1e-11)


def test_posterior_that_is_the_prior_is_a_problem() -> None:
    """Pure noise under a wide prior: the best factorised Gaussian hardly leaves the prior."""
    model = tb.Model(nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1)), tb.likelihoods.Gaussian(2.9))
    data = (normal(40, 3).float(), normal(40, 1, seed=1).float())
    with pytest.warns(tb.ProblemWarning, match="is the prior"):
        tb.fit(model, data, tb.IVON(hessian_decay=0.96, draws=2, epochs=200, batch_size=40), callbacks=())


def test_variances_that_never_moved_are_a_problem() -> None:
    method = tb.IVON(epochs=20, hessian_decay=0.99999)
    with pytest.warns(tb.ProblemWarning, match="hessian_decay"):
        tb.fit(linear_model(), (INPUTS, TARGETS.unsqueeze(1)), method, callbacks=())
