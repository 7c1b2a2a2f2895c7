"""Particles against exact answers: kernels and scores by autograd, moments at rest, MAP, and members that collapse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.covering import with_studies
from tests.laws.cases import assert_same_tensors, everything, model_of, normal, rows_of
from tests.oracles import LinearGaussian, assert_close
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.methods.particles.base import annealed
from torchbayes.methods.particles.kernels import RBF, Linear, combine_, gram, median_bandwidth, squared_distances
from torchbayes.methods.particles.scores import Score, score_elsewhere, score_matrix
from torchbayes.selection import length

SCORES: tuple[Score, ...] = ("kde", "sge", "ssge")


def dense(x: Tensor, y: Tensor, h: float) -> Tensor:
    """exp(−‖x − y‖²/h) of all pairs."""
    return torch.exp(-(x[:, None] - y[None]).square().sum(-1) / h)


def gradients(x: Tensor, y: Tensor, kernel: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """∂k(x_i, y_j)/∂x_i of all pairs, by autograd, (n, m, D)."""
    jacobian = torch.autograd.functional.jacobian(lambda moved: kernel(moved, y), x)
    return torch.einsum("ijid->ijd", jacobian)


def in_weights(**settings: Any) -> tb.RepulsiveEnsemble:
    """A repulsive ensemble in the space of weights."""
    return tb.RepulsiveEnsemble(space="weights", **settings)


def run(method: Any, start_MD: Tensor, steps: int, log_density: Any = None) -> tuple[Tensor, float]:
    """Particles after so many steps on a plain density, standard normal unless it is given, and how far they move."""
    density = tb.FunctionDensity(log_density or (lambda w: -0.5 * w.square().sum(-1)))
    state = method.init(density, start_MD, {}, seeds=range(len(start_MD)), steps_per_epoch=steps)
    while method.visit(state) is not None:
        state, _ = method.step(density, state, None, donate=True)
    now = state.trajectory
    return now.weights_MD, float(now.gradient_MD.abs().max())


def settled(lr: float, **settings: Any) -> dict[str, Any]:
    """Settings of a run on a plain density that comes to rest."""
    return {"epochs": 1, "optimizer": tb.SGD(lr=lr, momentum=0.9), "schedule": tb.Constant(), **settings}


def variance(particles_MD: Tensor) -> float:
    """(1/n) Σ (x − mean)², mean of the coordinates."""
    return float((particles_MD - particles_MD.mean(0)).square().mean())


# --- kernels ---


def test_force_is_the_sum_of_the_derivatives_of_the_kernel() -> None:
    particles_MD = normal(6, 3)
    cases: list[tuple[Any, Callable[[Tensor, Tensor], Tensor]]] = [
        (RBF(0.7), lambda x, y: dense(x, y, 0.7)),
        (Linear(), lambda x, y: x @ y.T + 1),
    ]
    for kernel, of_pairs in cases:
        pairs = kernel.pairs(gram(particles_MD, centred=kernel.centred))
        assert_close(pairs.values_MM, of_pairs(particles_MD, particles_MD))
        assert_close(pairs.squares_MM, torch.cdist(particles_MD, particles_MD).square(), atol=1e-7)
        # Σ_j ∂k(x_j, x_i)/∂x_j
        expected_MD = gradients(particles_MD, particles_MD, of_pairs).sum(0)
        assert_close(pairs.repulsion_MM @ particles_MD, expected_MD)


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_the_median_is_that_of_pairs_of_different_particles(count: int) -> None:
    particles_MD = normal(count, 4)
    pairs = torch.pdist(particles_MD)
    expected = float(pairs.quantile(0.5)) ** 2 / math.log(count)
    squares_MM = squared_distances(gram(particles_MD, centred=True))
    assert_close(median_bandwidth(squares_MM), expected)
    assert_close(RBF().pairs(gram(particles_MD, centred=True)).values_MM, dense(particles_MD, particles_MD, expected))


@pytest.mark.parametrize("coincide", [2, 5, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_particles_that_coincide_give_finite_numbers(coincide: int, dtype: torch.dtype) -> None:
    particles_MD = normal(6, 3, dtype=dtype) * 100
    particles_MD[:coincide] = particles_MD[0]
    pairs = RBF().pairs(gram(particles_MD, centred=True))
    for score in SCORES:
        assert torch.isfinite(score_matrix(pairs, score)).all()
    assert (pairs.values_MM[:coincide, :coincide] == 1).all()
    if coincide == 6:
        force_MD = torch.zeros_like(particles_MD)
        combine_(force_MD, None, pairs.repulsion_MM, particles_MD=particles_MD, centred=True)
        assert not force_MD.any()


@pytest.mark.parametrize("where", ["around zero", "far from zero", "one far from the others", "two almost the same"])
def test_distances_in_float32_are_those_in_float64(where: str) -> None:
    particles_MD = normal(5, 20_001)
    if where == "far from zero":
        particles_MD = 1e-3 * particles_MD + 10.0
    if where == "one far from the others":
        particles_MD[0] += 1e4
    if where == "two almost the same":
        particles_MD[1] = particles_MD[0] + 1e-5 * particles_MD[1]
    single_MD = particles_MD.float()
    exact_MM = torch.stack([(single_MD.double() - row).square().sum(1) for row in single_MD.double()])
    found_MM = squared_distances(gram(single_MD, centred=True))
    torch.testing.assert_close(found_MM, exact_MM, rtol=2e-5, atol=0)
    if where != "one far from the others":  # products of doubles about it lose eight of sixteen digits
        torch.testing.assert_close(squared_distances(gram(particles_MD, centred=True)), exact_MM, rtol=1e-3, atol=0)


@pytest.mark.parametrize("size", [1, 5, 4096, 4097, 9000])
def test_combining_in_blocks_is_a_matrix_product(size: int) -> None:
    gradient_MD, particles_MD = normal(3, size, seed=1), normal(3, size, seed=2)
    mixing_MM, force_MM = normal(3, 3, seed=3), normal(3, 3, seed=4)
    for mixing, centred in ((mixing_MM, False), (None, False), (mixing_MM, True), (None, True)):
        force = force_MM - force_MM.mean(1, keepdim=True) if centred else force_MM
        expected = (gradient_MD if mixing is None else mixing @ gradient_MD) + force @ particles_MD
        actual = gradient_MD.clone()
        combine_(actual, mixing, force, particles_MD=particles_MD, centred=centred)
        assert_close(actual, expected, atol=1e-11)


# --- scores ---


@pytest.mark.parametrize("score", SCORES)
def test_scores_are_their_definitions(score: Score) -> None:
    particles_MD, h, ridge = normal(7, 3), 1.3, 0.01
    values_MM = dense(particles_MD, particles_MD, h)
    own_MMD = gradients(particles_MD, particles_MD, lambda x, y: dense(x, y, h))
    if score == "kde":
        moved_MD = particles_MD.clone().requires_grad_()
        log_density = dense(moved_MD, particles_MD, h).sum(1).log().sum()
        (expected_MD,) = torch.autograd.grad(log_density, moved_MD)
    elif score == "sge":
        ridged = values_MM + ridge * torch.eye(7, dtype=torch.float64)
        expected_MD = torch.linalg.inv(ridged) @ own_MMD.sum(1)
    else:
        expected_MD = spectral(particles_MD, particles_MD, h, share=0.99)
    actual = score_matrix(RBF(h).pairs(gram(particles_MD, centred=True)), score)
    assert_close(actual @ particles_MD, expected_MD, atol=1e-10)


def spectral(points_ND: Tensor, draws_PD: Tensor, h: float, *, share: float) -> Tensor:
    """Σ_r β_r ψ_r(x) by the eigenfunctions themselves, with the derivative of each by autograd."""
    count = len(draws_PD)
    values, vectors = torch.linalg.eigh(dense(draws_PD, draws_PD, h))
    order = values.argsort(descending=True)
    values, vectors = values[order], vectors[:, order]
    kept = int((values.cumsum(0) < share * values.sum()).sum()) + 1

    def functions(x: Tensor) -> Tensor:
        return dense(x, draws_PD, h) @ vectors[:, :kept] * math.sqrt(count) / values[:kept]

    beta_RD = -torch.autograd.functional.jacobian(lambda x: functions(x).sum(0), draws_PD).mean(1)
    return functions(points_ND) @ beta_RD


def test_the_spectral_score_elsewhere_is_its_definition() -> None:
    points_ND, draws_PD = normal(4, 2, seed=1), normal(9, 2, seed=2)
    joined = gram(torch.cat([points_ND, draws_PD]), centred=True)
    for h in (0.8, None):
        pairs = torch.pdist(torch.cat([points_ND, draws_PD]))
        own = h or float(pairs.quantile(0.5)) ** 2 / math.log(13)
        actual = score_elsewhere(joined, 4, bandwidth=h) @ draws_PD
        assert_close(actual, spectral(points_ND, draws_PD, own, share=0.99), rtol=1e-8, atol=1e-8)


def test_the_spectral_score_of_normal_draws_is_a_line_of_slope_minus_one() -> None:
    """On 400 draws, h = median²: −1.00 ± 0.12 with 99 % of the spectrum, −0.65 ± 0.12 with three eigenfunctions."""
    for seed in range(3):
        draws_MD = normal(400, 1, seed=seed)
        pairs = RBF(float(torch.pdist(draws_MD).quantile(0.5)) ** 2).pairs(gram(draws_MD, centred=True))
        for spectrum, slope in ((0.99, -1.0), (0.85, -0.65)):  # three eigenfunctions have 86 to 87 %
            scores = score_matrix(pairs, "ssge", spectrum=spectrum) @ draws_MD
            assert float((scores * draws_MD).sum() / draws_MD.square().sum()) == pytest.approx(slope, abs=0.12)


# --- truth ---


@pytest.mark.study  # and so has a fit, below
def test_under_a_linear_kernel_particles_have_the_moments_of_a_normal_density() -> None:
    root = torch.tensor([[1.0, 0.0], [0.6, 0.5]], dtype=torch.float64)
    mean_D, covariance_DD = torch.tensor([1.0, -2.0], dtype=torch.float64), root @ root.T
    precision = torch.linalg.inv(covariance_DD)
    method = tb.SVGD(members=10, kernel="linear", **settled(0.02))
    log_density = lambda w: -0.5 * torch.einsum("md,de,me->m", w - mean_D, precision, w - mean_D)  # noqa: E731
    actual, _ = run(method, normal(10, 2), 2000, log_density)
    assert_close(actual.mean(0), mean_D, rtol=1e-6)
    assert_close(torch.cov(actual.T, correction=0), covariance_DD, rtol=1e-6)


def test_a_fit_under_a_linear_kernel_has_the_moments_of_the_posterior() -> None:
    inputs, targets = normal(24, 2, seed=4), normal(24, seed=5)
    mean_D, covariance_DD = LinearGaussian(inputs, targets, prior_scale=1.5, noise_scale=1.5).posterior()
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(1.5), tb.priors.Normal(1.5))
    method = tb.SVGD(
        6, 500, kernel="linear", batch_size=24, optimizer=tb.SGD(lr=0.2, momentum=0.9), schedule=tb.Constant()
    )
    actual = tb.fit(model, (inputs, targets.unsqueeze(1)), method, callbacks=()).tensors()["weights_MD"]
    assert_close(actual.mean(0), mean_D, rtol=1e-6)
    assert_close(torch.cov(actual.T, correction=0), covariance_DD, rtol=1e-5)


# the variance of 50 particles at rest under N(0, I) and the median heuristic, by the number of dimensions; there are
# several sets at rest in 2 to 10 dimensions, whose variances differ by 0.02
SVGD_AT_REST = {1: (0.937, 0.001), 2: (0.869, 0.012), 5: (0.655, 0.012), 10: (0.277, 0.012), 30: (0.124, 0.001)}
KDE_AT_REST = {1: (0.839, 0.001), 2: (0.657, 0.012), 5: (0.344, 0.012), 10: (0.172, 0.006), 30: (0.064, 0.001)}


def often(one: int) -> pytest.MarkDecorator:
    """One number of dimensions; the others as studies."""
    return pytest.mark.parametrize(
        "size", [pytest.param(size, marks=() if size == one else pytest.mark.study) for size in SVGD_AT_REST]
    )


@pytest.mark.study  # the force is exact, above, and a fit under a linear kernel has its moments
@pytest.mark.slow
@often(1)
def test_particles_of_svgd_at_rest_spread_too_little_by_a_known_amount(size: int) -> None:
    expected, within = SVGD_AT_REST[size]
    actual, force = run(tb.SVGD(members=50, **settled(1.0)), normal(50, size), 700)
    assert force < 1e-3
    assert variance(actual) == pytest.approx(expected, abs=within)


@pytest.mark.study  # so does one of fixed bandwidth, below, by half of it
@pytest.mark.slow
@often(10)
def test_a_repulsive_ensemble_at_rest_spreads_too_little_by_a_known_amount(size: int) -> None:
    expected, within = KDE_AT_REST[size]
    actual, force = run(in_weights(members=50, **settled(0.02 if size == 1 else 0.1)), normal(50, size), 900)
    assert force < 1e-3
    assert variance(actual) == pytest.approx(expected, abs=within)


@pytest.mark.slow
@pytest.mark.study  # fifty particles at rest, above, take the same steps
def test_more_particles_of_svgd_spread_more() -> None:
    actual, _ = run(tb.SVGD(members=200, **settled(1.0)), normal(200, 1), 2500)
    assert variance(actual) == pytest.approx(0.979, abs=0.002)


@pytest.mark.slow
@pytest.mark.study  # forces are those of the formula, above, and a linear kernel has exact moments
@pytest.mark.parametrize(("count", "expected"), [(50, 0.728), (200, 0.745)])
def test_kde_of_fixed_bandwidth_takes_half_of_it_off_the_variance(count: int, expected: float) -> None:
    """With n → ∞ the variance under N(0, 1) is 1 − h/2."""
    actual, _ = run(in_weights(members=count, bandwidth=0.5, **settled(0.05)), normal(count, 1), 450)
    assert variance(actual) == pytest.approx(expected, abs=0.002)


def test_without_a_ridge_sge_rests_where_svgd_does() -> None:
    """Their directions differ by the kernel matrix: φ_svgd = (1/n) K φ_sge."""
    particles_MD = normal(8, 3)
    pairs = RBF().pairs(gram(particles_MD, centred=True))
    by_svgd = (pairs.values_MM @ -particles_MD + pairs.repulsion_MM @ particles_MD) / 8
    by_sge = -particles_MD - score_matrix(pairs, "sge", ridge=0.0) @ particles_MD
    assert_close(pairs.values_MM @ by_sge / 8, by_svgd)


# --- one particle ---

OPTIMIZERS = [tb.Adam(lr=0.05), tb.AdamW(lr=0.05), tb.SGD(lr=0.1, nesterov=True)]


MAKES = [tb.SVGD, in_weights]
EACH = [(tb.SVGD, OPTIMIZERS[0]), (in_weights, OPTIMIZERS[1])]


@pytest.mark.parametrize(("make", "optimizer"), with_studies(EACH, MAKES, OPTIMIZERS))
def test_one_particle_is_map_bit_for_bit(make: Any, optimizer: Any) -> None:
    settings: dict[str, Any] = {"members": 1, "epochs": 3, "batch_size": 6, "optimizer": optimizer, "plan": "loop"}
    for network in ("mlp", "conv_batch_norm", "dropout"):
        posteriors = [
            tb.fit(model_of(network), rows_of(network), kind(**settings), seed=3, callbacks=())
            for kind in (make, tb.MAP)
        ]
        assert_same_tensors(*map(everything, posteriors))


def test_one_member_that_repels_as_a_function_under_a_prior_of_weights_is_map() -> None:
    settings: dict[str, Any] = {"members": 1, "epochs": 5, "batch_size": 6, "plan": "loop"}
    method = tb.RepulsiveEnsemble(prior="weights", **settings)
    posteriors = [
        tb.fit(model_of("tied"), rows_of("tied"), kind, callbacks=()) for kind in (method, tb.MAP(**settings))
    ]
    assert_close(*(posterior.tensors()["weights_MD"] for posterior in posteriors), rtol=1e-9, atol=1e-11)


@pytest.mark.study  # one particle is MAP bit for bit, by the test above
def test_one_particle_chooses_the_epochs_that_map_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "_LONGEST", 60)  # steps of the first runs at most
    inputs = normal(120, 4)
    data = (inputs, (inputs[:, :1].sin() + 0.2 * normal(120, 1, seed=1)))
    actual = []
    for method in (tb.MAP(), in_weights(members=1)):  # SVGD has the same descent, step by step, above
        model = tb.Model(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double(), tb.likelihoods.Gaussian())
        actual.append(tb.fit(model, data, method, callbacks=()).tensors()["weights_MD"])
    assert torch.equal(actual[0], actual[1])


# --- annealing ---


def test_annealing_ends_at_one() -> None:
    assert annealed(None, 0.1) == 1
    assert [annealed("linear", done) for done in (0.0, 0.4, 0.8, 0.9)] == [0.0, 0.5, 1.0, 1.0]
    assert [annealed("cyclic", done) for done in (0.0, 0.1, 0.2, 0.85)] == [0.0, 0.5**10, 0.0, 1.0]
    assert annealed("hyperbolic", 0.0) == 0
    assert annealed("hyperbolic", 0.5) == pytest.approx(math.tanh(0.65**10))
    assert annealed("hyperbolic", 1.0) == pytest.approx(1.0, abs=1e-9)


def test_without_a_driving_term_particles_move_apart() -> None:
    start_MD = normal(6, 2)
    before = variance(start_MD)
    methods: tuple[Any, ...] = tb.SVGD(6, 1, annealing="hyperbolic"), in_weights(members=6, annealing="hyperbolic")
    for method in methods:
        density = tb.FunctionDensity(lambda w: -50 * w.square().sum(-1))
        state = method.init(density, start_MD, {}, seeds=range(6), steps_per_epoch=1000)
        for _ in range(100):
            state, _ = method.step(density, state, None)
        after = variance(state.trajectory.weights_MD)
        assert after > 1.1 * before


# --- what goes wrong ---


@pytest.mark.parametrize("method", [tb.SVGD(4, 8), in_weights(members=4, epochs=8), tb.RepulsiveEnsemble(4, 8)])
def test_particles_that_are_given_one_start_move_apart(method: Any) -> None:
    """Even where all see the same rows, and as after a fit of one network."""
    model, data = model_of(), rows_of()
    start = model.starting_weights([0])[0][0]
    actual = tb.fit(model, [data], method, start=start, callbacks=()).tensors()["weights_MD"]
    assert float(torch.pdist(actual).min()) > 1e-3 * float(start.norm())
    assert (actual - start).square().mean() < start.square().mean()


def test_particles_that_end_as_one_are_a_problem() -> None:
    """Without a force all climb to the one mode of a linear model."""
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(1.5), tb.priors.Normal(1.5))
    data = (normal(24, 2), normal(24, 1, seed=1))
    weak = in_weights(members=3, epochs=250, batch_size=24, bandwidth=1e-40, optimizer=tb.SGD(lr=0.1))
    with pytest.warns(tb.ProblemWarning, match="all 3 particles are at the same point"):
        tb.fit(model, data, weak, callbacks=())
    assert not tb.fit(model, data, replace(weak, bandwidth=None), callbacks=()).problems


@pytest.mark.parametrize("make", [tb.SVGD, in_weights, tb.RepulsiveEnsemble])
def test_a_run_that_diverges_names_its_step(make: Any) -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    data = (normal(24, 4, dtype=torch.float32), normal(24, 1, seed=1, dtype=torch.float32))
    model = tb.Model(network, tb.likelihoods.Gaussian(0.1))
    method = make(members=3, epochs=30, batch_size=6, optimizer=tb.SGD(lr=1e6))
    with pytest.raises(tb.DivergedError, match=r"diverged at step \d+ of 120: the loss of member \d"):
        tb.fit(model, data, method, callbacks=())
