"""Variational inference against closed forms: optima, bounds and divergences of linear-Gaussian models."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from tests.laws.cases import normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density.density import LogDensity
from torchbayes.methods.optimise.descent import start
from torchbayes.methods.variational import objective as objective_module
from torchbayes.methods.variational.families import DenseFamily, DiagonalFamily, Family, LowRankFamily, Slopes
from torchbayes.methods.variational.objective import Drawing, Terms, differentiate
from torchbayes.methods.variational.weighting import Halving, WarmUp
from torchbayes.model.batches.batch import Batch
from torchbayes.model.priors.bound import Segment
from torchbayes.model.priors.expected import add_expected_, is_closed
from torchbayes.model.priors.noise import LogInverseChi

ROWS, FEATURES, NOISE, SCALE = 30, 4, 0.6, 0.8
INPUTS = normal(ROWS, FEATURES) @ (torch.eye(FEATURES, dtype=torch.float64) + 0.4)
TARGETS = (INPUTS @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64) + NOISE * normal(ROWS, seed=1))[:, None]
FAMILY = DiagonalFamily()
FAMILIES: dict[str, Family] = {"diagonal": FAMILY, "low_rank": LowRankFamily(2), "dense": DenseFamily()}


def linear(**settings: Any) -> tb.Model:
    prior = settings.pop("prior", tb.priors.Normal(SCALE))
    return tb.Model(nn.Linear(FEATURES, 1, bias=False).double(), tb.likelihoods.Gaussian(NOISE), prior, **settings)


def precision(likelihood_scale: float = 1.0, prior_scale: float = 1.0) -> Tensor:
    """XᵀX/σ² + I/s²."""
    gram = INPUTS.T @ INPUTS / NOISE**2
    return likelihood_scale * gram + prior_scale * torch.eye(FEATURES, dtype=torch.float64) / SCALE**2


def mean() -> Tensor:
    return torch.linalg.solve(precision(), INPUTS.T @ TARGETS[:, 0] / NOISE**2)


def log_evidence() -> float:
    covariance = SCALE**2 * INPUTS @ INPUTS.T + NOISE**2 * torch.eye(ROWS, dtype=torch.float64)
    zero = torch.zeros(ROWS, dtype=torch.float64)
    return float(torch.distributions.MultivariateNormal(zero, covariance).log_prob(TARGETS[:, 0]))


def parameters_of(family: Family, mean_D: Tensor, covariance_DD: Tensor) -> Tensor:
    """Parameters of one member with a mean and a covariance (its diagonal, for the diagonal family)."""
    root = torch.linalg.cholesky(covariance_DD.flip(0, 1)).flip(0, 1)  # upper triangular
    if isinstance(family, DenseFamily):
        above = root[*torch.triu_indices(FEATURES, FEATURES, offset=1)]
        return torch.cat([mean_D, root.diagonal().log(), above]).unsqueeze(0)
    return torch.cat([mean_D, 0.5 * covariance_DD.diagonal().log()]).unsqueeze(0)


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let noise be ±√D e_i, whose mean and covariance are those of normals: exact for quadratic objectives."""
    rows = math.sqrt(FEATURES) * torch.eye(FEATURES, dtype=torch.float64).flatten()
    monkeypatch.setattr(objective_module, "normals", lambda *_, like: rows.expand_as(like))


exactly = pytest.mark.usefixtures("points")


def objective(
    family: Family, parameters_MP: Tensor, *, draws: int = 2 * FEATURES, **settings: Any
) -> tuple[Terms, Tensor]:
    """The objective on all rows with antithetic draws, and its gradient."""
    weight = settings.pop("kl_weight", 1.0)
    density = LogDensity(linear(**settings), ROWS, None, training=True)
    begin = start(parameters_MP, {}, [3], optimizer=tb.SGD(), epochs=1, steps_per_epoch=1)
    batch = Batch(INPUTS.unsqueeze(0), TARGETS.unsqueeze(0))
    drawing = Drawing(family, "weights", 2 * FEATURES, antithetic=True)
    return differentiate(density, begin, batch, drawing=drawing, kl_weight=weight), begin.gradient_MD


# --- optima: where the gradient, averaged over draws, is zero ---


@exactly
@pytest.mark.parametrize(("temperature", "tempering"), [(1.0, "joint"), (0.3, "joint"), (2.5, "likelihood")])
def test_the_mean_field_optimum_has_the_diagonal_of_the_precision(temperature: float, tempering: Any) -> None:
    """1/σ_i² = Λ_ii, not 1/(Λ⁻¹)_ii."""
    cold = (1 / temperature, 1 / temperature) if tempering == "joint" else (1 / temperature, 1.0)
    exact = precision(*cold)
    mode = torch.linalg.solve(exact, cold[0] * INPUTS.T @ TARGETS[:, 0] / NOISE**2)
    about = {"temperature": temperature, "tempering": tempering}
    _, gradient = objective(FAMILY, parameters_of(FAMILY, mode, torch.diag(1 / exact.diagonal())), **about)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-10, rtol=0)
    _, wrong = objective(FAMILY, parameters_of(FAMILY, mode, torch.linalg.inv(exact)), **about)
    assert float(wrong[0, FEATURES:].abs().max()) * ROWS > 0.05


