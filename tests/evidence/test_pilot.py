import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.evidence.helpers import linear_problem, normal_draws, skewed, tanh_problem
from tests.oracles import assert_close, normal
from torchbayes.evidence import AnnealedDensity, FunctionTarget, ModelTarget, power, sigmoidal
from torchbayes.evidence.pilot import Pilot, Place, Rung, Tuning, as_temperatures, move, pilot


def linear_variances(beta_K: Tensor) -> Tensor:
    """Var[log p(D|w)] over p_β of the linear problem: ½ tr(V²)/s⁴ + rᵀ V r/s⁴ with V = Φ C Φᵀ."""
    _, (inputs, targets), oracle = linear_problem()
    features = oracle.features(inputs)
    variances = []
    for beta in beta_K:
        covariance = torch.linalg.inv(beta * features.T @ features / 0.25 + torch.eye(3).double() / 0.64)
        residual = targets - features @ (beta * covariance @ features.T @ targets / 0.25)
        spread = features @ covariance @ features.T
        variances.append((0.5 * (spread @ spread).trace() + residual @ spread @ residual) / 0.25**2)
    return torch.stack(variances)


def test_length_and_even_temperatures_are_those_of_the_path():
    model, data, _ = linear_problem()
    actual = pilot(ModelTarget(model, data), leapfrogs=20, seed=1)
    grid = torch.linspace(0, 1, 2_001, dtype=torch.float64) ** 4
    lengths = torch.cumulative_trapezoid(linear_variances(grid).sqrt(), grid)
    # 64 particles, and steps that are not small: over seeds 0.755 ± 0.03 of the length
    assert_close(actual.length, lengths[-1], rtol=0.35)
    even = actual.even(9)
    assert even[0] == 0
    assert even[-1] == 1
    where = torch.searchsorted(grid[1:], even[1:-1])
    assert_close(lengths[where], torch.arange(1, 8) / 8 * lengths[-1], rtol=0.25)


def test_particles_are_at_the_temperatures():
    """Means of 64 particles at β = 1 are the posterior's."""
    model, data, oracle = linear_problem()
    actual = pilot(ModelTarget(model, data), leapfrogs=20, seed=2)
    mean, covariance = oracle.posterior()
    last = actual.rungs[-1]
    scores = (last.weights_PD.mean(0) - mean) / (covariance.diagonal() / 64).sqrt()
    assert scores.abs().max() < 4
    assert_close(last.variance_D / covariance.diagonal(), torch.ones(3), rtol=0.7)
    assert actual.rungs[0].beta == 0
    assert last.beta == 1


def test_same_seed_same_run(untouched_rng: None):
    target, _ = skewed()
    first, again, other = (pilot(target, leapfrogs=5, seed=seed) for seed in (1, 1, 2))
    for one, two in zip(first.rungs, again.rungs, strict=True):
        assert one.beta == two.beta
        assert one.step_size == two.step_size
        assert torch.equal(one.weights_PD, two.weights_PD)
    assert first.length != other.length


def test_a_likelihood_that_says_nothing_is_one_step():
    target = FunctionTarget(lambda w: -0.5 * w.square().sum(-1), lambda w: 0.0 * w.sum(-1) - 3.0, normal_draws(1.0, 2))
    actual = pilot(target, leapfrogs=5, seed=0)
    assert len(actual.rungs) == 2
    assert_close(actual.even(5), torch.linspace(0, 1, 5).double())


def test_between_rungs_logarithms_are_interpolated():
    def rung(beta: float, length: float, step_size: float, variance: float) -> Rung:
        return Rung(beta, length, step_size, torch.full((2,), variance, dtype=torch.float64), torch.zeros(1, 2))

    actual = Pilot((rung(0.0, 0.0, 1.0, 4.0), rung(0.2, 1.0, 0.25, 1.0), rung(1.0, 3.0, 0.25, 0.01)), leapfrogs=6)
    ladder = actual.ladder(torch.tensor([0.0, 0.1, 0.2, 0.6, 1.0], dtype=torch.float64))
    assert_close([t.step_size for t in ladder.tunings], [1.0, 0.5, 0.25, 0.25, 0.25])
    assert_close([t.inverse_mass_D[0] for t in ladder.tunings], [4.0, 2.0, 1.0, 0.1, 0.01])
    assert [t.steps[1] for t in ladder.tunings] == [2, 4, 6, 6, 6]  # ⌈π/2ε⌉, at most 6
    assert_close([t.steps[0] for t in ladder.tunings], [math.pi / 4, math.pi / 8, 0.25, 0.25, 0.25])
    assert [t.step_size for t in ladder.reversed().tunings] == [t.step_size for t in ladder.tunings][::-1]
    assert_close(ladder.reversed().beta_K, ladder.beta_K.flip(0))


@pytest.mark.parametrize("step_size", [0.3, 1.4])
def test_moves_keep_the_target(step_size: float):
    """Draws of p_β, moved a few times, are draws of p_β: here the linear posterior at β = 0.4."""
    model, data, oracle = linear_problem()
    features = oracle.features(data[0])
    covariance = torch.linalg.inv(0.4 * features.T @ features / 0.25 + torch.eye(3).double() / 0.64)
    mean = 0.4 * covariance @ features.T @ data[1] / 0.25
    factor, target = torch.linalg.cholesky(covariance), ModelTarget(model, data)
    start = mean + normal(20_000, 3) @ factor.T
    place, tuning = Place(start, target.parts(start)), Tuning(step_size, covariance.diagonal(), 3)
    acceptance = torch.zeros(0)
    for number in range(3):
        place, acceptance = move(target, place, 0.4, tuning=tuning, seed=1, number=number)
    assert 0.1 < acceptance.mean() < 0.99  # the test is not that of exact dynamics
    standard = torch.linalg.solve_triangular(factor, (place.weights_MD - mean).T, upper=False).T
    assert_close(standard.mean(0), torch.zeros(3), atol=5 / math.sqrt(20_000))
    assert_close(standard.T.cov(), torch.eye(3), rtol=0, atol=5 * math.sqrt(2 / 20_000))
    correlation = (standard * (start - mean) @ torch.linalg.inv(factor).T).mean(0)
    assert correlation.abs().max() < 0.95  # and something has moved
    assert_close(place.parts.log_likelihood, target.parts(place.weights_MD).log_likelihood)
    assert_close(place.parts.likelihood_gradient, target.parts(place.weights_MD).likelihood_gradient)


