"""The statistical posteriors of the benchmarks: references against closed forms, and what is computed of runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from benchmarks.statistical import references
from benchmarks.statistical.posteriors import POSTERIORS, starts
from benchmarks.statistical.quadrature import Moments, NormalGiven, lattice, on_lattice
from benchmarks.statistical.references import EXACT, FILE, given_scales, reference, ways
from benchmarks.statistical.runs import Run, blackjax, log_density_of, ours
from torch import Tensor
from torch.distributions import Gamma, MultivariateNormal, Normal
from torch.func import grad, jacrev

import torchbayes as tb
from tests.oracles import assert_close, normal

COVARIANCE = torch.tensor([[4.0, 1.9, 0.3], [1.9, 1.0, 0.1], [0.3, 0.1, 0.09]]).double()
MEAN = torch.tensor([3.0, -1.0, 50.0]).double()


def correlated(w: Tensor) -> Tensor:
    return MultivariateNormal(MEAN, COVARIANCE, validate_args=False).log_prob(w)


def gammas(w: Tensor) -> Tensor:
    """Logs of two gamma numbers: means are digamma functions, variances trigamma; one tail is exponential."""
    shapes = torch.tensor([1.5, 4.0]).double()
    return (Gamma(shapes, 2.0, validate_args=False).log_prob(w.exp()) + w).sum()


def banana(w: Tensor) -> Tensor:
    """y | x ~ N(x², 0.5²), x ~ N(0, 1)."""
    return Normal(0.0, 1.0).log_prob(w[0]) + Normal(w[0] ** 2, 0.5).log_prob(w[1])


# --- quadrature ---

SHAPES = torch.tensor([1.5, 4.0]).double()
KNOWN: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, Tensor]] = {
    "normal": (correlated, MEAN, COVARIANCE),
    "gammas": (gammas, torch.digamma(SHAPES) - math.log(2), torch.polygamma(1, SHAPES).diag()),
    "banana": (banana, torch.tensor([0.0, 1.0]).double(), torch.tensor([[1.0, 0.0], [0.0, 2.25]]).double()),
}


@pytest.mark.parametrize(("density", "mean_D", "covariance_DD"), KNOWN.values(), ids=KNOWN.keys())
def test_a_lattice_has_the_moments_and_the_integral(
    density: Callable[[Tensor], Tensor], mean_D: Tensor, covariance_DD: Tensor
):
    actual = on_lattice(density, len(mean_D), 0.4)
    assert_close(actual.mean_D, mean_D, rtol=1e-7, atol=1e-7)
    assert_close(actual.covariance_DD, covariance_DD, rtol=1e-6, atol=1e-6)
    # a lattice of 0.4 standard deviations has steps of 1.2 across the crest of the banana
    assert actual.log_mass == pytest.approx(0.0, abs=1e-6 if density is banana else 1e-8)
    expected_F = torch.cat([mean_D, covariance_DD.diagonal() + mean_D**2])
    assert_close(actual.values_F, expected_F, rtol=1e-6, atol=1e-6)


def test_a_wide_spacing_shows_and_a_lattice_that_does_not_end_is_refused():
    assert abs(on_lattice(gammas, 2, 1.6).log_mass) > 1e-6
    with pytest.raises(ValueError, match="beyond 255 steps"):
        on_lattice(lambda w: Normal(0.0, 1.0).log_prob(w[0]), 1, 0.01)


@pytest.mark.parametrize("given", [[0], [2], [0, 1], [2, 0]])
def test_what_is_normal_given_the_others_is_integrated_exactly(given: list[int]):
    """Of a normal density all parameters are normal given some."""
    normal_given = NormalGiven(correlated, 3, given)
    points = lattice(normal_given.marginal, len(given), 0.4)
    if len(given) == 1:
        spread = float(COVARIANCE[given[0], given[0]].sqrt())
        points = normal_given.on_line(MEAN[given] + spread * torch.arange(-9, 9, 0.1, dtype=torch.float64))
    actual = normal_given.moments(points)
    assert_close(actual.mean_D, MEAN, rtol=1e-8)
    assert_close(actual.covariance_DD, COVARIANCE, rtol=1e-7, atol=1e-9)
    assert actual.log_mass == pytest.approx(0.0, abs=1e-8)


def test_what_is_normal_may_be_changed_by_the_others():
    """u = x y, where y | x ~ N(x², 0.5²) and x ~ N(0, 1): E u² = E x⁶ + E x²/4 and E x u = E x⁴."""
    normal_given = NormalGiven(banana, 2, [0])
    points = normal_given.on_line(torch.arange(-12, 12, 0.02, dtype=torch.float64))
    actual = normal_given.moments(points, points.values_PW.unsqueeze(-1))
    assert_close(actual.mean_D, [0.0, 0.0], atol=1e-9)
    assert_close(actual.covariance_DD, [[1.0, 3.0], [3.0, 15.0 + 0.25]], rtol=1e-8, atol=1e-9)


# --- references ---


def test_every_posterior_has_a_reference_and_no_other_is_kept(tmp_path):
    made = ways(kept=tmp_path, where=tmp_path)
    assert made.keys() == json.loads(FILE.read_text()).keys()
    assert made.keys() | EXACT.keys() == POSTERIORS.keys()
    assert not made.keys() & EXACT.keys()
    for name, posterior in POSTERIORS.items():
        mean_F, error_F = reference(name)
        assert mean_F.shape == error_F.shape == (2 * posterior.size,)
        assert (mean_F[posterior.size :] >= mean_F[: posterior.size] ** 2).all()
        spread_F = (mean_F[posterior.size :] - mean_F[: posterior.size] ** 2).sqrt()
        assert (error_F[: posterior.size] < 0.03 * spread_F + 1e-12).all()


@pytest.mark.parametrize("name", ["ill", "correlated"])
def test_closed_forms_are_those_of_the_densities(name: str):
    """Mean and covariance of a normal density from its gradient and Hessian at the origin."""
    density, zeros = log_density_of(name), torch.zeros(POSTERIORS[name].size).double()
    covariance_DD = torch.linalg.inv(-jacrev(grad(density))(zeros))
    actual = Moments(covariance_DD @ grad(density)(zeros), covariance_DD, 0.0)
    assert_close(reference(name).mean_F, actual.values_F, rtol=1e-6, atol=1e-9)


def test_the_closed_form_of_the_funnel_is_that_of_its_density():
    normal_given = NormalGiven(log_density_of("funnel"), 6, [0])
    actual = normal_given.moments(normal_given.on_line(torch.arange(-12, 12, 0.05, dtype=torch.float64)))
    assert_close(reference("funnel").mean_F, actual.values_F, rtol=1e-8, atol=1e-9)


def test_the_references_in_the_file_are_those_of_their_quadrature():
    for name, make in (("linear", references.linear), ("poisson", lambda: references.by_lattice("poisson", 0.7))):
        assert_close(reference(name).mean_F, make().mean_F, rtol=1e-6, atol=1e-8)


def test_conjugate_coefficients_have_the_moments_of_dense_matrices():
    """y | σ ~ N(0, σ² I + 25 X Xᵀ), and the coefficients given σ are those of ridge regression."""
    x_NP, y_N = (torch.from_numpy(POSTERIORS["linear"].data[name]) for name in ("x", "y"))
    log_noise_G = torch.arange(-2, 1, 0.01, dtype=torch.float64)
    eye_NN, eye_PP = torch.eye(50).double(), torch.eye(5).double()
    covariance_GNN = (2 * log_noise_G).exp()[:, None, None] * eye_NN + 25 * x_NP @ x_NP.T
    log_p_G = MultivariateNormal(torch.zeros(50).double(), covariance_GNN).log_prob(y_N) - 0.5 * log_noise_G**2
    precision_GPP = x_NP.T @ x_NP * (-2 * log_noise_G).exp()[:, None, None] + eye_PP / 25
    spread_GPP = torch.linalg.inv(precision_GPP)
    centre_GP = (-2 * log_noise_G).exp()[:, None] * (spread_GPP @ (x_NP.T @ y_N))
    share_G = log_p_G.softmax(0)
    firsts_GD = torch.cat([centre_GP, log_noise_G[:, None]], 1)
    squares_GD = firsts_GD**2
    squares_GD[:, :5] += spread_GPP.diagonal(dim1=-2, dim2=-1)
    expected_F = torch.cat([share_G @ firsts_GD, share_G @ squares_GD])
    assert_close(references.linear().mean_F, expected_F, rtol=1e-8, atol=1e-10)


def test_both_forms_of_the_groups_have_one_level_and_one_scale():
    """μ and log τ are the same parameters in both; θ = μ + τ z, so that E θ = E μ + E τ z."""
    apart, centred = (references.groups(centred=form, spacing=0.02) for form in (False, True))
    for at in (0, 1, 8, 9):
        assert float(apart.mean_F[at]) == pytest.approx(float(centred.mean_F[at]), rel=1e-9)
    assert_close(reference("groups-centred").mean_F, centred.mean_F, rtol=1e-8)
    # from the law of θ alone: given τ and μ, θ_i is normal with precision 1/τ² + 1/s_i²; a plain grid over both
    data = {name: torch.from_numpy(values) for name, values in POSTERIORS["groups"].data.items()}
    mu, log_tau = torch.meshgrid(torch.linspace(-30, 35, 100), torch.linspace(-14, 6, 200), indexing="ij")
    mu, tau = mu.double()[..., None], log_tau.double().exp()[..., None]
    y, s = data["y"], data["errors"]
    log_p = Normal(mu, (tau**2 + s**2).sqrt()).log_prob(y).sum(-1) + Normal(0.0, 5.0).log_prob(mu[..., 0])
    log_p = log_p + log_tau.double() - torch.log1p((tau[..., 0] / 5) ** 2)
    share = log_p.flatten().softmax(0).reshape(log_p.shape)[..., None]
    theta = (mu * s**2 + y * tau**2) / (s**2 + tau**2)
    variance = 1 / (1 / s**2 + 1 / tau**2)
    assert_close((share * theta).sum((0, 1)), centred.mean_F[2:8], rtol=1e-4, atol=1e-4)
    assert_close((share * (variance + theta**2)).sum((0, 1)), centred.mean_F[10:16], rtol=1e-3)


def test_the_coefficients_of_the_horseshoe_are_integrated_out():
    """Against gradient and Hessian of its density in all parameters, which is normal in the coefficients."""
    scales_S7 = 0.5 * normal(3, 7)
    log_p, mean_SP, variance_SP = given_scales(scales_S7)
    differences = []
    for scales_7, mean_P, variance_P, value in zip(scales_S7, mean_SP, variance_SP, log_p, strict=True):

        def of_coefficients(z: Tensor, scales_7: Tensor = scales_7) -> Tensor:
            return log_density_of("horseshoe")(torch.cat([z, scales_7]))

        zeros = torch.zeros(5).double()
        slope_P, precision_PP = grad(of_coefficients)(zeros), -jacrev(grad(of_coefficients))(zeros)
        assert_close(mean_P, torch.linalg.solve(precision_PP, slope_P), rtol=1e-8, atol=1e-10)
        assert_close(variance_P, torch.linalg.inv(precision_PP).diagonal(), rtol=1e-8)
        log_mass = of_coefficients(zeros) + 0.5 * slope_P @ mean_P - 0.5 * torch.logdet(precision_PP)
        differences.append(float(value - log_mass))
    assert max(differences) - min(differences) < 1e-9


def test_long_runs_that_disagree_are_not_written(tmp_path):
    draws = normal(4, 500, 5).numpy()
    peer = {"mixture/draws": draws, "mixture/gradients": np.ones((4, 500)), "mixture/warmup": np.ones(4)}
    np.savez(tmp_path / "ref-mixture.npz", **peer)
    same_MSF = Run(normal(4, 500, 5, seed=1), 1.0, 1.0).values_MSF
    actual = references.agreed("mixture", same_MSF, kept=tmp_path, where=tmp_path)
    assert_close(actual.mean_F, same_MSF.mean((0, 1)))
    with pytest.raises(ValueError, match=r"two long runs of mixture differ by \d+\.\d standard errors"):
        references.agreed("mixture", same_MSF + 0.5, kept=tmp_path, where=tmp_path)


# --- runs ---


def test_efficiency_is_the_least_effective_size_of_values_and_squares_per_gradient():
    draws_MSD = normal(4, 400, 3).cumsum(1) * torch.tensor([0.0, 0.0, 1.0]) + normal(4, 400, 3, seed=2)
    run = Run(draws_MSD, 5000.0, 7.0)
    sizes = [float(tb.diagnostics.ess(v).min()) for v in (draws_MSD, draws_MSD**2)]
    assert run.efficiency == pytest.approx(min(sizes) / 5000)
    assert run.values_MSF.shape == (4, 400, 6)
    assert min(sizes) < 100


def test_the_worst_mean_is_in_standard_errors_of_both():
    draws_MSD = normal(4, 400, 2)
    run, values_MSF = Run(draws_MSD, 1.0, 1.0), torch.cat([draws_MSD, draws_MSD**2], -1)
    errors_F = values_MSF.flatten(0, 1).var(0) / tb.diagnostics.ess(values_MSF)
    shift_F, own_F = torch.tensor([0.0, 0.0, 1.0, 0.0]).double(), torch.full((4,), 0.2).double()
    expected = 1 / (float(errors_F[2]) + 0.04) ** 0.5
    assert run.worst(values_MSF.mean((0, 1)) + shift_F, own_F) == pytest.approx(expected)


def test_our_gradients_are_all_counted():
    run = ours("poisson", tb.MALA(3, 40, 30, step_size=0.1))
    assert run.draws_MSD.shape == (3, 10, 4)
    assert run.gradients == 30  # one a step
    assert run.burn_in == 31  # and one where a chain starts


def test_a_kept_run_is_read_and_without_an_environment_there_is_advice(tmp_path):
    draws = normal(2, 5, 4).numpy()
    kept = {"poisson/draws": draws, "poisson/gradients": np.full((2, 5), 3), "poisson/warmup": np.array([10, 20])}
    np.savez(tmp_path / "run.npz", **kept)
    run = blackjax("poisson", (5, 5, 2), file=tmp_path / "run.npz", where=tmp_path)
    assert torch.equal(run.draws_MSD, torch.from_numpy(draws))
    assert (run.gradients, run.burn_in) == (30.0, 15.0)
    with pytest.raises(FileNotFoundError, match=r"setup\.sh"):
        blackjax("poisson", (5, 5, 2), file=tmp_path / "none.npz", where=tmp_path)


# --- posteriors ---


def test_starts_are_the_same_on_both_sides_and_no_density_fails_there():
    for name, posterior in POSTERIORS.items():
        start_MD = starts(name, 4)
        assert np.array_equal(start_MD, starts(name, 4))
        assert start_MD.shape == (4, posterior.size)
        assert np.abs(start_MD).max() < 2
        assert all(torch.isfinite(log_density_of(name)(w)) for w in torch.from_numpy(start_MD))


def test_recurrences_as_matrices_are_recurrences():
    """GARCH: σ²_t = ω + α y²_{t−1} + β σ²_{t−1}; ARMA: e_t = y_t − φ y_{t−1} − θ e_{t−1}."""
    w = torch.tensor([-1.2, 1.3, 0.4], dtype=torch.float64)
    data = POSTERIORS["garch"].data
    omega, total, share = float(w[0].exp()), float(w[1].sigmoid()), float(w[2].sigmoid())
    beta, variance, value = total * share, 0.0, 0.0
    for y, square in zip(data["y"], data["squares"], strict=True):
        variance = omega + (total - beta) * square + beta * variance
        value -= 0.5 * (math.log(variance) + y**2 / variance)
    value += -0.5 * (float(w[0]) + 1) ** 2 + math.log(total * (1 - total)) + math.log(share * (1 - share))
    assert float(log_density_of("garch")(w)) == pytest.approx(value, rel=1e-10)

    w = torch.tensor([0.3, 0.6, -0.5, 0.1], dtype=torch.float64)
    y, phi, base = POSTERIORS["arma"].data["y"] - 0.3, math.tanh(0.6), float(w[2].sigmoid())
    error, value = 0.0, -120 * 0.1 - 0.5 * (0.3 / 2) ** 2 - 0.5 * 0.1**2
    for before, now in pairwise(y):
        error = now - phi * before + base * error
        value -= 0.5 * (error / math.exp(0.1)) ** 2
    value += math.log(1 - phi**2) + math.log(base * (1 - base))
    assert float(log_density_of("arma")(w)) == pytest.approx(value, rel=1e-10)
