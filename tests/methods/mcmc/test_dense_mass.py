"""A dense mass: the same chains as in coordinates in which the target is N(0, I); what burn-in teaches of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.oracles import assert_close, normal
from tests.targets import assert_expectations

import torchbayes as tb
from torchbayes.methods.mcmc import hamiltonian
from torchbayes.methods.mcmc.adaptation import RunningCovariance, windows
from torchbayes.methods.noise import normals
from torchbayes.methods.sampler import Sampler
from torchbayes.randomness.seeds import Purpose, member_seeds

COVARIANCE = torch.tensor([[1.0, 0.995, 0.3], [0.995, 1.0, 0.3], [0.3, 0.3, 4.0]]).double()
FACTOR = torch.linalg.cholesky(COVARIANCE)


def correlated(covariance_DD: torch.Tensor = COVARIANCE) -> tb.FunctionDensity:
    precision_DD = torch.linalg.inv(covariance_DD)
    return tb.FunctionDensity(lambda w: -0.5 * ((w.double() @ precision_DD) * w.double()).sum(1))


def makers(**settings: Any) -> dict[str, Callable[..., Sampler]]:
    return {
        "hmc": lambda *length, **own: tb.HMC(*length, trajectory=1.5, jitter=0.3, **settings, **own),
        "nuts": lambda *length, **own: tb.NUTS(*length, **settings, **own),
    }


either = pytest.mark.parametrize("name", ["hmc", "nuts"])


@either
def test_chains_are_those_in_coordinates_in_which_the_target_is_standard(name: str):
    """With M⁻¹ = Σ = R Rᵀ on N(0, Σ), w = R z step for step, where z is a chain on N(0, I) with unit mass."""
    make, seeds = makers(step_size=0.4)[name], member_seeds(0, 5)
    method, plain, start_MD = make(5, 40, 20, mass="dense"), make(5, 40, 20, mass="unit"), normal(5, 3)
    standard = correlated(torch.eye(3).double())
    state: Any = method.init(correlated(), start_MD @ FACTOR.T, seeds=seeds)
    other: Any = plain.init(standard, start_MD, seeds=seeds)
    state = replace(state, step=20, inverse_mass_MD=FACTOR.expand(5, -1, -1))
    other = replace(other, step=20)
    for _ in range(10):
        state, info = method.step(correlated(), state)
        other, expected = plain.step(standard, other)
        assert_close(state.weights_MD, other.weights_MD @ FACTOR.T, rtol=1e-8, atol=1e-9)
        assert torch.equal(info.means()["gradients"], expected.means()["gradients"])
        for number in ("energy", "acceptance", "log_density"):
            assert_close(info.means()[number], expected.means()[number], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_momenta_have_the_covariance_m_and_the_energy_of_it(dtype: torch.dtype):
    """v = R⁻ᵀ z with z ~ N(0, I), so that cov v = R⁻ᵀ R⁻¹ = M, and ½ vᵀ M⁻¹ v = ½ |z|²."""
    method = tb.NUTS(4, 20, 10, step_size=0.3, mass="dense")
    state: Any = method.init(correlated(), normal(4, 3).to(dtype), seeds=[1, 2, 3, 4])
    scales_M = torch.tensor([1.0, 2.0, 0.1, 30.0], dtype=dtype)
    factor_MDD = scales_M[:, None, None] * FACTOR.to(dtype)
    momentum_MD = hamiltonian.momenta(state, factor_MDD)
    standard_MD = normals([1, 2, 3, 4], Purpose.MOMENTUM, 0, like=momentum_MD)
    pairs = zip(factor_MDD.double(), standard_MD.double(), strict=True)
    expected_MD = torch.stack([torch.linalg.inv(r).T @ z for r, z in pairs])
    loose = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9}
    assert momentum_MD.dtype == dtype
    assert_close(momentum_MD, expected_MD.to(dtype), **loose)
    inverse_MDD = scales_M.double()[:, None, None] ** 2 * COVARIANCE
    v = momentum_MD.double()
    expected_M = 0.5 * torch.einsum("md,mde,me->m", v, inverse_MDD, v)
    found_M = hamiltonian.kinetic(momentum_MD, factor_MDD)
    assert found_M.dtype == torch.float64
    assert_close(found_M, expected_M, **loose)
    assert_close(found_M, 0.5 * standard_MD.double().square().sum(1), **loose)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_running_covariance_is_that_of_numpy(offset: float):
    weights_SMD = offset + normal(200, 2, 3) @ FACTOR.T
    spread = RunningCovariance.empty(weights_SMD[0])
    for weights_MD in weights_SMD:
        spread = spread.collect(weights_MD)
    for chain, factor_DD in enumerate(spread.inverse_mass()):
        exact_DD = np.cov(weights_SMD[:, chain].numpy().T)
        shrunk_DD = (200 * exact_DD + 5e-3 * np.trace(exact_DD) / 3 * np.eye(3)) / 205
        assert_close(factor_DD, torch.from_numpy(np.linalg.cholesky(shrunk_DD)), rtol=1e-6, atol=1e-9)


# trees learn by the same windows, as `test_a_step_size_is_found_anew_after_a_window` sees
@pytest.mark.parametrize("name", ["hmc", pytest.param("nuts", marks=pytest.mark.study)])
def test_the_mass_is_the_shrunk_covariance_of_the_last_window_of_each_chain(name: str):
    method, weights = makers(mass="dense")[name](2, 40, 20), []
    state: Any = method.init(correlated(), normal(2, 3), seeds=member_seeds(0, 2))
    for _ in range(21):
        state, _ = method.step(correlated(), state)
        weights.append(state.weights_MD)
    first, (end,) = windows(20)
    for chain, found_DD in enumerate(state.inverse_mass_MD):
        exact_DD = torch.stack(weights)[first:end, chain].T.cov()
        count = end - first
        expected_DD = (count * exact_DD + 5e-3 * exact_DD.trace() / 3 * torch.eye(3)) / (count + 5)
        assert_close(found_DD @ found_DD.T, expected_DD, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.study  # chains with this mass are those of the standard normal, point for point, as the first test says
@either
def test_a_strongly_correlated_normal_has_its_moments_and_costs_what_a_standard_one_costs(name: str):
    """Correlation 0.995: a diagonal mass needs steps of the size of the narrow direction, a fourteenth of the wide."""
    standard, start_MD = correlated(torch.eye(3).double()), normal(96, 3)  # many chains take little longer than one
    chains = tb.sample(correlated(), makers(mass="dense")[name](96, 220, 150), start_MD @ FACTOR.T, seed=1)
    plain = tb.sample(standard, makers(mass="unit")[name](16, 170, 150), start_MD[:16], seed=1)
    wide = tb.sample(correlated(), makers(mass="diagonal")[name](4, 80, 60), start_MD[:4] @ FACTOR.T, seed=1)
    w = chains.weights_MSD
    seen = torch.cat([w, w.square(), (w[..., :1] * w[..., 1:2])], -1)
    exact = torch.tensor([0.0, 0, 0, 1, 1, 4, 0.995]).double()
    within_F = torch.tensor([0.1, 0.1, 0.2, 0.15, 0.15, 0.6, 0.15]).double()
    assert_expectations(seen, exact, within_F=within_F, labels=["w0", "w1", "w2", "w0²", "w1²", "w2²", "w0 w1"])
    cost, least, diagonal = (float(c.numbers["gradients"][:, -20:].mean()) for c in (chains, plain, wide))
    assert cost < 2 * least  # a window of 105 draws does not give the covariance exactly, and trees are 2^j − 1
    assert cost < 0.25 * diagonal


@pytest.mark.parametrize("make", [tb.HMC, tb.NUTS, tb.MALA, tb.RandomWalk])
def test_too_many_weights_are_refused_before_they_fill_the_memory(make: Callable[..., Sampler]):
    method = make(4, 30, 25, mass="dense")
    with pytest.raises(ValueError, match=r"at most 2,000 weights; got 2,001, for which .* of 4 chains .* 0\.3 GB"):
        method.init(correlated(), torch.zeros(4, 2001).double(), seeds=[0, 1, 2, 3])


def test_chains_that_stood_still_keep_their_mass():
    method: Any = tb.HMC(2, 40, 30, step_size=2.5, trajectory=25.0, mass="dense")
    state = method.init(correlated(), normal(2, 3), seeds=[0, 1])
    state = replace(state, step=26, spread=RunningCovariance.empty(state.weights_MD))
    state, _ = method.step(correlated(), state)
    assert torch.equal(state.inverse_mass_MD, torch.eye(3).double().expand(2, -1, -1))