def still() -> FunctionTarget:
    """N(0, I) in two dimensions, and a constant likelihood."""
    return FunctionTarget(lambda w: -0.5 * w.square().sum(-1), lambda w: 0.0 * w.sum(-1), normal_draws(1.0, 2))


@pytest.mark.parametrize("step_size", [0.4, 1.5])
def test_moves_go_a_quarter_of_a_period(step_size: float):
    """There nothing is left of the energy; 1.5 is nearly a quarter, and twice that is nearly half a period."""
    start, target = normal(4000, 2), still()
    tuning = Tuning(step_size, torch.ones(2).double(), 20)
    place, _ = move(target, Place(start, target.parts(start)), 0.5, tuning=tuning, seed=1, number=0)
    squares = torch.stack([start.square().sum(1), place.weights_MD.square().sum(1)])
    # what is rejected stays, and lengths vary by a fifth
    assert torch.corrcoef(squares)[0, 1].abs() < 0.3


def test_step_sizes_of_a_pilot_run_do_not_wind_up():
    """Where all is accepted, as by a density that is flat, whatever the step."""
    flat = FunctionTarget(lambda w: 0.0 * w.sum(-1), lambda w: -w.square().sum(-1).clamp(max=0), normal_draws(1.0, 2))
    actual = pilot(flat, leapfrogs=5, seed=0)
    assert max(rung.step_size for rung in actual.rungs) == math.pi / 4


def test_moves_accept_by_the_energy():
    """A particle's probability is min(1, e^{−ΔH}) of its own trajectory, run here by hand."""
    model, data = tanh_problem()
    target = ModelTarget(model, data)
    start = 0.5 * normal(6, 4)
    tuning = Tuning(0.5, torch.full((4,), 0.5).double(), 3)  # too few for a quarter of a period, so 0.5 it is
    seen: list[Any] = []
    density = AnnealedDensity(target, torch.tensor([0.7], dtype=torch.float64))
    parts, target_parts = target.parts(start), target.parts

    def record(weights_MD: Tensor) -> Any:
        seen.append(weights_MD)
        return target_parts(weights_MD)

    target.parts = record
    _, probability = move(target, Place(start, parts), 0.7, tuning=tuning, seed=3, number=5)
    assert len(seen) == 3
    # w_1 = w_0 + ε M⁻¹ (v + ε/2 g): the momentum and each particle's step size from the first two places
    steps = torch.stack([start, *seen])
    gradients = torch.stack([density(at).gradient for at in steps])
    curvature = (steps[2:] - 2 * steps[1:-1] + steps[:-2]) / (0.5 * gradients[1:-1])
    step_size = curvature.mean((0, 2)).sqrt()
    assert_close(curvature, (step_size**2)[None, :, None].expand_as(curvature), rtol=1e-8)
    assert ((step_size > 0.4) & (step_size < 0.6)).all()
    half = step_size[:, None] / 2
    first = (steps[1] - steps[0]) / (0.5 * step_size[:, None]) - half * gradients[0]
    last = (steps[-1] - steps[-2]) / (0.5 * step_size[:, None]) + half * gradients[-1]
    gain = density(steps[-1]).log_density - density(start).log_density
    gain = gain + 0.25 * (first.square() - last.square()).sum(-1)
    assert_close(probability, gain.exp().clamp(max=1.0), rtol=1e-7)


def test_temperatures_by_formula():
    assert_close(power(5, 2.0), [0.0, 1 / 16, 1 / 4, 9 / 16, 1.0])
    middle = sigmoidal(5)
    low, quarter = 1 / (1 + math.exp(4)), 1 / (1 + math.exp(2))
    assert_close(middle, [0.0, (quarter - low) / (1 - 2 * low), 0.5, 1 - (quarter - low) / (1 - 2 * low), 1.0])
    assert_close(as_temperatures([0, 0.5, 1]), [0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    "betas", [[0.0], [0.1, 1.0], [0.0, 0.9], [0.0, 0.5, 0.5, 1.0], [1.0, 0.0], [0.0, math.nan, 1.0]]
)
def test_temperatures_that_do_not_rise_from_0_to_1(betas: list[float]):
    with pytest.raises(ValueError, match="must be inverse temperatures that rise from 0 to 1"):
        as_temperatures(betas)


def test_likelihoods_without_a_path():
    def target(log_likelihood: Any) -> FunctionTarget:
        return FunctionTarget(lambda w: -0.5 * w.square().sum(-1), log_likelihood, normal_draws(1.0, 1))

    with pytest.raises(ValueError, match=r"−inf at \d+% of the draws"):
        pilot(target(lambda w: (w[:, 0] - 0.5).clamp(min=0).log()), leapfrogs=5, seed=0)
    with pytest.raises(ValueError, match=r"is NaN or \+inf at a draw"):
        pilot(target(lambda w: w[:, 0].log()), leapfrogs=5, seed=0)