@exactly
def test_the_divergence_counts_by_its_weight() -> None:
    """At the optimum under β, 1/σ_i² = (XᵀX)_ii/(βσ²) + 1/s²."""
    beta = 0.25
    exact = precision(1 / beta)
    mode = torch.linalg.solve(exact, INPUTS.T @ TARGETS[:, 0] / NOISE**2 / beta)
    _, gradient = objective(FAMILY, parameters_of(FAMILY, mode, torch.diag(1 / exact.diagonal())), kl_weight=beta)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-10, rtol=0)


@exactly
def test_the_dense_optimum_is_the_posterior_and_its_bound_the_evidence() -> None:
    terms, gradient = objective(DenseFamily(), parameters_of(DenseFamily(), mean(), torch.linalg.inv(precision())))
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-10, rtol=0)
    assert -ROWS * float(terms.loss_M[0]) == pytest.approx(log_evidence(), abs=1e-9)
    assert -ROWS * float(terms.nll_M[0]) - float(terms.kl_M[0]) == pytest.approx(log_evidence(), abs=1e-9)


@exactly
def test_the_gap_of_mean_field_is_known() -> None:
    """log p(D) − ELBO = ½ (Σ log Λ_ii − log det Λ), and the bound lies below the evidence."""
    exact = precision()
    terms, _ = objective(FAMILY, parameters_of(FAMILY, mean(), torch.diag(1 / exact.diagonal())))
    gap = log_evidence() + ROWS * float(terms.loss_M[0])
    expected = 0.5 * float(exact.diagonal().log().sum() - torch.logdet(exact))
    assert expected > 0.1
    assert gap == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("structure", ["diagonal", pytest.param("dense", marks=pytest.mark.study)])
def test_a_fit_arrives_at_the_optimum(structure: Any) -> None:
    settings = {"epochs": 400, "draws": 16, "antithetic": True, "optimizer": tb.Adam(0.05), "kl_weight": 1.0}
    actual = tb.fit(linear(), (INPUTS, TARGETS), tb.VI(structure, **settings), callbacks=())
    assert isinstance(actual, tb.Gaussian)
    exact = precision()
    covariance = torch.diag(1 / exact.diagonal()) if structure == "diagonal" else torch.linalg.inv(exact)
    torch.testing.assert_close(actual.mean_MD[0], mean(), rtol=1e-6, atol=1e-6)
    assert float((actual.covariance.dense()[0] - covariance).norm() / covariance.norm()) < 0.08


# --- families ---


@pytest.mark.parametrize("name", FAMILIES)
def test_families_agree_with_their_dense_matrices(name: str) -> None:
    family = FAMILIES[name]
    parameters = family.start(normal(2, FEATURES), normal(2, FEATURES, seed=1).exp(), lambda like: normal(*like.shape))
    parameters = parameters + 0.3 * normal(*parameters.shape, seed=2)
    structure = family.covariance(parameters)
    dense = structure.dense()
    torch.testing.assert_close(family.variance(parameters), dense.diagonal(dim1=1, dim2=2))
    expected = 0.5 * (torch.logdet(dense) + FEATURES * math.log(2 * math.pi * math.e))
    torch.testing.assert_close(family.entropy(parameters), expected)
    size = family.noise_size(FEATURES)
    drawn = family.draw(parameters, torch.eye(size, dtype=torch.float64).expand(2, size, size))
    root = drawn - parameters[:, None, :FEATURES]  # the rows are those of the root
    torch.testing.assert_close(root.mT @ root, dense)


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_pull_of_a_family_is_that_of_autograd(name: str, draws: int) -> None:
    family = FAMILIES[name]
    parameters = family.start(normal(2, FEATURES), normal(2, FEATURES, seed=1).exp(), lambda like: normal(*like.shape))
    noise = normal(2, draws, family.noise_size(FEATURES), seed=3)
    by_mean, by_variance = normal(2, 2, FEATURES, seed=5).unbind()
    slopes = Slopes(normal(2, draws, FEATURES, seed=4), by_mean, by_variance, -0.7)
    leaf = parameters.clone().requires_grad_()
    total = (family.draw(leaf, noise) * slopes.weights_MSD).sum() + (leaf[:, :FEATURES] * by_mean).sum()
    dense = family.covariance(leaf).dense()
    total = total + (dense.diagonal(dim1=1, dim2=2) * by_variance).sum() - 0.7 * 0.5 * torch.logdet(dense).sum()
    (expected,) = torch.autograd.grad(total, leaf)
    actual = torch.empty_like(parameters)
    family.pull(parameters, noise, slopes, out=actual)
    torch.testing.assert_close(actual, expected)


# --- expectations of priors ---

