"""The random walk and MALA with a mass: acceptance by dense matrices, changes of units, what burn-in teaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.oracles import assert_close, normal
from tests.targets import assert_moments, correlated_gaussian, skewed
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import torchbayes as tb
from torchbayes.diagnostics import ess
from torchbayes.driver.sample import run_chains
from torchbayes.methods.mcmc.adaptation import windows
from torchbayes.methods.noise import normals
from torchbayes.methods.sampler import Sampler
from torchbayes.randomness.seeds import Purpose, member_seeds

PURPOSES = {tb.RandomWalk: Purpose.RANDOM_WALK, tb.MALA: Purpose.LANGEVIN}
SEEDS, MANY = (3, 1, 4, 1, 5), tuple(range(40))
COVARIANCE = torch.tensor([[1.0, 0.995, 0.3, 0.1], [0.995, 1.0, 0.3, 0.1], [0.3, 0.3, 4.0, 0], [0.1, 0.1, 0, 9.0]])
FACTOR = torch.linalg.cholesky(COVARIANCE.double())

either = pytest.mark.parametrize("make", [tb.RandomWalk, tb.MALA])


class Known(tb.FunctionDensity):
    """N(0, Σ), whose prior standard deviations are said to be those of Σ."""

    def __init__(self, covariance_DD: Tensor) -> None:
        precision_DD = torch.linalg.inv(covariance_DD.double())
        super().__init__(lambda w: -0.5 * ((w.double() @ precision_DD) * w.double()).sum(1))
        self._stds_D = covariance_DD.double().diagonal().sqrt()

    def prior_stds(self) -> Tensor:
        return self._stds_D


def inverse_masses(mass: str) -> tuple[Tensor, Tensor]:
    """What a state holds of C for forty chains, each with its own, and C itself (M, D, D)."""
    scales_M = torch.linspace(0.05, 1.5, 40).double()
    if mass == "dense":
        factor_MDD = scales_M[:, None, None] * FACTOR
        return factor_MDD, factor_MDD @ factor_MDD.mT
    if mass == "unit":
        return torch.empty(40, 0).double(), torch.eye(4).double().expand(40, -1, -1)
    held_MD = scales_M[:, None] ** 2 * torch.tensor([0.2, 1.0, 3.0, 0.7]).double()
    return held_MD, held_MD.diag_embed()


# --- one proposal ---


@either
@pytest.mark.parametrize("mass", ["unit", "diagonal", "dense"])
def test_a_proposal_and_its_acceptance_are_those_of_dense_normal_densities(make: Any, mass: Any):
    """w' = w + (ε²/2) C g + ε R z, accepted with p(w') q(w | w') / (p(w) q(w' | w)), where q has covariance ε² C."""
    target, step_size = skewed(), 0.4
    density, start_MD = target.density(), target.mean_D + 0.3 * normal(40, 4)
    method = make(40, 40, 20, step_size=step_size, mass=mass)
    held, covariance_MDD = inverse_masses(mass)
    state = replace(method.init(density, start_MD, seeds=MANY), inverse_mass_MD=held, step=20)
    new, info = method.step(density, state)
    noise_MD = normals(MANY, PURPOSES[make], 20, like=start_MD)
    root_MDD = torch.linalg.cholesky(covariance_MDD)
    drift = step_size**2 / 2 if make is tb.MALA else 0.0

    def centre(weights_MD: Tensor) -> Tensor:
        return weights_MD + drift * torch.einsum("mij,mj->mi", covariance_MDD, density(weights_MD).gradient)

    def log_proposal(to_MD: Tensor, at_MD: Tensor) -> Tensor:
        return MultivariateNormal(centre(at_MD), step_size**2 * covariance_MDD).log_prob(to_MD)

    proposal_MD = centre(start_MD) + step_size * torch.einsum("mij,mj->mi", root_MDD, noise_MD)
    log_ratio_M = density(proposal_MD).log_density - density(start_MD).log_density
    log_ratio_M += log_proposal(start_MD, proposal_MD) - log_proposal(proposal_MD, start_MD)
    expected_M = log_ratio_M.clamp(max=0).exp()
    assert_close(info.acceptance_M, expected_M, rtol=1e-8)
    assert ((info.acceptance_M > 0.01) & (info.acceptance_M < 0.99)).sum() >= 5
    moved_M = (new.weights_MD != start_MD).any(1)
    assert moved_M.any()
    assert_close(new.weights_MD[moved_M], proposal_MD[moved_M])


@either
@pytest.mark.parametrize("mass", ["diagonal", "dense"])
def test_chains_are_those_in_coordinates_in_which_the_target_is_standard(make: Any, mass: Any):
    """With C = Σ = R Rᵀ on N(0, Σ), w = R z step for step, where z is a chain on N(0, I) without a mass."""
    factor_DD = FACTOR if mass == "dense" else torch.diag(torch.tensor([0.01, 1.0, 30.0, 5.0]).double())
    held = factor_DD if mass == "dense" else factor_DD.diagonal().square()
    density, standard, start_MD = Known(factor_DD @ factor_DD.T), Known(torch.eye(4)), normal(5, 4)
    method, plain = (make(5, 60, 20, step_size=0.9, mass=one) for one in (mass, "unit"))
    state = method.init(density, start_MD @ factor_DD.T, seeds=SEEDS)
    state = replace(state, step=20, inverse_mass_MD=held.expand(5, *held.shape))
    other = replace(plain.init(standard, start_MD, seeds=SEEDS), step=20)
    accepted = 0
    for _ in range(40):
        before_MD = state.weights_MD
        state, info = method.step(density, state)
        other, expected = plain.step(standard, other)
        assert_close(state.weights_MD, other.weights_MD @ factor_DD.T, rtol=1e-8, atol=1e-9)
        assert_close(info.acceptance_M, expected.acceptance_M, rtol=1e-7, atol=1e-9)
        accepted += int((state.weights_MD != before_MD).any(1).sum())
    assert 20 < accepted < 190


@either
def test_the_mass_of_the_prior_makes_chains_of_other_units_the_same(make: Any):
    """Adaptation included: w / σ is the chain on N(0, I), and so is its step size."""
    stds_D = torch.tensor([0.01, 1.0, 30.0, 5.0]).double()
    method, start_MD = make(3, 80, 40, mass="prior"), normal(3, 4)
    actual = tb.sample(Known(stds_D.diag() ** 2), method, start_MD * stds_D, callbacks=())
    expected = tb.sample(Known(torch.eye(4)), replace(method, mass="unit"), start_MD, callbacks=())
    assert_close(actual.weights_MSD / stds_D, expected.weights_MSD, rtol=1e-8, atol=1e-9)
    assert_close(actual.numbers["step_size"], expected.numbers["step_size"], rtol=1e-8)
    assert expected.numbers["step_size"].std() > 0.01


@either
@pytest.mark.parametrize("mass", ["prior", "diagonal", "dense"])
def test_single_precision_stays_single(make: Any, mass: Any):
    chains = tb.sample(Known(COVARIANCE), make(2, 90, 60, mass=mass), normal(2, 4).float(), callbacks=())
    assert chains.state.inverse_mass_MD.dtype == chains.weights_MSD.dtype == torch.float32
    assert torch.isfinite(chains.weights_MSD).all()


# --- what burn-in teaches ---


def trace(density: Any, method: Any, start_MD: Tensor, steps: int) -> tuple[list[Any], Tensor]:
    """The states after each step, and their weights (S, M, D)."""
    state, states = method.init(density, start_MD, seeds=member_seeds(0, len(start_MD))), []
    for _ in range(steps):
        state, _ = method.step(density, state)
        states.append(state)
    return states, torch.stack([state.weights_MD for state in states])


@either
def test_a_dense_mass_is_the_shrunk_covariance_of_a_window_of_ten_draws_per_dimension(make: Any):
    """A shorter window has the variances alone; from burn-in on the mass stays."""
    states, weights_SMD = trace(Known(COVARIANCE), make(2, 270, 220, mass="dense"), normal(2, 4) @ FACTOR.T, 230)
    first, ends = windows(220)
    counts = [end - begin for begin, end in zip((first, *ends), ends, strict=False)]
    assert [count >= 40 for count in counts] == [False, False, True]
    for count, end in zip(counts, ends, strict=True):
        for chain, factor_DD in enumerate(states[end - 1].inverse_mass_MD):
            exact_DD = weights_SMD[end - count : end, chain].T.cov()
            exact_DD = exact_DD if count >= 40 else exact_DD.diagonal().diag()
            expected_DD = (count * exact_DD + 5e-3 * exact_DD.trace() / 4 * torch.eye(4)) / (count + 5)
            assert_close(factor_DD @ factor_DD.T, expected_DD, rtol=1e-8)
    assert torch.equal(states[-1].inverse_mass_MD, states[ends[-1] - 1].inverse_mass_MD)
    assert torch.equal(states[-1].step_size.step_size_M, states[219].step_size.step_size_M)


@either
def test_step_sizes_begin_anew_with_a_new_mass_unless_they_are_given(make: Any):
    target, first = Known(COVARIANCE), {tb.RandomWalk: 2.38 / 2, tb.MALA: 1.65 / 4 ** (1 / 6)}[make]
    _, ends = windows(60)
    states, _ = trace(target, make(2, 70, 60, mass="diagonal"), normal(2, 4), 60)
    assert_close(states[ends[0] - 1].step_size.step_size_M, [first] * 2)
    assert (states[ends[0] - 2].step_size.step_size_M != first).all()
    assert (states[ends[0]].step_size.step_size_M != first).all()
    fixed, _ = trace(target, make(2, 70, 60, mass="diagonal", step_size=0.05), normal(2, 4), 60)
    assert (fixed[-1].step_size.step_size_M == 0.05).all()
    assert not torch.equal(fixed[-1].inverse_mass_MD, torch.ones(2, 4).double())


@either
def test_chains_share_nothing_of_what_they_learn(make: Any):
    scales_MD = torch.tensor([[0.1, 1.0], [1.0, 1.0], [50.0, 3.0]]).double()

    def gaussian(scales_MD: Tensor) -> tb.FunctionDensity:
        return tb.FunctionDensity(lambda w: -0.5 * (w.double() / scales_MD).square().sum(1))

    method = make(3, 70, 50, mass="diagonal")
    together = run_chains(gaussian(scales_MD), method, scales_MD, seed=0).state
    for m, seed in enumerate(member_seeds(0, 3)):
        density, state = gaussian(scales_MD[m : m + 1]), None
        state = method.init(density, scales_MD[m : m + 1], seeds=[seed])
        for _ in range(70):
            state, _ = method.step(density, state)
        assert_close(state.inverse_mass_MD[0], together.inverse_mass_MD[m], rtol=1e-8)
        assert_close(state.step_size.step_size_M[0], together.step_size.step_size_M[m], rtol=1e-8)


def test_a_chain_that_stood_still_for_a_window_keeps_its_mass():
    states, weights_SMD = trace(
        Known(COVARIANCE), tb.RandomWalk(2, 40, 30, step_size=1e4, mass="dense"), normal(2, 4), 40
    )
    assert torch.equal(weights_SMD[0], weights_SMD[-1])
    assert torch.equal(states[-1].inverse_mass_MD, torch.eye(4).double().expand(2, -1, -1))


@either
def test_without_a_mass_a_state_holds_none(make: Any):
    state: Any = make(2, 30, 25).init(Known(COVARIANCE), normal(2, 4), seeds=[0, 1])
    assert state.inverse_mass_MD.shape == state.spread.mean_MD.shape == state.spread.squares_MD.shape == (2, 0)


# --- where there is no prior ---


@either
def test_where_there_is_no_prior_the_mass_is_adapted_unless_something_is_given(make: Any):
    density, start_MD = correlated_gaussian(3, 10.0).density(), normal(2, 3)
    actual = tb.sample(density, make(2, 80, 40), start_MD, callbacks=())
    named = tb.sample(density, make(2, 80, 40, mass="diagonal"), start_MD, callbacks=())
    assert torch.equal(actual.weights_MSD, named.weights_MSD)
    for method in (make(2, 80, 40, step_size=0.3), make(2, 80, 19), make(2, 80, 40, mass="dense")):
        assert method.without_prior is None
    network = nn.Linear(2, 1).double()
    model = tb.Model(network, tb.likelihoods.Gaussian(0.1), tb.priors.Normal(1.0))
    rows = tb.Batch(normal(9, 2), normal(9, 1))
    chains = tb.sample(tb.LogDensity(model, 9, rows), make(2, 40, 30), normal(2, 3), callbacks=())
    assert chains.state.inverse_mass_MD.shape == (2, 0)


# --- the law ---

MASSES: dict[str, tuple[Callable[..., Sampler], dict[str, Any]]] = {
    "mala, diagonal": (tb.MALA, {"mass": "diagonal"}),
    "mala, dense": (tb.MALA, {"mass": "dense"}),
    "random walk, diagonal": (tb.RandomWalk, {"mass": "diagonal"}),
    "random walk, dense": (tb.RandomWalk, {"mass": "dense"}),
}


@pytest.mark.slow
@pytest.mark.study  # proposals, their acceptance and a change of units are exact, above
@pytest.mark.parametrize(("make", "mass"), MASSES.values(), ids=MASSES)
def test_a_correlated_normal_has_its_moments(make: Any, mass: dict[str, Any]):
    target = correlated_gaussian(4, condition=1e2 if mass["mass"] == "dense" else 10.0)
    start_MD = 2 * normal(300, 4) @ torch.linalg.cholesky(target.covariance_DD).T + target.mean_D
    chains = tb.sample(target.density(), make(300, 700, 300, **mass), start_MD, seed=1, callbacks=())
    assert_moments(chains.weights_MSD, target)


@pytest.mark.slow
# a mass is a change of units for either: `test_chains_are_those_in_coordinates_in_which_the_target_is_standard`
@pytest.mark.study
@pytest.mark.parametrize("make", [tb.MALA, tb.RandomWalk])
def test_an_ill_conditioned_normal_costs_what_a_standard_one_costs(make: Any):
    """Standard deviations from 1 to 100. Without a mass, steps suit the narrowest of them."""
    scales_D = torch.logspace(0, 2, 10, dtype=torch.float64)
    chains, steps, burn_in = (48, 1350, 900) if make is tb.RandomWalk else (64, 600, 400)
    start_MD = normal(chains, 10)

    def worth(mass: Any, scales_D: Tensor) -> float:
        method = make(chains, steps, burn_in, mass=mass)
        actual = run_chains(Known(scales_D.diag() ** 2), method, start_MD * scales_D, seed=1)
        return float(ess((actual.weights_MSD / scales_D).square()).median())

    plain, diagonal, dense = (worth(mass, scales_D) for mass in ("unit", "diagonal", "dense"))
    ideal = worth("unit", torch.ones(10).double())
    assert plain < 0.1 * ideal
    assert min(diagonal, dense) > 0.7 * ideal
