"""Radial posteriors: the law of their draws, their density and entropy, and the bound against quadrature."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density.density import LogDensity
from torchbayes.methods.optimise.descent import start
from torchbayes.methods.variational.families import RadialFamily, Slopes
from torchbayes.methods.variational.objective import Drawing, differentiate
from torchbayes.posteriors.layers.radial import directions, entropy, lengths


def linear(inputs: int = 4, outputs: int = 1, **settings: Any) -> tb.Model:
    net = nn.Linear(inputs, outputs, bias=settings.pop("bias", False)).double()
    likelihood = settings.pop("likelihood", tb.likelihoods.Gaussian(0.6))
    return tb.Model(net, likelihood, settings.pop("prior", tb.priors.Normal(0.8)))


def posterior_of(model: tb.Model, members: int = 1) -> tb.RadialPosterior:
    size = model.layout.size
    return tb.RadialPosterior(model, normal(members, size, seed=3), normal(members, size, seed=4).abs() + 0.2)


def test_radii_are_half_normal_and_directions_uniform() -> None:
    posterior = posterior_of(linear(6, 3, bias=True))
    drawn = (posterior.sample(20_000, seed=1) - posterior.mean_MD) / posterior.scale_MD
    for part in drawn.split([18, 3], dim=1):
        radius = part.norm(dim=1)
        assert stats.kstest(radius.numpy(), stats.halfnorm.cdf).pvalue > 1e-3
        unit = part / radius.unsqueeze(1)
        n = unit.shape[1]
        covariance = unit.T @ unit / len(unit)
        assert (covariance - torch.eye(n).double() / n).abs().max() < 6 / math.sqrt(len(unit) * n)
        assert unit.mean(0).abs().max() < 5 / math.sqrt(len(unit) * n)
        assert abs(np.corrcoef(radius.numpy(), part.abs().max(1).values.numpy() / radius.numpy())[0, 1]) < 0.04
    both = drawn[:, :18].norm(dim=1), drawn[:, 18:].norm(dim=1)
    assert abs(np.corrcoef(both[0].numpy(), both[1].numpy())[0, 1]) < 0.04  # each parameter has a radius of its own


def test_draws_are_not_those_of_a_normal_law() -> None:
    """In 400 dimensions a normal law has all draws at 20 ± 2 standard deviations; here they begin at 0."""
    u = directions(normal(5000, 401), (400,))
    length = lengths(u, (400,))
    assert float((length < 0.5).double().mean()) == pytest.approx(stats.halfnorm.cdf(0.5), abs=0.03)
    assert float(stats.kurtosis(u[:, 0].numpy())) > 1.5  # of r² it is 3 E r⁴/(E r²)² − 3 = 6 for large n


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_entropy_is_the_mean_of_the_density(size: int) -> None:
    model = linear(size)
    posterior = posterior_of(model)
    drawn = -posterior.log_prob(posterior.sample(10_000, seed=2))
    exact = float(posterior.scale_MD.log().sum()) + entropy([size])
    assert abs(float(drawn.mean()) - exact) < 5 * float(drawn.std()) / 100
    if size == 1:
        w = normal(9, 1, seed=5)
        law = torch.distributions.Normal(posterior.mean_MD[0, 0], posterior.scale_MD[0, 0])
        assert_close(posterior.log_prob(w), law.log_prob(w[:, 0]))
        assert_close(entropy([1]), 0.5 * math.log(2 * math.pi * math.e))


def polar(count: int = 120) -> tuple[Tensor, Tensor]:
    """Points u in the plane, and their shares of the law: nodes of radius by Gauss–Legendre, of angle even."""
    nodes, shares = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(count))
    radius = 4.5 * (nodes + 1)
    angle = torch.arange(64, dtype=torch.float64) * (2 * math.pi / 64)
    density = 2 * torch.exp(-0.5 * radius.square()) / math.sqrt(2 * math.pi) * 4.5 * shares
    points = radius.view(-1, 1, 1) * torch.stack([angle.cos(), angle.sin()], -1)
    return points.reshape(-1, 2), (density.unsqueeze(1) / 64).expand(count, 64).reshape(-1)


def test_density_integrates_to_one_in_the_plane() -> None:
    posterior = posterior_of(linear(2), 2)
    nodes, shares = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(600))
    radius, angle = 6 * (nodes + 1), torch.arange(600, dtype=torch.float64) * (2 * math.pi / 600)
    unit = radius.view(-1, 1, 1) * torch.stack([angle.cos(), angle.sin()], -1)
    alone = tb.RadialPosterior(posterior.model, posterior.mean_MD[:1], posterior.scale_MD[:1])
    q = alone.log_prob(alone.mean_MD[0] + alone.scale_MD[0] * unit).exp()
    area = radius * 6 * shares * alone.scale_MD.prod()
    assert_close((q.mean(1) * 2 * math.pi * area).sum(), 1.0, rtol=1e-8)
    w = normal(7, 2, seed=8)
    each = [tb.RadialPosterior(posterior.model, posterior.mean_MD[m : m + 1], posterior.scale_MD[m : m + 1]).log_prob(w)
            for m in (0, 1)]  # fmt: skip
    assert_close(posterior.log_prob(w), torch.stack(each).logsumexp(0) - math.log(2))


def test_gradient_is_that_of_the_draws() -> None:
    family = RadialFamily((5, 1, 3))
    parameters, noise = 0.3 * normal(2, 18, seed=1), normal(2, 4, 12, seed=2)
    slopes = Slopes(normal(2, 4, 9, seed=3), normal(2, 9, seed=4), normal(2, 9, seed=5), 0.7)
    leaf = parameters.clone().requires_grad_()
    total = (family.draw(leaf, noise) * slopes.weights_MSD).sum() + (leaf[:, :9] * slopes.mean_MD).sum()
    total = total + (family.variance(leaf) * slopes.variance_MD).sum() + 0.7 * family.entropy(leaf).sum()
    out = torch.empty_like(parameters)
    family.pull(parameters, noise, slopes, out=out)
    assert_close(out, torch.autograd.grad(total, leaf)[0])
    both = family.draw(parameters, -noise) + family.draw(parameters, noise)
    assert_close(both, 2 * parameters[:, None, :9].expand(2, 4, 9))
    begun = family.start(torch.zeros(1, 9).double(), 0.3 + torch.zeros(1, 9).double(), lambda t: t)
    assert_close(family.variance(begun), 0.09 + torch.zeros(1, 9).double())


@pytest.mark.parametrize(
    "prior",
    [tb.priors.Normal(0.8), pytest.param(tb.priors.Laplace(0.5), marks=pytest.mark.study)],
    ids=["normal", "laplace"],
)
def test_the_bound_is_that_of_quadrature_in_the_plane(prior: Any) -> None:
    model = linear(2, likelihood=tb.likelihoods.Bernoulli(), prior=prior)
    x = normal(6, 2, seed=1)
    y = (x[:, :1] + normal(6, 1, seed=2) > 0).double()
    parameters = torch.tensor([[0.5, -0.3, -0.2, 0.3]], dtype=torch.float64)
    points, shares = polar()
    weights = parameters[0, :2] + parameters[0, 2:].exp() * points
    nll = -torch.distributions.Bernoulli(logits=weights @ x.T).log_prob(y[:, 0]).mean(1)
    expected_nll = float((shares * nll).sum())
    expected_kl = -float((shares * model.log_prior(weights)).sum()) - (0.1 + entropy([2]))
    draws, family = 350, RadialFamily(model.layout.sizes)
    begin = start(parameters, {}, [3], optimizer=tb.SGD(), epochs=1, steps_per_epoch=1)
    batch = tb.Batch(x.unsqueeze(0), y.unsqueeze(0))
    drawing = Drawing(family, "weights", draws, antithetic=False, normal=False)
    terms = differentiate(LogDensity(model, 6, None, training=True), begin, batch, drawing=drawing, kl_weight=1.0)
    error = float((shares * (nll - expected_nll).square()).sum()) ** 0.5 / draws**0.5
    assert abs(float(terms.nll_M) - expected_nll) < 5 * error
    if isinstance(prior, tb.priors.Normal):
        assert_close(terms.kl_M, [expected_kl], rtol=1e-6)
    else:
        assert abs(float(terms.kl_M) - expected_kl) < 0.1
    assert_close(terms.loss_M, terms.nll_M + terms.kl_M / 6)


@pytest.mark.study  # the bound is that of quadrature and its gradient that of the draws, above
def test_a_fit_meets_the_optimum_of_a_linear_model(tmp_path: Path) -> None:
    """Weights of a parameter are uncorrelated, so that the best variances are 1/Λ_ii, as of independent normals."""
    model, x = linear(), normal(30, 4, seed=1)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]], dtype=torch.float64) + 0.6 * normal(30, 1, seed=2)
    precision = x.T @ x / 0.36 + torch.eye(4, dtype=torch.float64) / 0.64
    mean = torch.linalg.solve(precision, x.T @ y[:, 0] / 0.36)
    about: dict[str, Any] = {"draws": 8, "antithetic": True, "initial_scale": 0.2}
    method = tb.VI("radial", epochs=900, kl_weight=1.0, optimizer=tb.Adam(0.015), **about)
    posterior = tb.fit(model, (x, y), method, start=mean + 0.1, callbacks=())
    assert isinstance(posterior, tb.RadialPosterior)
    assert_close(posterior.mean_MD[0], mean, rtol=0.0, atol=0.01)
    assert_close(posterior.scale_MD[0].square() / 4, 1 / precision.diagonal(), rtol=0.06)
    loaded = tb.load(posterior.save(tmp_path / "radial.safetensors"), model)
    assert torch.equal(loaded.sample(5, seed=2), posterior.sample(5, seed=2))
    assert torch.equal(posterior.sample(9, seed=2)[:5], posterior.sample(5, seed=2))
    assert tb.predict(posterior, x).outputs_SBK.shape[0] == 30


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # a few steps move no scale
def test_learned_noise_and_members_are_taken() -> None:
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))
    model = tb.Model(net, tb.likelihoods.Gaussian("learned", outputs=2))
    x, y = normal(60, 2, seed=1).float(), normal(60, 2, seed=2).float()
    method = tb.VI("radial", members=2, epochs=60, kl_weight=0.1)
    posterior = tb.fit(model, (x, x.sin() + 0.3 * y), method, callbacks=())
    assert posterior.members == 2
    assert tb.evaluate(posterior, (x, x.sin() + 0.3 * y)).metrics["rmse"] < 1.0


def test_what_needs_a_normal_law_is_refused() -> None:
    posterior = posterior_of(linear())
    with pytest.raises(TypeError, match="must be a Laplace posterior or a Gaussian one"):
        tb.Linearised(posterior)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is for independent weights with noise in the layers"):
        tb.VI("radial", estimator="local")
    model, data = linear(prior=tb.priors.LogUniform()), (normal(9, 4), normal(9, 1))
    with pytest.raises(ValueError, match="posterior is improper"):
        tb.fit(model, data, tb.VI("radial"), callbacks=())
    with pytest.raises(ValueError, match="`scale_MD` must hold a number above 0"):
        tb.RadialPosterior(posterior.model, posterior.mean_MD, 0 * posterior.scale_MD)