PRIORS = {
    "normal": tb.priors.Normal(0.7, 0.3),
    "laplace": tb.priors.Laplace(0.5, -0.2),
    "noise": LogInverseChi(3.0, 1.7),
    "flat": tb.priors.Flat(),
}


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize(("mu", "sigma"), [(0.4, 0.3), (-1.0, 0.02), (0.0, 1.5)])
def test_expected_log_priors_by_quadrature(name: str, mu: float, sigma: float) -> None:
    prior = PRIORS[name]
    segment = Segment(prior, slice(0, 1))  # type: ignore[arg-type]
    assert is_closed(segment)

    def exact(m: float, s: float) -> float:
        def integrand(z: float) -> float:
            at = torch.tensor([m + s * z], dtype=torch.float64)
            return float(prior.log_prob(at)) * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)

        kink = sorted({-12.0, min(max((-0.2 - m) / s, -12.0), 12.0), 12.0})
        return sum(quad(integrand, a, b, epsabs=1e-12, limit=400)[0] for a, b in pairwise(kink))

    tensors = [torch.tensor([[value]], dtype=torch.float64) for value in (mu, sigma**2)]
    into = [torch.zeros(1, 1, dtype=torch.float64) for _ in range(2)]
    actual = add_expected_(segment, *tensors, scale=2.0, into=into)
    assert float(actual) == pytest.approx(exact(mu, sigma), abs=1e-8)
    step = 1e-4
    slope = (exact(mu + step, sigma) - exact(mu - step, sigma)) / (2 * step)
    assert float(into[0]) / 2 == pytest.approx(slope, abs=1e-5, rel=1e-5)
    low, high = (math.sqrt(sigma**2 * (1 + sign * step)) for sign in (-1, 1))
    bend = (exact(mu, high) - exact(mu, low)) / (2 * step * sigma**2)
    assert float(into[1]) / 2 == pytest.approx(bend, abs=1e-4, rel=1e-4)


@exactly
def test_a_prior_without_closed_form_is_averaged_over_draws() -> None:
    """A normal prior that is hidden in a torch Distribution has no closed form here, and the same expectation."""
    hidden = torch.distributions.Normal(0.0, torch.tensor(SCALE, dtype=torch.float64))
    parameters = parameters_of(FAMILY, mean(), 0.01 * torch.eye(FEATURES, dtype=torch.float64))
    closed, slope = objective(FAMILY, parameters)
    drawn, other = objective(FAMILY, parameters, prior=hidden)
    assert float(drawn.kl_M) == pytest.approx(float(closed.kl_M), abs=1e-10)
    torch.testing.assert_close(other, slope, atol=1e-10, rtol=0)


# --- weights of the divergence ---


def test_halving_spends_the_divergence_once_an_epoch() -> None:
    weights = [Halving().at(step, steps_per_epoch=5, total_steps=50) for step in range(10)]
    assert sum(weights[:5]) / 5 == pytest.approx(1.0)
    assert weights[:5] == weights[5:]
    assert weights[0] / weights[1] == pytest.approx(2.0)
    assert Halving().at(10_000, steps_per_epoch=2000, total_steps=20_000) == pytest.approx(1000.0)


def test_warm_up_ends_at_one() -> None:
    weights = [WarmUp(0.5).at(step, steps_per_epoch=5, total_steps=10) for step in range(10)]
    assert weights == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"antithetic": True}, "in pairs; got `draws` 1"),
        ({"structure": "dense", "estimator": "local"}, "for independent weights"),
        ({"estimator": "flipout", "antithetic": True, "draws": 2}, "for independent weights"),
        ({"structure": "full"}, "structure"),
        ({"initial_scale": 0.0}, "initial_scale"),
        ({"kl_weight": 0.0}, "kl_weight"),
        ({"draws": 0}, "draws"),
        ({"alpha": -0.5}, "alpha"),
        ({"alpha": 0.5, "draws": 1}, "needs draws to compare, 2 at least; got `draws` 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tb.VI(**settings)


def test_scales_start_at_a_share_of_trained_weights() -> None:
    net = nn.Linear(FEATURES, 1, bias=False).double()
    net.weight.data.copy_(mean())
    model = tb.Model(net, tb.likelihoods.Gaussian(NOISE), tb.priors.Normal())
    method = tb.VI(epochs=1, relative_scale=0.1, kl_weight=1.0, optimizer=tb.SGD(1e-12))
    actual = tb.fit(model, (INPUTS, TARGETS), method, start=net, callbacks=())
    assert isinstance(actual, tb.Gaussian)
    torch.testing.assert_close(actual.mean_MD[0], net.weight.detach()[0])
    torch.testing.assert_close(actual.covariance.diagonal()[0].sqrt(), 0.1 * net.weight.detach()[0].abs())


def test_draws_that_have_lost_what_the_mean_has_learned_are_a_problem() -> None:
    """Scales that cannot shrink in a short run: draws are far off, and the advice is of this method."""
    method = tb.VI(epochs=3, kl_weight=1.0, relative_scale=100.0, optimizer=tb.SGD(1e-9))
    net = nn.Linear(FEATURES, 1, bias=False).double()
    net.weight.data.copy_(mean())
    model = tb.Model(net, tb.likelihoods.Gaussian(NOISE), tb.priors.Normal())
    with pytest.warns(tb.ProblemWarning, match="less likely under draws.*lower `kl_weight`"):
        tb.fit(model, (INPUTS, TARGETS), method, start=net, callbacks=())
